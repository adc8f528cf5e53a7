"""Pool the values of several sites: the plain mean as in the paper, fixed effects and random effects.

With values y_k and standard errors s_k of K sites, w_k(τ²) = 1/(s_k² + τ²) and μ(τ²) = Σ w_k y_k / Σ w_k:

    plain mean       Σ y_k / K, standard error √(Σ s_k²) / K: the mean of these sites, equally weighted
    fixed effect     μ(0), standard error 1/√Σ w_k(0): one common value, or else a weighted mean of these sites
    random effects   μ(τ̂²): the mean of the population of sites from which these are a sample

The plain mean has an interval by Student's t, as the sites' own values have.

τ̂² is Paule and Mandel's (1982): Σ w_k(τ²)(y_k − μ)² = K − 1, or 0. It assumes no normal distribution, solves one
equation that is decreasing in τ², and does well beside REML and DerSimonian–Laird (Veroniki et al., 2016). The error of
μ(τ̂²) is Hartung and Knapp's, √(max(1, q)/Σ w_k) with q = Σ w_k (y_k − μ)²/(K − 1) and Student's t on K − 1 degrees of
freedom. The maximum avoids intervals that are too short where few sites happen to agree (Röver, Knapp and Friede,
2015). With this τ̂², q is 1 where τ̂² > 0.

A value that rests on a model may come with a tolerance, an estimate of the model's error. That is a bias: it does not
average out over sites, and all intervals are wider by the mean of the sites' tolerances.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc, ndtri, stdtrit

from fdtr.inference.shared_effects import LEVEL

Array = NDArray[np.float64]

FEW_SITES = 5
"""With fewer sites than this τ̂² is hardly more than a guess."""

ROUNDING = 1e-9
"""A standard error is 0 up to this share of a value, or of 1."""

_ITERATIONS = 100
_UPPER = (1.0 + LEVEL) / 2.0


@dataclass(frozen=True)
class SiteValue:
    """One site's released value of one method: `value`, `standard_error`, `n` patients, and the model's `tolerance`."""

    site: str
    value: float
    standard_error: float
    n: int
    tolerance: float = 0.0

    @property
    def usable(self) -> bool:
        """Whether the value and its standard error are finite."""
        return math.isfinite(self.value) and math.isfinite(self.standard_error) and self.standard_error >= 0

    @property
    def varies(self) -> bool:
        """Whether it has an error beyond rounding: without one a weight 1/s² would leave no other site a say."""
        return self.standard_error > ROUNDING * max(1.0, abs(self.value))


@dataclass(frozen=True)
class Pooled:
    """One `value` with its `standard_error` and its 95% interval; NaN where there is none."""

    value: float
    standard_error: float
    low: float
    high: float


_NOTHING = Pooled(math.nan, math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class PoolingWarning:
    """A caution about a pooled value: `name` for machines, `sentence` for people."""

    name: Literal["left-out", "no-error", "one-site", "few-sites"]
    sentence: str


@dataclass(frozen=True)
class Pooling:
    """The values of several sites, pooled.

    `sites` are those with usable values, `n` their patients, `tolerance` is the mean of theirs.
    `statistic` is Cochran's Q of the values on `df` = K − 1,
    with `p_value` and `i_squared`; `between` is τ̂. The true value of a further site lies between `predicted_low` and
    `predicted_high` with probability about 95% (Higgins, Thompson and Spiegelhalter, 2009: t on K − 2); in simulations
    with 5 to 9 sites that differ no more than their errors it was 88 to 91%. NaN below 3 sites.
    """

    sites: tuple[str, ...]
    n: int
    plain: Pooled
    fixed: Pooled
    random: Pooled
    between: float
    statistic: float
    df: int
    p_value: float
    i_squared: float
    predicted_low: float
    predicted_high: float
    tolerance: float
    warnings: tuple[PoolingWarning, ...]


def pool(values: Sequence[SiteValue], feasible: tuple[float, float] = (-math.inf, math.inf)) -> Pooling:
    """Pool the sites' values of one method. Sites without a value or an error are left out, with a warning.

    Sites whose error is 0, such as a gain of the same decisions, count in the plain mean alone: they have no weight
    1/s². Intervals are clipped to the `feasible` range.

    >>> pooling = pool([SiteValue("a", 1.0, 0.1, 50), SiteValue("b", 2.0, 0.1, 50), SiteValue("c", 1.5, 0.1, 80)])
    >>> pooling.plain.value, pooling.n, [warning.name for warning in pooling.warnings]
    (1.5, 180, ['few-sites'])
    """
    used = [site for site in values if site.usable]
    weighted = [site for site in used if site.varies]
    y, s = np.array([site.value for site in weighted]), np.array([site.standard_error for site in weighted])
    k = len(weighted)
    tau_squared = paule_mandel(y, s)
    random = hartung_knapp(y, s, tau_squared)
    statistic = _spread(y, s, 0.0) if k else 0.0
    df = max(k - 1, 0)
    reach = (
        float(stdtrit(k - 2, _UPPER)) * math.hypot(random.standard_error, math.sqrt(tau_squared)) if k > 2 else math.nan
    )
    tolerance = float(np.mean([site.tolerance for site in used])) if used else 0.0

    def widened(pooled: Pooled) -> Pooled:
        return _clip(replace(pooled, low=pooled.low - tolerance, high=pooled.high + tolerance), feasible)

    return Pooling(
        sites=tuple(site.site for site in used),
        n=sum(site.n for site in used),
        plain=widened(_plain(used)) if used else _NOTHING,
        fixed=widened(_normal(*_weighted(y, s, 0.0))) if k else _NOTHING,
        random=widened(random),
        between=math.sqrt(tau_squared) if k > 1 else math.nan,
        statistic=statistic,
        df=df,
        p_value=float(chdtrc(df, statistic)) if df else math.nan,
        i_squared=(max(0.0, 1.0 - df / statistic) if statistic > 0 else 0.0) if df else math.nan,
        predicted_low=max(random.value - reach - tolerance, feasible[0]),
        predicted_high=min(random.value + reach + tolerance, feasible[1]),
        tolerance=tolerance,
        warnings=_warnings(values, k),
    )


def paule_mandel(values: Array, standard_errors: Array) -> float:
    """τ̂² with Σ w_k(τ²)(y_k − μ)² = K − 1, or 0 where even τ² = 0 gives less; 0 for one site.

    Newton's method from 0. The sum is convex and decreasing, so the steps approach the root from below.

    >>> round(paule_mandel(np.array([0.0, 4.0]), np.array([1.0, 1.0])), 12)
    7.0
    """
    tau_squared, df = 0.0, len(values) - 1
    for _ in range(_ITERATIONS if df > 0 else 0):
        excess = _spread(values, standard_errors, tau_squared) - df
        if excess <= 1e-12 * df:
            break
        weights = 1.0 / (standard_errors**2 + tau_squared)
        deviations = values - np.sum(weights * values) / np.sum(weights)
        tau_squared += excess / float(np.sum(weights**2 * deviations**2))
    return tau_squared


def hartung_knapp(values: Array, standard_errors: Array, tau_squared: float) -> Pooled:
    """Random effects at a known τ²: μ(τ²), √(max(1, q)/Σ w) and t on K − 1; no interval for one site."""
    df = len(values) - 1
    if df < 0:
        return _NOTHING
    value, error = _weighted(values, standard_errors, tau_squared)
    if df == 0:
        return Pooled(value, math.nan, math.nan, math.nan)
    error *= math.sqrt(max(1.0, _spread(values, standard_errors, tau_squared) / df))
    reach = float(stdtrit(df, _UPPER)) * error
    return Pooled(value, error, value - reach, value + reach)


def _weighted(values: Array, standard_errors: Array, tau_squared: float) -> tuple[float, float]:
    """μ(τ²) and 1/√Σ w."""
    weights = 1.0 / (standard_errors**2 + tau_squared)
    total = float(np.sum(weights))
    return float(np.sum(weights * values)) / total, 1.0 / math.sqrt(total)


def _spread(values: Array, standard_errors: Array, tau_squared: float) -> float:
    """Σ w_k(τ²)(y_k − μ)²."""
    centre, _ = _weighted(values, standard_errors, tau_squared)
    return float(np.sum((values - centre) ** 2 / (standard_errors**2 + tau_squared)))


def _plain(sites: Sequence[SiteValue]) -> Pooled:
    """The plain mean, and Student's t.

    Satterthwaite's degrees of freedom, (Σ s_k²)² / Σ s_k⁴/(n_k − 1), are those of the site itself where there is one.
    """
    variances, n = np.array([site.standard_error**2 for site in sites]), np.array([site.n for site in sites])
    total = float(variances.sum())
    value, error = float(np.mean([site.value for site in sites])), math.sqrt(total) / len(sites)
    if total == 0:
        return Pooled(value, error, value, value)
    freedom = 1.0 / float(np.sum((variances / total) ** 2 / np.maximum(n - 1, 1)))
    reach = float(stdtrit(freedom, _UPPER)) * error
    return Pooled(value, error, value - reach, value + reach)


def _normal(value: float, error: float) -> Pooled:
    reach = float(ndtri(_UPPER)) * error
    return Pooled(value, error, value - reach, value + reach)


def _clip(pooled: Pooled, feasible: tuple[float, float]) -> Pooled:
    """The interval inside the feasible range; NaN stays."""
    return replace(pooled, low=max(pooled.low, feasible[0]), high=min(pooled.high, feasible[1]))


def _warnings(values: Sequence[SiteValue], k: int) -> tuple[PoolingWarning, ...]:
    warnings = []
    left_out = [site.site for site in values if not site.usable]
    if left_out:
        names = ", ".join(map(repr, left_out))
        warnings.append(PoolingWarning("left-out", f"Without a value or a standard error, and left out: {names}."))
    exact = ", ".join(repr(site.site) for site in values if site.usable and not site.varies)
    if exact:
        warnings.append(PoolingWarning("no-error", f"Without any error, and in the plain mean alone: {exact}."))
    if k == 1:
        warnings.append(PoolingWarning("one-site", "One site: nothing can be said of how sites differ, nor of others."))
    elif k < FEW_SITES:
        warnings.append(
            PoolingWarning(
                "few-sites",
                f"{k} sites: how much sites differ can hardly be estimated from fewer than {FEW_SITES}. Read the "
                "random-effects interval as a rough guide.",
            )
        )
    return tuple(warnings)
