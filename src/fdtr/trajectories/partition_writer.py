"""Write a partition from a table of any length, part by part (`table_parts`).

Patients of equal length are written together, longest first; where trajectories may end early, each part waits on disk
until all are checked.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fdtr.container import write_atomically
from fdtr.errors import OutputExists, UnwritableFile
from fdtr.trajectories.partition import (
    ACTION,
    CLUSTER,
    ENDED,
    FORMAT,
    GROUP_ROWS,
    PATIENT,
    PATIENTS,
    REWARD,
    SiteFiles,
    layout_digest,
    state_column,
    step_file,
)
from fdtr.trajectories.rows_in_memory import RowsInMemory
from fdtr.trajectories.table_parts import ROWS_AT_ONCE, arranged, checked_parts, cut_at_patients, parts_of_file
from fdtr.trajectories.table_sources import MANIFEST, TableLayout, load


def write_partition(
    source: object, layout: TableLayout, folder: Path, site: str | None = None, rows_at_once: int = ROWS_AT_ONCE
) -> None:
    """Check a table and write it to `folder`, which must not exist; nothing is left of it after a failure.

    `source` is a path, a dataframe, or an iterator of `Columns`: parts of a table whose rows are sorted by patient.
    """
    site = site.strip() if site is not None else None
    if folder.exists():
        raise OutputExists(f"{folder} exists already. Nothing was written. Name another folder with --out.")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as place:
            made = Path(place) / "made"
            made.mkdir()
            _write(source, layout, made, Path(place), site, rows_at_once)
            made.rename(folder)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise UnwritableFile(f"{folder} could not be written: {why}. Nothing is left of it.") from None


def _write(source: object, layout: TableLayout, made: Path, place: Path, site: str | None, rows_at_once: int) -> None:
    sites = _Sites(layout, made, place)
    if isinstance(source, str | os.PathLike):
        for rows in parts_of_file(Path(source), layout, place, site, rows_at_once):
            sites.take(rows)
    elif isinstance(source, Iterator):
        for rows in checked_parts(cut_at_patients(source, layout, rows_at_once), layout, site):
            sites.take(rows)
    else:
        sites.take(arranged(load(source, layout), layout, site))
    sites.finish()


class _Sites:
    """The files of all sites, growing part by part."""

    def __init__(self, layout: TableLayout, made: Path, place: Path) -> None:
        self._layout, self._made, self._place = layout, made, place
        self._waiting: dict[str, list[_Waiting]] = {}
        self._numbers = count()
        self._writers: dict[str, _SiteWriter] = {}

    def take(self, sites: Mapping[str, RowsInMemory]) -> None:
        """Write a part's rows, or let them wait on disk until all parts are there."""
        for name, rows in sites.items():
            self._writer(name).count(rows)
            if self._layout.ends:
                waiting = self._waiting.setdefault(name, [])
                waiting.append(_Waiting.of(rows, self._place / f"waiting-{next(self._numbers):06}"))
            else:
                self._writer(name).append(rows, 0, rows.counts[0], self._layout.horizon)

    def _writer(self, name: str) -> _SiteWriter:
        if name not in self._writers:
            self._writers[name] = _SiteWriter(self._made / f"{len(self._writers):03}", name, self._layout)
        return self._writers[name]

    def finish(self) -> None:
        """Write what waits, longest trajectories first, then the manifest."""
        for name, waiting in sorted(self._waiting.items()):
            for length in range(self._layout.horizon, 0, -1):
                for part in waiting:
                    rows = part.rows
                    longer = rows.counts[length] if length < len(rows.counts) else 0
                    self._writer(name).append(rows, longer, rows.counts[length - 1], length)
            for part in waiting:
                shutil.rmtree(part.folder)
        entries = [asdict(writer.close()) for _, writer in sorted(self._writers.items())]
        files = {
            str(file.relative_to(self._made)): file.stat().st_size for file in sorted(self._made.rglob("*.parquet"))
        }
        manifest = {
            "format": FORMAT,
            "layout": layout_digest(self._layout),
            "covariates": [covariate.name for covariate in self._layout.covariates],
            "sites": entries,
            "files": files,
        }
        write_atomically(self._made / MANIFEST, json.dumps(manifest, indent=1).encode())


