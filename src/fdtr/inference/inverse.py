"""Inverses of information matrices that may be singular, many at a time, and what they leave undetermined."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.schur import RANK_TOLERANCE

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Inverse:
    """A generalised inverse of each of several information matrices W.

    `matrix` (H, d, d) is W⁺, `rank` (H,) that of W, and `identified` (H, d) says which coefficients W determines:
    those at which every vector of the null space of W is 0.
    """

    matrix: Array
    rank: NDArray[np.intp]
    identified: NDArray[np.bool_]

    def solve(self, moments: Array) -> Array:
        """W⁺v, (H, d); `moments` (H, d) holds v."""
        return np.asarray(np.einsum("hij,hj->hi", self.matrix, moments))

    def quadratic(self, moments: Array) -> Array:
        """vᵀW⁺v, (H,)."""
        return np.asarray(np.einsum("hi,hi->h", moments, self.solve(moments)))


def invert(information: Array) -> Inverse:
    """W⁺ = D U diag(1/λ) Uᵀ D from the eigenvalues of D W D, D = diag(W)^-½, leaving out those that count as zero.

    As everywhere, an eigenvalue of the scaled matrix below `RANK_TOLERANCE` of the largest is zero. What W
    determines does not depend on the choice of a generalised inverse: neither the identified coefficients and their
    variances nor vᵀW⁺v.

    `information` (H, d, d) stacks W.

    >>> found = invert(np.array([[[4.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0]]]))
    >>> found.rank, found.identified
    (array([2]), array([[ True, False, False]]))
    """
    diagonal = np.diagonal(information, axis1=-2, axis2=-1)
    scale = 1.0 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    values, vectors = np.linalg.eigh(information * scale[:, :, None] * scale[:, None, :])
    largest = values.max(axis=1, initial=np.finfo(float).tiny, keepdims=True)
    kept = values > RANK_TOLERANCE * largest
    half = scale[:, :, None] * vectors * np.where(kept, 1.0 / np.sqrt(np.where(kept, values, 1.0)), 0.0)[:, None, :]
    # Beside a gap of RANK_TOLERANCE, rounding turns a null vector by less than the root of it.
    undetermined = np.einsum("hij,hj->hi", vectors**2, ~kept)
    return Inverse(half @ half.transpose(0, 2, 1), kept.sum(axis=1), undetermined < RANK_TOLERANCE)
