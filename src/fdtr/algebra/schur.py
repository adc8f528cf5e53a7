"""Schur complements: remove a site's own effects from its sums, and judge ranks.

With ΦᵀΦ in blocks 00, 01, 10, 11 (shared, site-specific) and Φᵀy = (b0, b1),

    S = Λ00 − Λ01 Λ11⁺ Λ10 = Φ0ᵀ (I − P) Φ0,    s = b0 − Λ01 Λ11⁺ b1 = Φ0ᵀ (I − P) y,

where P projects on the columns of Φ1. S and s hold a site's information on the shared effects when its own effects
are free. The upper left block of the paper's (11) is the sum of the other sites' S, and the solution (10) of one site
depends on the others only through their S and s.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

Array = NDArray[np.float64]

RANK_TOLERANCE = 1e-10
"""An eigenvalue of a Gram scaled to unit diagonal below this share (of the largest one) counts as zero.

Grams square the condition of a design, so two columns count as collinear when they differ by less than about 1e-5 of
their length. Rounding in sums over 10⁶ rows stays below 1e-13.
"""

_FAR_ABOVE = 100.0
"""A smallest eigenvalue that is so many times the tolerance need not be found."""

_FEW = 8
"""Matrices of which one has no Cholesky factor, and that are not divided further to find it."""

_TOLD, _SAME_SPAN = 1e-8, 1e-6
"""What is to be eliminated is a rounding error below these shares of a unit diagonal, and of a span's largest part."""


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
    """Factor a generalised inverse of a Gram, without the directions below `RANK_TOLERANCE`.

    Λ01 Λ11ᵍ Λ10 does not depend on the choice of a generalised inverse.

    >>> whiten(np.array([[4.0, 4.0], [4.0, 4.0]])).rank
    1
    """
    if gram.shape[0] == 0:
        return Whitener(np.zeros((0, 0)), 0)
    scale = column_scale(gram)
    values, vectors = eigh(gram * np.outer(scale, scale))
    nonzero = values > RANK_TOLERANCE * max(values[-1], np.finfo(float).tiny)
    return Whitener(scale[:, None] * (vectors[:, nonzero] / np.sqrt(values[nonzero])), int(nonzero.sum()))


