"""LDTR, Algorithm 1: pessimistic value iteration on one site's patients alone."""

import numpy as np

from fdtr.algebra.ridge import factor, solve
from fdtr.features import FeatureMap
from fdtr.learners.backward import Fit, Settings, Solution, fit_backward, penalty_of
from fdtr.learners.sweep import StepStatistics
from fdtr.trajectories import Trajectories


def fit_local(rows: Trajectories, features: FeatureMap, settings: Settings) -> Fit:
    """θ̃_h = (Λ_h + λI)⁻¹ ΦᵀY(Ṽ_{h+1}), Γ̃ = α_k √(φᵀ(Λ_h + λI)⁻¹φ), α_k = c d H √log(2dHn_k/ξ)."""
    ridge = settings.ridge * np.eye(features.n_features)

    def solve_step(_: int, sums: StepStatistics) -> Solution:
        precision = sums.gram + ridge
        return Solution(solve(factor(precision), sums.moment), precision)

    scale, offset = penalty_of(settings, features, rows.horizon, rows.n_patients)
    return fit_backward(rows, features, solve_step, scale, offset)
