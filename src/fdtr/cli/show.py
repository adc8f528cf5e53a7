"""What the commands print: tables for people, JSON for machines; and what several of them print alike."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isfinite, isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pydantic_core import to_json
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from fdtr.progress import Progress as Report

if TYPE_CHECKING:  # the hub prints without loading what fits
    from fdtr.disclosure.noise import Cost
    from fdtr.exchange.folder.round_status import StepsTaken
    from fdtr.report.record import Subgroup
    from fdtr.study import Study

_out = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
_err = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
_GAP = 2  # spaces between two columns of a table
_SENTENCE = 30  # cells of words that are longer than this may wrap
_SHORTEST_NAME = 12  # names of rows are not folded to less
_PIPE_WIDTH = 200  # of tables where no terminal says how wide it is


def line(text: str = "") -> None:
    """One line of plain text."""
    _out.print(text)


def note(text: str) -> None:
    """Something a person should know, beside the result."""
    _err.print(f"Note: {text}")


def program() -> str:
    """How this program was called, so that a suggested command can be typed as it stands."""
    called = Path(sys.argv[0])
    return "fdtr" if called.name != "fdtr" or shutil.which("fdtr") == str(called) else str(called)


def as_json(value: Any) -> None:
    """Print parts of the record, dataclasses and plain values as JSON, with null for a number that does not exist."""
    _out.print(json.dumps(json.loads(to_json(value, inf_nan_mode="null")), indent=2, ensure_ascii=False))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, keys: int = 1) -> None:
    """Print a table: words to the left, numbers to the right.

    The first `keys` columns name a row. A table wider than the terminal is printed as several tables below each other,
    each with these columns and as many of the others as fit. No number is wrapped and nothing is left out.
    """
    width = shutil.get_terminal_size(fallback=(_PIPE_WIDTH, 24)).columns
    laid_out = [_Column.of(column, [row[number] for row in rows]) for number, column in enumerate(columns)]
    names, values = laid_out[:keys], laid_out[keys:]
    room = width - sum(column.widest for column in names[1:]) - keys * _GAP
    names[0] = names[0].folded(room - max((column.least for column in values), default=0))
    Console(width=width, highlight=False, markup=False, emoji=False).print(Text(title, style="bold"))
    for stack in _stacks(names, values, width):
        _print_columns(stack, width)


@dataclass(frozen=True)
class _Column:
    """A column of a table with the widths that it can have."""

    heading: str
    cells: list[str]
    numeric: bool
    least: int
    """Where headings, and sentences, wrap at spaces. Numbers and names never wrap."""
    widest: int

    @classmethod
    def of(cls, heading: str, cells: list[str]) -> _Column:
        numeric = any(cells) and {*cells} != {"–"} and all(cell[:1] in "-–0123456789." for cell in cells if cell)
        longest = max(map(cell_len, cells), default=0)
        sentence = not numeric and longest > _SENTENCE
        words = [word for text in (heading, *(cells if sentence else ())) for word in text.split()]
        least = max(_SENTENCE if sentence else longest, *map(cell_len, words or [""]))
        return cls(heading, cells, numeric, least, max(longest, cell_len(heading)))

    def folded(self, width: int) -> _Column:
        """The column that names the rows, no wider than `width`: longer names go on in the next line."""
        width = min(self.widest, max(width, _SHORTEST_NAME))
        return replace(self, least=width, widest=width)

    def width(self, spare: int) -> int:
        """As wide as `spare` characters more allow: a sentence takes any of them, a heading enough to stand whole."""
        wanted = self.widest - self.least
        return self.least + (min(wanted, spare) if wanted <= spare or self.least >= _SENTENCE else 0)


def _stacks(names: list[_Column], values: Sequence[_Column], width: int) -> list[list[_Column]]:
    """The columns of each table: the names of the rows, and as many others as fit."""
    stacks = [list(names)]
    for column in values:
        if len(stacks[-1]) > len(names) and sum(c.least + _GAP for c in stacks[-1]) + column.least > width:
            stacks.append(list(names))
        stacks[-1].append(column)
    return stacks


def _print_columns(columns: Sequence[_Column], width: int) -> None:
    view = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    spare = max(0, width - sum(column.least + _GAP for column in columns) + _GAP)
    total = 0
    for column in columns:
        wide = column.width(spare)
        spare -= wide - column.least
        total += wide + _GAP
        view.add_column(column.heading, justify="right" if column.numeric else "left", width=wide, overflow="fold")
    for row in zip(*(column.cells for column in columns), strict=True):
        view.add_row(*row)
    Console(width=total, highlight=False, markup=False, emoji=False).print(view)
    line()


@contextmanager
def progress() -> Iterator[Report]:
    """A bar on a terminal, plain lines on standard error elsewhere."""
    if not _err.is_terminal:
        yield lambda what, done, of: _err.print(f"{done}/{of} {what}")
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=_err, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, of: bar.update(task, description=what, completed=done, total=of)


class Span(Protocol):
    """Whatever has a value and its 95% interval; NaN where there is none."""

    @property
    def value(self) -> float:
        """The value itself."""

    @property
    def low(self) -> float:
        """The low end."""

    @property
    def high(self) -> float:
        """The high end."""


def interval(span: Span, gain: bool = False) -> str:
    """A value and its 95% interval, as every command prints them; a `gain` has its sign, and a dash is no number."""
    if not isfinite(span.value):
        return "–"
    value = f"{span.value:+.3f}" if gain else f"{span.value:.3f}"
    return f"{value} ({span.low:.3f} to {span.high:.3f})" if isfinite(span.low) and isfinite(span.high) else value


@dataclass(frozen=True)
class AssessedRow:
    """A row of a table: the name of a value or gain, the number, and its verdict.

    `where` says in how many decisions a method acts, or at how many sites it has a number.
    """

    name: str
    span: Span
    verdict: str
    where: str


def values_table(title: str, study: Study, assessed: Sequence[AssessedRow], where: str, gains: bool = False) -> None:
    """Print a row for each value or gain, with its verdict, and in raw units where these differ."""
    low, high = study.reward.range
    raw = (low, high) != (0.0, 1.0)
    rows = []
    for part in assessed:
        row = [part.name, interval(part.span, gains), part.verdict, part.where]
        in_raw_units = (0 if gains else study.horizon * low) + part.span.value * (high - low)
        rows.append([*row, *(["–" if isnan(part.span.value) else f"{in_raw_units:.4g}"] if raw else [])])
    columns = ["gain of" if gains else "method", "gain" if gains else "value", "verdict", where]
    unit = f"sum of {study.horizon} mapped rewards, at most {study.horizon}"
    table(f"{title} (95%): {unit}", [*columns, *(["in raw units"] if raw else [])], rows)


def subgroups_table(subgroups: Sequence[Subgroup]) -> None:
    """Print the verified gain in each declared group; of a group that is withheld, why, and no number."""
    if not subgroups:
        return
    rows = [
        [
            group.site,
            f"{group.group} {group.label}",
            "–" if group.n is None else f"{group.n:,}",
            "–" if group.reason else interval(group, gain=True),
            _p_value(group.p_value),
            group.reason,
        ]
        for group in subgroups
    ]
    columns = ["site", "group", "patients", "gain", "p", "withheld because"]
    what = "over clinicians in subgroups, p adjusted over a site's groups (Holm)"
    table(f"Gain of {subgroups[0].method} {what}", columns, rows, keys=2)


def _p_value(p: float) -> str:
    """A p-value, with its sign: p = 0.031, p < 0.001."""
    return "–" if isnan(p) else "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def coefficients_table(title: str, by_feature: Mapping[str, Sequence[float]]) -> None:
    """Print a row for each shared feature, with a dash where all sites together do not identify the coefficient."""
    rows = [
        [
            f"{name} (not identified)" if all(map(isnan, by_step)) else name,
            *("–" if isnan(coefficient) else f"{coefficient:.3f}" for coefficient in by_step),
        ]
        for name, by_step in by_feature.items()
    ]
    if rows:
        table(title, ["feature", *(f"step {h}" for h in range(len(rows[0]) - 1))], rows)
    if any(isnan(coefficient) for by_step in by_feature.values() for coefficient in by_step):
        line("–: not identified. What all sites together tell does not separate it from other effects.")


def privacy_json(cost: Cost) -> dict[str, Any]:
    """What noise costs, as it is printed for machines."""
    return {"experimental": True, **vars(cost), "verdict": cost.verdict}


def steps(taken: StepsTaken, machine: bool) -> None:
    """Print which steps of a round were taken in a shared folder, and what is waited for."""
    if machine:
        as_json({"round" if name == "number" else name: value for name, value in vars(taken).items()})
        return
    for sentence in taken.notes:
        note(sentence)
    for sentence in taken.done:
        line(sentence)
    if taken.waits:
        line(f"Waiting for: {taken.waits}")
    elif not taken.done:
        line(f"Nothing is left to do in round {taken.number}.")
