"""Noise for differential privacy, by OpenDP: its conversion of (ε, δ), and its sampler, safe in floating point.

Experimental. (ε, δ) becomes ρ of zero-concentrated differential privacy; H steps, each of which may depend on what
those before it released, spend ρ/H each; a step of sensitivity Δ that spends ρ/H has noise σ = Δ √(H/2ρ). OpenDP draws
from its own secure generator, so that nobody, the site included, can draw the same noise again.
"""

import math
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.noised import SENSITIVITY
from fdtr.errors import MissingExtra
from fdtr.learners.private_fit import Noise

Array = NDArray[np.float64]

WIDENED = SENSITIVITY * (1 + 1e-6)
"""With room for rounding in features and in sums over patients, both below 1e-8."""


def gaussian_noise(epsilon: float, delta: float, horizon: int) -> Noise:
    """Noise for each of `horizon` steps that together are (ε, δ)-differentially private for one patient."""
    scale = noise_scale(epsilon, delta, horizon)
    measure = _gaussian(_opendp(), scale)
    return Noise(scale, lambda sums: np.array(measure(sums.tolist())))


@cache
def noise_scale(epsilon: float, delta: float, horizon: int) -> float:
    """σ of one step: all steps together spend what one Gaussian of σ/√H would."""
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
