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
from fdtr.learners.sweep import sweep_each
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


def fitted_q_values(
    rows: Trajectories, features: FeatureMap, policies: Sequence[Sequence[LowerBound]], ridge: float = RIDGE
) -> Array:
    """Mean value over the patients of `rows` of acting by each of `policies` (a rule a step), on the mapped scale.

    `ridge` is λ, small beside the Grams. The policies share every pass over the data.
    """
    order = np.argsort(features.levels, kind="stable")
    followings: list[Followed | None] = [None for _ in policies]
    with one_blas_thread():
        for h in reversed(range(rows.horizon)):
            sums = sweep_each(rows.step(h), features, followings)
            lower = factor(sums[0].gram + ridge * np.eye(features.n_features))
            thetas = solve(lower, np.column_stack([step.moment for step in sums])).T
            followings = [
                Followed(rules[h], theta @ features.embeddings, order)
                for rules, theta in zip(policies, thetas, strict=True)
            ]
    values = np.zeros(len(policies))
    for chunk in rows.step(0).chunks():
        psi = features.psi(chunk.states)
        values += [following.values(psi).sum() for following in followings if following is not None]
    return values / rows.step(0).n
