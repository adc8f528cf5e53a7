"""Means over replications with 95% intervals, and many comparisons judged together."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A `mean` over replications and its 95% interval by Student's t; `p_below` is the p-value of "not below 0"."""

    mean: float
    low: float
    high: float
    p_below: float

    def __str__(self) -> str:
        return f"{self.mean:+.4f} ({self.low:+.4f} to {self.high:+.4f})"


def interval(values: Sequence[float] | Array) -> Interval:
    """Of independent replications; with one of them it is as wide as can be.

    >>> interval([1.0, 2.0, 3.0])
    Interval(mean=2.0, low=-0.484..., high=4.484..., p_below=0.962...)
    """
    sample = np.asarray(values, dtype=np.float64)
    mean, n = float(sample.mean()), len(sample)
    if n < 2:
        return Interval(mean, -np.inf, np.inf, 0.5)
    error = float(sample.std(ddof=1)) / np.sqrt(n)
    if error == 0.0:
        return Interval(mean, mean, mean, 0.0 if mean < 0 else 1.0)
    width = float(stdtrit(n - 1, 0.975)) * error
    return Interval(mean, mean - width, mean + width, float(stdtr(n - 1, mean / error)))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted by Holm's method: reject those below a level, and that level holds for all together.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    adjusted, largest = [0.0] * len(p_values), 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[index]))
        adjusted[index] = largest
    return adjusted
