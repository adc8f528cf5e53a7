"""Rows of one site, step by step, as learners see them: chunks of arrays, wherever the rows lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fdtr.trajectories.step_sums import Arrays, ChunkSums

if TYPE_CHECKING:
    from fdtr.trajectories.rows_in_memory import RowsInMemory
    from fdtr.trajectories.table_sources import TableLayout

CHUNK_ROWS = 8192  # default size of a chunk

Floats = NDArray[np.float64]


# No generated repr anywhere below: it would print patients' values into logs.
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Chunk:
    """Some rows of one step: c of them, of which the first k go on and the other c - k end here.

    `states` (m, c) in raw units, clipped to their ranges; `actions` (c,) positions among the action levels;
    `rewards` (c,) on [0,1]; `next_states` (m, k) one step later; `ended_value` (c-k,) the missing steps times
    their worth. On a device these are arrays of another library, and `actions` are `Runs`.
    """

    states: Floats
    actions: NDArray[np.intp]
    rewards: Floats
    next_states: Floats
    ended_value: Floats


class Step(Protocol):
    """All rows of one site at one step, to be taken in chunks."""

    @property
    def n(self) -> int:
        """Patients at this step."""
        ...

    @property
    def n_next(self) -> int:
        """Patients that go on to the next step: the first of them."""
        ...

    def chunks(self, size: int = CHUNK_ROWS, *, following: bool = True) -> Iterator[Chunk]:
        """Chunks of `size` rows, in order; the last one may have fewer.

        If it does not ask for what is `following`, chunks may lack next states, and all rows be as if they ended.
        """
        ...

    def sums(self, work: ChunkSums, size: int, labels: NDArray[np.integer[Any]] | None = None) -> Arrays:
        """What `work` gives for chunks of `size` rows, added up; `labels` (n,) of the rows go with them."""
        ...


class SiteRows(Protocol):
    """One site's rows, in memory or on disk; patients longest first.

    So the patients of step h are the first n_h, and row i of step h + 1 continues row i of step h.
    """

    @property
    def patients(self) -> Any:
        """Ids as Arrow text."""
        ...

    @property
    def clusters(self) -> Any:
        """Labels of clusters as Arrow text, or None."""
        ...

    @property
    def clustered(self) -> bool:
        """Whether there are clusters."""
        ...

    def id_batches(self) -> Iterator[Any]:
        """Ids as Arrow text, some at a time."""
        ...

    def unit_batches(self) -> Iterator[Any]:
        """Labels of clusters, or else ids, as Arrow text, some at a time."""
        ...

    @property
    def clipped(self) -> tuple[int, ...]:
        """By covariate, how many values lay outside the range."""
        ...

    @property
    def filled(self) -> tuple[int, ...]:
        """By covariate, how many values were missing and filled."""
        ...

    @property
    def counts(self) -> tuple[int, ...]:
        """n_h, the patients at each step."""
        ...

    def step(self, h: int) -> Step:
        """All rows of one step."""
        ...

    def select(self, mask: NDArray[np.bool_]) -> SiteRows:
        """The patients that are True in the mask (n,)."""
        ...

    def in_memory(self) -> RowsInMemory:
        """All rows, as arrays."""
        ...

    def recast(self, horizon: int, layout: TableLayout, onto: NDArray[np.intp]) -> SiteRows:
        """Rows of `horizon` steps as `layout` would have read them; `onto` (A,) maps the positions of levels."""
        ...
