"""The paper's baselines (Section 5.1): Q-learning by ordinary least squares at one site, and majority votes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.normal_equations import minimum_norm
from fdtr.algebra.pessimism import LowerBound
from fdtr.algebra.threads import one_blas_thread
from fdtr.features import FeatureMap
from fdtr.learners.accumulate import accumulate
from fdtr.policy import Policy
from fdtr.trajectories import Trajectories

Array = NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class QLearningFit:
    """`per_step` (H, d): Q-learn (H), one coefficient vector for each step; `single` (d,): Q-learn (1), one for all."""

    per_step: Array
    single: Array


def fit_q_learning(rows: Trajectories, features: FeatureMap) -> QLearningFit:
    """Q-learning without penalty or truncation; both variants from one pass over each step.

    Q-learn (H) regresses r_h + max_a Q_{h+1} on φ, backwards. Q-learn (1) is one regression on the same
    pseudo-outcomes of all steps together, so its normal equations are the sum of theirs.
    """
    next_value: LowerBound | None = None
    thetas: list[Array] = []
    gram, moment = np.zeros((features.n_features,) * 2), np.zeros(features.n_features)
    with one_blas_thread():
        for h in reversed(range(rows.horizon)):
            sums = accumulate(rows.step(h), features, next_value)
            theta = minimum_norm(sums.gram, sums.moment)
            next_value = LowerBound.of_plain(theta, features.embeddings)
            thetas.append(theta)
            gram += sums.gram
            moment += sums.moment
        return QLearningFit(np.stack(thetas[::-1]), minimum_norm(gram, moment))


@dataclass(frozen=True, eq=False)
class MajorityVote:
    """Takes the action that most of `policies` recommend; a tie goes to the smallest code."""

    method: str
    policies: Sequence[Policy]

    def act(self, states: Any, step: int) -> NDArray[Any]:
        """The action with most votes for each state, (n,)."""
        levels = np.sort(self.policies[0].features.levels)
        ballots = np.stack([policy.act(states, step) for policy in self.policies])
        votes = np.stack([(ballots == level).sum(axis=0) for level in levels])
        winners: NDArray[Any] = levels[votes.argmax(axis=0)]  # argmax takes the first of equals, and levels ascend
        return winners
