"""A policy's value with all that has to stand beside it."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fdtr.evaluation.cautions import Caution

Array = NDArray[np.float64]

Method = Literal["pdis", "wis", "fqe", "dr", "wdr"]
"""Per-decision importance sampling, step-weighted, fitted-Q evaluation, doubly robust, weighted doubly robust."""

IntervalKind = Literal["influence", "bootstrap", "bernstein"]


@dataclass(frozen=True, eq=False)
class Estimate:
    """A value on the mapped scale, in [0, H] but for what chance may add.

    `low` and `high` are the ends of the interval at `level`, within [0, H]; `interval` says of which kind.
    `effective_sample_size` (H,) is that of the weights the method works with: importance weights, or for "fqe" those
    that the linear model implies. `n` counts patients, `n_clusters` independent units. Where `believable` is false
    the value is to be shown struck through, with the `reason`. `warnings` are named.
    """

    method: Method
    value: float
    low: float
    high: float
    standard_error: float
    level: float
    interval: IntervalKind
    effective_sample_size: Array
    n: int
    n_clusters: int
    warnings: tuple[Caution, ...]
    believable: bool
    reason: str


@dataclass(frozen=True, eq=False)
class Comparison:
    """How much more one policy is worth than another on the same patients.

    `difference` is first minus second, with a paired interval within [−H, H]: of the difference of influence values.
    """

    method: Method
    first: Estimate
    second: Estimate
    difference: float
    low: float
    high: float
    standard_error: float

    @property
    def believable(self) -> bool:
        """Both values are."""
        return self.first.believable and self.second.believable

    @property
    def reason(self) -> str:
        """Why not, else empty."""
        return self.first.reason or self.second.reason
