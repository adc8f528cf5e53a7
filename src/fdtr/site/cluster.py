"""Sum the rows of a partition on a cluster of the site's own, with Dask.

A step is cut into blocks of rows (`fdtr.trajectories.step_sums`). For each block a worker gets what the study and
earlier steps give: the feature map, V of the next step as arrays, and the numbers of its patients' folds. It reads the
row groups itself and sends back sums. No row travels. A block whose worker is lost goes to another one.

Dask sends functions and results as pickles, so whoever can talk to a scheduler can run programs on its machines. The
workers read patients' rows. A local cluster listens on this machine alone, to processes with its certificate.
"""

from __future__ import annotations

import gc
import hashlib
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from logging import CRITICAL
from multiprocessing import resource_tracker
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from fdtr import __version__
from fdtr.errors import FdtrError, InvalidSettings, MissingExtra, MissingFile, UnusableCluster
from fdtr.trajectories import Trajectories
from fdtr.trajectories.partition import RowGroups, StepOnDisk, folder_of, with_cluster
from fdtr.trajectories.step_sums import Arrays, ChunkSums, TreeSum, chunks_in_block, of_chunk, sum_chunks
from fdtr.trajectories.step_sums import added as sums_of_both
from fdtr.trajectories.table_sources import MANIFEST

if TYPE_CHECKING:
    from distributed import Client, Future

Labels = NDArray[np.integer[Any]]

CONNECT_SECONDS, START_SECONDS, PATIENCE_SECONDS = 10.0, 60.0, 60.0
"""How long a scheduler may take to answer, workers of this machine to start, and a cluster may be without workers."""

BLOCKS_AHEAD = 3
"""Blocks submitted for each thread of the workers: more would only wait, with their folds, in the scheduler."""


@contextmanager
def on_cluster(
    rows: Trajectories, *, workers: int | None = None, scheduler: str | None = None
) -> Iterator[Trajectories]:
    """The rows of a partition, summed by several processes or machines within a `with` block.

        with fdtr.site.on_cluster(rows, workers=4) as rows:
            fit = fdtr.fit_local(study, rows)

    `workers` processes are started on this machine, one core each, and end with the block. Or `scheduler` is the
    address of a Dask cluster, tcp://HOST:PORT, whose workers see the partition's folder under the same path and have
    this version of fdtr. Results are those without a cluster, to the last bit where the machines' linear algebra is
    alike. After the block the rows are summed on this machine. A script has to start `workers` under
    `if __name__ == "__main__":`.
    """
    if (workers is None) == (scheduler is None) or (workers is not None and workers < 1):
        raise InvalidSettings("Name either a number of workers, from 1 on, or the address of a scheduler.")
    expected = _Expected.of(folder_of(rows))
    with ExitStack() as stack:
        client = stack.enter_context(_started(workers) if workers is not None else _connected(str(scheduler)))
        cluster = _DaskCluster(client, expected, scheduler or "on this machine")
        with cluster.failures_in_words():
            cluster.require_ready()
        stack.callback(cluster.close)
        yield with_cluster(rows, cluster)


