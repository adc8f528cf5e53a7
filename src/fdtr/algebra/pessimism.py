"""The penalty Γ, the paper's (12) and (13), and the lower bound φᵀθ − Γ by which a policy acts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, cast

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.namespaces import dot, empty, is_numpy, like, namespace_of, write, write_largest, zeros
from fdtr.algebra.normal_equations import half_solve

SMALLEST_VARIANCE = 0.001
"""Smallest σ̂² of an outcome on the mapped scale."""

Array = NDArray[np.float64]


def log_term(n_features: int, horizon: int, n: float, failure_probability: float) -> float:
    """ζ = log(2 d H N / ξ), the paper's (13).

    `n_features` is d, `n` is N (n_k for a local fit), `failure_probability` is ξ.

    >>> log_term(n_features=20, horizon=5, n=100, failure_probability=0.99) == math.log(2 * 20 * 5 * 100 / 0.99)
    True
    """
    return math.log(2 * n_features * horizon * n / failure_probability)


def penalty_scale(pessimism: float, n_features: int, horizon: int, zeta: float) -> float:
    """α = c d H √ζ, the paper's (13). `pessimism` is c, `zeta` comes from `log_term`.

    >>> penalty_scale(0.005, n_features=20, horizon=5, zeta=4.0)
    1.0
    """
    return pessimism * n_features * horizon * math.sqrt(zeta)


@dataclass(frozen=True)
class NoiseUnits:
    """Pessimism in units of the outcome's noise: α_h = κ d σ̂_h, in place of c d H √ζ. `noise` is κ.

    σ̂_h is the residual standard deviation of step h at the site, `noise_level`. α then has the units of a standard
    error: it neither grows with the horizon, nor with the logarithm of the number of patients.
    """

    noise: float

    def penalty_scale(self, n_features: int, noise_level: float) -> float:
        """α = κ d σ̂.

        >>> NoiseUnits(0.03).penalty_scale(n_features=20, noise_level=0.5)
        0.3
        """
        return self.noise * n_features * noise_level


def noise_level(residual: float, n: int, degrees: float, spread: float, n_features: int, span: float) -> float:
    """σ̂ of one step: the standard deviation of Y about its regression.

        σ̂² = (YᵀY − 2θᵀb + θᵀΛθ) / max(n − tr(Σ⁻¹Λ), n/5),   at least 0.001

    `residual` is the numerator, `degrees` is tr(Σ⁻¹Λ), `spread` the variance of Y about its mean, `n_features` d. Where
    n < 2d a regression leaves almost no residual, and σ̂ is at least the standard deviation of Y itself. Fewer than two
    patients say nothing: σ̂ is then half of `span`, the largest possible Y.

    >>> noise_level(residual=20.0, n=100, degrees=20.0, spread=1.0, n_features=20, span=5.0)
    0.5
    """
    if n < 2:
        return span / 2
    variance = max(residual / max(n - degrees, n / 5), SMALLEST_VARIANCE)
    return math.sqrt(max(variance, spread) if n < 2 * n_features else variance)


@dataclass(frozen=True)
class Penalty:
    """Γ = `scale`·√(φᵀΣ⁻¹φ) + `offset`: the paper's (12) with `scale` α, and `offset` 0 unless η > 0."""

    scale: float
    offset: float = 0.0


def misspecified(alpha: float, misspecification: float, horizon: int, n: float) -> Penalty:
    """The widened penalty of Section 4.1: its scale is α + √N (H+1) η, its offset (H+1) η.

    `alpha` is α, `misspecification` is η, the largest error of the linear model, `n` is N.

    >>> misspecified(1.0, misspecification=0.1, horizon=4, n=100)
    Penalty(scale=6.0, offset=0.5)
    """
    offset = (horizon + 1) * misspecification
    return Penalty(alpha + math.sqrt(n) * offset, offset)


