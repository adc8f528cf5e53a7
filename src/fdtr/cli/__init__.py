"""The command line: parse, call a role, print."""

import logging
import signal
import sys
from typing import NoReturn

import typer

from fdtr.cli import app
from fdtr.errors import FdtrError


def main() -> None:
    """Run `fdtr`. Exit codes: 0 done, 1 refused or failed with a sentence to act on, 2 wrong usage."""
    # These two may stand anywhere, as people type them.
    debug = _take("--debug")
    if _take("--verbose"):
        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s", stream=sys.stderr)
    signal.signal(signal.SIGINT, _stop)
    try:
        app.app()
    except (_Stopped, BrokenPipeError):
        _fail("Stopped. Nothing half-written was left behind.")
    except FdtrError as error:
        if debug:
            raise
        _fail(str(error))
    except Exception as error:
        if debug:
            raise
        # The text of an unforeseen error may quote data, so only its kind is shown.
        _fail(
            f"fdtr failed in a way nobody foresaw ({type(error).__name__}). Run the same command with --debug to see "
            "where; its output may quote data, so read it before you pass it on."
        )


class _Stopped(BaseException):
    """Ctrl-C. Not KeyboardInterrupt, which the parser below would turn into silence and another exit code."""


def _stop(_signal: int, _frame: object) -> None:
    raise _Stopped


def _take(flag: str) -> bool:
    """Whether the arguments have `flag`; it is removed from them."""
    present = flag in sys.argv[1:]
    sys.argv = [argument for argument in sys.argv if argument != flag]
    return present


def _fail(text: str) -> NoReturn:
    typer.echo(text, err=True)
    sys.exit(1)
