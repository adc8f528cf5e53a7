"""DuckDB: a file that is only read, or memory. It fetches nothing and stays below a limit of memory."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from fdtr.cohort.database import HOW_TO_NAME, Database, absent, forbidden, needing, refused
from fdtr.cohort.dialects import dotted, quoted
from fdtr.errors import Unreachable

with needing("DuckDB"):
    import duckdb


class DuckDb(Database):
    """DuckDB, from a file at `path` or, where it is empty, in memory."""

    dialect = "duckdb"

    def __init__(self, path: str, memory: str) -> None:
        super().__init__()
        if path and not Path(path).is_file():
            raise Unreachable(f"There is no database {path}. {HOW_TO_NAME}")
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
            raise Unreachable(
                f"{path or 'DuckDB'} could not be opened ({type(error).__name__}): it is no DuckDB database, is one "
                "of a newer version, or another program writes to it. Close that program, or name another file."
            ) from None
        self._connection = self._closing.enter_context(opened)

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

    def _run(self, sql: str) -> None:
        self._connection.execute(sql)

    def _arrow(self, sql: str) -> pa.Table:
        return self._connection.sql(sql).to_arrow_table()

    def _qualified(self, table: str) -> str:
        # With its catalog, because "main" is a schema of the temporary tables too.
        name = self._arrow("SELECT current_database() AS name")["name"][0].as_py()
        return f"{quoted(name)}.{dotted(table)}"

    def _own(self, name: str) -> str:
        return f"temp.{quoted(name)}"

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (duckdb.CatalogException, duckdb.BinderException) as error:
            raise absent(isinstance(error, duckdb.CatalogException)) from error
        except duckdb.PermissionException as error:
            raise forbidden() from error
        except duckdb.Error as error:
            raise refused(error) from error
