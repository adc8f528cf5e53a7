"""Write a partition from a table of any length: checked once, part by part, as a table in memory is.

A part holds all rows of some patients: those whose ids lie between two of a sample. The table is read twice, first for
the sample, then to deal its rows out to files, one for each part. Then each part is checked and arranged in memory.
Faults of all parts are reported together, with the numbers of rows in the table. Patients of equal length are written
together, longest first; where trajectories may end early, each part waits on disk until all are checked.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from fdtr.trajectories.table_checks import check, check_part
from fdtr.trajectories.table_columns import texts
from fdtr.trajectories.table_faults import Faults, Kind
from fdtr.trajectories.table_sources import MANIFEST, Columns, TableLayout, load, stream
from fdtr.trajectories.trajectory_data import RowsInMemory, arrange

ROWS_AT_ONCE = 1_000_000
"""Rows of a part, more or less: what is checked and arranged in memory at once."""

_SAMPLE = 10_000
_ROW = "row of the table"


def write_partition(
    source: object, layout: TableLayout, folder: Path, site: str | None = None, rows_at_once: int = ROWS_AT_ONCE
) -> None:
    """Check a table and write it to `folder`, which must not exist; nothing is left of it after a failure."""
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
        for rows in _parts(Path(source), layout, place, site, rows_at_once):
            sites.take(rows)
    else:
        sites.take(_arranged(load(source, layout), layout, site))
    sites.finish()


def _arranged(columns: Columns, layout: TableLayout, site: str | None) -> Mapping[str, RowsInMemory]:
    columns, position = _by_patient(columns, layout)
    if position is None:
        return arrange(check(columns, layout, site), layout)
    faults = Faults(columns.label)
    faults.position = position
    checked = check_part(columns, layout, site, faults)
    faults.refuse()
    return arrange(checked, layout)


def _by_patient(columns: Columns, layout: TableLayout) -> tuple[Columns, NDArray[np.intp] | None]:
    """Rows in the order of the patients' ids, and where each stood; as they are where ids cannot be read."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ids = texts(columns.arrow[layout.patient]) if layout.patient in columns.arrow and columns.n_rows else None
    if ids is None:
        return columns, None
    rank = np.empty(len(ids.labels) + 1, np.intp)
    rank[pc.sort_indices(ids.labels).to_numpy()] = np.arange(len(ids.labels))
    rank[-1] = -1
    order = np.argsort(rank[ids.codes], kind="stable")
    taken = pa.array(order)
    return replace(columns, arrow={name: column.take(taken) for name, column in columns.arrow.items()}), order


