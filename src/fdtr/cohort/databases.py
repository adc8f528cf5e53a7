"""Sessions with a user's database. DuckDB and PostgreSQL run the same SQL files.

Nothing is written into the database: what is made on the way are temporary tables, which end with the session. The
error text of a driver may quote a patient's value, so only the kind of the error is passed on.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from enum import Enum
from importlib.resources import files
from pathlib import Path
from typing import ClassVar, Self

import pyarrow as pa

from fdtr.errors import (
    ExtractionError,
    MissingExtra,
    NotPermitted,
    RefusedStatement,
    Unreachable,
    UnreadableFile,
    UnsuitableTables,
)

HOW_TO_NAME = "Name it as duckdb:FILE or postgresql://USER@HOST/DATABASE."
ROWS_AT_ONCE = 50_000
"""Rows that are fetched at once."""

MEMORY = "3GB"
"""The default of `open_database`."""

_MICROSECONDS = re.compile(r"\{\{microseconds\(([^{},]*),([^{},]*)\)\}\}")


def joined(names: Sequence[str]) -> str:
    """Names joined as in a sentence.

    >>> joined(["a", "b", "c"])
    'a, b and c'
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


class Failure(Enum):
    """Failures of a database: the error to raise, what failed, and what to do.

    {tables} are the user's tables that were being read, and {one_of} names them as the subject of a sentence. Other
    words in braces are given to `explained`.
    """

    MISSING_TABLE = (UnsuitableTables, "The database lacks a table that this extraction reads.", "")
    MISSING_COLUMN = (
        UnsuitableTables,
        "{one_of} lacks a column that this extraction reads, or has another type there.",
        "Is it a newer or older version of the format?",
    )
    UNSUITABLE_VALUE = (  # such as the text "<0.5" in place of a number
        UnsuitableTables,
        "{column} of {tables} holds text where a number is needed, or a time such as 2150-03-01 08:00:00.",
        "Convert the column where the table is loaded: text that is no number to an empty value, times to TIMESTAMP.",
    )
    NOT_PERMITTED = (
        NotPermitted,
        "The database refuses permission to read one of its tables, or to make temporary ones.",
        "Ask its administrator for SELECT on the tables, USAGE on their schemas, and TEMPORARY on the database.",
    )
    NO_TEMPORARY_TABLES = (
        NotPermitted,
        "The database lets you read, and not make the temporary tables that an extraction takes.",
        "Ask its administrator for: GRANT TEMPORARY ON DATABASE {database} TO {role};",
    )
    READ_ONLY = (  # the session, or the whole server, allows no CREATE
        NotPermitted,
        "The database lets this session only read, and an extraction makes temporary tables, which end with it.",
        "Connect as a role without default_transaction_read_only; where the server is a standby copy, to its primary.",
    )
    STATEMENT_STOPPED = (
        RefusedStatement,
        "The database stopped reading {tables}: statement_timeout or lock_timeout ran out, or somebody cancelled it.",
        "Ask its administrator for more time, or set it with PGOPTIONS='-c statement_timeout=0' before the command.",
    )
    CONNECTION_LOST = (
        Unreachable,
        "The connection to the database was lost while {tables} was read.",
        "Run the same command again; if it is lost again, ask the administrator whether the server ends long sessions.",
    )
    SERVER_FULL = (
        RefusedStatement,
        "The database server has no memory or disk left for the temporary tables of an extraction.",
        "Ask its administrator to make room (temp_file_limit, the disk for temporary files), or try when it is idle.",
    )
    MEMORY_LIMIT_REACHED = (
        RefusedStatement,
        "DuckDB needs more memory than the {limit} that it may take.",
        "Give it more if the machine has it: `fdtr extract` takes --memory 8GB, and in Python a function memory=.",
    )
    DISK_FULL = (
        RefusedStatement,
        "The disk became full while {tables} was read: DuckDB puts into temporary files what does not fit its memory.",
        "Make room, name a larger place with TMPDIR, or give more with --memory.",
    )
    DAMAGED_FILE = (
        RefusedStatement,
        "Not all of {tables} could be read: a file is damaged, or was cut short when it was copied.",
        "Copy it again from where it came from, or load the table anew.",
    )
    OTHER_FAILURE = (  # names the kind of error, never the driver's text
        RefusedStatement,
        "The database could not do what it was asked ({kind}) with {tables}.",
        "Run the same command with --debug to see more; that may quote data, so read it before you pass it on.",
    )

    def explained(self, tables: Sequence[str] = (), **details: str) -> ExtractionError:
        """The error, with its sentences about `tables`."""
        error, what, advice = self.value
        one_of = f"{'One of ' if len(tables) > 1 else ''}{joined(tables)}" if tables else "A table of the database"
        names = joined(tables) if tables else "the database"
        text = f"{what} Nothing was written. {advice}".rstrip()
        explained: ExtractionError = error(text.format(tables=names, one_of=one_of, **details))
        return explained


