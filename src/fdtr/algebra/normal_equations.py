"""The normal equations ΦᵀΦθ = Φᵀy: assemble their sums, and solve them with a ridge, without one, or many at a time.

*Assembling.* Every feature map of the paper has the form φ(x, a) = B_a ψ(x) with a constant matrix B_a (for
φ = p(a) ⊗ ψ(x) it is B_a = p(a) ⊗ I), so that

    ΦᵀΦ = Σ_a B_a (Ψ_aᵀ Ψ_a) B_aᵀ,    Φᵀy = Σ_a B_a (Ψ_aᵀ y_a),

where Ψ_a holds the rows with action a. The pass over the patients only ever sees ψ, which has m columns instead of d,
and the (n, d) matrix Φ is never built.

*Solving.* By Cholesky with a ridge (`factor`, `solve`); by the shortest solution without one (`minimum_norm`); by a
generalised inverse of each of several information matrices (`invert`).
"""

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_solve, cholesky, eigh, qr, solve_triangular
from scipy.linalg.lapack import dpotri

from fdtr.algebra.namespaces import Runs, add_gram, is_numpy, namespace_of, zeros
from fdtr.algebra.schur import RANK_TOLERANCE, column_scale
from fdtr.errors import SingularSystem

Array = NDArray[np.float64]


def grams_by_action(rows: Array, actions: NDArray[np.intp] | Runs, counts: NDArray[np.intp]) -> Array:
    """Sums of outer products of the columns of `rows`, one (q, q) matrix for each action: Z_a Z_aᵀ.

    `rows` is (q, n), one column a patient: ψ(x), and below it what is multiplied with ψ. `actions` (n,) holds
    positions 0 … A − 1, and `counts` (A,) how often each occurs.

    >>> grams_by_action(np.array([[1.0, 2.0, 3.0]]), np.array([0, 1, 0]), counts=np.array([2, 1, 0])).ravel()
    array([10.,  4.,  0.])
    """
    xp, grams = namespace_of(rows), zeros((len(counts), *rows.shape[:1] * 2), rows)
    if isinstance(actions, Runs):
        for action, start, stop in actions.runs:
            add_gram(rows[:, start:stop], to=grams[action, :, :])
        return grams
    # One stable (radix) sort puts each action's patients side by side: cheaper than a masked copy per action.
    narrow = xp.astype(actions, xp.uint8) if len(counts) <= 256 else actions
    grouped = xp.take(rows, xp.argsort(narrow, stable=True), axis=1)
    start = 0
    for action, count in enumerate(counts.tolist()):
        block = grouped[:, start : start + count]
        if is_numpy(rows):
            np.dot(block, block.T, out=grams[action])  # `dot`, unlike `@`, lets other threads run meanwhile
        else:
            add_gram(block, to=grams[action, :, :])
        start += count
    return grams


def assemble_gram(embeddings: Array, grams: Array) -> Array:
    """ΦᵀΦ = Σ_a B_a G_a B_aᵀ, (d, d), exactly symmetric.

    `embeddings` (A, d, m) stacks B_a; `grams` (A, m, m) stacks G_a = Ψ_aᵀΨ_a.
    """
    total = np.zeros((embeddings.shape[1],) * 2)
    for embedding, gram in zip(embeddings, grams, strict=True):
        total += embedding @ gram @ embedding.T
    return (total + total.T) / 2


def assemble_moment(embeddings: Array, moments: Array) -> Array:
    """Φᵀy = Σ_a B_a b_a, (d,). `embeddings` (A, d, m) stacks B_a; `moments` (A, m) stacks b_a = Ψ_aᵀy_a."""
    moment: Array = np.einsum("adm,am->d", embeddings, moments)
    return moment


def features_of(embeddings: Array, psi: Array, actions: NDArray[np.intp]) -> Array:
    """φ(x, a), (d, n), for ψ(x) (m, n) and the positions of actions (n,). `embeddings` (A, d, m) stacks B_a."""
    terms, functions = _terms(embeddings)
    return np.asarray(terms.T[:, actions] * psi[functions])


def mixed_features(embeddings: Array, psi: Array, weights: Array) -> Array:
    """Σ_a w_a(x) φ(x, a), (d, n), for ψ(x) (m, n) and `weights` (A, n). `embeddings` (A, d, m) stacks B_a.

    >>> mixed_features(np.array([[[1.0], [0.0]], [[1.0], [2.0]]]), np.array([[3.0]]), np.array([[0.5], [0.5]]))
    array([[3.],
           [3.]])
    """
    terms, functions = _terms(embeddings)
    return np.asarray((terms.T @ weights) * psi[functions])


