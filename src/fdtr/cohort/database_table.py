"""A table of trajectories in a database, as a partition on this machine: read once, in the order of patients."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from fdtr.cohort.databases import Database, open_database, quoted
from fdtr.errors import UnsuitableTables, UnwritableFile
from fdtr.study import Study, require_study
from fdtr.trajectories import TableLayout, Trajectories
from fdtr.trajectories.partition import open_partition
from fdtr.trajectories.partition_writer import write_partition
from fdtr.trajectories.table_in_database import DatabaseTable
from fdtr.trajectories.table_sources import Columns

MEMORY = "1GB"
"""What DuckDB takes to sort a table before it goes on in temporary files."""


def partition_database_table(
    study: Study,
    address: str,
    table: str,
    folder: str | os.PathLike[str],
    site: str | None = None,
    *,
    memory: str = MEMORY,
) -> Trajectories:
    """Check a table of a database and write it to `folder` as a partition, and open that; the database is only read.

    `address` is as in `open_database`, `table` a name such as trajectories or study.trajectories. The database sorts
    the rows by patient and hands them over some at a time; DuckDB takes at most `memory` for it.

    >>> import tempfile
    >>> study = Study.model_validate({
    ...     "name": "fluids", "horizon": 1, "actions": {"levels": [0, 1]},
    ...     "covariates": [{"name": "sbp", "range": [40, 220]}],
    ... })
    >>> with tempfile.TemporaryDirectory() as place:
    ...     made = open_database("duckdb:")
    ...     made.run(f"ATTACH '{place}/icu.duckdb' AS icu")
    ...     made.run("CREATE TABLE icu.stays AS SELECT i AS patient, 0 AS step, 1 AS action, 0.5 AS reward, 90 AS sbp "
    ...              "FROM range(3) AS ids(i)")
    ...     made.close()
    ...     partition_database_table(study, f"duckdb:{place}/icu.duckdb", "stays", f"{place}/rows", site="north")
    <Trajectories: site "north", 3 patients, 3 rows, horizon 1>
    """
    require_study(study)
    _write(DatabaseTable(address, table), study.table_layout, Path(folder), site, memory)
    return open_partition(Path(folder), study.table_layout)


def read_database_table(source: DatabaseTable, layout: TableLayout, site: str | None = None) -> Trajectories:
    """Check a table of a database and write it to a private temporary folder as a partition, and open that.

    The folder is removed when nothing refers to the rows any more, and when Python ends.
    """
    place = _PrivateFolder()
    folder = place.path / "rows"
    try:
        _write(source, layout, folder, site, MEMORY)
    except BaseException as error:  # Ctrl-C, too
        place.remove()
        if isinstance(error, UnwritableFile):
            raise UnwritableFile(f"{error} Name a larger place with TMPDIR.") from None
        raise
    return open_partition(folder, layout, owner=place)


def stream_database_table(source: DatabaseTable) -> Iterator[Columns]:
    """All columns of a table of a database, some rows at a time in no order; the first part has no rows."""
    with open_database(source.address, memory=MEMORY) as database:
        table = _full_name(database, source.table)
        names = tuple(database.columns(table).names)
        yield from _parts(database, table, names, names, order="")


class _PrivateFolder:
    """A temporary folder that no other user may enter, removed with the last reference to this."""

    def __init__(self) -> None:
        try:
            self.path = Path(tempfile.mkdtemp(prefix="fdtr-rows-"))
        except OSError as error:
            raise UnwritableFile(
                f"There is no temporary folder for the rows of the database: {error.strerror}. Nothing was written. "
                "Name a place with TMPDIR."
            ) from None
        self.remove = weakref.finalize(self, _remove, self.path)


def _remove(folder: Path) -> None:
    gone = folder.with_name(f"{folder.name}-removed")
    with suppress(OSError):
        folder.rename(gone)  # a thread that still writes there, as a service stops, finds the name gone
        folder = gone
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except BaseException:  # Ctrl-C: what is left are patients' rows
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _write(source: DatabaseTable, layout: TableLayout, folder: Path, site: str | None, memory: str) -> None:
    with open_database(source.address, memory=memory) as database:
        table = _full_name(database, source.table)
        write_partition(_by_patient(database, table, layout), layout, folder, site)


def _full_name(database: Database, table: str) -> str:
    """schema.table as the database knows it."""
    known = database.tables()
    fitting = sorted(name for name in known if table.lower() in (name, name.partition(".")[2]))
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise UnsuitableTables(
            f"The database has several tables of the name {table}: {', '.join(fitting)}. Nothing was written. Name one "
            "with its schema."
        )
    raise UnsuitableTables(f"The database has no table {table}. Nothing was written. Look at its name and its schema.")


def _by_patient(database: Database, table: str, layout: TableLayout) -> Iterator[Columns]:
    """The columns that the layout names, sorted by patient; the first part has no rows."""
    names = tuple(database.columns(table).names)
    wanted = dict.fromkeys((*layout.text_columns, *layout.number_columns))
    present = [name for name in wanted if name in names]
    order = (
        f" ORDER BY trim(CAST({quoted(layout.patient)} AS VARCHAR)){database.bytewise}"
        if layout.patient in names
        else ""
    )
    yield from _parts(database, table, names, present, order)


def _parts(
    database: Database, table: str, names: tuple[str, ...], present: Sequence[str], order: str
) -> Iterator[Columns]:
    chosen = ", ".join(map(quoted, present)) or "1"
    select = f"SELECT {chosen} FROM {database.qualified(table)}{order}"
    for batch in database.batches(select, table):
        arrow = {name: pa.chunked_array([batch[name]]) for name in present}
        yield Columns(f"Table {table}", names, arrow)
