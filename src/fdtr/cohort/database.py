"""A session with a database, whichever engine it is.

Nothing is written into a user's database: what is made on the way are temporary tables, which the session takes with
it. A driver's own error texts may quote a patient's value, so only their kind is passed on.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import ClassVar, Self

import pyarrow as pa

from fdtr.cohort.dialects import quoted, translate
from fdtr.errors import ExtractionError, MissingExtra

HOW_TO_NAME = "Name it as duckdb:FILE or postgresql://USER@HOST/DATABASE."


class Database(ABC):
    """A session. Leaving its `with` block ends it, and takes all that it made along."""

    dialect: ClassVar[str]
    failures: ClassVar[type[Exception]]
    """What the driver raises."""

    def __init__(self) -> None:
        self._closing = ExitStack()
        self._places: dict[str, str] = {}  # of each view, what the user calls it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session."""
        self._closing.close()

    def run(self, sql: str) -> None:
        """Do one statement."""
        with self._told(sql):
            self._run(translate(sql, self.dialect))

    def arrow(self, sql: str) -> pa.Table:
        """The rows that a SELECT gives."""
        with self._told(sql):
            return self._arrow(translate(sql, self.dialect))

    def number(self, sql: str) -> int:
        """The one number that a SELECT gives, such as a count."""
        return int(self.arrow(sql)[0][0].as_py() or 0)

    def make(self, name: str, select: str) -> None:
        """Keep what `select` gives as the temporary table `name`, in the place of an earlier one."""
        self.run(f"DROP TABLE IF EXISTS {self._own(name)}")
        self.run(f"CREATE TEMPORARY TABLE {quoted(name)} AS {select}")

    def view(self, name: str, select: str, place: str) -> None:
        """Give what `select` reads the temporary name `name`; `place` is what a user calls it, for error messages."""
        self._places[name] = place
        self.run(f"CREATE TEMPORARY VIEW {quoted(name)} AS {select}")

    def columns(self, table: str) -> pa.Schema:
        """The columns of one of `tables`, with their types."""
        return self.arrow(f"SELECT * FROM {self.qualified(table)} LIMIT 0").schema

    @abstractmethod
    def check_rights(self, tables: Sequence[str]) -> None:
        """Refuse where some of `tables` may not be read, or no temporary table made."""

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
    def qualified(self, table: str) -> str:
        """A table of the database, where a temporary one may have the same name."""

    @abstractmethod
    def _own(self, name: str) -> str:
        """A temporary table, where one of the database may have the same name."""

    @abstractmethod
    def _sentence(self, error: Exception, tables: Sequence[str]) -> ExtractionError:
        """What to tell of a failure of the driver; `tables` are those of the user that were being read."""

    @contextmanager
    def _told(self, sql: str) -> Iterator[None]:
        """Turn what the driver raises into sentences."""
        try:
            yield
        except self.failures as error:
            words = set(re.findall(r"\w+", sql))
            tables = [place for name, place in self._places.items() if name in words]
            raise self._sentence(error, tables) from error


@contextmanager
def needing(library: str) -> Iterator[None]:
    """Say what to install where `library` is missing."""
    try:
        yield
    except ModuleNotFoundError:
        raise MissingExtra(f"Reading this database takes {library}. Install it: pip install 'fdtr[extract]'") from None
