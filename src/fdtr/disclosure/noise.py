"""Noise of differential privacy, and what it costs. Experimental.

OpenDP converts (ε, δ) and draws the noise; its sampler is safe in floating point. (ε, δ) becomes ρ of zero-concentrated
differential privacy. The H steps spend ρ/H each, because a step may depend on what earlier steps released. A step of
sensitivity Δ that spends ρ/H gets noise σ = Δ √(H/2ρ). OpenDP draws from its own secure generator, so nobody, not even
the site, can draw the same noise again.

The cost compares the expected error of the shared effects with noise to that of the site alone. At K sites like this
one, of which the site knows its own sums exactly and the others' noised, θ⁰ solves

    (S + (K−1) S_P) θ⁰ = s + Σ s_P,    P = F Λ,  F = Λ (Λ + μI)⁻¹,  S_P = A P₀,  A = (I, −P01 P11⁺)

To first order in the noise E on Λ and e on b the error of a noised equation, s_P − S_P θ⁰, is A F (Φᵀε + e − E θ), with

    Cov(Φᵀε) = σ_y² Λ,   Cov(e) = σ² (H−h)² I,   Cov(Eθ) = σ²/2 (‖θ‖² I + θθᵀ).

Errors are compared as tr(S Cov(θ⁰)), their effect on predictions for the site's own patients. Alone that is
σ_y² rank S.
"""

import math
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.noised import SENSITIVITY, discount
from fdtr.algebra.schur import eliminate, project, whiten
from fdtr.errors import MissingExtra
from fdtr.learners.accumulate import StepStatistics
from fdtr.learners.backward import Fit
from fdtr.learners.private_fit import NOISE_RATIO, Noise

Array = NDArray[np.float64]

WIDENED = SENSITIVITY * (1 + 1e-6)
"""Sensitivity with a margin for rounding in features and in sums over patients, both below 1e-8."""

LITTLE = 0.05
"""Errors whose ratio differs from 1 by less than this count as equal."""


def gaussian_noise(epsilon: float, delta: float, horizon: int) -> Noise:
    """Noise for each of `horizon` steps that together are (ε, δ)-differentially private for one patient."""
    scale = noise_scale(epsilon, delta, horizon)
    measure = _gaussian(_opendp(), scale)
    return Noise(scale, lambda sums: np.array(measure(sums.tolist())))


@cache
def noise_scale(epsilon: float, delta: float, horizon: int) -> float:
    """σ of one step: all H steps together spend as much as one Gaussian of σ/√H."""
    dp = _opendp()

    def spend(scale: float) -> Any:
        return dp.c.make_fix_delta(dp.c.make_zCDP_to_approxDP(_gaussian(dp, scale)), delta)

    whole = dp.binary_search_param(spend, d_in=WIDENED, d_out=(epsilon, delta), T=float)
    return float(whole) * math.sqrt(horizon) * (1 + 1e-9)


def _gaussian(dp: ModuleType, scale: float) -> Any:
    return dp.m.make_gaussian(dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.l2_distance(T=float), scale)


def _opendp() -> ModuleType:
    try:
        import opendp.prelude as dp
    except ModuleNotFoundError:
        raise MissingExtra(
            "The study asks for differential privacy (epsilon), whose noise OpenDP makes. Nothing was written. Install "
            "it: pip install 'fdtr[privacy]'"
        ) from None
    dp.enable_features("contrib")
    module: ModuleType = dp
    return module


@dataclass(frozen=True)
class Cost:
    """What noise of standard deviation `scale` costs at `n_sites` like this one.

    `ratio` is the expected squared error of the shared effects with noise over that of the site alone, None if nothing
    is shared. It comes from exact sums, so it must not leave the site.
    """

    epsilon: float
    delta: float
    scale: float
    n_sites: int
    ratio: float | None

    @property
    def verdict(self) -> str:
        """Whether federating is worth it."""
        if self.ratio is None:
            return "nothing is shared: not worth federating"
        if self.ratio > 1 + LITTLE:
            return "less precise than this site alone: not worth federating"
        return "federating helps" if self.ratio < 1 - LITTLE else "federating breaks even: next to nothing is gained"

    @property
    def sentences(self) -> tuple[str, str]:
        """Two sentences: the noise, and its cost."""
        noise = (
            f"Differential privacy (experimental): ε = {self.epsilon:g}, δ = {self.delta:g} for one patient's whole "
            f"trajectory in this message. Noise of standard deviation {self.scale:.3g} on each step's sums, which one "
            "patient moves by at most 2."
        )
        if self.ratio is None:
            return noise, f"At {self.n_sites} sites like this one {self.verdict}."
        return noise, (
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
    noised = discount(sums.gram, variance * sums.gram + noise, NOISE_RATIO * scale**2)  # its moments: F (…)
    weight = discount(sums.gram, noised.moments.T, NOISE_RATIO * scale**2).moments  # F (…) Fᵀ
    own = whiten(noised.gram[n_shared:, n_shared:]).matrix
    removing = np.hstack([np.eye(n_shared), -(noised.gram[:n_shared, n_shared:] @ own) @ own.T])
    others = n_sites - 1
    inverse = np.linalg.pinv(known.schur + others * (removing @ noised.gram)[:, :n_shared], rcond=1e-12, hermitian=True)
    spread = inverse @ (variance * known.schur + others * removing @ weight @ removing.T) @ inverse
    return variance * known.rank, float(np.trace(known.schur @ spread))
