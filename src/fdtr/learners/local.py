"""LDTR, the paper's Algorithm 1: pessimistic value iteration on one site's patients alone."""

from collections.abc import Sequence

import numpy as np

from fdtr.algebra.normal_equations import factor, solve
from fdtr.features import FeatureMap
from fdtr.learners.accumulate import StepStatistics
from fdtr.learners.backward import Fit, Settings, Solution, fit_backward, moments_of
from fdtr.trajectories import Trajectories


def fit_local(rows: Trajectories, features: FeatureMap, settings: Settings) -> Fit:
    """LDTR for one site, lines 3 to 11 of Algorithm 1.

        θ̃_h = (Λ_h + λI)⁻¹ ΦᵀY(Ṽ_{h+1}),   Γ̃_h = α_k √(φᵀ(Λ_h + λI)⁻¹φ),   α_k = c d H √log(2dHn_k/ξ)

    Λ and Y are those of (7). `fit_backward` computes Q̃ and Ṽ of each step.
    """
    ridge = settings.ridge * np.eye(features.n_features)

    def solve_step(_: int, sums: Sequence[StepStatistics]) -> Solution:
        precision = sums[0].gram + ridge
        lower = factor(precision)
        return Solution(solve(lower, moments_of(sums)), precision, lower)

    return fit_backward(rows, features, solve_step, settings, rows.n_patients, [settings.pessimism])[0]
