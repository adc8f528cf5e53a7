"""How far clinicians would have to act on what the table does not hold, before a finding could be wrong.

Let b be the estimated propensity of the action taken and b* the true one, given also what was not measured. The
marginal sensitivity model (Tan 2006) bounds their odds ratio,

    1/Γ ≤ [b*/(1−b*)] / [b/(1−b)] ≤ Γ,   so that   1/b* = 1 + z (1/b − 1),  1/Γ ≤ z ≤ Γ,

and a step's weight π/b* lies between two numbers; ρ_{i,h} between their products. The largest (smallest) step-weighted
mean over all such weights is a fractional linear programme: its solution gives the upper bound of ρ to rewards above
(below) some threshold and the lower bound to the others (Zhao, Small and Bhattacharya 2019), so that sorting solves it.
Steps are taken one by one, which can only widen the bounds of their sum.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.evaluation.paths import Paths, taken

Array = NDArray[np.float64]

ODDS = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0)
LARGEST_ODDS = 100.0
PRECISION = 1e-4


@dataclass(frozen=True)
class Bounds:
    """A value lies between `low` and `high`, sampling error aside."""

    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """Bounds of a step-weighted value under confounding of strength Γ.

    `odds` (k,) are the Γ that were tried, with `low` and `high` (k,) of the value; `behaviour` is the value that
    clinicians reach, a plain mean and not in doubt; `tipping_odds` the smallest Γ at which the sign of the difference
    from it could change: infinite where none up to 100 could change it. Where there is a `doubt`, the weights are worth
    too little to bound anything, and the tipping odds are NaN. Sampling error is in none of them.
    """

    odds: Array
    low: Array
    high: Array
    behaviour: float
    tipping_odds: float
    doubt: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class Confounded:
    """What bounds of a value are computed from, for any Γ.

    `paths`; the `target` chance and the estimated `propensity` of the action taken, (n_h,) of every step; the `cap` of
    the weights.
    """

    paths: Paths
    target: tuple[Array, ...]
    propensity: tuple[Array, ...]
    cap: float | None = None

    def bounds(self, odds: float) -> Bounds:
        """Bounds of V for Γ = `odds` ≥ 1."""
        low = high = 0.0
        lower, upper = np.ones(self.paths.n), np.ones(self.paths.n)
        for rewards, target, propensity in zip(self.paths.rewards, self.target, self.propensity, strict=True):
            there, rest = len(target), 1 / propensity - 1
            lower[:there] *= target * (1 + rest / odds)
            upper[:there] *= target * (1 + rest * odds)
            capped = [np.minimum(w, self.cap) if self.cap is not None else w for w in (lower, upper)]
            if capped[1].any():
                low -= largest_mean(-rewards, *capped)
                high += largest_mean(rewards, *capped)
            else:  # nobody was treated so: all that is possible
                high = math.inf
        return Bounds(low, min(high, float(len(self.paths.rewards))))

    def tipping_odds(self, reference: float) -> float:
        """The smallest Γ at which V − `reference` could have the other sign, or be 0; infinite beyond 100."""
        above = self.bounds(1.0).low > reference

        def holds(log_odds: float) -> bool:
            found = self.bounds(math.exp(log_odds))
            return found.low > reference if above else found.high < reference

        low, high = 0.0, math.log(LARGEST_ODDS)
        if holds(high):
            return math.inf
        if not holds(low):
            return 1.0
        while high - low > PRECISION:
            middle = (low + high) / 2
            low, high = (middle, high) if holds(middle) else (low, middle)
        return math.exp(high)


def confounded(
    paths: Paths, target: Sequence[Array], behaviour: Sequence[Array], cap: float | None = None
) -> Confounded:
    """From the chances (A, n_h) of every step."""
    chances = [[taken(c, a) for c, a in zip(side, paths.actions, strict=True)] for side in (target, behaviour)]
    return Confounded(paths, tuple(chances[0]), tuple(chances[1]), cap)


def sensitivity(of: Confounded, odds: Sequence[float] = ODDS, doubt: str = "") -> Sensitivity:
    """Bounds by Γ, and where the difference from what clinicians reach could change its sign, unless in `doubt`."""
    found = [of.bounds(gamma) for gamma in odds]
    behaviour = float(of.paths.rewards.sum(axis=0).mean())
    return Sensitivity(
        np.array(odds),
        np.array([bounds.low for bounds in found]),
        np.array([bounds.high for bounds in found]),
        behaviour,
        math.nan if doubt else of.tipping_odds(behaviour),
        doubt,
    )


def largest_mean(values: Array, lower: Array, upper: Array) -> float:
    """max Σ w_i y_i / Σ w_i over lower_i ≤ w_i ≤ upper_i, of which some upper_i is above 0.

    >>> largest_mean(np.array([0.0, 1.0]), lower=np.ones(2), upper=np.array([2.0, 3.0]))
    0.75
    """
    order = np.argsort(-values, kind="stable")
    y, low, high = values[order], lower[order], upper[order]
    weight = low.sum() + np.concatenate([[0.0], np.cumsum(high - low)])
    total = (low * y).sum() + np.concatenate([[0.0], np.cumsum((high - low) * y)])
    given = weight > 0
    return float((total[given] / weight[given]).max())
