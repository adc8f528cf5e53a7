"""The paper's theorems, corollaries and remarks, each tried where the truth is known."""

from collections.abc import Iterator

from experiments.findings import Finding
from experiments.replications import Progress, ignore_progress
from experiments.theorems import misspecification, pessimism, rate, remark, sharing, splines

EXPERIMENTS = (pessimism, remark, rate, sharing, misspecification, splines)


def run_theorems(
    seed: int, quick: bool = False, processes: int | None = None, progress: Progress = ignore_progress
) -> Iterator[Finding]:
    """What each experiment found, one after another. `quick` takes seconds and shows only that everything runs."""
    for experiment in EXPERIMENTS:
        yield experiment.run(seed, quick, processes, progress)
