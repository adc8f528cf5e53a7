"""Worlds whose truth is known: `fdtr simulate` draws one, `fdtr reproduce` repeats the paper's experiments on them."""

from enum import Enum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fdtr.cli import show, show_results

if TYPE_CHECKING:
    from fdtr.pipeline.reproduce.experiments import Asked, Experiment

reproduce_app = typer.Typer(
    help="The paper's experiments, on worlds whose truth is known. Writes pages, tables and figures; sends nothing.",
    no_args_is_help=True,
)

Out = Annotated[Path, typer.Option(help="The folder for tables (CSV), figures (SVG, PNG) and a page (Markdown).")]
Quick = Annotated[bool, typer.Option("--quick", help="Seconds instead of minutes: shows that it runs, nothing else.")]
Replications = Annotated[int | None, typer.Option(min=2, help="Worlds drawn for each cell.")]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same numbers at any number of processes.")]
Processes = Annotated[int | None, typer.Option(min=1, help="As many as cores if left out.")]

IcuSepsis = Annotated[
    bool,
    typer.Option("--icu-sepsis", help="Also hospitals cut from ICU-Sepsis; pip downloads it once."),
]

PANELS = ("(8,6,15,5)", "(8,6,15,10)", "(20,2,5,5)")


class World(StrEnum):
    """Worlds that can be simulated."""

    linear = "linear"
    authors = "authors"
    sepsis = "sepsis"
    icu_sepsis = "icu-sepsis"


class Behaviour(StrEnum):
    """How clinicians of a linear world act."""

    uniform = "uniform"
    narrow = "narrow"
    softmax = "softmax"


class SharedKind(StrEnum):
    """What shared covariates of a linear world do over time."""

    redrawn = "redrawn"
    static = "static"
    driving = "driving"


class Figure2World(StrEnum):
    """Where Figure 2 is tried."""

    valid = "valid"
    authors = "authors"
    authors_intercept = "authors-intercept"


@reproduce_app.command()
def figure2(
    out: Out = Path("reproductions"),
    world: Annotated[
        Figure2World,
        typer.Option(help="valid: a linear MDP, as the theory asks; authors: their generator."),
    ] = Figure2World.valid,
    panel: Annotated[
        list[int] | None, typer.Option(min=1, max=len(PANELS), help="Only this panel, 1 to 3; may be repeated.")
    ] = None,
    quick: Quick = False,
    replications: Replications = None,
    seed: Seed = 0,
    processes: Processes = None,
) -> None:
    """Value of every method's policies by the number of patients: the paper's Figure 2."""
    from fdtr.pipeline.reproduce.experiments import reproduce_figure2

    options = ["--world", world.value, *(part for number in panel or [] for part in ("--panel", str(number)))]
    asked = _asked(["figure2", *options], quick, replications, seed, processes)
    with show.progress() as progress:
        found = reproduce_figure2(out, asked, world.value, [PANELS[number - 1] for number in panel or []], progress)
    show_results.findings([found], out)


@reproduce_app.command()
def worlds(
    out: Out = Path("reproductions"),
    icu_sepsis: IcuSepsis = False,
    quick: Quick = False,
    replications: Replications = None,
    seed: Seed = 0,
    processes: Processes = None,
) -> None:
    """Is it ever worse than going alone? FDTR against LDTR and Q-learning where assumptions break."""
    _run("worlds", out, _asked(["worlds"], quick, replications, seed, processes, icu_sepsis))


@reproduce_app.command()
def tuning(
    out: Out = Path("reproductions"),
    icu_sepsis: IcuSepsis = False,
    quick: Quick = False,
    replications: Replications = None,
    seed: Seed = 0,
    processes: Processes = None,
) -> None:
    """Does "auto" choose well? Against other rules, and against the best fixed settings in hindsight."""
    _run("tuning", out, _asked(["tuning"], quick, replications, seed, processes, icu_sepsis))


@reproduce_app.command()
def theorems(
    out: Out = Path("reproductions"), quick: Quick = False, seed: Seed = 0, processes: Processes = None
) -> None:
    """What the theorems promise, by experiment: pessimism, bounds, rates, splines, and when sharing fails."""
    _run("theorems", out, _asked(["theorems"], quick, None, seed, processes))


