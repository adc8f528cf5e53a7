"""Diagnostics: overlap by hand, the verdict, and the Markov check on worlds that do and do not forget."""

import numpy as np
import pyarrow as pa
import pytest

from evaluated import ENDS, make_patients
from fdtr.evaluation import Behaviour, Constant, Evaluator
from fdtr.evaluation.diagnostics import diagnose, judge, overlap_of
from fdtr.evaluation.markov import Gain, MarkovCheck, check_markov
from fdtr.site import read_trajectories
from worlds import make_study

pytestmark = pytest.mark.quick


def test_overlap_is_counted_by_hand():
    patients = make_patients(ragged=False)
    wanted = tuple(np.eye(3)[np.arange(40) % 3].T for _ in range(3))
    usual = tuple(np.tile([[0.04], [0.5], [0.46]], 40) for _ in range(3))
    found = overlap_of(patients.paths, wanted, usual)
    np.testing.assert_allclose(found.rare_share, 14 / 40)
    np.testing.assert_allclose(found.low_propensity, 0.04)
    np.testing.assert_allclose(
        found.agreement, [np.mean(actions == np.arange(40) % 3) for actions in patients.paths.actions]
    )


def test_a_target_that_draws_counts_by_its_chances():
    patients = make_patients()
    found = overlap_of(patients.paths, patients.target, patients.behaviour)
    for h, count in enumerate(patients.paths.counts):
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
    found = diagnose(patients.paths, patients.weights, patients.target, patients.behaviour)
    assert found.present.tolist() == list(patients.paths.counts)
    np.testing.assert_array_equal(found.effective_sample_size, patients.weights.effective_sample_size)
    assert found.verdict == judge(found.effective_sample_size, 40)


def test_the_floor_is_ten_or_one_in_a_hundred():
    assert judge(np.array([10.0, 10.0]), 900).believable
    assert not judge(np.array([50.0, 9.9]), 900).believable
    assert judge(np.array([50.0]), 5000).believable
    verdict = judge(np.array([100.0, 49.0, 48.0]), 5000)
    assert verdict.reason == (
        "At steps 1 and 2 the weights of 5000 patients are worth no more than 48.0 equal ones; 50 is the least."
    )


def test_nobody_left_is_no_number():
    patients = make_patients(n=2, ragged=True, seed=1)
    found = overlap_of(patients.paths, patients.target, patients.behaviour)
    assert np.isnan(found.agreement).tolist() == [count == 0 for count in patients.paths.counts]


def test_a_reward_that_remembers_is_found_and_one_that_forgets_is_not():
    # 1,000 patients: an effect of half the noise's standard deviation is ten standard errors away.
    patients = make_patients(n=1000, ragged=False)
    rng = np.random.default_rng(0)
    view = patients.paths
    ahead = tuple(rng.random(count) for count in view.counts)
    forgets = check_markov(view, patients.psi, patients.embeddings, patients.folds, ahead)
    assert not forgets.doubtful
    before = view.states[0][1] / 10
    view.rewards[1] = 0.5 * before + 0.5 * view.rewards[1]
    remembers = check_markov(view, patients.psi, patients.embeddings, patients.folds, ahead)
    assert remembers.reward.clear
    assert remembers.reward.gain == pytest.approx(0.25, abs=0.1)
    assert not remembers.value.clear
    assert remembers.doubtful


def severity(memory, ragged, n=1000):
    """Patients whose reward is their severity x; the next is half of x or, with a `memory`, of x a step before."""
    rng = np.random.default_rng(7)
    study = make_study(
        horizon=4,
        actions={"levels": [0, 1]},
        covariates=[{"name": "x", "range": [0, 1]}],
        **({"ends": ENDS} if ragged else {}),
    )
    columns = {name: [] for name in ("patient", "step", "action", "reward", "x", "end")}
    for patient in range(n):
        length, x = (int(rng.integers(2, 5)) if ragged else 4), rng.random(2).tolist()
        for step in range(length):
            if step > 1:
                x.append(0.5 * (x[-2] if memory else x[-1]) + 0.5 * rng.random())
            end = "death" if ragged and step == length - 1 else None
            row = (patient, step, int(rng.integers(2)), x[step], x[step], end)
            for column, value in zip(columns.values(), row, strict=True):
                column.append(value)
    if not ragged:
        del columns["end"]
    return Evaluator(read_trajectories(pa.table(columns), study, "a"), study.feature_map, np.arange(n) % 4)


@pytest.mark.parametrize("ragged", [False, True])
def test_a_next_state_that_remembers_is_found_and_one_that_forgets_is_not(ragged):
    # x of two steps earlier is as wide as the noise: half of the variance where it counts, and then the state has none.
    remembers, forgets = (severity(memory, ragged).markov for memory in (True, False))
    assert remembers.value.clear
    assert remembers.doubtful
    assert remembers.value.gain > 0.25
    assert remembers.value.gain > 10 * remembers.value.standard_error
    assert not remembers.reward.clear  # the reward is read off the state
    assert not forgets.value.clear
    assert forgets.value.r_squared > 0.25
    assert abs(forgets.value.gain) < 0.02


def test_two_standard_errors_are_clear_and_fewer_are_not():
    none = Gain("reward", 0.5, -0.01, 0.01)
    for gain, clear in ((0.0, False), (0.015, False), (0.0199, False), (0.0201, True), (np.nan, False)):
        found = Gain("value", 0.5, gain, 0.01)
        assert found.clear is clear
        assert MarkovCheck(none, found).doubtful is clear
        assert MarkovCheck(found, none).doubtful is clear


def test_false_alarms_of_the_markov_check_are_rare():
    # Held-out predictions get worse with useless columns, so that two standard errors are seldom reached: under 2.5%.
    alarms = 0
    for seed in range(30):
        patients = make_patients(n=200, seed=seed)
        alarms += Evaluator(patients.rows, patients.features, patients.folds).markov.doubtful
    assert alarms <= 2


def test_a_lagged_action_is_found():
    patients = make_patients(n=1000, ragged=False)
    rewards, actions = patients.paths.rewards, patients.paths.actions
    rewards[2] = 0.7 * rewards[2] + 0.3 * (actions[1] == 1)
    ahead = tuple(np.zeros(count) for count in patients.paths.counts)
    found = check_markov(patients.paths, patients.psi, patients.embeddings, patients.folds, ahead)
    assert found.reward.clear
    assert np.isnan(found.value.gain)
    assert not found.value.clear


def test_an_evaluator_shows_them_all():
    patients = make_patients(n=200)
    evaluator = Evaluator(patients.rows, patients.features, patients.folds)
    found = evaluator.diagnose(Behaviour())
    np.testing.assert_allclose(found.effective_sample_size, 200.0)
    assert found.verdict.believable
    shares = [evaluator.diagnose(Constant(a)).overlap.agreement for a in range(3)]
    np.testing.assert_allclose(np.sum(shares, axis=0), 1.0)
    assert evaluator.calibration.count.sum() == 3 * sum(patients.paths.counts)
    assert evaluator.sensitivity(Constant(1)).tipping_odds >= 1