def eliminate(gram: Array, moments: Array, n_shared: int) -> Eliminated:
    """S and s above: project the last columns of Φ (the site's own) out of its Gram and moments.

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


def as_own(gram: Array, directions: Array) -> Array:
    """E (d, d + k) that appends the columns Φ0 V to a site's own: φ becomes Eᵀφ, ΦᵀΦ becomes EᵀΦᵀΦE.

    Eliminating these columns takes the directions V out of the shared features, as if their effects were the site's
    own. `gram` (d, d) is ΦᵀΦ, `directions` (d0, k) is V.

    >>> as_own(np.eye(3), np.array([[1.0], [-1.0]]))
    array([[ 1.,  0.,  0.,  1.],
           [ 0.,  1.,  0., -1.],
           [ 0.,  0.,  1.,  0.]])
    """
    appended = np.zeros((len(gram), directions.shape[1]))
    appended[: len(directions)] = directions
    return np.hstack([np.eye(len(gram)), present(appended, gram)])


def without_directions(schur: Array, moments: Array, directions: Array) -> Projected:
    """S − SV(VᵀSV)⁺VᵀS and s − SV(VᵀSV)⁺Vᵀs: S and s without the directions V, as if their effects were the site's own.

    S need not tell of all of V. Scaled to a unit diagonal, what it tells of the span of V has eigenvalues of VᵀSV far
    above rounding errors; others are left alone, because eliminating an error removes an arbitrary direction.

    `schur` (d0, d0) is S, `moments` (d0, k) holds s, `directions` (d0, v) is V.

    >>> without_directions(np.diag([2.0, 3.0]), np.array([[1.0], [1.0]]), np.array([[1.0], [0.0]])).schur
    array([[0., 0.],
           [0., 3.]])
    """
    diagonal = np.diagonal(schur)
    known = diagonal > 0
    if not known.any():
        return project(schur, moments, schur)
    lengths = np.sqrt(np.where(known, diagonal, np.median(diagonal[known])))
    scaled, wanted = schur / np.outer(lengths, lengths), directions * lengths[:, None]
    sizes = np.linalg.norm(wanted, axis=0)
    basis, spread, _ = np.linalg.svd(wanted[:, sizes > 0] / sizes[sizes > 0], full_matrices=False)
    basis = basis[:, spread > _SAME_SPAN * spread.max(initial=0.0)]
    values, vectors = eigh(basis.T @ scaled @ basis) if basis.shape[1] else (np.zeros(0), np.zeros((0, 0)))
    outward = basis @ vectors[:, values > _TOLD]
    cross, inverse = scaled @ outward, 1.0 / values[values > _TOLD]
    rest = scaled - (cross * inverse) @ cross.T
    left = moments / lengths[:, None] - (cross * inverse) @ (outward.T @ (moments / lengths[:, None]))
    return project(_symmetric(rest * np.outer(lengths, lengths)), left * lengths[:, None], schur)


def present(directions: Array, gram: Array) -> Array:
    """The columns of `directions` (d, k) in which a Gram (d, d) has more than rounding errors.

    Scaled to a unit diagonal, rounding errors would look like a column.
    """
    lengths = np.einsum("dk,dk->k", directions, gram @ directions)
    return directions[:, lengths > RANK_TOLERANCE * (directions**2).T @ np.abs(np.diagonal(gram))]


def rank_beside(schur: Array, reference: Array) -> int:
    """Rank of S, judged beside Λ00 as in `project`. `schur` is S, `reference` is Λ00."""
    return project(schur, np.zeros((len(schur), 0)), reference).rank


def project(schur: Array, moments: Array, reference: Array) -> Projected:
    """Restrict S and s to the directions in which S is more than rounding error beside Λ00.

    Eigenvalues of D S D with D = diag(Λ00)^-½ below `RANK_TOLERANCE` count as zero. Otherwise a shared feature in the
    span of the site's own features would leave rounding errors of full rank; here it leaves exact zeros.

    `schur` (d0, d0) is S, `moments` (d0, k) holds s, `reference` (d0, d0) is Λ00.

    >>> project(np.array([[1e-14]]), np.array([[1e-15]]), np.array([[1.0]])).schur
    array([[0.]])
    """
    if schur.shape[0] == 0:
        return Projected(schur, moments, np.zeros(moments.shape[1]), 0)
    scale = column_scale(reference)
    values, vectors = eigh(schur * np.outer(scale, scale))
    nonzero = values >= RANK_TOLERANCE
    if nonzero.all():
        basis = (vectors / np.sqrt(values)).T @ (scale[:, None] * moments)
        return Projected(schur, moments, np.einsum("rk,rk->k", basis, basis), len(values))
    directions = vectors[:, nonzero]
    # A feature in no kept direction has only rounding errors left; scaled by itself it would look like information.
    directions[np.sum(directions**2, axis=1) < RANK_TOLERANCE] = 0.0
    outward = directions / scale[:, None]  # D⁻¹ U: back to the features' own units
    coordinates = directions.T @ (scale[:, None] * moments)
    return Projected(
        schur=_symmetric((outward * values[nonzero]) @ outward.T),
        moments=outward @ coordinates,
        explained=np.einsum("rk,rk->k", coordinates, coordinates / values[nonzero][:, None]),
        rank=int(nonzero.sum()),
    )


def significant(schur: Array, moments: Array, floor: float) -> Projected:
    """Restrict a total of rounded S and s to the directions in which S is at least `floor`.

    S is unchanged if that is all of them. As in `project`, a feature in no such direction leaves exact zeros.

    `schur` (d0, d0) is S, `moments` (d0, k) holds s.

    >>> significant(np.array([[1.0, 1.0], [1.0, 1.0 + 1e-12]]), np.array([[1.0], [1.0]]), floor=1e-11).rank
    1
    """
    if schur.shape[0] == 0:
        return Projected(schur, moments, np.zeros(moments.shape[1]), 0)
    values, vectors = eigh(schur)
    nonzero = values >= max(floor, len(values) * np.finfo(float).eps * values[-1])
    directions = vectors[:, nonzero]
    coordinates = directions.T @ moments
    explained = np.einsum("rk,rk->k", coordinates, coordinates / values[nonzero][:, None])
    if nonzero.all():
        return Projected(schur, moments, explained, len(values))
    directions[np.sum(directions**2, axis=1) < RANK_TOLERANCE] = 0.0
    return Projected(
        schur=_symmetric((directions * values[nonzero]) @ directions.T),
        moments=directions @ coordinates,
        explained=explained,
        rank=int(nonzero.sum()),
    )


def leverage_map(gram: Array, n_shared: int) -> Array:
    """L (r, d) with ‖Lφ‖² the leverage h of a row φ in the shared features after the site's own are projected out.

    h = φ̃ᵀ S⁺ φ̃,  φ̃ = φ0 − Λ01 Λ11⁺ φ1.  The leverages of all rows add up to r, the rank of S, judged as in `project`.
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
    nonzero = values >= RANK_TOLERANCE
    return np.asarray((vectors[:, nonzero] / np.sqrt(values[nonzero])).T @ (scale[:, None] * residual))


@dataclass(frozen=True)
class ManyProjected:
    """`Projected` of several sites: `schur` (B, d0, d0), `moments` (B, d0, k), `explained` (B, k), `rank` (B,)."""

    schur: Array
    moments: Array
    explained: Array
    rank: NDArray[np.intp]


