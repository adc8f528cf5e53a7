"""Calibration: how many of those who were given a chance of so much got the action."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.evaluation.paths import Paths
from fdtr.evaluation.propensity import Propensities

Array = NDArray[np.float64]

BINS = 10


@dataclass(frozen=True, eq=False)
class Calibration:
    """For each action and tenth of its predicted chances: the mean `predicted`, the share `observed` and `count`.

    All are (A, bins), over the rows of all steps; NaN in an empty bin.
    """

    predicted: Array
    observed: Array
    count: NDArray[np.intp]

    @property
    def error(self) -> Array:
        """Mean |predicted − observed| of each action, bins weighted by their rows, (A,)."""
        gaps = np.where(self.count > 0, np.abs(self.predicted - self.observed), 0.0)
        return np.asarray((gaps * self.count).sum(axis=1) / np.maximum(self.count.sum(axis=1), 1))


def calibrate(propensities: Propensities, paths: Paths, bins: int = BINS) -> Calibration:
    """Predicted against observed, in bins of as many rows each, from the smallest chance to the largest."""
    chances, actions = np.hstack(propensities.chances), np.concatenate(paths.actions)
    n_actions, rows = chances.shape
    count = np.full(bins, rows // bins) + (np.arange(bins) < rows % bins)
    bin_of = np.repeat(np.arange(bins), count)
    predicted, observed = np.full((n_actions, bins), np.nan), np.full((n_actions, bins), np.nan)
    filled = count > 0
    for action, chance in enumerate(chances):
        order = np.argsort(chance, kind="stable")
        sums = (np.bincount(bin_of, values[order], bins) for values in (chance, (actions == action).astype(float)))
        predicted[action, filled], observed[action, filled] = (total[filled] / count[filled] for total in sums)
    return Calibration(predicted, observed, np.tile(count, (n_actions, 1)))
