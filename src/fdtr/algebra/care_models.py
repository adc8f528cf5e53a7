"""Models of what clinicians do: the chance b(a | x) of each action in each state, logistic or by a decision tree."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

FLOOR = 0.001
"""Smallest chance of any action: an action never seen is not impossible, and nothing is divided by 0."""

NEVER = -700.0
"""The constant c_a0 of an action that no row has: its chance is 0 to machine precision, and the number is finite."""


def floored(chances: Array, floor: float = FLOOR) -> Array:
    """Chances (A, n) of at least about `floor`, which sum to 1 over actions.

    >>> floored(np.array([[0.0], [1.0]]), floor=0.25)
    array([[0.2],
           [0.8]])
    """
    raised = np.maximum(chances, floor)
    return np.asarray(raised / raised.sum(axis=0))


@dataclass(frozen=True, eq=False, repr=False)
class LogisticCare:
    """b(a | x) ∝ exp(c_a0 + ⟨c_a, ψ(x)⟩) at each step, with `coefficients` c (H, A, 1 + m), the constant first.

    >>> care = LogisticCare(np.array([[[0.0, 0.0], [0.0, np.log(3.0)]]]))
    >>> care.chances(np.zeros((1, 2)), np.array([[0.0, 1.0]]), step=0)
    array([[0.5 , 0.25],
           [0.5 , 0.75]])
    """

    coefficients: Array

    def chances(self, states: Array, psi: Array, step: int) -> Array:  # noqa: ARG002 - it looks at ψ alone
        """b(a | x), (A, n), without a floor, for ψ(x) (m, n) of `states` (q, n)."""
        return logistic_chances(self.coefficients[step], psi)

    def packed(self) -> dict[str, Array]:
        """Its arrays by name, as a file has them."""
        return {"care": self.coefficients}


def logistic_chances(coefficients: Array, functions: Array) -> Array:
    """b(a | x), (A, n), from the `coefficients` (A, 1 + m) of one step and ψ(x) (m, n)."""
    scores = coefficients[:, 1:] @ functions + coefficients[:, :1]
    odds = np.exp(scores - scores.max(axis=0))
    return np.asarray(odds / odds.sum(axis=0))


@dataclass(frozen=True, eq=False, repr=False)
class TreeCare:
    """One decision tree on the raw state and the step, which is the last column.

    `splits` (N, 4) has for each node the column, the threshold, and the nodes to the left (at most the threshold) and
    to the right; a leaf is its own successor. `leaves` (N, A) has the chances.

    >>> splits = np.array([[0, 0.5, 1, 2], [0, 0, 1, 1], [0, 0, 2, 2]])
    >>> care = TreeCare(splits, np.array([[0, 0], [0.9, 0.1], [0.2, 0.8]]))
    >>> care.chances(np.array([[0.3, 0.7]]), np.zeros((0, 2)), step=4)
    array([[0.9, 0.2],
           [0.1, 0.8]])
    """

    splits: Array
    leaves: Array

    def chances(self, states: Array, psi: Array, step: int) -> Array:  # noqa: ARG002 - it looks at the state alone
        """b(a | x), (A, n), without a floor, for `states` (q, n)."""
        return np.ascontiguousarray(self.leaves[self._leaf_of(states, step)].T)

    def _leaf_of(self, states: Array, step: int) -> NDArray[np.intp]:
        columns = np.vstack([states, np.full(states.shape[1], float(step))])
        column, left, right = self.splits[:, [0, 2, 3]].T.astype(np.intp)
        node, everyone = np.zeros(states.shape[1], dtype=np.intp), np.arange(states.shape[1])
        for _ in self.splits:  # as many levels as nodes at the most
            further = np.where(columns[column[node], everyone] <= self.splits[node, 1], left[node], right[node])
            if np.array_equal(further, node):
                break
            node = further
        return node

    def packed(self) -> dict[str, Array]:
        """Its arrays by name, as a file has them."""
        return {"care_splits": self.splits, "care_leaves": self.leaves}


CareModel = LogisticCare | TreeCare

_LARGEST, _MOST_NODES = 1e6, 10_000
"""Of coefficients and of trees in a file; those that are fitted are far smaller."""


def unpacked_care(
    arrays: Mapping[str, Array], horizon: int, n_actions: int, n_functions: int, n_states: int
) -> CareModel:
    """The model in the arrays of a file; raises ValueError where they have another shape or make no tree."""
    if "care" in arrays:
        care = arrays["care"]
        if care.shape != (horizon, n_actions, 1 + n_functions) or not (np.abs(care) <= _LARGEST).all():
            raise ValueError("the coefficients have another shape, or are too large")
        return LogisticCare(care)
    splits, leaves = arrays["care_splits"], arrays["care_leaves"]
    n_nodes = len(splits)
    if splits.shape != (n_nodes, 4) or leaves.shape != (n_nodes, n_actions) or not 0 < n_nodes <= _MOST_NODES:
        raise ValueError("the tree has another shape, or too many nodes")
    columns, children, numbers = splits[:, 0], splits[:, 2:], np.arange(n_nodes)[:, None]
    sound = bool(np.isfinite(splits).all() and (splits[:, [0, 2, 3]] % 1 == 0).all())
    sound = sound and bool(((columns >= 0) & (columns <= n_states)).all() and (children < n_nodes).all())
    forward = (children > numbers).all(axis=1) | (children == numbers).all(axis=1)  # to later nodes, or a leaf
    chances = bool(((leaves >= 0) & (leaves <= 1)).all()) and np.allclose(leaves.sum(axis=1), 1.0)
    if not (sound and forward.all() and chances):
        raise ValueError("the nodes are no tree, or its leaves no chances")
    return TreeCare(splits, leaves)
