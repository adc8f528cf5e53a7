"""Verified gains in subgroups of one site's patients.

The gain among the patients of a group is doubly robust, as that of all is, with weights normalised within the group. A
group in which too few patients are advised has no estimate, and is not counted among those that are judged.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fdtr.comparisons import Evidence
from fdtr.evaluation.assessment import assess
from fdtr.evaluation.diagnostics import doubt_size
from fdtr.evaluation.importance import effective_sample_size
from fdtr.evaluation.intervals import LEVEL, Range, influence_interval, p_value
from fdtr.evaluation.target_evaluation import TargetEvaluation
from fdtr.evaluation.verification import LEAST_PATIENTS


@dataclass(frozen=True)
class Group:
    """A group of patients: its covariate, its `label`, and its members (n,) at the first step."""

    covariate: str
    label: str
    members: NDArray[np.bool_]


@dataclass(frozen=True)
class GroupGain:
    """The gain in one group of `n` patients, and its `p_value`; NaN where there is no estimate, for a `reason`.

    It holds no number of the group's patients.
    """

    covariate: str
    label: str
    n: int
    value: float
    low: float
    high: float
    p_value: float
    reason: str


def gains_in_groups(
    target: TargetEvaluation, usual: TargetEvaluation, groups: Sequence[Group], min_patients: int, level: float = LEVEL
) -> list[GroupGain]:
    """The gain of `target` over `usual` in each group; at least `min_patients` are in a group that is told."""
    whole = assess(target, usual, level)
    difference = target.difference(usual, "wdr")
    horizon, clusters = target.data.arrays.horizon, target.data.clusters
    gains = []
    for group in groups:
        n, n_advised = int(group.members.sum()), int((group.members & target.weights.advised).sum())
        reason = "" if whole.verdict == Evidence.VERIFIED else "The gain of all patients together is not verified."
        if not reason and n < min_patients:
            reason = f"It has fewer than {min_patients} patients."
        if not reason and n_advised < LEAST_PATIENTS:
            reason = f"Fewer than {LEAST_PATIENTS} of its patients are advised."
        if not reason:
            weights = target.weights.ratios[:, group.members & target.weights.advised]
            few = doubt_size(effective_sample_size(weights), n_advised)
            reason = "Too few of its patients were treated as advised." if few else ""
        value = low = high = p = math.nan
        if not reason:
            own = None if clusters is None else np.unique(clusters[group.members], return_inverse=True)[1]
            freedom = 2 * target.patients_behind(among=group.members)
            statistic = replace(difference.among(group.members).clustered(own), freedom=freedom)
            interval = influence_interval(statistic, Range(-horizon, horizon), level)
            value, low, high = statistic.value, interval.low, interval.high
            p = p_value(statistic)
        gains.append(GroupGain(group.covariate, group.label, n, value, low, high, p, reason))
    return gains
