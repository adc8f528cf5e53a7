"""The built-in cohort: a world that obeys the paper's model, and tables that a study can read."""

import tomllib
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import f as f_law

from fdtr.simulation import sepsis
from fdtr.simulation.sepsis import HORIZON, MEASURES, SHARED, SPECIFIC, Act, Hospital, rollout
from fdtr.simulation.worlds import Trajectory
from fdtr.study import Study
from fdtr.study.sections import Disclosure

pytestmark = pytest.mark.slow

Array = NDArray[np.float64]
HOSPITALS = sepsis.hospitals()
MANY = 40_000

each_hospital = pytest.mark.parametrize("hospital", HOSPITALS, ids=lambda hospital: hospital.name)


def constant(code: int) -> Act:
    return lambda states, step: np.full(len(states), code)


def at_random(rng: np.random.Generator) -> Act:
    return lambda states, step: rng.integers(0, 3, len(states))


def recorded(act: Act, seen: list[tuple[Array, NDArray[np.intp]]]) -> Act:
    """`act`, which also keeps what it saw and did."""

    def acting(states: Array, step: int) -> NDArray[np.intp]:
        codes = act(states, step)
        seen.append((states.copy(), np.asarray(codes)))
        return codes

    return acting


def walk(hospital: Hospital, seed: int) -> Trajectory:
    """Many patients treated at random."""
    chance = np.random.default_rng(seed)
    return sepsis._walk(hospital, at_random(chance), MANY, chance)


def p_value_of_more(target: Array, base: Array, more: Array) -> float:
    """F test: do the columns `more` explain anything of `target` beside `base`?"""

    def residual_square(columns: Array) -> float:
        solution = np.linalg.lstsq(columns, target, rcond=None)[0]
        return float(np.sum((target - columns @ solution) ** 2))

    full = np.hstack([base, more])
    spare = len(target) - full.shape[1]
    left = residual_square(full)
    statistic = (residual_square(base) - left) / more.shape[1] / (left / spare)
    return float(f_law.sf(statistic, more.shape[1], spare))


def times_dose(action: NDArray[np.intp], columns: Array) -> Array:
    """p(a) ⊗ columns with p(a) = (1, a, a²), (n, 3 · columns)."""
    terms = (action / 2)[:, None] ** np.arange(3)
    return np.einsum("np,nm->npm", terms, columns).reshape(len(action), -1)


def with_one(columns: Array) -> Array:
    return np.hstack([np.ones((len(columns), 1)), columns])


def curved(z: Array) -> Array:
    """Squares and products, which a linear model does not have."""
    rows, columns = np.triu_indices(z.shape[1])
    return z[:, rows] * z[:, columns]


