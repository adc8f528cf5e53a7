"""Independent replications on several processes, with the same result at any number of them."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

Job = TypeVar("Job")
Result = TypeVar("Result")

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and of how much."""


def ignore_progress(_what: str, _done: int, _of: int) -> None:
    """Show nothing."""


def core_count() -> int:
    """Processes to use: `FDTR_THREADS`, or as many as this process may have cores."""
    limit = os.environ.get("FDTR_THREADS", "")
    return max(1, int(limit)) if limit.isdecimal() else len(os.sched_getaffinity(0))


def seeds_of(seed: int, *key: int) -> np.random.SeedSequence:
    """The seeds of one replication: `key` says which, so that no other has to be drawn before it.

    >>> seeds_of(0, 2, 7).spawn(1)[0].spawn_key
    (2, 7, 0)
    """
    return np.random.SeedSequence(seed, spawn_key=key)


def anew(seeds: np.random.SeedSequence) -> np.random.SeedSequence:
    """A copy of `seeds` from which nothing was spawned yet: spawning twice from one object gives different children."""
    return np.random.SeedSequence(seeds.entropy, spawn_key=seeds.spawn_key)


def replicate(
    work: Callable[[Job], Result],
    jobs: Sequence[Job],
    what: str,
    processes: int | None = None,
    progress: Progress = ignore_progress,
) -> list[Result]:
    """`work` on every job, results in the order of the jobs.

    A job carries its own seeds, so that results do not depend on the process or the order. `work` is a function of a
    module: processes find it by its name. `processes` defaults to the number of cores; one works in this process.
    """
    processes = min(processes or core_count(), len(jobs))
    results: list[Result] = []
    if processes <= 1:
        with threadpool_limits(limits=1, user_api="blas"):
            for done, job in enumerate(jobs):
                progress(what, done, len(jobs))
                results.append(work(job))
    else:
        # Fresh processes: one forked from a process with threads may wait for ever.
        with ProcessPoolExecutor(processes, get_context("spawn"), _work_alone) as pool:
            for done, result in enumerate(pool.map(work, jobs, chunksize=1)):
                progress(what, done, len(jobs))
                results.append(result)
    progress(what, len(jobs), len(jobs))
    return results


def _work_alone() -> None:
    """One thread in each process: they share the cores among themselves."""
    os.environ["FDTR_THREADS"] = "1"
    threadpool_limits(limits=1, user_api="blas")
