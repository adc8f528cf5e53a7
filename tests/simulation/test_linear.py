"""The linear worlds: their laws are as stated, their optimum is right, and a study reads what they write."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from scipy.stats import f as f_law

import fdtr
from fdtr.simulation import linear
from fdtr.simulation.linear import World, WorldSpec, make_world
from fdtr.simulation.linear_effects import MARGIN
from fdtr.simulation.worlds import constant_rule
from fdtr.study import Study
from fdtr.summary import combine

Array = NDArray[np.float64]
SMALL = WorldSpec(n_sites=3, n_shared=2, n_specific=3, n_actions=4, horizon=4)
PANELS = (WorldSpec(), WorldSpec(n_sites=10), WorldSpec(n_shared=5, n_specific=5, n_actions=2, horizon=5))
KINDS = ("redrawn", "static", "driving")


def world_of(seed: int = 0, **changes: Any) -> World:
    return make_world(replace(SMALL, **changes), np.random.default_rng(seed))


def generator(*seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def phi_of(world: World, states: Array, codes: NDArray[np.intp]) -> Array:
    """(φ0, φ1), (n, d), written out as the paper does."""
    m0 = world.spec.n_shared
    a = world.dose(codes)[:, None]
    x0, x1 = states[:, :m0], states[:, m0:]
    return np.hstack([x0, a * x0, x1, a * x1])


def random_rule(world: World, rng: np.random.Generator) -> linear.Act:
    """A policy that follows a random direction of the state."""
    direction = rng.standard_normal((world.horizon, len(world.covariates)))
    return lambda states, step: np.where((states - 0.4) @ direction[step] > 0, world.n_actions - 1, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_states_rewards_and_actions_lie_where_they_should(kind: Any):
    world = world_of(shared_kind=kind, noise=1.0 if kind == "static" else 0.6)
    walk = world.sample(1, 2000, generator(1))
    shared, own = walk.states[..., :2], walk.states[..., 2:]
    assert walk.states.shape == (4, 2000, 5)
    assert np.allclose(own.sum(axis=-1), 1.0, atol=1e-12)
    assert own.min() >= 0
    assert 0 <= shared.min() <= shared.max() <= 1
    assert set(np.unique(walk.actions)) == {0, 1, 2, 3}
    assert 0 <= walk.rewards.min() <= walk.rewards.max() <= 1
    assert np.ptp(shared, axis=0).max() == 0 if kind != "redrawn" else np.ptp(shared, axis=0).min() > 0


@pytest.mark.parametrize("spec", [*PANELS, replace(SMALL, deviation=0.8), replace(SMALL, n_shared=1)])
def test_mean_rewards_stay_inside_the_margin_at_every_corner_of_the_state_space(spec: WorldSpec):
    world = make_world(spec, generator(2))
    cube = np.array(list(np.ndindex(*(2,) * spec.n_shared)), dtype=float)
    corners = np.array([np.concatenate([x0, x1]) for x0 in cube for x1 in np.eye(spec.n_specific)])
    seen = [
        world.expected_reward(k, corners, np.full(len(corners), code), h)
        for k in range(spec.n_sites)
        for h in range(spec.horizon)
        for code in (0, spec.n_actions - 1)
    ]
    assert np.min(seen) >= MARGIN - 1e-12
    assert np.max(seen) <= 1 - MARGIN + 1e-12
    assert np.ptp(seen) > 1 - 2 * MARGIN - 1e-9  # and use all the room


def test_the_expected_reward_is_linear_in_the_features():
    world = world_of(3)
    walk = world.sample(2, 500, generator(3))
    for h in range(world.horizon):
        theta = np.concatenate([world.theta_shared[h], world.theta_specific[2, h]])
        expected = phi_of(world, walk.states[h], walk.actions[h]) @ theta
        assert np.allclose(walk.expected[h], expected, atol=1e-12)


@pytest.mark.parametrize("noise", [0.2, 0.6, 1.0])
def test_rewards_have_the_stated_mean_and_variance(noise: float):
    world = world_of(4, noise=noise)
    walk = world.sample(0, 40_000, generator(4))
    error = walk.rewards - walk.expected
    variance = noise**2 * walk.expected * (1 - walk.expected)
    for h in range(world.horizon):
        phi = phi_of(world, walk.states[h], walk.actions[h])
        score = phi.T @ error[h]
        spread = np.sqrt(np.sum(phi**2 * variance[h][:, None], axis=0))
        assert np.abs(score / spread).max() < 4.5  # no feature explains what is left
    assert error.var() == pytest.approx(variance.mean(), rel=0.02)


def test_action_terms_have_both_signs_for_shared_and_own_covariates_at_every_step():
    for spec in PANELS:
        world = make_world(spec, generator(5))
        effect = world.theta_shared[:, spec.n_shared :]
        assert np.all(effect.min(axis=1) < 0)
        assert np.all(effect.max(axis=1) > 0)
        assert np.ptp(world.theta_specific[..., spec.n_specific :], axis=-1).min() > 0


@pytest.mark.parametrize("step", [0, 2])
def test_the_next_state_is_a_mixture_that_is_linear_in_the_own_features(step: int):
    world, n = world_of(6), 200_000
    state = np.array([0.2, 0.9, 0.5, 0.3, 0.2])
    means = world.concentration[1, step] / world.concentration[1, step].sum(axis=-1, keepdims=True)
    size = world.concentration[1, step].sum(axis=-1, keepdims=True)
    squares = means * (means * size + 1) / (size + 1)  # E[x1'²] of a Dirichlet law
    for code, a in enumerate(np.linspace(0, 1, 4)):
        luck = world.luck(1, step, n, generator(6, code))
        drawn = world.next_states(1, step, np.tile(state, (n, 1)), np.full(n, code), luck)[:, 2:]
        for moment, power in ((means, 1), (squares, 2)):
            exact = np.einsum("i,bij,b->j", state[2:], moment, [1 - a, a])
            error = (drawn**power).std(axis=0) / np.sqrt(n)
            assert np.all(np.abs((drawn**power).mean(axis=0) - exact) < 4.5 * error)


def p_value_of_more(target: Array, base: Array, more: Array) -> float:
    """F test: do the columns `more` explain anything of `target` beside `base`?"""

    def residual_square(columns: Array) -> float:
        return float(np.sum((target - columns @ np.linalg.lstsq(columns, target)[0]) ** 2))

    full = np.hstack([base, more])
    spare = len(target) - full.shape[1]
    left = residual_square(full)
    return float(f_law.sf((residual_square(base) - left) / more.shape[1] / (left / spare), more.shape[1], spare))


@pytest.mark.parametrize("kind", KINDS)
def test_shared_covariates_predict_the_next_state_only_where_they_drive_it(kind: Any):
    world = world_of(7, shared_kind=kind)
    walk = world.sample(0, 30_000, generator(7))
    phi = phi_of(world, walk.states[1], walk.actions[1])
    shared, own = phi[:, :4], phi[:, 4:]
    p_values = [p_value_of_more(target, own, shared) for target in walk.states[2, :, 2:4].T]
    assert min(p_values) < 1e-6 if kind == "driving" else min(p_values) > 0.001


@pytest.mark.slow
@pytest.mark.parametrize("spec", [SMALL, *PANELS[::2]], ids=["small", "six actions", "two actions"])
def test_the_optimum_is_what_the_optimal_policy_reaches_and_no_other_exceeds_it(spec: WorldSpec):
    world = make_world(spec, generator(8))
    best = world.optimal(0)
    reached = world.value(0, best.act, 20_000, generator(8))
    assert best.exact
    assert best.standard_error < 0.002
    assert abs(reached.mean - best.value) < 4 * np.hypot(reached.standard_error, best.standard_error)
    rules = [random_rule(world, generator(8, seed)) for seed in range(5)] + [None]
    rules += [constant_rule(code) for code in range(world.n_actions)]
    for rule in rules:
        other = world.value(0, rule, 20_000, generator(8))
        assert other.mean < reached.mean - 4 * other.standard_error


def test_the_optimum_of_a_small_horizon_agrees_with_brute_force():
    """One step: V* = E max_a of the mean reward, here over every action and by other draws."""
    world = world_of(9, horizon=1)
    walk = world.sample(0, 200_000, generator(9))
    rewards = np.stack([world.expected_reward(0, walk.states[0], np.full(200_000, c), 0) for c in range(4)])
    best = world.optimal(0)
    error = rewards.max(axis=0).std() / np.sqrt(200_000)
    assert abs(rewards.max(axis=0).mean() - best.value) < 4 * np.hypot(error, best.standard_error)


def test_the_standard_error_of_the_optimum_is_the_spread_over_solver_seeds(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(linear, "SOLVER_DRAWS", 500)
    world = world_of(10)
    found = [replace(world, solver_seed=seed, _solved={}).optimal(0) for seed in range(40)]
    spread = np.std([best.value for best in found], ddof=1)
    assert np.mean([best.standard_error for best in found]) == pytest.approx(spread, rel=0.4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["static", "driving"])
def test_where_the_model_is_broken_the_optimum_is_labelled_and_still_good(kind: Any):
    world = world_of(11, shared_kind=kind)
    best = world.optimal(0)
    assert not best.exact
    valid_rule = replace(world, spec=replace(world.spec, shared_kind="redrawn"), _solved={}).optimal(0).act
    for rule in (
        valid_rule,
        *(random_rule(world, generator(11, seed)) for seed in range(5)),
        constant_rule(0),
        constant_rule(3),
    ):
        other = world.value(0, rule, 20_000, generator(11))
        assert other.mean < best.value + 4 * np.hypot(other.standard_error, best.standard_error)


@pytest.mark.slow
@pytest.mark.parametrize("spec", PANELS)
def test_no_constant_action_comes_near_the_optimum(spec: WorldSpec):
    for seed in range(2):
        world = make_world(spec, generator(12, seed))
        behaviour = world.behaviour_value(0, 5000, generator(12)).mean
        best = world.optimal(0).value
        constants = world.values(0, [constant_rule(code) for code in range(spec.n_actions)], 5000, generator(12))
        assert (max(value.mean for value in constants) - behaviour) / (best - behaviour) < 0.5


def test_everything_depends_on_the_seed_alone():
    one, same, other = (world_of(seed) for seed in (13, 13, 14))
    assert np.array_equal(one.theta_specific, same.theta_specific)
    assert not np.array_equal(one.theta_specific, other.theta_specific)
    tables = [world.table(20, generator(13)) for world in (one, same)]
    assert all(np.array_equal(tables[0][name], tables[1][name]) for name in tables[0])
    assert one.optimal(1).value == same.optimal(1).value
    assert one.value(0, constant_rule(1), 50, generator(1)) == same.value(0, constant_rule(1), 50, generator(1))


def test_a_site_does_not_change_with_the_numbers_at_other_sites():
    world = world_of(15)
    few, many = world.table([10, 20, 30], generator(15)), world.table([10, 50, 5], generator(15))
    for name in few:
        assert np.array_equal(few[name][few["site"] == "site-1"], many[name][many["site"] == "site-1"])
    assert [int(np.sum(many["site"] == site)) for site in world.sites] == [40, 200, 20]


def test_policies_meet_the_same_patients_with_the_same_luck():
    world = world_of(16)
    late = lambda states, step: np.full(len(states), 3 if step == 3 else 0)  # noqa: E731
    one, two = (world.sample(0, 300, generator(16), act) for act in (constant_rule(0), late))
    assert np.array_equal(one.states, two.states)
    behaved = world.sample(0, 300, generator(16))
    assert np.array_equal(behaved.states[0], one.states[0])


def test_uniform_and_narrow_clinicians():
    uniform, narrow = (world_of(17, behaviour=kind, n_actions=6) for kind in ("uniform", "narrow"))
    for world, top in ((uniform, 2 / 6), (narrow, linear.FAVOURED)):
        for k in range(3):
            actions = world.sample(k, 5000, generator(17)).actions
            share = np.sort(np.bincount(actions.ravel(), minlength=6))[::-1] / actions.size
            assert share[:2].sum() == pytest.approx(top, abs=0.02)
            assert share[5] > 0.01
    assert len({tuple(np.argsort(row)[-2:]) for row in world_of(17, behaviour="narrow", n_sites=9).habits}) > 1


def test_softmax_clinicians_treat_better_than_chance_and_worse_than_the_optimum():
    world = world_of(18, behaviour="softmax")
    random = lambda states, step: generator(18, step).integers(0, 4, len(states))  # noqa: E731
    by_chance = world.value(0, random, 20_000, generator(18))
    reached = world.behaviour_value(0, 20_000, generator(18))
    assert by_chance.mean + 4 * by_chance.standard_error < reached.mean < world.optimal(0).value
    assert np.bincount(world.sample(0, 5000, generator(18)).actions.ravel()).min() > 500


def test_deviation_moves_the_sites_effects_by_so_many_standard_deviations():
    common = world_of(19, n_sites=200, horizon=2, n_shared=4)
    assert np.array_equal(common.site_theta_shared, np.tile(common.theta_shared, (200, 1, 1)))
    moved = world_of(19, n_sites=200, horizon=2, n_shared=4, deviation=0.8)
    off = moved.site_theta_shared - moved.theta_shared
    effects = moved.theta_shared[:, 4:]
    assert off[:, 0, 4:].std() == pytest.approx(0.8 * effects[0].std(), rel=0.1)


@pytest.mark.parametrize("constant_within", [0, 1, 2])
def test_a_study_reads_the_table(constant_within: int):
    world = world_of(20, site_level_shared=constant_within)
    study = Study.model_validate(world.study(pessimism=0.0005, ridge=0.01))
    data = fdtr.read_trajectories(pa.table(world.table(30, generator(20))), study)
    assert data.sites == world.sites
    assert study.learning.ridge == 0.01
    assert sum(covariate.level == "site" for covariate in study.covariates) == constant_within
    assert not any(data.clipped.values())
    assert study.feature_map.n_shared == 4
    assert np.allclose(study.feature_map.phi(np.full((5, 1), 0.3), np.array([3])) * world.spec.feature_norm, 0.3)


@pytest.mark.slow
def test_least_squares_on_the_studys_features_finds_the_scaled_shared_effects():
    world = world_of(21)
    features = Study.model_validate(world.study()).feature_map
    walk = world.sample(0, 400_000, generator(21))
    h = 2
    phi = features.phi(walk.states[h].T, walk.actions[h])
    gram = phi.T @ phi
    theta = np.linalg.solve(gram, phi.T @ walk.rewards[h])
    error = 0.3 * np.sqrt(np.diag(np.linalg.inv(gram)))  # the standard deviation of a reward is at most 0.6 · ½
    assert np.all(np.abs(theta[:4] - world.theta_shared_scaled[h]) < 4.5 * error[:4])
    assert np.all(np.abs(theta[4:] - world.theta_specific[0, h] * world.spec.feature_norm) < 4.5 * error[4:])
    assert error[:4].max() < 0.05 * np.abs(world.theta_shared_scaled[h]).max()


def fits(world: World, n: int, seed: int) -> tuple[list[fdtr.LocalFit], list[fdtr.FederatedFit], list[Any]]:
    """LDTR, FDTR and Q-learn (H) of every site."""
    study = Study.model_validate(world.study(pessimism=0.0005, ridge=0.01))
    rows = fdtr.read_trajectories(pa.table(world.table(n, generator(seed))), study).by_site()
    alone = [fdtr.fit_local(study, rows[name]) for name in world.sites]
    total = combine([fit.summary for fit in alone])
    together = [
        fdtr.fit_federated(study, rows[name], total, fit.summary) for name, fit in zip(world.sites, alone, strict=True)
    ]
    return alone, together, [fdtr.site.fit_q_learning(study, rows[name])["Q-learn (H)"] for name in world.sites]


def test_with_site_level_shared_covariates_alone_nothing_is_gained_by_sharing():
    world = world_of(22, site_level_shared=2)
    alone, together, _ = fits(world, 200, 22)
    states = world.sample(0, 200, generator(22)).states[1]
    for one, other in zip(alone, together, strict=True):
        assert np.allclose(one.theta, other.theta, atol=1e-6)
        assert np.array_equal(one.policy.act(states, 1), other.policy.act(states, 1))


@pytest.mark.parametrize(("kind", "low", "high"), [("redrawn", 0.0, 0.15), ("static", 0.5, 1.0)])
def test_the_transition_test_rejects_where_shared_covariates_last(kind: Any, low: float, high: float):
    world = make_world(replace(PANELS[0], shared_kind=kind, horizon=8), generator(23))
    study = Study.model_validate(world.study(pessimism=0.0005, ridge=0.001))
    rows = fdtr.read_trajectories(pa.table(world.table(400, generator(23))), study).by_site()
    p_values = [test.p_value for own in rows.values() for test in fdtr.check(study, own).transitions]
    assert low <= np.mean(np.array(p_values) < 0.05) <= high


@pytest.mark.slow
@pytest.mark.parametrize("spec", PANELS[::2], ids=["six actions", "two actions"])
def test_federated_policies_are_best_on_average_and_below_the_optimum(spec: WorldSpec, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(linear, "SOLVER_DRAWS", 2000)  # rougher, so that it is harder to be below it
    gains = []
    for seed in range(3):
        world = make_world(spec, generator(24, seed))
        alone, together, q_learnt = fits(world, 200, seed)
        for k in range(spec.n_sites):
            rules = [together[k].policy.act, alone[k].policy.act, q_learnt[k].act, world.optimal(k).act]
            values = [world.value(k, rule, 1000, generator(24, seed, k)).mean for rule in rules]
            gains.append(np.array(values) - values[0])
    _, local, q_learning, optimum = np.mean(gains, axis=0)
    assert local < 0
    assert q_learning < 0
    assert optimum > 0


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"noise": 0.0}, "noise"),
        ({"noise": 1.5}, "noise"),
        ({"site_level_shared": 3}, "shared"),
        ({"n_specific": 1}, "2 own"),
    ],
)
def test_impossible_worlds_are_refused(change: dict[str, Any], complaint: str):
    with pytest.raises(ValueError, match=complaint):
        replace(SMALL, **change)
