"""Sum what the rows of a step add up to, chunk by chunk, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.threads import for_chunks

if TYPE_CHECKING:
    from fdtr.trajectories.trajectory_data import Chunk

Arrays: TypeAlias = tuple[Any, ...]
"""Arrays that are added one by one."""


class ChunkSums(Protocol):
    """What is summed; it holds no rows."""

    def zeros(self) -> Arrays:
        """The sums of no rows, new arrays."""
        ...

    def __call__(self, chunk: Chunk, labels: NDArray[np.integer[Any]] | None, /) -> Arrays:
        """The sums of one chunk; `labels` (c,) of its rows, if the step was given any."""
        ...


def sum_chunks(
    chunks: Iterator[Chunk], work: ChunkSums, size: int, labels: NDArray[np.integer[Any]] | None = None
) -> Arrays:
    """The sums of a step's `chunks`, each of `size` rows but for the last, on all cores; `labels` (n,) of its rows."""
    total = work.zeros()

    def sums(part: tuple[int, Chunk]) -> Arrays:
        number, chunk = part
        start = number * size
        return work(chunk, None if labels is None else labels[start : start + len(chunk.actions)])

    for_chunks(sums, lambda part: added(total, part), enumerate(chunks))
    return total


def added(sums: Arrays, more: Arrays) -> None:
    """Add `more` to each of the arrays `sums`, in place."""
    for whole, part in zip(sums, more, strict=True):
        whole += part
