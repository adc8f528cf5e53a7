"""The shared effects on the reward: estimates, bands, p-values, raw units, heterogeneity, gain from sharing, Theorem 3.

All come from the total of the sites' sums:

    θ̂⁰ = W⁺v,   Cov θ̂⁰ = W⁺,   W = Σ_j S_j/σ̂_j²,   v = Σ_j s_{r,j}/σ̂_j²

This is generalised least squares of the rewards on φ0 and, at each site, its own φ1, with each site's own residual
variance. It uses rewards alone, so it is valid whether or not transitions are linear. It assumes a linear mean reward
(2), noise of one variance within a site and step, and sites large beside d (σ̂² is taken as known).

*Heterogeneity* between sites is Cochran's Q of these effects:

    Q = Σ_j (θ̂_j − θ̂)ᵀ W_j (θ̂_j − θ̂) = Σu − vᵀW⁺v,   df = Σg − rank W,   I² = max(0, 1 − df/Q)

Q tests rewards. Transitions are tested elsewhere (`identification.transition_test`): a static shared covariate violates
(1) without changing Q.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtrc, chdtri, chndtr, ndtr, ndtri

from fdtr.algebra.normal_equations import invert
from fdtr.algebra.pessimism import NoiseUnits, log_term, penalty_scale
from fdtr.algebra.threads import on_one_blas_thread
from fdtr.features import FeatureMap
from fdtr.features.bases import Linear, Polynomial
from fdtr.sums import Sums

if TYPE_CHECKING:  # the hub reads these effects, and loads no fitting code
    from fdtr.learners.backward import Settings

Array = NDArray[np.float64]

LEVEL = 0.95

SMALL_P = 0.05
"""Tables mark p-values below this. Among many tests, several small ones are expected by chance."""


def sidak(statements: ArrayLike, level: float = LEVEL) -> Array:
    """Half-width z, in standard errors, of m intervals that hold together: (2Φ(z) − 1)^m = `level`.

    Exact for independent normal estimates; by Šidák's inequality (1967) at least `level` for normal estimates with any
    correlation. One statement gives the usual interval, none gives NaN.

    >>> sidak([1, 5]).round(3)
    array([1.96 , 2.569])
    """
    m = np.asarray(statements, dtype=np.float64)
    each = level ** (1.0 / np.where(m > 0, m, np.nan))
    return np.asarray(ndtri((1.0 + each) / 2.0), dtype=np.float64)


def holm(p_values: ArrayLike) -> Array:
    """p-values adjusted by Holm's method, in the same shape: rejecting those below a level keeps the family-wise level.

    Valid under any dependence. NaN stands for a test that was not made: it stays NaN and is not counted.

    >>> holm([0.01, 0.04, np.nan, 0.03])
    array([0.03, 0.06,  nan, 0.06])
    """
    unadjusted = np.asarray(p_values, dtype=np.float64)
    flat = unadjusted.ravel()
    tested = np.flatnonzero(~np.isnan(flat))
    order = tested[np.argsort(flat[tested], kind="stable")]
    adjusted = np.full(flat.shape, np.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(flat[order] * np.arange(len(order), 0, -1)), 1.0)
    return adjusted.reshape(unadjusted.shape)


@dataclass(frozen=True, eq=False)
class Band:
    """Intervals from `low` to `high`, (H, d0) each; NaN where a coefficient is not identified."""

    low: Array
    high: Array


@dataclass(frozen=True, eq=False)
class SharedEffects:
    """θ̂⁰ of every step, on scaled features and mapped rewards unless `in_units` changed them.

    `estimates` (H, d0); `covariance` (H, d0, d0); `identified` (H, d0). A coefficient that all sites together cannot
    separate from their own effects is NaN, as are its variance and covariances. Steps are independent: given states and
    actions, the noise of each step's rewards is its own.
    """

    estimates: Array
    covariance: Array
    identified: NDArray[np.bool_]

    @cached_property
    def standard_errors(self) -> Array:
        """Square roots of the variances, (H, d0)."""
        return np.sqrt(np.diagonal(self.covariance, axis1=1, axis2=2))

    @cached_property
    def p_values(self) -> Array:
        """Two-sided p-values of θ⁰ = 0 for each step and coefficient by itself, (H, d0)."""
        return np.asarray(2.0 * ndtr(-np.abs(self.estimates) / self.standard_errors))

    @cached_property
    def adjusted_p_values(self) -> Array:
        """p-values adjusted by Holm's method over all identified steps and coefficients, (H, d0)."""
        return holm(self.p_values)

    def intervals(self, level: float = LEVEL) -> Band:
        """Each interval, taken by itself, contains its coefficient with probability `level`."""
        return self._band(sidak(1, level))

    def bands(self, level: float = LEVEL) -> Band:
        """For one coefficient, the intervals of all its steps hold together with probability `level`.

        Steps are independent, so Šidák's multiplier for the steps at which the coefficient is identified is exact. If
        rewards of a patient are correlated over steps after all, the band is wider than needed, never narrower.
        """
        return self._band(sidak(self.identified.sum(axis=0), level))

    def in_units(self, factors: Array) -> "SharedEffects":
        """Every coefficient times its factor, (d0,); `raw_factors` gives those of raw units."""
        return SharedEffects(self.estimates * factors, self.covariance * np.outer(factors, factors), self.identified)

    def _band(self, multiplier: Array) -> Band:
        half = multiplier * self.standard_errors
        return Band(self.estimates - half, self.estimates + half)


