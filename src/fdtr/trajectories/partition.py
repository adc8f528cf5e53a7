"""A partition: a checked table on disk as one Parquet file for each step, so that steps can be read chunk by chunk.

    partition.json              what the table was read as, and every file with its bytes and rows
    000/patients.parquet        ids (and clusters) of the first site's patients
    000/step-000.parquet        covariates in raw units, clipped and filled; position of the action; reward on [0,1];
                                and, on a patient's last row, what the missing steps are worth

Patients with longer trajectories come first, and among equally long ones the smaller id (by its bytes). So the patients
of a step are the first ones of the step before, and row groups of two steps, GROUP_ROWS long, lie side by side: a
backward pass reads a step's own file and the next one, and holds a few groups of each.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fdtr.container import fingerprint
from fdtr.errors import DamagedFile, InvalidSettings, MissingFile, OtherStudy, UnknownSite
from fdtr.trajectories.chunks import CHUNK_ROWS, Chunk, SiteRows, Step
from fdtr.trajectories.rows_in_memory import RowsInMemory
from fdtr.trajectories.step_sums import Arrays, ChunkSums, sum_chunks
from fdtr.trajectories.table_sources import MANIFEST, TableLayout
from fdtr.trajectories.trajectory_data import Trajectories

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

FORMAT = 1
GROUP_ROWS = 65_536
"""Rows of one row group: every file of a partition has its first row groups this long."""

PATIENTS = "patients.parquet"
PATIENT, CLUSTER, ACTION, REWARD, ENDED = "patient", "cluster", "action", "reward", "ended"

_AGAIN = "Nothing was written. Make the partition again: `fdtr table partition`."


def step_file(h: int) -> str:
    """The name of a step's file."""
    return f"step-{h:03}.parquet"


def state_column(number: int) -> str:
    """The name of a covariate's column: names of covariates may be those of other columns."""
    return f"x{number}"


def layout_digest(layout: TableLayout) -> str:
    """Identifies what a table is read as; tables with another meaning are another partition."""
    return fingerprint({"meaning": json.loads(json.dumps(layout.meaning, default=vars))})


@dataclass(frozen=True)
class SiteFiles:
    """What the manifest says of one site: its folder, patients by step, and counts by covariate."""

    name: str
    folder: str
    counts: tuple[int, ...]
    clipped: tuple[int, ...]
    filled: tuple[int, ...]
    clustered: bool


def open_partition(path: Path, layout: TableLayout, site: str | None = None, owner: object = None) -> Trajectories:
    """The trajectories of a partition; rows stay on disk until they are asked for, and `owner` lives as long as they.

    Refuses a partition that was made for another layout, and one whose files are missing or have another length.
    """
    manifest = _read_manifest(path)
    if manifest["layout"] != layout_digest(layout):
        raise OtherStudy(
            f"The partition {path} was made with another study: horizon, covariates, ranges, levels, ends or missing "
            "values differ. Nothing was written. Make one with this study: `fdtr table partition`."
        )
    for name, size in manifest["files"].items():
        _require_size(path / name, size)
    sites = [SiteFiles(**{**entry, **_tuples(entry)}) for entry in manifest["sites"]]
    if site is not None:
        names = ", ".join(f'"{each.name}"' for each in sites)
        sites = [each for each in sites if each.name == site]
        if not sites:
            raise UnknownSite(f'The partition {path} has no rows of site "{site}". Its sites: {names}.')
    rows: dict[str, SiteRows] = {
        each.name: RowsOnDisk(path / each.folder, each, len(layout.covariates), owner=owner) for each in sites
    }
    names_of = tuple(covariate.name for covariate in layout.covariates)
    return Trajectories(layout.horizon, names_of, len(layout.action_levels), layout.meaning, rows)


