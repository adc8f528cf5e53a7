"""Values as ratios of sums over patients, and their intervals: influence function, bootstrap, Bernstein's bound.

Every estimator here is a sum of ratios of sums over patients, each times the share p_j of patients whom it is about,

    V = Σ_j s_j p_j R_j,   R_j = Σ_i N_ij / Σ_i D_ij,   p_j = Σ_i P_ij / n.

Its influence function, the derivative of V in a patient's weight, is

    ψ_i = Σ_j s_j [p_j (N_ij − R_j D_ij) / D̄_j + (P_ij − p_j) R_j].

Its standard error is the jackknife's, which agrees with that of ψ except where few units carry much of the weight.
Where policies were fitted to other folds of the same patients, an outcome moves the policy that treats another patient,
and the other way round: a covariance that no sum of squares over patients has. To first order it is as large as the
variance that policies of different folds give a patient's summand x_ik,

    B = (K − 1)/K Σ_i Σ_k (x_ik − x̄_i)² / n²,

the jackknife's over the K folds, which is added (docs/methods.md).
Intervals use Student's t on n − 1 degrees of freedom, or on fewer where few patients make a value vary.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from fdtr.algebra.threads import for_chunks, one_blas_thread
from fdtr.evaluation.estimate import IntervalKind

Array = NDArray[np.float64]

LEVEL = 0.95
DRAWS = 10_000
DRAWS_AT_ONCE = 64

FEWEST_DEGREES = 0.5
"""Degrees of freedom at least; with so few an interval is longer than any range."""

ROUNDING = 1e-12
"""A sum without one of its terms counts as 0 where less than this share of the sum is left."""


@dataclass(frozen=True, eq=False, repr=False)
class Statistic:
    """A value V as above, with one row for each of n independent units and one column for each of J ratios.

    `numerators` N (n, J), `denominators` D (n, J), `signs` s (J,). `members` P (n, J) counts the patients of each unit
    whom a ratio is about, and `sizes` (n,) all of them; None: every unit is one patient, and every ratio is about all.
    A ratio whose denominators are all 0 counts as 0. `freedom` are the degrees of freedom of its squared error, if they
    are fewer than n − 1. `by_policy` (K, n) are the summands x of each unit under the policy of every fold.
    """

    numerators: Array
    denominators: Array
    signs: Array
    members: Array | None = None
    sizes: Array | None = None
    freedom: float = math.inf
    by_policy: Array | None = None

    @property
    def n(self) -> int:
        """Number of independent units: patients, or clusters of them."""
        return len(self.numerators)

    @property
    def degrees_of_freedom(self) -> float:
        """Of Student's t in its interval."""
        return min(self.n - 1, max(self.freedom, FEWEST_DEGREES))

    @cached_property
    def columns(self) -> Array:
        """N, D, P and the sizes beside each other, (n, 3J + 1)."""
        sizes = np.ones(self.n) if self.sizes is None else self.sizes
        members = np.broadcast_to(sizes[:, None], self.numerators.shape) if self.members is None else self.members
        return np.hstack([self.numerators, self.denominators, members, sizes[:, None]])

    @cached_property
    def value(self) -> float:
        """V."""
        return float(self.value_of(self.columns.sum(axis=0)))

    def value_of(self, sums: Array) -> Array:
        """V from sums (…, 3J + 1) of `columns` over these rows, or over a bootstrap sample of them."""
        numerators, denominators, members = np.split(sums[..., :-1], 3, axis=-1)
        return np.asarray((_divide(numerators, denominators) * _divide(members, sums[..., -1:])) @ self.signs)

    @property
    def contributions(self) -> Array:
        """What each unit adds to the numerators, as a part of n V, (n,): Σ_j s_j p_j N_ij / D̄_j."""
        numerators, denominators, members = np.split(self.columns[:, :-1], 3, axis=1)
        shares = members.sum(axis=0) / self.columns[:, -1].sum()
        return np.asarray((shares * _divide(numerators, denominators.mean(axis=0))) @ self.signs)

    @cached_property
    def influence(self) -> Array:
        """ψ of each unit, (n,). They sum to 0."""
        numerators, denominators, members = np.split(self.columns[:, :-1], 3, axis=1)
        mean, size = denominators.mean(axis=0), self.columns[:, -1].mean()
        ratios, shares = _divide(numerators.mean(axis=0), mean), members.mean(axis=0) / size
        own = shares * _divide(numerators - ratios * denominators, mean)
        return np.asarray((own + ratios * (members - shares * self.columns[:, -1:]) / size) @ self.signs)

    @cached_property
    def standard_error(self) -> float:
        """√((n−1)/n Σ_i (V − V₍₋ᵢ₎)² + B), V₍₋ᵢ₎ without unit i; NaN with fewer than two units.

        To first order V − V₍₋ᵢ₎ = ψ_i/n, and for a plain average this is √(Σψ²/(n(n−1))) exactly. In a ratio, a unit
        with much weight pulls R_j towards itself and makes its own ψ small; leaving the unit out avoids that.
        """
        if self.n < 2:
            return float("nan")
        total, ratios = self.columns.sum(axis=0), len(self.signs)
        rest = total - self.columns
        weights = slice(ratios, 2 * ratios)
        rest[:, weights][np.abs(rest[:, weights]) <= ROUNDING * total[weights]] = 0.0
        without = self.value_of(rest)
        return float(np.sqrt((self.n - 1) / self.n * np.sum((self.value - without) ** 2) + self._of_policies))

    @property
    def _of_policies(self) -> float:
        """B."""
        if self.by_policy is None:
            return 0.0
        folds = len(self.by_policy)
        spread = float(np.sum((self.by_policy - self.by_policy.mean(axis=0)) ** 2))
        return (folds - 1) / folds * spread / float(self.columns[:, -1].sum()) ** 2

    def clustered(self, clusters: NDArray[np.intp] | None) -> "Statistic":
        """The statistic with sums over clusters as rows. `clusters` (n,) are positions 0 … G−1; None changes nothing.

        V does not change. ψ of a cluster is, up to the scale G/n, the sum of its patients' ψ.
        """
        if clusters is None:
            return self
        sums = sums_over(clusters, self.columns)
        numerators, denominators, members = np.split(sums[:, :-1], 3, axis=1)
        by_policy = None if self.by_policy is None else sums_over(clusters, self.by_policy.T).T
        return Statistic(numerators, denominators, self.signs, members, sums[:, -1], self.freedom, by_policy)

    def among(self, chosen: NDArray[np.bool_]) -> "Statistic":
        """The statistic of some units alone, (n,)."""
        numerators, denominators, members = np.split(self.columns[chosen, :-1], 3, axis=1)
        by_policy = None if self.by_policy is None else self.by_policy[:, chosen]
        return Statistic(
            numerators, denominators, self.signs, members, self.columns[chosen, -1], self.freedom, by_policy
        )

    def minus(self, other: "Statistic") -> "Statistic":
        """The difference of two values of the same units; its `freedom` is not that of either."""
        pairs = zip(np.split(self.columns[:, :-1], 3, axis=1), np.split(other.columns[:, :-1], 3, axis=1), strict=True)
        numerators, denominators, members = (np.hstack(pair) for pair in pairs)
        signs = np.concatenate([self.signs, -other.signs])
        if self.by_policy is None:
            by_policy = other.by_policy
        else:
            by_policy = self.by_policy - (0.0 if other.by_policy is None else other.by_policy)
        return Statistic(numerators, denominators, signs, members, self.columns[:, -1], by_policy=by_policy)


