"""What a reader has to know before believing a value: named, in a sentence, and never about one patient."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

_IN_FULL = 3


class Kind(StrEnum):
    """The names of cautions, as a machine reads them."""

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


@dataclass(frozen=True)
class Caution:
    """A named warning: `kind` for machines, `sentence` for people."""

    kind: Kind
    sentence: str


def listed(things: Iterable[object]) -> str:
    """Things in a sentence, sorted as they are.

    >>> listed([0, 2, 3]), listed(["one"])
    ('0, 2 and 3', 'one')
    """
    names = [str(thing) for thing in things]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def steps(found: Iterable[int]) -> str:
    """Steps in a sentence; more than three in a row by their ends.

    >>> steps({2}), steps({0, 2}), steps({0, 2, 3, 4, 5})
    ('step 2', 'steps 0 and 2', 'steps 0 and 2 to 5')
    """
    numbers = sorted(set(found))
    rows = [[step for _, step in row] for _, row in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    parts = [[f"{row[0]} to {row[-1]}"] if len(row) > _IN_FULL else row for row in rows]
    return f"step{'s' if len(numbers) > 1 else ''} {listed(part for row in parts for part in row)}"
