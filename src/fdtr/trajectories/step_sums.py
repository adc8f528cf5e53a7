"""Sum what the rows of a step add up to, in an order that depends on the data alone.

Chunks are added one after another within a block, a fixed number of chunks; blocks are added in pairs, pairs in pairs
of pairs, and so on. A block can be summed anywhere, so the sums of a cluster are those of one machine to the last bit,
whoever summed which block and was done first. A step of one block is added up chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.threads import for_chunks

if TYPE_CHECKING:
    from fdtr.trajectories.chunks import Chunk

Arrays: TypeAlias = tuple[Any, ...]
"""Arrays that are added one by one."""

BLOCK_ROWS = 524_288
"""Rows of a block at most: eight row groups of a partition."""


class ChunkSums(Protocol):
    """What is summed. A cluster's workers get it as it is, so it holds no rows."""

    def zeros(self) -> Arrays:
        """The sums of no rows, new arrays."""
        ...

    def __call__(self, chunk: Chunk, labels: NDArray[np.integer[Any]] | None, /) -> Arrays:
        """The sums of one chunk; `labels` (c,) of its rows, if the step was given any."""
        ...


def chunks_in_block(size: int) -> int:
    """Chunks of `size` rows that make a block.

    >>> chunks_in_block(29_127), chunks_in_block(10**6)
    (18, 1)
    """
    return max(1, BLOCK_ROWS // size)


class TreeSum:
    """The sum of blocks in the order in which they are added, ((1 + 2) + (3 + 4)) + 5 for five; holds few of them.

    >>> total = TreeSum(lambda: (np.zeros(1),))
    >>> for number in range(5):
    ...     total.add((np.array([1.0]),))
    >>> total.result()
    (array([5.]),)
    """

    def __init__(self, zeros: Callable[[], Arrays]) -> None:
        self._zeros = zeros
        self._sums: list[tuple[int, Arrays]] = []  # of 2^k blocks each, k falling

    def add(self, block: Arrays) -> None:
        """Add the next block; its arrays are changed later."""
        level = 0
        while self._sums and self._sums[-1][0] == level:
            block, level = added(self._sums.pop()[1], block), level + 1
        self._sums.append((level, block))

    def result(self) -> Arrays:
        """The sum of all blocks; zeros of none."""
        if not self._sums:
            return self._zeros()
        total = self._sums[-1][1]
        for _, earlier in reversed(self._sums[:-1]):
            total = added(earlier, total)
        return total


def sum_chunks(
    chunks: Iterator[Chunk], work: ChunkSums, size: int, labels: NDArray[np.integer[Any]] | None = None
) -> Arrays:
    """The sums of a step's `chunks`, each of `size` rows but for the last, on all cores; `labels` (n,) of its rows."""
    total, in_block = TreeSum(work.zeros), chunks_in_block(size)
    block, number = work.zeros(), 0

    def collect(sums: Arrays) -> None:
        nonlocal block, number
        if number and number % in_block == 0:
            total.add(block)
            block = work.zeros()
        block, number = added(block, sums), number + 1

    for_chunks(lambda part: of_chunk(*part, work, size, labels), collect, enumerate(chunks))
    if number:
        total.add(block)
    return total.result()


def of_chunk(number: int, chunk: Chunk, work: ChunkSums, size: int, labels: NDArray[np.integer[Any]] | None) -> Arrays:
    """The sums of the chunk with this number."""
    start = number * size
    return work(chunk, None if labels is None else labels[start : start + len(chunk.actions)])


def added(sums: Arrays, more: Arrays) -> Arrays:
    """`sums` with `more` added to each of its arrays, in place."""
    for whole, part in zip(sums, more, strict=True):
        whole += part
    return sums