def _parts(
    path: Path, layout: TableLayout, place: Path, site: str | None, rows_at_once: int
) -> Iterator[Mapping[str, RowsInMemory]]:
    """The table in parts, arranged, in the order of the patients' ids; all faults are reported after the last part."""
    sample = _Sample(layout)
    for columns in stream(path, layout):
        sample.add(columns)
    if sample.n_rows <= rows_at_once or sample.is_unreadable:
        yield _arranged(load(path, layout), layout, site)
        return
    bounds = sample.bounds(-(-sample.n_rows // rows_at_once))
    whole, files = _deal_out(path, layout, place, bounds, whole_numbers=sample.whole_numbers)
    faults = Faults(whole.label)
    present = False
    constants: dict[tuple[str, int], float] = {}
    for file in files:
        columns, position = _read_part(file, whole)
        file.unlink()
        if columns.n_rows == 0:
            continue
        columns, order = _by_patient(columns, layout)
        faults.position = position if order is None else position[order]
        if site is not None and layout.site in columns.names and not _has_site(columns, layout, site):
            continue
        present = True
        checked = check_part(columns, layout, site, faults)
        if not faults:
            arranged = arrange(checked, layout)
            _require_constant(arranged, layout, constants, faults)
            yield arranged
    faults.refuse()
    if not present:
        check(load(path, layout), layout, site)  # says which sites there are


def _has_site(columns: Columns, layout: TableLayout, site: str) -> bool:
    names = texts(columns.arrow[layout.site]) if layout.site in columns.arrow else None
    return names is None or site in names.labels.to_pylist()


def _require_constant(
    sites: Mapping[str, RowsInMemory], layout: TableLayout, constants: dict[tuple[str, int], float], faults: Faults
) -> None:
    """Covariates of the site's level are compared within a part; between parts here."""
    for name, rows in sites.items():
        for number, covariate in enumerate(layout.covariates):
            value = float(rows.states[number, 0])
            if covariate.constant_within_site and constants.setdefault((name, number), value) != value:
                fact = (
                    f'Column "{covariate.column}": differs from the site\'s first value in another part of the table.'
                )
                faults.add(Kind.SITE_LEVEL, f'{fact} Correct them, or set level = "patient" in the study.')


@dataclass
class _Sample:
    """A sample of the patients' ids, and what is known of the table after reading them all."""

    layout: TableLayout
    n_rows: int = 0
    whole_numbers: bool = True
    is_unreadable: bool = False
    labels: list[str] = field(default_factory=list)
    _every: int = 1

    def add(self, columns: Columns) -> None:
        """Take ids of a part of the table; all of them while they are few."""
        import pyarrow as pa

        self.n_rows += columns.n_rows
        if self.layout.patient not in columns.arrow:
            self.is_unreadable = True
            return
        column = columns.arrow[self.layout.patient]
        found = texts(column)
        if found is None:
            self.is_unreadable = True
            return
        if pa.types.is_floating(column.type) and columns.n_rows:
            values = column.drop_null().to_numpy()
            self.whole_numbers &= bool((np.floor(values) == values).all())
        self.labels += found.labels[:: self._every].to_pylist()
        while len(self.labels) > 2 * _SAMPLE:
            self.labels, self._every = self.labels[::2], 2 * self._every

    def bounds(self, parts: int) -> list[str]:
        """The ids at which parts end, of about as many patients each."""
        ordered = sorted({*self.labels}, key=lambda label: label.encode())
        return [ordered[len(ordered) * part // parts] for part in range(1, parts)]


def _deal_out(
    path: Path, layout: TableLayout, place: Path, bounds: Sequence[str], *, whole_numbers: bool
) -> tuple[Columns, list[Path]]:
    """Write each row to the file of its part, with its number; the columns without rows, and the files."""
    import pyarrow as pa
    import pyarrow.compute as pc

    files = [place / f"part-{part:04}.arrow" for part in range(len(bounds) + 1)]
    writers: list[Any] = [None] * len(files)
    first, whole = 0, None
    try:
        for columns in stream(path, layout):
            whole = whole or columns
            if not columns.n_rows:
                continue
            arrow = {**columns.arrow, layout.patient: _as_ids(columns.arrow[layout.patient], whole_numbers)}
            ids = arrow[layout.patient]
            part_of = sum(
                (pc.greater_equal(ids, bound).fill_null(False).cast(pa.int32()).to_numpy() for bound in bounds), 0
            )
            numbers = pa.array(np.arange(first, first + columns.n_rows))
            table = pa.table({**{name: _plain(column) for name, column in arrow.items()}, _ROW: numbers})
            first += columns.n_rows
            for part in np.unique(part_of).tolist():
                rows = table.filter(pa.array(part_of == part))
                writers[part] = writers[part] or pa.ipc.new_file(files[part], table.schema)
                writers[part].write_table(rows)
    finally:
        for writer in writers:
            if writer is not None:
                writer.close()
    if whole is None:
        raise ValueError("A stream has at least one part.")
    return whole, [file for file, writer in zip(files, writers, strict=True) if writer is not None]


def _as_ids(column: Any, whole_numbers: bool) -> Any:
    """Ids as text, in the spelling that the whole table would give them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        values = column.cast(pa.float64(), safe=False)
        values = pc.if_else(pc.is_nan(values), None, values)
        column = values.cast(pa.int64()) if whole_numbers else values
    return pc.utf8_trim_whitespace(column.cast(pa.string()))


def _plain(column: Any) -> Any:
    """Without a dictionary, which could differ from one batch to the next."""
    import pyarrow as pa

    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _read_part(file: Path, whole: Columns) -> tuple[Columns, NDArray[np.intp]]:
    import pyarrow as pa

    with pa.OSFile(str(file)) as source:
        table = pa.ipc.open_file(source).read_all()
    position = table[_ROW].to_numpy().astype(np.intp)
    return replace(whole, arrow={name: table[name] for name in whole.arrow}), position


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
