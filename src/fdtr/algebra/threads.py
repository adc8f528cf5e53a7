"""Run a function over chunks on all cores, results in the order of the chunks."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import cache, wraps
from itertools import chain, islice
from threading import Lock, Thread
from typing import Any, Generic, ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

Chunk = TypeVar("Chunk")
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


def thread_count() -> int:
    """Threads to use: `FDTR_THREADS` (`--threads` on the command line), or as many as this process may have cores."""
    setting = os.environ.get("FDTR_THREADS", "")
    return max(1, int(setting)) if setting.isdecimal() else len(os.sched_getaffinity(0))


def one_blas_thread() -> AbstractContextManager[Any]:
    """Hold the linear algebra library to one thread.

    Several of our threads call the library. Its own threads would compete, and sums would depend on their number.
    """
    limit: AbstractContextManager[Any] = _controller().limit(limits=1, user_api="blas")
    return limit


def on_one_blas_thread(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Let a function, and all that it calls, hold the linear algebra library to one thread.

    >>> @on_one_blas_thread
    ... def double(x: float) -> float:
    ...     return 2 * x
    >>> double(3.0)
    6.0
    """

    @wraps(function)
    def held(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with one_blas_thread():
            return function(*args, **kwargs)

    return held


def rows_in_cache(n_columns: int) -> int:
    """Rows of float64 in one chunk: 2 MiB of them, but at most 32,768 and at least 1,024.

    Chunks this long rarely contend for the interpreter's lock, and fit a core's cache. On two cores, 8,192 rows of nine
    columns left the second thread waiting a third of the time.

    >>> rows_in_cache(9), rows_in_cache(80)
    (29127, 3276)
    """
    return max(1024, min(32_768, 2**18 // max(n_columns, 1)))


def for_chunks(work: Callable[[Chunk], Result], collect: Callable[[Result], None], chunks: Iterable[Chunk]) -> None:
    """Run `work` on every chunk, on all cores; `collect` gets the results one at a time, in the order of the chunks.

    So a sum does not depend on the number of threads. Every thread holds one chunk, which may be read from disk when it
    is taken. The calling thread works too; it would otherwise only compete with the others for results.

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
    queue = _OrderedQueue(enumerate(chain(first, remaining)), collect)

    def run() -> None:
        while (numbered := queue.next()) is not None:
            try:
                queue.done(numbered[0], work(numbered[1]))
            except BaseException as error:
                queue.stop(error)

    helpers = [Thread(target=run, daemon=True) for _ in range(thread_count() - 1)]
    for helper in helpers:
        helper.start()
    run()
    for helper in helpers:
        helper.join()
    if queue.error is not None:
        raise queue.error


class _OrderedQueue(Generic[Chunk, Result]):
    """Chunks to be worked on, and results that wait for those before them."""

    def __init__(self, chunks: Iterator[tuple[int, Chunk]], collect: Callable[[Result], None]) -> None:
        self.error: BaseException | None = None
        self._chunks = chunks
        self._collect = collect
        self._lock = Lock()
        self._waiting: dict[int, Result] = {}
        self._collected = 0

    def next(self) -> tuple[int, Chunk] | None:
        """The next chunk with its number; None when there are no more, or an error stopped the work."""
        with self._lock:
            if self.error is not None:
                return None
            try:
                return next(self._chunks, None)
            except BaseException as error:
                self.error = error
                return None

    def done(self, number: int, result: Result) -> None:
        """Take a result, and collect all that are now in order."""
        with self._lock:
            self._waiting[number] = result
            while self._collected in self._waiting:
                self._collect(self._waiting.pop(self._collected))
                self._collected += 1

    def stop(self, error: BaseException) -> None:
        """Stop after an error: no thread begins another chunk. The first error is kept."""
        with self._lock:
            self.error = self.error or error


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()
