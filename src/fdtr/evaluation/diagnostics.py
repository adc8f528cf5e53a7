"""Diagnostics: whether a value is believable, from the importance weights and the overlap with clinicians.

A doubt is a sentence that says why a value is not believable; it is empty where nothing is in doubt.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.evaluation.estimate import Doubt, name_steps
from fdtr.evaluation.importance import Weights
from fdtr.evaluation.step_arrays import StepArrays, at_actions

Array = NDArray[np.float64]

RARE = 0.05
"""A recommended action is rarely used where its propensity is below this."""

LOW_QUANTILE = 0.01
"""The smallest propensity shown is this quantile, not the minimum, which belongs to one patient."""

NEVER, MUCH_NEVER = 0.01, 0.2
"""Clinicians practically never take an action with a propensity below `NEVER`.

A target may recommend such actions to at most the share `MUCH_NEVER` of the patients at a step.
"""

MUCH_UNUSED = 0.05
"""A target may recommend actions that nobody at the site got to at most this share of the patients at a step."""

FEWEST = 10
LEAST_SHARE = 0.01
"""The effective sample size must reach `FEWEST`, and `LEAST_SHARE` of the patients."""

LOST_ERRORS, LEAST_LOST = 3, 0.05
"""Weights average 1 where every patient could have been treated as the target would.

