"""One site's trajectories as arrays by step: rewards, actions, states, and the features of a regression on them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.normal_equations import features_of, mixed_features
from fdtr.features import FeatureMap
from fdtr.trajectories import Chunk, Trajectories

Array = NDArray[np.float64]
Codes = NDArray[np.intp]
Folds = NDArray[np.intp]
"""(n,): the fold of each patient as a position 0 … F−1."""

ByStep = tuple[Array, ...]
"""One array a step. Its last axis has the n_h patients present: the first n_h of all, longest trajectory first."""


@dataclass(frozen=True, eq=False, repr=False)
class StepArrays:
    """n patients of one site over H steps.

    `rewards` (H, n) are mapped to [0, 1]. The worth of missing steps is added to a patient's last reward, and later
    rewards are 0. `actions` (n_h,) of each step are positions among the levels; `states` (q, n_h) are in raw units.
    """

    rewards: Array
    actions: tuple[Codes, ...]
    states: ByStep

    @property
    def n(self) -> int:
        """Number of patients."""
        return int(self.rewards.shape[1])

    @property
    def horizon(self) -> int:
        """H."""
        return len(self.rewards)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """n_h, the number of patients present at each step."""
        return tuple(len(actions) for actions in self.actions)

    def padded(self, values: ByStep) -> Array:
        """Stack values (n_h,) of each step into (H, n), with 0 for patients who have left."""
        out = np.zeros_like(self.rewards)
        for row, value in zip(out, values, strict=True):
            row[: len(value)] = value
        return out

    def residuals(self, values: ByStep, expected: ByStep) -> Array:
        """r_h + V_{h+1} − Q_h, (H, n), of V and Q (n_h,) of each step; 0 for patients who have left."""
        residuals = self.rewards - self.padded(expected)
        residuals[:-1] += self.padded(values)[1:]
        return residuals


def step_arrays(rows: Trajectories) -> StepArrays:
    """Arrays of the only site in `rows`, held in memory as a whole."""
    steps = [_whole_step(rows, h) for h in range(rows.horizon)]
    rewards = np.zeros((rows.horizon, rows.n_patients))
    for row, step in zip(rewards, steps, strict=True):
        row[: len(step.rewards)] = step.rewards
        row[step.next_states.shape[1] : len(step.rewards)] += step.ended_value
    return StepArrays(rewards, tuple(step.actions for step in steps), tuple(step.states for step in steps))


def _whole_step(rows: Trajectories, h: int) -> Chunk:
    step = rows.step(h)
    chunk = next(step.chunks(max(step.n, 1)), None)
    if chunk is not None:
        return chunk
    empty = np.zeros(0)
    return Chunk(np.zeros((len(rows.covariates), 0)), np.zeros(0, np.intp), empty, np.zeros((0, 0)), empty)


def state_functions(arrays: StepArrays, features: FeatureMap) -> ByStep:
    """ψ(x), (m, n_h), of each step."""
    return tuple(features.psi(states) for states in arrays.states)


@dataclass(frozen=True, eq=False, repr=False)
class Design:
    """Patients with the features φ(x, a) = B_a ψ(x) of a regression, and their folds.

    `psi` (m, n_h) of each step holds ψ(x); `embeddings` (A, d, m) stacks B_a; `folds` (n,) are positions 0 … F−1.
    """

    arrays: StepArrays
    psi: ByStep
    embeddings: Array
    folds: Folds

    @property
    def n_features(self) -> int:
        """d."""
        return int(self.embeddings.shape[1])

    @property
    def n_folds(self) -> int:
        """F."""
        return int(self.folds.max()) + 1

    def taken(self, h: int, n: int | None = None) -> Array:
        """φ(x, a) of the actions that the first `n` patients of step h got, (d, n); all n_h of them by default."""
        return features_of(self.embeddings, self.psi[h][:, :n], self.arrays.actions[h][:n])

    def mixed(self, h: int, chances: ByStep) -> Array:
        """φ(x, π) = Σ_a π(a | x) B_a ψ(x) of step h, (d, n_h), for the action probabilities `chances` (A, n_h)."""
        return mixed_features(self.embeddings, self.psi[h], chances[h])


def at_actions(values: Array, actions: Codes) -> Array:
    """The value of the action taken, (c,). `values` (A, c) has one row an action.

    >>> at_actions(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1, 0]))
    array([3., 2.])
    """
    return np.asarray(np.take_along_axis(values, actions[None], axis=0)[0])
