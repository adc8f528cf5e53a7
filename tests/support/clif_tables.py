"""CLIF tables written by hand: two stays in two units, and whatever a test adds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

ZERO = datetime(2024, 2, 10, 6, tzinfo=UTC)
TIMES = pa.timestamp("us", "UTC")
COLUMNS = {
    "patient": ("patient_id", "death_dttm"),
    "hospitalization": (
        "hospitalization_id", "patient_id", "admission_dttm", "discharge_dttm", "age_at_admission",
        "discharge_category",
    ),
    "adt": ("hospitalization_id", "hospital_id", "in_dttm", "out_dttm", "location_name", "location_category"),
    "vitals": ("hospitalization_id", "recorded_dttm", "vital_category", "vital_value"),
    "labs": ("hospitalization_id", "lab_collect_dttm", "lab_category", "lab_value_numeric", "reference_unit"),
    "medication_admin_continuous": (
        "hospitalization_id", "med_order_id", "med_name", "med_category", "admin_dttm", "mar_action_category",
        "med_dose", "med_dose_unit", "med_route_name",
    ),
    "medication_admin_intermittent": (
        "hospitalization_id", "med_order_id", "med_name", "med_category", "admin_dttm", "mar_action_category",
        "med_dose", "med_dose_unit", "med_route_name",
    ),
    "hospital_diagnosis": ("hospitalization_id", "diagnosis_code"),
}  # fmt: skip
NUMBERS = ("age_at_admission", "vital_value", "lab_value_numeric", "med_dose")


def at(hours: float | None) -> datetime | None:
    return None if hours is None else ZERO + timedelta(hours=hours)


class Clif:
    """Hospitalizations h0, h1, … of persons p0, p1, …, each 100 hours in one unit from time zero, lactate 2.0."""

    def __init__(self, n: int = 2) -> None:
        self.rows: dict[str, list[tuple[Any, ...]]] = {table: [] for table in COLUMNS}
        for k in range(n):
            self.admit(k, f"unit-{k % 2}")
            self.lab("lactate", -1, 2.0, stay=k)

    def admit(
        self, k: int, unit: str, *, begin: float = 0, end: float = 100, person: int | None = None, age: int = 60
    ) -> Clif:
        self.rows["patient"].append((f"p{k}", None))
        self.rows["hospitalization"].append(
            (f"h{k}", f"p{k if person is None else person}", at(begin - 2), at(end + 5), age, "Home")
        )
        return self.locate(begin, end, unit, stay=k)

    def locate(self, begin: float, end: float, unit: str, category: str = "icu", stay: int = 0) -> Clif:
        self.rows["adt"].append((f"h{stay}", "north", at(begin), at(end), unit, category))
        return self

    def die(self, hours: float | None, stay: int = 0, category: str | None = "Expired") -> Clif:
        self.rows["patient"][stay] = (f"p{stay}", at(hours))
        self.rows["hospitalization"][stay] = (*self.rows["hospitalization"][stay][:-1], category)
        return self

    def leave(self, hours: float, stay: int = 0) -> Clif:
        """The unit, for good."""
        self.rows["adt"][stay] = (*self.rows["adt"][stay][:3], at(hours), *self.rows["adt"][stay][4:])
        return self

    def hospitalize(self, begin: float | None, end: float | None, stay: int = 0) -> Clif:
        """When the hospitalization began and ended, around the unit."""
        row = self.rows["hospitalization"][stay]
        self.rows["hospitalization"][stay] = (*row[:2], at(begin), at(end), *row[4:])
        return self

    def vital(self, category: str, hours: float, value: float, stay: int = 0) -> Clif:
        self.rows["vitals"].append((f"h{stay}", at(hours), category, value))
        return self

    def lab(self, category: str, hours: float, value: float, unit: str | None = None, stay: int = 0) -> Clif:
        self.rows["labs"].append((f"h{stay}", at(hours), category, value, unit))
        return self

    def rate(
        self, hours: float, ml: float | None, action: str | None = "start", *, order: str | None = "1",
        unit: str = "mL/hour", category: str = "sodium_chloride", name: str | None = None,
        route: str | None = None, stay: int = 0,
    ) -> Clif:  # fmt: skip
        entry = (f"h{stay}", order, name, category, at(hours), action, ml, unit, route)
        self.rows["medication_admin_continuous"].append(entry)
        return self

    def bolus(
        self, hours: float, amount: float | None, action: str | None = "given", *, unit: str = "mL",
        order: str | None = "9", category: str = "sodium_chloride", name: str | None = None,
        route: str | None = None, stay: int = 0,
    ) -> Clif:  # fmt: skip
        entry = (f"h{stay}", order, name, category, at(hours), action, amount, unit, route)
        self.rows["medication_admin_intermittent"].append(entry)
        return self

    def diagnose(self, code: str, stay: int = 0) -> Clif:
        self.rows["hospital_diagnosis"].append((f"h{stay}", code))
        return self

    def full(self, stay: int = 1) -> Clif:
        """Something of everything at one stay, so that no column of the table is empty."""
        for category, value in (("weight_kg", 80.0), ("temp_c", 37.0), ("sbp", 120.0)):
            self.vital(category, -1, value, stay)
        self.lab("hemoglobin", -1, 12.0, stay=stay).lab("potassium", -1, 4.0, stay=stay)
        return self.bolus(1, 100, stay=stay).bolus(1, 50, category="albumin", stay=stay)

    def tables(self) -> dict[str, pa.Table]:
        return {name: self._table(name) for name in COLUMNS}

    def _table(self, name: str) -> pa.Table:
        kinds = {
            c: TIMES if c.endswith("_dttm") else pa.float64() if c in NUMBERS else pa.string() for c in COLUMNS[name]
        }
        return pa.table(
            {c: pa.array([row[i] for row in self.rows[name]], kinds[c]) for i, c in enumerate(COLUMNS[name])}
        )

    def write(self, folder: Path, **changed: pa.Table | None) -> Path:
        """The tables as Parquet files; those of `changed` instead, or left out where None."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in (self.tables() | changed).items():
            if table is not None:
                pq.write_table(table, folder / f"clif_{name}.parquet")
        return folder


