"""From a hospital's tables to a study's: `fdtr extract`."""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import typer

from fdtr.cli import show
from fdtr.cli.options import Json
from fdtr.errors import EmptyCohort, InvalidSettings

if TYPE_CHECKING:
    from fdtr.cohort.mimic_iv import Sepsis as Kind
    from fdtr.cohort.settings import Extraction
    from fdtr.cohort.steps import Extracted

Chosen = TypeVar("Chosen", bound="Extraction")

extract_app = typer.Typer(
    help="From a hospital's tables to a study's table. Writes one folder on this machine; sends nothing.",
    no_args_is_help=True,
)

Out = Annotated[Path, typer.Option(help="The folder to make: table, draft of a study, dictionary, flow.")]
OUT = Path("cohort")
SettingsFile = Annotated[
    Path | None,
    typer.Option("--settings", help="A file (TOML) with settings to change, or of an earlier table: settings.toml."),
]
AgreedStudy = Annotated[
    Path | None, typer.Option("--study", help="A study file whose steps and cuts of doses the table is to have.")
]
PrintSettings = Annotated[
    bool, typer.Option("--print-settings", help="Print all settings and what they mean (TOML), and do nothing else.")
]
SiteName = Annotated[
    str | None, typer.Option("--site", help="All of it is this one site's; its units are not told apart.")
]
OneSite = Annotated[bool, typer.Option("--one-site", help="Let the table have a single unit; its name stays.")]
Memory = Annotated[
    str | None, typer.Option(help="Most memory that DuckDB takes before it goes on in temporary files, such as 2GB.")
]
Teaching = Annotated[
    bool,
    typer.Option("--teaching", help="Public teaching data: relax the disclosure rules of the drafted study, visibly."),
]


class Sepsis(StrEnum):
    """Who has sepsis, in MIMIC-IV."""

    sepsis3 = "sepsis3"
    icd = "icd"


@extract_app.callback()
def sources() -> None:
    """From a hospital's tables to a study's table."""
    # To be ended is to leave: what lies in temporary files goes with it.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def loaded(model: type[Chosen], file: Path | None, study: Path | None) -> Chosen:
    """The settings of an extraction: those of a file, or the defaults, with the steps and cuts of an agreed study."""
    from fdtr.study import Study

    settings = model.load(file) if file else model()
    return settings.agreeing_with(Study.load(study)) if study else settings


def printed(settings: Extraction) -> NoReturn:
    """Print all settings, and do nothing else."""
    show.line(settings.as_toml().rstrip())
    raise typer.Exit


def limit(memory: str | None) -> str:
    """The memory that was asked for, or the default."""
    from fdtr.cohort.engines import MEMORY

    return memory or MEMORY


@extract_app.command("mimic-iv")
def mimic_iv(
    db: Annotated[str, typer.Option(help="duckdb:FILE or postgresql://USER@HOST/DATABASE; it is only read.")] = "",
    out: Out = OUT,
    settings: SettingsFile = None,
    study: AgreedStudy = None,
    sepsis: Annotated[Sepsis | None, typer.Option(help="sepsis3: mimic-code's table, the default; icd: codes.")] = None,
    stays: Annotated[
        Path | None, typer.Option(help="Who has sepsis: a CSV file with stay_id and, if known, onset.")
    ] = None,
    site: SiteName = None,
    one_site: OneSite = False,
    memory: Memory = None,
    teaching: Teaching = False,
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
    from fdtr.cohort.mimic_settings import MimicExtraction
    from fdtr.cohort.target_trial import target_trial
    from fdtr.cohort.writing import parts_of, refuse_taken, write

    asked = loaded(MimicExtraction, settings, study)
    if print_settings:
        printed(asked)
    if not db:
        raise InvalidSettings("Name the database: --db duckdb:FILE or --db postgresql://USER@HOST/DATABASE.")
    refuse_taken(out)  # before the work, not after it
    kind = _who(sepsis, stays, asked)
    listed = read_stays(stays) if stays else None
    asked = asked.made_with(site=site, one_site=one_site or None, sepsis=kind)
    with open_database(db, memory=limit(memory)) as database, show.progress() as progress:
        found = extract_mimic_iv(database, asked, kind, listed, progress, sites=asked.fewest_sites)
    beside: dict[str, bytes] = {}
    try:
        whole = parts_of(complete_cases(found), draft_study(asked, ragged=False, teaching=teaching))
    except EmptyCohort as reason:  # the table itself is not: it is written, without them
        found = replace(found, notes=(*found.notes, f"There is no folder complete/. {reason}"))
    else:
        beside = {f"complete/{name}": whole[name] for name in ("table.parquet", "study.toml", "flow.csv", "flow.svg")}
    trial = target_trial(found, LOOKS_AHEAD[kind])
    write(found, draft_study(asked, teaching=teaching), out, {**beside, "target-trial.md": trial.encode()})
    told(found, out, json)


def _who(sepsis: Sepsis | None, stays: Path | None, asked: Extraction) -> Kind:
    """Who has sepsis: by the options, else by the settings of an earlier table."""
    if sepsis is not None and stays is not None:
        raise InvalidSettings("--sepsis and --stays both say who has sepsis. Give one of them.")
    kind: Kind = "listed" if stays is not None else sepsis.value if sepsis else asked.options.sepsis or "sepsis3"
    if kind == "listed" and stays is None:
        raise InvalidSettings("The table of these settings was made with a list of stays. Give that list with --stays.")
    return kind


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
    left_out = found.left_out.to_pylist()
    for note in found.notes:
        show.note(note)
    if machine:
        counts = {"flow": flow, "sites": sites.to_pylist(), "missing": missing, "left_out": left_out}
        show.as_json({"folder": str(out), **counts, "notes": list(found.notes)})
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
    if left_out:
        rows = [[r["reason"], r["name"], f"{r['entries']:,}"] for r in left_out]
        show.table("Left out", ["reason", "of", "entries"], rows)
    show.line(f"Wrote {out}/. Read dictionary.md and study.toml there, decide, then run:")
    show.line(f"  {show.program()} run {out}/study.toml {out}/table.parquet --out results")
