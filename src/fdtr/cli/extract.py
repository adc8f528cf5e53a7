"""From a hospital's tables to a study's: `fdtr extract`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fdtr.cli import show
from fdtr.cli.options import Json
from fdtr.errors import InvalidSettings

if TYPE_CHECKING:
    from fdtr.cohort.mimic_iv import Sepsis as Kind
    from fdtr.cohort.mimic_settings import MimicExtraction
    from fdtr.cohort.steps import Extracted

extract_app = typer.Typer(
    help="From a hospital's tables to a study's table. Writes one folder on this machine; sends nothing.",
    no_args_is_help=True,
)

Out = Annotated[Path, typer.Option(help="The folder to make: table, draft of a study, dictionary, flow.")]
SettingsFile = Annotated[
    Path | None, typer.Option("--settings", help="Settings (TOML) that differ from the paper's; see --print-settings.")
]
AgreedStudy = Annotated[
    Path | None, typer.Option("--study", help="A study file whose steps and cuts of doses the table is to have.")
]
PrintSettings = Annotated[bool, typer.Option("--print-settings", help="Print all settings (TOML), and do nothing.")]
OneSite = Annotated[bool, typer.Option("--one-site", help="The table is one site's own part: let it have one site.")]
Memory = Annotated[str, typer.Option(help="Most memory that DuckDB takes before it goes on in temporary files.")]


class Sepsis(StrEnum):
    """Who has sepsis, in MIMIC-IV."""

    sepsis3 = "sepsis3"
    icd = "icd"


@extract_app.callback()
def sources() -> None:
    """From a hospital's tables to a study's table."""


def loaded(file: Path | None, study: Path | None, printing: bool) -> MimicExtraction:
    """The settings of an extraction; where they are to be printed, that is all that happens."""
    from fdtr.cohort.mimic_settings import MimicExtraction
    from fdtr.study import Study

    settings = MimicExtraction.load(file) if file else MimicExtraction()
    settings = settings.agreeing_with(Study.load(study)) if study else settings
    if printing:
        show.line(settings.as_toml().rstrip())
        raise typer.Exit
    return settings


@extract_app.command("mimic-iv")
def mimic_iv(
    db: Annotated[str, typer.Option(help="duckdb:FILE or postgresql://USER@HOST/DATABASE; it is only read.")] = "",
    out: Out = Path("mimic-iv"),
    settings: SettingsFile = None,
    study: AgreedStudy = None,
    sepsis: Annotated[Sepsis, typer.Option(help="sepsis3: mimic-code's table; icd: codes.")] = Sepsis.sepsis3,
    stays: Annotated[
        Path | None, typer.Option(help="Who has sepsis: a CSV file with stay_id and, if known, onset.")
    ] = None,
    one_site: OneSite = False,
    memory: Memory = "3GB",
    print_settings: PrintSettings = False,
    json: Json = False,
) -> None:
    """A sepsis cohort like the paper's from MIMIC-IV; sites are the units where stays began.

    The table is ragged: who dies or leaves early stays in it, with how it ended. Complete cases, as in the paper, lie
    beside it, in complete/. Nothing is written to the database, and nothing about a patient is printed.
    """
    from fdtr.cohort.complete import complete_cases
    from fdtr.cohort.drafting import draft_study
    from fdtr.cohort.engines import open_database
    from fdtr.cohort.mimic_iv import LOOKS_AHEAD, extract_mimic_iv, read_stays
    from fdtr.cohort.target_trial import target_trial
    from fdtr.cohort.writing import parts_of, refuse_taken, write

    asked = loaded(settings, study, print_settings)
    if not db:
        raise InvalidSettings("Name the database: --db duckdb:FILE or --db postgresql://USER@HOST/DATABASE.")
    refuse_taken(out)  # before the work, not after it
    listed = read_stays(stays) if stays else None
    kind: Kind = "listed" if listed is not None else "icd" if sepsis is Sepsis.icd else "sepsis3"
    with open_database(db, memory=memory) as database, show.progress() as progress:
        found = extract_mimic_iv(database, asked, kind, listed, progress, sites=1 if one_site else 2)
    whole = parts_of(complete_cases(found), draft_study(asked, ragged=False))
    beside = {f"complete/{name}": whole[name] for name in ("table.parquet", "study.toml", "flow.csv", "flow.svg")}
    trial = target_trial(found, LOOKS_AHEAD[kind])
    write(found, draft_study(asked), out, {**beside, "target-trial.md": trial.encode()})
    told(found, out, json)


def told(found: Extracted, out: Path, machine: bool) -> None:
    """What an extraction says: counts, never a patient's value."""
    flow, labels = found.flow.as_rows(), found.settings.dose.labels
    sites = (
        found.table.group_by("site").aggregate([("patient", "count_distinct"), ("patient", "count")]).sort_by("site")
    )
    levels = found.table.group_by("action").aggregate([("patient", "count")])
    by_level = dict(zip(levels["action"].to_pylist(), levels["patient_count"].to_pylist(), strict=True))
    covariates = {covariate.name for covariate in found.settings.covariates}
    missing = {entry.column: entry.missing for entry in found.dictionary if entry.column in covariates}
    if machine:
        show.as_json({"folder": str(out), "flow": flow, "sites": sites.to_pylist(), "missing": missing})
        return
    show.table(
        "Stays", ["rule", "removed", "left"], [[str(r["rule"]), f"{r['removed']:,}", f"{r['left']:,}"] for r in flow]
    )
    rows = [[r["site"], f"{r['patient_count_distinct']:,}", f"{r['patient_count']:,}"] for r in sites.to_pylist()]
    show.table("Sites", ["site", "stays", "rows"], rows)
    shares = [[label, f"{by_level.get(a, 0) / found.table.num_rows:.0%}"] for a, label in enumerate(labels)]
    show.table("Doses", ["level", "rows"], shares)
    gaps = [[name, f"{count / found.table.num_rows:.0%}"] for name, count in missing.items()]
    show.table("Missing", ["column", "rows"], gaps)
    show.line(f"Wrote {out}/. Read dictionary.md and study.toml there, decide, then run:")
    show.line(f"  {show.program()} run {out}/study.toml {out}/table.parquet --out results")
