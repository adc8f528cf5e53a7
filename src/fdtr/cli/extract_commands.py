"""`fdtr extract`: from a hospital's tables to a study's table."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, NoReturn, TypeVar

import typer

from fdtr.cli import show
from fdtr.cli.options import Json
from fdtr.cohort import (
    ClifSettings,
    ExtractedTable,
    MedsSettings,
    MimicSettings,
    complete_cases,
    draft_study_from_settings,
    draft_target_trial,
    extract_clif,
    extract_meds,
    extract_mimic_iv,
    open_database,
    read_episodes,
    read_stays,
    write_episodes,
    write_extraction,
)
from fdtr.cohort.extraction_folder import files_of, require_new_folder
from fdtr.cohort.extraction_settings import ExtractionSettings
from fdtr.cohort.extraction_settings import Sepsis as SepsisRule
from fdtr.cohort.meds import example_settings
from fdtr.errors import EmptyCohort, InvalidSettings
from fdtr.study import Study

SettingsType = TypeVar("SettingsType", bound=ExtractionSettings)

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


Sepsis = Literal["sepsis3", "icd"]


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
    """A sepsis cohort like the paper's from MIMIC-IV. Sites are the units where stays began.

    The table is ragged: patients who die or leave early are kept, with how their stay ended. Complete cases, as in
    the paper, lie beside it, in complete/. Nothing is written to the database, and nothing about a patient is printed.
    """
    chosen = _load_settings(MimicSettings, settings, study)
    if print_settings:
        _print_settings(chosen)
    if not db:
        raise InvalidSettings("Name the database: --db duckdb:FILE or --db postgresql://USER@HOST/DATABASE.")
    require_new_folder(out)  # before the work, not after it
    rule = _sepsis_rule(sepsis, stays, chosen)
    listed = read_stays(stays) if stays else None
    chosen = chosen.with_options(site=site, one_site=one_site, sepsis=rule)
    with show.progress() as progress, open_database(db, memory=memory) as database:
        extracted = extract_mimic_iv(database, chosen, rule, listed, progress)
    extracted, files = _with_complete_cases(extracted, teaching)
    files["target-trial.md"] = draft_target_trial(extracted).encode()
    _write_and_report(extracted, out, files, teaching, json)


def _sepsis_rule(sepsis: Sepsis | None, stays: Path | None, settings: ExtractionSettings) -> SepsisRule:
    """Who has sepsis: by the options, else by the settings of an earlier table."""
    if sepsis is not None and stays is not None:
        raise InvalidSettings("--sepsis and --stays both say who has sepsis. Give one of them.")
    if stays is not None:
        return "listed"
    rule: SepsisRule = sepsis or settings.options.sepsis or "sepsis3"
    if rule == "listed":
        raise InvalidSettings("The table of these settings was made with a list of stays. Give that list with --stays.")
    return rule


def _with_complete_cases(extracted: ExtractedTable, teaching: bool) -> tuple[ExtractedTable, dict[str, bytes]]:
    """The files of complete/. If no stay is complete there are none, and a note of the table says why."""
    try:
        complete = complete_cases(extracted)
    except EmptyCohort as reason:
        return replace(extracted, notes=(*extracted.notes, f"There is no folder complete/. {reason}")), {}
    files = files_of(complete, draft_study_from_settings(extracted.settings, ragged=False, teaching=teaching))
    names = ("table.parquet", "study.toml", "flow.csv", "flow.svg")
    return extracted, {f"complete/{name}": files[name] for name in names}


def clif(
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="The folder of CLIF tables: clif_adt.parquet, ….")
    ] = None,
    out: Out = OUT,
    settings: SettingsFile = None,
    study: AgreedStudy = None,
    site: SiteName = None,
    one_site: OneSite = False,
    file_type: Annotated[str | None, typer.Option(help="parquet, the default, or csv.")] = None,
    time_zone: Annotated[
        str | None, typer.Option(help="Of times that state none, such as America/Chicago; else UTC.")
    ] = None,
    onsets: Annotated[
        Path | None,
        typer.Option(help="When step 0 begins, and of whom: a CSV file with hospitalization_id and onset."),
    ] = None,
    memory: Memory = None,
    teaching: Teaching = False,
    print_settings: PrintSettings = False,
    json: Json = False,
) -> None:
    """CLIF tables as a table of trajectories with a draft of its study.

    CLIF is the Common Longitudinal ICU data Format. Reads the tables where they lie and writes one new folder, readable
    by you alone. Sends nothing. Sites are the first unit of each stay, or --site.
    """
    chosen = _load_settings(ClifSettings, settings, study)
    if print_settings:
        _print_settings(chosen)
    tables = _required(folder, "the folder of CLIF tables")
    require_new_folder(out)
    chosen = chosen.with_options(site=site, one_site=one_site, file_type=file_type, time_zone=time_zone)
    with show.progress() as progress:
        extracted = extract_clif(tables, chosen, onsets=onsets, memory=memory, progress=progress)
    _write_and_report(extracted, out, {"target-trial.md": draft_target_trial(extracted).encode()}, teaching, json)


def meds(
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="The MEDS dataset: the folder with data/*.parquet.")
    ] = None,
    codes: Annotated[
        Path | None,
        typer.Option("--map", "--settings", help="What the codes mean (TOML), with settings to change beside it."),
    ] = None,
    out: Out = OUT,
    study: AgreedStudy = None,
    site: SiteName = None,
    one_site: OneSite = False,
    memory: Memory = None,
    teaching: Teaching = False,
    print_settings: PrintSettings = False,
    json: Json = False,
) -> None:
    """MEDS events as a table of trajectories with a draft of its study.

    Codes are free in MEDS, the Medical Event Data Standard: --print-settings prints a map to start from. Reads the
    shards where they lie and writes one new folder, readable by you alone. Sends nothing.
    """
    if print_settings:
        _print_settings(_load_settings(MedsSettings, codes, study) if codes else example_settings())
    dataset = _required(folder, "the folder of the MEDS dataset")
    if codes is None:
        raise typer.BadParameter("say what the codes mean; --print-settings prints a map", param_hint="--map")
    chosen = _load_settings(MedsSettings, codes, study).with_options(site=site, one_site=one_site)
    require_new_folder(out)
    with show.progress() as progress:
        extracted = extract_meds(dataset, chosen, memory=memory, progress=progress)
    # No target trial: only the author of the map knows what begins a stay.
    _write_and_report(extracted, out, {}, teaching, json)


def minari(
    datasets: Annotated[
        list[str], typer.Argument(metavar="SITE=DIR", help="A dataset's folder, and what to call its site.")
    ],
    out: Out = OUT,
    name: Annotated[str, typer.Option(help="What to call the study.")] = "episodes",
    steps: Annotated[
        int | None, typer.Option(min=1, help="Cut episodes after so many steps; else the longest counts.")
    ] = None,
    teaching: Teaching = False,
    json: Json = False,
) -> None:
    """Episodes of Minari datasets as a table of trajectories. Each dataset is one site.

    Reads the folders and writes one new folder with the table and a draft of its study. Sends nothing. Actions have to
    be discrete, observations vectors or discrete.
    """
    require_new_folder(out)
    with show.progress() as progress:
        episodes = read_episodes(_sites(datasets), steps, progress)
    write_episodes(episodes, name, out, teaching=teaching)
    table = episodes.table
    if json:
        sites = table.group_by("site").aggregate([("patient", "count_distinct"), ("patient", "count")])
        show.as_json({"folder": str(out), "steps": episodes.horizon, "sites": sites.sort_by("site").to_pylist()})
        return
    show.line(f"Wrote {out}/: {table.num_rows:,} rows, {episodes.horizon} steps at most. Read study.toml, then run:")
    _show_next_command(out)


def _load_settings(model: type[SettingsType], file: Path | None, study: Path | None) -> SettingsType:
    """Settings from a file, or the defaults, with the steps and cuts of an agreed study."""
    settings = model.load(file) if file else model()
    return settings.agreeing_with(Study.load(study)) if study else settings


def _print_settings(settings: ExtractionSettings) -> NoReturn:
    """Print all settings and exit."""
    show.line(settings.as_toml().rstrip())
    raise typer.Exit


def _required(folder: Path | None, what: str) -> Path:
    """The folder to read. It is optional with --print-settings only."""
    if folder is None:
        raise typer.BadParameter(f"name {what}", param_hint="DIR")
    return folder


def _sites(arguments: list[str]) -> dict[str, Path]:
    """Folders by site, from arguments SITE=DIR."""
    pairs = [argument.partition("=") for argument in arguments]
    if any(not (site and folder) for site, _, folder in pairs):
        raise typer.BadParameter("give each dataset as SITE=DIR", param_hint="SITE=DIR")
    if len({site for site, _, _ in pairs}) < len(pairs):
        raise typer.BadParameter("a site is named twice; each dataset is one site", param_hint="SITE=DIR")
    return {site: Path(folder) for site, _, folder in pairs}


def _write_and_report(
    extracted: ExtractedTable, out: Path, files: dict[str, bytes], teaching: bool, json: bool
) -> None:
    """Write the folder with a draft of the study and further `files`, and show counts, never a patient's value."""
    drafted = draft_study_from_settings(extracted.settings, cluster=extracted.has_repeated_persons, teaching=teaching)
    write_extraction(extracted, drafted, out, files)
    table, flow = extracted.table, extracted.flow.as_rows()
    sites = table.group_by("site").aggregate([("patient", "count_distinct"), ("patient", "count")]).sort_by("site")
    covariates = {covariate.name for covariate in extracted.settings.covariates}
    missing = {entry.column: entry.missing for entry in extracted.dictionary if entry.column in covariates}
    left_out = extracted.left_out.to_pylist() if extracted.left_out is not None else []
    for note in extracted.notes:
        show.note(note)
    if json:
        counts = {"flow": flow, "sites": sites.to_pylist(), "missing": missing, "left_out": left_out}
        show.as_json({"folder": str(out), **counts, "notes": list(extracted.notes)})
        return
    show.table(
        "Stays", ["rule", "removed", "left"], [[str(r["rule"]), f"{r['removed']:,}", f"{r['left']:,}"] for r in flow]
    )
    rows = [[r["site"], f"{r['patient_count_distinct']:,}", f"{r['patient_count']:,}"] for r in sites.to_pylist()]
    show.table("Sites", ["site", "stays", "rows"], rows)
    levels = table.group_by("action").aggregate([("patient", "count")])
    by_level = dict(zip(levels["action"].to_pylist(), levels["patient_count"].to_pylist(), strict=True))
    labels = extracted.settings.dose.labels
    shares = [[label, f"{by_level.get(level, 0) / table.num_rows:.0%}"] for level, label in enumerate(labels)]
    show.table("Doses", ["level", "rows"], shares)
    show.table("Missing", ["column", "rows"], [[n, f"{count / table.num_rows:.0%}"] for n, count in missing.items()])
    if left_out:
        rows = [[r["reason"], r["name"], f"{r['entries']:,}"] for r in left_out]
        show.table("Left out", ["reason", "of", "entries"], rows)
    show.line(f"Wrote {out}/. Read dictionary.md and study.toml there, decide, then run:")
    _show_next_command(out)


def _show_next_command(out: Path) -> None:
    show.line(f"  {show.program()} run {out}/study.toml {out}/table.parquet --out results")
