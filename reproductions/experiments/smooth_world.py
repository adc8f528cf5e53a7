"""Sites whose rewards and transitions are smooth and not linear, with a known optimum.

A state is x = (x0, x1) in the unit square: x0 has effects common to all sites and is drawn afresh at every step, x1 is
the site's own. There are two actions, a ∈ {0, 1}; ± is + for a = 1 and − for a = 0.

    μ(x, a)     = ½ + 0.08 cos 2πx0 + 0.07 cos 2π(x1 − p) ± 0.15 [sin 2π(x0 − s) + sin 2π(x1 − t)]
    x1' | x, a  ~ w Beta(8, 4) + (1−w) Beta(4, 8),    w(x1, a) = ½ + 0.3 sin 2π(x1 − u) ± 0.15

The phases p and t of each step, and u, are a site's own; s of each step is common. Rewards and densities are infinitely
smooth (a beta law with whole parameters has a polynomial density); the paper's q is taken as 3, which is what cubic
splines can use: their order of approximation is q + 1 = 4. The mean reward is a function of (x0, a) and one of
(x1, a), and the law of x1' one of (x1, a), as φ0 and φ1 of the paper's Section 4.1 have it: additive splines come as
close as one likes, and a linear fit does not. (There x0 stays as it is over the steps; it would then predict V, and (1)
would not hold.)
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import beta as beta_function

from fdtr.simulation import NO_DISCLOSURE_RULES, Act, FixedHorizonWorld, Optimal, Value

Array = NDArray[np.float64]
Codes = NDArray[np.intp]

MAIN_SHARED, MAIN_OWN, EFFECT = 0.08, 0.07, 0.15
WANDER, SHIFT = 0.3, 0.15
LAWS = ((4.0, 8.0), (8.0, 4.0))
"""Parameters of the two beta laws of x1'."""

SMOOTHNESS = 3
"""q: how many bounded derivatives of rewards and densities are counted on; there are more."""

NODES = 96
"""Gauss–Legendre nodes in each direction for expectations over x0 and x1."""


@dataclass(frozen=True)
class SmoothSpec:
    """`noise`, in (0, 1), is the standard deviation of rewards over its largest possible, √(μ(1−μ))."""

    n_sites: int = 5
    horizon: int = 5
    noise: float = 0.6

    def __post_init__(self) -> None:
        if min(self.n_sites, self.horizon) < 1:
            raise ValueError("a world needs 1 site and 1 step at least")
        if not 0 < self.noise < 1:
            raise ValueError(f"noise is {self.noise:g}; a beta law of rewards needs more than 0 and less than 1")


@dataclass(frozen=True, eq=False)
class Luck:
    """Chance as n patients leave a step: a `ticket` (n,) in [0, 1), `own` (2, n) from both laws, `shared` (n,)."""

    ticket: Array
    own: Array
    shared: Array


@dataclass(frozen=True, eq=False)
class SmoothWorld(FixedHorizonWorld):
    """K sites with all their numbers.

    `phase_shared` (H,) is s, `phase_own` (K, H) t, `phase_main` (K, H) p and `phase_next` (K,) u.
    """

    spec: SmoothSpec
    phase_shared: Array
    phase_own: Array
    phase_main: Array
    phase_next: Array
    _solved: "dict[int, Solved]" = field(default_factory=dict, repr=False)

    def study(self, **learning: float | str) -> dict[str, Any]:
        """Content of a study file with linear features; `learning` goes into its [learning]."""
        return self.study_with_knots(None, **learning)

    def study_with_knots(self, knots: int | None, **learning: float | str) -> dict[str, Any]:
        """Content of a study file in which each covariate has a cubic spline with so many inner knots, equally spaced.

        None gives linear features.
        """
        basis: dict[str, Any] = {"kind": "linear"}
        if knots is not None:
            basis = {"kind": "spline", "knots": np.linspace(0.0, 1.0, knots + 2)[1:-1].tolist(), "degree": 3}
        effects = zip(self.covariates, ("shared", "specific"), strict=True)
        return {
            "name": "smooth",
            "horizon": self.horizon,
            "actions": {"levels": [0, 1], "basis": "polynomial", "degree": 1, "scale": "unit"},
            "covariates": [{"name": n, "effect": effect, "range": [0.0, 1.0], "basis": basis} for n, effect in effects],
            "features": {"intercept": "specific", "scale": "unit"},
            "reward": {"range": [0.0, 1.0]},
            "learning": learning,
            "disclosure": NO_DISCLOSURE_RULES,
        }

    def arrive(self, site: int, n: int, rng: np.random.Generator) -> Array:  # noqa: ARG002 - the same at every site
        """x of `n` fresh patients, (n, 2), uniform on the unit square."""
        return rng.random((n, 2))

    def behaviour(self, site: int, rng: np.random.Generator) -> Act:  # noqa: ARG002 - the same at every site
        """The toss of a coin, drawn from `rng`."""
        return lambda states, step: rng.integers(0, 2, len(states))  # noqa: ARG005 - it looks at nothing

    def luck(self, site: int, step: int, n: int, rng: np.random.Generator) -> Luck:  # noqa: ARG002 - always the same
        """A ticket, x1' from both laws, and x0'."""
        return Luck(rng.random(n), np.stack([rng.beta(*law, n) for law in LAWS]), rng.random(n))

    def next_states(self, site: int, step: int, states: Array, codes: Codes, luck: Luck) -> Array:  # noqa: ARG002
        """x' (n, 2) ~ P(· | x, a)."""
        high = luck.ticket < self.high_chance(site, states[:, 1], codes)
        return np.column_stack([luck.shared, np.where(high, luck.own[1], luck.own[0])])

    def draw_rewards(self, means: Array, rng: np.random.Generator) -> Array:
        """Beta(μκ, (1−μ)κ) with κ = 1/noise² − 1: the mean μ and the variance noise²·μ(1−μ)."""
        size = 1.0 / self.spec.noise**2 - 1.0
        return rng.beta(means * size, (1.0 - means) * size)

    def expected_reward(self, site: int, states: Array, codes: NDArray[Any], step: int) -> Array:
        """μ(x, a), (n,)."""
        shared, own = states[..., 0], states[..., 1]
        main = MAIN_SHARED * _cos(shared) + MAIN_OWN * _cos(own - self.phase_main[site, step])
        effect = _sin(shared - self.phase_shared[step]) + _sin(own - self.phase_own[site, step])
        mean: Array = 0.5 + main + EFFECT * (2 * codes - 1) * effect
        return mean

    def high_chance(self, site: int, own: Array, codes: NDArray[Any]) -> Array:
        """w(x1, a), (n,): the chance that x1' is drawn from the higher of both laws."""
        chance: Array = 0.5 + WANDER * _sin(own - self.phase_next[site]) + SHIFT * (2 * codes - 1)
        return chance

    def next_density(self, site: int, own: Array, codes: NDArray[Any], following: Array) -> Array:
        """The density of x1' at `following` for patients with `own` x1 who get `codes`; arrays broadcast."""
        high = self.high_chance(site, own, codes)
        density: Array = (1.0 - high) * law_density(0, following) + high * law_density(1, following)
        return density

    def optimal(self, site: int) -> Optimal:
        """π* and V* of a site, by dynamic programming with quadrature in place of every expectation."""
        solved = self.solved(site)
        return Optimal(solved.act, solved.value, 0.0, exact=True)

    def solved(self, site: int) -> "Solved":
        """What dynamic programming finds for a site, once."""
        if site not in self._solved:
            self._solved[site] = _solve(self, site)
        return self._solved[site]

    def suboptimality(self, site: int, act: Act | None, n: int, rng: np.random.Generator) -> Value:
        """V* − V^π = E_π Σ_h [V*_h(x_h) − Q*_h(x_h, a_h)], from `n` patients treated by `act` (None: as clinicians do).

        Only decisions that differ from the best count, which leaves far less noise than a difference of two values.
        """
        walk, solved = self.sample(site, n, rng, act), self.solved(site)
        lost = np.zeros(n)
        for h in range(self.horizon):
            q = solved.q_values(walk.states[h], h)
            lost += q.max(axis=0) - np.take_along_axis(q, walk.actions[h][None], axis=0)[0]
        return Value(float(lost.mean()), float(lost.std(ddof=1) / np.sqrt(n)))