@dataclass(frozen=True, eq=False, repr=False)
class RowsOnDisk:
    """One site's rows in a folder of a partition; `mask` (n,) says which patients count, all if None.

    `owner` removes a folder that is temporary when nothing refers to it any more. Where they
    have a `cluster`, it sums the rows of a step.
    """

    folder: Path
    files: SiteFiles
    n_covariates: int
    mask: Mask | None = None
    owner: object = None
    cluster: Cluster | None = None

    @property
    def patients(self) -> Any:
        """Ids as Arrow text."""
        return self._labels(PATIENT)

    @property
    def clusters(self) -> Any:
        """Labels of clusters as Arrow text, or None."""
        return self._labels(CLUSTER) if self.files.clustered else None

    @property
    def clustered(self) -> bool:
        """Whether there are clusters."""
        return self.files.clustered

    def id_batches(self) -> Iterator[Any]:
        """Ids, a row group at a time."""
        return self._label_batches(PATIENT)

    def unit_batches(self) -> Iterator[Any]:
        """Labels of clusters, or else ids, a row group at a time."""
        return self._label_batches(CLUSTER if self.clustered else PATIENT)

    def _label_batches(self, column: str) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        path, start = self.folder / PATIENTS, 0
        with _reading(path), pq.ParquetFile(path, pre_buffer=False) as file:  # a buffer would hold the whole column
            for batch in file.iter_batches(GROUP_ROWS, columns=[column]):
                mask, start = self.mask, start + len(batch)
                labels = batch.column(0)
                yield labels if mask is None else labels.filter(pa.array(mask[start - len(batch) : start]))

    @property
    def clipped(self) -> tuple[int, ...]:
        """By covariate, how many values lay outside the range."""
        return self.files.clipped

    @property
    def filled(self) -> tuple[int, ...]:
        """By covariate, how many values were missing and filled."""
        return self.files.filled

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """n_h, the patients at each step."""
        if self.mask is None:
            return self.files.counts
        return tuple(int(np.count_nonzero(self.mask[:n])) for n in self.files.counts)

    @cached_property
    def digest(self) -> str:
        """Identifies the site's files by what the manifest says, and by their names, sizes and times of change."""
        files = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in self.folder.glob("*.parquet")]
        return fingerprint(
            {"site": vars(self.files), "files": [[str(part) for part in file] for file in sorted(files)]}
        )

    def step(self, h: int) -> Step:
        """One step, read chunk by chunk."""
        return StepOnDisk(self, h)

    def select(self, mask: Mask) -> RowsOnDisk:
        """The patients that are True in the mask; no row is copied."""
        if self.mask is None:
            return replace(self, mask=mask)
        chosen = self.mask.copy()
        chosen[chosen] = mask
        return replace(self, mask=chosen)

    def recast(self, horizon: int, layout: TableLayout, onto: NDArray[np.intp]) -> SiteRows:
        """Rows as `layout` would have read them, in memory."""
        return self.in_memory().recast(horizon, layout, onto)

    def in_memory(self) -> RowsInMemory:
        """Copies of all rows."""
        steps = [next(self.step(h).chunks(max(n, 1)), None) for h, n in enumerate(self.counts)]
        present = [chunk for chunk in steps if chunk is not None]
        ended = [chunk.ended_value for chunk in reversed(present)]  # the last step's patients come first
        return RowsInMemory(
            states=np.concatenate([chunk.states for chunk in present], axis=1),
            actions=np.concatenate([chunk.actions for chunk in present]),
            rewards=np.concatenate([chunk.rewards for chunk in present]),
            start=(0, *np.cumsum(self.counts).tolist()),
            patients=self.patients,
            clusters=self.clusters,
            ended_value=np.concatenate(ended),
            clipped=self.clipped,
            filled=self.filled,
        )

    def _labels(self, column: str) -> Any:
        import pyarrow as pa

        batches = [*self._label_batches(column)]
        return pa.concat_arrays(batches) if batches else pa.array([], pa.string())


