"""Many statements at once: multipliers for bands, and Holm's p-values."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

Array = NDArray[np.float64]

LEVEL = 0.95


def sidak(statements: ArrayLike, level: float = LEVEL) -> Array:
    """How many standard errors wide m intervals are that hold together with probability `level`: (2Φ(z) − 1)^m = level.

    Exact for independent normal estimates; by Šidák's inequality (1967) no less than `level` for normal estimates with
    any correlation. One statement gives the usual interval, none gives NaN.

    >>> sidak([1, 5]).round(3)
    array([1.96 , 2.569])
    """
    m = np.asarray(statements, dtype=np.float64)
    each = level ** (1.0 / np.where(m > 0, m, np.nan))
    return np.asarray(ndtri((1.0 + each) / 2.0), dtype=np.float64)


def holm(p_values: ArrayLike) -> Array:
    """p-values adjusted by Holm's method, in their shape: reject those below a level, and it holds for all together.

    Valid under any dependence. NaN stands for a test that was not made: it stays and is not counted.

    >>> holm([0.01, 0.04, np.nan, 0.03])
    array([0.03, 0.06,  nan, 0.06])
    """
    given = np.asarray(p_values, dtype=np.float64)
    flat = given.ravel()
    made = np.flatnonzero(~np.isnan(flat))
    order = made[np.argsort(flat[made], kind="stable")]
    adjusted = np.full(flat.shape, np.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(flat[order] * np.arange(len(order), 0, -1)), 1.0)
    return adjusted.reshape(given.shape)
