"""Ranges for a draft: a study that is agreed on has bounds known beforehand."""

import math


def round_outward(low: float, high: float) -> tuple[float, float]:
    """The next round numbers outside.

    >>> round_outward(43.2, 218.9)
    (40.0, 220.0)
    >>> round_outward(0.0, 1.0)
    (0.0, 1.0)
    """
    unit = 10.0 ** math.floor(math.log10(high - low) - 0.5)
    down, up = low / unit, high / unit
    # A bound that is round already stays; 1e-9 forgives the division.
    return math.floor(down + 1e-9) * unit, math.ceil(up - 1e-9) * unit
