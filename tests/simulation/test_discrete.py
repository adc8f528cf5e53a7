"""Discrete worlds: exact values agree with patients, hidden causes stay hidden, ends and losses are as described."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

import fdtr
from fdtr.simulation import DiscreteSpec, constant_rule, make_discrete_world
from fdtr.simulation.tabular import TabularWorld

SPECS = {
    "ward": DiscreteSpec(n_sites=2),
    "deviating": DiscreteSpec(n_sites=2, deviation=0.5),
    "confounded": DiscreteSpec(n_sites=2, confounding=1.5),
    "ends": DiscreteSpec(n_sites=2, ends=True),
    "crossed": DiscreteSpec("crossed", n_sites=2, horizon=3),
}


def world_of(name: str, seed: int = 0) -> TabularWorld:
    return make_discrete_world(SPECS[name], np.random.default_rng(seed))


def by_lactate(states, step):
    """A rule that moves with the step."""
    return np.where(states[:, 0] > 0.2 * step, 1, 0)


@pytest.mark.parametrize("name", SPECS)
def test_chances_are_laws(name):
    world = world_of(name)
    for chances in (world.transitions, world.chances, world.initial, np.swapaxes(world.hidden, 1, 2)):
        assert chances.min() >= 0
        np.testing.assert_allclose(chances.sum(axis=-1), 1.0, atol=1e-12)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("act", [None, constant_rule(3), by_lactate])
def test_exact_values_are_those_of_many_patients(name, act):
    world, n = world_of(name), 20_000
    walk = world.sample(1, n, np.random.default_rng(1), act)
    sums = walk.rewards.sum(axis=0)
    if walk.lengths is not None:
        worth = dict(zip(["", *world.exits], [0.0, *world.worth], strict=True))
        sums = sums + (world.horizon - walk.lengths) * np.array([worth[str(end)] for end in walk.ends])
    error = sums.std(ddof=1) / np.sqrt(n)
    assert abs(sums.mean() - world.value(1, act).mean) < 4 * error


@pytest.mark.parametrize("name", SPECS)
def test_no_rule_beats_the_optimum(name):
    world = world_of(name)
    for site in (0, 1):
        best = world.optimal(site)
        assert world.value(site, best.act).mean == pytest.approx(best.value, abs=1e-12)
        others = [None, by_lactate, *(constant_rule(code) for code in range(world.n_actions))]
        assert max(value.mean for value in world.values(site, others)) < best.value


def test_the_best_constant_treatment_reaches_half_of_the_gap_in_the_ward():
    world = make_discrete_world(DiscreteSpec(), np.random.default_rng(3))
    sites = range(len(world.sites))
    clinicians = np.mean([world.value(site, None).mean for site in sites])
    best = np.mean([world.optimal(site).value for site in sites])
    constants = [max(world.value(site, constant_rule(code)).mean for code in range(8)) for site in sites]
    assert (np.mean(constants) - clinicians) / (best - clinicians) >= 0.5


def test_a_hidden_cause_makes_treated_patients_look_worse_than_treatment_is():
    """With a cause that clinicians see, the outcome of those who got all treatments understates the treatment."""
    gaps = {}
    for confounding in (0.0, 2.0):
        world = make_discrete_world(
            DiscreteSpec(n_sites=1, horizon=1, confounding=confounding), np.random.default_rng(4)
        )
        walk = world.sample(0, 100_000, np.random.default_rng(5))
        exact = world.value(0, constant_rule(7)).mean
        states, treated = world.positions(walk.states[0]), walk.actions[0] == 7
        # Standardised to all patients by state, as an analysis without the cause would.
        counts = np.bincount(states[treated], minlength=180)
        means = np.bincount(states[treated], walk.rewards[0][treated], minlength=180) / np.maximum(counts, 1)
        shares = np.bincount(states, minlength=180) * (counts > 0)
        gaps[confounding] = means @ shares / shares.sum() - exact
    assert abs(gaps[0.0]) < 0.01
    assert gaps[2.0] < -0.03


def test_lost_patients_are_in_no_table_and_the_rest_is_whole():
    spec = DiscreteSpec(n_sites=2, censoring=0.3)
    world = make_discrete_world(spec, np.random.default_rng(0))
    study = fdtr.Study.model_validate(world.study())
    rows = fdtr.read_trajectories(pa.table(world.table(300, np.random.default_rng(1))), study)
    assert 300 < rows.n_patients < 600
    assert rows.n_rows == rows.n_patients * spec.horizon


def test_ends_are_read_by_the_study_and_leave_nobody_twice():
    world = world_of("ends")
    study = fdtr.Study.model_validate(world.study())
    rows = fdtr.read_trajectories(pa.table(world.table(400, np.random.default_rng(1))), study)
    assert rows.n_patients == 800
    assert rows.n_rows < 800 * world.horizon


@pytest.mark.parametrize(
    "wrong",
    [{"n_sites": 0}, {"deviation": -1.0}, {"confounding": -1.0}, {"censoring": 1.0}, {"kind": "crossed", "ends": True}],
)
def test_impossible_worlds_are_refused(wrong):
    with pytest.raises(ValueError, match=r"site|number|chance|ends"):
        DiscreteSpec(**wrong)


def test_a_habit_is_better_than_chance_and_far_from_the_best():
    world = make_discrete_world(DiscreteSpec(n_sites=2, habit=True), np.random.default_rng(0))
    always = np.eye(world.n_actions)[world.chances.argmax(axis=-1)]
    by_habit, by_chance = (replace(world, chances=chances) for chances in (always, np.full_like(always, 1 / 8)))
    for site in range(2):
        values = [w.value(site, None).mean for w in (by_chance, world, by_habit)]
        assert values == sorted(values)
        assert world.optimal(site).value - values[-1] > 0.08
    plain = make_discrete_world(DiscreteSpec(n_sites=2), np.random.default_rng(0))
    np.testing.assert_array_equal(world.transitions, plain.transitions)  # the habit alone differs
    fast, low = world.positions(np.array([[2, 1, 1, 0, 0], [1, 0, 1, 4, 0]], dtype=float))
    assert world.chances[0, 0, 0, [fast, low]].argmax(axis=-1).tolist() == [4, 2]  # antibiotics; vasopressor


def test_only_a_ward_has_habits():
    with pytest.raises(ValueError, match='only the kind "ward" has ends and habits'):
        DiscreteSpec(kind="crossed", habit=True)
