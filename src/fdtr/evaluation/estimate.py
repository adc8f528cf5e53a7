"""Results of an evaluation: the value of a policy, its interval, and the cautions a reader must know."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

Estimator = Literal["pdis", "wis", "fqe", "dr", "wdr"]
"""Per-decision importance sampling, step-weighted, fitted-Q evaluation, doubly robust, weighted doubly robust."""

IntervalKind = Literal["influence", "bootstrap", "bernstein"]
"""From the influence function; percentiles of a bootstrap over patients; an empirical Bernstein lower bound."""

_LISTED_SINGLY = 3


class CautionKind(StrEnum):
    """Machine-readable names of cautions."""

    CONSTANT_COVARIATE = "constant-covariate"
    UNUSED_ACTION = "unused-action"
    ACTION_ABSENT_IN_FOLD = "action-absent-in-fold"
    SEPARATED_ACTION = "separated-action"
    NO_CONVERGENCE = "no-convergence"
    TOO_FEW_ROWS = "too-few-rows"
    FLOORED_PROPENSITY = "floored-propensity"
    CLUSTER_SPLIT = "cluster-split"
    FEW_CLUSTERS = "few-clusters"
    CLIPPED_WEIGHTS = "clipped-weights"
    NO_WEIGHT_LEFT = "no-weight-left"
    RARE_ACTIONS = "rare-actions"
    MODEL_ALONE = "model-alone"
    OUTSIDE_RANGE = "outside-range"
    UNDEFINED_DRAWS = "undefined-draws"
    SAMPLED = "sampled"


class Doubt(str):
    """Why a value is not believable, as a sentence, and in a few words, `brief`; empty where nothing is in doubt."""

    __slots__ = ("brief",)
    brief: str

    def __new__(cls, sentence: str = "", brief: str = "") -> "Doubt":
        """A sentence and its few words."""
        doubt = super().__new__(cls, sentence)
        doubt.brief = brief
        return doubt


@dataclass(frozen=True)
class Caution:
    """A warning beside an estimate: `kind` for machines, `sentence` for people. It is never about one patient."""

    kind: CautionKind
    sentence: str


@dataclass(frozen=True, eq=False)
class Estimate:
    """The value of a target on the mapped scale. The true value lies in [0, H]; an estimate may fall outside.

    `low` and `high` are the ends of the interval at `level`, clipped to [0, H]; `interval` is its kind.
    `method` is the estimator; `effective_sample_size` (H,) is that of the weights it uses: importance weights, or for
    "fqe" those that the linear model implies. `n` counts patients, `n_clusters` independent units. Where `believable`
    is false, `reason` says why, and the value should be shown struck through. `warnings` are cautions with a `kind`
    for machines and a `sentence` for people.
    """

    method: Estimator
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
    reason: str

    @property
    def believable(self) -> bool:
        """Whether there is no reason to doubt the value."""
        return not self.reason


@dataclass(frozen=True, eq=False)
class Comparison:
    """The value of one target minus that of another, on the same patients.

    `difference` is first minus second. Its interval within [−H, H] is paired: it comes from the differences of the
    patients' influence values.
    """

    method: Estimator
    first: Estimate
    second: Estimate
    difference: float
    low: float
    high: float
    standard_error: float

    @property
    def believable(self) -> bool:
        """Whether both values are believable."""
        return not self.reason

    @property
    def reason(self) -> str:
        """Why the difference is not believable; empty if it is."""
        return self.first.reason or self.second.reason


def name_steps(steps: Iterable[int]) -> str:
    """Steps as words for a sentence. More than three in a row are named by the first and the last.

    >>> name_steps({2}), name_steps({0, 2}), name_steps({0, 2, 3, 4, 5})
    ('step 2', 'steps 0 and 2', 'steps 0 and 2 to 5')
    """
    numbers = sorted(set(steps))
    runs = [[step for _, step in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    parts = [[f"{run[0]} to {run[-1]}"] if len(run) > _LISTED_SINGLY else map(str, run) for run in runs]
    names = [part for run in parts for part in run]
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"step{'s' if len(numbers) > 1 else ''} {listed}"
