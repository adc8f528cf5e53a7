"""Extract a cohort of sepsis like the paper's (Section 5.2) from a user's own MIMIC-IV database.

Sites are the care units in which a stay began. Who has sepsis comes from mimic-code's derived table `sepsis3`, or, on
request, from ICD codes or from a list of stays.
"""

import csv
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal

import pyarrow as pa

from fdtr.cohort.cohort_flow import Flow, keep_cohort
from fdtr.cohort.databases import Database, joined, quoted, read_sql
from fdtr.cohort.extraction_settings import Sepsis
from fdtr.cohort.mimic_iv_settings import CONCEPTS, MimicSettings
from fdtr.cohort.time_steps import HOUR, ExtractedTable, Source, make_table, site_values
from fdtr.errors import EmptyCohort, UnreadableFile, UnsuitableTables
from fdtr.progress import Progress, ignore_progress

PREFIX = "source_"
"""Prefix of the user's tables in the SQL files, so that no temporary table can hide one."""

ColumnType = Literal["whole", "number", "time", "text", "flag"]
Columns = Mapping[str, ColumnType]

_TYPE_NAMES: Mapping[ColumnType, str] = {
    "whole": "whole numbers (BIGINT)",
    "number": "numbers (DOUBLE PRECISION)",
    "time": "times (TIMESTAMP)",
    "text": "text",
    "flag": "true or false (BOOLEAN)",
}

TABLES: Mapping[str, Columns] = {
    "icustays": {
        "subject_id": "whole", "hadm_id": "whole", "stay_id": "whole", "first_careunit": "text", "intime": "time",
        "outtime": "time",
    },
    "patients": {"subject_id": "whole", "anchor_age": "number", "anchor_year": "number"},
    "admissions": {"hadm_id": "whole", "deathtime": "time"},
    "chartevents": {"stay_id": "whole", "charttime": "time", "itemid": "whole", "valuenum": "number"},
    "labevents": {"subject_id": "whole", "charttime": "time", "itemid": "whole", "valuenum": "number"},
    "inputevents": {
        "stay_id": "whole", "starttime": "time", "endtime": "time", "itemid": "whole", "amount": "number",
        "amountuom": "text", "statusdescription": "text", "ordercomponenttypedescription": "text",
    },
}  # fmt: skip
SEPTIC: Mapping[Sepsis, Mapping[str, Columns]] = {
    "sepsis3": {"sepsis3": {"stay_id": "whole", "suspected_infection_time": "time", "sepsis3": "flag"}},
    "icd": {"diagnoses_icd": {"hadm_id": "whole", "icd_code": "text", "icd_version": "whole"}},
    "listed": {},
}

FLUID_ITEMS = pa.schema({"name": pa.string(), "itemid": pa.int64()})
ITEMS = pa.schema(
    {"name": pa.string(), "source": pa.string(), "itemid": pa.int64(), "factor": pa.float64(), "shift": pa.float64()}
)

RULES: Mapping[Sepsis, str] = {
    "sepsis3": "Sepsis-3 (derived table sepsis3)",
    "icd": "sepsis by ICD codes of the admission",
    "listed": "on the list of stays",
}


def extract_mimic_iv(
    db: Database,
    settings: MimicSettings,
    sepsis: Sepsis = "sepsis3",
    stays: pa.Table | None = None,
    progress: Progress = ignore_progress,
) -> ExtractedTable:
    """The long table of the sepsis cohort of a MIMIC-IV database.

    `sepsis` says who has sepsis; for "listed" the list is `stays`, from `read_stays`.
    """
    settings = settings.with_options(sepsis=sepsis)
    schemas = settings.mimic_iv.schemas
    if sepsis == "sepsis3" and _find(db, "icustays", schemas) and not _find(db, "sepsis3", schemas):
        raise UnsuitableTables(
            "The database has no table sepsis3, which mimic-code derives (concepts/sepsis). Nothing was written. "
            "Derive it, or say who has sepsis otherwise: --sepsis icd goes by ICD codes, --stays FILE by your own list."
        )
    _view_tables(db, {**TABLES, **SEPTIC[sepsis]}, schemas)
    _put_choices(db, settings)
    if stays is not None:
        db.put("listed", stays)
    items = [f"{table}_items" for table in sorted({line.table for line in settings.mimic_iv.charted})]
    charted = (*settings.concepts, *items)
    total = len(charted) + 2
    progress("stays", 0, total)
    for name, file in {"units": "units", "septic": f"septic_{sepsis}", "candidates": "candidates"}.items():
        db.make(name, read_sql(f"mimic_iv/{file}"))
    flow = _keep_cohort(db, sepsis)
    db.make("stays", read_sql("mimic_iv/stays"))
    site_values(db, settings, remedy="Load icustays anew: outtime is empty")  # before the large tables are read
    for number, concept in enumerate(charted, 1):
        progress(concept, number, total)
        db.make(concept, read_sql(f"mimic_iv/{concept}"))
    union = " UNION ALL ".join(f"SELECT * FROM {concept}" for concept in charted)
    db.run(f"CREATE TEMPORARY VIEW measurements AS {union}")
    progress("doses", total - 1, total)
    db.make("doses", read_sql("mimic_iv/doses"))
    return make_table(db, settings, Source(flow, _origins(settings)), progress)


