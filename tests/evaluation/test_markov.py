"""The Markov check on worlds that do and do not forget."""

import numpy as np
import pyarrow as pa
import pytest

from evaluation_patients import ENDS, make_patients
from fdtr.evaluation import Evaluator
from fdtr.evaluation.markov import PredictionGain, check_markov
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


def test_a_statistic_above_three_is_clear():
    for statistic, clear in ((0.0, False), (2.9, False), (3.1, True), (-4.0, False), (np.nan, False)):
        assert PredictionGain("value", 0.5, 0.01, 0.01, statistic).clear is clear


def test_false_alarms_of_the_markov_check_are_rare():
    alarms = 0
    for seed in range(30):
        patients = make_patients(n=200, seed=seed)
        found = Evaluator(patients.rows, patients.features, patients.folds).markov
        alarms += found.reward.clear or found.value.clear
    assert alarms <= 2


@pytest.mark.parametrize(("unseen", "clear"), [((), False), (("lactate",), True)])
def test_an_unseen_part_of_the_state_is_found(unseen, clear):
    # Health after the last step depends on lactate, which nobody sees; what clinicians saw before tells of it.
    world = make_discrete_world(DiscreteSpec(n_sites=1, habit=True, unseen=unseen), np.random.default_rng(2))
    study = Study.model_validate(world.study())
    rows = read_trajectories(pa.table(world.table(2000, np.random.default_rng([2, 9]))), study)
    found = Evaluator(rows, study.feature_map, np.arange(2000) % 5).markov
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
