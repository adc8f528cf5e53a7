"""The commands that turn what hospitals hold into a table of trajectories and a draft of its study."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fdtr.cli import show

if TYPE_CHECKING:
    from fdtr.cohort.settings import Extraction
    from fdtr.cohort.steps import Extracted

extract_app = typer.Typer(
    help="From a hospital's tables to trajectories, and a draft of their study.", no_args_is_help=True
)

Out = Annotated[Path, typer.Option(help="The new folder for table, study, dictionary and flow of the cohort.")]
SettingsPath = Annotated[
    Path | None, typer.Option("--settings", help="Settings of the extraction (TOML); start from --print-settings.")
]
OneSite = Annotated[
    str | None, typer.Option("--site", help="The tables are those of this one site; its units are not told apart.")
]
Teaching = Annotated[
    bool,
    typer.Option("--teaching", help="Public teaching data: relax the disclosure rules of the drafted study, visibly."),
]


def printing(settings: Callable[[], Extraction]) -> object:
    """The option that prints the default settings of a command and does nothing else."""

    def printed(asked: bool) -> None:
        if asked:
            show.line(settings().as_toml().rstrip())
            raise typer.Exit

    return typer.Option(
        "--print-settings", callback=printed, is_eager=True, help="Print the default settings, and do nothing else."
    )


def _clif_settings() -> Extraction:
    from fdtr.cohort.clif_settings import ClifExtraction

    return ClifExtraction()


@extract_app.command()
def clif(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of CLIF tables: clif_adt.parquet, ….")],
    out: Out,
    settings: SettingsPath = None,
    site: OneSite = None,
    file_type: Annotated[str, typer.Option(help="parquet or csv.")] = "parquet",
    time_zone: Annotated[str, typer.Option(help="Of times that state none, such as America/Chicago.")] = "UTC",
    teaching: Teaching = False,
    _printed: Annotated[bool, printing(_clif_settings)] = False,
) -> None:
    """CLIF tables (Common Longitudinal ICU data Format) as a table of trajectories with a draft of its study.

    Reads the tables where they lie and writes one new folder, readable by you alone. Sends nothing. Sites are the first
    unit of each stay, or --site.
    """
    from fdtr.cohort.clif import extract
    from fdtr.cohort.clif_settings import ClifExtraction
    from fdtr.cohort.writing import refuse_taken

    refuse_taken(out)  # before the work, not after it
    chosen = ClifExtraction.load(settings) if settings else ClifExtraction()
    with show.progress() as progress:
        found = extract(folder, chosen, site=site, file_type=file_type, zone=time_zone, progress=progress)
    written(found.extracted, out, teaching, {"left-out.csv": found.left_out_as_csv()})


def _meds_settings() -> Extraction:
    from fdtr.cohort.meds_settings import example

    return example()


@extract_app.command()
def meds(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The MEDS dataset: the folder with data/*.parquet.")],
    codes: Annotated[
        Path, typer.Option("--map", help="What the codes mean (TOML): stays, covariates, doses, outcome.")
    ],
    out: Out,
    site: OneSite = None,
    teaching: Teaching = False,
    _printed: Annotated[bool, printing(_meds_settings)] = False,
) -> None:
    """MEDS events (Medical Event Data Standard) as a table of trajectories with a draft of its study.

    Codes are free in MEDS: --print-settings prints a map to start from. Reads the shards where they lie and writes one
    new folder, readable by you alone. Sends nothing.
    """
    from fdtr.cohort.meds import extract
    from fdtr.cohort.meds_settings import MedsExtraction
    from fdtr.cohort.writing import refuse_taken

    refuse_taken(out)
    chosen = MedsExtraction.load(codes)
    with show.progress() as progress:
        found = extract(folder, chosen, site=site, progress=progress)
    written(found.extracted, out, teaching, {"left-out.csv": found.left_out_as_csv()})


def written(found: Extracted, out: Path, teaching: bool, extra: Mapping[str, bytes] | None = None) -> None:
    """Write what was extracted, and say what it is and what to do next."""
    from fdtr.cohort.drafting import draft_study
    from fdtr.cohort.writing import write

    write(found, draft_study(found.settings, teaching=teaching), out, extra)
    rows = [[str(row["rule"]), f"{row['removed']:,}", f"{row['left']:,}"] for row in found.flow.as_rows()]
    show.table("Stays, and how many each rule removed", ["rule", "removed", "left"], rows)
    gaps = [[e.column, f"{e.missing:,}", f"{e.charted:,}", f"{e.dropped:,}"] for e in found.dictionary if e.charted]
    show.table("Charted values", ["column", "rows without", "charted", "not plausible"], gaps)
    show.line(
        f"Table, draft of the study, dictionary and flow are in {out}/. They hold patients' rows: keep them here."
    )
    show.line(
        f"Read {out}/study.toml, then run: {show.program()} run {out}/study.toml {out}/table.parquet --out RESULTS"
    )
