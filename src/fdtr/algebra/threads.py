"""Run a function over chunks on all cores, results in the order of the chunks."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

Chunk = TypeVar("Chunk")
Result = TypeVar("Result")


def thread_count() -> int:
    """Threads to use: `FDTR_THREADS`, or as many as this process may have cores."""
    asked = os.environ.get("FDTR_THREADS", "")
    return max(1, int(asked)) if asked.isdigit() else len(os.sched_getaffinity(0))


def one_blas_thread() -> AbstractContextManager[Any]:
    """Hold the linear algebra library to one thread.

    Called from several threads of ours, its own would wait for each other, and sums would depend on their number.
    """
    limit: AbstractContextManager[Any] = _controller().limit(limits=1, user_api="blas")
    return limit


def map_chunks(function: Callable[[Chunk], Result], chunks: Iterable[Chunk]) -> Iterator[Result]:
    """`function` of every chunk, in order whatever the number of threads, so that sums do not depend on it.

    At most a few chunks are in flight, so that `chunks` may be read from disk as it is consumed.

    >>> list(map_chunks(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    threads = thread_count()
    if threads == 1:
        yield from map(function, chunks)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Result]] = deque()
        for chunk in chunks:
            waiting.append(pool.submit(function, chunk))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()
