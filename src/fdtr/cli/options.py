"""What many commands ask for, and how they ask before they write."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fdtr.errors import FdtrError, OutputExists

StudyPath = Annotated[Path, typer.Argument(metavar="STUDY", help="The study file (TOML).")]
Json = Annotated[bool, typer.Option("--json", help="Print a machine's view instead of a person's.")]


class Split(StrEnum):
    """Who is valued by policies fitted to whom."""

    folds = "folds"
    half = "half"


HeldOut = Annotated[
    Split, typer.Option(help="folds: each fifth by policies fitted to the rest; half: one half, as in the paper.")
]


def agreed(question: str) -> bool:
    """Ask on a terminal; elsewhere the answer has to be --yes."""
    if not sys.stdin.isatty():
        raise FdtrError("Nothing was written: there is no terminal to ask on. Add --yes to answer beforehand.")
    return typer.confirm(question, err=True)


def spare_inputs(out: Path, *inputs: Path | None) -> None:
    """Refuse to overwrite what a command reads, and files that are none of ours."""
    from fdtr.container import is_container

    if out.is_file() and not is_container(out):
        raise OutputExists(f"{out} is a file that fdtr did not write. Nothing was written. Name another with --out.")
    if any(path is not None and path.resolve() == out.resolve() for path in inputs):
        raise OutputExists(f"{out} is one of the files to read. Nothing was written. Name another with --out.")
