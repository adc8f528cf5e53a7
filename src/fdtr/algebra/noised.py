"""Sums with noise, for differential privacy: the vector that noise is added to, and the weighting of the result."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

Array = NDArray[np.float64]

SENSITIVITY = 2.0
"""L2 sensitivity of the vector of `flatten`: the largest change when one patient is added or removed.

The patient's row adds φφᵀ, φY/span, φr and r². With ‖φ‖ ≤ 1, 0 ≤ Y ≤ span and 0 ≤ r ≤ 1 each is at most 1 long, φφᵀ in
the Frobenius norm, and 2² = 1 + 1 + 1 + 1. The upper triangle with its off-diagonal entries times √2 has the length of
the whole matrix. Noise σ on it is σ on Λ's diagonal and σ/√2 off it; no entry is noised twice.
"""


@dataclass(frozen=True, eq=False, repr=False)
class StepSums:
    """Λ (d, d), ΦᵀY (d,), Φᵀr (d,) and rᵀr of one step."""

    gram: Array
    moment: Array
    reward_moment: Array
    reward_square: float


def flatten(sums: StepSums, span: float) -> Array:
    """The sums as one vector, (d(d+1)/2 + 2d + 1,), with sensitivity `SENSITIVITY`. `span` is the largest Y, H − h.

    >>> flatten(StepSums(np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([4.0, 0.0]), np.zeros(2), 3.0), span=4.0)
    array([1.        , 2.82842712, 1.        , 1.        , 0.        ,
           0.        , 0.        , 3.        ])
    """
    d = len(sums.moment)
    triangle = sums.gram[np.triu_indices(d)] * _lengths(d)
    return np.concatenate([triangle, sums.moment / span, sums.reward_moment, [sums.reward_square]])


def unflatten(vector: Array, d: int, span: float) -> StepSums:
    """The inverse of `flatten`."""
    size = d * (d + 1) // 2
    gram = np.zeros((d, d))
    gram[np.triu_indices(d)] = vector[:size] / _lengths(d)
    gram = gram + np.triu(gram, 1).T
    return StepSums(gram, span * vector[size : size + d], vector[size + d : size + 2 * d], float(vector[-1]))


def _lengths(d: int) -> Array:
    rows, columns = np.triu_indices(d)
    return np.asarray(np.where(rows == columns, 1.0, np.sqrt(2.0)))


@dataclass(frozen=True, eq=False, repr=False)
class Discounted:
    """Normal equations in which each direction is weighted by its information after noise.

    `gram` (d, d) is P, `moments` (d, k) are c; `explained` (k,) is cᵀP⁺c and `rank` that of P. `positive` (d, d) is Λ
    projected to positive semi-definite.
    """

    gram: Array
    moments: Array
    explained: Array
    rank: int
    positive: Array


def discount(gram: Array, moments: Array, lost: float) -> Discounted:
    """Weight noised normal equations by generalised least squares.

    P = Λ(Λ + μI)⁻¹Λ,  c = Λ(Λ + μI)⁻¹b.  If Λ were exact, b − Λθ would have the covariance σ_y²Λ from the outcomes and
    about σ_y²μ·I from the noise; weighting by its inverse gives P and c, up to σ_y². A direction with λ ≫ μ keeps its
    λ; one with λ ≪ μ, which may be noise alone, counts λ²/μ. A projection to positive semi-definite alone would let
    such directions be inverted where a site's own effects are removed, and errors would grow a thousandfold.

    `gram` (d, d) is Λ, `moments` (d, k) holds b, `lost` is μ. Eigenvalues of Λ below 0 count as 0.

    >>> discount(np.array([[3.0]]), np.array([[6.0]]), lost=1.0).gram
    array([[2.25]])
    """
    values, vectors = eigh(gram)
    values = values.clip(0.0)
    known = values > 1e-12 * max(values[-1], np.finfo(float).tiny)
    values, vectors = values[known], vectors[:, known]
    weights = values / (values + lost)
    inside = vectors.T @ moments
    return Discounted(
        gram=_symmetric((vectors * (values * weights)) @ vectors.T),
        moments=(vectors * weights) @ inside,
        explained=np.einsum("rk,rk,r->k", inside, inside, weights / values),
        rank=len(values),
        positive=_symmetric((vectors * values) @ vectors.T),
    )


def _symmetric(matrix: Array) -> Array:
    return (matrix + matrix.T) / 2