def sums_over(clusters: NDArray[np.intp], rows: Array) -> Array:
    """Sums of `rows` (n, …) over clusters, (G, …)."""
    sums = np.zeros((int(clusters.max()) + 1, *rows.shape[1:]))
    np.add.at(sums, clusters, rows)
    return sums


def p_value(statistic: Statistic) -> float:
    """Two-sided p-value of V = 0, with Student's t on the degrees of freedom of V; NaN where it has no error.

    >>> round(p_value(mean_of(np.array([1.0, 2.0, 3.0]))), 3)
    0.074
    """
    error = statistic.standard_error
    return float(2 * stdtr(statistic.degrees_of_freedom, -abs(statistic.value) / error)) if error > 0 else math.nan


def mean_of(summands: Array) -> Statistic:
    """The plain average of `summands` (n,).

    >>> mean_of(np.array([1.0, 3.0])).value
    2.0
    """
    return Statistic(summands[:, None], np.ones((len(summands), 1)), np.ones(1))


def weighted_means(values: Array, weights: Array) -> Statistic:
    """Σ_j of weighted means. `values` and `weights` are (J, n).

    >>> weighted_means(np.array([[1.0, 3.0]]), np.array([[3.0, 1.0]])).value
    1.5
    """
    return Statistic((weights * values).T, weights.T, np.ones(len(values)))


