"""Trajectories as contiguous arrays by site and step, arranged once from a checked table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fdtr.errors import UnknownSite
from fdtr.trajectories.patient_ids import PatientIds, batches_of
from fdtr.trajectories.step_sums import Arrays, ChunkSums, sum_chunks
from fdtr.trajectories.table_checks import Checked, check
from fdtr.trajectories.table_sources import TableLayout, load

CHUNK_ROWS = 8192  # default size of a chunk

Floats = NDArray[np.float64]
Array = TypeVar("Array", bound=NDArray[Any])


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
            states=_frozen(np.compress(keep, self.states, axis=1)),
            actions=_frozen(self.actions[keep]),
            rewards=_frozen(self.rewards[keep]),
            start=(0, *np.cumsum([part.sum() for part in by_step]).tolist()),
            patients=self.patients.filter(people),
            clusters=None if self.clusters is None else self.clusters.filter(people),
            ended_value=_frozen(self.ended_value[mask]),
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
            states=_frozen(np.clip(self.states[:, :stop], low, high)),
            actions=_frozen(onto[self.actions[:stop]]),
            rewards=self.rewards[:stop],
            start=self.start[: horizon + 1],
            ended_value=_frozen(self.ended_value * missing / np.maximum(len(self.counts) - length, 1)),
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ManySites:
    """The rows of several sites one after another, for fits of many small sites at once.

    Row `start`[b, h] begins step h of site b, `start`[b, H] ends the site; within a site rows are those of a `Chunk`.
    `ended_value` has an entry for each patient, site after site, in the order of the site's first step.
    """

    states: Floats
    actions: NDArray[np.intp]
    rewards: Floats
    ended_value: Floats
    start: NDArray[np.intp]

    @property
    def n(self) -> NDArray[np.intp]:
        """Patients of each site at each step, (B, H)."""
        return np.diff(self.start, axis=1)


@dataclass(frozen=True)
class Sample:
    """How many of a site's patients were drawn for what cannot see them all.

    >>> print(Sample(100_212, 20_000_000))
    100,212 of 20,000,000 patients, drawn by a hash of their ids
    """

    n: int
    of: int

    def __str__(self) -> str:
        return f"{self.n:,} of {self.of:,} patients, drawn by a hash of their ids"


@dataclass(frozen=True, eq=False, repr=False)
class Trajectories:
    """Patients' trajectories at one site or at several.

    `covariates` are names, in the order of the rows of `states`; `meaning` is what the table was read as. Arrays are
    read-only views of one block. `sample` says of how many patients these are a sample; None if they are none.
    """

    horizon: int
    covariates: tuple[str, ...]
    n_actions: int
    meaning: tuple[Any, ...]
    _rows: Mapping[str, SiteRows]
    sample: Sample | None = None

    def __repr__(self) -> str:
        """Sizes only, never a patient's value."""
        where = f'site "{self.site}"' if len(self._rows) == 1 else f"{len(self._rows)} sites"
        size = f"{self.n_patients} patients, {self.n_rows} rows, horizon {self.horizon}"
        return f"<Trajectories: {where}, {size}>"

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites, sorted."""
        return tuple(self._rows)

    @property
    def site(self) -> str:
        """Name of the only site."""
        if len(self._rows) != 1:
            fact = f"One site is needed and the table holds {len(self._rows)}."
            raise UnknownSite(f"{fact} Name one with --site; in Python, take one of by_site().")
        return next(iter(self._rows))

    @property
    def n_patients(self) -> int:
        """Patients at step 0, over all sites."""
        return sum(rows.counts[0] for rows in self._rows.values())

    @property
    def n_rows(self) -> int:
        """Rows of the table, over all sites and steps."""
        return sum(sum(rows.counts) for rows in self._rows.values())

    @property
    def patients(self) -> Any:
        """Ids of the only site's patients as Arrow text, in the order of step 0. They stay at the site."""
        return self._only.patients

    @property
    def clusters(self) -> Any:
        """Cluster labels in the order of `patients`; None where the table was read without clusters."""
        return self._only.clusters

    @property
    def clustered(self) -> bool:
        """Whether the only site's patients are in clusters."""
        return self._only.clustered

    @property
    def n_clusters(self) -> int | None:
        """Clusters of the only site; None where the table was read without clusters."""
        codes = self.cluster_codes()
        return None if codes is None else int(codes.max(initial=-1)) + 1

    def cluster_codes(self) -> NDArray[Any] | None:
        """The cluster of each patient as a number, (n,), in the order in which clusters come; None without clusters."""
        if not self.clustered:
            return None
        numbers: dict[str, int] = {}
        parts = [np.zeros(0, np.int32)]
        for batch in self._only.unit_batches():
            encoded = batch.dictionary_encode()
            number = [numbers.setdefault(label, len(numbers)) for label in encoded.dictionary.to_pylist()]
            parts.append(np.array(number, np.int32)[encoded.indices.to_numpy()])
        return np.concatenate(parts)

    @cached_property
    def ids(self) -> PatientIds:
        """Ids of the only site's patients, which are read when they are needed. They stay at the site."""
        return PatientIds(self.n_patients, self._only.id_batches)

    @cached_property
    def lengths(self) -> NDArray[np.uint16]:
        """Number of steps of each patient, (n,): at every step, the patients who continue come first."""
        present = np.array([*self._only.counts, 0])
        return _frozen(np.repeat(np.arange(self.horizon, 0, -1, dtype=np.uint16), -np.diff(present)[::-1]))

    def units(self) -> Iterator[str]:
        """Independent units in the order of `patients`: clusters, or patients where the table has no clusters."""
        for batch in self._only.unit_batches():
            yield from batch.to_pylist()

    @property
    def clipped(self) -> Mapping[str, int]:
        """By covariate, how many values of the table lay outside the range; `select` keeps the counts."""
        return self._total([rows.clipped for rows in self._rows.values()])

    @property
    def filled(self) -> Mapping[str, int]:
        """By covariate, how many values of the table were missing and filled; `select` keeps the counts."""
        return self._total([rows.filled for rows in self._rows.values()])

    def step(self, h: int) -> Step:
        """Rows of the only site at step `h`, counted from 0."""
        if not 0 <= h < self.horizon:
            raise IndexError(f"Step {h} is not one of 0 … {self.horizon - 1}.")
        return self._only.step(h)

    def by_site(self) -> dict[str, Trajectories]:
        """Each site on its own, sorted by name; views, not copies."""
        return {name: replace(self, _rows={name: rows}) for name, rows in self._rows.items()}

    @property
    def n_by_site(self) -> NDArray[np.intp]:
        """Patients of each site at step 0, (K,), in the order of `sites`."""
        return np.array([rows.counts[0] for rows in self._rows.values()], np.intp)

    def of_sites(self, sites: Sequence[str]) -> ManySites:
        """The rows of some sites together, in this order."""
        chosen = [self._rows[site].in_memory() for site in sites]
        start = np.array([rows.start for rows in chosen], np.intp)
        before = np.concatenate(([0], np.cumsum(start[:-1, -1])))
        return ManySites(
            states=np.concatenate([rows.states for rows in chosen], axis=1),
            actions=np.concatenate([rows.actions for rows in chosen]),
            rewards=np.concatenate([rows.rewards for rows in chosen]),
            ended_value=np.concatenate([rows.ended_value for rows in chosen]),
            start=start + before[:, None],
        )

    def select(self, patients: NDArray[np.bool_]) -> Trajectories:
        """The only site's patients that are True in the mask, which follows the order of `.patients`."""
        mask = np.asarray(patients)
        if mask.dtype != np.bool_ or mask.shape != (self.n_patients,):
            raise ValueError(f"The mask must be {self.n_patients} booleans, one a patient.")
        return replace(self, _rows={self.site: self._only.select(mask)}, sample=None)

    def draw(self, patients: NDArray[np.bool_]) -> Trajectories:
        """The only site's patients that are True in the mask, in memory, as a sample of all."""
        chosen = self.select(patients)
        sample = Sample(chosen.n_patients, self.n_patients)
        return replace(chosen, _rows={self.site: chosen._only.in_memory()}, sample=sample)

    def recast(self, layout: TableLayout, levels: Sequence[int]) -> Trajectories:
        """The rows as `layout` would have read them: fewer steps, merged actions, narrower ranges.

        `levels` (A,) maps the positions of action levels onto those of `layout`.
        """
        onto, horizon = np.asarray(levels, np.intp), layout.horizon
        recast = {site: rows.recast(horizon, layout, onto) for site, rows in self._rows.items()}
        return replace(self, horizon=horizon, n_actions=len(layout.action_levels), meaning=layout.meaning, _rows=recast)

    def action_counts(self) -> NDArray[np.int64]:
        """(H, A): how often the only site took each action at each step."""
        counts = np.zeros((self.horizon, self.n_actions), np.int64)
        for h, row in enumerate(counts):
            for chunk in self._only.step(h).chunks():
                row += np.bincount(chunk.actions, minlength=self.n_actions)
        return counts

    @property
    def _only(self) -> SiteRows:
        return self._rows[self.site]

    def _total(self, counts: list[tuple[int, ...]]) -> Mapping[str, int]:
        return dict(zip(self.covariates, map(sum, zip(*counts, strict=True)), strict=True))


