"""A session with a database, whichever engine it is.

Nothing is written into a user's database: what is made on the way are temporary tables, which the session takes with
it. A driver's own error texts may quote a patient's value, so only their kind is passed on.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import ClassVar, Self

import pyarrow as pa

from fdtr.cohort.dialects import quoted, translate
from fdtr.errors import MissingColumn, MissingExtra, MissingTable, NotPermitted, RefusedStatement

HOW_TO_NAME = "Name it as duckdb:FILE or postgresql://USER@HOST/DATABASE."


class Database(ABC):
    """A session. Leaving its `with` block ends it, and takes all that it made along."""

    dialect: ClassVar[str]

    def __init__(self) -> None:
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session."""
        self._closing.close()

    def run(self, sql: str) -> None:
        """Do one statement."""
        with self._told():
            self._run(translate(sql, self.dialect))

    def arrow(self, sql: str) -> pa.Table:
        """The rows that a SELECT gives."""
        with self._told():
            return self._arrow(translate(sql, self.dialect))

    def number(self, sql: str) -> int:
        """The one number that a SELECT gives, such as a count."""
        return int(self.arrow(sql)[0][0].as_py() or 0)

    def make(self, name: str, select: str) -> None:
        """Keep what `select` gives as the temporary table `name`, in the place of an earlier one."""
        self.run(f"DROP TABLE IF EXISTS {self._own(name)}")
        self.run(f"CREATE TEMPORARY TABLE {quoted(name)} AS {select}")

    def view(self, name: str, table: str) -> None:
        """Give the table of the database that `tables` calls `table` the temporary name `name`."""
        self.run(f"CREATE TEMPORARY VIEW {quoted(name)} AS SELECT * FROM {self._qualified(table)}")

    def columns(self, table: str) -> frozenset[str]:
        """The columns of one of `tables`, in lower case."""
        return frozenset(n.lower() for n in self.arrow(f"SELECT * FROM {self._qualified(table)} LIMIT 0").column_names)

    @abstractmethod
    def put(self, name: str, rows: pa.Table) -> None:
        """Bring `rows` into the session as the temporary table `name`."""

    @abstractmethod
    def tables(self) -> frozenset[str]:
        """Every table and view of the database, as schema.table in lower case; readable or not."""

    @abstractmethod
    def _run(self, sql: str) -> None: ...

    @abstractmethod
    def _arrow(self, sql: str) -> pa.Table: ...

    @abstractmethod
    def _qualified(self, table: str) -> str:
        """A table of the database, where a temporary one may have the same name."""

    @abstractmethod
    def _own(self, name: str) -> str:
        """A temporary table, where one of the database may have the same name."""

    @abstractmethod
    def _told(self) -> AbstractContextManager[None]:
        """Turn what the driver raises into sentences."""


@contextmanager
def needing(library: str) -> Iterator[None]:
    """Say what to install where `library` is missing."""
    try:
        yield
    except ModuleNotFoundError:
        raise MissingExtra(f"Reading this database takes {library}. Install it: pip install 'fdtr[extract]'") from None


def absent(a_table: bool) -> MissingTable | MissingColumn:
    """Something that a statement names is not there."""
    if a_table:
        return MissingTable("The database lacks a table that this extraction reads. Nothing was written.")
    return MissingColumn(
        "A table of the database lacks a column that this extraction reads, or has another type there. Nothing was "
        "written. Is it a newer or older version of the format?"
    )


def forbidden() -> NotPermitted:
    """The database knows the user and says no."""
    return NotPermitted(
        "The database refuses permission to read one of its tables, or to make temporary ones. Nothing was written. "
        "Ask its administrator for SELECT on the tables, USAGE on their schemas, and TEMPORARY on the database."
    )


def refused(error: Exception) -> RefusedStatement:
    """Anything else; the driver's text stays unsaid."""
    return RefusedStatement(
        f"The database could not do what it was asked ({type(error).__name__}). Nothing was written. Run the same "
        "command with --debug to see more; that may quote data, so read it before you pass it on."
    )
