"""The sums that linear fitted-Q evaluation is solved from, by fold, so that any set of folds is one subtraction away.

With φ_{h,i} = φ(x_{h,i}, a_{h,i}) and φ(x, π) = Σ_a π(a | x) φ(x, a), for every step

    Λ_h = Σ_i φ_{h,i} φ_{h,i}ᵀ,   b_h = Σ_i φ_{h,i} r_{h,i},   C_h = Σ_i φ_{h,i} φ(x_{h+1,i}, π)ᵀ

where C_h sums over those who go on, and r includes what an early end is worth.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.ridge import factor, solve
from fdtr.evaluation.paths import ByStep, Paths

Array = NDArray[np.float64]
Folds = NDArray[np.intp]

RIDGE = 1e-3
"""λ, small beside the Grams of features that are at most 1 long."""


@dataclass(frozen=True, eq=False, repr=False)
class Outcomes:
    """What does not depend on the target: `gram` Λ (F, H, d, d) and `moment` b (F, H, d)."""

    gram: Array
    moment: Array


@dataclass(frozen=True, eq=False, repr=False)
class Onward:
    """What does: `cross` C (F, H, d, d), zero at the last step, and `start` (F, d), the sum of φ(x_0, π)."""

    cross: Array
    start: Array


def mixed_features(embeddings: Array, psi: Array, chances: Array) -> Array:
    """φ(x, π) = Σ_a π(a | x) B_a ψ(x), (d, c).

    `embeddings` (A, d, m) stacks B_a, `psi` is (m, c) and `chances` (A, c).
    """
    total = np.zeros((embeddings.shape[1], psi.shape[1]))
    for embedding, chance in zip(embeddings, chances, strict=True):
        total += embedding @ (psi * chance)
    return total


def taken_features(embeddings: Array, psi: Array, actions: NDArray[np.intp]) -> Array:
    """φ(x, a), (d, c), of the actions (c,) that were taken."""
    phi = np.empty((embeddings.shape[1], psi.shape[1]))
    for action, embedding in enumerate(embeddings):
        own = actions == action
        phi[:, own] = embedding @ psi[:, own]
    return phi


def sum_outcomes(paths: Paths, psi: ByStep, embeddings: Array, folds: Folds) -> Outcomes:
    """Λ and b of every fold and step. `psi` holds ψ(x) of every step, `folds` (n,) positions 0 … F−1."""
    d, n_folds = embeddings.shape[1], int(folds.max()) + 1
    gram, moment = np.zeros((n_folds, paths.horizon, d, d)), np.zeros((n_folds, paths.horizon, d))
    for h, actions in enumerate(paths.actions):
        phi = taken_features(embeddings, psi[h], actions)
        for fold in range(n_folds):
            own = folds[: len(actions)] == fold
            gram[fold, h] = phi[:, own] @ phi[:, own].T
            moment[fold, h] = phi[:, own] @ paths.rewards[h, : len(actions)][own]
    return Outcomes(gram, moment)


def sum_onward(paths: Paths, psi: ByStep, embeddings: Array, folds: Folds, chances: ByStep) -> Onward:
    """C and the start of every fold, for the target that takes actions with `chances` (A, n_h)."""
    d, n_folds = embeddings.shape[1], int(folds.max()) + 1
    cross, start = np.zeros((n_folds, paths.horizon, d, d)), np.zeros((n_folds, d))
    first = mixed_features(embeddings, psi[0], chances[0])
    for fold in range(n_folds):
        start[fold] = first[:, folds == fold].sum(axis=1)
    for h in range(paths.horizon - 1):
        later = mixed_features(embeddings, psi[h + 1], chances[h + 1])
        going_on = later.shape[1]
        phi = taken_features(embeddings, psi[h][:, :going_on], paths.actions[h][:going_on])
        for fold in range(n_folds):
            own = folds[:going_on] == fold
            cross[fold, h] = phi[:, own] @ later[:, own].T
    return Onward(cross, start)


def solve_backward(gram: Array, moment: Array, cross: Array, ridge: float) -> Array:
    """θ_h = (Λ_h + λI)⁻¹ (b_h + C_h θ_{h+1}), θ_H = 0, (H, d): the coefficients of Q^π. `ridge` is λ."""
    theta, following = np.zeros_like(moment), np.zeros(moment.shape[1])
    for h in reversed(range(len(theta))):
        lower = factor(gram[h] + ridge * np.eye(len(following)))
        following = solve(lower, moment[h] + cross[h] @ following)
        theta[h] = following
    return theta
