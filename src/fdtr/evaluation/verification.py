"""Which part of a policy the data can verify: the threshold of a `VerifiedPolicy`, from training patients.

Doubly robust values need importance weights, which multiply over steps and die out: the more patients a policy advises,
the less the weights are worth. Where it abstains a weight does not change. So advice goes to the states where it brings
most for what it costs: among states with z > `min_advantage` and b̂ ≥ `min_chance`, those with the largest

    u(x) = [Q̂(x, π) − Σ_a b̂ Q̂(x, a)] · b̂/(1 − b̂),   b̂ = b̂(π(x) | x)

since a weight π/b̂ has the variance (1 − b̂)/b̂. The threshold is the smallest at which it and all larger ones leave
weights that are worth `min_share` of the patients at every step, at which those of advised patients alone are worth
`min_patients`, which a released gain needs, and at which the difference from clinicians rests on `LEAST_BEHIND`
(`importance.patients_behind`): otherwise one patient whom clinicians might have treated so would make all the error.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.care_models import CareModel
from fdtr.evaluation.diagnostics import FEWEST, LEAST_SHARE
from fdtr.evaluation.importance import effective_sample_size
from fdtr.evaluation.step_arrays import StepArrays
from fdtr.policy import Policy
from fdtr.verified_policy import Contrast, VerifiedPolicy

Array = NDArray[np.float64]

LEVELS = 100
"""Thresholds tried: quantiles of u among the training decisions that may be advised."""

LEAST_ADVISED, LEAST_PATIENTS = 0.02, 30
"""A part that speaks for a smaller share of decisions, or for fewer patients, is no verified part."""

LEAST_BEHIND = 4
"""Training patients on whom the difference from clinicians rests at least."""


_AT_ONCE = 200_000
"""Weights that are computed side by side."""


@dataclass(frozen=True)
class VerificationRules:
    """What verified advice needs; see above."""

    min_chance: float
    min_advantage: float
    min_share: float
    min_patients: float


def verify_policy(
    policy: Policy, noise: Sequence[float], care: CareModel, arrays: StepArrays, rules: VerificationRules
) -> VerifiedPolicy:
    """The verified part of a policy, with its threshold from the training patients of `arrays`.

    `care` is the model of what clinicians do, and `noise` σ̂ of each step.
    """
    everything = VerifiedPolicy(policy, care, tuple(noise), -np.inf, rules.min_advantage, rules.min_chance)
    contrasts = [everything.contrast(states, h) for h, states in enumerate(arrays.states)]
    eligible = [everything.speaks_at(contrast) for contrast in contrasts]
    usable = np.concatenate([contrast.worth[may] for contrast, may in zip(contrasts, eligible, strict=True)])
    threshold = np.inf
    if len(usable):
        candidates = np.unique(np.quantile(usable, np.linspace(0, 1, LEVELS + 1)[:-1]))[::-1]
        threshold = _least_threshold(candidates, arrays, contrasts, eligible, rules)
    return VerifiedPolicy(policy, care, tuple(noise), threshold, rules.min_advantage, rules.min_chance)


def _least_threshold(
    candidates: Array,
    arrays: StepArrays,
    contrasts: Sequence[Contrast],
    eligible: Sequence[NDArray[np.bool_]],
    rules: VerificationRules,
) -> float:
    """The smallest of some thresholds, largest first, at which it and all larger ones that can be judged pass.

    Those that advise too few do not count; infinite where none passes.
    """
    threshold = np.inf
    together = max(1, _AT_ONCE // max(arrays.n, 1))
    for start in range(0, len(candidates), together):
        some = candidates[start : start + together]
        advised = [may & (contrast.worth >= some[:, None]) for contrast, may in zip(contrasts, eligible, strict=True)]
        for candidate, of_all, of_advised, behind in zip(
            some.tolist(), *_worth_of_weights(arrays, contrasts, advised), strict=True
        ):
            if of_all < rules.min_share * arrays.n:
                return threshold
            if of_advised >= max(rules.min_patients, FEWEST, LEAST_SHARE * arrays.n) and behind >= LEAST_BEHIND:
                threshold = candidate
            elif np.isfinite(threshold):
                return threshold
    return threshold


def _worth_of_weights(
    arrays: StepArrays, contrasts: Sequence[Contrast], advised: Sequence[NDArray[np.bool_]]
) -> tuple[Array, Array, Array]:
    """For each of T thresholds the least effective sample size over the steps, of all weights and of those advised.

    The third is the number of patients on whom the difference from clinicians rests (`importance.patients_behind`).
    `advised` (T, n_h) of each step says whom.
    """
    n_thresholds = len(advised[0])
    product, ever = np.ones((n_thresholds, arrays.n)), np.zeros((n_thresholds, arrays.n), bool)
    for speaks in advised:
        ever[:, : speaks.shape[1]] |= speaks
    sizes, largest = [], np.ones((n_thresholds, 1))
    second, fourth = np.zeros((2, n_thresholds, arrays.n))
    for actions, contrast, speaks in zip(arrays.actions, contrasts, advised, strict=True):
        present, chance = slice(0, len(actions)), contrast.chance
        before = np.where(speaks, product[:, present], 0.0)
        unit = np.maximum(largest, before.max(axis=1, initial=0.0, keepdims=True))  # fourth powers overflow
        second, fourth, largest = second * (largest / unit) ** 2, fourth * (largest / unit) ** 4, unit
        squares = (before / unit) ** 2
        of_step = squares * ((1 - chance) / chance)
        of_fourth = squares**2 * ((1 - chance) ** 4 / chance**3 + (1 - chance))
        fourth[:, present] += of_fourth + 6 * second[:, present] * of_step
        second[:, present] += of_step
        product[:, present] *= np.where(speaks, np.where(actions == contrast.best, 1 / chance, 0.0), 1.0)
        sizes.append([effective_sample_size(product), effective_sample_size(np.where(ever, product, 0.0))])
    seconds, fourths = second.sum(axis=1), fourth.sum(axis=1)
    of_all, of_advised = np.min(sizes, axis=0)
    return of_all, of_advised, np.where(fourths > 0, seconds**2 / np.where(fourths > 0, fourths, 1.0), np.inf)
