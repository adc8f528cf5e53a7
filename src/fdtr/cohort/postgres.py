"""PostgreSQL: one transaction with one view of the data from first to last statement, never committed."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from fdtr.cohort import refusals
from fdtr.cohort.database import HOW_TO_NAME, Database, needing
from fdtr.cohort.dialects import dotted, quoted
from fdtr.errors import ExtractionError, Unreachable

with needing("psycopg"):
    import psycopg
    from psycopg import errors

_ROWS = 50_000
_FROM_SQL = {
    "bool": pa.bool_(),
    "int2": pa.int64(),
    "int4": pa.int64(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "numeric": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}
"""What else there is comes as text."""

# What libpq says of a connection that failed, and what to tell of it. Its own text stays unsaid: it quotes hosts, users
# and databases as it understood them, and where a password has an "@" or a "/", parts of it are among them.
_FAILED = {
    "no password supplied": "The database asks for a password. Put it into ~/.pgpass or PGPASSWORD.",
    "password authentication failed": "The database does not take this user with this password. Look at the user in "
    "--db, and at the password in ~/.pgpass or PGPASSWORD.",
    "pg_hba.conf": "The database server does not let this user in from this machine. Ask its administrator.",
    'role "': "The database server knows no such user. Look at USER in postgresql://USER@HOST/DATABASE.",
    'database "': "The server has no database of that name. Look at DATABASE in postgresql://USER@HOST/DATABASE.",
    "resolve host": "There is no host of the name in the address of the database. "
    "Look at HOST in postgresql://USER@HOST/DATABASE.",
    "Connection refused": "No PostgreSQL server answers at the host and port in --db. Is it running there?",
    "timeout": "The database server does not answer within 15 seconds. Can its host and port be reached from here?",
    "SSL": "The database server and this machine could not agree on encryption. Look at sslmode in --db.",
    "too many": "The database server has no connection left. Try again later.",
}
_ESCAPES = 'A password in the address has to be written with %40 for "@" and %2F for "/"; better put it into ~/.pgpass.'


class PostgreSql(Database):
    """PostgreSQL at the address `where`."""

    dialect = "postgresql"
    failures = psycopg.Error

    def __init__(self, where: str) -> None:
        super().__init__()
        try:
            self._connection = psycopg.connect(where, connect_timeout=15, application_name="fdtr")
        except psycopg.OperationalError as error:
            raise Unreachable(_not_connected(where, str(error))) from None
        except psycopg.Error:
            escapes = f" {_ESCAPES}" if _with_password(where) else ""
            raise Unreachable(f"The address of the database cannot be understood. {HOW_TO_NAME}{escapes}") from None
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
        with self._told(copying), self._connection.cursor() as cursor, cursor.copy(copying) as copy:
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

    def check_rights(self, tables: Sequence[str]) -> None:
        """Refuse where some of `tables` may not be read, or no temporary table made; all at once, for one request."""
        may = self.arrow(
            "SELECT CAST(current_database() AS TEXT) AS base, CAST(current_user AS TEXT) AS role, "
            "has_database_privilege(current_database(), 'TEMPORARY') AS make, "
            "current_setting('transaction_read_only') AS reading"
        ).to_pylist()[0]
        closed = self.arrow(
            "SELECT lower(n.nspname || '.' || c.relname) AS name FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'v', 'm', 'f', 'p') AND NOT "
            "(has_schema_privilege(n.oid, 'USAGE') AND has_any_column_privilege(c.oid, 'SELECT'))"
        )["name"].to_pylist()
        hidden = [table for table in tables if table in closed]
        if hidden:
            raise refusals.forbidden(hidden, quoted(may["role"]))
        if may["reading"] == "on":
            raise refusals.read_only()
        if not may["make"]:
            raise refusals.no_temporary_tables(quoted(may["base"]), quoted(may["role"]))

    def qualified(self, table: str) -> str:
        """A table of the database, where a temporary one may have the same name."""
        return dotted(table)

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

    def _own(self, name: str) -> str:
        return f"pg_temp.{quoted(name)}"

    def _sentence(self, error: Exception, tables: Sequence[str]) -> ExtractionError:
        match error:
            case errors.UndefinedTable() | errors.InvalidSchemaName():
                return refusals.absent_table()
            case errors.UndefinedColumn():
                return refusals.absent_column(tables)
            case psycopg.DataError() | errors.UndefinedFunction() | errors.DatatypeMismatch() | errors.CannotCoerce():
                return refusals.unsuitable(tables)
            case errors.InsufficientPrivilege():
                return refusals.forbidden(tables)
            case errors.ReadOnlySqlTransaction():
                return refusals.read_only()
            case errors.QueryCanceled() | errors.LockNotAvailable():
                return refusals.too_long(tables)
            case errors.OutOfMemory() | errors.DiskFull() | errors.ConfigurationLimitExceeded():
                return refusals.no_room_at_the_server()
            case errors.DataCorrupted() | errors.IndexCorrupted() | errors.IoError():
                return refusals.damaged(tables)
            case psycopg.OperationalError() if self._connection.closed:
                return refusals.lost(tables)
            case _:
                return refusals.refused(error, tables)


def _with_password(where: str) -> bool:
    """Whether the address may hold one, well written or not."""
    return ":" in where.partition("//")[2].rpartition("@")[0]


def _not_connected(where: str, reason: str) -> str:
    otherwise = f"The database does not answer. {HOW_TO_NAME}"
    told = next((sentence for words, sentence in _FAILED.items() if words in reason), otherwise)
    return f"{told} {_ESCAPES}" if _with_password(where) else told


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
