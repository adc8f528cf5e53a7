"""Run an experiment by its name and keep what it found."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fdtr.algebra.threads import thread_count
from fdtr.pipeline.reproduce import choices, common_effects, figure2, worlds
from fdtr.pipeline.reproduce.cases import icu_cases
from fdtr.pipeline.reproduce.finding import Finding, Provenance, prepare, write_findings
from fdtr.pipeline.reproduce.theorems import run_theorems
from fdtr.pipeline.reproduce.values import run_values
from fdtr.progress import Progress, ignore_progress

Experiment = Literal["worlds", "tuning", "theorems", "evaluation", "effects"]


@dataclass(frozen=True)
class Asked:
    """How an experiment is run: `command` is how it was asked for, and goes into the captions.

    `replications` None is the experiment's own number; `quick` shows that everything runs, and nothing else.
    `icu_sepsis` adds hospitals cut from that benchmark, which is downloaded unless it was before.
    """

    command: str
    seed: int = 0
    replications: int | None = None
    quick: bool = False
    processes: int | None = None
    icu_sepsis: bool = False

    def plan(self, full: Any, quick: Any) -> Any:
        """A plan with what was asked for."""
        plan = quick if self.quick else full
        if self.icu_sepsis:
            plan = replace(plan, cases=[*plan.cases, *icu_cases()])
        return plan if self.replications is None else replace(plan, replications=self.replications)


def reproduce_figure2(
    folder: str | Path,
    asked: Asked,
    world: str = "valid",
    panels: Sequence[str] | None = None,
    progress: Progress = ignore_progress,
) -> Finding:
    """Figure 2 on one of its worlds, all panels or some."""
    plan = asked.plan(figure2.Plan(world, seed=asked.seed), figure2.Plan.quick(world, asked.seed))
    plan = replace(plan, panels=tuple(panels)) if panels else plan
    return _keep(folder, f"figure2-{world}", asked, lambda: [figure2.run_figure2(plan, asked.processes, progress)])[0]


def reproduce(
    experiment: Experiment, folder: str | Path, asked: Asked, progress: Progress = ignore_progress
) -> list[Finding]:
    """Any experiment but Figure 2."""

    def run() -> Iterator[Finding]:
        if experiment == "worlds":
            plan = asked.plan(worlds.Plan(seed=asked.seed), worlds.Plan.quick(asked.seed))
            yield worlds.run_worlds(plan, asked.processes, progress)
        elif experiment == "tuning":
            plan = asked.plan(choices.Plan(seed=asked.seed), choices.Plan.quick(asked.seed))
            yield choices.run_choices(plan, asked.processes, progress)
        elif experiment == "evaluation":
            yield from run_values(asked.seed, asked.quick, asked.processes, progress)
        elif experiment == "effects":
            yield common_effects.run(asked.seed, asked.quick, asked.processes, progress)
        else:
            yield from run_theorems(asked.seed, asked.quick, asked.processes, progress)

    return _keep(folder, experiment, asked, run)


def _keep(folder: str | Path, name: str, asked: Asked, run: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Run, and write what came of it with how it came to be: each finding when it is there, as the next takes long."""
    place = Path(folder)
    prepare(place)
    start = time.monotonic()
    cores = min(asked.processes or thread_count(), thread_count())
    findings: list[Finding] = []
    for finding in run():
        findings.append(finding)
        write_findings(place, name, findings, Provenance(asked.command, asked.seed, time.monotonic() - start, cores))
    return findings
