"""The paper's theorems, corollaries and remarks, each tried where the truth is known."""

from collections.abc import Iterator

from fdtr.pipeline.reproduce.finding import Finding
from fdtr.pipeline.reproduce.theorems import misspecification, pessimism, rate, remark, sharing, splines
from fdtr.progress import Progress, ignore_progress

EXPERIMENTS = (pessimism, remark, rate, sharing, misspecification, splines)


def run_theorems(
    seed: int, quick: bool = False, processes: int | None = None, progress: Progress = ignore_progress
) -> Iterator[Finding]:
    """What each experiment found, one after another. `quick` takes seconds and shows only that everything runs."""
    for experiment in EXPERIMENTS:
        yield experiment.run(seed, quick, processes, progress)