def test_the_table_depends_on_the_seed_alone():
    one, same, other = (sepsis.simulate_table(np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert list(one) == ["site", "patient", "step", "action", "reward", *(measure.name for measure in MEASURES)]
    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert not np.array_equal(one["sbp"], other["sbp"])


def test_the_table_has_a_row_for_every_patient_and_step():
    table = sepsis.simulate_table(np.random.default_rng(0))
    for hospital in HOSPITALS:
        rows = table["site"] == hospital.name
        patients, counts = np.unique(table["patient"][rows], return_counts=True)
        assert len(patients) == hospital.n_patients
        assert set(counts) == {HORIZON}
        assert patients[0] == f"{hospital.name[0]}-0001"
        assert np.array_equal(table["step"][rows], np.tile(np.arange(HORIZON), hospital.n_patients))


@each_hospital
def test_every_value_lies_inside_its_range_by_construction(hospital: Hospital):
    means = hospital.means()
    assert (means - sepsis.SPREAD).min() >= 0.005
    assert (means + sepsis.SPREAD).max() <= 0.995
    states = walk(hospital, 1).states
    for j, measure in enumerate(MEASURES):
        values = states[:, :, j]
        assert measure.low <= values.min()
        assert values.max() <= measure.high
        assert np.array_equal(values, np.round(values, measure.decimals))


@each_hospital
def test_the_chance_of_a_reward_stays_inside_0_and_1_wherever_a_patient_can_be(hospital: Hospital):
    means = hospital.means().reshape(-1, len(MEASURES)) - 0.5
    for step in range(HORIZON):
        centre, slopes = hospital.chances(step)
        middle = centre + means @ slopes.T
        reach = np.abs(slopes) @ sepsis.SPREAD
        assert (middle - reach).min() > 0.01
        assert (middle + reach).max() < 0.99


@each_hospital
def test_the_mean_reward_is_linear_in_the_recorded_features(hospital: Hospital):
    found = walk(hospital, 2)
    for h in (0, HORIZON - 1):
        z, action, reward = sepsis.to_unit(found.states[h]), found.actions[h], found.rewards[h].astype(float)
        base = times_dose(action, with_one(z))
        assert p_value_of_more(reward, base, times_dose(action, curved(z))) > 0.001
        # The chances are those documented: within five standard errors of a mean over MANY / 3 patients.
        centre, slopes = hospital.chances(h)
        for dose in range(3):
            of_dose = action == dose
            expected = centre[dose] + (z[of_dose] - 0.5) @ slopes[dose]
            assert abs(reward[of_dose].mean() - expected.mean()) < 5 * 0.5 / np.sqrt(of_dose.sum())


@each_hospital
def test_the_next_state_depends_on_the_specific_covariates_and_the_action_only(hospital: Hospital):
    found = walk(hospital, 3)
    z = sepsis.to_unit(found.states[1])
    own, shared, action = z[:, : len(SPECIFIC)], z[:, len(SPECIFIC) :], found.actions[1]
    later = sepsis.to_unit(found.states[2])
    base = times_dose(action, with_one(own))
    # Any function of the next state will do; (1) speaks of its whole law.
    for target in (later[:, 0] * later[:, 3], np.maximum(later[:, 1], later[:, 4]), (later[:, 3] > 0.5).astype(float)):
        assert p_value_of_more(target, base, times_dose(action, shared)) > 0.001
        assert p_value_of_more(target, base, times_dose(action, curved(own))) > 0.001
    assert p_value_of_more(later[:, 0], with_one(shared), own) < 1e-6  # the test can see a dependence


def test_shared_effects_are_common_and_others_are_each_hospitals_own():
    for step in range(HORIZON):
        slopes = np.stack([hospital.chances(step)[1] for hospital in HOSPITALS])
        assert np.ptp(slopes[:, :, len(SPECIFIC) :], axis=0).max() == 0
        assert np.ptp(slopes[:, :, : len(SPECIFIC)], axis=0).min() > 0


@pytest.mark.parametrize("seed", range(3))
def test_every_dose_is_used_often_enough_for_disclosure(seed: int):
    table = sepsis.simulate_table(np.random.default_rng(seed))
    functions = 1 + len(MEASURES)
    for hospital in HOSPITALS:
        assert 3 * functions / hospital.n_patients <= 0.10
        for step in range(HORIZON):
            rows = (table["site"] == hospital.name) & (table["step"] == step)
            assert np.bincount(table["action"][rows], minlength=3).min() >= functions + 10


@each_hospital
def test_clinicians_give_more_fluid_for_low_pressure_and_high_lactate(hospital: Hospital):
    n = 4000
    well, ill = ({**sepsis.EXAMPLE_PATIENT, **changed} for changed in (
        {"sbp": 140.0, "lactate": 1.5}, {"sbp": 80.0, "lactate": 7.0},
    ))  # fmt: skip
    doses = [
        sepsis.clinicians(hospital, np.random.default_rng(4))(np.tile(list(patient.values()), (n, 1)), 0).mean()
        for patient in (well, ill)
    ]
    assert doses[1] > doses[0] + 0.2


def one_patient(hospital: Hospital, choose: Callable[[dict[str, float]], int], rng: np.random.Generator) -> int:
    """The module's description followed to the letter, for one patient at a time: an independent simulation."""
    z, dose, total = list(hospital.level), 0, 0
    for step in range(HORIZON):
        j = 0 if rng.random() < sepsis.DRIVER[0] else 1
        sign = 1 if rng.random() < z[j] else -1
        state = {}
        for i, measure in enumerate(MEASURES):
            middle = hospital.level[i] + sign * sepsis.PULL[j, i] + hospital.response * sepsis.RESPONSE[dose, i]
            drawn = middle + sepsis.SPREAD[i] * (2 * rng.random() - 1)
            state[measure.name] = round(measure.low + (measure.high - measure.low) * drawn, measure.decimals)
            z[i] = (state[measure.name] - measure.low) / (measure.high - measure.low)
        dose = choose(state)
        late = step / 4
        chance = (1 - late) * hospital.chance[0][dose] + late * hospital.chance[1][dose]
        chance += hospital.sbp[dose] * (z[0] - 0.5) + hospital.oxygen_need[dose] * (z[1] - 0.5)
        for i in range(len(SHARED)):
            first, last = sepsis.SHARED_EFFECTS[:, dose, i]
            chance += ((1 - late) * first + late * last) * (z[len(SPECIFIC) + i] - 0.5)
        total += int(rng.random() < chance)
    return total


@each_hospital
def test_rollout_agrees_with_a_simulation_of_one_patient_at_a_time(hospital: Hospital):
    def choose(state: dict[str, float]) -> int:
        return 2 if state["lactate"] > 4 else int(state["sbp"] < 120)

    def act(states: Array, step: int) -> NDArray[np.intp]:
        return np.where(states[:, 3] > 4, 2, (states[:, 0] < 120).astype(np.intp))

    rng = np.random.default_rng(5)
    slow = np.array([one_patient(hospital, choose, rng) for _ in range(1500)])
    fast = rollout(hospital, act, MANY, np.random.default_rng(6))
    error = np.sqrt(slow.var() / len(slow) + fast.var() / len(fast))
    assert abs(slow.mean() - fast.mean()) < 4 * error


def test_two_rules_meet_the_same_patients_with_the_same_luck():
    hospital, n = HOSPITALS[0], 500

    def late_high(states: Array, step: int) -> NDArray[np.intp]:
        return np.full(len(states), 2 if step == HORIZON - 1 else 0)

    seen: dict[str, list[tuple[Array, NDArray[np.intp]]]] = {"none": [], "late": []}
    none = rollout(hospital, recorded(constant(0), seen["none"]), n, np.random.default_rng(7))
    late = rollout(hospital, recorded(late_high, seen["late"]), n, np.random.default_rng(7))
    for (one, _), (other, _) in zip(seen["none"], seen["late"], strict=True):
        assert np.array_equal(one, other)
    assert np.abs(none - late).max() <= 1  # only the last window differs
    high = rollout(hospital, constant(2), n, np.random.default_rng(7))
    assert np.var(none - high) < 0.9 * (np.var(none) + np.var(high))


def test_a_rule_that_draws_does_not_change_the_patients():
    drawing: list[tuple[Array, NDArray[np.intp]]] = []
    steady: list[tuple[Array, NDArray[np.intp]]] = []
    hospital = HOSPITALS[1]
    act = sepsis.clinicians(hospital, np.random.default_rng(8))
    rollout(hospital, recorded(act, drawing), 50, np.random.default_rng(9))
    rollout(hospital, recorded(constant(0), steady), 50, np.random.default_rng(9))
    assert np.array_equal(drawing[0][0], steady[0][0])


def test_the_study_file_describes_the_cohort(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(sepsis.study_text(), encoding="utf-8")
    study = Study.load(path)
    assert study.name == "sepsis-fluids-demo"
    assert study.horizon == HORIZON
    assert study.actions.levels == (0, 1, 2)
    expected = [(m.name, (m.low, m.high), "specific") for m in SPECIFIC] + [
        (m.name, (m.low, m.high), "shared") for m in SHARED
    ]
    assert [(c.name, c.range, c.effect) for c in study.covariates] == expected
    assert study.feature_map.n_features == 3 * (1 + len(MEASURES))


def test_the_study_file_teaches_the_default_rules_and_names_no_setting_without_effect():
    content = tomllib.loads(sepsis.study_text())
    given = content["disclosure"]
    assert given == {name: Disclosure().model_dump()[name] for name in given}
    assert {"jitter", "max_membership", "max_leverage"} <= given.keys()
    assert not {"max_ratio", "small_step"} & given.keys()  # used by exact sums alone


def test_every_setting_of_the_study_file_is_explained():
    text = sepsis.study_text()
    settings = [line for line in text.splitlines() if "=" in line and not line.startswith("#")]
    unexplained = [line for line in settings if "#" not in line]
    # Name, effects and ranges are explained once, above the covariates.
    assert all(line.startswith(("name", "effect", "range")) for line in unexplained)


def test_the_example_patient_is_one_that_hospitals_treat_differently():
    assert list(sepsis.EXAMPLE_PATIENT) == [measure.name for measure in MEASURES]
    state = np.array([list(sepsis.EXAMPLE_PATIENT.values())])
    z = sepsis.to_unit(state)
    assert 0 <= z.min() <= z.max() <= 1
    assert np.array_equal(sepsis.from_unit(z), state)
    best = set()
    for hospital in HOSPITALS:
        centre, slopes = hospital.chances(0)
        best.add(int(np.argmax(centre + slopes @ (z[0] - 0.5))))
    assert best == {0, 1, 2}


@each_hospital
def test_no_dose_is_best_for_everybody(hospital: Hospital):
    z = sepsis.to_unit(walk(hospital, 10).states)
    for step in range(HORIZON):
        centre, slopes = hospital.chances(step)
        best = np.argmax(centre + (z[step] - 0.5) @ slopes.T, axis=1)
        assert np.bincount(best, minlength=3).max() / len(best) < 0.9
