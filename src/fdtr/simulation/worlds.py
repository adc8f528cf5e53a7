"""What simulated worlds have in common: patients of several sites, tables that a study reads, values of policies."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Codes = NDArray[np.intp]
Act = Callable[[Array, int], NDArray[Any]]
"""A treatment rule: `states` (n, m) in the study's order, and the step; returns action codes (n,)."""


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Patients of one site: `states` (H, n, m), `actions` (H, n) codes, `rewards` (H, n) and their means `expected`."""

    states: Array
    actions: Codes
    rewards: Array
    expected: Array


@dataclass(frozen=True)
class Value:
    """A policy's value, the expected sum of rewards: the `mean` over simulated patients and its `standard_error`."""

    mean: float
    standard_error: float


@dataclass(frozen=True, eq=False)
class ConstantValues:
    """Values of giving everybody one action: `means` (A,) and `standard_errors` (A,), in the order of the codes."""

    means: Array
    standard_errors: Array

    @property
    def best(self) -> int:
        """The best code."""
        return int(np.argmax(self.means))

    @property
    def best_value(self) -> Value:
        """What the best code is worth."""
        return Value(float(self.means[self.best]), float(self.standard_errors[self.best]))


@dataclass(frozen=True, eq=False)
class Optimal:
    """The best policy of a site: `act`, its `value` and the Monte-Carlo `standard_error` of that.

    `exact`: the optimum but for Monte-Carlo error; else only the best that a large-sample fit found, whose value is
    simulated.
    """

    act: Act
    value: float
    standard_error: float
    exact: bool


@dataclass(frozen=True, eq=False)
class Simulated(ABC):
    """Several sites that can be sampled; tables and values follow from the samples.

    `sites` are their names, `covariates` the columns of a state.
    """

    sites: tuple[str, ...]
    covariates: tuple[str, ...]
    horizon: int
    n_actions: int

    @abstractmethod
    def sample(self, site: int, n: int, rng: np.random.Generator, act: Act | None = None) -> Trajectory:
        """`n` fresh patients of a site, treated by `act`, or as the site's clinicians do."""

    def table(self, n: int | Sequence[int], rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        """A long table of all sites as the study reads it; `n` is one number of patients, or one for each site.

        Each site draws from a generator of its own: its patients do not change with the others' numbers.
        """
        counts = [n] * len(self.sites) if isinstance(n, int) else list(n)
        own = rng.spawn(len(self.sites))
        parts = [self._site_table(k, count, own[k]) for k, count in enumerate(counts)]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def value(self, site: int, act: Act | None, n: int, rng: np.random.Generator) -> Value:
        """V^π from `n` patients, summing exact expected rewards.

        From equal generators two policies meet the same patients with the same luck: their difference is paired.
        """
        sums = self.sample(site, n, rng, act).expected.sum(axis=0)
        return Value(float(sums.mean()), float(sums.std(ddof=1) / np.sqrt(n)))

    def behaviour_value(self, site: int, n: int, rng: np.random.Generator) -> Value:
        """What the site's clinicians reach."""
        return self.value(site, None, n, rng)

    def constant_values(self, site: int, n: int, rng: np.random.Generator) -> ConstantValues:
        """What each action is worth when everybody gets it at every step, on the same patients."""
        seed = int(rng.integers(2**63))
        found = [self.value(site, constant(code), n, np.random.default_rng(seed)) for code in range(self.n_actions)]
        return ConstantValues(np.array([v.mean for v in found]), np.array([v.standard_error for v in found]))

    def _site_table(self, site: int, n: int, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        walk = self.sample(site, n, rng)
        by_patient = walk.states.transpose(2, 1, 0).reshape(len(self.covariates), -1)
        return {
            "site": np.full(n * self.horizon, self.sites[site]),
            "patient": np.repeat(np.arange(n), self.horizon),
            "step": np.tile(np.arange(self.horizon), n),
            "action": walk.actions.T.ravel(),
            "reward": walk.rewards.T.ravel(),
            **dict(zip(self.covariates, by_patient, strict=True)),
        }


def constant(code: int) -> Act:
    """Everybody gets the same."""
    return lambda states, step: np.full(len(states), code, dtype=np.intp)  # noqa: ARG005 - it looks at nothing


def draw_codes(chances: Array, rng: np.random.Generator) -> Codes:
    """One code for each row of `chances` (n, A), which sum to 1."""
    edges = np.cumsum(chances, axis=1)[:, :-1]
    return np.asarray(np.sum(rng.random(len(chances))[:, None] >= edges, axis=1), dtype=np.intp)


def site_names(n_sites: int) -> tuple[str, ...]:
    """Names that sort in the order in which sites are counted."""
    width = len(str(n_sites))
    return tuple(f"site-{k + 1:0{width}d}" for k in range(n_sites))


def covariate_names(n_shared: int, n_specific: int) -> tuple[str, ...]:
    """Columns of a state, shared before own."""
    shared = tuple(f"shared_{j + 1}" for j in range(n_shared))
    return shared + tuple(f"own_{j + 1}" for j in range(n_specific))


def study_content(
    name: str, world: Simulated, n_shared: int, high: float, learning: dict[str, Any], site_level: Sequence[int] = ()
) -> dict[str, Any]:
    """A study of linear covariates in [0, high] with φ_l = (x_l, a·x_l), whose disclosure rules let any site pass.

    `site_level` are the positions of covariates that are constant within a site.
    """
    return {
        "name": name,
        "horizon": world.horizon,
        "actions": {"levels": list(range(world.n_actions)), "basis": "polynomial", "degree": 1, "scale": "unit"},
        "covariates": [
            {
                "name": column,
                "effect": "shared" if j < n_shared else "specific",
                "range": [0.0, high],
                "level": "site" if j in site_level else "patient",
            }
            for j, column in enumerate(world.covariates)
        ],
        "features": {"intercept": "none", "scale": "unit"},
        "reward": {"range": [0.0, 1.0]},
        "learning": learning,
        "disclosure": {"min_patients": 1, "max_ratio": 1.0, "min_action": 1, "min_sites": 1},
    }
