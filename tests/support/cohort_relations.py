"""Stays, measurements and doses written by hand, for tests of what the long table makes of them."""

from datetime import datetime, timedelta

import pyarrow as pa

from fdtr.cohort.cohort_flow import Flow
from fdtr.cohort.databases import open_database
from fdtr.cohort.extraction_settings import ExtractionSettings
from fdtr.cohort.time_steps import ExtractedTable, Source, make_table

ZERO = datetime(2150, 3, 1, 8)
SPARSE = ("weight", "temperature", "sbp", "hemoglobin", "potassium", "lactate", "crystalloid", "colloid")
"""Tests chart what they are about, and nothing else."""

SETTINGS = ExtractionSettings(site_covariates=(), may_be_absent=SPARSE)
TIME = pa.timestamp("us")


def at(hours: float) -> datetime:
    return ZERO + timedelta(hours=hours)


class Hand:
    """Relations of a few stays, each with lactate 2.0 before step 0 unless it says otherwise."""

    def __init__(self, n: int = 2, *, out: float | None = 100.0, died: float | None = None, lactate: bool = True):
        self.stays = [(k, 10 * k, f"unit-{k % 2}", ZERO, out, died) for k in range(n)]
        self.measurements = [(k, at(-1), "lactate", 2.0) for k in range(n)] if lactate else []
        self.doses: list[tuple[int, str, datetime, datetime | None, float]] = []

    def chart(self, name: str, hours: float, value: float, stay: int = 0) -> "Hand":
        self.measurements.append((stay, at(hours), name, value))
        return self

    def give(self, start: float, end: float | None, amount: float, name: str = "crystalloid", stay: int = 0) -> "Hand":
        self.doses.append((stay, name, at(start), None if end is None else at(end), amount))
        return self

    def table(self, address: str, settings: ExtractionSettings = SETTINGS) -> pa.Table:
        return self.extract(address, settings).table

    def extract(self, address: str, settings: ExtractionSettings = SETTINGS) -> ExtractedTable:
        ids, people, units, zeros, outs, deaths = zip(*self.stays, strict=True)
        when = lambda hours: pa.array([None if h is None else at(h) for h in hours], TIME)  # noqa: E731
        with open_database(address) as db:
            db.put(
                "stays",
                pa.table(
                    {
                        "stay_id": ids, "patient_id": people, "site": units, "time_zero": pa.array(zeros, TIME),
                        "out_time": when(outs), "death_time": when(deaths),
                    }
                ),
            )  # fmt: skip
            charts = self.measurements or [(None, None, None, None)]
            kinds = [("stay_id", pa.int64()), ("time", TIME), ("name", pa.string()), ("value", pa.float64())]
            db.put("measurements", rows(charts, kinds))
            kinds = [("stay_id", pa.int64()), ("name", pa.string()), ("start_time", TIME), ("end_time", TIME)]
            db.put("doses", rows(self.doses or [(None,) * 5], [*kinds, ("amount", pa.float64())]))
            return make_table(db, settings, Source(Flow("stays", len(ids))))


def rows(listed, kinds) -> pa.Table:
    columns = zip(*listed, strict=True)
    return pa.table({name: pa.array(c, kind) for c, (name, kind) in zip(columns, kinds, strict=True)})


def column(table: pa.Table, name: str, patient: str = "0") -> list:
    return [row[name] for row in table.to_pylist() if row["patient"] == patient]