@on_one_blas_thread
def infer_effects(sums: Sums) -> SharedEffects:
    """θ̂⁰ and its covariance from the total of all sites' sums, or from the sums of one site alone."""
    inverse = invert(sums.information)
    identified = inverse.identified
    return SharedEffects(
        estimates=np.where(identified, inverse.solve(sums.information_moment), np.nan),
        covariance=np.where(identified[:, :, None] & identified[:, None, :], inverse.matrix, np.nan),
        identified=identified,
    )


def raw_factors(features: FeatureMap, reward_low: float, reward_high: float) -> Array:
    """Factors that turn each shared coefficient and its standard error into raw units, (d0,).

    φ_j = p(a)·f(z)/‖·‖ with z = (x − low)/(high − low), and the mapped reward is (r − low)/(high − low). So

        raw effect = θ_j · (reward's range) / (largest norm) / (covariate's range)^power

    is the change of the raw reward for one raw unit of a linear covariate; for its power q it is the coefficient of
    (x − low)^q. Intercepts and levels of a category are contrasts already, and splines and waves have no unit: for them
    only the reward's range and the norm count. Action terms stay as the study codes them: with `scale = "unit"` a·x is
    the difference between the highest and the lowest action for one unit of x.
    """
    norm = 1.0 / float(features.embeddings[0, features.main_effects].max())
    uses = np.abs(features.embeddings[:, : features.n_shared]).max(axis=0)  # (d0, m): which function each feature has
    per_function = np.ones(features.n_functions)
    for block in features.blocks:
        if isinstance(block.basis, Linear | Polynomial):
            factor = block.basis.affine[1]
            per_function[block.rows] = factor ** np.arange(1, block.basis.size + 1)
    factors: Array = (reward_high - reward_low) / norm * per_function[uses.argmax(axis=1)]
    return factors


@dataclass(frozen=True, eq=False)
class Heterogeneity:
    """Cochran's Q of each step: `statistic` (H,) on `df` (H,) degrees of freedom.

    Q is χ² under a common effect when sites are large beside d (σ̂² is taken as known). With d = 8 a test at 5% rejected
    a true common effect in 5.5% of simulations with 100 patients a site, 7% with 50 and 10% with 30. Where `df` is 0,
    as with one site, nothing can be compared: Q is 0 and the rest NaN.

    >>> Heterogeneity(np.array([12.0]), np.array([4])).i_squared.round(3)
    array([0.667])
    """

    statistic: Array
    df: NDArray[np.intp]

    @property
    def p_value(self) -> Array:
        """Probability of a larger Q under a common effect, (H,)."""
        return np.where(self.df > 0, chdtrc(np.maximum(self.df, 1), self.statistic), np.nan)

    @property
    def i_squared(self) -> Array:
        """I², the share of the variation between sites that noise does not explain, (H,)."""
        share = 1.0 - self.df / np.where(self.statistic > 0, self.statistic, np.inf)
        return np.where(self.df > 0, np.where(share < 1.0, np.maximum(share, 0.0), 0.0), np.nan)

    def over_steps(self) -> "Heterogeneity":
        """One test over all steps, (1,): steps are independent, so Q and df add."""
        return Heterogeneity(self.statistic.sum(keepdims=True), self.df.sum(keepdims=True))


