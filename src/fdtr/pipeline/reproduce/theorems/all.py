"""Every experiment on the theorems, in the order of the paper."""

from fdtr.pipeline.reproduce.finding import Finding
from fdtr.pipeline.reproduce.theorems import misspecification, pessimism, rate, remark, sharing, splines
from fdtr.pipeline.results import Progress, ignore_progress

EXPERIMENTS = (pessimism, remark, rate, sharing, misspecification, splines)


def run_theorems(
    seed: int, quick: bool = False, processes: int | None = None, progress: Progress = ignore_progress
) -> list[Finding]:
    """What each experiment found. `quick` takes seconds and shows no more than that everything runs."""
    return [experiment.run(seed, quick, processes, progress) for experiment in EXPERIMENTS]
