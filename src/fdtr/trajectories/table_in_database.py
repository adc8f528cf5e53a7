"""A table in a database, named by address and name in place of a file. `fdtr.cohort` reads it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote

from fdtr.errors import InvalidSettings

_DUCKDB = "duckdb:"


def has_password(address: str) -> bool:
    """Whether the address of a database may contain a password, escaped correctly or not.

    >>> has_password("postgresql://me@db/icu"), has_password("postgresql://me:p@ss@db/icu")
    (False, True)
    >>> has_password("postgresql://db/icu?user=me&password=word")
    True
    """
    if address.startswith(_DUCKDB):
        return False
    location, _, settings = address.partition("//")[2].partition("?")
    return ":" in location.rpartition("@")[0] or "@" in settings or "password" in unquote(address).lower()


@dataclass(frozen=True)
class DatabaseTable:
    """The table or view `table` of the database at `address`, in place of a table in a file.

    `address` is "duckdb:FILE" or "postgresql://USER@HOST/DATABASE". Rows are read when a function asks for them. What
    is printed of it has no password.

    >>> print(DatabaseTable("duckdb:icu.db", "trajectories"), DatabaseTable("postgresql://me:secret@db/icu", "rows"))
    table trajectories of duckdb:icu.db table rows of postgresql://…
    """

    address: str = field(repr=False)
    table: str

    def __str__(self) -> str:
        return f"table {self.table} of {self._shown}"

    @property
    def options(self) -> str:
        """How a command line names it."""
        return f"--db {shlex.quote(self._shown)} --table {shlex.quote(self.table)}"

    @property
    def _shown(self) -> str:
        return "postgresql://…" if has_password(self.address) else self.address


def file_of(table: Path | DatabaseTable) -> Path | None:
    """The file or folder that holds a table; None where a database server does."""
    if isinstance(table, Path):
        return table
    return Path(table.address.removeprefix(_DUCKDB)) if table.address.startswith(_DUCKDB) else None


def as_kept(table: Path | DatabaseTable) -> Path | DatabaseTable:
    """A table as files of settings and state name it: its path is absolute. Refuses a password in an address."""
    if isinstance(table, Path):
        return table.absolute()
    if has_password(table.address):
        raise InvalidSettings(
            "The address of the database has a password, and passwords are not kept. Nothing was written. Leave it out "
            "of the address, and put it into ~/.pgpass, or into PGPASSWORD wherever the table is read."
        )
    file = file_of(table)
    return table if file is None else replace(table, address=f"{_DUCKDB}{file.absolute()}")
