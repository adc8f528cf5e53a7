"""The fit that a noised message comes from: each step's sums are noised before anything is computed from them.

From the last step to the first: sum over patients, add the noise, solve with what was noised, and take Ṽ of that to the
step before. So each step looks at patients once, through its noised sums, and the steps compose; whatever is made
of the sums afterwards tells nothing more of a patient. Counts of patients are public and exact.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.noised import StepSums, discount, flatten, unflatten
from fdtr.algebra.ridge import factor, solve
from fdtr.features import FeatureMap
from fdtr.learners.backward import Settings, Solution, fit_backward, penalty_of
from fdtr.learners.sweep import StepStatistics
from fdtr.summary import VARIANCE_FLOOR, Grams
from fdtr.trajectories import Trajectories

Array = NDArray[np.float64]

NOISE_RATIO = 300.0
"""μ/σ²: the noise's variance in b − Λθ, (H−h)² + ‖θ‖²/2 for σ = 1, over the outcome's residual variance.

With ‖θ‖ about 3 spans and a residual standard deviation of an eighth of a span it is about 300. A tenth of it lets
noise in that makes estimates worse than none where outcomes are precise; ten times of it gives away little.
"""
LARGEST_VARIANCE = 0.25  # of a number in [0, 1]


@dataclass(frozen=True)
class Noise:
    """`add` puts noise of standard deviation `scale`, σ, on every entry of a vector of sensitivity 2."""

    scale: float
    add: Callable[[Array], Array]

    @property
    def lost(self) -> float:
        """μ in P = Λ(Λ + μI)⁻¹Λ."""
        return NOISE_RATIO * self.scale**2


@dataclass(frozen=True, eq=False, repr=False)
class _Noised:
    """One step after noise; every part may leave the site. c is `moment`."""

    gram: Array
    moment: Array
    reward_moment: Array
    reward_square: float


def fit_private(rows: Trajectories, features: FeatureMap, settings: Settings, noise: Noise) -> Grams:
    """Noised sums of every step, weighed by what noise leaves of them: all that a noised message derives from."""
    ridge = settings.ridge * np.eye(features.n_features)
    noised: dict[int, _Noised] = {}
    counts: dict[int, int] = {}

    def solve_step(h: int, sums: Sequence[StepStatistics]) -> Solution:
        counts[h] = sums[0].n
        noised[h] = _noised(sums[0], float(rows.horizon - h), noise, ridge)
        precision = noised[h].gram + ridge
        lower = factor(precision)
        return Solution(solve(lower, noised[h].moment[:, None]), precision, lower)

    fit_backward(rows, features, solve_step, [penalty_of(settings, features, rows.horizon, rows.n_patients)])
    steps = [noised[h] for h in range(rows.horizon)]
    return Grams(
        gram=np.stack([step.gram for step in steps]),
        moment=np.stack([step.moment for step in steps]),
        reward_moment=np.stack([step.reward_moment for step in steps]),
        reward_square=np.array([step.reward_square for step in steps]),
        n=np.array([float(counts[h]) for h in range(rows.horizon)]),
    )


def _noised(sums: StepStatistics, span: float, noise: Noise, ridge: Array) -> _Noised:
    exact = StepSums(sums.gram, sums.moment, sums.reward_moment, sums.reward_square)
    told = unflatten(noise.add(flatten(exact, span)), len(ridge), span)
    kept = discount(told.gram, np.column_stack([told.moment, told.reward_moment]), noise.lost)
    theta = solve(factor(kept.gram + ridge), kept.moments[:, 1])
    variance = _reward_variance(told, kept.positive, theta, sums.n)
    # rᵀr such that whoever takes these sums for a site's exact ones finds this variance left.
    square = kept.explained[1] + variance * max(sums.n - kept.rank, 0)
    return _Noised(kept.gram, kept.moments[:, 0], kept.moments[:, 1], float(square))


def _reward_variance(told: StepSums, gram: Array, theta: Array, n: int) -> float:
    """σ̂² of the reward, ‖r − Φθ‖²/n from noised sums; not below what makes μ cover the noise, so that W⁺ does too."""
    residual = float(told.reward_square - 2 * theta @ told.reward_moment + theta @ gram @ theta)
    covers = (1.0 + float(theta @ theta) / 2) / NOISE_RATIO
    return max(min(residual / max(n, 1), LARGEST_VARIANCE), covers, VARIANCE_FLOOR)