A mean that is lower by this many standard errors and by at least `LEAST_LOST` shows that some could not.
"""


@dataclass(frozen=True, eq=False)
class Overlap:
    """Overlap of the target with clinicians by step, all (H,); NaN where no patient is left.

    `rare_share` and `never_share`: shares of recommended actions with a propensity below 0.05 and below 0.01;
    `unused_share`: share of recommended actions that nobody at the site got at any step; `low_propensity`: the 1%
    quantile of the recommended actions' propensities; `agreement`: how often clinicians did what the target recommends.
    """

    rare_share: Array
    never_share: Array
    unused_share: Array
    low_propensity: Array
    agreement: Array


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """Diagnostics of one target.

    `present` (H,) counts patients; `weights` are the importance weights of all of them (those who left keep theirs).
    `doubt` says why a value by importance weighting is not believable, and `support_doubt` that clinicians do not do
    what the target recommends, so that no estimator's is; both are empty where nothing is in doubt.
    """

    present: NDArray[np.intp]
    weights: Weights
    overlap: Overlap
    doubt: Doubt
    support_doubt: Doubt


def diagnose(arrays: StepArrays, weights: Weights, target: Sequence[Array], behaviour: Sequence[Array]) -> Diagnostics:
    """Diagnostics from the weights and the action probabilities (A, n_h) of the `target` and of clinicians.

    Products of weights are skewed, and their mean over few patients is often below 1 by chance. Where a target advises
    some patients only, the weights of single steps are judged instead, which its rules keep small.
    """
    overlap = overlap_of(arrays, target, behaviour)
    support = doubt_support(overlap)
    judged = weights.mean, weights.mean_error
    if weights.reached is not None:
        judged = _single_steps(arrays, target, behaviour)
    doubt = doubt_size(weights.effective_sample_size, arrays.n) or support or doubt_mean(*judged, weights.clipped_share)
    return Diagnostics(np.array(arrays.counts), weights, overlap, doubt, support)


def _single_steps(arrays: StepArrays, target: Sequence[Array], behaviour: Sequence[Array]) -> tuple[Array, Array]:
    """The mean of π/b at every step by itself, (H,), among the decisions that the target makes, and its error.

    Clinicians are not certain of these. The error is the one to be expected, √(Σ_i Σ_a (π − b)²/b) over their number:
    few decisions may by chance all have been taken otherwise, and then look as if they had no error.
    """
    mean, error = np.ones(arrays.horizon), np.zeros(arrays.horizon)
    for h, (chances, propensities, actions) in enumerate(zip(target, behaviour, arrays.actions, strict=True)):
        decided = propensities.max(axis=0, initial=0.0) < 1
        if decided.any():
            wanted, usual = chances[:, decided], propensities[:, decided]
            mean[h] = (at_actions(wanted, actions[decided]) / at_actions(usual, actions[decided])).mean()
            error[h] = np.sqrt(((wanted - usual) ** 2 / usual).sum()) / decided.sum()
    return mean, error


def overlap_of(arrays: StepArrays, target: Sequence[Array], behaviour: Sequence[Array]) -> Overlap:
    """Overlap by step. A random target counts each action with its probability."""
    rare, never, unused, low, agreement = (np.full(arrays.horizon, np.nan) for _ in range(5))
    used = np.bincount(np.concatenate(arrays.actions), minlength=len(target[0])) > 0
    for h, (chances, propensities, actions) in enumerate(zip(target, behaviour, arrays.actions, strict=True)):
        if len(actions):
            rare[h] = (chances * (propensities < RARE)).sum() / len(actions)
            never[h] = (chances * (propensities < NEVER)).sum() / len(actions)
            unused[h] = chances[~used].sum() / len(actions)
            low[h] = _quantile(propensities.ravel(), chances.ravel(), LOW_QUANTILE)
            agreement[h] = at_actions(chances, actions).mean()
    return Overlap(rare, never, unused, low, agreement)


def doubt_size(effective_sample_size: Array, n: int) -> Doubt:
    """Not believable where the effective sample size of some step is below 10 or below 1% of the patients.

    The weights of all patients count, so a step that few patients reach does not make a value doubtful by itself.

    >>> doubt_size(np.array([500.0, 4.2]), 1000)
    'At step 1 the weights of 1000 patients are worth no more than 4.2 equal ones; 10 is the least.'
    """
    floor = max(FEWEST, LEAST_SHARE * n)
    low = np.flatnonzero(effective_sample_size < floor)
    if not len(low):
        return Doubt()
    worst = effective_sample_size.min()
    what = f"the weights of {n} patients are worth no more than {worst:.1f} equal ones; {floor:.0f} is the least"
    return Doubt(f"At {name_steps(low.tolist())} {what}.", "too few were treated this way")


def doubt_mean(mean: Array, error: Array, clipped_share: Array) -> Doubt:
    """Not believable where the weights of a step average clearly less than 1; `error` is that of the `mean`, (H,) each.

    Then clinicians never treat some patients as the target would, and the value describes the others alone. Steps with
    capped weights are not judged: their mean is lower for another reason.
    """
    lost = np.flatnonzero((mean + LOST_ERRORS * error < 1) & (mean < 1 - LEAST_LOST) & (clipped_share == 0))
    if not len(lost):
        return Doubt()
    return Doubt(
        f"At {name_steps(lost.tolist())} the weights average {mean[lost].min():.2f} and not 1: clinicians never treat "
        "some patients as the target would, and the value speaks of the others alone.",
        "some patients are never treated this way",
    )


def doubt_support(overlap: Overlap) -> Doubt:
    """Not believable by any estimator where the target recommends what clinicians at this site do not do."""
    unused, never = (
        np.flatnonzero(np.nan_to_num(share) > most)
        for share, most in ((overlap.unused_share, MUCH_UNUSED), (overlap.never_share, MUCH_NEVER))
    )
    if len(unused):
        most = np.nanmax(overlap.unused_share)
        what = f"it asks for actions that nobody here got, for {most:.0%}"
        return Doubt(f"At {name_steps(unused.tolist())} {what}.", "nobody here was treated this way")
    if len(never):
        most = np.nanmax(overlap.never_share)
        what = f"it asks for what clinicians practically never do (a chance below {NEVER:g}), for up to {most:.0%}"
        sentence = f"At {name_steps(never.tolist())} {what}: nothing there to compare with."
        return Doubt(sentence, "clinicians hardly ever treat this way")
    return Doubt()


def _quantile(values: Array, weights: Array, level: float) -> float:
    """The smallest value at which the weights add up to `level` of their sum."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, level * reached[-1] * (1 - 1e-12))])
