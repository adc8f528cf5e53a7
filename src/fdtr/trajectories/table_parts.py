"""A table of any length in parts, each with all rows of some patients, checked as a table in memory is.

A file is read twice: first for a sample of its ids, then to deal its rows out to files, one for each part, between two
ids of the sample. A table that is sorted by patient, as a database gives it, is cut on the way. Faults of all parts are
reported together, with the numbers of rows in the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr.trajectories.rows_in_memory import RowsInMemory, arrange
from fdtr.trajectories.table_checks import check, check_part, unknown_site
from fdtr.trajectories.table_columns import texts, whole_decimals
from fdtr.trajectories.table_faults import Faults, Kind
from fdtr.trajectories.table_sources import Columns, TableLayout, load, stream

ROWS_AT_ONCE = 1_000_000
"""Rows of a part, more or less: what is checked and arranged in memory at once."""

_SAMPLE = 10_000
_ROW = "row of the table"


def arranged(columns: Columns, layout: TableLayout, site: str | None) -> Mapping[str, RowsInMemory]:
    """Check a whole table in memory, and arrange its rows in the order of the patients' ids."""
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


def parts_of_file(
    path: Path, layout: TableLayout, place: Path, site: str | None, rows_at_once: int
) -> Iterator[Mapping[str, RowsInMemory]]:
    """The table in parts, arranged, in the order of the patients' ids; all faults are reported after the last part."""
    sample = _Sample(layout)
    for columns in stream(path, layout):
        sample.add(columns)
    if sample.n_rows <= rows_at_once or sample.is_unreadable:
        yield arranged(load(path, layout), layout, site)
        return
    bounds = sample.bounds(-(-sample.n_rows // rows_at_once))
    whole, files = _deal_out(path, layout, place, bounds, whole_numbers=sample.whole_numbers)
    yield from checked_parts((_read_part(file, whole) for file in files), layout, site)


def checked_parts(
    parts: Iterable[tuple[Columns, NDArray[np.intp]]], layout: TableLayout, site: str | None
) -> Iterator[Mapping[str, RowsInMemory]]:
    """Check each part, with the places of its rows in the table, and arrange it.

    All faults are reported after the last part; so is a site without rows.
    """
    faults: Faults | None = None
    others: set[str] | None = set()  # names of sites; None once a part has rows of the site
    constants: dict[tuple[str, int], float] = {}
    for part, position in parts:
        faults = faults or Faults(part.label)
        names = None if site is None or not part.n_rows else _site_names(part, layout)
        if names is not None and site not in names:
            if others is not None:
                others |= names
            continue
        columns, order = _by_patient(part, layout)
        faults.position = position if order is None else position[order]
        others = None
        checked = check_part(columns, layout, site, faults)
        if not faults:
            arranged = arrange(checked, layout)
            _require_constant(arranged, layout, constants, faults)
            yield arranged
    if faults is not None:
        faults.refuse()
        if site is not None and others is not None:
            raise unknown_site(faults.label, site, others)


def cut_at_patients(
    parts: Iterator[Columns], layout: TableLayout, rows_at_once: int
) -> Iterator[tuple[Columns, NDArray[np.intp]]]:
    """Parts of a sorted table put together or cut so that no patient is in two; with the places of rows in it."""
    import pyarrow as pa

    waiting, first = next(parts), 0
    for columns in parts:
        joined = {
            name: pa.chunked_array([*column.chunks, *columns.arrow[name].chunks])
            for name, column in waiting.arrow.items()
        }
        waiting = replace(waiting, arrow=joined)
        if waiting.n_rows < rows_at_once or layout.patient not in joined:
            continue
        ids = texts(joined[layout.patient])
        stop = 0 if ids is None else int(np.flatnonzero(ids.codes != ids.codes[-1]).max(initial=-1)) + 1
        if stop:
            yield _slice(waiting, 0, stop), np.arange(first, first + stop)
            waiting, first = _slice(waiting, stop, waiting.n_rows), first + stop
    yield waiting, np.arange(first, first + waiting.n_rows)


def _slice(columns: Columns, start: int, stop: int) -> Columns:
    return replace(columns, arrow={name: column.slice(start, stop - start) for name, column in columns.arrow.items()})


def _site_names(columns: Columns, layout: TableLayout) -> set[str] | None:
    """The sites that a part has rows of; None in a table without sites, or whose sites cannot be read."""
    names = texts(columns.arrow[layout.site]) if layout.site in columns.arrow else None
    return None if names is None else {*names.labels.to_pylist()}


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
    exact = whole_decimals(column) if whole_numbers else None
    if exact is not None:
        column = exact
    elif pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
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
    file.unlink()
    position = table[_ROW].to_numpy().astype(np.intp)
    return replace(whole, arrow={name: table[name] for name in whole.arrow}), position
