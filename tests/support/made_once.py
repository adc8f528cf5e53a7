"""What takes long to make and is only read: made by the first worker that needs it, for all of them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name`, in which `make` did its work. All workers share it: copy what a test changes."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    with (folder.parent / f"{name}.made").open("a+") as note:
        fcntl.flock(note, fcntl.LOCK_EX)  # the first worker makes it, the others wait
        if not note.tell():
            make(folder)
            note.write("made")  # what failed halfway is not taken for whole
    return folder