def eliminate_each(grams: Array, moments: Array, n_shared: int) -> ManyProjected:
    """`eliminate` of several sites at once; `rank` is that of Φ1. `grams` (B, d, d), `moments` (B, d, k)."""
    own = grams[:, n_shared:, n_shared:]
    if not own.shape[1]:
        nothing = np.zeros((len(grams), moments.shape[2]))
        return ManyProjected(grams, moments, nothing, np.zeros(len(grams), np.intp))
    scale = _scale_each(own)
    values, vectors = np.linalg.eigh(own * scale[:, :, None] * scale[:, None, :])
    nonzero = values > RANK_TOLERANCE * np.maximum(values[:, -1:], np.finfo(float).tiny)
    roots = np.where(nonzero, 1.0 / np.sqrt(np.where(nonzero, values, 1.0)), 0.0)
    whitener = scale[:, :, None] * vectors * roots[:, None, :]
    outward = whitener.transpose(0, 2, 1)
    cross, targets = outward @ grams[:, n_shared:, :n_shared], outward @ moments[:, n_shared:]
    schur = grams[:, :n_shared, :n_shared] - cross.transpose(0, 2, 1) @ cross
    return ManyProjected(
        schur=(schur + schur.transpose(0, 2, 1)) / 2,
        moments=moments[:, :n_shared] - cross.transpose(0, 2, 1) @ targets,
        explained=np.sum(targets**2, axis=1),
        rank=nonzero.sum(axis=1),
    )


def project_each(schurs: Array, moments: Array, references: Array) -> ManyProjected:
    """`project` of several sites at once, (B, d0, d0), (B, d0, k) and (B, d0, d0).

    Where a Cholesky factor shows that every direction is known, eigenvalues are not looked for: most of the work.
    """
    n_sites, d, k = moments.shape
    scale = _scale_each(references)
    scaled = schurs * scale[:, :, None] * scale[:, None, :]
    result = ManyProjected(schurs.copy(), moments.copy(), np.zeros((n_sites, k)), np.full(n_sites, d))
    for part, lower in factored_parts(scaled, np.arange(n_sites)) if d else ():
        targets = scale[part, :, None] * moments[part]
        if lower is not None:
            both = np.linalg.solve(lower, np.concatenate([np.broadcast_to(np.eye(d), lower.shape), targets], axis=2))
            result.explained[part] = np.sum(both[:, :, d:] ** 2, axis=1)
            known = np.sum(both[:, :, :d] ** 2, axis=(1, 2)) * _FAR_ABOVE * RANK_TOLERANCE < 1  # ‖L⁻¹‖² ≥ 1/smallest
            if known.all():
                continue
            part, targets = part[~known], targets[~known]
        _project_by_eigenvalues(result, part, scaled[part], targets, scale[part])
    return result


def _project_by_eigenvalues(
    result: ManyProjected, part: NDArray[np.intp], scaled: Array, targets: Array, scale: Array
) -> None:
    """Fill in the sites `part` of `result`; `targets` are D s."""
    values, vectors = np.linalg.eigh(scaled)
    nonzero = values >= RANK_TOLERANCE
    less = np.asarray(~nonzero.all(axis=1))
    directions = vectors * nonzero[:, None, :]
    directions[less[:, None] & (np.sum(directions**2, axis=2) < RANK_TOLERANCE)] = 0.0
    coordinates = directions.transpose(0, 2, 1) @ targets
    result.explained[part] = np.sum(coordinates**2 / np.where(nonzero, values, 1.0)[:, :, None], axis=1)
    result.rank[part] = nonzero.sum(axis=1)
    outward = directions[less] / scale[less][:, :, None]
    schur = (outward * (values * nonzero)[less][:, None, :]) @ outward.transpose(0, 2, 1)
    result.schur[part[less]] = (schur + schur.transpose(0, 2, 1)) / 2
    result.moments[part[less]] = outward @ coordinates[less]


def factored_parts(matrices: Array, part: NDArray[np.intp]) -> Iterator[tuple[NDArray[np.intp], Array | None]]:
    """Which matrices have a Cholesky factor, with it; those of small parts in which one has none come with None.

    `matrices` (B, d, d) are symmetric, and `part` says which of them to look at.

    >>> some = np.array([np.eye(2), np.zeros((2, 2)), 4 * np.eye(2)])
    >>> [(part.tolist(), lower is not None) for part, lower in factored_parts(some, np.arange(3))]
    [([1], False), ([0, 2], True)]
    """
    if not len(part):
        return
    empty = np.diagonal(matrices[part], axis1=1, axis2=2).min(axis=1) < RANK_TOLERANCE
    if empty.any() and not empty.all():
        yield from factored_parts(matrices, part[empty])
        yield from factored_parts(matrices, part[~empty])
        return
    try:
        if empty.any():
            raise np.linalg.LinAlgError
        yield part, np.asarray(np.linalg.cholesky(matrices[part]), np.float64)
    except np.linalg.LinAlgError:
        if empty.all() or len(part) <= _FEW:
            yield part, None
        else:
            yield from factored_parts(matrices, part[: len(part) // 2])
            yield from factored_parts(matrices, part[len(part) // 2 :])


def _scale_each(grams: Array) -> Array:
    diagonal = np.diagonal(grams, axis1=1, axis2=2)
    return np.asarray(1.0 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0)))


def _symmetric(matrix: Array) -> Array:
    return (matrix + matrix.T) / 2
