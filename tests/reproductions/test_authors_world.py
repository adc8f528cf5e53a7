"""The authors' kind of generator: the paper's settings, fixed rewards, and the degeneracy its description states."""

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import fdtr
from experiments.authors_world import BOUND, CUT, FIGURE_2, AuthorsSpec, AuthorsWorld, make_authors_world
from fdtr.simulation.worlds import Act, constant_rule
from fdtr.study import Study

pytestmark = pytest.mark.quick

Array = NDArray[np.float64]
each_panel = pytest.mark.parametrize("spec", FIGURE_2.values(), ids=FIGURE_2)
SMALL = AuthorsSpec(n_sites=3, n_actions=4, horizon=4)


def world_of(spec: AuthorsSpec, seed: int = 0) -> AuthorsWorld:
    return make_authors_world(spec, np.random.default_rng(seed))


def generator(*seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def at_random(n_actions: int, rng: np.random.Generator) -> Act:
    return lambda states, step: rng.integers(0, n_actions, len(states))


@each_panel
def test_a_panel_has_the_papers_size(spec: AuthorsSpec):
    # Figure 2 and Section 5.1: d counts covariates and their action terms; d0 = d1.
    world = world_of(spec)
    shape = (2 * (spec.n_shared + spec.n_specific), spec.n_actions, spec.horizon, spec.n_sites)
    assert str(shape).replace(" ", "") in FIGURE_2
    for vectors in (world.theta_shared, world.theta_specific, world.transition):
        assert vectors.min() > 0
        assert np.allclose(np.linalg.norm(vectors, axis=-1), 1.0)
    study = Study.model_validate(world.study())
    assert (study.feature_map.n_features, study.horizon) == (shape[0], spec.horizon)


@each_panel
def test_rewards_lie_in_the_fixed_range_whatever_is_done(spec: AuthorsSpec):
    world = world_of(spec, 1)
    for act in (None, constant_rule(0), constant_rule(spec.n_actions - 1)):
        walk = world.sample(0, 2000, generator(1), act)
        assert 0 <= walk.rewards.min() <= walk.rewards.max() <= 1
        assert 0 <= walk.states.min() <= walk.states.max() <= BOUND
    top = np.full((1, len(world.covariates)), BOUND)
    highest = [world.expected_reward(k, top, np.array([spec.n_actions - 1]), 0)[0] for k in range(spec.n_sites)]
    assert max(highest) <= 1 - CUT / spec.reward_width


def test_a_patients_reward_does_not_depend_on_the_batch():
    """The authors divide by the largest reward of the batch; here half of the patients are as they were."""
    world = world_of(SMALL, 2)
    states = world.sample(0, 100, generator(2)).states[1]
    codes = np.full(100, 2)
    alone = world.expected_reward(0, states[:50], codes[:50], 1)
    assert np.array_equal(alone, world.expected_reward(0, states, codes, 1)[:50])


def test_rewards_are_gaussian_around_the_linear_mean():
    world = world_of(SMALL, 3)
    walk = world.sample(1, 40_000, generator(3))
    error = (walk.rewards - walk.expected) * world.spec.reward_width
    assert abs(error.mean()) < 4 / np.sqrt(error.size)
    assert error.std() == pytest.approx(1.0, rel=0.01)
    h, a = 2, walk.actions[2][:, None]
    x0, x1 = walk.states[h, :, :2], walk.states[h, :, 2:]
    theta = np.concatenate([world.theta_shared[h], world.theta_specific[1, h]])
    raw = np.hstack([x0, a * x0, x1, a * x1]) @ theta
    assert np.allclose(walk.expected[h] * world.spec.reward_width - CUT, raw, atol=1e-10)


def test_next_states_are_weighted_uniform_draws():
    world = world_of(SMALL, 4)
    walk = world.sample(0, 40_000, generator(4))
    a, x1 = walk.actions[0][:, None], walk.states[0, :, 2:]
    weight = np.hstack([x1, a * x1]) @ world.transition[0, 0]
    inside = weight < BOUND  # nothing clipped
    draws = walk.states[1][inside] / weight[inside, None]
    assert draws.max() <= 1
    assert np.allclose(draws.mean(axis=0), 0.5, atol=0.01)
    assert np.allclose(draws.var(axis=0), 1 / 12, atol=0.002)


def test_transitions_are_not_linear_in_the_features():
    """Under (1) the chance that x' > 1 would be linear in φ1; given φ1 it still bends with the weight."""
    world = world_of(SMALL, 5)
    walk = world.sample(0, 40_000, generator(5))
    a, x1 = walk.actions[1][:, None], walk.states[1, :, 2:]
    phi = np.hstack([x1, a * x1])
    target = (walk.states[2, :, 0] > 1).astype(float)
    bent = np.hstack([phi, (phi @ world.transition[0, 1])[:, None] ** 2])
    fit = np.linalg.lstsq(bent, target)[0]
    left = (target - bent @ fit).var()
    assert abs(fit[-1]) > 10 * np.sqrt(left * np.linalg.inv(bent.T @ bent)[-1, -1])


@each_panel
def test_the_highest_dose_for_everybody_is_optimal(spec: AuthorsSpec):
    world = world_of(spec, 6)
    best = world.optimal(0, 4000)
    constants = world.values(0, [constant_rule(code) for code in range(spec.n_actions)], 4000, generator(6))
    highest = constants[-1]
    assert highest.mean == max(value.mean for value in constants)
    assert abs(highest.mean - best.value) < 4 * np.hypot(highest.standard_error, best.standard_error)
    assert world.behaviour_value(0, 4000, generator(6)).mean < best.value
    # Patient by patient, with the same luck, no rule does better.
    treated = world.sample(0, 2000, generator(6), best.act)
    for seed in range(3):
        other = world.sample(0, 2000, generator(6), at_random(spec.n_actions, generator(7, seed)))
        assert np.all(other.states <= treated.states)
        assert np.all(other.expected <= treated.expected + 1e-12)


def test_a_large_sample_fit_finds_the_same_policy_but_for_what_is_worth_nothing():
    world = world_of(SMALL, 8)
    study = Study.model_validate(world.study())
    rows = fdtr.read_trajectories(pa.table(world.table([20_000, 1, 1], generator(8))), study).by_site()
    fitted = fdtr.site.fit_q_learning(study, rows["site-1"])["Q-learn (H)"]
    reached = world.value(0, fitted.act, 5000, generator(8)).mean
    best = world.value(0, world.optimal(0, 100).act, 5000, generator(8)).mean
    behaviour = world.behaviour_value(0, 5000, generator(8)).mean
    assert 0 <= best - reached < 0.01 * (best - behaviour)


def test_a_study_reads_the_table_and_least_squares_finds_the_scaled_shared_effects():
    world = world_of(AuthorsSpec(n_sites=3, n_actions=4, horizon=4, intercept="specific"), 9)
    study = Study.model_validate(world.study(pessimism=0.0005, ridge=0.01))
    data = fdtr.read_trajectories(pa.table(world.table(30, generator(9))), study)
    assert data.sites == world.sites
    assert not any(data.clipped.values())
    walk = world.sample(0, 200_000, generator(9))
    phi = study.feature_map.phi(walk.states[1].T, walk.actions[1])
    gram = phi.T @ phi
    theta = np.linalg.solve(gram, phi.T @ walk.rewards[1])
    error = np.sqrt(np.diag(np.linalg.inv(gram))) / world.spec.reward_width
    assert np.all(np.abs(theta[:4] - world.theta_shared_scaled[1]) < 4.5 * error[:4])
    assert error[:4].max() < 0.1 * world.theta_shared_scaled[1].min()


def test_everything_depends_on_the_seed_alone_and_sites_on_their_own_numbers():
    tables = [world_of(SMALL, 10).table(n, generator(10)) for n in (20, 20, [20, 5, 9])]
    for name in tables[0]:
        assert np.array_equal(tables[0][name], tables[1][name])
        assert np.array_equal(
            tables[0][name][tables[0]["site"] == "site-1"], tables[2][name][tables[2]["site"] == "site-1"]
        )
    assert world_of(SMALL, 10).optimal(1, 500).value == world_of(SMALL, 10).optimal(1, 500).value
