"""Linear worlds whose mean rewards depart from (2) by a known amount, for what the paper says of a wrong model.

With effect(x) the dose's linear effect on the mean reward,

    μ(x, a) = ⟨φ0, θ⁰⟩ + ⟨φ1, θᵏ⟩ + η g(x, a),    g(x, a) = (1 − 2a) sign effect(x),    |g| ≤ 1,

so that one linear model is nowhere off by more than η, and transitions obey (1) as before. The dose does less good
than the linear part promises wherever it promises some: an error that a greedy policy meets at every step, and that
averages over the state would not show.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr.simulation import Optimal, World

Array = NDArray[np.float64]

MARGIN = 0.05
"""Mean rewards of a linear world keep this distance from 0 and 1: a departure has so much room."""

OPTIMUM_PATIENTS = 100_000


@dataclass(frozen=True, eq=False)
class MisspecifiedWorld(World):
    """A linear world but for its mean rewards, which depart from the linear ones by at most `departure` = η."""

    departure: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.departure <= MARGIN:
            raise ValueError(f"departure is {self.departure:g}; mean rewards have room for 0 to {MARGIN:g}")

    def expected_reward(self, site: int, states: Array, codes: NDArray[Any], step: int) -> Array:
        """⟨φ0, θ⁰⟩ + ⟨φ1, θᵏ⟩ + η g, (n,)."""
        effect = self.reward_parts(site, states, step)[1]
        shift = self.departure * (1.0 - 2.0 * self.dose(codes)) * np.sign(effect)
        return super().expected_reward(site, states, codes, step) + shift

    def optimal(self, site: int) -> Optimal:
        """The best policy of the linear part, and what it is worth here: good, and no more."""
        act = super().optimal(site).act
        value = self.value(site, act, OPTIMUM_PATIENTS, np.random.default_rng([self.solver_seed, site, 1]))
        return Optimal(act, value.mean, value.standard_error, exact=False)


def misspecify(world: World, departure: float) -> MisspecifiedWorld:
    """A copy of `world` whose mean rewards depart from linear ones by at most `departure` = η.

    >>> from fdtr.simulation import WorldSpec, make_world
    >>> world = make_world(WorldSpec(n_sites=2, horizon=3), np.random.default_rng(0))
    >>> misspecify(world, 0.02).departure
    0.02
    """
    names = [field.name for field in fields(World) if field.init and field.name != "_solved"]
    numbers = {name: getattr(world, name) for name in names}
    return MisspecifiedWorld(**numbers, departure=departure)
