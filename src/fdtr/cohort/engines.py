"""Databases behind one door: DuckDB (a file, or memory) and PostgreSQL, asked in the same SQL."""

from fdtr.cohort.database import HOW_TO_NAME, Database
from fdtr.errors import Unreachable

__all__ = ["Database", "open_database"]

MEMORY = "3GB"
"""Most that DuckDB takes before it goes on in temporary files."""


def open_database(where: str, *, memory: str = MEMORY) -> Database:
    """The database at `where`: "duckdb:FILE", "duckdb:" for one in memory, or "postgresql://…".

    A password belongs into ~/.pgpass or PGPASSWORD; in `where` it works, and no part of `where` is shown.
    """
    scheme, _, rest = where.partition(":")
    if scheme == "duckdb":
        from fdtr.cohort.duck import DuckDb

        return DuckDb(rest, memory)
    if scheme in ("postgresql", "postgres") and rest.startswith("//"):
        from fdtr.cohort.postgres import PostgreSql

        return PostgreSql(where)
    raise Unreachable(f"This names no database that can be read. {HOW_TO_NAME}")
