"""Majority vote over the policies of several sites."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr.policy import Policy


@dataclass(frozen=True, eq=False)
class MajorityVote:
    """Does what most of `policies` would do; a tied vote goes to the smallest code."""

    method: str
    policies: Sequence[Policy]

    def act(self, states: Any, step: int) -> NDArray[Any]:
        """The action with most votes for each state, (n,)."""
        levels = np.sort(self.policies[0].features.levels)
        ballots = np.stack([policy.act(states, step) for policy in self.policies])
        votes = np.stack([(ballots == level).sum(axis=0) for level in levels])
        winners: NDArray[Any] = levels[votes.argmax(axis=0)]  # the first of equals, and levels ascend
        return winners
