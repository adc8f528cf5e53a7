"""Pessimistic value iteration: from the last step to the first, solve, bound, and hand V to the step before."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.pessimism import LowerBound, log_term, misspecified, penalty_scale
from fdtr.algebra.ridge import factor
from fdtr.algebra.threads import one_blas_thread
from fdtr.features import FeatureMap
from fdtr.learners.sweep import StepStatistics, sweep
from fdtr.trajectories import Trajectories

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Settings:
    """`pessimism` is c, `ridge` λ, `failure_probability` ξ and `misspecification` η."""

    pessimism: float
    ridge: float
    failure_probability: float
    misspecification: float


@dataclass(frozen=True, repr=False)
class Solution:
    """One step's regression: `theta` (d,) and `precision` Σ (d, d)."""

    theta: Array
    precision: Array


@dataclass(frozen=True, repr=False)
class Fit:
    """A learner's result, for every step.

    `theta` (H, d); `precision` Σ (H, d, d); the penalty's `scale` and `offset`; `statistics`, the sums it was solved
    from; `bounds`, the rules it acts by.
    """

    theta: Array
    precision: Array
    scale: float
    offset: float
    statistics: tuple[StepStatistics, ...]
    bounds: tuple[LowerBound, ...]


def fit_backward(
    rows: Trajectories,
    features: FeatureMap,
    solve_step: Callable[[int, StepStatistics], Solution],
    scale: float,
    offset: float,
) -> Fit:
    """Lines 3–11 of Algorithm 1 and of Algorithm 2, which differ only in how a step is solved.

    `solve_step(h, sums)` is the regression of step h.
    """
    horizon = rows.horizon
    following: LowerBound | None = None
    solutions: list[Solution] = []
    statistics: list[StepStatistics] = []
    bounds: list[LowerBound] = []
    with one_blas_thread():
        for h in reversed(range(horizon)):
            sums = sweep(rows.step(h), features, following)
            solution = solve_step(h, sums)
            following = LowerBound.of_penalised(
                solution.theta, factor(solution.precision), features.embeddings, scale, offset, cap=horizon - h
            )
            solutions.append(solution)
            statistics.append(sums)
            bounds.append(following)
    return Fit(
        theta=np.stack([s.theta for s in reversed(solutions)]),
        precision=np.stack([s.precision for s in reversed(solutions)]),
        scale=scale,
        offset=offset,
        statistics=tuple(reversed(statistics)),
        bounds=tuple(reversed(bounds)),
    )


def penalty_of(settings: Settings, features: FeatureMap, horizon: int, n: float) -> tuple[float, float]:
    """Scale and offset of the penalty for an effective number of patients `n`: (13), widened by η (Section 4.1)."""
    zeta = log_term(features.n_features, horizon, n, settings.failure_probability)
    alpha = penalty_scale(settings.pessimism, features.n_features, horizon, zeta)
    return misspecified(alpha, settings.misspecification, horizon, n)
