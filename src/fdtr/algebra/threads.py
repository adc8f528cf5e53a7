"""Run a function over chunks on all cores, results in the order of the chunks."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import cache
from itertools import chain, islice
from threading import Lock, Thread
from typing import Any, Generic, TypeVar

from threadpoolctl import ThreadpoolController

Chunk = TypeVar("Chunk")
Result = TypeVar("Result")


def thread_count() -> int:
    """Threads to use: `FDTR_THREADS`, or as many as this process may have cores."""
    asked = os.environ.get("FDTR_THREADS", "")
    return max(1, int(asked)) if asked.isdecimal() else len(os.sched_getaffinity(0))


def one_blas_thread() -> AbstractContextManager[Any]:
    """Hold the linear algebra library to one thread.

    Called from several threads of ours, its own would wait for each other, and sums would depend on their number.
    """
    limit: AbstractContextManager[Any] = _controller().limit(limits=1, user_api="blas")
    return limit


def rows_in_cache(n_columns: int) -> int:
    """How many rows of float64 to take at a time: 2 MiB of them, but no more than 32,768 and no fewer than 1,024.

    Long enough for threads to rarely meet at the interpreter's lock, small enough for a core's cache; measured on
    two cores, 8,192 rows of nine columns left the second thread waiting a third of the time.

    >>> rows_in_cache(9), rows_in_cache(80)
    (29127, 3276)
    """
    return max(1024, min(32_768, 2**18 // max(n_columns, 1)))


def for_chunks(work: Callable[[Chunk], Result], collect: Callable[[Result], None], chunks: Iterable[Chunk]) -> None:
    """`work` on every chunk, on all cores; `collect` gets the results one at a time, in the order of the chunks.

    So a sum does not depend on the number of threads. Every thread holds one chunk, which may be read from disk as
    it is asked for. The calling thread takes part: it would otherwise compete with the others to be told of every
    result.

    >>> squares = []
    >>> for_chunks(lambda x: x * x, squares.append, [1, 2, 3])
    >>> squares
    [1, 4, 9]
    """
    remaining = iter(chunks)
    first = list(islice(remaining, 2))
    if len(first) < 2:  # nothing to share out
        for chunk in first:
            collect(work(chunk))
        return
    line = _Line(enumerate(chain(first, remaining)), collect)

    def run() -> None:
        while (place := line.next()) is not None:
            try:
                line.done(place[0], work(place[1]))
            except BaseException as error:
                line.stop(error)

    helpers = [Thread(target=run, daemon=True) for _ in range(thread_count() - 1)]
    for helper in helpers:
        helper.start()
    run()
    for helper in helpers:
        helper.join()
    if line.error is not None:
        raise line.error


class _Line(Generic[Chunk, Result]):
    """Chunks waiting, and results waiting for those before them."""

    def __init__(self, chunks: Iterator[tuple[int, Chunk]], collect: Callable[[Result], None]) -> None:
        self.error: BaseException | None = None
        self._chunks = chunks
        self._collect = collect
        self._lock = Lock()
        self._waiting: dict[int, Result] = {}
        self._collected = 0

    def next(self) -> tuple[int, Chunk] | None:
        """The next chunk and its number; None when there is no more, or an error stopped the work."""
        with self._lock:
            if self.error is not None:
                return None
            try:
                return next(self._chunks, None)
            except BaseException as error:
                self.error = error
                return None

    def done(self, number: int, result: Result) -> None:
        """Take a result, and hand on all that are now in order."""
        with self._lock:
            self._waiting[number] = result
            while self._collected in self._waiting:
                self._collect(self._waiting.pop(self._collected))
                self._collected += 1

    def stop(self, error: BaseException) -> None:
        """Let nobody begin another chunk; the first error is the one that is told."""
        with self._lock:
            self.error = self.error or error


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()
