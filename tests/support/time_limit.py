"""A test of something that could wait for ever fails instead."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fails the test if the body is not through by then, even where it waits in a system call."""

    def rings(*_: object) -> NoReturn:
        raise AssertionError(f"It waits for more than {seconds:g} seconds.")

    before = signal.signal(signal.SIGALRM, rings)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
