"""Patients' paths as arrays by step: rewards, actions, and how many are still there."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fdtr.features import FeatureMap
from fdtr.trajectories import Chunk, Trajectories

Array = NDArray[np.float64]
Codes = NDArray[np.intp]
ByStep = tuple[Array, ...]
"""An array for every step, a column for each of its n_h patients: those are the first n_h of all, longest first."""


@dataclass(frozen=True, eq=False, repr=False)
class Paths:
    """n patients of one site over H steps.

    `rewards` (H, n) are mapped to [0, 1], with what the missing steps are worth added to a patient's last row, and 0
    after it; `actions` (n_h,) of every step are positions among the levels; `states` (q, n_h) are in raw units.
    """

    rewards: Array
    actions: tuple[Codes, ...]
    states: ByStep

    @property
    def n(self) -> int:
        """Patients."""
        return int(self.rewards.shape[1])

    @property
    def horizon(self) -> int:
        """H."""
        return len(self.rewards)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """n_h, the patients that are there at each step."""
        return tuple(len(actions) for actions in self.actions)

    def padded(self, values: ByStep) -> Array:
        """One row a step, (H, n), of values (n_h,) a step: 0 for those who have left."""
        out = np.zeros_like(self.rewards)
        for row, value in zip(out, values, strict=True):
            row[: len(value)] = value
        return out


def paths_of(rows: Trajectories) -> Paths:
    """The only site's patients. One site's steps are held in memory."""
    steps = [_whole(rows, h) for h in range(rows.horizon)]
    rewards = np.zeros((rows.horizon, rows.n_patients))
    for row, step in zip(rewards, steps, strict=True):
        row[: len(step.rewards)] = step.rewards
        row[step.next_states.shape[1] : len(step.rewards)] += step.ended_value
    return Paths(rewards, tuple(step.actions for step in steps), tuple(step.states for step in steps))


def _whole(rows: Trajectories, h: int) -> Chunk:
    step = rows.step(h)
    found = next(step.chunks(max(step.n, 1)), None)
    if found is not None:
        return found
    empty = np.zeros(0)
    return Chunk(np.zeros((len(rows.covariates), 0)), np.zeros(0, np.intp), empty, np.zeros((0, 0)), empty)


def state_functions(paths: Paths, features: FeatureMap) -> ByStep:
    """ψ(x), (m, n_h), of every step."""
    return tuple(features.psi(states) for states in paths.states)


def taken(values: Array, actions: Codes) -> Array:
    """The value of the action that was taken, (c,). `values` (A, c) has a row for each action.

    >>> taken(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1, 0]))
    array([3., 2.])
    """
    return np.asarray(np.take_along_axis(values, actions[None], axis=0)[0])
