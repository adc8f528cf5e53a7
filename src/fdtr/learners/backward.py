"""Pessimistic value iteration, from the last step to the first: the loop that Algorithms 1 and 2 share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.noised import StepSums
from fdtr.algebra.normal_equations import factor, trace_of_quotient
from fdtr.algebra.pessimism import (
    LowerBound,
    NoiseUnits,
    Penalty,
    log_term,
    misspecified,
    noise_level,
    penalty_roots,
    penalty_scale,
)
from fdtr.algebra.threads import one_blas_thread
from fdtr.features import FeatureMap
from fdtr.learners.accumulate import StepStatistics, accumulate_each
from fdtr.sums import Grams, Sums
from fdtr.trajectories import Trajectories

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Settings:
    """Tuning constants of the paper's (13): `pessimism` c, `ridge` λ, `failure_probability` ξ; `misspecification` η.

    `pessimism` may also be in units of noise: `NoiseUnits(0.03)`. With `own_penalty` the penalty comes from the site's
    own rows alone, whoever θ is estimated with.

    >>> Settings(pessimism=0.005, ridge=1.0, failure_probability=0.99, misspecification=0.0).ridge
    1.0
    """

    pessimism: float | NoiseUnits
    ridge: float
    failure_probability: float
    misspecification: float
    own_penalty: bool = False

    def with_pessimism_times(self, factor: float) -> "Settings":
        """These settings with the pessimism multiplied."""
        c = self.pessimism
        return replace(self, pessimism=NoiseUnits(factor * c.noise) if isinstance(c, NoiseUnits) else factor * c)


@dataclass(frozen=True, repr=False)
class Solution:
    """The regressions of one step: `theta` (d, p), a column for each pessimism; `precision` Σ = L Lᵀ and `factor` L."""

    theta: Array
    precision: Array
    factor: Array


@dataclass(frozen=True, repr=False)
class Fit:
    """Result of a learner, for every step.

    `theta` (H, d); `precision` Σ (H, d, d); the `penalties`; `statistics`, the sums from which θ was solved; `bounds`,
    the lower bounds by which the policy acts.
    """

    theta: Array
    precision: Array
    penalties: tuple[Penalty, ...]
    statistics: tuple[StepStatistics, ...]
    bounds: tuple[LowerBound, ...]


def fit_backward(
    rows: Trajectories,
    features: FeatureMap,
    solve_step: Callable[[int, Sequence[StepStatistics]], Solution],
    settings: Settings,
    n: float,
    pessimisms: Sequence[float | NoiseUnits],
) -> list[Fit]:
    """The loop over steps of Algorithms 1 and 2, which differ only in how a step is solved; one fit for each pessimism.

        Q̂_h = min{φᵀθ_h − Γ_h, H−h+1}⁺,   V̂_h = max_a Q̂_h,   Γ_h as in (12),   V̂_{H+1} = 0

    `solve_step(h, sums)` is the regression of step h, `n` is N of (13). Σ does not depend on the penalty, which enters
    only through V_{h+1}: fits with several penalties share every pass over the data and every factorisation.
    """
    horizon, indices = rows.horizon, range(len(pessimisms))
    next_values: list[LowerBound | None] = [None for _ in indices]
    solutions: list[Solution] = []
    statistics: list[list[StepStatistics]] = []
    penalties: list[list[Penalty]] = []
    bounds: list[list[LowerBound]] = []
    with one_blas_thread():
        for h in reversed(range(horizon)):
            sums = accumulate_each(rows.step(h), features, next_values)
            solution = solve_step(h, sums)
            roots = penalty_roots(solution.factor, features.embeddings)
            noisy = any(isinstance(pessimism, NoiseUnits) for pessimism in pessimisms)
            degrees = trace_of_quotient(solution.factor, sums[0].gram) if noisy else 0.0
            penalties.append(
                [
                    penalty_of(replace(settings, pessimism=pessimism), step, theta, degrees, horizon, horizon - h, n)
                    for pessimism, step, theta in zip(pessimisms, sums, solution.theta.T, strict=True)
                ]
            )
            bounds.append(
                [
                    LowerBound.of_penalised(theta, roots, features.embeddings, penalty, cap=horizon - h)
                    for theta, penalty in zip(solution.theta.T, penalties[-1], strict=True)
                ]
            )
            next_values = list(bounds[-1])
            solutions.append(solution)
            statistics.append(sums)
    precision = np.stack([s.precision for s in reversed(solutions)])
    return [
        Fit(
            theta=np.stack([s.theta[:, index] for s in reversed(solutions)]),
            precision=precision,
            penalties=tuple(step[index] for step in reversed(penalties)),
            statistics=tuple(step[index] for step in reversed(statistics)),
            bounds=tuple(step[index] for step in reversed(bounds)),
        )
        for index in indices
    ]


def moments_of(sums: Sequence[StepStatistics]) -> Array:
    """ΦᵀY for each penalty, (d, p)."""
    return np.column_stack([step.moment for step in sums])


def penalty_of(
    settings: Settings, sums: StepStatistics, theta: Array, degrees: float, horizon: int, span: int, n: float
) -> Penalty:
    """The penalty of one step: α of (13) for `n` effective patients, or κ d σ̂; η widens it (Section 4.1).

    `degrees` is tr(Σ⁻¹Λ), `span` the largest possible Y.
    """
    n_features = len(theta)
    if isinstance(settings.pessimism, NoiseUnits):
        level = _noise_of(sums, theta, degrees, span)
        alpha = settings.pessimism.penalty_scale(n_features, level)
    else:
        zeta = log_term(n_features, horizon, n, settings.failure_probability)
        alpha = penalty_scale(settings.pessimism, n_features, horizon, zeta)
    return misspecified(alpha, settings.misspecification, horizon, n)


def noise_levels(fit: Fit) -> tuple[float, ...]:
    """σ̂ of the targets around φᵀθ at each step, (H,), from the rows that were fitted."""
    horizon = len(fit.theta)
    steps = zip(fit.statistics, fit.theta, fit.precision, strict=True)
    return tuple(
        _noise_of(sums, theta, trace_of_quotient(factor(precision), sums.gram), horizon - h)
        for h, (sums, theta, precision) in enumerate(steps)
    )


def _noise_of(sums: StepStatistics, theta: Array, degrees: float, span: int) -> float:
    return noise_level(sums.residual_square(theta), sums.n, degrees, sums.target_variance, len(theta), span)


def sums_of(fit: Fit, n_shared: int) -> Sums:
    """The sums of a local fit that a site sends to others. `n_shared` is d0."""
    return grams_of(fit).sums(n_shared)


def grams_of(fit: Fit) -> Grams:
    """The Grams and moments from which a local fit's message derives."""
    return stack_grams(fit.statistics, [sums.n for sums in fit.statistics])


def stack_grams(steps: Sequence[StepStatistics | StepSums], counts: Sequence[int]) -> Grams:
    """The Grams and moments of all steps from those of each step, and the number of patients at each."""
    return Grams(
        gram=np.stack([sums.gram for sums in steps]),
        moment=np.stack([sums.moment for sums in steps]),
        reward_moment=np.stack([sums.reward_moment for sums in steps]),
        reward_square=np.array([sums.reward_square for sums in steps]),
        n=np.array(counts, dtype=np.float64),
    )
