"""Intervals for a value: from its influence function, by drawing patients again, and a bound that assumes little."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from fdtr.algebra.threads import for_chunks, one_blas_thread
from fdtr.evaluation.statistic import Statistic

Array = NDArray[np.float64]

LEVEL = 0.95
DRAWS = 10_000
DRAWS_AT_ONCE = 64


@dataclass(frozen=True)
class Interval:
    """From `low` to `high`, inside the feasible range; `standard_error` is NaN with fewer than two units."""

    low: float
    high: float
    standard_error: float


@dataclass(frozen=True)
class Range:
    """What a value can be at all: [0, H] for a value, [−H, H] for a difference of two."""

    low: float
    high: float

    def clip(self, low: float, high: float, error: float) -> Interval:
        """The interval inside the range; the whole range where there is no interval."""
        low, high = (end if math.isfinite(end) else bound for end, bound in ((low, self.low), (high, self.high)))
        low, high = (min(max(end, self.low), self.high) for end in (low, high))
        return Interval(low, high, error)


def influence_interval(statistic: Statistic, feasible: Range, level: float = LEVEL) -> Interval:
    """V̂ ± t · its standard error, with Student's t on n − 1 degrees of freedom; n counts independent units."""
    n, error = statistic.n, statistic.standard_error
    half = float(stdtrit(n - 1, (1 + level) / 2)) * error if n > 1 else math.nan
    return feasible.clip(statistic.value - half, statistic.value + half, error)


@dataclass(frozen=True, eq=False, repr=False)
class Draws:
    """`values` (B,) of V̂ with units drawn again, and the share `undefined` of draws in which a ratio was 0/0."""

    values: Array
    undefined: float


def bootstrap(statistic: Statistic, rng: np.random.Generator, draws: int = DRAWS) -> Draws:
    """V̂ with as many units drawn again with replacement, whole: every ratio is normalised anew in every draw.

    A draw is a vector of counts with a multinomial law, and its sums are a matrix product. (Picking units and counting
    them is ten times faster than `Generator.multinomial`, which draws a binomial for each unit.) Each block of draws
    has a generator of its own: results do not depend on the number of threads.
    """
    n, columns = statistic.n, np.hstack([statistic.numerators, statistic.denominators])
    sizes = [min(DRAWS_AT_ONCE, draws - start) for start in range(0, draws, DRAWS_AT_ONCE)]
    parts: list[Array] = []

    def draw(job: tuple[int, np.random.Generator]) -> Array:
        size, own = job
        counts = np.empty((size, n))
        for row, picked in zip(counts, own.integers(0, n, (size, n), dtype=np.uint32), strict=True):
            row[:] = np.bincount(picked, minlength=n)
        sums: Array = np.dot(counts, columns)
        return sums

    with one_blas_thread():
        for_chunks(draw, parts.append, zip(sizes, rng.spawn(len(sizes)), strict=True))
    numerators, denominators = np.split(np.concatenate(parts), 2, axis=1)
    lost = statistic.denominators.any(axis=0) & (denominators == 0)
    return Draws(statistic.ratios_of(numerators, denominators), float(lost.any(axis=1).mean()))


def bootstrap_interval(drawn: Draws, feasible: Range, level: float = LEVEL) -> Interval:
    """Percentiles of what was drawn, and its standard deviation for a standard error."""
    low, high = np.quantile(drawn.values, [(1 - level) / 2, (1 + level) / 2])
    return feasible.clip(float(low), float(high), float(drawn.values.std(ddof=1)))


def bernstein_interval(statistic: Statistic, feasible: Range, level: float = LEVEL) -> Interval:
    """A lower bound that holds at every n, without a normal law; the upper end is that of the range.

        V ≥ X̄ − √(2 S² ln(2/δ) / n) − 7 b ln(2/δ) / (3 (n−1)),   X_i ∈ [0, b],   δ = 1 − level

    (Maurer and Pontil 2009, Theorem 4), for an average of independent summands ≥ 0: per-decision importance sampling.
    They have no useful upper end of their own, Π_h 1/b(a | x) being astronomical, so they are cut off at b = H √n / 4.
    That can only lower their mean, and b depends on no reward or weight, so that the bound holds; the last term
    then shrinks like the first. With clusters, X_g is G/n times the sum over a cluster, and b grows with the largest.
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
