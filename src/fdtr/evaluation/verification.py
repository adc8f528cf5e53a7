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
from fdtr.algebra.threads import one_blas_thread
from fdtr.evaluation.importance import effective_sample_size, patients_behind
from fdtr.evaluation.step_arrays import StepArrays
from fdtr.policy import Policy
from fdtr.verified_policy import Contrast, VerifiedPolicy

Array = NDArray[np.float64]

LEVELS = 100
"""Thresholds tried: quantiles of u among the training decisions that may be advised."""

LEAST_ADVISED, LEAST_PATIENTS = 0.02, 30
"""A part that speaks for a smaller share of decisions, or for fewer patients, is no verified part."""

LEAST_BEHIND = 8
"""Training patients on whom the difference from clinicians rests at least."""


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
    with one_blas_thread():
        contrasts = [everything.contrast(states, h) for h, states in enumerate(arrays.states)]
    eligible = [everything.speaks_at(contrast) for contrast in contrasts]
    usable = np.concatenate([contrast.worth[may] for contrast, may in zip(contrasts, eligible, strict=True)])
    threshold = np.inf
    if len(usable):
        for candidate in np.unique(np.quantile(usable, np.linspace(0, 1, LEVELS + 1)[:-1]))[::-1]:
            advised = [may & (contrast.worth >= candidate) for contrast, may in zip(contrasts, eligible, strict=True)]
            of_all, of_advised, behind = _worth_of_weights(arrays, contrasts, advised)
            if of_all < rules.min_share * arrays.n:
                break
            if of_advised >= rules.min_patients and behind >= LEAST_BEHIND:
                threshold = float(candidate)
            elif np.isfinite(threshold):
                break
    return VerifiedPolicy(policy, care, tuple(noise), threshold, rules.min_advantage, rules.min_chance)


def _worth_of_weights(
    arrays: StepArrays, contrasts: Sequence[Contrast], advised: Sequence[NDArray[np.bool_]]
) -> tuple[float, float, float]:
    """The least effective sample size over the steps, of all weights and of those of patients who are advised.

    The third is the number of patients on whom the difference from clinicians rests.
    """
    weights, ever = np.ones((arrays.horizon, arrays.n)), np.zeros(arrays.n, bool)
    product, before = np.ones(arrays.n), []
    for row, actions, contrast, speaks in zip(weights, arrays.actions, contrasts, advised, strict=True):
        before.append(product[: len(actions)][speaks])
        followed = np.where(actions == contrast.best, 1 / contrast.chance, 0.0)
        product[: len(actions)] *= np.where(speaks, followed, 1.0)
        ever[: len(actions)] |= speaks
        row[:] = product
    chances = [contrast.chance[speaks] for contrast, speaks in zip(contrasts, advised, strict=True)]
    usual = [np.vstack([chance, 1 - chance]) for chance in chances]  # the policy's action, and all others
    wanted = [np.vstack([np.ones(len(chance)), np.zeros(len(chance))]) for chance in chances]
    behind = patients_behind(before, wanted, usual, [np.flatnonzero(speaks) for speaks in advised])
    sizes = [effective_sample_size(chosen).min() for chosen in (weights, weights[:, ever])]
    return float(sizes[0]), float(sizes[1]), behind
