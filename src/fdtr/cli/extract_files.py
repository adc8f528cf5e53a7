"""`fdtr extract` from files: CLIF tables, MEDS events, Minari episodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from fdtr.cli import show
from fdtr.cli.extract import AgreedStudy, Out, SettingsFile, told
from fdtr.cli.options import Json

if TYPE_CHECKING:
    from fdtr.cohort.settings import Extraction
    from fdtr.cohort.sources import Read

Chosen = TypeVar("Chosen", bound="Extraction")
SiteName = Annotated[
    str | None, typer.Option("--site", help="All of it is this one site's; its units are not told apart.")
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


def clif(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of CLIF tables: clif_adt.parquet, ….")],
    out: Out,
    settings: SettingsFile = None,
    study: AgreedStudy = None,
    site: SiteName = None,
    file_type: Annotated[str, typer.Option(help="parquet or csv.")] = "parquet",
    time_zone: Annotated[str, typer.Option(help="Of times that state none, such as America/Chicago.")] = "UTC",
    teaching: Teaching = False,
    json: Json = False,
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
    chosen = _agreeing(ClifExtraction.load(settings) if settings else ClifExtraction(), study)
    with show.progress() as progress:
        found = extract(folder, chosen, site=site, file_type=file_type, zone=time_zone, progress=progress)
    written(found, out, teaching, json)


def _meds_settings() -> Extraction:
    from fdtr.cohort.meds_settings import example

    return example()


def meds(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The MEDS dataset: the folder with data/*.parquet.")],
    codes: Annotated[
        Path, typer.Option("--map", help="What the codes mean (TOML): stays, covariates, doses, outcome.")
    ],
    out: Out,
    study: AgreedStudy = None,
    site: SiteName = None,
    teaching: Teaching = False,
    json: Json = False,
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
    chosen = _agreeing(MedsExtraction.load(codes), study)
    with show.progress() as progress:
        found = extract(folder, chosen, site=site, progress=progress)
    written(found, out, teaching, json)


def minari(
    datasets: Annotated[
        list[str], typer.Argument(metavar="SITE=DIR", help="A dataset's folder, and what to call its site.")
    ],
    out: Out,
    name: Annotated[str, typer.Option(help="What to call the study.")] = "episodes",
    steps: Annotated[
        int | None, typer.Option(min=1, help="Cut episodes after so many steps; else the longest counts.")
    ] = None,
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
    write_episodes(found, name, out)
    show.line(f"Wrote {out}/: {found.table.num_rows:,} rows, {found.horizon} steps at most. Read study.toml, then run:")
    show.line(f"  {show.program()} run {out}/study.toml {out}/table.parquet --out results")


def _sites(given: list[str]) -> dict[str, Path]:
    """SITE=DIR, as people type it."""
    pairs = [text.partition("=") for text in given]
    if any(not (site and folder) for site, _, folder in pairs):
        raise typer.BadParameter("give each dataset as SITE=DIR", param_hint="SITE=DIR")
    if len({site for site, _, _ in pairs}) < len(pairs):
        raise typer.BadParameter("a site is named twice; each dataset is one site", param_hint="SITE=DIR")
    return {site: Path(folder) for site, _, folder in pairs}


def _agreeing(settings: Chosen, study: Path | None) -> Chosen:
    """The settings with the steps and cuts of an agreed study."""
    from fdtr.study import Study

    return settings.agreeing_with(Study.load(study)) if study else settings


def written(found: Read, out: Path, teaching: bool, json: bool) -> None:
    """Write what was extracted, and say what it is and what to do next."""
    from fdtr.cohort.clif import LOOKS_AHEAD
    from fdtr.cohort.clif_settings import ClifExtraction
    from fdtr.cohort.drafting import draft_study
    from fdtr.cohort.target_trial import target_trial
    from fdtr.cohort.writing import write

    settings, beside = found.extracted.settings, {"left-out.csv": found.left_out_as_csv()}
    if isinstance(settings, ClifExtraction):  # what begins a stay in MEDS events, only the map's author can say
        trial = target_trial(found.extracted, LOOKS_AHEAD if settings.clif.diagnoses else "")
        beside["target-trial.md"] = trial.encode()
    write(found.extracted, draft_study(settings, cluster=found.repeats, teaching=teaching), out, beside)
    told(found.extracted, out, json)
