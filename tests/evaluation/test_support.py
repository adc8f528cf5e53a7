"""A value that speaks of other patients than it should, or of what nobody got, is not believed."""

import numpy as np
import pyarrow as pa
import pytest

from evaluated import make_patients
from fdtr.evaluation import Behaviour, ByFold, Constant, Evaluator, Softened, known_propensities
from fdtr.evaluation.diagnostics import Overlap, first_doubt, judge_mean, judge_support
from fdtr.evaluation.weights import Weights
from fdtr.site import evaluate, read_trajectories
from fdtr.study import Study
from worlds import make_sites, make_study

pytestmark = pytest.mark.quick


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
    verdict = judge_mean(Weights(np.stack([all_there, few]), np.zeros(2)))
    assert verdict.reason.startswith("At step 1 the weights average 0.25 and not 1")
    assert judge_mean(Weights(all_there[None], np.zeros(1))).believable
    assert judge_mean(Weights(few[None], np.array([0.1]))).believable  # cut off: less for another reason


def test_a_target_may_ask_a_little_of_what_is_never_done():
    assert judge_support(overlap(never=0.2)).believable
    assert "practically never" in judge_support(overlap(never=0.21)).reason
    assert judge_support(overlap(unused=0.05)).believable
    assert "nobody here got, for 6%" in judge_support(overlap(unused=0.06)).reason


def test_the_first_doubt_is_told():
    good, bad = judge_support(overlap()), judge_support(overlap(unused=1.0))
    assert first_doubt(good, bad) == bad
    assert first_doubt(good, good).believable


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
