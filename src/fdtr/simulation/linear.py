"""Sites whose patients obey the paper's model (1) and (2) exactly, with a known optimum, and worlds that break it.

A state is x = (x0, x1): m0 shared covariates in [0, 1] and m1 covariates of the site's own on the simplex. Actions
are codes 0 … |A|−1; a = code/(|A|−1) is the dose, and φ_l = (x_l, a·x_l). Because x1 sums to 1, constants and a lie
in the span of φ1 and no intercept is needed.

Transitions (1). A component i is drawn with probability x1_i and a branch b with P(b = 1) = a; each site and step
has its own ν_{b,i}, a Dirichlet law of x1' beside independent beta laws of x0':

    P(x' | x, a) = Σ_i x1_i [(1−a) ν_{0,i} + a ν_{1,i}](x')

Rewards (2). r has a beta law on [0, 1] with the mean μ = ⟨φ0, θ⁰⟩ + ⟨φ1, θᵏ⟩ and the variance noise²·μ(1−μ), so that
noise = 1 is r ∈ {0, 1}. μ stays 0.05 away from 0 and 1 for every state and action, by construction: nothing is clipped.

What is linear in the dose has its best dose at an end, 0 or 1; which one depends on the state. Worlds that are not
valid: `shared_kind` "static" keeps x0 over a patient's steps, so that it predicts the next value; "driving" also
tilts the choice of component, P(i | x) ∝ x1_i exp(⟨t_i, x0 − ½⟩). `deviation` breaks the common effect alone.
"""

from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fdtr.simulation.linear_effects import attainable, by_covariate, draw_effects, halves
from fdtr.simulation.worlds import NO_DISCLOSURE_RULES, Act, Array, Codes, FixedHorizonWorld, Optimal, codes_at

SOLVER_DRAWS = 20_000
"""States drawn from every ν_{b,i} to find the optimum."""

SPREAD = 4.0
"""Sum of a Dirichlet law's parameters: larger draws the next x1 closer to its mean."""

FAVOURED = 0.85
"""Chance that narrow clinicians use one of their few habitual actions."""

SHARPNESS = 8.0
"""How far softmax clinicians follow the next reward, over the range of a dose's effect on it."""

TILT = 2.0
"""Standard deviation of the weights t_i with which driving covariates tilt the choice of component."""


@dataclass(frozen=True)
class WorldSpec:
    """The specification of a linear world; `make_world` draws its numbers.

    `n_shared` = m0, of which the last `site_level_shared` are constant within a site, and `n_specific` = m1, so that
    d = 2(m0 + m1). `noise`, in (0, 1], is the standard deviation of rewards over its largest possible, √(μ(1−μ)).
    `behaviour`: "uniform"; "narrow", where each site mostly uses a third of the actions; "softmax" on the dose's
    effect on the next reward. `deviation` moves each site's θ⁰ from the common one by so many standard deviations.
    """

    n_sites: int = 5
    n_shared: int = 2
    n_specific: int = 2
    n_actions: int = 6
    horizon: int = 15
    noise: float = 0.6
    behaviour: Literal["uniform", "narrow", "softmax"] = "uniform"
    site_level_shared: int = 0
    deviation: float = 0.0
    shared_kind: Literal["redrawn", "static", "driving"] = "redrawn"

    def __post_init__(self) -> None:
        if min(self.n_sites, self.n_shared, self.horizon) < 1 or min(self.n_specific, self.n_actions) < 2:
            raise ValueError("a world needs 1 site, 1 step, 1 shared and 2 own covariates, and 2 actions at least")
        if not 0 <= self.site_level_shared <= self.n_shared:
            raise ValueError(f"site_level_shared is {self.site_level_shared}, and there are {self.n_shared} shared")
        if not 0 <= self.deviation < np.inf:
            raise ValueError(f"deviation is {self.deviation:g}; it is a number from 0 on")
        if not 0 < self.noise <= 1:
            raise ValueError(f"noise is {self.noise:g}; a law on [0, 1] needs more than 0 and at most 1")

    @property
    def feature_norm(self) -> float:
        """Largest possible ‖φ‖² is 2(m0 + m1) as the study counts it; unit scaling divides φ by its root."""
        return float(np.sqrt(2.0 * (self.n_shared + self.n_specific)))


@dataclass(frozen=True, eq=False)
class TransitionDraws:
    """Random draws as n patients leave a step.

    `component` and `branch` (n,) are in [0, 1), `own` is (2, m1, n, m1) and `shared` (n, m0).
    """

    component: Array
    branch: Array
    own: Array
    shared: Array


