"""What a site's policy would do, beside what was done."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.learners.baselines import MajorityVote
from fdtr.policy import Policy
from fdtr.trajectories import Trajectories

Array = NDArray[np.float64]
Rule = Policy | MajorityVote


@dataclass(frozen=True)
class Practice:
    """What a site's policy would do for the patients it was fitted on, beside what was done.

    `recommended` and `given` (H, A) are shares of patients by step and action; `agreement` is the share of decisions
    in which both are the same, and `as_others` that in which each baseline would do the same as FDTR.
    """

    recommended: Array
    given: Array
    agreement: float
    as_others: Mapping[str, float]


def practice_of(policy: Policy, rows: Trajectories, others: Mapping[str, Rule]) -> Practice:
    """Compare a policy with what was done for the patients of `rows`, and with other rules."""
    levels = policy.features.levels
    given, recommended = rows.action_counts(), np.zeros((rows.horizon, len(levels)))
    same, as_others = 0, dict.fromkeys(others, 0)
    for h in range(rows.horizon):
        for chunk in rows.step(h).chunks():
            states = dict(zip(rows.covariates, chunk.states, strict=True))
            action = policy.act(states, h)
            for method, other in others.items():
                as_others[method] += int(np.sum(action == other.act(states, h)))
            same += int(np.sum(action == levels[chunk.actions]))
            recommended[h] += [np.sum(action == level) for level in levels]
    patients = np.maximum(given.sum(axis=1, keepdims=True), 1)
    shares = {method: count / rows.n_rows for method, count in as_others.items()}
    return Practice(recommended / patients, given / patients, same / rows.n_rows, shares)
