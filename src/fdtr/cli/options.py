"""Arguments and options that several commands take: files, rounds, keys and consent."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import click
import typer

from fdtr.cli import show
from fdtr.container import is_container
from fdtr.errors import FdtrError, InvalidSettings, OutputExists
from fdtr.signing import HUB, Key, Round, is_locked, numbered_round, stated_passphrase
from fdtr.study import Study
from fdtr.trajectories import Trajectories

if TYPE_CHECKING:
    from fdtr.trajectories.table_in_database import DatabaseTable

    Table = Path | DatabaseTable
else:  # typer knows no unions
    Table = object

_PATH = click.Path(path_type=Path)  # `TableCommand` puts a table of a database in its place

StudyPath = Annotated[Path, typer.Argument(metavar="STUDY", help="The study file (TOML).")]
DataTable = Annotated[
    Table,
    typer.Argument(
        metavar="DATA",
        click_type=_PATH,
        help="A table: CSV, Parquet, a folder of Parquet files, or a partition. Left out where --db names one.",
    ),
]
DataOption = Annotated[Table, typer.Option("--data", click_type=_PATH, help="This site's table. It stays here.")]
FolderPath = Annotated[Path, typer.Argument(metavar="FOLDER", help="The study's folder, which all parties share.")]
KeyPath = Annotated[
    Path | None,
    typer.Option("--key", envvar="FDTR_KEY", help="The private key to sign with, where the study has a roster."),
]
RoundNumber = Annotated[
    int, typer.Option("--round", min=1, help="Which round of the study this is; a new one begins when keys change.")
]
LikeSites = Annotated[
    int | None,
    typer.Option(
        "--sites",
        min=1,
        help="Judge a secure sum, or tell the cost of differential privacy, for so many sites like this one.",
    ),
]
ReceiveOnly = Annotated[
    bool, typer.Option("--receive-only", help="Send nothing in this study, and learn from the others' total.")
]
PostYes = Annotated[bool, typer.Option("--yes", help="Do not ask before anything is posted.")]
Json = Annotated[bool, typer.Option("--json", help="Print a machine's view instead of a person's.")]
UNSIGNED = "unsigned: the study has no [roster], so nobody can tell who made a file. See `fdtr keys new`."
HeldOut = Annotated[
    Literal["folds", "half"],
    typer.Option("--split", help="folds: each fifth by policies fitted to the rest; half: one half, as in the paper."),
]

Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Sum a partition's rows in so many processes of this machine.")
]
Scheduler = Annotated[
    str | None,
    typer.Option("--scheduler", help="Sum a partition's rows on this site's own Dask cluster: tcp://HOST:PORT."),
]


def spread(context: typer.Context, rows: Trajectories, workers: int | None, scheduler: str | None) -> Trajectories:
    """The rows, summed on the cluster that was asked for until the command ends; as they are if none was."""
    if workers is None and scheduler is None:
        return rows
    from fdtr.site.cluster import on_cluster  # few need it

    if workers is not None and scheduler is not None:
        raise InvalidSettings("--workers starts a cluster on this machine, --scheduler names another. Leave one out.")
    summed: Trajectories = context.with_resource(on_cluster(rows, workers=workers, scheduler=scheduler))
    return summed


def agreed(question: str) -> bool:
    """Ask on a terminal; elsewhere the answer has to be --yes."""
    if not sys.stdin.isatty():
        raise FdtrError("Nothing was written: there is no terminal to ask on. Add --yes to answer beforehand.")
    return typer.confirm(question, err=True)


def spare_inputs(out: Path, *inputs: Table | None) -> None:
    """Refuse to overwrite a file that a command reads, or one that fdtr did not write."""
    if out.is_file() and not is_container(out):
        raise OutputExists(f"{out} is a file that fdtr did not write. Nothing was written. Name another with --out.")
    if any(isinstance(path, Path) and path.resolve() == out.resolve() for path in inputs):
        raise OutputExists(f"{out} is one of the files to read. Nothing was written. Name another with --out.")


def round_of(study: Study, number: int) -> Round:
    """The round in which messages are written and read. Notes where nobody can tell who wrote them."""
    if not study.roster:
        show.note(UNSIGNED)
    elif HUB not in study.roster:
        show.note("the roster has no key of the hub, so totals are not signed.")
    return numbered_round(study.fingerprint, study.roster, number)


def load_key(path: Path) -> Key:
    """The key in a file, with its passphrase where it has one."""
    return Key.load(path, passphrase(f"Passphrase of {path}") if is_locked(path) else None)


def optional_key(path: Path | None) -> Key | None:
    """The key in a file; None where no file was named."""
    return load_key(path) if path else None


def passphrase(question: str, *, twice: bool = False) -> str:
    """The passphrase in FDTR_PASSPHRASE or in the file that FDTR_PASSPHRASE_FILE names, else asked on a terminal."""
    stated = stated_passphrase()
    if stated:
        return stated
    if not sys.stdin.isatty():
        raise InvalidSettings(
            "A passphrase is needed, and there is no terminal to ask on. Name a file that holds it in "
            "FDTR_PASSPHRASE_FILE."
        )
    return str(typer.prompt(question, hide_input=True, confirmation_prompt=twice))