class _DaskCluster:
    """Has the workers that `client` knows sum the blocks of a step, and adds these in the order of the rows."""

    def __init__(self, client: Client, expected: _Expected, where: str) -> None:
        self._client, self._expected, self._where = client, expected, where
        self._open = True

    def close(self) -> None:
        """From now on, sum on this machine."""
        self._open = False

    def sums(self, step: StepOnDisk, work: ChunkSums, size: int, labels: Labels | None) -> Arrays:
        """What `Step.sums` gives."""
        if not self._open:
            return sum_chunks(step.chunks(size), work, size, labels)
        with self.failures_in_words():
            return self._sums(step, work, size, labels)

    def _sums(self, step: StepOnDisk, work: ChunkSums, size: int, labels: Labels | None) -> Arrays:
        rows, total = size * chunks_in_block(size), TreeSum(work.zeros)
        # A future, so that each worker gets it once; the scheduler can make it again where its worker is lost.
        shared = self._client.submit(_unchanged, work, pure=False)

        def submit(start: int) -> Future:
            part = step.part(start, min(start + rows, step.n))
            of_rows = None if labels is None else _narrow(labels[start : start + rows])
            return self._client.submit(_sum_block, shared, _Block(part, size, of_rows, self._expected), pure=False)

        futures = (submit(start) for start in range(0, step.n, rows))
        waiting = deque(islice(futures, BLOCKS_AHEAD * max(1, self._threads())))
        while waiting:
            # Arrays off the network may be read-only.
            total.add(sums_of_both(work.zeros(), self._result(waiting.popleft())))
            waiting.extend(islice(futures, 1))
        return total.result()

    def require_ready(self) -> None:
        """Refuse a cluster without workers, and workers that lack what they need; later ones are asked with a block."""
        self._wait_until(self._threads)
        for answer in self._client.run(_require, self._expected, on_error="return").values():
            if isinstance(answer, FdtrError):
                raise answer
            if isinstance(answer, Exception):
                raise UnusableCluster(
                    f"A worker of the cluster {self._where} cannot run fdtr {__version__} ({type(answer).__name__}). "
                    "Nothing was written. Install the same version of fdtr, with its extra `cluster`, on all workers."
                )

    def _result(self, future: Future) -> Arrays:
        found: list[Arrays] = []

        def arrived() -> bool:
            with suppress(TimeoutError):
                found.append(future.result(timeout=1))
            return bool(found) or bool(self._threads())

        while not found:
            self._wait_until(arrived)
        return found[0]

    @contextmanager
    def failures_in_words(self) -> Iterator[None]:
        """Turn what Dask says of lost workers and connections into sentences."""
        from distributed import KilledWorker

        try:
            yield
        except KilledWorker:
            raise UnusableCluster(
                f"Worker after worker of the cluster {self._where} died at the same rows. Nothing was written. Look "
                "into the workers' logs; they may need more memory."
            ) from None
        except (CancelledError, OSError) as error:  # Dask's own errors of connections are OSErrors
            raise UnusableCluster(
                f"The cluster {self._where} cannot be reached any more ({type(error).__name__}). Nothing was written. "
                "Start its scheduler again, or use --workers for processes on this machine."
            ) from None

    def _wait_until(self, fine: Any) -> None:
        """Wait while something is not fine, but not for ever: only a cluster without workers is waited for."""
        begin = time.monotonic()
        while not fine():
            if time.monotonic() - begin > PATIENCE_SECONDS:
                raise UnusableCluster(
                    f"The cluster {self._where} has had no worker for {PATIENCE_SECONDS:.0f} seconds. Nothing was "
                    "written. Start workers, or use --workers for processes on this machine."
                )
            time.sleep(0.1)

    def _threads(self) -> int:
        """The threads of all workers."""
        return sum(self._client.nthreads().values())


@dataclass(frozen=True)
class _Expected:
    """What a worker needs: this version of fdtr, and the partition as this machine sees it."""

    version: str
    folder: str
    manifest: str

    @classmethod
    def of(cls, folder: Path) -> _Expected:
        digest = _digest(folder)
        if not digest:
            raise MissingFile(
                f"The partition's file {folder / MANIFEST} is missing. Nothing was written. Make the partition again: "
                "`fdtr table partition`."
            )
        return cls(__version__, str(folder), digest)


@dataclass(frozen=True, eq=False, repr=False)
class _Block:
    """Rows that one worker sums, in chunks of `size`, with their `labels`. No repr: Dask logs those of what failed."""

    part: RowGroups
    size: int
    labels: Labels | None
    expected: _Expected


def _sum_block(work: ChunkSums, block: _Block) -> Arrays:
    """On a worker: the sums of a block, chunk by chunk on one core, as cores have blocks of their own."""
    _require(block.expected)
    _hold_blas()
    total = work.zeros()
    for number, chunk in enumerate(block.part.chunks(block.size)):
        sums_of_both(total, of_chunk(number, chunk, work, block.size, block.labels))
    return total


@cache
def _require(expected: _Expected) -> None:
    """On a worker: refuse another version of fdtr, and another folder."""
    who = f"The worker with process {os.getpid()} on {socket.gethostname()}"
    if expected.version != __version__:
        raise UnusableCluster(
            f"{who} has fdtr {__version__}, and {expected.version} asks. Nothing was written. Install the same version "
            "of fdtr, with its extra `cluster`, on all workers."
        )
    if _digest(Path(expected.folder)) != expected.manifest:
        raise UnusableCluster(
            f"{who} does not see the partition {expected.folder}, or sees another one there. Nothing was written. Put "
            "the partition where all workers can read it under the same path."
        )


