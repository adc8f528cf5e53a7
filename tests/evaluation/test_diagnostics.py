"""Diagnostics: overlap by hand, and verdicts on values that describe the wrong patients or unused actions."""

import numpy as np
import pyarrow as pa
import pytest

from evaluation_patients import make_patients
from fdtr.evaluation import Behaviour, Constant, Evaluator, Softened, known_propensities
from fdtr.evaluation.diagnostics import (
    Overlap,
    _single_steps,
    diagnose,
    doubt_mean,
    doubt_size,
    doubt_support,
    overlap_of,
)
from fdtr.evaluation.importance import Weights, weigh
from fdtr.evaluation.step_arrays import StepArrays
from fdtr.evaluation.targets import ByFold
from fdtr.site.rows import read_trajectories
from fdtr.site.site_evaluation import evaluate
from fdtr.study import Study
from random_tables import make_sites, make_study

pytestmark = pytest.mark.quick


def test_overlap_is_counted_by_hand():
    patients = make_patients(ragged=False)
    wanted = tuple(np.eye(3)[np.arange(40) % 3].T for _ in range(3))
    usual = tuple(np.tile([[0.04], [0.5], [0.46]], 40) for _ in range(3))
    found = overlap_of(patients.arrays, wanted, usual)
    np.testing.assert_allclose(found.rare_share, 14 / 40)
    np.testing.assert_allclose(found.low_propensity, 0.04)
    np.testing.assert_allclose(
        found.agreement, [np.mean(actions == np.arange(40) % 3) for actions in patients.arrays.actions]
    )


def test_a_target_that_draws_counts_by_its_chances():
    patients = make_patients()
    found = overlap_of(patients.arrays, patients.target, patients.behaviour)
    for h, count in enumerate(patients.arrays.counts):
        pairs = [(patients.behaviour[h][a, i], patients.target[h][a, i]) for a in range(3) for i in range(count)]
        assert found.rare_share[h] == pytest.approx(sum(w for b, w in pairs if b < 0.05) / count)
        total, level = 0.0, 0.01 * count
        for b, w in sorted(pairs):
            total += w
            if total >= level:
                assert found.low_propensity[h] == pytest.approx(b)
                break


def test_diagnostics_are_those_of_the_weights():
    patients = make_patients()
    found = diagnose(patients.arrays, patients.weights, patients.target, patients.behaviour)
    assert found.present.tolist() == list(patients.arrays.counts)
    size = patients.weights.effective_sample_size
    np.testing.assert_array_equal(found.weights.effective_sample_size, size)
    assert found.doubt == doubt_size(size, 40)


def test_the_floor_is_ten_or_one_in_a_hundred():
    assert not doubt_size(np.array([10.0, 10.0]), 900)
    assert doubt_size(np.array([50.0, 9.9]), 900)
    assert not doubt_size(np.array([50.0]), 5000)
    assert doubt_size(np.array([100.0, 49.0, 48.0]), 5000) == (
        "At steps 1 and 2 the weights of 5000 patients are worth no more than 48.0 equal ones; 50 is the least."
    )


def test_nobody_left_is_no_number():
    patients = make_patients(n=2, ragged=True, seed=1)
    found = overlap_of(patients.arrays, patients.target, patients.behaviour)
    assert np.isnan(found.agreement).tolist() == [count == 0 for count in patients.arrays.counts]


def test_an_evaluator_shows_them_all():
    patients = make_patients(n=200)
    evaluator = Evaluator(patients.rows, patients.features, patients.folds)
    found = evaluator.diagnose(Behaviour())
    np.testing.assert_allclose(found.weights.effective_sample_size, 200.0)
    assert not found.doubt
    shares = [evaluator.diagnose(Constant(a)).overlap.agreement for a in range(3)]
    np.testing.assert_allclose(np.sum(shares, axis=0), 1.0)
    assert evaluator.calibration.count.sum() == 3 * sum(patients.arrays.counts)
    assert evaluator.sensitivity(Constant(1)).tipping_odds >= 1


def overlap(never=0.0, unused=0.0):
    return Overlap(*(np.array([share, 0.0]) for share in (never, never, unused, 0.0, 1.0)))


def separated(n: int = 400) -> tuple[Study, pa.Table]:
    """Clinicians treat by one covariate, without exception; the other action would harm where it is never given."""
    rng = np.random.default_rng(3)
    x = rng.random((n, 2))
    action = (x > 0.5).astype(int)
    reward = np.where(x > 0.5, 0.9, 0.6)
    study = Study.model_validate(
        {
            "name": "separated", "horizon": 2, "actions": {"levels": [0, 1], "degree": 1},
            "covariates": [{"name": "x"}], "learning": {"ridge": 0.1, "sharing": 0.0, "share": "value"},
        }
    )  # fmt: skip
    table = {
        "site": ["a"] * 2 * n, "patient": np.repeat(np.arange(n), 2), "step": np.tile([0, 1], n),
        "action": action.ravel(), "reward": reward.ravel(), "x": x.ravel(),
    }  # fmt: skip
    return study, pa.table(table)


