"""DuckDB: a file that is only read, or a database in memory. It fetches nothing and keeps to a memory limit."""

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from fdtr.cohort.databases import HOW_TO_NAME, ROWS_AT_ONCE, Database, Failure, dotted, needing, quoted
from fdtr.errors import ExtractionError, InvalidSettings, Unreachable

with needing("DuckDB"):
    import duckdb

_AMOUNT = re.compile(r"\d+(\.\d+)?\s*[KMGT]i?B", re.IGNORECASE)
_COLUMN = re.compile(r"(?:casting from source column |converting column \")(\w+)")
_DAMAGED = re.compile("corrupt|checksum|failed to read file|decompress", re.IGNORECASE)
_FAILURES: Mapping[Failure, tuple[type[Exception], ...]] = {
    Failure.MISSING_TABLE: (duckdb.CatalogException,),
    Failure.MISSING_COLUMN: (duckdb.BinderException,),
    Failure.NOT_PERMITTED: (duckdb.PermissionException,),
    Failure.UNSUITABLE_VALUE: (duckdb.ConversionException, duckdb.OutOfRangeException, duckdb.TypeMismatchException),
    Failure.MEMORY_LIMIT_REACHED: (duckdb.OutOfMemoryException,),
    Failure.DAMAGED_FILE: (duckdb.IOException, duckdb.SerializationException, duckdb.FatalException),
}


class DuckDb(Database):
    """A session with the DuckDB file at `path`, or with an empty database in memory if `path` is empty."""

    driver_error = duckdb.Error
    failures = _FAILURES
    bytewise = ""
    microseconds = "(epoch_us(CAST({b} AS TIMESTAMP)) - epoch_us(CAST({a} AS TIMESTAMP)))"

    def __init__(self, path: str, memory: str) -> None:
        super().__init__()
        if path and not Path(path).is_file():
            raise Unreachable(f"There is no database {path}. {HOW_TO_NAME}")
        if not _AMOUNT.fullmatch(memory):
            raise InvalidSettings(f"--memory {memory} is no amount of memory. Give a number and a unit, such as 3GB.")
        self._memory = memory
        scratch = self._closing.enter_context(tempfile.TemporaryDirectory(prefix="fdtr-"))  # no other user may enter it
        config: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": memory,
            "temp_directory": scratch,
            "autoinstall_known_extensions": "false",  # nothing is fetched
            "autoload_known_extensions": "false",
            "preserve_insertion_order": "false",  # takes less memory; SQL orders rows where it matters
        }
        try:
            connection = duckdb.connect(path or ":memory:", read_only=bool(path), config=config)
        except duckdb.Error as error:
            self.close()
            raise Unreachable(_not_opened(path or "DuckDB", error)) from None
        self._connection = self._closing.enter_context(connection)
        self.run("SET TimeZone = 'UTC'")  # not this machine's own zone

    def put(self, name: str, rows: pa.Table) -> None:
        """Load `rows` into the session as the temporary table `name`."""
        arriving = f"{name}_arriving"
        self._connection.register(arriving, rows)
        self.make(name, f"SELECT * FROM {quoted(arriving)}")
        self._connection.unregister(arriving)

    def tables(self) -> frozenset[str]:
        """Every table and view of the database, as schema.table in lower case."""
        names = self.arrow(
            "SELECT lower(table_schema) || '.' || lower(table_name) AS name FROM information_schema.tables "
            "WHERE table_catalog NOT IN ('temp', 'system')"
        )
        return frozenset(names["name"].to_pylist())

    def check_rights(self, tables: Sequence[str]) -> None:
        """Refuse nothing: a user who opened the file may read all of it, and temporary tables lie outside it."""

    def qualified(self, table: str) -> str:
        """SQL name of a table of the database, even if a temporary table has the same name."""
        # With its catalog, because temporary tables have a schema "main" too.
        name = self._arrow("SELECT current_database() AS name")["name"][0].as_py()
        return f"{quoted(name)}.{dotted(table)}"

    def _run(self, sql: str) -> None:
        self._connection.execute(sql)

    def _arrow(self, sql: str) -> pa.Table:
        return self._connection.sql(sql).to_arrow_table()

    def _batches(self, sql: str) -> Iterator[pa.RecordBatch]:
        reader: pa.RecordBatchReader = self._connection.sql(sql).to_arrow_reader(ROWS_AT_ONCE)
        yield pa.RecordBatch.from_pylist([], schema=reader.schema)
        yield from reader

    def _temporary(self, name: str) -> str:
        return f"temp.{quoted(name)}"

    def _failure(self, error: Exception) -> Failure:
        failure, text = super()._failure(error), str(error)
        if failure is Failure.DAMAGED_FILE and "No space left" in text:
            return Failure.DISK_FULL
        return Failure.DAMAGED_FILE if failure is Failure.OTHER_FAILURE and _DAMAGED.search(text) else failure

    def _explain(self, error: Exception, tables: Sequence[str]) -> ExtractionError:
        failure = self._failure(error)
        if failure is Failure.MEMORY_LIMIT_REACHED:
            return failure.explained(limit=self._memory)
        if failure is Failure.UNSUITABLE_VALUE:
            # DuckDB's text is searched for a column that one of `tables` has; the rest of it may quote a value.
            named = _COLUMN.findall(str(error))
            for view, user_name in self._user_names.items():
                known = self._arrow(f"SELECT * FROM {quoted(view)} LIMIT 0").column_names if user_name in tables else []
                for column in named:
                    if column in known:
                        return failure.explained([user_name], column=f"The column {column}")
        return super()._explain(error, tables)


def _not_opened(name: str, error: duckdb.Error) -> str:
    text = str(error)
    if "lock on file" in text:
        return f"{name} could not be opened: another program writes to it. Close that program, and try again."
    if "Permission denied" in text:
        return f"{name} could not be opened: you may not read it. Ask its owner, or name another file."
    return (
        f"{name} could not be opened: it is no DuckDB database, is damaged, or was written by another version of "
        "DuckDB. Name another file, or write it anew with this version."
    )
