"""Whether a value can be believed: what is left of the weights, and whether the target does what clinicians do."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.evaluation.cautions import steps
from fdtr.evaluation.paths import Paths, taken
from fdtr.evaluation.weights import Weights

Array = NDArray[np.float64]

RARE = 0.05
"""A recommended action is rarely used where its propensity is below this."""

LOW_QUANTILE = 0.01
"""Propensities are shown down to this quantile and not to the smallest, which is one patient's."""

NEVER, MUCH_NEVER = 0.01, 0.2
"""Below the first clinicians practically never do it; a target may ask for that in this share of a step at most."""

MUCH_UNUSED = 0.05
"""And for actions that nobody at the site got at all, in this share."""

FEWEST = 10
LEAST_SHARE = 0.01
LOST_ERRORS, LEAST_LOST = 3, 0.05
"""Weights average 1 where every patient could have been treated so; this many standard errors below, some could not."""


@dataclass(frozen=True)
class Verdict:
    """Whether a value is to be believed, and if not, why in a sentence."""

    believable: bool
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Overlap:
    """How the target's recommendations fare with clinicians, by step, all (H,); NaN where nobody is left.

    `rare_share` and `never_share`: shares of recommended actions whose propensity is below 0.05, and below 0.01;
    `unused_share`: of actions that nobody at the site got at any step; `low_propensity`: the 1% quantile of recommended
    actions' propensities; `agreement`: how often clinicians did as the target would.
    """

    rare_share: Array
    never_share: Array
    unused_share: Array
    low_propensity: Array
    agreement: Array


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """What stands beside every value: all (H,) but the verdict.

    `present` counts patients; `effective_sample_size`, `zero_share`, `largest_share`, `clipped_share` and `mean_weight`
    are those of the importance weights of all patients (those who left keep theirs); `verdict` is on importance
    weighting, `support` on whether clinicians do at all what the target asks for.
    """

    present: NDArray[np.intp]
    effective_sample_size: Array
    zero_share: Array
    largest_share: Array
    clipped_share: Array
    mean_weight: Array
    overlap: Overlap
    verdict: Verdict
    support: Verdict


def diagnose(paths: Paths, weights: Weights, target: Sequence[Array], behaviour: Sequence[Array]) -> Diagnostics:
    """`target` and `behaviour` hold the chances (A, n_h) of every step."""
    size, overlap = weights.effective_sample_size, overlap_of(paths, target, behaviour)
    support = judge_support(overlap)
    enough = judge(size, paths.n)
    return Diagnostics(
        present=np.array(paths.counts),
        effective_sample_size=size,
        zero_share=weights.zero_share,
        largest_share=weights.largest_share,
        clipped_share=weights.clipped_share,
        mean_weight=weights.ratios.mean(axis=1),
        overlap=overlap,
        verdict=first_doubt(enough, support, judge_mean(weights)),
        support=support,
    )


def overlap_of(paths: Paths, target: Sequence[Array], behaviour: Sequence[Array]) -> Overlap:
    """A target that draws its action counts with each of them as often as it takes it."""
    rare, never, unused, low, agreement = (np.full(paths.horizon, np.nan) for _ in range(5))
    given = np.bincount(np.concatenate(paths.actions), minlength=len(target[0])) > 0
    for h, (wanted, usual, actions) in enumerate(zip(target, behaviour, paths.actions, strict=True)):
        if len(actions):
            rare[h] = (wanted * (usual < RARE)).sum() / len(actions)
            never[h] = (wanted * (usual < NEVER)).sum() / len(actions)
            unused[h] = wanted[~given].sum() / len(actions)
            low[h] = _quantile(usual.ravel(), wanted.ravel(), LOW_QUANTILE)
            agreement[h] = taken(wanted, actions).mean()
    return Overlap(rare, never, unused, low, agreement)


def judge(effective_sample_size: Array, n: int) -> Verdict:
    """Not to be believed where some step's effective sample size is below 10 or 1% of the patients.

    Weights of all patients count, so that a step which few patients reach does not condemn a value by itself.

    >>> judge(np.array([500.0, 4.2]), 1000).reason
    'At step 1 the weights of 1000 patients are worth no more than 4.2 equal ones; 10 is the least.'
    """
    floor = max(FEWEST, LEAST_SHARE * n)
    low = np.flatnonzero(effective_sample_size < floor)
    if not len(low):
        return Verdict(believable=True)
    worst = effective_sample_size.min()
    return Verdict(
        False,
        f"At {steps(low.tolist())} the weights of {n} patients are worth no more than {worst:.1f} equal ones; "
        f"{floor:.0f} is the least.",
    )


def judge_mean(weights: Weights) -> Verdict:
    """Not to be believed where a step's weights average clearly less than 1.

    Then some patients could not have been treated as the target would: clinicians never do. A value speaks of the
    others alone, however many weights are left. Weights that were cut off average less for another reason.
    """
    mean = weights.ratios.mean(axis=1)
    error = (
        weights.ratios.std(axis=1, ddof=1) / np.sqrt(weights.ratios.shape[1]) if weights.ratios.shape[1] > 1 else mean
    )
    lost = np.flatnonzero((mean + LOST_ERRORS * error < 1) & (mean < 1 - LEAST_LOST) & (weights.clipped_share == 0))
    if not len(lost):
        return Verdict(believable=True)
    return Verdict(
        False,
        f"At {steps(lost.tolist())} the weights average {mean[lost].min():.2f} and not 1: clinicians never treat some "
        "patients as the target would, and the value speaks of the others alone.",
    )


def judge_support(overlap: Overlap) -> Verdict:
    """Not to be believed, by weights or by a model, where the target asks for what clinicians here do not do."""
    unused, never = (
        np.flatnonzero(np.nan_to_num(share) > most)
        for share, most in ((overlap.unused_share, MUCH_UNUSED), (overlap.never_share, MUCH_NEVER))
    )
    if len(unused):
        most = np.nanmax(overlap.unused_share)
        return Verdict(False, f"At {steps(unused.tolist())} it asks for actions that nobody here got, for {most:.0%}.")
    if len(never):
        most = np.nanmax(overlap.never_share)
        what = f"it asks for what clinicians practically never do (a chance below {NEVER:g}), for up to {most:.0%}"
        return Verdict(False, f"At {steps(never.tolist())} {what}: nothing there to compare with.")
    return Verdict(believable=True)


def first_doubt(*verdicts: Verdict) -> Verdict:
    """The first that is not good, else a good one."""
    return next((verdict for verdict in verdicts if not verdict.believable), Verdict(believable=True))


def _quantile(values: Array, weights: Array, level: float) -> float:
    """The smallest value at which the weights add up to `level` of their sum."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, level * reached[-1] * (1 - 1e-12))])