@pytest.mark.parametrize("method", ["pdis", "wis", "fqe", "dr", "wdr"])
def test_what_is_never_done_cannot_be_valued(method):
    study, table = separated()
    rows = read_trajectories(table, study)
    found = evaluate(study, rows, Constant(0), method)
    assert not found.believable
    assert "clinicians" in found.reason
    assert evaluate(study, rows, Behaviour(), method).believable


def test_weights_that_average_less_than_one_have_lost_patients():
    few = np.tile([1.0, 0.0, 0.0, 0.0], 100)
    all_there = np.tile([2.0, 0.0], 200)
    both, none_cut = Weights(np.stack([all_there, few]), np.zeros(2)), np.zeros(2)
    doubt = doubt_mean(both.mean, both.mean_error, none_cut)
    assert doubt.startswith("At step 1 the weights average 0.25 and not 1")
    assert not doubt_mean(both.mean[:1], both.mean_error[:1], none_cut[:1])
    assert not doubt_mean(both.mean[1:], both.mean_error[1:], np.array([0.1]))  # cut off: less for another reason


@pytest.mark.parametrize(("n_decided", "chance", "doubted"), [(3, 0.2, False), (400, 0.2, True), (20, 0.9, True)])
def test_few_decisions_that_were_all_taken_otherwise_are_no_doubt(n_decided, chance, doubted):
    """A part advises `n_decided` of 400 patients what clinicians do with a `chance`, and none of them got it."""
    n = 400
    arrays = StepArrays(np.ones((1, n)), (np.zeros(n, np.intp),), (np.zeros((1, n)),))
    given, advised = np.repeat([[1.0], [0.0]], n, axis=1), np.arange(n) < n_decided
    target = np.where(advised, [[0.0], [1.0]], given)
    behaviour = np.where(advised, [[1 - chance], [chance]], given)
    found = diagnose(arrays, weigh(arrays, [target], [behaviour], reached=advised[None]), [target], [behaviour])
    sizes = found.weights.effective_sample_size
    assert ("average 0.00" in found.doubt) == (doubted and not doubt_size(sizes, n))
    mean, error = _single_steps(arrays, [target], [behaviour])
    assert (mean[0], error[0]) == (0.0, pytest.approx(np.sqrt((1 / chance - 1) / n_decided)))
    assert bool(doubt_mean(mean, error, np.zeros(1))) == doubted


def test_a_target_may_ask_a_little_of_what_is_never_done():
    assert not doubt_support(overlap(never=0.2))
    assert "practically never" in doubt_support(overlap(never=0.21))
    assert not doubt_support(overlap(unused=0.05))
    assert "nobody here got, for 6%" in doubt_support(overlap(unused=0.06))


def test_the_first_doubt_is_told():
    patients = make_patients(n=12)  # too few for ten equal weights, whatever the target asks for
    never = tuple(np.full_like(chances, 1e-3) for chances in patients.behaviour)
    found = diagnose(patients.arrays, patients.weights, patients.target, never)
    assert found.doubt == doubt_size(patients.weights.effective_sample_size, 12) != ""
    assert found.support_doubt == doubt_support(found.overlap) != ""


def test_an_action_that_nobody_got_is_not_believed_by_any_method():
    study = make_study(actions={"levels": [0, 1, 2], "degree": 1})
    rows = make_sites(study, {"a": 300}, actions={"a": [0, 1]})["a"]
    for method in ("pdis", "wis", "fqe", "dr", "wdr"):
        assert not evaluate(study, rows, Constant(2), method).believable
        assert evaluate(study, rows, Constant(1), "fqe").believable
    assert "nobody here got, for 100%" in evaluate(study, rows, Constant(2), "fqe").reason


def test_softening_by_nothing_changes_nothing_for_policies_by_fold():
    patients = make_patients(n=120)
    evaluator = Evaluator(patients.rows, patients.features, patients.folds)
    target = ByFold(patients.folds, [Constant(0), Constant(1), Constant(0), Constant(2)])
    for method in ("fqe", "wdr", "dr"):
        hard, soft = (evaluator.value(one, method) for one in (target, Softened(target, 0.0)))
        assert soft.value == pytest.approx(hard.value, rel=1e-12)
        assert soft.standard_error == pytest.approx(hard.standard_error, rel=1e-12)


def test_an_interval_that_lies_outside_of_everything_is_not_believed():
    study = make_study()
    rows = make_sites(study, {"a": 200}, actions={"a": [0]})["a"]
    wrong = known_propensities(tuple(np.full((3, 200), 1 / 3) for _ in range(3)))  # everybody got action 0
    evaluator = Evaluator(rows, study.feature_map, np.arange(200) % 5, propensities=wrong)
    found = evaluator.value(Constant(0), "pdis")
    assert (found.low, found.high) == (3.0, 3.0)
    assert found.reason == "The whole interval lies outside [0, 3], where every value is."
