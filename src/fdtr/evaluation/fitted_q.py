"""Linear fitted-Q evaluation: the value of a given policy, by regression from the last step to the first.

    θ_h = (Λ_h + λI)⁻¹ Φᵀ(r + Q_{h+1}(x', π(x'))),   Q_h(x, a) = φ(x, a)ᵀθ_h,   V̂ = mean of Q_0(x, π(x))

It needs no propensities, and is as good as the linear model: it cannot see extrapolation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.pessimism import LowerBound, argmax_first
from fdtr.algebra.ridge import factor, solve
from fdtr.algebra.threads import one_blas_thread
from fdtr.features import FeatureMap
from fdtr.learners.sweep import sweep
from fdtr.trajectories import Trajectories

Array = NDArray[np.float64]

RIDGE = 1e-3


@dataclass(frozen=True, eq=False, repr=False)
class Followed:
    """Q(x, π(x)) of one step: `rule` decides, `coefficients` (A, m) stack B_aᵀθ; ties go as in `order`."""

    rule: LowerBound
    coefficients: Array
    order: NDArray[np.intp]

    def values(self, psi: Array, out: Array | None = None) -> Array:
        """The value of doing what the rule says, (n,)."""
        choice = argmax_first(self.rule.bounds(psi), self.order)
        estimates = np.dot(self.coefficients, psi)
        found: Array = np.take_along_axis(estimates, choice[None], axis=0)[0]
        if out is None:
            return found
        out[...] = found
        return out


def fitted_q_value(
    rows: Trajectories, features: FeatureMap, rules: Sequence[LowerBound], ridge: float = RIDGE
) -> float:
    """Mean value of acting by `rules` (one a step) over the patients of `rows`, on the mapped scale.

    `ridge` is λ, small beside the Grams.
    """
    order = np.argsort(features.levels, kind="stable")
    following: Followed | None = None
    with one_blas_thread():
        for h in reversed(range(rows.horizon)):
            sums = sweep(rows.step(h), features, following)
            theta = solve(factor(sums.gram + ridge * np.eye(features.n_features)), sums.moment)
            following = Followed(rules[h], theta @ features.embeddings, order)
    if following is None:
        raise ValueError("A policy without steps has no value.")
    parts = [following.values(features.psi(chunk.states)) for chunk in rows.step(0).chunks()]
    return float(np.concatenate(parts).mean())
