"""Tables of a user's database, found wherever their schemas put them, and checked before anything is computed."""

from collections.abc import Mapping, Sequence

from fdtr.cohort.database import Database
from fdtr.errors import MissingColumn, MissingTable

PREFIX = "source_"
"""What the SQL files put before the name of a table of the database, so that no temporary one can hide it."""


def find(db: Database, table: str, schemas: Sequence[str]) -> str | None:
    """The table's name with its schema, the first of `schemas` that has it, or any other that alone does."""
    found = sorted(name for name in db.tables() if name.rpartition(".")[2] == table)
    preferred = [name for schema in schemas for name in found if name == f"{schema}.{table}"]
    return preferred[0] if preferred else found[0] if len(found) == 1 else None


def bring(db: Database, wanted: Mapping[str, Sequence[str]], schemas: Sequence[str], source: str) -> None:
    """Make every wanted table readable as source_NAME, or say which tables and columns are missing."""
    places = {table: find(db, table, schemas) for table in wanted}
    absent = [table for table, place in places.items() if place is None]
    if absent:
        raise MissingTable(
            f"The database lacks {_listed(absent)}, which {source} has (looked in the schemas {', '.join(schemas)}). "
            "Nothing was written. Load the missing tables, or name another database with --db."
        )
    for table, place in places.items():
        if place is not None:
            _bring(db, table, place, wanted[table], source)


def _bring(db: Database, table: str, place: str, columns: Sequence[str], source: str) -> None:
    lacking = sorted(set(columns) - db.columns(place))
    if lacking:
        raise MissingColumn(
            f"The table {place} lacks the column{'s' if len(lacking) > 1 else ''} {_listed(lacking)}, which {source} "
            "has. Nothing was written. Load the table anew, from a release that has them."
        )
    db.view(f"{PREFIX}{table}", place)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
