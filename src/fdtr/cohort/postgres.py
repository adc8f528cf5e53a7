"""PostgreSQL: one transaction with one view of the data from first to last statement, never committed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from fdtr.cohort.database import HOW_TO_NAME, Database, absent, forbidden, needing, refused
from fdtr.cohort.dialects import dotted, quoted
from fdtr.errors import Unreachable

with needing("psycopg"):
    import psycopg
    from psycopg import errors
    from psycopg.conninfo import conninfo_to_dict

_ROWS = 50_000
_FROM_SQL = {
    "bool": pa.bool_(),
    "int2": pa.int64(),
    "int4": pa.int64(),
    "int8": pa.int64(),
    "float4": pa.float64(),
    "float8": pa.float64(),
    "numeric": pa.float64(),
    "timestamp": pa.timestamp("us"),
}
"""What else there is comes as text."""


class PostgreSql(Database):
    """PostgreSQL at the address `where`."""

    dialect = "postgresql"

    def __init__(self, where: str) -> None:
        super().__init__()
        try:
            password = str(conninfo_to_dict(where).get("password") or "")
            self._connection = psycopg.connect(where, connect_timeout=15, application_name="fdtr")
        except psycopg.OperationalError as error:
            reason = str(error).strip().splitlines()[0].replace(password or "\0", "…")
            raise Unreachable(f"The database does not answer: {reason}. {HOW_TO_NAME}") from None
        except psycopg.Error:  # its text may quote a password
            raise Unreachable(f"The address of the database cannot be understood. {HOW_TO_NAME}") from None
        self._closing.callback(self._connection.close)  # without a commit: nothing stays
        self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        for setting in ("work_mem = '256MB'", "timezone = 'UTC'"):
            self.run(f"SET {setting}")

    def make(self, name: str, select: str) -> None:
        """Keep what `select` gives as the temporary table `name`, in the place of an earlier one."""
        super().make(name, select)
        self.run(f"ANALYZE {self._own(name)}")  # or the planner takes it for empty

    def put(self, name: str, rows: pa.Table) -> None:
        """Bring `rows` into the session as the temporary table `name`."""
        columns = ", ".join(f"{quoted(field.name)} {to_sql(field.type)}" for field in rows.schema)
        self.run(f"DROP TABLE IF EXISTS {self._own(name)}")
        self.run(f"CREATE TEMPORARY TABLE {quoted(name)} ({columns})")
        copying = f"COPY {self._own(name)} FROM STDIN"
        with self._told(), self._connection.cursor() as cursor, cursor.copy(copying) as copy:
            for batch in rows.to_batches(max_chunksize=_ROWS):
                for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    copy.write_row(row)
        self.run(f"ANALYZE {self._own(name)}")

    def tables(self) -> frozenset[str]:
        """Every table and view of the database, as schema.table in lower case; readable or not."""
        found = self.arrow(
            "SELECT lower(n.nspname || '.' || c.relname) AS name FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'v', 'm', 'f', 'p') "
            "AND n.nspname <> 'pg_catalog' AND n.nspname <> 'information_schema' AND left(n.nspname, 7) <> 'pg_temp'"
        )
        return frozenset(found["name"].to_pylist())

    def _run(self, sql: str) -> None:
        self._connection.execute(sql)

    def _arrow(self, sql: str) -> pa.Table:
        with self._connection.cursor(binary=True) as cursor:
            cursor.execute(sql)
            types = cursor.adapters.types
            kinds = [(column.name, types.get(column.type_code)) for column in cursor.description or ()]
            schema = pa.schema([(name, _FROM_SQL.get(kind.name if kind else "", pa.string())) for name, kind in kinds])
            batches = []
            while rows := cursor.fetchmany(_ROWS):
                arrays = [_array(c, f.type) for c, f in zip(zip(*rows, strict=True), schema, strict=True)]
                batches.append(pa.record_batch(arrays, schema=schema))
        return pa.Table.from_batches(batches, schema=schema)

    def _qualified(self, table: str) -> str:
        return dotted(table)

    def _own(self, name: str) -> str:
        return f"pg_temp.{quoted(name)}"

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (errors.UndefinedTable, errors.InvalidSchemaName, errors.UndefinedColumn) as error:
            raise absent(not isinstance(error, errors.UndefinedColumn)) from error
        except errors.InsufficientPrivilege as error:
            raise forbidden() from error
        except psycopg.Error as error:
            raise refused(error) from error


def _array(values: tuple[Any, ...], kind: pa.DataType) -> pa.Array:
    if pa.types.is_floating(kind):  # a sum may come as a decimal
        values = tuple(None if value is None else float(value) for value in values)
    return pa.array(values, kind)


def to_sql(kind: pa.DataType) -> str:
    """The type of a column that holds what an Arrow column does."""
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind):
        return "bigint"
    if pa.types.is_floating(kind):
        return "double precision"
    return "timestamp" if pa.types.is_timestamp(kind) else "text"