def _put_choices(db: Database, settings: MimicSettings) -> None:
    """Load the settings as small relations, which the SQL files join with."""
    db.put("time_zero_rule", pa.table({"time_zero": [settings.time_zero]}))
    # A covariate that is the outcome too is read once, for the longer of its two look-backs.
    look_backs: dict[str, int] = {}
    for quantity in (*settings.covariates, settings.outcome):
        look_back = round(settings.look_back(quantity) * HOUR)
        look_backs[quantity.name] = max(look_back, look_backs.get(quantity.name, 0))
    window_end = settings.steps * round(settings.step_hours * HOUR)
    windows = {"look_back": list(look_backs.values()), "window_end": [window_end] * len(look_backs)}
    db.put("charted", pa.table({"name": list(look_backs), **windows}))
    lines = [
        {"name": line.name, "source": line.table, "itemid": item, "factor": line.factor, "shift": line.shift}
        for line in settings.mimic_iv.charted
        for item in line.items
    ]
    db.put("charted_items", pa.Table.from_pylist(lines, ITEMS))
    fluids = [{"name": kind, "itemid": item} for kind, item in settings.fluids]
    db.put("fluid_items", pa.Table.from_pylist(fluids, FLUID_ITEMS))


def _keep_cohort(db: Database, sepsis: Sepsis) -> Flow:
    if db.number("SELECT count(*) FROM candidates") == 0:
        raise EmptyCohort(
            "The table icustays of the database is empty. Nothing was written. Load MIMIC-IV into it, or name another "
            "database with --db."
        )
    rules = [
        ("with their rows in patients and admissions", "recorded = 1"),
        ("with a care unit and a time of admission", "site IS NOT NULL AND in_time IS NOT NULL"),
        ("of adults", "adult = 1"),
        (RULES[sepsis], "septic = 1"),
        ("the person's first ICU stay", "stay_number = 1"),
    ]
    return keep_cohort(db, "candidates", "ICU stays", rules)


def _origins(settings: MimicSettings) -> dict[str, str]:
    items: dict[str, str] = {}
    for line in settings.mimic_iv.charted:
        items[line.name] = f"{items[line.name]}; {line.origin}" if line.name in items else line.origin
    fluids = ", ".join(str(item) for _, item in settings.fluids)
    return {
        **CONCEPTS,
        **items,
        "site": "icustays.first_careunit",
        "patient": "icustays.stay_id",
        "person": "icustays.subject_id",
        "no_icu": "icustays.first_careunit",
        "flow": "icustays: intime to outtime of all stays",
        "dose": f"inputevents {fluids}, without rewritten rows and solutions that carry a drug",
    }


