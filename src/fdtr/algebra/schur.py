"""Remove a site's own effects from its sums; judge ranks while doing so.

With ΦᵀΦ in blocks 00, 01, 10, 11 (shared, site-specific) and Φᵀy = (b0, b1),

    S = Λ00 − Λ01 Λ11⁺ Λ10 = Φ0ᵀ (I − P) Φ0,    s = b0 − Λ01 Λ11⁺ b1 = Φ0ᵀ (I − P) y,

P being the projection on the columns of Φ1: what a site can say about the shared effects once its own are free.
These are the sums in the paper's (11), and the only ones that another site's solution of (10) needs.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

Array = NDArray[np.float64]

RANK_TOLERANCE = 1e-10
"""An eigenvalue of a Gram scaled to unit diagonal below this share (of the largest one) counts as zero.

Grams square the condition of a design, so this calls two columns collinear when they differ by less than about
1e-5 of their length; rounding in sums over 10⁶ rows stays below 1e-13.
"""


@dataclass(frozen=True)
class Whitener:
    """`matrix` (d, r) with Gᵍ = matrix matrixᵀ a generalised inverse of the Gram G, and its `rank` r."""

    matrix: Array
    rank: int


@dataclass(frozen=True)
class Eliminated:
    """A site's sums after its own effects are projected out.

    `schur` (d0, d0) is S; `moments` (d0, k) holds s for each target; `explained` (k,) is yᵀPy, the sum of
    squares that the site's own features account for; `rank_specific` is the rank of Φ1.
    """

    schur: Array
    moments: Array
    explained: Array
    rank_specific: int


@dataclass(frozen=True)
class Projected:
    """S and s restricted to the directions that the data identifies.

    `schur` (d0, d0), `moments` (d0, k), `explained` (k,) holds sᵀS⁺s, `rank` is the rank of S.
    """

    schur: Array
    moments: Array
    explained: Array
    rank: int


def column_scale(gram: Array) -> Array:
    """D = diag(G)^-½, with 1 for an empty column, so that D G D has a diagonal of ones and zeros."""
    diagonal = np.diagonal(gram)
    return np.asarray(1.0 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0)))


def whiten(gram: Array) -> Whitener:
    """Factor a generalised inverse of a Gram, leaving out the directions below `RANK_TOLERANCE`.

    Any generalised inverse serves an elimination: Λ01 Λ11ᵍ Λ10 does not depend on the choice.

    >>> whiten(np.array([[4.0, 4.0], [4.0, 4.0]])).rank
    1
    """
    if gram.shape[0] == 0:
        return Whitener(np.zeros((0, 0)), 0)
    scale = column_scale(gram)
    values, vectors = eigh(gram * np.outer(scale, scale))
    kept = values > RANK_TOLERANCE * max(values[-1], np.finfo(float).tiny)
    return Whitener(scale[:, None] * (vectors[:, kept] / np.sqrt(values[kept])), int(kept.sum()))


def eliminate(gram: Array, moments: Array, n_shared: int) -> Eliminated:
    """Project the last columns of Φ (the site's own) out of its Gram and moments: S and s above.

    `gram` (d, d) is ΦᵀΦ, `moments` (d, k) holds Φᵀy for k targets, `n_shared` is d0.

    >>> eliminate(np.array([[2.0, 1.0], [1.0, 1.0]]), np.array([[3.0], [1.0]]), n_shared=1).schur
    array([[1.]])
    """
    whitener = whiten(gram[n_shared:, n_shared:])
    cross = whitener.matrix.T @ gram[n_shared:, :n_shared]
    own = whitener.matrix.T @ moments[n_shared:]
    return Eliminated(
        schur=_symmetric(gram[:n_shared, :n_shared] - cross.T @ cross),
        moments=moments[:n_shared] - cross.T @ own,
        explained=np.einsum("rk,rk->k", own, own),
        rank_specific=whitener.rank,
    )


def project(schur: Array, moments: Array, reference: Array) -> Projected:
    """Cut S and s down to the directions in which S is more than rounding noise beside Λ00.

    Eigenvalues of D S D with D = diag(Λ00)^-½ below `RANK_TOLERANCE` count as zero; without this a shared
    feature in the span of the site's own would leave noise of full rank behind. Such a feature leaves exact zeros.

    `schur` (d0, d0) is S, `moments` (d0, k) holds s, `reference` (d0, d0) is Λ00.

    >>> project(np.array([[1e-14]]), np.array([[1e-15]]), np.array([[1.0]])).schur
    array([[0.]])
    """
    if schur.shape[0] == 0:
        return Projected(schur, moments, np.zeros(moments.shape[1]), 0)
    scale = column_scale(reference)
    values, vectors = eigh(schur * np.outer(scale, scale))
    kept = values >= RANK_TOLERANCE
    if kept.all():
        basis = (vectors / np.sqrt(values)).T @ (scale[:, None] * moments)
        return Projected(schur, moments, np.einsum("rk,rk->k", basis, basis), len(values))
    directions = vectors[:, kept]
    # A feature that no kept direction contains has rounding left; scaled by itself that would look like information.
    directions[np.sum(directions**2, axis=1) < RANK_TOLERANCE] = 0.0
    outward = directions / scale[:, None]  # D⁻¹ U: back to the features' own units
    coordinates = directions.T @ (scale[:, None] * moments)
    return Projected(
        schur=_symmetric((outward * values[kept]) @ outward.T),
        moments=outward @ coordinates,
        explained=np.einsum("rk,rk->k", coordinates, coordinates / values[kept][:, None]),
        rank=int(kept.sum()),
    )


def significant(schur: Array, moments: Array, floor: float) -> Projected:
    """Cut a total of S and s, whose numbers were rounded, down to the directions in which S is at least `floor`.

    S itself where that is all of them. As in `project`, a feature that no such direction contains leaves exact zeros.

    `schur` (d0, d0) is S, `moments` (d0, k) holds s.

    >>> significant(np.array([[1.0, 1.0], [1.0, 1.0 + 1e-12]]), np.array([[1.0], [1.0]]), floor=1e-11).rank
    1
    """
    if schur.shape[0] == 0:
        return Projected(schur, moments, np.zeros(moments.shape[1]), 0)
    values, vectors = eigh(schur)
    kept = values >= max(floor, len(values) * np.finfo(float).eps * values[-1])
    directions = vectors[:, kept]
    coordinates = directions.T @ moments
    explained = np.einsum("rk,rk->k", coordinates, coordinates / values[kept][:, None])
    if kept.all():
        return Projected(schur, moments, explained, len(values))
    directions[np.sum(directions**2, axis=1) < RANK_TOLERANCE] = 0.0
    return Projected(
        schur=_symmetric((directions * values[kept]) @ directions.T),
        moments=directions @ coordinates,
        explained=explained,
        rank=int(kept.sum()),
    )


def leverage_map(gram: Array, n_shared: int) -> Array:
    """L (r, d) with ‖Lφ‖² the leverage of a row φ in what the site's own features leave of the shared ones.

    h = φ̃ᵀ S⁺ φ̃,  φ̃ = φ0 − Λ01 Λ11⁺ φ1.  All rows' leverages add up to r, the rank of S; it is judged as in `project`.
    With `n_shared` = d no feature is the site's own, and h = φᵀ Λ⁺ φ.

    `gram` (d, d) is ΦᵀΦ, `n_shared` is d0.

    >>> leverage_map(np.array([[4.0, 0.0], [0.0, 1.0]]), n_shared=1)
    array([[0.5, 0. ]])
    """
    own = whiten(gram[n_shared:, n_shared:]).matrix
    residual = np.hstack([np.eye(n_shared), -(gram[:n_shared, n_shared:] @ own) @ own.T])
    if n_shared == 0:
        return residual
    schur = eliminate(gram, np.zeros((len(gram), 0)), n_shared).schur
    scale = column_scale(gram[:n_shared, :n_shared])
    values, vectors = eigh(schur * np.outer(scale, scale))
    kept = values >= RANK_TOLERANCE
    return np.asarray((vectors[:, kept] / np.sqrt(values[kept])).T @ (scale[:, None] * residual))


def _symmetric(matrix: Array) -> Array:
    return (matrix + matrix.T) / 2
