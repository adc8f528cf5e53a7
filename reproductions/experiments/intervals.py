"""Shares, means and log-log slopes over replications, each with its 95% interval; comparisons judged together."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit

from fdtr.inference import holm as holm_array

Array = NDArray[np.float64]

NORMAL = 1.959963984540054
RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """An `estimate` between the ends of its 95% interval."""

    estimate: float
    low: float
    high: float

    @property
    def ends(self) -> tuple[float, float, float]:
        """Estimate, low, high: three columns of a row."""
        return self.estimate, self.low, self.high

    def shown(self, digits: int = 3) -> str:
        """The estimate and its interval, rounded to `digits`."""
        estimate, low, high = (f"{round(x, digits) + 0.0:.{digits}f}" for x in self.ends)  # no "-0.000"
        return f"{estimate} ({low} to {high})"

    @property
    def per_cent(self) -> str:
        """The estimate and its interval in percent."""
        return f"{100 * self.estimate:.1f}% ({100 * self.low:.1f} to {100 * self.high:.1f}%)"

    def within(self, low: float, high: float) -> bool:
        """Whether the estimate lies in [low, high]."""
        return low <= self.estimate <= high


def share(hits: ArrayLike) -> Interval:
    """How often something happened: `hits` (R, …) by replication, with Wilson's interval.

    What happens within one replication goes together. The interval takes the number of cases for smaller by the design
    effect: the variance of a replication's share over what it would be if its cases were independent.

    >>> share([[True, True], [True, True]]).per_cent
    '100.0% (34.2 to 100.0%)'
    """
    by_run = np.asarray(hits, dtype=np.float64).reshape(len(np.asarray(hits)), -1)
    runs, cases = by_run.shape
    p = float(by_run.mean())
    independent = p * (1 - p) / cases
    # Where all or none happened nothing tells how they go together: then a replication counts once.
    effect = float(by_run.mean(axis=1).var(ddof=1)) / independent if runs > 1 and independent > 0 else float(cases)
    n = by_run.size / min(max(effect, 1.0), cases)
    middle = (p + NORMAL**2 / (2 * n)) / (1 + NORMAL**2 / n)
    half = NORMAL * math.sqrt(p * (1 - p) / n + NORMAL**2 / (4 * n**2)) / (1 + NORMAL**2 / n)
    return Interval(p, max(0.0, min(middle - half, p)), min(1.0, max(middle + half, p)))


def mean(values: ArrayLike) -> Interval:
    """The mean of `values` (R, …), with Student's interval over replications.

    >>> mean([1.0, 2.0, 3.0]).shown(2)
    '2.00 (-0.48 to 4.48)'
    """
    by_run = np.asarray(values, dtype=np.float64).reshape(len(np.asarray(values)), -1).mean(axis=1)
    runs = len(by_run)
    half = float(stdtrit(runs - 1, 0.975)) * float(by_run.std(ddof=1)) / math.sqrt(runs) if runs > 1 else math.inf
    return Interval(float(by_run.mean()), float(by_run.mean()) - half, float(by_run.mean()) + half)


def p_below(values: ArrayLike) -> float:
    """One-sided p-value of Student's test that the mean of `values` (R,) is not below 0.

    >>> round(p_below([-3.0, -2.0, -1.0]), 3)
    0.037
    """
    sample = np.asarray(values, dtype=np.float64)
    centre, spread, runs = float(sample.mean()), float(sample.std(ddof=1)) if len(sample) > 1 else 0.0, len(sample)
    if runs < 2:
        return 0.5
    if spread == 0.0:
        return 0.0 if centre < 0 else 1.0
    return float(stdtr(runs - 1, centre / (spread / math.sqrt(runs))))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted by Holm's method: reject those below a level, and that level holds for all together.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted: list[float] = holm_array(p_values).tolist()
    return adjusted


def slope(sizes: ArrayLike, errors: ArrayLike) -> float:
    """Least-squares slope of log `errors` against log `sizes`.

    >>> round(slope([100, 400, 1600], [1.0, 0.5, 0.25]), 12)
    -0.5
    """
    return float(np.polyfit(np.log(np.asarray(sizes, dtype=float)), np.log(np.asarray(errors, dtype=float)), 1)[0])


def bootstrap(values: Array, statistic: Callable[[Array], float], rng: np.random.Generator) -> Interval:
    """A statistic of the mean over replications, with the percentile interval of resampled replications.

    `values` (R, …) by replication; `statistic` takes their mean, (…).
    """
    runs = len(values)
    flat = values.reshape(runs, -1)
    counts = rng.multinomial(runs, np.full(runs, 1.0 / runs), RESAMPLES)
    resampled = (counts @ flat / runs).reshape(RESAMPLES, *values.shape[1:])
    statistics = np.array([statistic(sample) for sample in resampled])
    low, high = np.quantile(statistics, [0.025, 0.975])
    return Interval(float(statistic(values.mean(axis=0))), float(low), float(high))