def penalty_roots(factor: Array, embeddings: Array) -> Array:
    """R_a with R_aᵀR_a = B_aᵀΣ⁻¹B_a, (A, m, m). `factor` is L with Σ = L Lᵀ; `embeddings` (A, d, m) stacks B_a."""
    n_actions, d, m = embeddings.shape
    halves = half_solve(factor, embeddings.transpose(1, 0, 2).reshape(d, -1)).reshape(d, n_actions, m)
    # The triangular factor of L⁻¹B_a itself: forming B_aᵀΣ⁻¹B_a first would square its condition.
    return cast(Array, np.linalg.qr(halves.transpose(1, 0, 2), mode="r"))


@dataclass(frozen=True, slots=True, repr=False)
class LowerBound:
    """φᵀθ − Γ of one step for every action, as functions of the state basis ψ.

    `coefficients` (A, m) stacks B_aᵀθ; `roots` (A, m, m) stacks α R_a with R_aᵀR_a = B_aᵀΣ⁻¹B_a, so that
    Γ = ‖α R_a ψ‖ + `offset` needs m columns instead of d (None: no penalty). Values are truncated to
    [`floor`, `cap`].
    """

    coefficients: Array
    roots: Array | None
    offset: float
    floor: float
    cap: float

    @classmethod
    def of_penalised(cls, theta: Array, roots: Array, embeddings: Array, penalty: Penalty, cap: float) -> Self:
        """From θ (d,), R_a (A, m, m) of `penalty_roots`, and the stacked B_a (A, d, m)."""
        return cls(theta @ embeddings, penalty.scale * roots, penalty.offset, 0.0, cap)

    @classmethod
    def of_plain(cls, theta: Array, embeddings: Array) -> Self:
        """No penalty and no truncation: the estimate itself, as Q-learning uses it."""
        return cls(theta @ embeddings, None, 0.0, -math.inf, math.inf)

    def estimates(self, psi: Array) -> Array:
        """φᵀθ for every action, (A, n). `psi` (m, n) holds ψ(x), a column for each state."""
        return dot(self.coefficients, psi)

    def penalties(self, psi: Array) -> Array:
        """Γ for every action, (A, n)."""
        n_actions = len(self.coefficients)
        if self.roots is None:
            return zeros((n_actions, psi.shape[1]), psi)
        if is_numpy(psi):
            widths, image = np.empty((n_actions, psi.shape[1])), np.empty_like(psi)
            for width, root in zip(widths, self.roots, strict=True):  # one action at a time stays in cache
                np.dot(root, psi, out=image)
                np.einsum("mn,mn->n", image, image, out=width)
            np.sqrt(widths, out=widths)
        else:
            xp = namespace_of(psi)  # all actions in one product: ψ is read once
            widths = xp.linalg.vector_norm(xp.matmul(like(self.roots, psi), psi), axis=1)
        if self.offset:
            widths += self.offset
        return widths

    def bounds(self, psi: Array) -> Array:
        """φᵀθ − Γ for every action, untruncated, (A, n)."""
        bounds = self.estimates(psi)
        if self.roots is not None:
            bounds -= self.penalties(psi)
        return bounds

    def values(self, psi: Array, out: Array | None = None) -> Array:
        """V(x) = max_a Q(x, a), truncated, (n,). Truncation is monotone, so the maximum may come first."""
        best = empty(psi.shape[1:], psi) if out is None else out
        write_largest(self.bounds(psi), out=best)
        if self.floor > -math.inf or self.cap < math.inf:
            write(namespace_of(psi).clip, best, self.floor, self.cap, out=best)
        return best


def argmax_first(bounds: Array, order: Sequence[int] | NDArray[np.intp]) -> NDArray[np.intp]:
    """Row with the largest value in every column; among equals the one that comes first in `order`.

    >>> argmax_first(np.array([[1.0, 2.0], [1.0, 3.0]]), [1, 0])
    array([1, 1])
    """
    best = bounds[order[0]].copy()
    choice = np.full(bounds.shape[1], order[0], dtype=np.intp)
    for row in order[1:]:
        better = bounds[row] > best
        np.copyto(best, bounds[row], where=better)
        choice[better] = row
    return choice
