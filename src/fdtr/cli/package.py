"""The folder that a CLIF site's analyst runs: made with `fdtr site package`, run with `fdtr site run`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fdtr.cli import show
from fdtr.cli.options import agreed
from fdtr.cli.roles import summarize
from fdtr.cli.signed import KeyPath, RoundNumber
from fdtr.errors import FdtrError, MissingFile

if TYPE_CHECKING:
    from fdtr.cohort.package import Package
    from fdtr.study import Study

TABLE_ONE = "table1.csv"


def package(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to make.")],
    study: Annotated[Path, typer.Option(help="The study file (TOML) that all sites agreed on.")],
    settings: Annotated[
        Path | None, typer.Option(help="Settings of `fdtr extract clif` (TOML); see its --print-settings.")
    ] = None,
) -> None:
    """Make a folder that the analysts of CLIF sites run as they are used to: config.json, run.sh, run.bat.

    Holds the study and the settings, no data. A run leaves in its output/ only what may leave the site.
    """
    from fdtr.cohort.clif_settings import ClifExtraction
    from fdtr.cohort.package import write_package

    chosen = ClifExtraction.load(settings) if settings else ClifExtraction()
    write_package(folder, study, chosen)
    show.line(f"Wrote {folder}/. Give a copy to every site; README.md there says what its analyst does.")


def run_package(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that `fdtr site package` made.")] = Path(),
    key: KeyPath = None,
    round_number: RoundNumber = 1,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before writing what may leave.")] = False,
) -> None:
    """Run this site's package: tables to trajectories, then one message of sums and a Table 1. Nothing is sent.

    Patients' rows go to private/, what may leave to output/, and to output/ nothing where a disclosure rule refuses.
    """
    from fdtr.cohort.package import Config, Package
    from fdtr.pipeline.folders import file_names
    from fdtr.study import Study

    here = Package(folder)
    if not here.config.is_file():
        raise MissingFile(f"There is no {here.config}. Name a folder that `fdtr site package` made.")
    config, study = Config.load(here.config), Study.load(here.study)
    site = config.site_name
    table = _extracted(here, site, folder / config.tables_path, config.file_type, config.time_zone)
    here.output.mkdir(exist_ok=True)
    if study.disclosure.secure_sum:
        show.line(f"The study asks for a secure sum: take part through its folder with {table} (fdtr site join).")
    else:
        message = here.output / f"{file_names([site])[site]}.fdtr"
        summarize(here.study, table, message, key=key, round_number=round_number, yes=yes)
    _tell_table(study, table, here.output / TABLE_ONE, yes)
    show.line(f"{here.output}/ holds what may leave. Look at it, then give it to the hub. {here.private}/ stays here.")


def _extracted(here: Package, site: str, tables: Path, file_type: str, zone: str) -> Path:
    """The table of this site, in the place of one of an earlier run."""
    from fdtr.cohort.clif import extract
    from fdtr.cohort.clif_settings import ClifExtraction
    from fdtr.cohort.writing import write

    chosen = ClifExtraction.load(here.settings)
    with show.progress() as progress:
        found = extract(tables, chosen, site=site, file_type=file_type, zone=zone, progress=progress)
    if (here.private / "settings.toml").is_file():  # an earlier run's; anything else is not ours to remove
        shutil.rmtree(here.private)
    study, flow = here.study.read_text(encoding="utf-8"), found.extracted.flow
    write(found.extracted, study, here.private, {"left-out.csv": found.left_out_as_csv()})
    show.line(f"{flow.left:,} of {flow.found:,} stays; {here.private}/flow.csv says what each rule removed.")
    return here.private / "table.parquet"


def _tell_table(study: Study, table: Path, out: Path, yes: bool) -> None:
    """Write Table 1, held to rule ONCE, unless the study promises noise, which it has none of."""
    from fdtr.exchange.kept import ledger
    from fdtr.exchange.table_one import HEADINGS, write_table
    from fdtr.site import read_trajectories, release_of_table, tell_table

    if study.disclosure.epsilon is not None:
        show.line("No Table 1: the study asks for differential privacy, and a Table 1 has no noise.")
        return
    rows, releases = read_trajectories(table, study), ledger()
    told = tell_table(study, rows)
    release = release_of_table(study, rows, told)
    releases.require(release)
    show.table("Table 1, as it would leave", HEADINGS, [row.cells for row in told.rows])
    if not yes and not agreed(f"Write this to {out}?"):
        raise FdtrError("No Table 1 was written.")
    with releases.recording(release):
        write_table(told, out)
