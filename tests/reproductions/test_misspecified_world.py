"""Misspecified worlds depart from linear ones by what they say, and by nothing else."""

from itertools import product

import numpy as np
import pytest

from experiments import misspecified_world
from experiments.misspecified_world import misspecify
from fdtr.simulation.linear import World, WorldSpec, make_world
from fdtr.simulation.linear_effects import MARGIN

ETA = 0.03


@pytest.fixture(scope="module")
def world() -> World:
    spec = WorldSpec(n_sites=2, n_shared=2, n_specific=3, n_actions=3, horizon=3)
    return make_world(spec, np.random.default_rng(0))


def test_mean_rewards_depart_by_at_most_eta_and_stay_inside_the_unit_interval(world: World):
    other = misspecify(world, ETA)
    states = world.arrive(0, 2000, np.random.default_rng(1))
    largest = 0.0
    for code, step in product(range(3), range(3)):
        codes = np.full(len(states), code)
        wrong, linear = (w.expected_reward(0, states, codes, step) for w in (other, world))
        largest = max(largest, float(np.abs(wrong - linear).max()))
        assert wrong.min() >= 0
        assert wrong.max() <= 1
    assert largest == pytest.approx(ETA, abs=1e-12)


def test_no_departure_leaves_the_world_as_it_is(world: World):
    plain, same = (w.table(20, np.random.default_rng(2)) for w in (world, misspecify(world, 0.0)))
    assert all(np.array_equal(plain[name], same[name]) for name in plain)


def test_transitions_obey_the_model_still(world: World):
    walks = [w.sample(1, 50, np.random.default_rng(3)).states for w in (world, misspecify(world, ETA))]
    assert np.array_equal(*walks)


def test_the_linear_optimum_is_worth_less_here_and_is_not_called_exact(world: World):
    found = misspecify(world, ETA).optimal(0)
    assert not found.exact
    assert found.value < world.optimal(0).value


def test_a_departure_that_rewards_have_no_room_for_is_refused(world: World):
    with pytest.raises(ValueError, match="room"):
        misspecify(world, 0.2)


def test_a_departure_has_the_room_that_linear_worlds_leave():
    assert misspecified_world.MARGIN == MARGIN