@dataclass(frozen=True, eq=False, repr=False)
class _Waiting:
    """A part of one site on disk: arrays that are mapped into memory when its turn comes."""

    folder: Path
    summary: RowsInMemory

    @classmethod
    def of(cls, rows: RowsInMemory, folder: Path) -> _Waiting:
        folder.mkdir()
        for name in ("states", "actions", "rewards", "ended_value"):
            np.save(folder / f"{name}.npy", getattr(rows, name))
        none, nobody = np.zeros(0), np.zeros(0, np.intp)
        return cls(folder, replace(rows, states=none, actions=nobody, rewards=none, ended_value=none))

    @property
    def rows(self) -> RowsInMemory:
        """The rows, read where they are looked at."""
        names = ("states", "actions", "rewards", "ended_value")
        return replace(self.summary, **{name: np.load(self.folder / f"{name}.npy", mmap_mode="r") for name in names})


class _SiteWriter:
    """The files of one site: ids, and rows by step."""

    def __init__(self, folder: Path, name: str, layout: TableLayout) -> None:
        folder.mkdir()
        self._folder, self._name, self._layout = folder, name, layout
        self._patients = _GroupWriter(folder / PATIENTS)
        self._steps = [_GroupWriter(folder / step_file(h)) for h in range(layout.horizon)]
        self._clipped, self._filled = np.zeros((2, len(layout.covariates)), np.int64)
        self._clustered = False

    def count(self, rows: RowsInMemory) -> None:
        """Add a part's values that were clipped or filled, and say whether patients have clusters."""
        self._clipped += np.array(rows.clipped)
        self._filled += np.array(rows.filled)
        self._clustered = rows.clusters is not None

    def append(self, rows: RowsInMemory, first: int, stop: int, length: int) -> None:
        """Append patients `first` to `stop` of a part, whose trajectories all have this `length`."""
        if first >= stop:
            return
        labels = {PATIENT: rows.patients[first:stop]}
        if rows.clusters is not None:
            labels[CLUSTER] = rows.clusters[first:stop]
        self._patients.append(labels)
        for h in range(length):
            here = slice(rows.start[h] + first, rows.start[h] + stop)
            last = h == length - 1
            self._steps[h].append(
                {
                    **{state_column(number): row[here] for number, row in enumerate(rows.states)},
                    ACTION: rows.actions[here].astype(np.int32),
                    REWARD: rows.rewards[here],
                    ENDED: np.array(rows.ended_value[first:stop]) if last else np.zeros(stop - first),
                }
            )

    def close(self) -> SiteFiles:
        """Close all files; what the manifest says of them."""
        for writer in (self._patients, *self._steps):
            writer.close()
        return SiteFiles(
            name=self._name,
            folder=self._folder.name,
            counts=tuple(writer.n_rows for writer in self._steps),
            clipped=tuple(self._clipped.tolist()),
            filled=tuple(self._filled.tolist()),
            clustered=self._clustered,
        )


class _GroupWriter:
    """A Parquet file whose row groups have GROUP_ROWS rows, but for the last; made with the first rows."""

    def __init__(self, path: Path) -> None:
        self.n_rows = 0
        self._path = path
        self._writer: Any = None
        self._waiting: list[Any] = []

    def append(self, columns: Mapping[str, Any]) -> None:
        """Append rows; whole row groups are written at once."""
        import pyarrow as pa

        self._waiting.append(pa.table(dict(columns)))
        self.n_rows += self._waiting[-1].num_rows
        self._write_whole()

    def _write_whole(self, *, all_of_it: bool = False) -> None:
        import pyarrow as pa

        table = pa.concat_tables(self._waiting)
        whole = table.num_rows if all_of_it else table.num_rows // GROUP_ROWS * GROUP_ROWS
        for start, stop in pairwise([*range(0, whole, GROUP_ROWS), whole]):
            self._write(table.slice(start, stop - start))
        rest = table.slice(whole)
        self._waiting = [rest]

    def _write(self, group: Any) -> None:
        import pyarrow.parquet as pq

        if self._writer is None:
            few = [name for name in (ACTION, ENDED) if name in group.column_names]
            self._writer = pq.ParquetWriter(
                self._path, group.schema, compression="none", use_dictionary=few, write_statistics=False
            )
        self._writer.write_table(group, row_group_size=GROUP_ROWS)

    def close(self) -> None:
        """Write what is left."""
        if self._waiting:
            self._write_whole(all_of_it=True)
        if self._writer is not None:
            self._writer.close()
