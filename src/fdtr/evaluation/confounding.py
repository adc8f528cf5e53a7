"""Sensitivity to unmeasured confounding: how strong it must be before a finding could be wrong.

Let b be the estimated propensity of the action taken and b* the true one, given also what was not measured. The
marginal sensitivity model (Tan 2006) bounds their odds ratio,

    1/Γ ≤ [b*/(1−b*)] / [b/(1−b)] ≤ Γ,   so that   1/b* = 1 + z (1/b − 1),  1/Γ ≤ z ≤ Γ,

and a step's weight π/b* lies between two numbers, and ρ_{i,h} between their products. The largest (smallest)
step-weighted mean over all such weights is a fractional linear programme. Its solution gives the upper bound of ρ to
rewards above (below) some threshold and the lower bound to the others (Zhao, Small and Bhattacharya 2019), so sorting
solves it. Each step is bounded separately, which can only widen the bounds of their sum.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fdtr.evaluation.step_arrays import ByStep, StepArrays, at_actions

Array = NDArray[np.float64]

ODDS = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0)
"""The values of Γ for which bounds are shown."""

LARGEST_ODDS = 100.0
PRECISION = 1e-4


@dataclass(frozen=True)
class Bounds:
    """The value lies between `low` and `high`, apart from sampling error."""

    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """Bounds of a step-weighted value under confounding of strength Γ.

    `odds` (k,) are values of Γ, with bounds `low` and `high` (k,) of the value. `behaviour` is the clinicians' value, a
    plain mean that confounding does not affect. `tipping_odds` is the smallest Γ at which the sign of the difference
    from it could change, infinite if no Γ up to 100 could. A `doubt` says why the weights carry too little information
    to bound anything; the tipping odds are then NaN. Sampling error is not included.
    """

    odds: Array
    low: Array
    high: Array
    behaviour: float
    tipping_odds: float
    doubt: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class Confounded:
    """The data from which bounds of a value are computed, for any Γ.

    `target` and `behaviour` hold the action probabilities (A, n_h) of each step under the target and under clinicians;
    `cap` limits the weights.
    """

    arrays: StepArrays
    target: ByStep
    behaviour: ByStep
    cap: float | None = None

    @cached_property
    def _taken(self) -> list[tuple[Array, Array]]:
        """The target's and the clinicians' probability of the action taken, (n_h,) of each step."""
        steps = zip(self.target, self.behaviour, self.arrays.actions, strict=True)
        return [(at_actions(target, actions), at_actions(b, actions)) for target, b, actions in steps]

    def bounds(self, odds: float) -> Bounds:
        """Bounds of V for Γ = `odds` ≥ 1."""
        low = high = 0.0
        lower, upper = np.ones(self.arrays.n), np.ones(self.arrays.n)
        for rewards, (target, propensity) in zip(self.arrays.rewards, self._taken, strict=True):
            present, rest = len(target), 1 / propensity - 1
            lower[:present] *= target * (1 + rest / odds)
            upper[:present] *= target * (1 + rest * odds)
            capped = [np.minimum(w, self.cap) if self.cap is not None else w for w in (lower, upper)]
            if capped[1].any():
                low -= largest_mean(-rewards, *capped)
                high += largest_mean(rewards, *capped)
            else:  # nobody was treated as the target would: no upper bound
                high = math.inf
        return Bounds(low, min(high, float(len(self.arrays.rewards))))

    def tipping_odds(self, reference: float) -> float:
        """The smallest Γ at which V − `reference` could be 0 or have the other sign; infinite beyond 100."""
        above = self.bounds(1.0).low > reference

        def holds(log_odds: float) -> bool:
            bounds = self.bounds(math.exp(log_odds))
            return bounds.low > reference if above else bounds.high < reference

        low, high = 0.0, math.log(LARGEST_ODDS)
        if holds(high):
            return math.inf
        if not holds(low):
            return 1.0
        while high - low > PRECISION:
            middle = (low + high) / 2
            low, high = (middle, high) if holds(middle) else (low, middle)
        return math.exp(high)


def sensitivity(data: Confounded, doubt: str = "") -> Sensitivity:
    """Bounds for each Γ in `ODDS`, and the Γ at which the sign of the difference from clinicians could change."""
    bounds = [data.bounds(gamma) for gamma in ODDS]
    behaviour = float(data.arrays.rewards.sum(axis=0).mean())
    return Sensitivity(
        np.array(ODDS),
        np.array([bound.low for bound in bounds]),
        np.array([bound.high for bound in bounds]),
        behaviour,
        math.nan if doubt else data.tipping_odds(behaviour),
        doubt,
    )


def largest_mean(values: Array, lower: Array, upper: Array) -> float:
    """max Σ w_i y_i / Σ w_i over lower_i ≤ w_i ≤ upper_i. Some upper_i must be positive.

    >>> largest_mean(np.array([0.0, 1.0]), lower=np.ones(2), upper=np.array([2.0, 3.0]))
    0.75
    """
    order = np.argsort(-values, kind="stable")
    y, low, high = values[order], lower[order], upper[order]
    weight = low.sum() + np.concatenate([[0.0], np.cumsum(high - low)])
    total = (low * y).sum() + np.concatenate([[0.0], np.cumsum((high - low) * y)])
    positive = weight > 0
    return float((total[positive] / weight[positive]).max())