@on_one_blas_thread
def heterogeneity(sums: Sums) -> Heterogeneity:
    """Cochran's Q of every step; `sums` is the total over sites."""
    inverse = invert(sums.information)
    spread = sums.information_square - inverse.quadratic(sums.information_moment)
    df = np.maximum(np.rint(sums.rank).astype(np.intp) - inverse.rank, 0)
    return Heterogeneity(np.where(df > 0, np.maximum(spread, 0.0), 0.0), df)


def power(noncentrality: Array, df: NDArray[np.intp], size: float = 0.05) -> Array:
    """Power of Q at level `size` when effects differ: the tail of the non-central χ².

    `noncentrality` is Σ_j (θ_j − θ̄)ᵀ W_j (θ_j − θ̄), Q without noise. At 0 the power is `size`.

    >>> power(np.array([0.0, 10.0]), np.array([4, 4])).round(3)
    array([0.05 , 0.716])
    """
    critical = chdtri(df, size)
    return np.asarray(1.0 - chndtr(critical, df, noncentrality))


@dataclass(frozen=True, eq=False)
class SharingGain:
    """The precision of each shared coefficient at one site, alone and together with the others, (H, d0) each.

    `alone` and `together` are its standard errors from the site's own sums and from the total. `worth` is how many
    patients of its own the site would need for the precision of the total: n·(alone/together)², at least n. It is
    infinite where no number of the site's own patients would identify the coefficient, and NaN where all sites together
    do not identify it either.
    """

    alone: Array
    together: Array
    worth: Array


@on_one_blas_thread
def gain_from_sharing(own: Sums, total: Sums) -> SharingGain:
    """Compare the precision from the total with that from one site's sums `own`, which are part of the total."""
    alone, together = (infer_effects(sums).standard_errors for sums in (own, total))
    ratio = np.where(np.isnan(alone), np.inf, alone) / together
    patients = np.where(own.n > 0, own.n, np.nan)  # 0 where the site withheld a step, or nobody was left
    return SharingGain(alone, together, patients[:, None] * ratio**2)


@on_one_blas_thread
def theorem3_bound(total: Sums, n_features: int, settings: "Settings") -> Array:
    """α/√(λ + smallest eigenvalue of Σ_j S_j) of each step, (H,): Theorem 3 from the total alone, for all sites.

    The theorem is ‖θ̂⁰_{h,k} − θ⁰_h‖ ≤ α ‖(Σ_h^k)⁻¹‖^½ with probability 1 − ξ. Its proof bounds ‖θ̂ − θ‖_Σ by α, so
    ‖θ̂⁰ − θ⁰‖ ≤ α‖(Σ⁻¹)_00‖^½. The inverse of that block is S^k_λ + Σ_{j≠k} S^j ⪰ Σ_j S^j + λI, where S^k_λ is the
    site's own Schur complement with its ridge. Unlike the theorem's bound, this one does not grow where data are thin
    in site-specific directions of Σ.

    The theorem leaves c an absolute constant; its proof needs 18(1 + 1/d) + 8 log 64c² ≤ c²/4, which holds from about
    c = 20. With the small c of good policies the number is a scale, not a guarantee. It also assumes (1) and w = 1.
    Standard errors (`infer_effects`) answer the practical question.

    `n_features` is d; `settings` hold c, λ and ξ; N is the number of patients at the first step, or at the first step
    that some site released.
    """
    if isinstance(settings.pessimism, NoiseUnits):
        raise TypeError("Theorem 3 speaks of the paper's c, not of noise units.")
    released = total.n[total.n > 0]
    n = float(released[0]) if len(released) else 1.0
    zeta = log_term(n_features, total.horizon, n, settings.failure_probability)
    alpha = penalty_scale(settings.pessimism, n_features, total.horizon, zeta)
    smallest = np.linalg.eigvalsh(total.schur).min(axis=1, initial=np.inf)
    return np.asarray(alpha / np.sqrt(settings.ridge + np.maximum(smallest, 0.0)))
