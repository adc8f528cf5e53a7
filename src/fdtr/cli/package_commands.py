"""The folder that a CLIF site's analyst runs: made with `fdtr site package`, run with `fdtr site run`."""

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from fdtr.cli import show
from fdtr.cli.options import KeyPath, RoundNumber
from fdtr.cli.site_commands import ask_and_release
from fdtr.cohort import ClifSettings, extract_clif, write_extraction
from fdtr.cohort.site_package import Config, Package, write_package
from fdtr.container import is_container
from fdtr.disclosure import TableOne
from fdtr.errors import MissingFile, OutputExists
from fdtr.exchange.release import AGREED_BEFOREHAND, release_table
from fdtr.exchange.site_state.ledger import site_ledger
from fdtr.exchange.wire import TABLE_HEADINGS, table_lines
from fdtr.pipeline.result_folder import file_names
from fdtr.site.rows import read_trajectories
from fdtr.site.site_table_one import release_of_table, summarize_table
from fdtr.study import Study
from fdtr.trajectories import Trajectories

TABLE_ONE = "table1.csv"


def package(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to make.")],
    study: Annotated[Path, typer.Option(help="The study file (TOML) that all sites agreed on.")],
    settings: Annotated[
        Path | None, typer.Option(help="Settings of `fdtr extract clif` (TOML); see its --print-settings.")
    ] = None,
) -> None:
    """Make a folder that the analysts of CLIF sites run. It has what they are used to: config.json, run.sh, run.bat.

    Holds the study and the settings, no data. A run leaves in its output/ only what may leave the site.
    """
    chosen = ClifSettings.load(settings) if settings else ClifSettings()
    write_package(folder, study, chosen)
    show.line(f"Wrote {folder}/. Give a copy to every site; README.md there says what its analyst does.")


def run_package(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that `fdtr site package` made.")] = Path(),
    key: KeyPath = None,
    round_number: RoundNumber = 1,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before writing what may leave.")] = False,
) -> None:
    """Run this site's package: write one message of sums and a Table 1. Nothing is sent.

    Turns the tables into trajectories first. Patients' rows go to private/, what may leave to output/. Where a
    disclosure rule refuses, or you say no, both stay as they were.
    """
    paths = Package(folder)
    if not paths.config.is_file():
        raise MissingFile(f"There is no {paths.config}. Name a folder that `fdtr site package` made.")
    config, study = Config.load(paths.config), Study.load(paths.study)
    name = file_names([config.site_name])[config.site_name]
    message, table_one = paths.output / f"{name}.fdtr", paths.output / f"{name}-{TABLE_ONE}"
    if message.is_file() and not is_container(message):
        raise OutputExists(f"{message} is a file that fdtr did not write. Nothing was written. Move it away.")
    paths.prepare()
    try:
        table = _extract(paths, config)
        described = _judged_table(study, paths, table)
        question = None if yes else f"Write all this to {paths.output}/?"
        if not study.disclosure.secure_sum:
            ask_and_release(paths.study, table, message, None, key, round_number, question)
        paths.accept()  # from here on private/ and output/ are of the same patients
    finally:
        paths.discard()
    if described is not None:
        release_table(study, described.rows, described.table, table_one, confirm=AGREED_BEFOREHAND)
        show.line(f"Wrote {table_one}.")
    if study.disclosure.secure_sum:
        table = paths.private / table.name
        show.line(f"The study asks for a secure sum: take part through its folder with {table} (fdtr site join).")
        return
    show.line(
        f"{paths.output}/ holds what may leave. Look at it, then give it to the hub. {paths.private}/ stays here."
    )


def _extract(paths: Package, config: Config) -> Path:
    """Write this site's new table beside the one of an earlier run, and return its path."""
    chosen, tables = ClifSettings.load(paths.settings), config.tables(paths.folder)
    with show.progress() as progress:
        extracted = extract_clif(
            tables,
            chosen,
            site=config.site_name,
            file_type=config.file_type,
            time_zone=config.time_zone,
            progress=progress,
        )
    write_extraction(extracted, paths.study.read_text(encoding="utf-8"), paths.new)
    rows = [[str(row["rule"]), f"{row['removed']:,}", f"{row['left']:,}"] for row in extracted.flow.as_rows()]
    show.table("Stays, for your own eyes", ["rule", "removed", "left"], rows)
    return paths.new / "table.parquet"


class _DescribedPatients(NamedTuple):
    """A Table 1 that may leave, and the patients whom it describes."""

    table: TableOne
    rows: Trajectories


def _judged_table(study: Study, paths: Package, path: Path) -> _DescribedPatients | None:
    """Table 1, held to rule ONCE and shown; None where the study promises noise, or that no site's numbers are seen."""
    if study.disclosure.secure_sum:
        show.line("No Table 1: the study asks for a secure sum, and a Table 1 would show this site's own numbers.")
        return None
    if study.disclosure.epsilon is not None:
        show.line("No Table 1: the study asks for differential privacy, and a Table 1 has no noise.")
        return None
    units = {covariate.name: covariate.unit for covariate in ClifSettings.load(paths.settings).covariates}
    rows = read_trajectories(path, study)
    units_in_study = {c.name: units.get(study.columns.of(c.name), "") for c in study.covariates}
    table = summarize_table(study, rows, path, units_in_study)
    site_ledger().require(release_of_table(study, rows, table))  # before anybody is asked about the message
    show.table("Table 1, as it would leave", TABLE_HEADINGS, table_lines(table))
    return _DescribedPatients(table, rows)