@dataclass(frozen=True, eq=False)
class Solved:
    """The optimum of a site: `value` is V*, and `ahead` (H, 2) is E[V*_{h+1}(x')] under each of both laws of x1'."""

    world: SmoothWorld
    site: int
    value: float
    ahead: Array

    def q_values(self, states: Array, step: int) -> Array:
        """Q*(x, a) = μ(x, a) + (1−w) W(0) + w W(1) of both actions, (2, n)."""
        low, high = self.ahead[step]
        codes = np.arange(2).reshape(2, *(1,) * (states.ndim - 1))
        later = low + (high - low) * self.world.high_chance(self.site, states[..., 1], codes)
        q: Array = self.world.expected_reward(self.site, states, codes, step) + later
        return q

    def act(self, states: Array, step: int) -> Codes:
        """π*; ties go to 0."""
        q = self.q_values(np.asarray(states, dtype=np.float64), step)
        return np.asarray(q[1] > q[0], dtype=np.intp)


def make_smooth_world(spec: SmoothSpec, rng: np.random.Generator) -> SmoothWorld:
    """Draw all phases of a world.

    >>> make_smooth_world(SmoothSpec(n_sites=2), np.random.default_rng(0)).sites
    ('site-1', 'site-2')
    """
    shape = (spec.n_sites, spec.horizon)
    return SmoothWorld(
        sites=tuple(f"site-{k + 1}" for k in range(spec.n_sites)),
        covariates=("shared", "own"),
        horizon=spec.horizon,
        n_actions=2,
        spec=spec,
        phase_shared=rng.random(spec.horizon),
        phase_own=rng.random(shape),
        phase_main=rng.random(shape),
        phase_next=rng.random(spec.n_sites),
    )


def law_density(law: int, x: Array) -> Array:
    """The density of one of both laws of x1'."""
    a, b = LAWS[law]
    density: Array = x ** (a - 1) * (1 - x) ** (b - 1) / beta_function(a, b)
    return density


def _solve(world: SmoothWorld, site: int) -> Solved:
    """Backwards over the steps: V_h on nodes of the unit square, and its means under each law of x1."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    nodes, weights = (nodes + 1) / 2, weights / 2
    square = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), axis=-1)
    laws = np.stack([weights * law_density(law, nodes) for law in (0, 1)])
    ahead = np.zeros((world.horizon, 2))
    best = np.zeros(NODES)
    for h in reversed(range(world.horizon)):
        if h < world.horizon - 1:
            ahead[h] = laws @ best
        best = weights @ Solved(world, site, 0.0, ahead).q_values(square, h).max(axis=0)
    return Solved(world, site, float(weights @ best), ahead)


def _sin(turns: Array) -> Array:
    wave: Array = np.sin(2 * np.pi * turns)
    return wave


def _cos(turns: Array) -> Array:
    wave: Array = np.cos(2 * np.pi * turns)
    return wave