@reproduce_app.command()
def evaluation(
    out: Out = Path("reproductions"), quick: Quick = False, seed: Seed = 0, processes: Processes = None
) -> None:
    """Can values be trusted? How often intervals hold the truth, by every estimator, and where they cannot."""
    _run("evaluation", out, _asked(["evaluation"], quick, None, seed, processes))


@reproduce_app.command()
def effects(
    out: Out = Path("reproductions"), quick: Quick = False, seed: Seed = 0, processes: Processes = None
) -> None:
    """Shared effects: size and power of the test that they are common, and how often their intervals hold."""
    _run("effects", out, _asked(["effects"], quick, None, seed, processes))


def _run(experiment: "Experiment", out: Path, asked: "Asked") -> None:
    from fdtr.pipeline.reproduce.experiments import reproduce

    with show.progress() as progress:
        found = reproduce(experiment, out, asked, progress)
    show_results.findings(found, out)


def _asked(
    words: list[str],
    quick: bool,
    replications: int | None,
    seed: int,
    processes: int | None,
    icu_sepsis: bool = False,
) -> "Asked":
    """What was asked for; the command goes into captions with what changes a number, not with what does not."""
    from fdtr.pipeline.reproduce.experiments import Asked

    words = ["fdtr", "reproduce", *words]
    words += ["--icu-sepsis"] if icu_sepsis else []
    words += ["--quick"] if quick else []
    words += ["--replications", str(replications)] if replications is not None else []
    words += ["--seed", str(seed)] if seed else []
    return Asked(" ".join(words), seed, replications, quick, processes, icu_sepsis)


def simulate(
    world: Annotated[World, typer.Argument(metavar="WORLD", help="linear, authors, sepsis or icu-sepsis.")],
    out: Annotated[Path, typer.Option(help="The folder for table.csv and study.toml.")],
    patients: Annotated[int | None, typer.Option(min=1, help="At each site; 200 if left out.")] = None,
    sites: Annotated[int | None, typer.Option(min=1, help="Sites, K.")] = None,
    shared: Annotated[int | None, typer.Option(min=1, help="Shared covariates.")] = None,
    specific: Annotated[int | None, typer.Option(min=2, help="Site-specific covariates.")] = None,
    actions: Annotated[int | None, typer.Option(min=2, help="Action levels.")] = None,
    horizon: Annotated[int | None, typer.Option(min=1, help="Steps, H.")] = None,
    noise: Annotated[float | None, typer.Option(help="Of rewards, from 0 to 1 (linear).")] = None,
    behaviour: Annotated[Behaviour | None, typer.Option(help="How the data were treated (linear).")] = None,
    shared_kind: Annotated[
        SharedKind | None, typer.Option(help="What shared covariates do over time (linear).")
    ] = None,
    deviation: Annotated[
        float | None, typer.Option(min=0, help="Of sites from what they have in common (linear, icu-sepsis).")
    ] = None,
    site_level: Annotated[
        int | None, typer.Option(min=0, help="How many shared covariates are constant within a site (linear).")
    ] = None,
    effect: Annotated[float | None, typer.Option(min=0, help="Planted, of the dose by state (icu-sepsis).")] = None,
    follow_up: Annotated[
        bool | None, typer.Option("--follow-up", help="Count who survives after the last step too (icu-sepsis).")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same files.")] = 0,
) -> None:
    """Draw a world whose truth is known and write a table and its study file. Nothing leaves this machine.

    linear: a valid linear MDP in the paper's feature form. authors: the kind of generator that the paper describes,
    whose transitions are not linear. sepsis: the five hospitals of the demo. icu-sepsis: hospitals cut from the
    ICU-Sepsis benchmark, which pip downloads the first time.
    """
    from fdtr.pipeline.simulate import simulate as simulate_study

    options = {
        "n_sites": sites, "n_shared": shared, "n_specific": specific, "n_actions": actions, "horizon": horizon,
        "noise": noise, "behaviour": _value(behaviour), "shared_kind": _value(shared_kind), "deviation": deviation,
        "site_level_shared": site_level, "effect": effect, "follow_up": follow_up,
    }  # fmt: skip
    made = simulate_study(world.value, out, seed, patients, **options)
    show.line(f"Wrote {out}/table.csv and {out}/study.toml: {made.name}, {made.horizon} steps. Next:")
    show.line(f"  {show.program()} check {out}/study.toml {out}/table.csv")


def _value(choice: Enum | None) -> str | None:
    return None if choice is None else str(choice.value)
