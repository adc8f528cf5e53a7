"""Faults of a table of trajectories, collected and reported together."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from fdtr.errors import InvalidTable

LISTED = 5  # positions named before "…"


def first_few(numbers: Sequence[int] | NDArray[np.intp]) -> str:
    """The first few of `numbers`, as a message lists them.

    >>> first_few(range(1, 8))
    '1, 2, 3, 4, 5, …'
    """
    return ", ".join(str(number) for number in numbers[:LISTED]) + (", …" if len(numbers) > LISTED else "")


class Kind(IntEnum):
    """What a fault is about, the most important first."""

    COLUMN = 0
    TEXT = 1
    MISSING = 2
    IDENTITY = 3
    STEP = 4
    DUPLICATE = 5
    HOLE = 6
    EARLY = 7
    END = 8
    ACTION = 9
    REWARD = 10
    LEVEL = 11
    SITE_LEVEL = 12
    CLUSTER = 13


class Faults:
    """A growing list of faults; `position` turns an index into the row number a person sees in the table.

    A table may be checked part by part: rows with the same fault are counted together.
    """

    def __init__(self, label: str) -> None:
        """Start with no fault; `label` names the table in the refusal."""
        self.label = label
        self.position: NDArray[np.intp] | None = None
        self._sentences: dict[tuple[Kind, str], None] = {}
        self._rows: dict[tuple[Kind, str, str], tuple[int, list[int]]] = {}

    def __bool__(self) -> bool:
        """Whether there is any fault."""
        return bool(self._sentences or self._rows)

    def add(self, kind: Kind, sentence: str) -> None:
        """Add one fault."""
        self._sentences[kind, sentence] = None

    def rows(self, kind: Kind, fact: str, where: NDArray[np.bool_] | None, advice: str) -> None:
        """Add `fact` with the number of rows that are True in `where` and the first few of them; none, no fault."""
        if where is None or not where.any():
            return
        rows = np.flatnonzero(where)
        numbers = np.sort(rows if self.position is None else self.position[rows]) + 1
        count, first = self._rows.get((kind, fact, advice), (0, []))
        self._rows[kind, fact, advice] = count + len(rows), sorted([*first, *numbers[: LISTED + 1].tolist()])

    def refuse(self) -> None:
        """Raise InvalidTable with all faults, the most important first; do nothing if there is none."""
        if not self:
            return
        of_rows = [
            (kind, f"{fact} in {count} row{'s' * (count > 1)} ({first_few(first)}). {advice}")
            for (kind, fact, advice), (count, first) in self._rows.items()
        ]
        lines = tuple(line for _, line in sorted([*self._sentences, *of_rows], key=lambda fault: fault[0]))
        count = "1 fault" if len(lines) == 1 else f"{len(lines)} faults"
        head = f"{self.label} has {count}; rows are counted from 1, the header not counted."
        raise InvalidTable("\n".join((head, *lines)), lines)
