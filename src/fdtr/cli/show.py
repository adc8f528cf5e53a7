"""What the commands print: tables for people, JSON for machines; and what several of them print alike."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    from fdtr.study import Study

VERDICTS = (
    "verified: doubly robust; model-based: as far as the model is right; not estimable: too few patients were treated "
    "this way, or held-out patients contradict the models."
)

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


@dataclass(frozen=True)
class Told:
    """A value or gain as people read it: its name, value, interval, and how far to believe it.

    `where` says for whom a method decides, or at how many sites it was told.
    """

    name: str
    value: float
    low: float
    high: float
    verdict: str
    where: str


def values_table(title: str, study: Study, told: Sequence[Told], where: str, gains: bool = False) -> None:
    """Print a row for each value or gain, with its verdict, and in raw units where these differ."""
    low, high = study.reward.range
    raw = (low, high) != (0.0, 1.0)
    rows = []
    for one in told:
        number = f"{one.value:+.3f} ({one.low:+.2f} to {one.high:+.2f})" if gains else _interval(one)
        row = [one.name, "–" if isnan(one.value) else number, one.verdict, one.where]
        in_raw_units = (0 if gains else study.horizon * low) + one.value * (high - low)
        rows.append([*row, *(["–" if isnan(one.value) else f"{in_raw_units:.4g}"] if raw else [])])
    columns = ["gain of" if gains else "method", "gain" if gains else "value", "verdict", where]
    unit = f"sum of {study.horizon} mapped rewards, at most {study.horizon}"
    table(f"{title} (95%): {unit}", [*columns, *(["in raw units"] if raw else [])], rows)


def _interval(told: Told) -> str:
    return f"{told.value:.3f} ({told.low:.2f} to {told.high:.2f})"


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