def _divide(numerators: Array, denominators: Array) -> Array:
    return np.asarray(numerators / np.where(denominators != 0, denominators, np.inf))


@dataclass(frozen=True)
class Interval:
    """From `low` to `high`, inside the feasible range; `standard_error` is NaN with fewer than two units.

    `undefined` is the share of bootstrap draws with a ratio 0/0.
    """

    low: float
    high: float
    standard_error: float
    undefined: float = 0.0


@dataclass(frozen=True)
class Range:
    """The feasible values: [0, H] for a value, [−H, H] for a difference of two."""

    low: float
    high: float

    def clip(self, low: float, high: float, error: float) -> Interval:
        """The interval inside the range. An end that is not finite becomes the end of the range."""
        low, high = (end if math.isfinite(end) else bound for end, bound in ((low, self.low), (high, self.high)))
        low, high = (min(max(end, self.low), self.high) for end in (low, high))
        return Interval(low, high, error)


def influence_interval(
    statistic: Statistic, feasible: Range, level: float = LEVEL, supposed: float | None = None
) -> Interval:
    """V̂ ± t · its standard error, with Student's t on n − 1 degrees of freedom; n counts independent units.

    Where V̂ has fewer degrees of freedom, the standard error that is returned is larger by the ratio of both t, so that
    whoever pools it with n − 1 degrees, or with those `supposed`, has the right interval.

    >>> influence_interval(mean_of(np.array([1.0, 2.0, 3.0])), Range(0.0, 4.0), level=0.5)
    Interval(low=1.5285..., high=2.4714..., standard_error=0.5773...)
    """
    n, error = statistic.n, statistic.standard_error
    if n < 2:
        return feasible.clip(math.nan, math.nan, error)
    degrees = (supposed or n - 1, statistic.degrees_of_freedom)
    usual, wide = (float(stdtrit(df, (1 + level) / 2)) for df in degrees)
    half = wide * error
    return feasible.clip(statistic.value - half, statistic.value + half, error * wide / usual)


@dataclass(frozen=True, eq=False, repr=False)
class Draws:
    """`values` (B,) of V̂ in bootstrap samples of the units, and the share `undefined` of draws with a ratio 0/0."""

    values: Array
    undefined: float


