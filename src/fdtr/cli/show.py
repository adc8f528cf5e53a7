"""What the commands print: tables for people, JSON for machines."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

if TYPE_CHECKING:  # `fdtr --help` must not wait for what it does not need
    from fdtr.disclosure.noise import Cost
    from fdtr.progress import Progress as Report

_out = Console(highlight=False, markup=False, soft_wrap=True)
_err = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


def line(text: str = "") -> None:
    """One line of plain text."""
    _out.print(text)


def note(text: str) -> None:
    """Something a person should know, beside the result."""
    _err.print(f"Note: {text}")


def fail(text: str) -> NoReturn:
    """Print what went wrong and leave with exit code 1."""
    _err.print(text)
    sys.exit(1)


def program() -> str:
    """How this program was called, so that a suggested command can be typed as it stands."""
    called = Path(sys.argv[0])
    return "fdtr" if called.name != "fdtr" or shutil.which("fdtr") == str(called) else str(called)


def as_json(value: Any) -> None:
    """Print parts of the record, dataclasses and plain values as JSON, with null for a number that does not exist."""
    from pydantic_core import to_json  # `fdtr --help` must not wait for what it does not need

    _out.print(json.dumps(json.loads(to_json(value, inf_nan_mode="null")), indent=2, ensure_ascii=False))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table: words to the left, numbers to the right."""
    view = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        numeric = rows and all(row[number][:1] in "-0123456789." for row in rows if row[number])
        view.add_column(column, justify="right" if numeric else "left", no_wrap=number == 0)
    for row in rows:
        view.add_row(*row)
    _out.print(view)
    _out.print()


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


def privacy(cost: Cost) -> dict[str, Any]:
    """What noise costs, for machines."""
    return {"experimental": True, **vars(cost), "verdict": cost.verdict}