@dataclass(frozen=True, eq=False)
class World(FixedHorizonWorld):
    """A linear world of K sites; steps count from 0, d0 = 2·m0 and d1 = 2·m1.

    `theta_shared` (H, d0) is the common θ⁰ and `site_theta_shared` (K, H, d0) what each site has of it (the same
    without `deviation`); `theta_specific` (K, H, d1) is θᵏ. `concentration` (K, H, 2, m1, m1) holds the Dirichlet
    parameters of ν_{b,i}, by which patients leave a step; `shape` (K, m0, 2) the beta parameters of x0; `site_level`
    (K, s) the covariates that are constant within a site; `tilt` (K, m1, m0) is t; `habits` (K, |A|) the chances of
    narrow clinicians' actions. `solver_seed` starts the draws that find the optimum.
    """

    spec: WorldSpec
    theta_shared: Array
    site_theta_shared: Array
    theta_specific: Array
    concentration: Array
    shape: Array
    site_level: Array
    tilt: Array
    habits: Array
    solver_seed: int
    _solved: dict[int, Optimal] = field(default_factory=dict, repr=False)

    @property
    def theta_shared_scaled(self) -> Array:
        """θ⁰ as an estimator finds it on the study's unit-scaled features, (H, d0): times the norm they lose."""
        scaled: Array = self.theta_shared * self.spec.feature_norm
        return scaled

    def study(self, **learning: float | str) -> dict[str, Any]:
        """Content of a study file for this world; `learning` goes into its [learning]."""
        m0 = self.spec.n_shared
        constant_columns = range(m0 - self.spec.site_level_shared, m0)
        return {
            "name": "linear-mdp",
            "horizon": self.horizon,
            "actions": {"levels": list(range(self.n_actions)), "basis": "polynomial", "degree": 1, "scale": "unit"},
            "covariates": [
                {
                    "name": column,
                    "effect": "shared" if j < m0 else "specific",
                    "range": [0.0, 1.0],
                    "level": "site" if j in constant_columns else "patient",
                }
                for j, column in enumerate(self.covariates)
            ],
            "features": {"intercept": "none", "scale": "unit"},
            "reward": {"range": [0.0, 1.0]},
            "learning": learning,
            "disclosure": NO_DISCLOSURE_RULES,
        }

    def arrive(self, site: int, n: int, rng: np.random.Generator) -> Array:
        """x of `n` fresh patients, (n, m); x1 is uniform on the simplex."""
        return np.hstack([self._draw_shared(site, n, rng), rng.dirichlet(np.ones(self.spec.n_specific), n)])

    def luck(self, site: int, step: int, n: int, rng: np.random.Generator) -> "TransitionDraws":
        """Uniform numbers for the component and the branch, x1' from every ν_{b,i}, and a fresh x0, used or not."""
        tickets = rng.random(n), rng.random(n)
        return TransitionDraws(*tickets, self._draw_own(site, step, n, rng), self._draw_shared(site, n, rng))

    def next_states(self, site: int, step: int, states: Array, codes: Codes, luck: "TransitionDraws") -> Array:  # noqa: ARG002
        """x' (n, m) ~ P(· | x, a)."""
        component = codes_at(self.component_chances(site, states), luck.component)
        branch = (luck.branch < self.dose(codes)).astype(np.intp)
        own = luck.own[branch, component, np.arange(len(states))]
        shared = luck.shared if self.spec.shared_kind == "redrawn" else states[:, : self.spec.n_shared]
        return np.hstack([shared, own])

    def draw_rewards(self, means: Array, rng: np.random.Generator) -> Array:
        """Beta(μκ, (1−μ)κ) with κ = 1/noise² − 1: the mean μ and the variance noise²·μ(1−μ)."""
        size = 1.0 / self.spec.noise**2 - 1.0
        if size == 0.0:
            return (rng.random(means.shape) < means).astype(np.float64)
        return rng.beta(means * size, (1.0 - means) * size)

    def behaviour(self, site: int, rng: np.random.Generator) -> Act:
        """What the site's clinicians do; they draw from `rng`."""

        def act(states: Array, step: int) -> Codes:
            return codes_at(self.behaviour_chances(site, states, step), rng.random(len(states)))

        return act

    def behaviour_chances(self, site: int, states: Array, step: int) -> Array:
        """The chance of each action, (n, |A|), at the hands of the site's clinicians."""
        if self.spec.behaviour != "softmax":
            return np.tile(self.habits[site], (len(states), 1))
        effect = self.reward_parts(site, states, step)[1]
        low, high = attainable(
            halves(self.site_theta_shared[site, step])[1], halves(self.theta_specific[site, step])[1]
        )
        odds = np.exp(SHARPNESS * np.outer(effect / (high - low), np.linspace(0.0, 1.0, self.n_actions)))
        chances: Array = odds / odds.sum(axis=1, keepdims=True)
        return chances

    def reward_parts(self, site: int, states: Array, step: int) -> tuple[Array, Array]:
        """The mean reward is base + a·effect: both, (n,)."""
        theta = by_covariate(self.site_theta_shared[site, step], self.theta_specific[site, step])
        return states @ theta[0], states @ theta[1]

    def expected_reward(self, site: int, states: Array, codes: NDArray[Any], step: int) -> Array:
        """⟨φ0, θ⁰⟩ + ⟨φ1, θᵏ⟩, (n,)."""
        base, effect = self.reward_parts(site, states, step)
        mean: Array = base + self.dose(codes) * effect
        return mean

    def dose(self, codes: NDArray[Any]) -> Array:
        """a in [0, 1] of action codes."""
        dose: Array = np.asarray(codes, dtype=np.float64) / (self.n_actions - 1)
        return dose

    def component_chances(self, site: int, states: Array) -> Array:
        """P(i | x), (n, m1): x1, tilted by x0 in a driving world."""
        shared, own = np.split(states, [self.spec.n_shared], axis=1)
        if self.spec.shared_kind != "driving":
            return own
        weight = own * np.exp((shared - 0.5) @ self.tilt[site].T)
        chances: Array = weight / weight.sum(axis=1, keepdims=True)
        return chances

    def optimal(self, site: int) -> Optimal:
        """π* and V* of a site, found once; see `_solve`."""
        if site not in self._solved:
            self._solved[site] = _solve(self, site, np.random.default_rng([self.solver_seed, site]))
        return self._solved[site]

    def best_rule(self, site: int, draws: int = 5000) -> Act:
        """π* without its value, from `draws` states of every ν_{b,i} (a good policy and no more where x0 lasts)."""
        return _rule(self, site, _look_ahead(self, site, draws, np.random.default_rng([self.solver_seed, site])))

    def _draw_shared(self, site: int, n: int, rng: np.random.Generator) -> Array:
        """x0, (n, m0)."""
        shape = self.shape[site]
        shared = rng.beta(shape[:, 0], shape[:, 1], (n, len(shape)))
        shared[:, self.spec.n_shared - self.spec.site_level_shared :] = self.site_level[site]
        return shared

    def _draw_own(self, site: int, step: int, n: int, rng: np.random.Generator) -> Array:
        """x1' from every ν_{b,i} by which patients leave a step, (2, m1, n, m1)."""
        gamma = rng.standard_gamma(
            self.concentration[site, step][:, :, None, :], (2, self.spec.n_specific, n, self.spec.n_specific)
        )
        gamma /= gamma.sum(axis=-1, keepdims=True)
        return gamma


