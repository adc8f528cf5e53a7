"""Read CLIF tables and lists of onsets from disk. Times become UTC; columns that a site may leave out become NULL."""

import csv
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo, available_timezones

import pyarrow as pa

from fdtr.cohort.databases import Database, file_columns, literal
from fdtr.errors import InvalidSettings, UnreadableFile, UnsuitableTables

MEDICATION = ("hospitalization_id", "admin_dttm", "med_category", "med_dose", "med_dose_unit", "mar_action_category")
REQUIRED: Mapping[str, tuple[str, ...]] = {
    "patient": ("patient_id", "death_dttm"),
    "hospitalization": (
        "hospitalization_id",
        "patient_id",
        "admission_dttm",
        "discharge_dttm",
        "age_at_admission",
        "discharge_category",
    ),
    "adt": ("hospitalization_id", "in_dttm", "out_dttm", "location_category"),
    "vitals": ("hospitalization_id", "recorded_dttm", "vital_category", "vital_value"),
    "labs": ("hospitalization_id", "lab_collect_dttm", "lab_category", "lab_value_numeric"),
    "medication_admin_continuous": MEDICATION,
    "medication_admin_intermittent": MEDICATION,
    "hospital_diagnosis": ("hospitalization_id", "diagnosis_code"),
}
"""Columns that each table must have."""

OPTIONAL: Mapping[str, tuple[str, ...]] = {
    "adt": ("location_name", "location_type", "hospital_id"),
    "labs": ("reference_unit",),
    "medication_admin_continuous": ("med_order_id", "med_name", "med_route_name"),
    "medication_admin_intermittent": ("med_order_id", "med_name", "med_route_name"),
}
"""Further columns that are read if a site has them."""

NUMBERS = ("vital_value", "lab_value_numeric", "med_dose", "age_at_admission")
READERS = {
    "parquet": "read_parquet({path})",
    # All as text: ids keep their leading zeros, and types do not depend on the first rows. R writes NA.
    "csv": "read_csv({path}, all_varchar = true, nullstr = ['', 'NA'])",
}


def view_tables(db: Database, folder: Path, tables: tuple[str, ...], file_type: str, zone: str) -> None:
    """Make a view clif_NAME of each of `tables` in `folder`. Times that state no zone are local times of `zone`."""
    if file_type not in READERS:
        raise InvalidSettings(f"Tables as {file_type!r} cannot be read; parquet and csv can. Convert them first.")
    if zone not in available_timezones():
        raise InvalidSettings(f"There is no time zone {zone!r}. Name one such as America/Chicago or UTC.")
    db.run(f"SET TimeZone = '{ZoneInfo(zone).key}'")
    for table in tables:
        _view(db, table, _find(folder, table, file_type), file_type)


def _find(folder: Path, table: str, file_type: str) -> Path:
    """The table's file, or a pattern for its folder of files, under one of the names that CLIF sites use."""
    if not folder.is_dir():
        raise UnsuitableTables(
            f"There is no folder {folder}. Name the one that holds clif_adt.{file_type} and the others."
        )
    names = (f"clif_{table}.{file_type}", f"clif_{table}", f"{table}.{file_type}", table)
    path = next((folder / name for name in names if (folder / name).exists()), None)
    if path is None:
        raise UnsuitableTables(
            f"{folder} holds no {names[0]}. Nothing was written. Is it the folder of CLIF tables, and are they "
            f"{file_type} files?"
        )
    return path / "**" / f"*.{file_type}" if path.is_dir() else path


def _view(db: Database, table: str, path: Path, file_type: str) -> None:
    reader = READERS[file_type].format(path=literal(str(path)))
    present = file_columns(db, reader, path)
    lacking = [column for column in REQUIRED[table] if column not in present]
    if lacking:
        raise UnsuitableTables(
            f"{path.name} has no column {lacking[0]}, which CLIF requires. Nothing was written. Is the table of CLIF 2?"
        )
    columns = [_column(name, name in present) for name in (*REQUIRED[table], *OPTIONAL.get(table, ()))]
    db.view(f"clif_{table}", f"SELECT {', '.join(columns)} FROM {reader}", f"clif_{table}")


def _column(name: str, present: bool) -> str:
    if not present:
        return f"CAST(NULL AS VARCHAR) AS {name}"
    if name.endswith("_dttm"):
        return f"CAST(CAST({name} AS TIMESTAMPTZ) AT TIME ZONE 'UTC' AS TIMESTAMP) AS {name}"
    if name.endswith("_category"):  # written in any case, with spaces or underscores; see `normal_category`
        return f"lower(replace(trim(CAST({name} AS VARCHAR)), ' ', '_')) AS {name}"
    if name.endswith("_unit"):
        return f"lower(replace(CAST({name} AS VARCHAR), ' ', '')) AS {name}"
    return f"CAST({name} AS {'DOUBLE' if name in NUMBERS else 'VARCHAR'}) AS {name}"


def normal_category(category: str) -> str:
    """A category as the views have it.

    >>> normal_category("Lactated Ringers Solution")
    'lactated_ringers_solution'
    """
    return category.strip().lower().replace(" ", "_")


def normal_unit(unit: str) -> str:
    """A unit as the views have it.

    >>> normal_unit("mg / dL")
    'mg/dl'
    """
    return unit.lower().replace(" ", "")


ONSETS = pa.schema({"hospitalization_id": pa.string(), "onset": pa.timestamp("us")})


def read_onsets(path: Path, zone: str) -> pa.Table:
    """Read a list of hospitalizations and onsets from CSV; CLIF tables hold no onset.

    Onsets become UTC. An onset that states no offset is a local time of `zone`.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        raise UnreadableFile(
            f"The list of onsets {path} could not be read. Nothing was written. Is it a CSV file in UTF-8?"
        ) from None
    try:
        rows = list(csv.DictReader(text.splitlines()))
        ids = [row["hospitalization_id"].strip() for row in rows]
        times = [_instant(row["onset"], zone) for row in rows]
    except (AttributeError, KeyError, OverflowError, ValueError, csv.Error):
        rows = []
    if not rows:
        raise UnreadableFile(
            f"The list of onsets {path} needs a column hospitalization_id and a column onset with times such as "
            "2150-03-01 08:00:00 in every line. Nothing was written."
        )
    if len(set(ids)) < len(ids):
        raise UnreadableFile(
            f"The list of onsets {path} has a hospitalization_id in two lines. Nothing was written. Keep one of them."
        )
    return pa.table([ids, times], schema=ONSETS)


def _instant(text: str, zone: str) -> datetime:
    time = datetime.fromisoformat(text.strip())
    local = time.replace(tzinfo=ZoneInfo(zone)) if time.tzinfo is None else time
    return local.astimezone(UTC).replace(tzinfo=None)
