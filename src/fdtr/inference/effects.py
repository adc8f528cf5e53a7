"""The shared effects on the reward, from the total of all sites' sums: estimates, errors, bands, p-values.

    θ̂⁰ = W⁺v,   Cov θ̂⁰ = W⁺,   W = Σ_j S_j/σ̂_j²,   v = Σ_j s_{r,j}/σ̂_j²

This is generalised least squares of the rewards on φ0 and, at each site, its own φ1, with each site's own residual
variance. It looks at rewards alone, so that it holds whether or not transitions are linear; it asks for a linear mean
reward (2), for noise of one size within a site and step, and for sites large beside d (σ̂² counts as known).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from fdtr.inference.inverse import invert
from fdtr.inference.multiplicity import LEVEL, holm, sidak
from fdtr.summary import Sums

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Band:
    """Intervals from `low` to `high`, (H, d0) each; NaN where a coefficient is not identified."""

    low: Array
    high: Array

    def covers(self, truth: Array) -> NDArray[np.bool_]:
        """Whether each interval holds the truth, (H, d0)."""
        return np.asarray((self.low <= truth) & (truth <= self.high))


@dataclass(frozen=True, eq=False)
class SharedEffects:
    """θ̂⁰ of every step, on scaled features and mapped rewards unless `in_units` changed them.

    `estimates` (H, d0); `covariance` (H, d0, d0); `identified` (H, d0). A coefficient that no combination of sites
    tells from their own effects is NaN, as are its variance and covariances. Steps are independent: the noise of each
    step's rewards is its own, given the states and actions.
    """

    estimates: Array
    covariance: Array
    identified: NDArray[np.bool_]

    @cached_property
    def standard_errors(self) -> Array:
        """Roots of the variances, (H, d0)."""
        return np.sqrt(np.diagonal(self.covariance, axis1=1, axis2=2))

    @cached_property
    def p_values(self) -> Array:
        """Two-sided, of θ⁰ = 0 for each step and coefficient by itself, (H, d0)."""
        return np.asarray(2.0 * ndtr(-np.abs(self.estimates) / self.standard_errors))

    @cached_property
    def adjusted_p_values(self) -> Array:
        """The same by Holm's method over all steps and coefficients that are identified, (H, d0)."""
        return holm(self.p_values)

    def intervals(self, level: float = LEVEL) -> Band:
        """Each interval holds its coefficient with probability `level`, taken by itself."""
        return self._band(sidak(1, level))

    def bands(self, level: float = LEVEL) -> Band:
        """For one coefficient, all its steps hold together with probability `level`.

        Steps are independent, so that Šidák's multiplier for the steps at which it is identified is exact; if rewards
        of a patient are correlated over steps after all, the band is wider than needed, never narrower.
        """
        return self._band(sidak(self.identified.sum(axis=0), level))

    def joint_bands(self, level: float = LEVEL) -> Band:
        """All coefficients at all steps hold together with probability at least `level`.

        Šidák's multiplier again: coefficients of one step are correlated, for which it is conservative. The exact
        quantile would have to be simulated for each total, to gain a few per cent of the width.
        """
        return self._band(sidak(self.identified.sum(), level))

    def in_units(self, factors: Array) -> "SharedEffects":
        """Every coefficient times its factor, (d0,): `units.raw_factors` gives those of raw units."""
        return SharedEffects(self.estimates * factors, self.covariance * np.outer(factors, factors), self.identified)

    def _band(self, multiplier: Array) -> Band:
        half = multiplier * self.standard_errors
        return Band(self.estimates - half, self.estimates + half)


def infer_effects(sums: Sums) -> SharedEffects:
    """θ̂⁰ and its covariance from the total of all sites' sums, or from those of one site alone."""
    inverse = invert(sums.information)
    known = inverse.identified
    return SharedEffects(
        estimates=np.where(known, inverse.solve(sums.information_moment), np.nan),
        covariance=np.where(known[:, :, None] & known[:, None, :], inverse.matrix, np.nan),
        identified=known,
    )