def _terms(embeddings: Array) -> tuple[Array, NDArray[np.intp]]:
    """Each feature is one function of ψ times a number that depends on the action: these (A, d), and which it is (d,).

    So B_a has at most one number in a row, and n features cost A multiplications each instead of A m.
    """
    used = (embeddings != 0).any(axis=0)
    if (used.sum(axis=1) > 1).any():
        raise ValueError("A feature is a function of the state times one of the action.")
    functions = np.argmax(used, axis=1)
    return embeddings[:, np.arange(len(functions)), functions], functions


def factor(precision: Array) -> Array:
    """Lower triangular L with Σ = L Lᵀ. `precision` is Σ, symmetric and positive definite."""
    try:
        return cast(Array, cholesky(precision, lower=True))
    except LinAlgError:
        raise _singular() from None


def factor_each(precisions: Array) -> Array:
    """`factor` of several matrices at once, (B, d, d)."""
    try:
        return np.asarray(np.linalg.cholesky(precisions), np.float64)
    except np.linalg.LinAlgError:
        raise _singular() from None


def _singular() -> SingularSystem:
    return SingularSystem(
        "The regression at one step is singular to working precision: the ridge is too small for these data. "
        "Nothing was written. Raise `ridge` under [learning] in the study file (1.0 is the paper's value)."
    )


def solve(lower: Array, moment: Array) -> Array:
    """θ = Σ⁻¹ b. `lower` is L with Σ = L Lᵀ, `moment` is b.

    >>> solve(np.array([[2.0]]), np.array([8.0]))
    array([2.])
    """
    return cast(Array, cho_solve((lower, True), moment))


def half_solve(lower: Array, matrix: Array) -> Array:
    """L⁻¹ M, so that Mᵀ Σ⁻¹ M is its square. `lower` is L, `matrix` is M."""
    return cast(Array, solve_triangular(lower, matrix, lower=True))


def trace_of_quotient(lower: Array, matrix: Array) -> float:
    """tr(Σ⁻¹M). `lower` is L with Σ = L Lᵀ, `matrix` is M, symmetric.

    >>> trace_of_quotient(2 * np.eye(3), np.eye(3))
    0.75
    """
    inverse, _ = dpotri(lower, lower=1)  # its lower half
    both = np.tril(inverse) * matrix
    return float(2 * both.sum() - np.trace(both))


def minimum_norm(gram: Array, moment: Array) -> Array:
    """The shortest θ that minimises ‖y − Φθ‖², from ΦᵀΦ and Φᵀy: ordinary least squares.

    The rank is judged on the Gram scaled to unit diagonal (`RANK_TOLERANCE`), so a column in small units is not taken
    for an empty one. The length of θ is measured unscaled.

    `gram` (d, d) is ΦᵀΦ, `moment` (d,) is Φᵀy.

    >>> minimum_norm(np.full((2, 2), 4.0), np.full(2, 8.0))
    array([1., 1.])
    """
    if not len(gram):
        return np.zeros(0)
    scale = column_scale(gram)
    values, vectors = eigh(gram * np.outer(scale, scale))
    nonzero = values > RANK_TOLERANCE * max(values[-1], np.finfo(float).tiny)
    used = vectors[:, nonzero]
    theta: Array = scale * (used @ ((used.T @ (scale * moment)) / values[nonzero]))
    if nonzero.all():
        return theta
    null_space, _ = qr(scale[:, None] * vectors[:, ~nonzero], mode="economic")
    return cast(Array, theta - null_space @ (null_space.T @ theta))


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

    As everywhere, an eigenvalue of the scaled matrix below `RANK_TOLERANCE` of the largest counts as zero. The
    identified coefficients, their variances and vᵀW⁺v do not depend on the choice of a generalised inverse.

    `information` (H, d, d) stacks W.

    >>> inverse = invert(np.array([[[4.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0]]]))
    >>> inverse.rank, inverse.identified
    (array([2]), array([[ True, False, False]]))
    """
    diagonal = np.diagonal(information, axis1=-2, axis2=-1)
    scale = 1.0 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    values, vectors = np.linalg.eigh(information * scale[:, :, None] * scale[:, None, :])
    largest = values.max(axis=1, initial=np.finfo(float).tiny, keepdims=True)
    nonzero = values > RANK_TOLERANCE * largest
    half = (
        scale[:, :, None] * vectors * np.where(nonzero, 1.0 / np.sqrt(np.where(nonzero, values, 1.0)), 0.0)[:, None, :]
    )
    # With a gap of RANK_TOLERANCE in the eigenvalues, rounding rotates a null vector by less than its root.
    undetermined = np.einsum("hij,hj->hi", vectors**2, ~nonzero)
    return Inverse(half @ half.transpose(0, 2, 1), nonzero.sum(axis=1), undetermined < RANK_TOLERANCE)
