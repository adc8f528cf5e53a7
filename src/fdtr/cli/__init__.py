"""The command line: parse, call a role, print."""

import logging
import os
import signal
import sys
from typing import NoReturn

import typer

from fdtr.cli import app
from fdtr.errors import FdtrError


def main() -> None:
    """Run `fdtr`. Exit codes: 0 done, 1 refused or failed with a sentence to act on, 2 wrong usage."""
    # These may stand anywhere, as people type them.
    debug = _take("--debug")
    _limit_threads(_take_value("--threads"))
    if _take("--verbose"):
        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s", stream=sys.stderr)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:  # as `nohup` has it
            signal.signal(number, _stop)
    try:
        app.app()
    except (_Stopped, BrokenPipeError):
        _end_stopped()
    except Exception as error:
        if _received:  # a signal in the middle of a query comes back as an error of the database
            _end_stopped()
        if debug:
            raise
        if isinstance(error, FdtrError):
            _fail(str(error))
        # The text of an unforeseen error may quote data, so only its kind is shown.
        _fail(
            f"fdtr failed in a way nobody foresaw ({type(error).__name__}). Run the same command with --debug to see "
            "where; its output may quote data, so read it before you pass it on."
        )


class _Stopped(BaseException):
    """Ctrl-C and its like. No KeyboardInterrupt: the parser would turn it into silence and another exit code."""


_received: list[int] = []
"""Signals that asked this process to stop."""


def _stop(number: int, _frame: object) -> None:
    _received.append(number)
    raise _Stopped


def _end_stopped() -> NoReturn:
    """Say so and exit: with 1 after Ctrl-C and a closed pipe, else as the shell counts signals."""
    for number in _received:
        signal.signal(number, signal.SIG_IGN)  # pressed again, it would keep temporary files from being removed
    ended_by = _received[0] if _received else signal.SIGINT
    _fail("Stopped. Nothing half-written was left behind.", 1 if ended_by == signal.SIGINT else 128 + ended_by)


def _take(flag: str) -> bool:
    """Whether the arguments have `flag`; it is removed from them."""
    present = flag in sys.argv[1:]
    sys.argv = [argument for argument in sys.argv if argument != flag]
    return present


def _take_value(option: str) -> str | None:
    """What follows `option` among the arguments, or stands behind its "="; both are removed. None without it."""
    for place, argument in enumerate(sys.argv[1:], start=1):
        if argument == option and len(sys.argv) > place + 1:
            value = sys.argv[place + 1]
            del sys.argv[place : place + 2]
            return value
        if argument.startswith(f"{option}="):
            del sys.argv[place]
            return argument.partition("=")[2]
    return None


def _limit_threads(count: str | None) -> None:
    """Use so many threads of our own, all cores if None; the linear algebra library's own would compete with them.

    What NumPy reads when it is imported has to be set before.
    """
    if count is not None:
        if not (count.isdecimal() and int(count) > 0):
            typer.echo(f'--threads takes a whole number from 1 on, not "{count}".', err=True)
            sys.exit(2)
        os.environ["FDTR_THREADS"] = count
    for library in ("OPENBLAS", "MKL", "OMP"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")


def _fail(text: str, code: int = 1) -> NoReturn:
    typer.echo(text, err=True)
    sys.exit(code)
