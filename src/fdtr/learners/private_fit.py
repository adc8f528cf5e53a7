"""The fit behind a differentially private message: noise is added to the sums of a step before they are used.

From the last step to the first: sum over patients, add noise, solve with the noised sums, and use Ṽ of that solution at
the step before. Each step sees the patients once, through its noised sums, so the privacy losses of the steps compose.
Everything computed from the noised sums reveals nothing more about a patient. Counts of patients are public and exact.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.noised import StepSums, discount, flatten, unflatten
from fdtr.algebra.normal_equations import factor, solve
from fdtr.algebra.pessimism import NoiseUnits
from fdtr.features import FeatureMap
from fdtr.learners.accumulate import StepStatistics
from fdtr.learners.backward import Settings, Solution, fit_backward, stack_grams
from fdtr.sums import VARIANCE_FLOOR, Grams
from fdtr.trajectories import Trajectories

Array = NDArray[np.float64]

NOISE_RATIO = 300.0
"""μ/σ²: the noise's variance in b − Λθ, (H−h)² + ‖θ‖²/2 for σ = 1, over the outcome's residual variance.

With ‖θ‖ about 3 spans and a residual standard deviation of an eighth of a span it is about 300. With a tenth of it,
noise makes estimates worse than none where outcomes are precise; ten times as much loses little.
"""
LARGEST_VARIANCE = 0.25  # of a number in [0, 1]


@dataclass(frozen=True)
class Noise:
    """`add` adds noise with standard deviation `scale`, σ, to every entry of a vector of sensitivity 2."""

    scale: float
    add: Callable[[Array], Array]

    @property
    def lost(self) -> float:
        """μ in P = Λ(Λ + μI)⁻¹Λ."""
        return NOISE_RATIO * self.scale**2


def fit_private(rows: Trajectories, features: FeatureMap, settings: Settings, noise: Noise) -> Grams:
    """Noised sums of every step, weighted by what the noise leaves of them: the source of a noised message."""
    ridge = settings.ridge * np.eye(features.n_features)
    noised: dict[int, StepSums] = {}
    counts: dict[int, int] = {}

    def solve_step(h: int, sums: Sequence[StepStatistics]) -> Solution:
        counts[h] = sums[0].n
        noised[h] = _noised(sums[0], float(rows.horizon - h), noise, ridge)
        precision = noised[h].gram + ridge
        lower = factor(precision)
        return Solution(solve(lower, noised[h].moment[:, None]), precision, lower)

    if isinstance(settings.pessimism, NoiseUnits):
        raise TypeError("Noise units use exact outcomes: a private fit takes the paper's c.")
    fit_backward(rows, features, solve_step, settings, rows.n_patients, [settings.pessimism])
    steps = range(rows.horizon)
    return stack_grams([noised[h] for h in steps], [counts[h] for h in steps])


def _noised(sums: StepStatistics, span: float, noise: Noise, ridge: Array) -> StepSums:
    """The sums of one step after noise; all may leave the site. Its Gram is P and its moments are c of `discount`."""
    exact = StepSums(sums.gram, sums.moment, sums.reward_moment, sums.reward_square)
    noised = unflatten(noise.add(flatten(exact, span)), len(ridge), span)
    weighted = discount(noised.gram, np.column_stack([noised.moment, noised.reward_moment]), noise.lost)
    theta = solve(factor(weighted.gram + ridge), weighted.moments[:, 1])
    variance = _reward_variance(noised, weighted.positive, theta, sums.n)
    # rᵀr such that a reader who treats these sums as exact computes this residual variance.
    square = weighted.explained[1] + variance * max(sums.n - weighted.rank, 0)
    return StepSums(weighted.gram, weighted.moments[:, 0], weighted.moments[:, 1], float(square))


def _reward_variance(noised: StepSums, gram: Array, theta: Array, n: int) -> float:
    """σ̂² of the reward, ‖r − Φθ‖²/n from noised sums; at least so large that μ, and so W⁺, covers the noise."""
    residual = float(noised.reward_square - 2 * theta @ noised.reward_moment + theta @ gram @ theta)
    covers = (1.0 + float(theta @ theta) / 2) / NOISE_RATIO
    return max(min(residual / max(n, 1), LARGEST_VARIANCE), covers, VARIANCE_FLOOR)