def bootstrap(statistic: Statistic, rng: np.random.Generator, draws: int = DRAWS) -> Draws:
    """V̂ with n units drawn with replacement. Every ratio is normalised anew in every draw.

    A draw is a vector of multinomial counts, and its sums are a matrix product. (Picking units and counting them is ten
    times faster than `Generator.multinomial`, which draws a binomial for each unit.) Each block of draws has its own
    generator, so results do not depend on the number of threads.
    """
    n, columns = statistic.n, statistic.columns
    sizes = [min(DRAWS_AT_ONCE, draws - start) for start in range(0, draws, DRAWS_AT_ONCE)]
    parts: list[Array] = []

    def draw(job: tuple[int, np.random.Generator]) -> Array:
        size, block_rng = job
        counts = np.empty((size, n))
        for row, picked in zip(counts, block_rng.integers(0, n, (size, n), dtype=np.uint32), strict=True):
            row[:] = np.bincount(picked, minlength=n)
        sums: Array = np.dot(counts, columns)
        return sums

    with one_blas_thread():
        for_chunks(draw, parts.append, zip(sizes, rng.spawn(len(sizes)), strict=True))
    sums = np.concatenate(parts)
    denominators = np.split(sums[:, :-1], 3, axis=1)[1]
    lost = statistic.denominators.any(axis=0) & (denominators == 0)
    return Draws(statistic.value_of(sums), float(lost.any(axis=1).mean()))


def bootstrap_interval(draws: Draws, feasible: Range, level: float = LEVEL) -> Interval:
    """Percentiles of the bootstrap values; their standard deviation is the standard error."""
    low, high = np.quantile(draws.values, [(1 - level) / 2, (1 + level) / 2])
    return replace(feasible.clip(float(low), float(high), float(draws.values.std(ddof=1))), undefined=draws.undefined)


def bernstein_interval(statistic: Statistic, feasible: Range, level: float = LEVEL) -> Interval:
    """A lower bound that holds at every n, without a normal approximation; the upper end is that of the range.

        V ≥ X̄ − √(2 S² ln(2/δ) / n) − 7 b ln(2/δ) / (3 (n−1)),   X_i ∈ [0, b],   δ = 1 − level

    (Maurer and Pontil 2009, Theorem 4), for an average of independent summands ≥ 0: per-decision importance sampling.
    The summands have no useful upper bound, since Π_h 1/b(a | x) is astronomical, so they are cut off at b = H √n / 4.
    That can only lower their mean, and b depends on no reward or weight, so the bound still holds, and the last term
    shrinks like the first. With clusters, X_g is G/n times the sum over a cluster, and b grows with the largest.
    """
    if statistic.numerators.shape[1] != 1 or (statistic.numerators < 0).any():
        raise ValueError("Bernstein's bound is for an average of summands that cannot be negative: use method pdis.")
    n, sizes = statistic.n, statistic.denominators[:, 0]
    if n < 2:
        return feasible.clip(math.nan, math.nan, statistic.standard_error)
    largest = feasible.high * math.sqrt(sizes.sum()) / 4 * float(sizes.max() / sizes.mean())
    summands = np.minimum(statistic.numerators[:, 0] / sizes.mean(), largest)
    log = math.log(2 / (1 - level))
    spread = math.sqrt(2 * float(summands.var(ddof=1)) * log / n)
    low = float(summands.mean()) - spread - 7 * largest * log / (3 * (n - 1))
    return feasible.clip(low, feasible.high, statistic.standard_error)


@dataclass(frozen=True)
class IntervalOptions:
    """The interval wanted: its `kind` and `level`; for the bootstrap the number of `draws` and the generator `rng`.

    >>> IntervalOptions("bootstrap", draws=2000, rng=np.random.default_rng(0)).level
    0.95
    """

    kind: IntervalKind = "influence"
    level: float = LEVEL
    draws: int = DRAWS
    rng: np.random.Generator | None = None


BY_INFLUENCE = IntervalOptions()


def interval_of(statistic: Statistic, feasible: Range, options: IntervalOptions) -> Interval:
    """The interval of V̂ that is asked for."""
    if options.kind == "bernstein":
        return bernstein_interval(statistic, feasible, options.level)
    if options.kind == "influence":
        return influence_interval(statistic, feasible, options.level)
    if options.rng is None:
        raise ValueError(
            "The bootstrap draws at random: give it a generator, IntervalOptions(rng=np.random.default_rng(seed))."
        )
    return bootstrap_interval(bootstrap(statistic, options.rng, options.draws), feasible, options.level)
