"""`fdtr extract` from files: CLIF tables, MEDS events, Minari episodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fdtr.cli import show
from fdtr.cli.extract import (
    OUT,
    AgreedStudy,
    Memory,
    OneSite,
    Out,
    PrintSettings,
    SettingsFile,
    SiteName,
    Teaching,
    limit,
    loaded,
    printed,
    told,
)
from fdtr.cli.options import Json

if TYPE_CHECKING:
    from fdtr.cohort.sources import Read


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
    """CLIF tables (Common Longitudinal ICU data Format) as a table of trajectories with a draft of its study.

    Reads the tables where they lie and writes one new folder, readable by you alone. Sends nothing. Sites are the first
    unit of each stay, or --site.
    """
    from fdtr.cohort.clif import extract
    from fdtr.cohort.clif_settings import ClifExtraction
    from fdtr.cohort.writing import refuse_taken

    chosen = loaded(ClifExtraction, settings, study)
    if print_settings:
        printed(chosen)
    place = _named(folder, "the folder of CLIF tables")
    refuse_taken(out)  # before the work, not after it
    chosen = chosen.made_with(one_site=one_site or None)
    with show.progress() as progress:
        found = extract(
            place,
            chosen,
            site=site,
            file_type=file_type,
            zone=time_zone,
            onsets=onsets,
            memory=limit(memory),
            progress=progress,
        )
    written(found, out, teaching, json)


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
    """MEDS events (Medical Event Data Standard) as a table of trajectories with a draft of its study.

    Codes are free in MEDS: --print-settings prints a map to start from. Reads the shards where they lie and writes one
    new folder, readable by you alone. Sends nothing.
    """
    from fdtr.cohort.meds import extract
    from fdtr.cohort.meds_settings import MedsExtraction, example
    from fdtr.cohort.writing import refuse_taken

    if print_settings:
        printed(loaded(MedsExtraction, codes, study) if codes else example())
    place = _named(folder, "the folder of the MEDS dataset")
    if codes is None:
        raise typer.BadParameter("say what the codes mean; --print-settings prints a map", param_hint="--map")
    chosen = loaded(MedsExtraction, codes, study).made_with(one_site=one_site or None)
    refuse_taken(out)
    with show.progress() as progress:
        found = extract(place, chosen, site=site, memory=limit(memory), progress=progress)
    written(found, out, teaching, json)


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
    """Episodes of Minari datasets as a table of trajectories with a draft of its study; each dataset is one site.

    Reads the folders and writes one new folder. Sends nothing. Actions have to be discrete, observations vectors or
    discrete.
    """
    from fdtr.cohort.episodes import write_episodes
    from fdtr.cohort.minari import read_episodes
    from fdtr.cohort.writing import refuse_taken

    refuse_taken(out)
    with show.progress() as progress:
        found = read_episodes(_sites(datasets), steps, progress)
    write_episodes(found, name, out, teaching=teaching)
    rows = found.table.num_rows
    if json:
        sites = found.table.group_by("site").aggregate([("patient", "count_distinct"), ("patient", "count")])
        show.as_json({"folder": str(out), "steps": found.horizon, "sites": sites.sort_by("site").to_pylist()})
        return
    show.line(f"Wrote {out}/: {rows:,} rows, {found.horizon} steps at most. Read study.toml, then run:")
    show.line(f"  {show.program()} run {out}/study.toml {out}/table.parquet --out results")


def _named(folder: Path | None, what: str) -> Path:
    """The folder to read, which only --print-settings does without."""
    if folder is None:
        raise typer.BadParameter(f"name {what}", param_hint="DIR")
    return folder


def _sites(given: list[str]) -> dict[str, Path]:
    """SITE=DIR, as people type it."""
    pairs = [text.partition("=") for text in given]
    if any(not (site and folder) for site, _, folder in pairs):
        raise typer.BadParameter("give each dataset as SITE=DIR", param_hint="SITE=DIR")
    if len({site for site, _, _ in pairs}) < len(pairs):
        raise typer.BadParameter("a site is named twice; each dataset is one site", param_hint="SITE=DIR")
    return {site: Path(folder) for site, _, folder in pairs}


def written(found: Read, out: Path, teaching: bool, json: bool) -> None:
    """Write what was extracted, and say what it is and what to do next."""
    from fdtr.cohort.clif import looks_ahead
    from fdtr.cohort.clif_settings import ClifExtraction
    from fdtr.cohort.drafting import draft_study
    from fdtr.cohort.target_trial import target_trial
    from fdtr.cohort.writing import write

    settings, beside = found.extracted.settings, {"left-out.csv": found.left_out_as_csv()}
    if isinstance(settings, ClifExtraction):  # what begins a stay in MEDS events, only the map's author can say
        trial = target_trial(found.extracted, looks_ahead(settings))
        beside["target-trial.md"] = trial.encode()
    write(found.extracted, draft_study(settings, cluster=found.repeats, teaching=teaching), out, beside)
    told(found.extracted, out, json)
