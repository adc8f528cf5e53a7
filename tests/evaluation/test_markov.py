"""The Markov check on worlds that do and do not forget."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from evaluation_patients import ENDS, make_patients
from fdtr.evaluation import Evaluator
from fdtr.evaluation.markov import PredictionGain, check_markov, p_value_of_scores
from fdtr.evaluation.step_arrays import StepArrays
from fdtr.simulation import DiscreteSpec, make_discrete_world
from fdtr.site.rows import read_trajectories
from fdtr.study import Study
from random_tables import make_study

pytestmark = pytest.mark.quick


def test_a_reward_that_remembers_is_found_and_one_that_forgets_is_not():
    # 1,000 patients: an effect of half the noise's standard deviation is ten standard errors away.
    patients = make_patients(n=1000, ragged=False)
    rng = np.random.default_rng(0)
    view = patients.arrays
    ahead = tuple(rng.random(count) for count in view.counts)
    forgets = check_markov(patients.design, ahead)
    assert not forgets.reward.clear
    assert not forgets.value.clear
    before = view.states[0][1] / 10
    view.rewards[1] = 0.5 * before + 0.5 * view.rewards[1]
    remembers = check_markov(patients.design, ahead)
    assert remembers.reward.clear
    assert remembers.reward.gain == pytest.approx(0.25, abs=0.1)
    assert not remembers.value.clear


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
    assert remembers.value.gain > 0.25
    assert remembers.value.gain > 10 * remembers.value.standard_error
    assert not remembers.reward.clear  # the reward is read off the state
    assert not forgets.value.clear
    assert forgets.value.r_squared > 0.25
    assert abs(forgets.value.gain) < 0.02


def test_a_p_value_below_one_in_a_hundred_is_clear():
    for p_value, clear in ((1.0, False), (0.011, False), (0.009, True), (np.nan, False)):
        assert PredictionGain("value", 0.5, 0.01, 0.01, p_value).clear is clear


def test_the_p_value_is_that_of_sums_of_squares_with_unequal_weights():
    # ‖U‖² of U with variances 4 and 1, by simulation; four standard errors of a share of 100,000 draws near .05.
    rng = np.random.default_rng(4)
    scores = rng.normal(size=(400, 2)) * (0.1, 0.05)
    scores += np.array([0.19, 0.02]) / 20 - scores.mean(axis=0)
    draws = rng.normal(size=(100_000, 400)) @ scores
    share = np.mean((draws**2).sum(axis=1) >= np.sum(scores.sum(axis=0) ** 2))
    assert 0.02 < share < 0.2
    assert p_value_of_scores(scores, scores) == pytest.approx(share, abs=0.01)


def test_relatives_count_as_one_patient():
    # Treating patients as independent of their copies would make a past that does not matter look as if it did.
    rng = np.random.default_rng(5)
    alone = make_patients(n=300, ragged=False)
    ahead = tuple(rng.random(count) for count in alone.arrays.counts)
    once = check_markov(alone.design, ahead)
    copies, relatives = np.repeat(np.arange(300), 2), np.arange(600) // 2
    arrays = StepArrays(
        alone.arrays.rewards[:, copies],
        tuple(actions[copies] for actions in alone.arrays.actions),
        tuple(states[:, copies] for states in alone.arrays.states),
    )
    psi = tuple(part[:, copies] for part in alone.design.psi)
    twice = replace(alone.design, arrays=arrays, psi=psi, folds=alone.design.folds[copies])
    ahead_twice = tuple(part[copies] for part in ahead)
    p_once, p_related, p_apart = (
        found.reward.p_value
        for found in (once, check_markov(twice, ahead_twice, None, relatives), check_markov(twice, ahead_twice))
    )
    assert p_related == pytest.approx(p_once, rel=0.25)  # the leverage of a copy is half as large
    assert p_apart < p_once / 2


def test_false_alarms_of_the_markov_check_are_rare():
    # Two tests at 1% each: more than 5 of 60 have a probability below 1%.
    alarms = 0
    for seed in range(60):
        patients = make_patients(n=200, seed=seed)
        alarms += Evaluator(patients.rows, patients.features, patients.folds).markov.clear
    assert alarms <= 4


@pytest.mark.parametrize(("unseen", "clear"), [((), False), (("lactate",), True)])
def test_an_unseen_part_of_the_state_is_found(unseen, clear):
    # Health after the last step depends on lactate, which nobody sees; what clinicians saw before tells of it. The gain
    # in held-out predictions, over its error, found 24% of such hospitals with 600 patients.
    world = make_discrete_world(DiscreteSpec(n_sites=1, habit=True, unseen=unseen), np.random.default_rng(2))
    study = Study.model_validate(world.study())
    rows = read_trajectories(pa.table(world.table(600, np.random.default_rng([2, 9]))), study)
    found = Evaluator(rows, study.feature_map, np.arange(600) % 5).markov
    assert found.reward.clear is clear


def test_a_lagged_action_is_found():
    patients = make_patients(n=1000, ragged=False)
    rewards, actions = patients.arrays.rewards, patients.arrays.actions
    rewards[2] = 0.7 * rewards[2] + 0.3 * (actions[1] == 1)
    ahead = tuple(np.zeros(count) for count in patients.arrays.counts)
    found = check_markov(patients.design, ahead)
    assert found.reward.clear
    assert np.isnan(found.value.gain)
    assert not found.value.clear