def read_stays(path: str | Path) -> pa.Table:
    r"""Read a list of stays from CSV: the column stay_id and, optionally, onset (such as 2150-03-01 08:00:00).

    >>> import tempfile
    >>> from pathlib import Path
    >>> from fdtr.cohort import read_stays
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "stays.csv"
    ...     _ = path.write_text("stay_id,onset\n30000153,2150-03-01 08:00:00\n30000213,\n")
    ...     stays = read_stays(path)
    >>> stays["stay_id"].to_pylist(), stays["onset"].null_count
    ([30000153, 30000213], 1)
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        raise UnreadableFile(f"The list of stays {path} could not be read. Is it a CSV file in UTF-8?") from None
    try:
        rows = list(csv.DictReader(text.splitlines()))
        ids = pa.array([int(row["stay_id"]) for row in rows], pa.int64())
        onsets = [datetime.fromisoformat(row["onset"]) if row.get("onset") else None for row in rows]
        if any(onset is not None and onset.tzinfo is not None for onset in onsets):
            raise ValueError  # times of MIMIC-IV have no zone
    except (KeyError, OverflowError, TypeError, ValueError, csv.Error):
        raise UnreadableFile(
            f"The list of stays {path} needs a column stay_id with whole numbers, and may have a column onset with "
            "times such as 2150-03-01 08:00:00, without an offset or a zone. Nothing was written."
        ) from None
    return pa.table({"stay_id": ids, "onset": pa.array(onsets, pa.timestamp("us"))})


def _find(db: Database, table: str, schemas: Sequence[str]) -> str | None:
    """schema.table in the first of `schemas` that has the table, else in the only other schema that has it."""
    names = sorted(name for name in db.tables() if name.rpartition(".")[2] == table)
    preferred = [name for schema in schemas for name in names if name == f"{schema}.{table}"]
    if len(names) > 1 and not preferred:
        raise UnsuitableTables(
            f"The database has the table {table} more than once: {joined(names)}. Nothing was written. Say which "
            "schema counts, with schemas under [mimic_iv] in a file for --settings."
        )
    return next(iter([*preferred, *names]), None)


def _view_tables(db: Database, wanted: Mapping[str, Columns], schemas: Sequence[str]) -> None:
    """Make a view source_NAME of every wanted table. Refuse tables that are missing, forbidden or of other types."""
    paths = {table: _find(db, table, schemas) for table in wanted}
    missing = [table for table, path in paths.items() if path is None]
    if missing:
        raise UnsuitableTables(
            f"The database lacks {joined(missing)}, which MIMIC-IV has (looked in the schemas "
            f"{', '.join(schemas)}). Nothing was written. Load the missing tables, or name another database with --db."
        )
    present = {table: path for table, path in paths.items() if path is not None}
    db.check_rights(list(present.values()))
    for table, path in present.items():
        select = f"SELECT {_column_list(db, path, wanted[table])} FROM {db.qualified(path)}"
        db.view(f"{PREFIX}{table}", select, path)


def _column_list(db: Database, path: str, columns: Columns) -> str:
    fields = {field.name.lower(): field for field in db.columns(path)}
    lacking = sorted(set(columns) - set(fields))
    if lacking:
        raise UnsuitableTables(
            f"The table {path} lacks the column{'s' if len(lacking) > 1 else ''} {joined(lacking)}, which "
            "MIMIC-IV has. Nothing was written. Load the table anew, from a release that has them."
        )
    selected = {name: _converted(quoted(fields[name].name), kind, fields[name].type) for name, kind in columns.items()}
    unsuitable = [name for name, expression in selected.items() if expression is None]
    if unsuitable:
        faults = [
            f"{name} as {_type_name(fields[name].type)} instead of {_TYPE_NAMES[columns[name]]}" for name in unsuitable
        ]
        raise UnsuitableTables(
            f"The table {path} has {joined(faults)}. Nothing was written. Load the table anew with the types "
            "that MIMIC-IV gives its columns, or convert them in the database."
        )
    return ", ".join(f"{expression} AS {quoted(name)}" for name, expression in selected.items())


def _converted(column: str, wanted: ColumnType, actual: pa.DataType) -> str | None:
    """SQL that gives the column its wanted type, or None. Text is never parsed: engines would parse differently."""
    whole = pa.types.is_integer(actual)
    number = whole or pa.types.is_floating(actual) or pa.types.is_decimal(actual)
    match wanted:
        case "whole":
            return column if whole else f"CAST({column} AS BIGINT)" if number else None
        case "number" if pa.types.is_float32(actual):
            # FLOAT, as MIMIC-IV declares it, has 4 bytes in DuckDB and 8 in PostgreSQL: 67.9 would become 67.9000015.
            # The shortest decimal of the 4 bytes is what was written into them.
            return f"CAST(CAST({column} AS VARCHAR) AS DOUBLE PRECISION)"
        case "number":
            return column if number else None
        case "time" if pa.types.is_timestamp(actual) and actual.tz is not None:
            return f"({column} AT TIME ZONE 'UTC')"
        case "time":
            return f"CAST({column} AS TIMESTAMP)" if pa.types.is_timestamp(actual) or pa.types.is_date(actual) else None
        case "flag":
            return column if pa.types.is_boolean(actual) else f"({column} <> 0)" if number else None
        case "text":
            return f"CAST({column} AS VARCHAR)"


def _type_name(actual: pa.DataType) -> str:
    return "text" if pa.types.is_string(actual) or pa.types.is_large_string(actual) else str(actual)