@cache
def _hold_blas() -> None:
    """On a worker: one thread for linear algebra, for good. Several threads may sum blocks."""
    threadpool_limits(limits=1, user_api="blas")


def _digest(folder: Path) -> str:
    """The digest of a partition's manifest; empty where it cannot be read."""
    try:
        return hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()
    except OSError:
        return ""


def _unchanged(work: ChunkSums) -> ChunkSums:
    return work


def _narrow(labels: Labels) -> Labels:
    """Labels in as few bytes as they need."""
    return labels.astype(np.min_scalar_type(int(labels.max(initial=0))))


@contextmanager
def _connected(address: str) -> Iterator[Client]:
    """A client of a cluster that runs already; its workers go on when the client leaves."""
    client, why = _client_or_reason(address)
    if client is None:
        gc.collect()  # a client that did not connect closes when it is collected: here, not while another one starts
        raise UnusableCluster(
            f"No Dask scheduler answers at {address} ({why}). Nothing was written. Give its address as --scheduler "
            "tcp://HOST:PORT, or use --workers for processes on this machine."
        )
    with client:
        yield client


def _client_or_reason(address: str) -> tuple[Client | None, str]:
    """A client, or the kind of error that it met."""
    client_of = _dask()
    try:
        return client_of(address, timeout=CONNECT_SECONDS, set_as_default=False), ""
    except (OSError, ValueError, TypeError, ImportError) as error:
        return None, type(error).__name__


@contextmanager
def _started(workers: int) -> Iterator[Client]:
    """A client of a cluster on this machine that ends with it, workers and folder included."""
    client_of = _dask()
    import dask
    from distributed import LocalCluster

    settings = {
        "distributed.scheduler.http.routes": [],  # a server for web pages is always there: it shows nothing
        "distributed.worker.http.routes": [],
        "distributed.worker.profile.enabled": False,
        "distributed.admin.large-graph-warning-threshold": "1TB",  # V of a wide study
        # Not Dask's MALLOC_TRIM_THRESHOLD_, with which every chunk's memory comes anew from the kernel.
        "distributed.nanny.pre-spawn-environ": {f"{name}_NUM_THREADS": 1 for name in ("OMP", "MKL", "OPENBLAS")},
    }
    environment = dict(os.environ)  # Dask writes into it what workers shall have
    with ExitStack() as stack:
        stack.callback(_restore, environment)
        folder = stack.enter_context(TemporaryDirectory(prefix="fdtr-cluster-"))
        stack.enter_context(dask.config.set(settings | {"temporary-directory": folder}))
        with _ctrl_c_later():
            try:
                cluster = LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    host="127.0.0.1",
                    security=True,  # or else any user of this machine could run programs as this one
                    dashboard_address=None,
                    scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
                    memory_limit=0,
                    local_directory=folder,
                    silence_logs=CRITICAL,
                    death_timeout=START_SECONDS,
                )
            except (OSError, RuntimeError) as error:
                raise UnusableCluster(
                    f"{workers} workers could not be started on this machine ({type(error).__name__}). Nothing was "
                    'written. Take fewer. In a script, start them under `if __name__ == "__main__":`.'
                ) from None
            stack.enter_context(cluster)
        yield stack.enter_context(client_of(cluster, set_as_default=False))


@contextmanager
def _ctrl_c_later() -> Iterator[None]:
    """Let Ctrl-C wait until the block ends, so that what it starts can be ended.

    Threads and processes that begin in the block never see it: it is for the main thread alone.
    """
    resource_tracker.ensure_running()  # a thread that starts it hears Ctrl-C from then on
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _restore(environment: dict[str, str]) -> None:
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)


def _dask() -> type[Client]:
    """Dask's client."""
    try:
        import distributed
    except ImportError:
        raise MissingExtra("A cluster needs Dask. Install it: pip install 'fdtr[cluster]'") from None
    client: type[Client] = distributed.Client
    return client
