"""Independent replications on several processes, with the same result at any number of them."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

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
    keep: "Kept[Job, Result] | None" = None,
) -> list[Result]:
    """`work` on every job, results in the order of the jobs. With `keep`, jobs that it knows are not done again.

    A job carries its own seeds, so that results do not depend on the process or the order. `work` is a function of a
    module: processes find it by its name. `processes` defaults to the number of cores; one works in this process.
    """
    if keep is not None:
        known = keep.read()
        left = [job for job in jobs if keep.key(job) not in known]
        for job, result in zip(left, _each(work, left, what, processes, progress), strict=True):
            keep.append(job, result)
            known[keep.key(job)] = result
        return [known[keep.key(job)] for job in jobs]
    return list(_each(work, jobs, what, processes, progress))


def _each(
    work: Callable[[Job], Result], jobs: Sequence[Job], what: str, processes: int | None, progress: Progress
) -> Iterator[Result]:
    """One result after another, each as soon as those before it are there."""
    processes = min(processes or core_count(), len(jobs))
    if processes <= 1:
        with threadpool_limits(limits=1, user_api="blas"):
            for done, job in enumerate(jobs):
                progress(what, done, len(jobs))
                yield work(job)
    else:
        # Fresh processes: one forked from a process with threads may wait for ever.
        with ProcessPoolExecutor(processes, get_context("spawn"), _work_alone) as pool:
            for done, result in enumerate(pool.map(work, jobs, chunksize=1)):
                progress(what, done, len(jobs))
                yield result
    progress(what, len(jobs), len(jobs))


@dataclass(frozen=True)
class Kept(Generic[Job, Result]):
    """Results of jobs in a file, a line of JSON for each: what was interrupted goes on where it stopped.

    `key` tells one job from another by everything that its result depends on but the code; `encode` and `decode` turn a
    result into plain values and back.
    """

    path: Path
    key: Callable[[Job], str]
    encode: Callable[[Result], Any]
    decode: Callable[[Any], Result]

    def read(self) -> dict[str, Result]:
        """All results so far. A last line that was cut off is left out."""
        lines = self.path.read_bytes().split(b"\n")[:-1] if self.path.exists() else []
        records = [json.loads(line) for line in lines]
        return {record["job"]: self.decode(record["result"]) for record in records}

    def append(self, job: Job, result: Result) -> None:
        """Add one result, in place of a last line that was cut off."""
        line = json.dumps({"job": self.key(job), "result": self.encode(result)}) + "\n"
        with self.path.open("a+b") as file:
            _remove_cut_line(file)
            file.write(line.encode())


def _remove_cut_line(file: BinaryIO) -> None:
    """Shorten a file to its last complete line."""
    if file.seek(0, os.SEEK_END) == 0:
        return
    file.seek(-1, os.SEEK_END)
    if file.read(1) != b"\n":
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


def _work_alone() -> None:
    """One thread in each process: they share the cores among themselves."""
    os.environ["FDTR_THREADS"] = "1"
    threadpool_limits(limits=1, user_api="blas")
