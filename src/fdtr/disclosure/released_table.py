"""Table 1, which describes a site's patients as a group: the disclosure rules that leave out small cells.

Counts are rounded up to tens, and percentages are those of rounded counts. Counts from 1 to below `min_cell` are not
shown. If the other counts of a group would reveal one by subtraction, further
counts of the group are left out too, without a hint which of them are small. The number of missing values is such a
count. A mean is that of the measured values, rounded in proportion to its standard error, so that one patient more or
less hardly shows. It is left out if too few patients were measured, if only a few of them differ from all others
(the mean would count those), and if one patient alone moves it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from math import sqrt
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fdtr import container
from fdtr.disclosure.rules import decimals_left, require_patients, up_to_tens

_MADE_HERE = object()
NOT_SHOWN = "not shown"
MEASURED, MISSING = "measured", "missing"
"""The levels of a covariate's count."""


@dataclass(frozen=True, repr=False)
class Groups:
    """Counts of patients in groups that together are all patients.

    `public` are the groups whose counts the site's message holds anyway; hiding them here would promise too much.
    """

    name: str
    counts: Mapping[str, int]
    unit: str = ""
    public: frozenset[str] = frozenset()


@dataclass(frozen=True, repr=False, eq=False)
class Measured:
    """A covariate's `values` (n,), one a patient, NaN where none was measured. No repr: it would print them."""

    name: str
    values: NDArray[np.float64]
    unit: str = ""


Fact: TypeAlias = Groups | Measured


@dataclass(frozen=True)
class TableRow:
    """One line: a variable and its level, with a count and perhaps a mean; empty cells are blank."""

    variable: str
    unit: str = ""
    level: str = ""
    patients: str = ""
    percent: str = ""
    mean: str = ""
    standard_deviation: str = ""

    @property
    def cells(self) -> list[str]:
        """The cells of the line, in the order of the file's columns."""
        return list(astuple(self))


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

    def __repr__(self) -> str:
        return f"<TableOne of {self.site!r}: {len(self.rows)} rows>"

    @property
    def content(self) -> str:
        """Digest of the cells alone."""
        return container.fingerprint({"rows": [row.cells for row in self.rows]})

    @property
    def digest(self) -> str:
        """Digest of site, study and cells: the ledger's identifier of this release."""
        return container.fingerprint({"site": self.site, "study": self.fingerprint, "table": self.content})


def release_table(
    site: str, fingerprint: str, n: int, facts: Sequence[Fact], min_patients: int, min_cell: int
) -> TableOne:
    """Make a Table 1 of `n` patients without its small cells; refuses if there are too few patients."""
    require_patients(site, "a Table 1", n, min_patients)
    lines = [TableRow("patients", patients=str(up_to_tens(n)))]
    for fact in facts:
        lines += _counted(fact, n, min_cell) if isinstance(fact, Groups) else _averaged(fact, n, min_patients, min_cell)
    return TableOne(site, fingerprint, tuple(lines), _MADE_HERE)


def _counted(groups: Groups, n: int, least: int) -> list[TableRow]:
    rest = {level: count for level, count in groups.counts.items() if level not in groups.public}
    hidden = hidden_cells(rest, least)
    if groups.public and hidden:
        hidden = set(rest)  # their sum is known, so a shown zero would narrow down the others
    lines = []
    for level, count in groups.counts.items():
        if level in hidden:
            lines.append(TableRow(groups.name, groups.unit, level, patients=NOT_SHOWN))
        else:
            shown = up_to_tens(count)
            lines.append(TableRow(groups.name, groups.unit, level, str(shown), f"{100 * shown / up_to_tens(n):.0f}"))
    return lines


def hidden_cells(counts: Mapping[str, int], least: int) -> set[str]:
    """The levels whose counts are left out, so that no small count follows by subtraction from the sum.

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


def _averaged(measured: Measured, n: int, min_patients: int, min_cell: int) -> list[TableRow]:
    """Two lines: patients measured, with their mean, and patients not measured."""
    known = measured.values[~np.isnan(measured.values)]
    counts = {MEASURED: len(known), MISSING: len(measured.values) - len(known)}
    first, second = _counted(Groups(measured.name, counts, measured.unit), n, min_cell)
    mean, deviation = _mean_and_deviation(known, max(min_patients, 2), min_cell)
    return [replace(first, mean=mean, standard_deviation=deviation), second]


def _mean_and_deviation(values: NDArray[np.float64], min_patients: int, min_cell: int) -> tuple[str, str]:
    if not len(values):
        return "", ""
    apart = len(values) - int(np.unique(values, return_counts=True)[1].max())
    if len(values) < min_patients or 0 < apart < min_cell:
        return NOT_SHOWN, ""
    mean, deviation = float(values.mean()), float(values.std(ddof=1))
    if deviation == 0:
        return f"{values[0]:g}", "0"
    error = deviation / sqrt(len(values))
    moved = float(np.abs(values - mean).max()) / (len(values) - 1)  # by leaving out one patient
    if moved > error / 2:
        return NOT_SHOWN, ""
    place = decimals_left(error)
    return f"{round(mean, place):.{max(place, 0)}f}", f"{deviation:.2g}"
