"""Tables of a user's database, found wherever their schemas put them, and checked before anything is computed."""

from collections.abc import Mapping, Sequence
from typing import Literal

import pyarrow as pa

from fdtr.cohort.database import Database
from fdtr.cohort.dialects import quoted
from fdtr.cohort.refusals import listed
from fdtr.errors import MissingColumn, MissingTable, SeveralTables, UnsuitableColumn

PREFIX = "source_"
"""What the SQL files put before the name of a table of the database, so that no temporary one can hide it."""

Kind = Literal["whole", "number", "time", "text", "flag"]
Columns = Mapping[str, Kind]

_NEEDED: Mapping[Kind, str] = {
    "whole": "whole numbers (BIGINT)",
    "number": "numbers (DOUBLE PRECISION)",
    "time": "times (TIMESTAMP)",
    "text": "text",
    "flag": "true or false (BOOLEAN)",
}


def find(db: Database, table: str, schemas: Sequence[str]) -> str | None:
    """The table's name with its schema, the first of `schemas` that has it, or any other that alone does."""
    found = sorted(name for name in db.tables() if name.rpartition(".")[2] == table)
    preferred = [name for schema in schemas for name in found if name == f"{schema}.{table}"]
    if len(found) > 1 and not preferred:
        raise SeveralTables(
            f"The database has the table {table} more than once: {listed(found)}. Nothing was written. Say which "
            "schema counts, with schemas under [mimic_iv] in a file for --settings."
        )
    return preferred[0] if preferred else found[0] if found else None


def bring(db: Database, wanted: Mapping[str, Columns], schemas: Sequence[str], source: str) -> None:
    """Make every wanted table readable as source_NAME, or say what is missing, forbidden or of another type."""
    found = {table: find(db, table, schemas) for table in wanted}
    places = {table: place for table, place in found.items() if place is not None}
    absent = [table for table in wanted if table not in places]
    if absent:
        raise MissingTable(
            f"The database lacks {listed(absent)}, which {source} has (looked in the schemas {', '.join(schemas)}). "
            "Nothing was written. Load the missing tables, or name another database with --db."
        )
    db.check_rights(list(places.values()))
    for table, place in places.items():
        select = f"SELECT {_selected(db, place, wanted[table], source)} FROM {db.qualified(place)}"
        db.view(f"{PREFIX}{table}", select, place)


def _selected(db: Database, place: str, columns: Columns, source: str) -> str:
    there = {field.name.lower(): field for field in db.columns(place)}
    lacking = sorted(set(columns) - set(there))
    if lacking:
        raise MissingColumn(
            f"The table {place} lacks the column{'s' if len(lacking) > 1 else ''} {listed(lacking)}, which {source} "
            "has. Nothing was written. Load the table anew, from a release that has them."
        )
    taken = {name: _taken(quoted(there[name].name), kind, there[name].type) for name, kind in columns.items()}
    other = [name for name, expression in taken.items() if expression is None]
    if other:
        faults = [f"{name} as {_told(there[name].type)} instead of {_NEEDED[columns[name]]}" for name in other]
        raise UnsuitableColumn(
            f"The table {place} has {listed(faults)}. Nothing was written. Load the table anew with the types that "
            f"{source} gives its columns, or convert them in the database."
        )
    return ", ".join(f"{expression} AS {quoted(name)}" for name, expression in taken.items())


def _taken(column: str, kind: Kind, found: pa.DataType) -> str | None:
    """The column as its kind, or None where it has another: text is not guessed at, engines would guess differently."""
    whole = pa.types.is_integer(found)
    number = whole or pa.types.is_floating(found) or pa.types.is_decimal(found)
    match kind:
        case "whole":
            return column if whole else f"CAST({column} AS BIGINT)" if number else None
        case "number":
            return _as_written(column, found) if number else None
        case "time":
            return _as_time(column, found)
        case "flag":
            return column if pa.types.is_boolean(found) else f"({column} <> 0)" if number else None
        case "text":
            return f"CAST({column} AS VARCHAR)"


def _as_written(column: str, found: pa.DataType) -> str:
    # FLOAT, as MIMIC-IV's tables are declared, has 4 bytes in DuckDB and 8 in PostgreSQL: 67.9 would become 67.9000015.
    # The shortest decimal of the 4 bytes is what was written into them.
    return f"CAST(CAST({column} AS VARCHAR) AS DOUBLE PRECISION)" if pa.types.is_float32(found) else column


def _as_time(column: str, found: pa.DataType) -> str | None:
    if pa.types.is_timestamp(found) and found.tz is not None:
        return f"({column} AT TIME ZONE 'UTC')"
    return f"CAST({column} AS TIMESTAMP)" if pa.types.is_timestamp(found) or pa.types.is_date(found) else None


def _told(found: pa.DataType) -> str:
    text = pa.types.is_string(found) or pa.types.is_large_string(found)
    return "text" if text else str(found)
