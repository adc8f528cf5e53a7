"""Limited outcomes: rewards and values that are moved nearer to others before they are summed, within bounds.

A patient with an outcome far from all others is told by sums. Rules NONZERO (`rare_outcomes`) and LEVERAGE move such
outcomes. Both together move at most `MOST_LIMITED` of the patients of a group at a step. An outcome keeps `LEAST_LEFT`
of its measured difference from the usual value, so that rare events stay in the sums; if it is closer to that than
half its difference from what covariates explain, it keeps `LEAST_LEFT` of the latter. Where this does not suffice,
functions are taken out. Weights never depend on an outcome, as S would show whose it is.
"""

import numpy as np
from numpy.typing import NDArray

from fdtr.disclosure.patient_evidence import residuals
from fdtr.disclosure.weighted_step import StepPlan

Array = NDArray[np.float64]

MOST_LIMITED = 0.1
"""Share of a group's patients whose outcomes may be moved; if it had to be more, functions are taken out instead."""

LEAST_LEFT = 0.1
"""A limited outcome keeps this share of its difference, or more."""

OF_OUTCOME = (0, 1, 0, 1, 0)
"""Differences of r and of V are those from usual values, from what own features explain, and for r from what all do."""

_UNUSUAL = 0.5
"""An outcome is unusual if its difference from the usual value is this share of its largest difference, or more."""

_ROUNDING = 1e-9


def farthest_moves(differences: Array) -> Array:
    """How far an outcome may be moved, (2, n), for r and V; `differences` (5, n) are those of `OF_OUTCOME`.

    >>> farthest_moves(np.array([[1.0, 0.1], [0.2, 0.0], [1.2, 0.5], [0.2, 0.0], [1.1, 0.5]]))
    array([[0.9 , 0.45],
           [0.18, 0.  ]])
    """
    most = []
    for outcome in (0, 1):
        sizes = np.abs(differences[np.equal(OF_OUTCOME, outcome)])
        largest = sizes.max(axis=0)
        most.append((1.0 - LEAST_LEFT) * np.where(sizes[0] >= _UNUSUAL * largest, sizes[0], largest))
    return np.stack(most)


def most_moved(n: int) -> int:
    """Of how many patients outcomes may be moved, in a group of `n`."""
    return int(MOST_LIMITED * n + _ROUNDING)


def place(plan: StepPlan, outcomes: Array) -> bool:
    """Let sums be those of `outcomes` (2, n), as far as these may be moved; whether any is another one then."""
    if plan.differences is None:
        raise ValueError("It is not known yet how far outcomes may be moved.")
    most = farthest_moves(plan.differences)
    nearer = np.clip(outcomes, plan.measured - most, plan.measured + most)
    changes = bool((np.abs(nearer - plan.outcomes_sent) > _ROUNDING).any())
    if changes:
        plan.send_outcomes(nearer)
    return changes


def move_to_fitted(plan: StepPlan, evidence: Array, share: Array) -> bool:
    """Leave a `share` (n,) of what the features do not explain of r and V; whether that moves any outcome.

    Moved are patients whose `evidence` (n,) is above 0, and of too many in a group those with most.
    """
    of_reward, of_target = residuals(plan)
    left, outcomes = np.stack([of_reward, of_target - of_reward]), plan.outcomes_sent
    low, high = outcomes.min(axis=1, keepdims=True), outcomes.max(axis=1, keepdims=True)
    nearer = np.clip(outcomes - (1.0 - share) * left, low, high)
    return place(plan, np.where(_chosen(plan, evidence), nearer, outcomes))


def _chosen(plan: StepPlan, evidence: Array) -> NDArray[np.bool_]:
    """Patients whose outcomes may be moved, (n,): those who are limited already first, and then by `evidence`."""
    chosen, members = (evidence > 0) & plan.limited, plan.groups[plan.actions]
    for group in np.unique(members[evidence > 0]):
        there = members == group
        more = most_moved(int(there.sum())) - int((plan.limited & there).sum())
        new = np.flatnonzero(there & (evidence > 0) & ~plan.limited)
        chosen[new[np.argsort(-evidence[new], kind="stable")[: max(more, 0)]]] = True
    return chosen