def make_world(spec: WorldSpec, rng: np.random.Generator) -> World:
    """Draw all numbers of a world.

    >>> world = make_world(WorldSpec(n_sites=2, horizon=3), np.random.default_rng(0))
    >>> world.theta_shared.shape, world.theta_specific.shape
    ((3, 4), (2, 3, 4))
    """
    sites, m0, m1 = spec.n_sites, spec.n_shared, spec.n_specific
    shape = rng.uniform(1.0, 2.0, (sites, m0, 2))
    site_level = rng.random((sites, spec.site_level_shared))
    middle = shape[..., 0] / shape.sum(axis=-1)
    middle[:, m0 - spec.site_level_shared :] = site_level
    effects = draw_effects(middle, spec.horizon, m1, spec.deviation, rng)
    means = rng.dirichlet(np.ones(m1), (sites, spec.horizon, 2, m1))
    return World(
        sites=tuple(f"site-{k + 1:0{len(str(sites))}d}" for k in range(sites)),
        covariates=(*(f"shared_{j + 1}" for j in range(m0)), *(f"own_{j + 1}" for j in range(m1))),
        horizon=spec.horizon,
        n_actions=spec.n_actions,
        spec=spec,
        theta_shared=effects.common,
        site_theta_shared=effects.shared,
        theta_specific=effects.specific,
        concentration=0.25 + SPREAD * means,
        shape=shape,
        site_level=site_level,
        tilt=TILT * rng.standard_normal((sites, m1, m0)),
        habits=_draw_habits(spec, rng),
        solver_seed=int(rng.integers(2**63)),
    )


