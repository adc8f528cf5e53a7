"""Grams and moments of the state basis, one per action, and their assembly into those of φ.

Every feature map of the paper has the form φ(x, a) = B_a ψ(x) with a constant matrix B_a (for φ = p(a) ⊗ ψ(x)
it is B_a = p(a) ⊗ I), so that

    ΦᵀΦ = Σ_a B_a (Ψ_aᵀ Ψ_a) B_aᵀ,    Φᵀy = Σ_a B_a (Ψ_aᵀ y_a),

where Ψ_a holds the rows with action a. The pass over the patients only ever sees ψ, which has m columns
instead of d, and the (n, d) matrix Φ is never built.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def grams_by_action(rows: Array, actions: NDArray[np.intp], counts: NDArray[np.intp]) -> Array:
    """Sums of outer products of the columns of `rows`, one (q, q) matrix for each action: Z_a Z_aᵀ.

    `rows` is (q, n), a column for each patient: ψ(x), and below it whatever else is to be multiplied with ψ;
    `actions` (n,) holds positions 0 … A − 1, and `counts` (A,) how often each occurs.

    >>> grams_by_action(np.array([[1.0, 2.0, 3.0]]), np.array([0, 1, 0]), counts=np.array([2, 1, 0])).ravel()
    array([10.,  4.,  0.])
    """
    n_actions = len(counts)
    # One stable (radix) sort puts each action's patients side by side: cheaper than a masked copy per action.
    narrow = actions.astype(np.uint8) if n_actions <= 256 else actions
    grouped = np.take(rows, np.argsort(narrow, kind="stable"), axis=1)
    grams = np.empty((n_actions, rows.shape[0], rows.shape[0]))
    start = 0
    for action, count in enumerate(counts):
        block = grouped[:, start : start + count]
        np.dot(block, block.T, out=grams[action])  # `dot`, unlike `@`, lets other threads run meanwhile
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
