"""Dying at a chosen write: before or after one of the calls that make a file last.

`python -m crash_points POINT MARKER COMMAND…` runs fdtr up to that point, says so with a file, and waits to be killed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CALLS = ("fsync", "link", "replace", "rename")


def crash_at(point: int, die: Callable[[], None]) -> None:
    """Call `die` at the given boundary: before or after one of the calls that make a file last."""
    passed = 0

    def boundary() -> None:
        nonlocal passed
        passed += 1
        if passed == point:
            die()

    def around(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            boundary()
            result = call(*arguments, **options)
            boundary()
            return result

        return wrapped

    for name in CALLS:
        setattr(os, name, around(getattr(os, name)))


def main() -> None:
    point, marker = int(sys.argv[1]), Path(sys.argv[2])
    sys.argv = ["fdtr", *sys.argv[3:]]

    def wait_for_death() -> None:
        marker.touch()
        time.sleep(120)

    from fdtr.cli import main as fdtr

    crash_at(point, wait_for_death)
    fdtr()


if __name__ == "__main__":
    main()
