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

FEWEST = 10
LEAST_SHARE = 0.01


@dataclass(frozen=True)
class Verdict:
    """Whether a value is to be believed, and if not, why in a sentence."""

    believable: bool
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Overlap:
    """How the target's recommendations fare with clinicians, by step, all (H,); NaN where nobody is left.

    `rare_share`: share of recommended actions whose propensity is below 0.05; `low_propensity`: the 1% quantile of
    recommended actions' propensities; `agreement`: how often clinicians did as the target would.
    """

    rare_share: Array
    low_propensity: Array
    agreement: Array


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """What stands beside every value: all (H,) but the verdict.

    `present` counts patients; `effective_sample_size`, `zero_share`, `largest_share` and `clipped_share` are those of
    the importance weights of all patients (those who left keep theirs); `verdict` is on importance weighting.
    """

    present: NDArray[np.intp]
    effective_sample_size: Array
    zero_share: Array
    largest_share: Array
    clipped_share: Array
    overlap: Overlap
    verdict: Verdict


def diagnose(paths: Paths, weights: Weights, target: Sequence[Array], behaviour: Sequence[Array]) -> Diagnostics:
    """`target` and `behaviour` hold the chances (A, n_h) of every step."""
    size = weights.effective_sample_size
    return Diagnostics(
        present=np.array(paths.counts),
        effective_sample_size=size,
        zero_share=weights.zero_share,
        largest_share=weights.largest_share,
        clipped_share=weights.clipped_share,
        overlap=overlap_of(paths, target, behaviour),
        verdict=judge(size, paths.n),
    )


def overlap_of(paths: Paths, target: Sequence[Array], behaviour: Sequence[Array]) -> Overlap:
    """A target that draws its action counts with each of them as often as it takes it."""
    rare, low, agreement = (np.full(paths.horizon, np.nan) for _ in range(3))
    for h, (wanted, usual, actions) in enumerate(zip(target, behaviour, paths.actions, strict=True)):
        if len(actions):
            rare[h] = (wanted * (usual < RARE)).sum() / len(actions)
            low[h] = _quantile(usual.ravel(), wanted.ravel(), LOW_QUANTILE)
            agreement[h] = taken(wanted, actions).mean()
    return Overlap(rare, low, agreement)


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


def _quantile(values: Array, weights: Array, level: float) -> float:
    """The smallest value at which the weights add up to `level` of their sum."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, level * reached[-1] * (1 - 1e-12))])
