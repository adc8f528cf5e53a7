"""Pessimistic value iteration: from the last step to the first, solve, bound, and hand V to the step before."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.pessimism import LowerBound, Penalty, log_term, misspecified, penalty_roots, penalty_scale
from fdtr.algebra.threads import one_blas_thread
from fdtr.features import FeatureMap
from fdtr.learners.sweep import StepStatistics, sweep_each
from fdtr.summary import Grams, Sums, stack_steps, summarize_step
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
    """One step's regressions: `theta` (d, lanes), and what they have in common: Σ `precision` and its `factor` L."""

    theta: Array
    precision: Array
    factor: Array


@dataclass(frozen=True, repr=False)
class Fit:
    """A learner's result, for every step.

    `theta` (H, d); `precision` Σ (H, d, d); the `penalty`; `statistics`, the sums it was solved from; `bounds`, the
    rules it acts by.
    """

    theta: Array
    precision: Array
    penalty: Penalty
    statistics: tuple[StepStatistics, ...]
    bounds: tuple[LowerBound, ...]


def fit_backward(
    rows: Trajectories,
    features: FeatureMap,
    solve_step: Callable[[int, Sequence[StepStatistics]], Solution],
    penalties: Sequence[Penalty],
) -> list[Fit]:
    """Lines 3–11 of Algorithm 1 and of Algorithm 2, which differ only in how a step is solved; a fit for each penalty.

    `solve_step(h, sums)` is the regression of step h. Σ does not depend on the penalty, which enters through V_{h+1}
    alone: fits with several penalties share every pass over the data and every factorisation, a lane for each.
    """
    horizon, lanes = rows.horizon, range(len(penalties))
    followings: list[LowerBound | None] = [None for _ in lanes]
    solutions: list[Solution] = []
    statistics: list[list[StepStatistics]] = []
    bounds: list[list[LowerBound]] = []
    with one_blas_thread():
        for h in reversed(range(horizon)):
            sums = sweep_each(rows.step(h), features, followings)
            solution = solve_step(h, sums)
            roots = penalty_roots(solution.factor, features.embeddings)
            bounds.append(
                [
                    LowerBound.of_penalised(theta, roots, features.embeddings, penalty, cap=horizon - h)
                    for theta, penalty in zip(solution.theta.T, penalties, strict=True)
                ]
            )
            followings = list(bounds[-1])
            solutions.append(solution)
            statistics.append(sums)
    precision = np.stack([s.precision for s in reversed(solutions)])
    return [
        Fit(
            theta=np.stack([s.theta[:, lane] for s in reversed(solutions)]),
            precision=precision,
            penalty=penalties[lane],
            statistics=tuple(step[lane] for step in reversed(statistics)),
            bounds=tuple(step[lane] for step in reversed(bounds)),
        )
        for lane in lanes
    ]


def moments_of(sums: Sequence[StepStatistics]) -> Array:
    """ΦᵀY of every lane, (d, lanes)."""
    return np.column_stack([step.moment for step in sums])


def penalty_of(settings: Settings, features: FeatureMap, horizon: int, n: float) -> Penalty:
    """The penalty for an effective number of patients `n`: (13), widened by η (Section 4.1)."""
    zeta = log_term(features.n_features, horizon, n, settings.failure_probability)
    alpha = penalty_scale(settings.pessimism, features.n_features, horizon, zeta)
    return misspecified(alpha, settings.misspecification, horizon, n)


def sums_of(fit: Fit, n_shared: int) -> Sums:
    """What a local fit has to say to other sites. `n_shared` is d0."""
    return stack_steps(
        [
            summarize_step(sums.gram, sums.moment, sums.reward_moment, sums.reward_square, sums.n, n_shared)
            for sums in fit.statistics
        ]
    )


def grams_of(fit: Fit) -> Grams:
    """What a local fit's sums derive from."""
    steps = fit.statistics
    return Grams(
        gram=np.stack([sums.gram for sums in steps]),
        moment=np.stack([sums.moment for sums in steps]),
        reward_moment=np.stack([sums.reward_moment for sums in steps]),
        reward_square=np.array([sums.reward_square for sums in steps]),
        n=np.array([float(sums.n) for sums in steps]),
    )
