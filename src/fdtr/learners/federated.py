"""FDTR, Algorithm 2: the same recursion with the shared effects estimated from all sites.

The minimiser of (10) for site k needs of the others only the sums S⁻ᵏ and s⁻ᵏ (algebra.schur). With a weight w on
them, w = 1 is the paper and w = 0 is LDTR:

    Σ = Λ + λI + blockdiag(w S⁻ᵏ, 0),    θ = Σ⁻¹ [b + (w s⁻ᵏ, 0)],    N_w = n + w (N − n).

Sharing rewards alone estimates the reward's part with the others and the next value's part at home, with the local
penalty. It holds where a shared covariate predicts the next state (a static one such as age), which breaks (1).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.ridge import factor, solve
from fdtr.features import FeatureMap
from fdtr.learners.backward import Fit, Settings, Solution, fit_backward, moments_of, penalty_of
from fdtr.learners.sweep import StepStatistics
from fdtr.trajectories import Trajectories

Array = NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class Others:
    """The other sites' sums.

    `schur` (H, d0, d0) is S⁻ᵏ, `schur_moment` (H, d0) s⁻ᵏ, `schur_reward` (H, d0) the same of the rewards alone, and
    `n` their patients at the first step.
    """

    schur: Array
    schur_moment: Array
    schur_reward: Array
    n: float


def fit_federated(
    rows: Trajectories,
    features: FeatureMap,
    settings: Settings,
    others: Others,
    sharing: float = 1.0,
    share: Literal["value", "reward"] = "value",
) -> Fit:
    """FDTR for one site. `sharing` is w; `share` says what is estimated with the others."""
    return fit_with_each(rows, features, settings, others, sharing, share, (settings.pessimism,))[0]


def fit_with_each(
    rows: Trajectories,
    features: FeatureMap,
    settings: Settings,
    others: Others,
    sharing: float,
    share: Literal["value", "reward"],
    pessimisms: Sequence[float],
) -> list[Fit]:
    """FDTR with each c in `pessimisms`, instead of that of `settings`, for little more than the price of one."""
    d, d0 = features.n_features, features.n_shared
    ridge = settings.ridge * np.eye(d)

    def with_others(own: Array, theirs: Array) -> Array:
        total = own.copy()
        total[:d0] += sharing * theirs
        return total

    def gram_with_others(h: int, own: Array) -> Array:
        return with_others(own, np.pad(others.schur[h], ((0, 0), (0, d - d0)))) + ridge

    def share_values(h: int, sums: Sequence[StepStatistics]) -> Solution:
        precision = gram_with_others(h, sums[0].gram)
        lower = factor(precision)
        return Solution(solve(lower, with_others(moments_of(sums), others.schur_moment[h][:, None])), precision, lower)

    def share_rewards(h: int, sums: Sequence[StepStatistics]) -> Solution:
        alone = sums[0].gram + ridge
        together = gram_with_others(h, sums[0].gram)
        reward_part = solve(factor(together), with_others(sums[0].reward_moment, others.schur_reward[h]))
        lower = factor(alone)
        values = np.column_stack([step.value_moment for step in sums])
        return Solution(reward_part[:, None] + solve(lower, values), alone, lower)

    n = rows.n_patients + (sharing * others.n if share == "value" else 0.0)
    penalties = [penalty_of(replace(settings, pessimism=c), features, rows.horizon, n) for c in pessimisms]
    return fit_backward(rows, features, share_values if share == "value" else share_rewards, penalties)
