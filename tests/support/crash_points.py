"""Boundaries of what makes a file last, at which a test looks, fails, or dies.

PROGRAM with the arguments `die POINT MARKER COMMAND…` runs fdtr up to that point, says so with a file, and waits to
be killed; `fail` lets the disk fail there instead.
"""

from __future__ import annotations

import errno
import io
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

PROGRAM = "from crash_points import main; main()"
"""For `command_line.start`."""

CALLS = ("fsync", "link", "replace", "rename", "unlink", "mkdir")
STATEMENTS = ("BEGIN", "CREATE", "INSERT", "UPDATE", "DELETE", "COMMIT")
CHANGING = (*CALLS[1:], "COMMIT")
Boundary = Callable[[str], None]
EVERY = pytest.mark.parametrize(
    "every", [7, pytest.param(1, marks=pytest.mark.long)], ids=["every seventh point", "every point"]
)
"""An odd number, so that both errors of a disk that alternate from point to point are met."""


def spread(calls: Sequence[str], turn: int, every: int, tried: set[str]) -> list[int]:
    """Every so many of a turn's boundaries, and the first of each call that was not tried before; `tried` grows.

    The offset differs from turn to turn, and no turn is left out.
    """
    offset = turn % max(1, min(every, len(calls)))
    chosen = [
        i for i, call in enumerate(calls) if i % every == offset or (call not in tried and calls.index(call) == i)
    ]
    tried |= {calls[i] for i in chosen}
    return chosen


def hook(boundary: Boundary, patch: Callable[[Any, str, Any], None] = setattr) -> None:
    """Call `boundary` with a name before each call and statement, after what changed the disk, and within writes."""

    def around(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            boundary(name)
            result = call(*arguments, **options)
            if name in CHANGING:
                boundary(name)
            return result

        return wrapped

    class Writing(io.FileIO):
        def write(self, content: Any) -> int:
            half = super().write(content[: len(content) // 2])
            boundary("write")
            return half + super().write(content[half:])

    class Ledger(sqlite3.Connection):
        def execute(self, statement: str, *arguments: Any) -> sqlite3.Cursor:
            word = statement.split(maxsplit=1)[0] if statement.strip() else ""
            run = super().execute
            return (around(word, run) if word in STATEMENTS else run)(statement, *arguments)

    fdopen, connect = os.fdopen, sqlite3.connect
    for name in CALLS:
        patch(os, name, around(name, getattr(os, name)))
    patch(os, "fdopen", lambda d, mode: io.BufferedWriter(Writing(d, mode)) if mode == "wb" else fdopen(d, mode))
    patch(sqlite3, "connect", lambda *arguments, **options: connect(*arguments, **options, factory=Ledger))


def at(point: int, act: Boundary) -> Boundary:
    """Acts at the given boundary, counted from 1."""
    passed = 0

    def boundary(name: str) -> None:
        nonlocal passed
        passed += 1
        if passed == point:
            act(name)

    return boundary


def fail(name: str, number: int = errno.EIO) -> None:
    """What a broken or full disk says to a call."""
    if name in STATEMENTS:
        raise sqlite3.OperationalError("disk I/O error" if number == errno.EIO else "database or disk is full")
    raise OSError(number, os.strerror(number))


def main() -> None:
    what, point, marker = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    sys.argv = ["fdtr", *sys.argv[4:]]

    def wait_for_death(_: str) -> None:
        marker.touch()
        time.sleep(120)

    from fdtr.cli import main as fdtr

    hook(at(point, wait_for_death if what == "die" else fail))
    fdtr()