@dataclass(frozen=True, eq=False, repr=False)
class StepOnDisk:
    """One step of a site on disk."""

    rows: RowsOnDisk
    h: int

    @property
    def n(self) -> int:
        """Patients at this step."""
        return self.rows.counts[self.h]

    @property
    def n_next(self) -> int:
        """Patients that go on to the next step: the first of them."""
        return self.rows.counts[self.h + 1] if self.h + 1 < len(self.rows.counts) else 0

    def chunks(self, size: int = CHUNK_ROWS, *, following: bool = True) -> Iterator[Chunk]:
        """Chunks of exactly `size` rows but for the last, as from memory; the next row group is read meanwhile.

        The file of the next step is read only for what is `following`.
        """
        rows = self.part(0, self.n)
        # Not returned but yielded from: as long as chunks are taken, these rows keep a temporary partition.
        yield from (rows if following else replace(rows, counts=(rows.counts[0], 0))).chunks(size)

    def sums(self, work: ChunkSums, size: int, labels: NDArray[np.integer[Any]] | None = None) -> Arrays:
        """What `work` gives for chunks of `size` rows, added up on all cores, or on the cluster that the rows have."""
        if self.rows.cluster is not None:
            return self.rows.cluster.sums(self, work, size, labels)
        return sum_chunks(self.chunks(size), work, size, labels)

    def part(self, start: int, stop: int) -> RowGroups:
        """The rows from `start` to before `stop`, among those of patients who count."""
        counts, ends = (*self.rows.files.counts, 0)[self.h : self.h + 2], self._ends
        last = int(np.searchsorted(ends, stop)) + 1 if stop > start else 0
        first = int(np.searchsorted(ends, start, side="right")) if last else 0
        begin, end = first * GROUP_ROWS, min(last * GROUP_ROWS, counts[0])
        mask = None if self.rows.mask is None else self.rows.mask[begin:end]
        before = start - int(ends[first - 1]) if first else start
        after = int(ends[last - 1]) - stop if last else 0
        if before or after:
            mask = np.ones(end - begin, np.bool_) if mask is None else mask.copy()
            head, tail = mask[:GROUP_ROWS], mask[(last - first - 1) * GROUP_ROWS :]
            head[np.flatnonzero(head)[:before]] = False
            tail[np.flatnonzero(tail)[np.count_nonzero(tail) - after :]] = False
        files = (self.rows.folder, self.h, self.rows.n_covariates, (counts[0], counts[1]), GROUP_ROWS)
        return RowGroups(*files, range(first, last), mask)

    @cached_property
    def _ends(self) -> NDArray[np.intp]:
        """How many patients who count are in each row group and those before it."""
        n = self.rows.files.counts[self.h]
        starts = np.arange(0, n, GROUP_ROWS)
        if self.rows.mask is None:
            return np.minimum(starts + GROUP_ROWS, n)
        return np.cumsum([np.count_nonzero(self.rows.mask[start : min(start + GROUP_ROWS, n)]) for start in starts])


class Cluster(Protocol):
    """Machines that see the folder of a partition, and sum the rows of a step in parts."""

    def sums(self, step: StepOnDisk, work: ChunkSums, size: int, labels: NDArray[np.integer[Any]] | None) -> Arrays:
        """What `Step.sums` gives."""
        ...


def folder_of(rows: Trajectories) -> Path:
    """The folder of the partition that rows are read from, as an absolute path; refuses rows of a table in memory."""
    folders = {of_site.folder.parent for of_site in rows._rows.values() if isinstance(of_site, RowsOnDisk)}
    if len(folders) != 1 or not all(isinstance(of_site, RowsOnDisk) for of_site in rows._rows.values()):
        raise InvalidSettings(
            "The workers of a cluster read the rows themselves. That takes a partition, and these rows are a table in "
            "memory. Nothing was written. Make a partition and name it in place of the table: `fdtr table partition`."
        )
    return folders.pop().resolve()


def with_cluster(rows: Trajectories, cluster: Cluster) -> Trajectories:
    """The rows of a partition, whose steps `cluster` sums."""
    folder = folder_of(rows)
    sites: dict[str, SiteRows] = {
        name: replace(of_site, folder=folder / of_site.files.folder, cluster=cluster)
        for name, of_site in rows._rows.items()
        if isinstance(of_site, RowsOnDisk)
    }
    return replace(rows, _rows=sites)


