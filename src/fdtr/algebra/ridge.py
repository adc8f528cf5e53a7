"""Solve the normal equations: by Cholesky with a ridge, by minimum norm without one."""

from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_solve, cholesky, eigh, qr, solve_triangular

from fdtr.algebra.schur import RANK_TOLERANCE, column_scale
from fdtr.errors import SingularSystem

Array = NDArray[np.float64]


def factor(precision: Array) -> Array:
    """Lower triangular L with Σ = L Lᵀ. `precision` is Σ, symmetric and positive definite."""
    try:
        return cast(Array, cholesky(precision, lower=True))
    except LinAlgError:
        raise SingularSystem(
            "The regression at one step is singular to working precision: the ridge is too small for these data. "
            "Nothing was written. Raise `ridge` under [learning] in the study file (1.0 is the paper's value)."
        ) from None


def solve(lower: Array, moment: Array) -> Array:
    """θ = Σ⁻¹ b. `lower` is L with Σ = L Lᵀ, `moment` is b.

    >>> solve(np.array([[2.0]]), np.array([8.0]))
    array([2.])
    """
    return cast(Array, cho_solve((lower, True), moment))


def half_solve(lower: Array, matrix: Array) -> Array:
    """L⁻¹ M, so that Mᵀ Σ⁻¹ M is its square. `lower` is L, `matrix` is M."""
    return cast(Array, solve_triangular(lower, matrix, lower=True))


def minimum_norm(gram: Array, moment: Array) -> Array:
    """The shortest θ that minimises ‖y − Φθ‖², from ΦᵀΦ and Φᵀy: ordinary least squares.

    The rank is judged on the Gram scaled to unit diagonal (`RANK_TOLERANCE`), so that a column in small units
    is not mistaken for an empty one; the length of θ is measured unscaled.

    `gram` (d, d) is ΦᵀΦ, `moment` (d,) is Φᵀy.

    >>> minimum_norm(np.full((2, 2), 4.0), np.full(2, 8.0))
    array([1., 1.])
    """
    if not len(gram):
        return np.zeros(0)
    scale = column_scale(gram)
    values, vectors = eigh(gram * np.outer(scale, scale))
    kept = values > RANK_TOLERANCE * max(values[-1], np.finfo(float).tiny)
    used = vectors[:, kept]
    theta: Array = scale * (used @ ((used.T @ (scale * moment)) / values[kept]))
    if kept.all():
        return theta
    null_space, _ = qr(scale[:, None] * vectors[:, ~kept], mode="economic")
    return cast(Array, theta - null_space @ (null_space.T @ theta))
