"""Moments of variances over sites: how much the others of a secure sum vary, and how much is left without some of them.

For each function that it tells of, a site with n patients of variance v adds n, n v and n v² to the counts, v rounded
down to a quarter of an octave. What hides a patient in a sum of squares or of products is Σ n v² of the others. Nobody
learns which site has which variance, so the least is taken that is left without any sites of some patients: with mean m
and variance s² of v over N patients, n of them have a mean of at most m + s √((N − n)/n), and Σ n v² at most
(m √n + s √(N − n))².
"""

from math import floor, inf, log2, sqrt

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]

MOMENTS = 3
MOST_VARIANCE = 2**20
"""The cap of a variance, in units: sums of its square over many sites fit into 64 bits."""

MOST_VARIED = 32.0
"""A function is taken out where one site may vary this many times more than all others."""

LEAST_SCALE = 1 / 2
"""Rows of a site count at least this much, as others rely on them; more is taken out by all sites."""

_UNIT = 1e-5
_STEPS_IN_OCTAVE = 4


def octaves(variance: float) -> int:
    """A variance in units, rounded down to a power of two with steps in between, and capped.

    >>> octaves(0.02), octaves(0.021), octaves(0.0)
    (1722, 2048, 0)
    """
    units = min(variance / _UNIT, MOST_VARIANCE)
    return int(2 ** (floor(_STEPS_IN_OCTAVE * log2(units)) / _STEPS_IN_OCTAVE)) if units >= 1 else 0


def least_left(moments: Counts, patients: int) -> float:
    """The least Σ n v² that is left without sites of up to so many `patients`; `moments` (3,) are Σ n, Σ n v, Σ n v².

    >>> least_left(np.array([400, 4000, 40000]), 100)
    30000.0
    """
    total, first, second = map(float, moments)
    if total <= patients or not second:
        return 0.0
    mean = first / total
    spread = max(second / total - mean * mean, 0.0)
    n = min(float(patients), total * mean * mean / (mean * mean + spread))
    gone = mean * sqrt(n) + sqrt(spread * (total - n))
    return max(second - gone * gone, 0.0)


def times_the_rest(moments: Counts, patients: int) -> float:
    """How many times more a site of so many `patients` may vary than all others.

    >>> round(times_the_rest(np.array([300, 100 * 8 + 200, 100 * 64 + 200]), 100), 6)
    8.0
    """
    total, first, second = map(float, moments)
    mean = first / total
    spread = max(second / total - mean * mean, 0.0)
    widest = mean + sqrt(spread * (total - patients) / patients)
    rest = (first - patients * widest) / (total - patients)
    return widest / rest if rest > 0 else inf


def least_hidden(moments: Counts, largest: int, subtracted: int) -> float:
    """How many times less than by others alike a patient is hidden, at most, whose site lets its rows count least.

    This is (λ v)²/v'² or 1, with the widest v of a site of `largest` patients, and v' the others' root mean square
    without `subtracted` more of such sites. Where those who tell are too few for that, v' is their mean.

    >>> least_hidden(np.array([400, 4000, 40000]), 100, 1), least_hidden(np.zeros(3, np.int64), 100, 1)
    (1.0, 1.0)
    """
    total, first, second = map(float, moments)
    if not first or total <= subtracted * largest or total <= largest:
        return 1.0
    ratio, rest = times_the_rest(moments, largest), total - (1 + subtracted) * largest
    if rest > 0:
        mean = first / total
        widest = mean + sqrt(max(second / total - mean * mean, 0.0) * (total - largest) / largest)
        left = least_left(moments, (1 + subtracted) * largest) / rest
        ratio = widest / sqrt(left) if left > 0 else inf
    return max(1.0, (LEAST_SCALE * ratio) ** 2)


def is_one_sites(moments: Counts, largest: int, subtracted: int, everybody: int) -> bool:
    """Whether one site may hold almost all that varies: all others vary little, or can be subtracted.

    `largest` are the most patients of one site, `subtracted` the sites that may subtract their parts together, and
    `everybody` all patients. Small sites rarely tell how a function varies: nothing is concluded of those who do not,
    unless those who tell hold most patients.
    """
    total = int(moments[0])
    if total <= subtracted * largest:
        return 2 * total > everybody
    return times_the_rest(moments, largest) > MOST_VARIED
