"""PostgreSQL: all statements run in one transaction, on one snapshot of the data, and it is never committed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from fdtr.cohort.databases import (
    HOW_TO_NAME,
    ROWS_AT_ONCE,
    Database,
    Failure,
    dotted,
    needing,
    permission_denied,
    quoted,
)
from fdtr.errors import Unreachable
from fdtr.trajectories.table_in_database import has_password

with needing("psycopg"):
    import psycopg
    from psycopg import errors

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
"""Arrow types of PostgreSQL types. Every other type is read as text."""

_MOST_DIGITS = 38

# Words in libpq's message about a failed connection, and our message. libpq's own text is never shown: it quotes host,
# user and database as it parsed them, and if a password contains "@" or "/", parts of the password are among them.
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
_FAILURES: Mapping[Failure, tuple[type[Exception], ...]] = {
    Failure.MISSING_TABLE: (errors.UndefinedTable, errors.InvalidSchemaName),
    Failure.MISSING_COLUMN: (errors.UndefinedColumn,),
    Failure.UNSUITABLE_VALUE: (
        psycopg.DataError,
        errors.UndefinedFunction,
        errors.DatatypeMismatch,
        errors.CannotCoerce,
    ),
    Failure.NOT_PERMITTED: (errors.InsufficientPrivilege,),
    Failure.READ_ONLY: (errors.ReadOnlySqlTransaction,),
    Failure.STATEMENT_STOPPED: (errors.QueryCanceled, errors.LockNotAvailable),
    Failure.SERVER_FULL: (errors.OutOfMemory, errors.DiskFull, errors.ConfigurationLimitExceeded),
    Failure.DAMAGED_FILE: (errors.DataCorrupted, errors.IndexCorrupted, errors.IoError),
}


class PostgreSql(Database):
    """A session with the PostgreSQL database at `address`."""

    driver_error = psycopg.Error
    failures = _FAILURES
    bytewise = ' COLLATE "C"'
    microseconds = "CAST(EXTRACT(EPOCH FROM (CAST({b} AS TIMESTAMP) - CAST({a} AS TIMESTAMP))) * 1000000 AS BIGINT)"

    def __init__(self, address: str) -> None:
        super().__init__()
        try:
            self._connection = psycopg.connect(address, connect_timeout=15, application_name="fdtr")
        except psycopg.OperationalError as error:
            raise Unreachable(_not_connected(address, str(error))) from None
        except psycopg.Error:
            escapes = f" {_ESCAPES}" if has_password(address) else ""
            raise Unreachable(f"The address of the database cannot be understood. {HOW_TO_NAME}{escapes}") from None
        self._closing.callback(self._connection.close)  # without a commit: nothing stays
        self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        for setting in ("work_mem = '256MB'", "timezone = 'UTC'"):
            self.run(f"SET {setting}")

    def make(self, name: str, select: str) -> None:
        """Store the rows of `select` as the temporary table `name`, in place of an earlier one."""
        super().make(name, select)
        self.run(f"ANALYZE {self._temporary(name)}")  # else the planner takes the table for empty

    def put(self, name: str, rows: pa.Table) -> None:
        """Load `rows` into the session as the temporary table `name`."""
        columns = ", ".join(f"{quoted(field.name)} {to_sql(field.type)}" for field in rows.schema)
        self.run(f"DROP TABLE IF EXISTS {self._temporary(name)}")
        self.run(f"CREATE TEMPORARY TABLE {quoted(name)} ({columns})")
        copying = f"COPY {self._temporary(name)} FROM STDIN"
        with self._explained_errors(copying), self._connection.cursor() as cursor, cursor.copy(copying) as copy:
            for batch in rows.to_batches(max_chunksize=ROWS_AT_ONCE):
                for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    copy.write_row(row)
        self.run(f"ANALYZE {self._temporary(name)}")

    def tables(self) -> frozenset[str]:
        """Every table and view of the database, as schema.table in lower case; readable or not."""
        names = self.arrow(
            "SELECT lower(n.nspname || '.' || c.relname) AS name FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'v', 'm', 'f', 'p') "
            "AND n.nspname <> 'pg_catalog' AND n.nspname <> 'information_schema' AND left(n.nspname, 7) <> 'pg_temp'"
        )
        return frozenset(names["name"].to_pylist())

    def check_rights(self, tables: Sequence[str]) -> None:
        """Refuse if a right is missing. All tables without it are named, for one request to the administrator."""
        rights = self.arrow(
            "SELECT CAST(current_database() AS TEXT) AS base, CAST(current_user AS TEXT) AS role, "
            "has_database_privilege(current_database(), 'TEMPORARY') AS make, "
            "current_setting('transaction_read_only') AS reading"
        ).to_pylist()[0]
        unreadable = self.arrow(
            "SELECT lower(n.nspname || '.' || c.relname) AS name FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'v', 'm', 'f', 'p') AND NOT "
            "(has_schema_privilege(n.oid, 'USAGE') AND has_any_column_privilege(c.oid, 'SELECT'))"
        )["name"].to_pylist()
        forbidden = [table for table in tables if table in unreadable]
        if forbidden:
            raise permission_denied(forbidden, quoted(rights["role"]))
        if rights["reading"] == "on":
            raise Failure.READ_ONLY.explained()
        if not rights["make"]:
            raise Failure.NO_TEMPORARY_TABLES.explained(database=quoted(rights["base"]), role=quoted(rights["role"]))

    def qualified(self, table: str) -> str:
        """SQL name of a table of the database, even if a temporary table has the same name."""
        return dotted(table)

    def _run(self, sql: str) -> None:
        self._connection.execute(sql)

    def _arrow(self, sql: str) -> pa.Table:
        with self._connection.cursor(binary=True) as cursor:
            cursor.execute(sql)
            return pa.Table.from_batches(_fetched(cursor))

    def _batches(self, sql: str) -> Iterator[pa.RecordBatch]:
        with self._connection.cursor(
            "fdtr_rows"
        ) as cursor:  # named: the rows stay at the server until they are fetched
            cursor.execute(sql, binary=True)
            yield from _fetched(cursor)

    def _temporary(self, name: str) -> str:
        return f"pg_temp.{quoted(name)}"

    def _failure(self, error: Exception) -> Failure:
        failure = super()._failure(error)
        lost = isinstance(error, psycopg.OperationalError) and self._connection.closed
        return Failure.CONNECTION_LOST if failure is Failure.OTHER_FAILURE and lost else failure


def _fetched(cursor: Any) -> Iterator[pa.RecordBatch]:
    """What a cursor gives, batch by batch; the first one is empty and has the schema."""
    types = cursor.adapters.types
    schema = pa.schema([(c.name, _arrow_type(c, types.get(c.type_code))) for c in cursor.description or ()])
    yield pa.RecordBatch.from_pylist([], schema=schema)
    while rows := cursor.fetchmany(ROWS_AT_ONCE):
        arrays = [_array(c, f.type) for c, f in zip(zip(*rows, strict=True), schema, strict=True)]
        yield pa.record_batch(arrays, schema=schema)


def _arrow_type(column: Any, kind: Any) -> pa.DataType:
    """The Arrow type of a column; of whole decimals, such as long ids, every digit."""
    if kind and kind.name == "numeric" and column.scale == 0 and column.precision and column.precision <= _MOST_DIGITS:
        return pa.decimal128(column.precision, 0)
    return _FROM_SQL.get(kind.name if kind else "", pa.string())


def _not_connected(address: str, reason: str) -> str:
    otherwise = f"The database does not answer. {HOW_TO_NAME}"
    message = next((sentence for words, sentence in _FAILED.items() if words in reason), otherwise)
    return f"{message} {_ESCAPES}" if has_password(address) else message


def _array(values: tuple[Any, ...], kind: pa.DataType) -> pa.Array:
    if pa.types.is_floating(kind):  # a sum may arrive as a decimal
        values = tuple(None if value is None else float(value) for value in values)
    elif pa.types.is_string(kind):  # uuid, time, json and others arrive as objects
        values = tuple(value if value is None or isinstance(value, str) else str(value) for value in values)
    return pa.array(values, kind)


def to_sql(kind: pa.DataType) -> str:
    """The PostgreSQL type for the values of an Arrow type."""
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind):
        return "bigint"
    if pa.types.is_floating(kind):
        return "double precision"
    return "timestamp" if pa.types.is_timestamp(kind) else "text"
