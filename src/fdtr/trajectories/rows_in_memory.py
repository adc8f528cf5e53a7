"""One site's rows in memory, arranged once from a checked table."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fdtr.trajectories.chunks import CHUNK_ROWS, Chunk, Step
from fdtr.trajectories.patient_ids import batches_of
from fdtr.trajectories.step_sums import Arrays, ChunkSums, sum_chunks
from fdtr.trajectories.table_checks import Checked
from fdtr.trajectories.table_sources import TableLayout

Floats = NDArray[np.float64]
Array = TypeVar("Array", bound=NDArray[Any])


# No generated repr below: it would print patients' values into logs.
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StepInMemory:
    """All rows of one site at one step."""

    _whole: Chunk

    @property
    def n(self) -> int:
        """Patients at this step."""
        return len(self._whole.actions)

    @property
    def n_next(self) -> int:
        """Patients that go on to the next step: the first of them."""
        return int(self._whole.next_states.shape[1])

    def chunks(self, size: int = CHUNK_ROWS, *, following: bool = True) -> Iterator[Chunk]:  # noqa: ARG002 - no copies
        """Views of at most `size` rows each, in order, always with next states."""
        if size < 1:
            raise ValueError(f"A chunk has at least 1 row, not {size}.")
        whole, n_next = self._whole, self.n_next
        for start in range(0, self.n, size):
            stop = min(start + size, self.n)
            yield Chunk(
                states=whole.states[:, start:stop],
                actions=whole.actions[start:stop],
                rewards=whole.rewards[start:stop],
                next_states=whole.next_states[:, min(start, n_next) : min(stop, n_next)],
                ended_value=whole.ended_value[max(start - n_next, 0) : max(stop - n_next, 0)],
            )

    def sums(self, work: ChunkSums, size: int, labels: NDArray[np.integer[Any]] | None = None) -> Arrays:
        """What `work` gives for chunks of `size` rows, added up on all cores."""
        return sum_chunks(self.chunks(size), work, size, labels)


def rows_at(step: Step, places: NDArray[np.intp]) -> Step:
    """Rows of a step at some `places`, which are in order, in memory; all of them as if they ended there."""
    parts: list[tuple[Floats, NDArray[np.intp], Floats]] = []
    start = 0
    for chunk in step.chunks(following=False):
        stop = start + len(chunk.actions)
        inside = places[np.searchsorted(places, start) : np.searchsorted(places, stop)] - start
        parts.append((np.take(chunk.states, inside, axis=1), chunk.actions[inside], chunk.rewards[inside]))
        start = stop
    states = np.concatenate([part[0] for part in parts], axis=1) if parts else np.zeros((0, 0))
    actions = np.concatenate([np.zeros(0, np.intp), *(part[1] for part in parts)])
    rewards = np.concatenate([np.zeros(0), *(part[2] for part in parts)])
    return StepInMemory(Chunk(states, actions, rewards, np.zeros((len(states), 0)), np.zeros(len(places))))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RowsInMemory:
    """One site, steps one after another: `start[h]` is where step h begins; patients longest first."""

    states: Floats
    actions: NDArray[np.intp]
    rewards: Floats
    start: tuple[int, ...]
    patients: Any
    clusters: Any
    ended_value: Floats
    clipped: tuple[int, ...]
    filled: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """n_h, the patients at each step."""
        return tuple(stop - start for start, stop in pairwise(self.start))

    @property
    def clustered(self) -> bool:
        """Whether there are clusters."""
        return self.clusters is not None

    def id_batches(self) -> Iterator[Any]:
        """Ids, some at a time."""
        return batches_of(self.patients)

    def unit_batches(self) -> Iterator[Any]:
        """Labels of clusters, or else ids, some at a time."""
        return batches_of(self.patients if self.clusters is None else self.clusters)

    def step(self, h: int) -> Step:
        """Views of one step."""
        start, stop = self.start[h : h + 2]
        n_next = self.start[h + 2] - stop if h + 2 < len(self.start) else 0
        return StepInMemory(
            Chunk(
                states=self.states[:, start:stop],
                actions=self.actions[start:stop],
                rewards=self.rewards[start:stop],
                next_states=self.states[:, stop : stop + n_next],
                ended_value=self.ended_value[n_next : stop - start],
            )
        )

    def select(self, mask: NDArray[np.bool_]) -> RowsInMemory:
        """Copies of the rows of some patients."""
        import pyarrow as pa

        by_step = [mask[:n] for n in self.counts]
        keep, people = np.concatenate(by_step), pa.array(mask)
        return replace(
            self,
            states=frozen(np.compress(keep, self.states, axis=1)),
            actions=frozen(self.actions[keep]),
            rewards=frozen(self.rewards[keep]),
            start=(0, *np.cumsum([part.sum() for part in by_step]).tolist()),
            patients=self.patients.filter(people),
            clusters=None if self.clusters is None else self.clusters.filter(people),
            ended_value=frozen(self.ended_value[mask]),
        )

    def in_memory(self) -> RowsInMemory:
        """These rows."""
        return self

    def recast(self, horizon: int, layout: TableLayout, onto: NDArray[np.intp]) -> RowsInMemory:
        """Rows of the first steps, with merged actions and narrower ranges."""
        low, high = (np.array([[getattr(c, end)] for c in layout.covariates]) for end in ("low", "high"))
        length = np.sum(np.arange(len(self.ended_value)) < np.array(self.counts)[:, None], axis=0)
        missing, stop = np.maximum(horizon - length, 0), self.start[horizon]
        return replace(
            self,
            states=frozen(np.clip(self.states[:, :stop], low, high)),
            actions=frozen(onto[self.actions[:stop]]),
            rewards=self.rewards[:stop],
            start=self.start[: horizon + 1],
            ended_value=frozen(self.ended_value * missing / np.maximum(len(self.counts) - length, 1)),
        )


def arrange(table: Checked, layout: TableLayout) -> dict[str, RowsInMemory]:
    """The rows of each site by step, from a table without faults."""
    import pyarrow as pa

    rows, patient_site = table.rows, table.rows.patient_site
    n_sites, horizon, n_patients = len(rows.sites), layout.horizon, len(table.length)
    n_by_length = np.bincount(patient_site * (horizon + 1) + table.length, minlength=n_sites * (horizon + 1)).reshape(
        n_sites, horizon + 1
    )
    n_by_step = n_by_length[:, :0:-1].cumsum(axis=1)[:, ::-1]
    start = np.concatenate(([0], np.cumsum(n_by_step)))
    first = np.concatenate(([0], np.cumsum(n_by_step[:, 0])))
    ranked = np.argsort(patient_site * (horizon + 1) - table.length, kind="stable")
    rank = np.empty(n_patients, np.intp)
    rank[ranked] = np.arange(n_patients) - first[patient_site[ranked]]
    slot = start[(patient_site * horizon)[rows.patient] + rows.step] + rank[rows.patient]
    order = np.empty(len(slot), np.intp)
    order[slot] = np.arange(len(slot))

    states = np.empty((len(table.covariates), len(order)))
    rewards, actions = np.empty(len(order)), np.empty(len(order), np.intp)
    values = [covariate.values for covariate in table.covariates]
    pairs = [*zip(values, states, strict=True), (table.reward, rewards), (table.action, actions)]
    with ThreadPoolExecutor() as pool:  # mode="clip" writes to `out` directly; every index is in range
        list(pool.map(lambda pair: np.take(pair[0], order, out=pair[1], mode="clip"), pairs))
    ids, ended_value = rows.patient_id.take(pa.array(ranked)), table.ended_value[ranked]
    clusters = None if table.cluster is None else table.cluster.take(pa.array(ranked))

    by_site: dict[str, RowsInMemory] = {}
    for i, name in enumerate(rows.sites):
        bounds = start[i * horizon : (i + 1) * horizon + 1]
        own, patients = slice(bounds[0], bounds[-1]), slice(first[i], first[i + 1])
        starts = tuple((bounds - bounds[0]).tolist())
        for covariate, column in zip(layout.covariates, states[:, own], strict=True):
            if covariate.missing == "forward":
                _fill_forward(column, starts)
        by_site[name] = RowsInMemory(
            states=frozen(states[:, own]),
            actions=frozen(actions[own]),
            rewards=frozen(rewards[own]),
            start=starts,
            patients=ids[patients],
            clusters=None if clusters is None else clusters[patients],
            ended_value=frozen(ended_value[patients]),
            clipped=tuple(int(covariate.clipped[i]) for covariate in table.covariates),
            filled=tuple(int(covariate.filled[i]) for covariate in table.covariates),
        )
    return by_site


def _fill_forward(values: Floats, start: tuple[int, ...]) -> None:
    for h in range(1, len(start) - 1):
        now = values[start[h] : start[h + 1]]
        before = values[start[h - 1] : start[h - 1] + len(now)]
        np.copyto(now, before, where=np.isnan(now))


def frozen(array: Array) -> Array:
    """The array, which nobody can write to any more."""
    array.flags.writeable = False
    return array
