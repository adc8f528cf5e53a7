"""What may leave a site about its patients as a group: Table 1, with small cells left out.

Counts from 1 to below `min_cell` are not shown. Where the rest of a group would give one away by subtraction, further
counts of that group are left out with it, and nothing tells which of them are the small ones. A mean is rounded to what
its standard error leaves of it, so that one patient more or less hardly shows, and is left out where only a few
patients differ from all others: it would count those.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fdtr import container
from fdtr.disclosure.groups import decimals_left, require_patients

_MADE_HERE = object()
NOT_SHOWN = "not shown"


@dataclass(frozen=True, repr=False)
class Groups:
    """How many patients are in each of some groups that together are all of them."""

    name: str
    counts: Mapping[str, int]


@dataclass(frozen=True, repr=False, eq=False)
class Measured:
    """A covariate's `values` (n,), one a patient. No repr: it would print them."""

    name: str
    values: NDArray[np.float64]


Fact: TypeAlias = Groups | Measured


@dataclass(frozen=True)
class TableRow:
    """One line: a variable and its level, with a count or with a mean; what is empty is not shown."""

    variable: str
    level: str = ""
    patients: str = ""
    percent: str = ""
    mean: str = ""
    standard_deviation: str = ""

    @property
    def cells(self) -> list[str]:
        """The line as it is written."""
        return [self.variable, self.level, self.patients, self.percent, self.mean, self.standard_deviation]


@dataclass(frozen=True)
class TableOne:
    """A site's Table 1 that passed the rules. Only `release_table` makes one, and only this may be written out."""

    site: str
    fingerprint: str
    rows: tuple[TableRow, ...]
    maker: object = field(repr=False)

    def __post_init__(self) -> None:
        if self.maker is not _MADE_HERE:
            raise TypeError("A TableOne is made by disclosure.release_table and by nothing else.")

    @property
    def content(self) -> str:
        """Digest of the cells alone."""
        return container.fingerprint({"rows": [row.cells for row in self.rows]})

    @property
    def digest(self) -> str:
        """Digest of site, study and cells: what the ledger remembers of it."""
        return container.fingerprint({"site": self.site, "study": self.fingerprint, "table": self.content})


def release_table(
    site: str, fingerprint: str, n: int, facts: Sequence[Fact], min_patients: int, min_cell: int
) -> TableOne:
    """Table 1 of `n` patients, small cells left out, or a refusal where there are too few of them."""
    require_patients(site, "a Table 1", n, min_patients)
    lines = [TableRow("patients", patients=str(n))]
    for fact in facts:
        lines += _counted(fact, n, min_cell) if isinstance(fact, Groups) else [_averaged(fact, min_cell)]
    return TableOne(site, fingerprint, tuple(lines), _MADE_HERE)


def _counted(groups: Groups, n: int, least: int) -> list[TableRow]:
    hidden = hidden_cells(groups.counts, least)
    lines = []
    for level, count in groups.counts.items():
        if level in hidden:
            lines.append(TableRow(groups.name, level, patients=NOT_SHOWN))
        else:
            lines.append(TableRow(groups.name, level, patients=str(count), percent=f"{100 * count / n:.0f}"))
    return lines


def hidden_cells(counts: Mapping[str, int], least: int) -> set[str]:
    """The levels whose counts are left out, so that subtraction from the sum of all gives away no small one.

    >>> sorted(hidden_cells({"a": 3, "b": 40, "c": 60}, 11))
    ['a', 'b']
    >>> sorted(hidden_cells({"a": 0, "b": 40, "c": 60}, 11))
    []
    """
    present = sorted((level for level in counts if counts[level]), key=lambda level: counts[level])
    hidden = [level for level in present if counts[level] < least]
    if not hidden:
        return set()
    for level in present[len(hidden) :]:
        if len(hidden) > 1 and sum(counts[name] for name in hidden) >= 2 * least:
            break
        hidden.append(level)
    return set(hidden)


def _averaged(measured: Measured, least: int) -> TableRow:
    values = measured.values
    apart = len(values) - int(np.unique(values, return_counts=True)[1].max())
    if 0 < apart < least:
        return TableRow(measured.name, mean=NOT_SHOWN)
    deviation = float(values.std(ddof=1))
    if deviation == 0:
        return TableRow(measured.name, mean=f"{values[0]:g}", standard_deviation="0")
    place = decimals_left(deviation / sqrt(len(values)))
    return TableRow(measured.name, mean=_shown(float(values.mean()), place), standard_deviation=f"{deviation:.2g}")


def _shown(value: float, place: int) -> str:
    return f"{round(value, place):.{max(place, 0)}f}"
