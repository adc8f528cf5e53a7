"""What noise costs: the expected error of the shared effects with it, against that of the site alone. Experimental.

At K sites like this one, of which it knows its own sums exactly and the others' noised, θ⁰ solves

    (S + (K−1) S_P) θ⁰ = s + Σ s_P,    P = F Λ,  F = Λ (Λ + μI)⁻¹,  S_P = A P₀,  A = (I, −P01 P11⁺)

To first order in the noise E on Λ and e on b the error of a noised equation, s_P − S_P θ⁰, is A F (Φᵀε + e − E θ), with

    Cov(Φᵀε) = σ_y² Λ,   Cov(e) = σ² (H−h)² I,   Cov(Eθ) = σ²/2 (‖θ‖² I + θθᵀ).

Errors are compared as tr(S Cov(θ⁰)), what they do to predictions at the site's own patients; alone that is σ_y² rank S.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.noised import discount
from fdtr.algebra.schur import eliminate, project, whiten
from fdtr.learners.accumulate import StepStatistics
from fdtr.learners.backward import Fit
from fdtr.learners.private_fit import NOISE_RATIO

Array = NDArray[np.float64]

LITTLE = 0.05
"""Errors that differ by less count as equal."""


@dataclass(frozen=True)
class Cost:
    """What noise of standard deviation `scale` leaves of the shared effects at `n_sites` like this one.

    `ratio` is their expected squared error with it over that of the site alone, None where nothing is shared. For the
    site's own eyes: it comes from exact sums.
    """

    epsilon: float
    delta: float
    scale: float
    n_sites: int
    ratio: float | None

    @property
    def verdict(self) -> str:
        """Whether it is worth it."""
        if self.ratio is None:
            return "nothing is shared: not worth federating"
        if self.ratio > 1 + LITTLE:
            return "less precise than this site alone: not worth federating"
        return "federating helps" if self.ratio < 1 - LITTLE else "federating breaks even: next to nothing is gained"

    @property
    def sentences(self) -> tuple[str, str]:
        """What is done, and what it costs."""
        done = (
            f"Differential privacy (experimental): ε = {self.epsilon:g}, δ = {self.delta:g} for one patient's whole "
            f"trajectory in this message. Noise of standard deviation {self.scale:.3g} on each step's sums, which one "
            "patient moves by at most 2."
        )
        if self.ratio is None:
            return done, f"At {self.n_sites} sites like this one {self.verdict}."
        return done, (
            f"At {self.n_sites} sites like this one the shared effects have {self.ratio:.2f} times the squared error "
            f"of this site alone ({1 / self.n_sites:.2f} times without noise): {self.verdict}."
        )


def expected_ratio(fit: Fit, n_shared: int, scale: float, n_sites: int) -> float | None:
    """The `ratio` of a `Cost`, over all steps. `fit` is the site's exact local fit, `n_shared` d0, `scale` σ."""
    horizon = len(fit.statistics)
    steps = [
        _step_errors(sums, theta, n_shared, scale, horizon - h, n_sites)
        for h, (sums, theta) in enumerate(zip(fit.statistics, fit.theta, strict=True))
    ]
    alone = sum(step[0] for step in steps)
    return float(sum(step[1] for step in steps) / alone) if alone > 0 else None


def _step_errors(
    sums: StepStatistics, theta: Array, n_shared: int, scale: float, span: int, n_sites: int
) -> tuple[float, float]:
    """tr(S Cov(θ⁰)) of one step: alone, and with the noised sums of K − 1 sites like it."""
    none = np.zeros((len(theta), 0))
    schur = eliminate(sums.gram, none, n_shared).schur
    known = project(schur, none[:n_shared], sums.gram[:n_shared, :n_shared])
    spare = sums.n - whiten(sums.gram).rank
    if known.rank == 0 or spare <= 0:
        return 0.0, 0.0
    residual = sums.target_square - 2 * theta @ sums.moment + theta @ sums.gram @ theta
    variance = max(float(residual), 0.0) / spare
    square = theta @ theta
    noise = scale**2 * ((span**2 + square / 2) * np.eye(len(theta)) + np.outer(theta, theta) / 2)
    told = discount(sums.gram, variance * sums.gram + noise, NOISE_RATIO * scale**2)  # its moments: F (…)
    weight = discount(sums.gram, told.moments.T, NOISE_RATIO * scale**2).moments  # F (…) Fᵀ
    own = whiten(told.gram[n_shared:, n_shared:]).matrix
    removing = np.hstack([np.eye(n_shared), -(told.gram[:n_shared, n_shared:] @ own) @ own.T])
    others = n_sites - 1
    inverse = np.linalg.pinv(known.schur + others * (removing @ told.gram)[:, :n_shared], rcond=1e-12, hermitian=True)
    spread = inverse @ (variance * known.schur + others * removing @ weight @ removing.T) @ inverse
    return variance * known.rank, float(np.trace(known.schur @ spread))
