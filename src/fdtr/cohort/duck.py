"""DuckDB: a file that is only read, or memory. It fetches nothing and stays below a limit of memory."""

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from fdtr.cohort import refusals
from fdtr.cohort.database import HOW_TO_NAME, Database, needing
from fdtr.cohort.dialects import dotted, quoted
from fdtr.errors import ExtractionError, InvalidSettings, Unreachable

with needing("DuckDB"):
    import duckdb

_AMOUNT = re.compile(r"\d+(\.\d+)?\s*[KMGT]i?B", re.IGNORECASE)
_COLUMN = re.compile(r"(?:casting from source column |converting column \")(\w+)")
_DAMAGED = re.compile("corrupt|checksum|failed to read file|decompress", re.IGNORECASE)


class DuckDb(Database):
    """DuckDB, from a file at `path` or, where it is empty, in memory."""

    dialect = "duckdb"
    failures = duckdb.Error

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
            "preserve_insertion_order": "false",  # rows are ordered where that matters, and take less memory elsewhere
        }
        try:
            opened = duckdb.connect(path or ":memory:", read_only=bool(path), config=config)
        except duckdb.Error as error:
            self.close()
            raise Unreachable(_not_opened(path or "DuckDB", error)) from None
        self._connection = self._closing.enter_context(opened)
        self.run("SET TimeZone = 'UTC'")  # else times with a zone would be read by this machine's own

    def put(self, name: str, rows: pa.Table) -> None:
        """Bring `rows` into the session as the temporary table `name`."""
        arriving = f"{name}_arriving"
        self._connection.register(arriving, rows)
        self.make(name, f"SELECT * FROM {quoted(arriving)}")
        self._connection.unregister(arriving)

    def tables(self) -> frozenset[str]:
        """Every table and view of the database, as schema.table in lower case."""
        found = self.arrow(
            "SELECT lower(table_schema) || '.' || lower(table_name) AS name FROM information_schema.tables "
            "WHERE table_catalog NOT IN ('temp', 'system')"
        )
        return frozenset(found["name"].to_pylist())

    def check_rights(self, tables: Sequence[str]) -> None:
        """Nothing to refuse: who may open the file may read all of it, and temporary tables are not in it."""

    def qualified(self, table: str) -> str:
        """A table of the database, where a temporary one may have the same name."""
        # With its catalog, because "main" is a schema of the temporary tables too.
        name = self._arrow("SELECT current_database() AS name")["name"][0].as_py()
        return f"{quoted(name)}.{dotted(table)}"

    def _run(self, sql: str) -> None:
        self._connection.execute(sql)

    def _arrow(self, sql: str) -> pa.Table:
        return self._connection.sql(sql).to_arrow_table()

    def _own(self, name: str) -> str:
        return f"temp.{quoted(name)}"

    def _sentence(self, error: Exception, tables: Sequence[str]) -> ExtractionError:
        text = str(error)
        match error:
            case duckdb.CatalogException():
                return refusals.absent_table()
            case duckdb.BinderException():
                return refusals.absent_column(tables)
            case duckdb.PermissionException():
                return refusals.forbidden(tables)
            case duckdb.ConversionException() | duckdb.OutOfRangeException() | duckdb.TypeMismatchException():
                return self._unsuitable(text, tables)
            case duckdb.OutOfMemoryException():
                return refusals.no_memory(self._memory)
            case duckdb.IOException() if "No space left" in text:
                return refusals.no_disk(tables)
            case duckdb.IOException() | duckdb.SerializationException() | duckdb.FatalException():
                return refusals.damaged(tables)
            case _:
                return refusals.damaged(tables) if _DAMAGED.search(text) else refusals.refused(error, tables)

    def _unsuitable(self, told: str, tables: Sequence[str]) -> ExtractionError:
        """With the column that DuckDB names, if one of the tables has it: the rest of its text quotes the value."""
        named = _COLUMN.findall(told)
        for view, place in self._places.items():
            there = self._arrow(f"SELECT * FROM {quoted(view)} LIMIT 0").column_names if place in tables else []
            for column in named:
                if column in there:
                    return refusals.unsuitable([place], column)
        return refusals.unsuitable(tables)


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
