"""CLIF tables on disk, as views of a database: times in UTC, columns that a site may leave out as NULL."""

from collections.abc import Mapping
from pathlib import Path
from zoneinfo import ZoneInfo, available_timezones

from fdtr.cohort.database import Database
from fdtr.cohort.sources import columns_of, literal
from fdtr.errors import InvalidSettings, MissingColumn, MissingTable

TIME = "_dttm"
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
    "medication_admin_continuous": (
        "hospitalization_id",
        "admin_dttm",
        "med_category",
        "med_dose",
        "med_dose_unit",
        "mar_action_category",
    ),
    "medication_admin_intermittent": (
        "hospitalization_id",
        "admin_dttm",
        "med_category",
        "med_dose",
        "med_dose_unit",
        "mar_action_category",
    ),
    "hospital_diagnosis": ("hospitalization_id", "diagnosis_code"),
}
"""The columns that are read of each table."""

OPTIONAL: Mapping[str, tuple[str, ...]] = {
    "adt": ("location_name", "location_type", "hospital_id"),
    "labs": ("reference_unit",),
    "medication_admin_continuous": ("med_order_id", "med_name", "med_route_name"),
    "medication_admin_intermittent": ("med_order_id", "med_name", "med_route_name"),
}
"""Columns that CLIF lets a site leave out."""

NUMBERS = ("vital_value", "lab_value_numeric", "med_dose", "age_at_admission")
READERS = {
    "parquet": "read_parquet({path})",
    # As text: an id must keep its zeros, and a type must not depend on the first rows. R writes NA.
    "csv": "read_csv({path}, all_varchar = true, nullstr = ['', 'NA'])",
}


def view_tables(db: Database, folder: Path, tables: tuple[str, ...], file_type: str, zone: str) -> None:
    """Make a view clif_… of each of `tables` in `folder`.

    Times with a time zone are instants whatever `zone` is; those without one are taken as its local time.
    """
    if file_type not in READERS:
        raise InvalidSettings(f"Tables as {file_type!r} cannot be read; parquet and csv can. Convert them first.")
    if zone not in available_timezones():
        raise InvalidSettings(f"There is no time zone {zone!r}. Name one such as America/Chicago or UTC.")
    db.run(f"SET TimeZone = '{ZoneInfo(zone).key}'")
    for table in tables:
        _view(db, table, _find(folder, table, file_type), file_type)


def _find(folder: Path, table: str, file_type: str) -> Path:
    """A file, or a folder of files, named as CLIF sites do."""
    if not folder.is_dir():
        raise MissingTable(f"There is no folder {folder}. Name the one that holds clif_adt.{file_type} and the others.")
    names = (f"clif_{table}.{file_type}", f"clif_{table}", f"{table}.{file_type}", table)
    found = next((folder / name for name in names if (folder / name).exists()), None)
    if found is None:
        raise MissingTable(
            f"{folder} holds no {names[0]}. Nothing was written. Is it the folder of CLIF tables, and are they "
            f"{file_type} files?"
        )
    return found / "**" / f"*.{file_type}" if found.is_dir() else found


def _view(db: Database, table: str, path: Path, file_type: str) -> None:
    source = READERS[file_type].format(path=literal(str(path)))
    there = columns_of(db, source, path)
    lacking = [column for column in REQUIRED[table] if column not in there]
    if lacking:
        raise MissingColumn(
            f"{path.name} has no column {lacking[0]}, which CLIF requires. Nothing was written. Is the table of CLIF 2?"
        )
    columns = [_column(name, name in there) for name in (*REQUIRED[table], *OPTIONAL.get(table, ()))]
    db.view(f"clif_{table}", f"SELECT {', '.join(columns)} FROM {source}", f"clif_{table}")


def _column(name: str, there: bool) -> str:
    if not there:
        return f"CAST(NULL AS VARCHAR) AS {name}"
    if name.endswith(TIME):
        return f"CAST(CAST({name} AS TIMESTAMPTZ) AT TIME ZONE 'UTC' AS TIMESTAMP) AS {name}"
    if name.endswith("_category"):
        return f"{as_category(f'CAST({name} AS VARCHAR)')} AS {name}"
    if name.endswith("_unit"):
        return f"lower(replace(CAST({name} AS VARCHAR), ' ', '')) AS {name}"
    return f"CAST({name} AS {'DOUBLE' if name in NUMBERS else 'VARCHAR'}) AS {name}"


def as_category(expression: str) -> str:
    """Sites write categories with capitals or small letters, with spaces or underscores: they mean the same."""
    return f"lower(replace(trim({expression}), ' ', '_'))"
