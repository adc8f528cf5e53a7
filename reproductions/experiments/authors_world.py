"""The kind of generator behind the paper's Figure 2, by the description in Section 5.1; it is degenerate.

States are x = (x0, x1) in [0, BOUND]; actions are codes a = 0 … |A|−1 as they are, and φ_l = (x_l, a·x_l). The entries
of θ⁰_h, θᵏ_h and μᵏ_h are uniform on (0, 1), then each vector is brought to norm 1. A next state is a uniform proposal
times its importance weight, clipped to the state space; a reward is Gaussian around the linear mean:

    x' = min(BOUND, u·⟨φ1(x, a), μᵏ_h⟩),  u uniform on (0, 1)^m        r = ⟨φ0, θ⁰_h⟩ + ⟨φ1, θᵏ_h⟩ + e

What it is. (i) A weighted proposal is no draw from the density: the law of x', shared covariates included, is not
linear in φ1, so (1) does not hold. (ii) No coefficient is negative. A higher dose never lowers a reward and, with the
same u, never a next state, so that by induction the highest dose for everybody is an optimal policy: there is nothing
to tailor. `optimal` returns it, and the tests compare it with a large-sample fit.

What differs from the authors' program. Rewards are not divided by the largest of a batch, which would make them
depend on the other patients: they are mapped onto [0, 1] from the fixed range [−CUT, largest mean + CUT], where
`AuthorsSpec.largest_mean` needs no draws and e is cut at ±CUT (which leaves its mean at 0). The map's constant lies
outside the span of φ; `intercept="specific"` gives it a place. Shared covariates are each patient's own, not the mean
of the batch, and start uniform as the others do, not Gaussian.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fdtr.simulation import NO_DISCLOSURE_RULES, Act, FixedHorizonWorld, Optimal, constant_rule

Array = NDArray[np.float64]
Codes = NDArray[np.intp]

BOUND = 3.0
"""Upper end of every covariate."""

CUT = 4.0
"""Where the standard Gaussian noise is cut, on both sides: 6 draws in 100,000."""


@dataclass(frozen=True)
class AuthorsSpec:
    """The specification of a world of the authors' kind; `intercept` goes into its study ("none" is the paper's φ)."""

    n_sites: int = 5
    n_shared: int = 2
    n_specific: int = 2
    n_actions: int = 6
    horizon: int = 15
    intercept: Literal["none", "specific"] = "none"

    @property
    def largest_mean(self) -> float:
        """No mean reward exceeds it: ‖φ0‖ + ‖φ1‖ at their largest, as ‖θ‖ = 1; without any draw."""
        per_covariate = 1.0 + (self.n_actions - 1) ** 2
        return BOUND * float(np.sqrt(self.n_shared * per_covariate) + np.sqrt(self.n_specific * per_covariate))

    @property
    def reward_width(self) -> float:
        """Width of the raw range that is mapped onto [0, 1]."""
        return self.largest_mean + 2 * CUT


FIGURE_2 = {
    "(8,6,15,5)": AuthorsSpec(),
    "(8,6,15,10)": AuthorsSpec(n_sites=10),
    "(20,2,5,5)": AuthorsSpec(n_shared=5, n_specific=5, n_actions=2, horizon=5),
}
"""The panels of Figure 2, by (d, |A|, H, K)."""


@dataclass(frozen=True, eq=False)
class AuthorsWorld(FixedHorizonWorld):
    """K sites: `theta_shared` (H, d0), `theta_specific` (K, H, d1) on raw rewards, `transition` (K, H, d1) is μ."""

    spec: AuthorsSpec
    theta_shared: Array
    theta_specific: Array
    transition: Array

    @property
    def theta_shared_scaled(self) -> Array:
        """θ⁰ on the study's unit-scaled features and mapped rewards, (H, d0); exact with an intercept alone."""
        spec = self.spec
        norm = np.sqrt(2.0 * (spec.n_shared + spec.n_specific + (spec.intercept != "none")))
        per_term = np.repeat([BOUND, BOUND * (spec.n_actions - 1)], spec.n_shared)
        scaled: Array = self.theta_shared * per_term * norm / spec.reward_width
        return scaled

    def study(self, **learning: float | str) -> dict[str, Any]:
        """Content of a study file for this world; `learning` goes into its [learning]."""
        effects = ["shared"] * self.spec.n_shared + ["specific"] * self.spec.n_specific
        return {
            "name": "authors-generator",
            "horizon": self.horizon,
            "actions": {"levels": list(range(self.n_actions)), "basis": "polynomial", "degree": 1, "scale": "unit"},
            "covariates": [
                {"name": name, "effect": effect, "range": [0.0, BOUND]}
                for name, effect in zip(self.covariates, effects, strict=True)
            ],
            "features": {"intercept": self.spec.intercept, "scale": "unit"},
            "reward": {"range": [0.0, 1.0]},
            "learning": learning,
            "disclosure": NO_DISCLOSURE_RULES,
        }

    def behaviour(self, site: int, rng: np.random.Generator) -> Act:  # noqa: ARG002 - the same at every site
        """At random, each action as often; drawn from `rng`."""
        return lambda states, step: rng.integers(0, self.n_actions, len(states))  # noqa: ARG005 - it looks at nothing

    def arrive(self, site: int, n: int, rng: np.random.Generator) -> Array:  # noqa: ARG002 - the same at every site
        """x of `n` fresh patients, (n, m), uniform on (0, 1)."""
        return rng.random((n, len(self.covariates)))

    def luck(self, site: int, step: int, n: int, rng: np.random.Generator) -> Array:  # noqa: ARG002 - at every site
        """The proposal u, (n, m)."""
        return rng.random((n, len(self.covariates)))

    def next_states(self, site: int, step: int, states: Array, codes: Codes, luck: Array) -> Array:
        """x' = min(BOUND, u·⟨φ1, μ⟩), (n, m)."""
        weight = _inner(states[:, self.spec.n_shared :], codes, self.transition[site, step])
        later: Array = np.minimum(BOUND, luck * weight[:, None])
        return later

    def draw_rewards(self, means: Array, rng: np.random.Generator) -> Array:
        """Mapped rewards: a cut Gaussian around their means."""
        noisy: Array = means + np.clip(rng.standard_normal(means.shape), -CUT, CUT) / self.spec.reward_width
        return noisy

    def expected_reward(self, site: int, states: Array, codes: NDArray[Any], step: int) -> Array:
        """(CUT + ⟨φ0, θ⁰⟩ + ⟨φ1, θᵏ⟩) / width, (n,)."""
        shared, own = np.split(states, [self.spec.n_shared], axis=1)
        raw = _inner(shared, codes, self.theta_shared[step]) + _inner(own, codes, self.theta_specific[site, step])
        mapped: Array = (CUT + raw) / self.spec.reward_width
        return mapped

    def best_rule(self, site: int) -> Act:  # noqa: ARG002 - the same at every site
        """The highest dose for everybody, optimal by monotony."""
        return constant_rule(self.n_actions - 1)

    def optimal(self, site: int, n: int = 100_000) -> Optimal:
        """The best rule and its value from `n` patients."""
        act = self.best_rule(site)
        value = self.value(site, act, n, np.random.default_rng([n, site]))
        return Optimal(act, value.mean, value.standard_error, exact=True)