def _draw_habits(spec: WorldSpec, rng: np.random.Generator) -> Array:
    """Chances of actions that do not look at the patient, (K, |A|)."""
    few = max(1, spec.n_actions // 3)
    chances = np.full((spec.n_sites, spec.n_actions), (1 - FAVOURED) / (spec.n_actions - few))
    for row in chances:
        row[rng.choice(spec.n_actions, few, replace=False)] = FAVOURED / few
    return chances if spec.behaviour == "narrow" else np.full_like(chances, 1 / spec.n_actions)


@dataclass(frozen=True, eq=False)
class _Ahead:
    """Expected values of the next step: W_h(b, i) = E[V_{h+1}(x')] under ν_{b,i}.

    `weights` (H, 2, m1, terms): W_h(b, i) as a polynomial in x0 with these `terms` (a constant in a valid world).
    `errors` (H, 2, m1) are its standard errors. `meets` (H, 2, m1, 2, m1) are chances: of leaving a step by a pair
    (b', i') after arriving by the pair (b, i).
    """

    terms: tuple[tuple[int, ...], ...]
    weights: Array
    errors: Array
    meets: Array

    def decide(self, world: World, site: int, states: Array, step: int) -> tuple[Array, NDArray[np.bool_]]:
        """V (n,) and whether dose 1 is best (n,).

        Q_h(x, a) = base + a·effect + Σ_i P(i | x) [(1−a) W_h(0, i) + a W_h(1, i)] is linear in a, so that V takes
        dose 0 or 1; ties go to 0.
        """
        base, effect = world.reward_parts(site, states, step)
        chances, products = world.component_chances(site, states), _products(states, self.terms)
        later = [np.sum(chances * (products @ weights.T), axis=1) for weights in self.weights[step]]
        gain = effect + later[1] - later[0]
        return base + later[0] + np.maximum(gain, 0.0), gain > 0


def _solve(world: World, site: int, rng: np.random.Generator) -> Optimal:
    """Backwards over the steps, with SOLVER_DRAWS draws from each ν_{b,i}.

    In a valid world V* and π* are exact up to Monte-Carlo error, and that of V* is the error of every W weighted by
    how often its ν_{b,i} is met. Where x0 lasts, W depends on it and a cubic stands in: π is a good policy and no
    more, and its value is simulated.
    """
    ahead = _look_ahead(world, site, SOLVER_DRAWS, rng)
    act = _rule(world, site, ahead)
    if world.spec.shared_kind != "redrawn":
        value = world.value(site, act, 5 * SOLVER_DRAWS, rng)
        return Optimal(act, value.mean, value.standard_error, exact=False)
    n = 10 * SOLVER_DRAWS
    states = np.hstack([world._draw_shared(site, n, rng), rng.dirichlet(np.ones(world.spec.n_specific), n)])
    best, high = ahead.decide(world, site, states, 0)
    variance, met = best.var() / n, _next_met(world, site, states, high)
    for h in range(world.horizon - 1):
        variance += np.sum((met * ahead.errors[h]) ** 2)
        met = np.einsum("bi,bicj->cj", met, ahead.meets[h + 1])
    return Optimal(act, float(best.mean()), float(np.sqrt(variance)), exact=True)


def _rule(world: World, site: int, ahead: _Ahead) -> Act:
    def act(states: Array, step: int) -> Codes:
        high = ahead.decide(world, site, np.asarray(states, dtype=np.float64), step)[1]
        return np.where(high, world.n_actions - 1, 0)

    return act


def _look_ahead(world: World, site: int, draws: int, rng: np.random.Generator) -> _Ahead:
    """W of every step by backward induction, with `draws` states from every ν_{b,i}; W is 0 after the last step."""
    steps, m1 = world.horizon, world.spec.n_specific
    terms = _terms(world.spec)
    weights, errors = np.zeros((steps, 2, m1, len(terms))), np.zeros((steps, 2, m1))
    ahead = _Ahead(terms, weights, errors, np.zeros((steps, 2, m1, 2, m1)))
    for h in reversed(range(1, steps)):
        own = world._draw_own(site, h - 1, draws, rng)
        for b, i in np.ndindex(2, m1):
            states = np.hstack([world._draw_shared(site, draws, rng), own[b, i]])
            best, high = ahead.decide(world, site, states, h)
            products = _products(states, terms)
            weights[h - 1, b, i] = np.linalg.lstsq(products, best)[0]
            errors[h - 1, b, i] = best.std() / np.sqrt(draws)
            ahead.meets[h, b, i] = _next_met(world, site, states, high)
    return ahead


def _next_met(world: World, site: int, states: Array, high: NDArray[np.bool_]) -> Array:
    """How often each (b, i) is drawn, (2, m1), when those who are `high` get dose 1 and others 0."""
    chances = world.component_chances(site, states)
    return np.stack([chances[~high].sum(axis=0), chances[high].sum(axis=0)]) / len(states)


def _terms(spec: WorldSpec) -> tuple[tuple[int, ...], ...]:
    """Products of up to three patient-level shared covariates, as their columns; 1 alone where x0 does not last."""
    columns, degrees = range(spec.n_shared - spec.site_level_shared), 1 if spec.shared_kind == "redrawn" else 4
    return tuple(term for degree in range(degrees) for term in combinations_with_replacement(columns, degree))


def _products(states: Array, terms: tuple[tuple[int, ...], ...]) -> Array:
    """Each product of columns, (n, terms); the empty one is 1."""
    return np.column_stack([states[:, list(term)].prod(axis=1) for term in terms])
