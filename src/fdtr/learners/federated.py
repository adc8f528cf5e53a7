"""FDTR, Algorithm 2: the same recursion with the shared effects estimated from all sites.

The minimiser of (10) for site k needs of the others only the sums S⁻ᵏ and s⁻ᵏ (algebra.schur). With a weight w on
them, w = 1 is the paper and w = 0 is LDTR:

    Σ = Λ + λI + blockdiag(w S⁻ᵏ, 0),    θ = Σ⁻¹ [b + (w s⁻ᵏ, 0)],    N_w = n + w (N − n).

Sharing rewards alone estimates the reward's part with the others and the next value's part at home, with the local
penalty. It holds where a shared covariate predicts the next state (a static one such as age), which breaks (1).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.ridge import factor, solve
from fdtr.features import FeatureMap
from fdtr.learners.backward import Fit, Settings, Solution, fit_backward, penalty_of
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
    d, d0 = features.n_features, features.n_shared
    ridge = settings.ridge * np.eye(d)

    def with_others(own: Array, theirs: Array) -> Array:
        total = own.copy()
        total[(slice(d0),) * own.ndim] += sharing * theirs
        return total

    def share_values(h: int, sums: StepStatistics) -> Solution:
        precision = with_others(sums.gram, others.schur[h]) + ridge
        return Solution(solve(factor(precision), with_others(sums.moment, others.schur_moment[h])), precision)

    def share_rewards(h: int, sums: StepStatistics) -> Solution:
        alone = sums.gram + ridge
        together = with_others(sums.gram, others.schur[h]) + ridge
        reward_part = solve(factor(together), with_others(sums.reward_moment, others.schur_reward[h]))
        return Solution(reward_part + solve(factor(alone), sums.value_moment), alone)

    n = rows.n_patients + (sharing * others.n if share == "value" else 0.0)
    scale, offset = penalty_of(settings, features, rows.horizon, n)
    solve_step = share_values if share == "value" else share_rewards
    return fit_backward(rows, features, solve_step, scale, offset)