def make_authors_world(spec: AuthorsSpec, rng: np.random.Generator) -> AuthorsWorld:
    """Draw θ⁰, θᵏ and μᵏ.

    >>> world = make_authors_world(FIGURE_2["(20,2,5,5)"], np.random.default_rng(0))
    >>> world.theta_shared.shape, world.transition.shape
    ((5, 10), (5, 5, 10))
    """
    own_shape = (spec.n_sites, spec.horizon, 2 * spec.n_specific)
    return AuthorsWorld(
        sites=tuple(f"site-{k + 1:0{len(str(spec.n_sites))}d}" for k in range(spec.n_sites)),
        covariates=(
            *(f"shared_{j + 1}" for j in range(spec.n_shared)),
            *(f"own_{j + 1}" for j in range(spec.n_specific)),
        ),
        horizon=spec.horizon,
        n_actions=spec.n_actions,
        spec=spec,
        theta_shared=_unit(rng.random((spec.horizon, 2 * spec.n_shared))),
        theta_specific=_unit(rng.random(own_shape)),
        transition=_unit(rng.random(own_shape)),
    )


def _unit(vectors: Array) -> Array:
    """Each vector of the last axis at norm 1."""
    scaled: Array = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return scaled


def _inner(covariates: Array, codes: NDArray[Any], theta: Array) -> Array:
    """⟨(x, a·x), θ⟩, (n,)."""
    base, effect = np.split(theta, 2)
    inner: Array = covariates @ base + codes * (covariates @ effect)
    return inner
