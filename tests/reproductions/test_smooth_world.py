"""The smooth world: its laws are as stated, its optimum is right, and a study reads what it writes."""

import numpy as np
import pyarrow as pa
import pytest

import fdtr
from experiments.smooth_world import SmoothSpec, SmoothWorld, make_smooth_world
from fdtr.simulation.worlds import Act, constant_rule
from fdtr.study import Study


@pytest.fixture(scope="module")
def world() -> SmoothWorld:
    return make_smooth_world(SmoothSpec(n_sites=2, horizon=3), np.random.default_rng(1))


def random_rule(seed: int) -> Act:
    return lambda states, step: np.random.default_rng([seed, step]).integers(0, 2, len(states))


@pytest.mark.parametrize("wrong", [{"noise": 0.0}, {"noise": 1.0}, {"n_sites": 0}, {"horizon": 0}])
def test_a_world_that_cannot_be_drawn_is_refused(wrong: dict[str, float]):
    with pytest.raises(ValueError, match="needs"):
        SmoothSpec(**wrong)


def test_mean_rewards_stay_inside_the_unit_interval(world: SmoothWorld):
    states = np.random.default_rng(0).random((5000, 2))
    means = [world.expected_reward(0, states, np.full(5000, a), h) for a in (0, 1) for h in range(3)]
    assert np.min(means) >= 0.05
    assert np.max(means) <= 0.95


def test_the_expected_reward_is_the_mean_of_rewards(world: SmoothWorld):
    means = np.full(200_000, 0.3)
    rewards = world.draw_rewards(means, np.random.default_rng(2))
    # Four standard errors of a mean with the variance 0.36·0.3·0.7.
    assert rewards.mean() == pytest.approx(0.3, abs=4 * np.sqrt(0.36 * 0.21 / 200_000))
    assert rewards.var() == pytest.approx(0.36 * 0.21, rel=0.02)


@pytest.mark.parametrize("code", [0, 1])
def test_densities_of_the_next_state_integrate_to_one_and_are_those_of_the_sample(world: SmoothWorld, code: int):
    nodes, weights = np.polynomial.legendre.leggauss(64)
    nodes, weights = (nodes + 1) / 2, weights / 2
    own = np.linspace(0.0, 1.0, 11)
    density = world.next_density(0, own[:, None], np.array(code), nodes)
    assert density.min() >= 0
    assert np.allclose(density @ weights, 1.0, atol=1e-12)
    n = 100_000
    states = np.column_stack([np.full(n, 0.5), np.full(n, own[3])])
    luck = world.luck(0, 0, n, np.random.default_rng(3))
    drawn = world.next_states(0, 0, states, np.full(n, code), luck)[:, 1]
    # E[x'] and E[x'²] by quadrature; four standard errors.
    for power in (1, 2):
        expected = density[3] @ (weights * nodes**power)
        assert (drawn**power).mean() == pytest.approx(expected, abs=4 * (drawn**power).std() / np.sqrt(n))


def test_the_optimum_is_what_its_policy_reaches_and_beats_constants_and_others(world: SmoothWorld):
    best = world.optimal(0)
    reached = world.value(0, best.act, 100_000, np.random.default_rng(4))
    assert best.value == pytest.approx(reached.mean, abs=4 * reached.standard_error)
    rivals = [constant_rule(0), constant_rule(1), random_rule(5), None]
    for rival in rivals:
        other = world.value(0, rival, 20_000, np.random.default_rng(4))
        assert best.value > other.mean + 4 * other.standard_error


def test_suboptimality_is_the_difference_of_values(world: SmoothWorld):
    rule = random_rule(6)
    lost = world.suboptimality(1, rule, 50_000, np.random.default_rng(7))
    value = world.value(1, rule, 50_000, np.random.default_rng(8))
    error = np.hypot(lost.standard_error, value.standard_error)
    assert lost.mean == pytest.approx(world.optimal(1).value - value.mean, abs=4 * error)
    assert world.suboptimality(1, world.optimal(1).act, 1000, np.random.default_rng(9)).mean == 0.0


def test_an_additive_spline_comes_close_to_mean_rewards_and_a_line_does_not(world: SmoothWorld):
    states = np.random.default_rng(10).random((2000, 2))
    means = world.expected_reward(0, states, np.ones(2000), 1)
    left = []
    for knots in (None, 0, 4, 9):
        psi = Study.model_validate(world.study_with_knots(knots)).feature_map.psi(np.ascontiguousarray(states.T)).T
        left.append(np.abs(means - psi @ np.linalg.lstsq(psi, means)[0]).max())
    assert left[0] > 0.1
    assert left == sorted(left, reverse=True)
    assert left[-1] < 1e-3


def test_a_study_reads_the_table(world: SmoothWorld):
    study = Study.model_validate(world.study_with_knots(2, pessimism=0.0005, ridge=0.01, sharing=1.0, share="value"))
    data = fdtr.read_trajectories(pa.table(world.table(30, np.random.default_rng(11))), study)
    assert data.n_rows == 2 * 30 * 3
    assert study.feature_map.n_features == 4 * 2 + 14
