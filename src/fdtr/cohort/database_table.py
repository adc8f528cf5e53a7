"""A table of trajectories in a database, as a partition on this machine: read once, in the order of patients."""

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from fdtr.cohort.databases import Database, open_database, quoted
from fdtr.errors import UnsuitableTables
from fdtr.site.rows import require_study
from fdtr.study import Study
from fdtr.trajectories import TableLayout, Trajectories
from fdtr.trajectories.partition import open_partition
from fdtr.trajectories.partition_writer import write_partition
from fdtr.trajectories.table_sources import Columns


def partition_database_table(
    study: Study,
    address: str,
    table: str,
    folder: str | os.PathLike[str],
    site: str | None = None,
    *,
    memory: str | None = None,
) -> Trajectories:
    """Check a table of a database and write it to `folder` as a partition, and open that; the database is only read.

    `address` is as in `open_database`, `table` a name such as trajectories or study.trajectories. The database sorts
    the rows by patient and hands them over some at a time.

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
    with open_database(address, memory=memory) as database:
        rows = _by_patient(database, _full_name(database, table), study.table_layout)
        write_partition(rows, study.table_layout, Path(folder), site)
    return open_partition(Path(folder), study.table_layout)


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
    chosen = ", ".join(map(quoted, present)) or "1"
    select = f"SELECT {chosen} FROM {database.qualified(table)}{order}"
    for batch in database.batches(select, table):
        arrow = {name: pa.chunked_array([batch[name]]) for name in present}
        yield Columns(f"Table {table}", names, arrow)
