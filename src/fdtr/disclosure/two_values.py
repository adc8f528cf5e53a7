"""Whether almost all values of a histogram are near one of two."""

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]

_NEAR, _ALMOST_ALL = 0.1, 0.8
"""A column has two values if this share on each side is nearer to one of two values than a tenth of their distance."""

_FEWEST = 2
"""One value by itself is not a side."""

BINS, FAR_OUT = 500, 10
"""Of how many bins the two values are looked for, and how many patients, at most a tenth, may be far out at an end."""


def middle_of(times: Counts) -> float:
    """The middle between the two bins that almost all values are near; `times` are numbers of values in bins.

    NaN without such two. Tried are the means that leave the least variance, with and without those who are far out at
    an end, and the most common bins: a few other values hide neither a rare trait nor a frequent one.

    >>> middle_of(np.array([60, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 40])), middle_of(np.full(20, 5))
    (5.5, nan)
    """
    n = int(times.sum())
    ends, far_out = np.cumsum(times), min(FAR_OUT, n // 10)
    inner: Counts = np.diff(np.clip(ends, far_out, n - far_out), prepend=far_out).astype(np.int64)
    first = int(times.argmax())
    apart = np.abs(np.arange(len(times)) - first) > 1
    tried = [_two_means(times), _two_means(inner), (first, int(np.where(apart, times, 0).argmax()))]
    for pair, counts in zip(tried, (times, inner, times), strict=True):
        if pair is not None and _near_two(counts, min(pair), max(pair)):
            return sum(pair) / 2
    return float("nan")


def _two_means(times: Counts) -> tuple[int, int] | None:
    """The medians of the two parts of a histogram that leave the least variance."""
    used = np.flatnonzero(times)
    if len(used) < 2:
        return None
    counts, sums = np.cumsum(times[used])[:-1], np.cumsum(times[used] * used)
    n, rest = int(times.sum()), int(times.sum()) - counts
    gap = (sums[-1] - sums[:-1]) / rest - sums[:-1] / counts
    cut = int(np.argmax(gap**2 * counts * rest))
    low = used[np.searchsorted(np.cumsum(times[used]), counts[cut] / 2)]
    high = used[np.searchsorted(np.cumsum(times[used]), (n + counts[cut]) / 2)]
    return int(low), int(high)


def _near_two(times: Counts, low: int, high: int) -> bool:
    """Whether almost all of a histogram on each side of the middle of two bins is near one of them."""
    bins, reach = np.arange(len(times)), max(_NEAR * (high - low), 1.0)
    for own, other in ((low, high), (high, low)):
        side = np.abs(bins - own) < np.abs(bins - other)
        if times[side & (np.abs(bins - own) <= reach)].sum() < max(_ALMOST_ALL * times[side].sum(), _FEWEST):
            return False
    return high > low