def read(source: object, layout: TableLayout, site: str | None = None) -> Trajectories:
    """Read a table, check it once and arrange it by site and step.

    `source` is the path of a CSV file, a Parquet file or a folder of Parquet files, or a dataframe that
    narwhals knows. `site` names the one site of a table without a site column; with one, it keeps that site's
    rows only. All faults of the table come together in one `InvalidTable`.

    >>> import pyarrow as pa
    >>> from fdtr.trajectories import Covariate
    >>> rows = {"patient": ["p", "q"], "step": [0, 0], "action": [1, 0], "reward": [5, 10], "age": [30, 130]}
    >>> layout = TableLayout(1, (Covariate("age", "age", 0, 120),), (0, 1), 0, 10)
    >>> data = read(pa.table(rows), layout, site="north")
    >>> data
    <Trajectories: site "north", 2 patients, 2 rows, horizon 1>
    >>> chunk, = data.step(0).chunks()
    >>> chunk.states, chunk.actions, chunk.rewards, data.clipped
    (array([[ 30., 120.]]), array([1, 0]), array([0.5, 1. ]), {'age': 1})
    """
    checked = check(load(source, layout), layout, str(site).strip() if site is not None else None)
    names = tuple(covariate.name for covariate in layout.covariates)
    return Trajectories(layout.horizon, names, len(layout.action_levels), layout.meaning, arrange(checked, layout))


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
            states=_frozen(states[:, own]),
            actions=_frozen(actions[own]),
            rewards=_frozen(rewards[own]),
            start=starts,
            patients=ids[patients],
            clusters=None if clusters is None else clusters[patients],
            ended_value=_frozen(ended_value[patients]),
            clipped=tuple(int(covariate.clipped[i]) for covariate in table.covariates),
            filled=tuple(int(covariate.filled[i]) for covariate in table.covariates),
        )
    return by_site


def _fill_forward(values: Floats, start: tuple[int, ...]) -> None:
    for h in range(1, len(start) - 1):
        now = values[start[h] : start[h + 1]]
        before = values[start[h - 1] : start[h - 1] + len(now)]
        np.copyto(now, before, where=np.isnan(now))


def _frozen(array: Array) -> Array:
    array.flags.writeable = False
    return array
