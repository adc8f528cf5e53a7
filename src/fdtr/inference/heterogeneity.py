"""Heterogeneity between sites: Cochran's Q of the shared effects, from the total of the sites' sums.

    Q = Σ_j (θ̂_j − θ̂)ᵀ W_j (θ̂_j − θ̂) = Σu − vᵀW⁺v,   df = Σg − rank W,   I² = max(0, 1 − df/Q)

Q tests rewards. Transitions are tested elsewhere (`identification.transition_test`): a static shared covariate violates
(1) without changing Q.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc, chdtri, chndtr

from fdtr.algebra.normal_equations import invert
from fdtr.summary import Sums

Array = NDArray[np.float64]


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