@dataclass(frozen=True, eq=False, repr=False)
class RowGroups:
    """Adjacent row groups of one step, in files: all that is needed to read them, on whatever machine.

    `counts` are the patients at step `h` and the next one, `rows_in_group` is the length of a row group; `mask` says
    which rows of `groups` count, all if None.
    """

    folder: Path
    h: int
    n_covariates: int
    counts: tuple[int, int]
    rows_in_group: int
    groups: range
    mask: Mask | None

    def chunks(self, size: int) -> Iterator[Chunk]:
        """Chunks of exactly `size` rows but for the last; the next row group is read meanwhile."""
        if size < 1:
            raise ValueError(f"A chunk has at least 1 row, not {size}.")
        waiting: list[Chunk] = []
        for group in self._read_ahead():
            waiting.append(group)
            if sum(len(chunk.actions) for chunk in waiting) >= size:
                whole = _joined(waiting)
                stop = len(whole.actions) // size * size
                yield from (_cut(whole, start, start + size) for start in range(0, stop, size))
                waiting = [_cut(whole, stop, len(whole.actions))]
        rest = _joined(waiting)
        if rest is not None and len(rest.actions):
            yield rest

    def _read_ahead(self) -> Iterator[Chunk]:
        """The row groups, one read while another is worked on."""
        import pyarrow.parquet as pq

        files: list[Any] = []
        if not self.groups:
            return
        paths = [self.folder / step_file(self.h)] + [self.folder / step_file(self.h + 1)] * (self.counts[1] > 0)
        for path in paths:
            with _reading(path):
                files.append(pq.ParquetFile(path))
        try:
            with ThreadPoolExecutor(1) as reader:
                ahead: Future[Chunk] = reader.submit(self._read_group, paths, files, self.groups[0])
                for group in self.groups:
                    chunk = ahead.result()
                    if group + 1 in self.groups:
                        ahead = reader.submit(self._read_group, paths, files, group + 1)
                    yield chunk
        finally:
            for file in files:
                file.close()

    def _read_group(self, paths: Sequence[Path], files: Sequence[Any], group: int) -> Chunk:
        """One row group beside that of the next step, without the patients who do not count."""
        start = group * self.rows_in_group
        names = [state_column(number) for number in range(self.n_covariates)]
        with _reading(paths[0]):
            table = files[0].read_row_group(group, columns=[*names, ACTION, REWARD, ENDED], use_threads=False)
        c = table.num_rows
        k = min(max(self.counts[1] - start, 0), c)
        following: Any = None
        if k:
            with _reading(paths[1]):
                following = files[1].read_row_group(group, columns=names, use_threads=False)
        first_row = start - self.groups[0] * self.rows_in_group
        mask = None if self.mask is None else self.mask[first_row : first_row + c]

        def column(source: Any, name: str, first: int = 0) -> NDArray[Any]:
            values: NDArray[Any] = source[name].to_numpy()[first:]
            return values if mask is None else values[mask[first : first + len(values)]]

        ended = column(table, ENDED, k)
        actions = column(table, ACTION).astype(np.intp)
        states = np.empty((len(names), len(actions)))
        next_states = np.empty((len(names), len(actions) - len(ended)))
        for row, following_row, name in zip(states, next_states, names, strict=True):
            row[:] = column(table, name)
            if k:
                following_row[:] = column(following, name)
        return Chunk(states, actions, column(table, REWARD), next_states, ended)


def _joined(chunks: Sequence[Chunk]) -> Any:
    """Chunks that follow each other as one; None of none."""
    if len(chunks) < 2:
        return chunks[0] if chunks else None
    return Chunk(
        states=np.concatenate([chunk.states for chunk in chunks], axis=1),
        actions=np.concatenate([chunk.actions for chunk in chunks]),
        rewards=np.concatenate([chunk.rewards for chunk in chunks]),
        next_states=np.concatenate([chunk.next_states for chunk in chunks], axis=1),
        ended_value=np.concatenate([chunk.ended_value for chunk in chunks]),
    )


def _cut(chunk: Chunk, start: int, stop: int) -> Chunk:
    """Some rows of a chunk, as views."""
    n_next = chunk.next_states.shape[1]
    return Chunk(
        states=chunk.states[:, start:stop],
        actions=chunk.actions[start:stop],
        rewards=chunk.rewards[start:stop],
        next_states=chunk.next_states[:, start:stop],
        ended_value=chunk.ended_value[max(start - n_next, 0) : max(stop - n_next, 0)],
    )


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn what fails in reading a file of a partition into a sentence that names it."""
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError:
        raise MissingFile(f"The partition's file {path} is missing. {_AGAIN}") from None
    except (pa.ArrowException, OSError):
        raise DamagedFile(f"The partition's file {path} is cut short or was changed. {_AGAIN}") from None


def _require_size(path: Path, size: int) -> None:
    with _reading(path):
        found = path.stat().st_size
    if found != size:
        raise DamagedFile(f"The partition's file {path} has {found:,} bytes instead of {size:,}. {_AGAIN}")


def _read_manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
        sound = isinstance(manifest, dict) and {"format", "layout", "files", "sites"} <= manifest.keys()
    except (OSError, ValueError):
        sound = False
    if not sound:
        raise DamagedFile(f"{file} is no manifest of a partition. {_AGAIN}")
    if manifest["format"] != FORMAT:
        raise DamagedFile(f"{file} has format {manifest['format']}; this version of fdtr reads {FORMAT}. {_AGAIN}")
    return dict(manifest)


def _tuples(entry: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(entry[name]) for name in ("counts", "clipped", "filled")}