def hospital(n: int, seed: int, early: int = 0) -> Clif:
    """A hospital of `n` patients in one unit, `early` of whom leave after ten hours.

    Lactate falls faster with fluids, the more so at low pressures.
    """
    rng, tables = np.random.default_rng(seed), Clif(0)
    for k in range(n):
        tables.admit(k, "unit", age=int(rng.integers(20, 90)), end=10 if k < early else 100)
        lactate = float(rng.uniform(1.5, 8))
        tables.lab("lactate", -1, lactate, stay=k)
        tables.vital("weight_kg", -1, float(rng.uniform(50, 120)), stay=k)
        for step in range(5):
            begin, sbp = 4 * step, float(rng.uniform(70, 160))
            tables.vital("sbp", begin - 0.5, sbp, stay=k).vital(
                "temp_c", begin - 0.5, float(rng.uniform(35.5, 39.5)), stay=k
            )
            tables.lab("hemoglobin", begin - 0.5, float(rng.uniform(7, 15)), stay=k)
            tables.lab("potassium", begin - 0.5, float(rng.uniform(3, 5.5)), stay=k)
            level = int(rng.integers(0, 3))
            if level:
                fluid = "albumin" if k % 8 == 7 else "sodium_chloride"
                tables.bolus(begin + 1, (100, 500)[level - 1], order=f"{step}", category=fluid, stay=k)
            lactate = max(0.6, lactate - 0.2 - 0.3 * level * (sbp < 100) + float(rng.normal(0, 0.1)))
            tables.lab("lactate", begin + 3.9, lactate, stay=k)
    return tables