def permission_denied(tables: Sequence[str], role: str = "YOUR_ROLE") -> NotPermitted:
    """The error for `tables` that `role` may not read, with what to ask the administrator for."""
    schemas = sorted({table.partition(".")[0] for table in tables})
    return NotPermitted(
        f"The database refuses permission to read {joined(tables)}. Nothing was written. Ask its administrator for: "
        f"GRANT USAGE ON SCHEMA {', '.join(schemas)} TO {role}; GRANT SELECT ON {', '.join(tables)} TO {role};"
    )


class Database(ABC):
    """A session. Leaving its `with` block ends it and drops its temporary tables."""

    driver_error: ClassVar[type[Exception]]
    """What the driver raises."""

    failures: ClassVar[Mapping[Failure, tuple[type[Exception], ...]]]
    """What errors of the driver mean; the first failure that fits counts."""

    bytewise: ClassVar[str]
    """What follows an expression in ORDER BY so that texts are ordered by their bytes, in every language."""

    microseconds: ClassVar[str]
    """SQL for the whole microseconds from {a} to {b}: exact, so that both engines cut windows at the same instant."""

    def __init__(self) -> None:
        self._closing = ExitStack()
        self._user_names: dict[str, str] = {}  # of each view, the name that the user knows

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session."""
        self._closing.close()

    def run(self, sql: str) -> None:
        """Run one statement."""
        with self._explained_errors(sql):
            self._run(translate(sql, self.microseconds))

    def arrow(self, sql: str) -> pa.Table:
        """The rows of a SELECT."""
        with self._explained_errors(sql):
            return self._arrow(translate(sql, self.microseconds))

    def batches(self, sql: str, user_name: str) -> Iterator[pa.RecordBatch]:
        """The rows of a SELECT from the table `user_name`, some at a time; at least one batch, perhaps empty."""
        try:
            yield from self._batches(translate(sql, self.microseconds))
        except self.driver_error as error:
            raise self._explain(error, [user_name]) from error

    def number(self, sql: str) -> int:
        """The single number of a SELECT, such as a count."""
        return int(self.arrow(sql)[0][0].as_py() or 0)

    def make(self, name: str, select: str) -> None:
        """Store the rows of `select` as the temporary table `name`, in place of an earlier one."""
        self.run(f"DROP TABLE IF EXISTS {self._temporary(name)}")
        self.run(f"CREATE TEMPORARY TABLE {quoted(name)} AS {select}")

    def view(self, name: str, select: str, user_name: str) -> None:
        """Make the temporary view `name` of `select`; error messages call it `user_name`."""
        self._user_names[name] = user_name
        self.run(f"CREATE TEMPORARY VIEW {quoted(name)} AS {select}")

    def columns(self, table: str) -> pa.Schema:
        """The columns of one of `tables`, with their types."""
        return self.arrow(f"SELECT * FROM {self.qualified(table)} LIMIT 0").schema

    @abstractmethod
    def check_rights(self, tables: Sequence[str]) -> None:
        """Refuse if the user may not read some of `tables`, or may not make temporary tables."""

    @abstractmethod
    def put(self, name: str, rows: pa.Table) -> None:
        """Load `rows` into the session as the temporary table `name`."""

    @abstractmethod
    def tables(self) -> frozenset[str]:
        """Every table and view of the database, as schema.table in lower case; readable or not."""

    @abstractmethod
    def qualified(self, table: str) -> str:
        """SQL name of a table of the database, even if a temporary table has the same name."""

    @abstractmethod
    def _temporary(self, name: str) -> str:
        """SQL name of a temporary table, even if a table of the database has the same name."""

    @abstractmethod
    def _run(self, sql: str) -> None: ...

    @abstractmethod
    def _arrow(self, sql: str) -> pa.Table: ...

    @abstractmethod
    def _batches(self, sql: str) -> Iterator[pa.RecordBatch]: ...

    def _failure(self, error: Exception) -> Failure:
        return next((f for f, kinds in self.failures.items() if isinstance(error, kinds)), Failure.OTHER_FAILURE)

    def _explain(self, error: Exception, tables: Sequence[str]) -> ExtractionError:
        """The error to raise for a driver's `error`; `tables` are the user's tables that were being read."""
        failure = self._failure(error)
        if failure is Failure.NOT_PERMITTED and tables:
            return permission_denied(tables)
        return failure.explained(tables, kind=type(error).__name__, column="A column")

    @contextmanager
    def _explained_errors(self, sql: str) -> Iterator[None]:
        """Replace what the driver raises by an error of ours."""
        try:
            yield
        except self.driver_error as error:
            words = set(re.findall(r"\w+", sql))
            tables = [user_name for view, user_name in self._user_names.items() if view in words]
            raise self._explain(error, tables) from error


def open_database(address: str, *, memory: str | None = None) -> Database:
    """Open the database at `address`: "duckdb:FILE", "duckdb:" for one in memory, or "postgresql://…".

    A password belongs into ~/.pgpass or PGPASSWORD. It works in `address` too, and no message shows `address`.
    `memory`, such as "2GB", is the most that DuckDB takes before it goes on in temporary files.

    >>> with open_database("duckdb:") as db:
    ...     db.number("SELECT 1 + 1")
    2
    """
    scheme, _, rest = address.partition(":")
    if scheme == "duckdb":
        from fdtr.cohort.duckdb_engine import DuckDb

        return DuckDb(rest, memory or MEMORY)
    if scheme in ("postgresql", "postgres") and rest.startswith("//"):
        from fdtr.cohort.postgres_engine import PostgreSql

        return PostgreSql(address)
    raise Unreachable(f"This names no database that can be read. {HOW_TO_NAME}")


@contextmanager
def needing(library: str) -> Iterator[None]:
    """Say what to install if `library` is missing."""
    try:
        yield
    except ModuleNotFoundError:
        raise MissingExtra(f"Reading this database takes {library}. Install it: pip install 'fdtr[extract]'") from None


def file_columns(db: Database, reader: str, path: Path) -> set[str]:
    """Column names, in lower case, of a table function such as read_parquet('…') that reads `path`."""
    try:
        return {name.lower() for name in db.arrow(f"SELECT * FROM {reader} LIMIT 0").column_names}
    except RefusedStatement as error:
        raise UnreadableFile(
            f"{path} could not be read: it is damaged, of another format, or not yours to read. Nothing was written."
        ) from error


def read_sql(path: str) -> str:
    """The SQL of one concept: a file under cohort/sql, such as "steps" or "mimic_iv/weight"."""
    return files("fdtr.cohort").joinpath("sql", *f"{path}.sql".split("/")).read_text(encoding="utf-8")


def translate(sql: str, microseconds: str) -> str:
    """`sql` with each {{microseconds(a, b)}} replaced by one engine's expression.

    >>> translate("SELECT {{microseconds(s.begin, s.end)}}", "us({b}) - us({a})")
    'SELECT us(s.end) - us(s.begin)'
    """
    return _MICROSECONDS.sub(lambda match: microseconds.format(a=match[1].strip(), b=match[2].strip()), sql)


def quoted(name: str) -> str:
    """A name as an SQL identifier, whatever it contains.

    >>> quoted('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'


def dotted(table: str) -> str:
    """schema.table, each part quoted.

    >>> dotted("mimiciv_icu.icustays")
    '"mimiciv_icu"."icustays"'
    """
    return ".".join(quoted(part) for part in table.split("."))


def literal(text: str) -> str:
    """A text as an SQL literal, whatever it contains.

    >>> literal("St. Mary's")
    "'St. Mary''s'"
    """
    return "'" + text.replace("'", "''") + "'"
