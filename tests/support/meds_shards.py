"""MEDS shards with a planted truth: what happened is drawn first, and events are written from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ZERO = datetime(2130, 5, 1)
MAP: dict[str, Any] = {
    "begin": ["ICU_IN//*"],
    "leave": ["ICU_OUT"],
    "site_part": 2,
    "charted": [
        {"name": "sbp", "codes": ["BP//systolic", "BP//arterial"]},
        {"name": "temperature", "codes": ["TEMP//F"], "factor": 5 / 9, "shift": -160 / 9},
        {"name": "temperature", "codes": ["TEMP//C"]},
        {"name": "lactate", "codes": ["LAB//lactate//*"]},
    ],
    "doses": [
        {"name": "crystalloid", "codes": ["SALINE//rate"], "kind": "rate", "stop": ["SALINE//stop"]},
        {"name": "crystalloid", "codes": ["RINGER//rate//*"], "kind": "rate", "factor": 1000.0},
        {"name": "colloid", "codes": ["ALBUMIN//ml"]},
    ],
}
COVARIATES = [
    {"name": "sbp", "meaning": "systolic pressure", "unit": "mmHg", "plausible": [20, 300], "range": [60, 200]},
    {"name": "temperature", "meaning": "temperature", "unit": "°C", "plausible": [25, 45], "range": [34, 41]},
]  # fmt: skip


def settings(**meds: Any) -> dict[str, Any]:
    absent = ["sbp", "temperature", "lactate", "crystalloid", "colloid"]  # tests write what they are about
    return {"covariates": COVARIATES, "site_covariates": [], "may_be_absent": absent, "meds": MAP | meds}


@dataclass
class Shards:
    """Events of a few subjects; `write` spreads the subjects over two shards, in order of time as MEDS asks."""

    events: list[tuple[int, datetime | None, str, float | None]] = field(default_factory=list)

    def add(self, subject: int, hours: float | None, code: str, value: float | None = None) -> Shards:
        self.events.append((subject, None if hours is None else ZERO + timedelta(hours=hours), code, value))
        return self

    def stay(self, subject: int, site: str = "north", *, begin: float = 0, end: float = 100) -> Shards:
        self.events.append((subject, datetime(2080, 1, 1), "MEDS_BIRTH", None))
        self.add(subject, begin, f"ICU_IN//{site}").add(subject, end, "ICU_OUT")
        return self.add(subject, begin - 1, "LAB//lactate//mmol/L", 2.0)

    def write(self, folder: Path) -> Path:
        for shard in range(2):
            mine = sorted(
                (e for e in self.events if e[0] % 2 == shard), key=lambda e: (e[0], e[1] or datetime(1, 1, 1), e[2])
            )
            columns = list(zip(*mine, strict=True)) or [(), (), (), ()]
            kinds = (pa.int64(), pa.timestamp("us"), pa.string(), pa.float32())
            names = ("subject_id", "time", "code", "numeric_value")
            table = pa.table({n: pa.array(c, k) for n, c, k in zip(names, columns, kinds, strict=True)})
            place = folder / "data" / ("train" if shard else "tuning")
            place.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, place / "0.parquet")
        return folder


def planted(n: int, seed: int = 0) -> tuple[Shards, dict[str, list[dict[str, float | None]]]]:
    """Shards of `n` stays and the table they must become: values exact in float32, every fluid in whole ml."""
    rng, shards, truth = np.random.default_rng(seed), Shards(), {}
    for subject in range(n):
        shards.stay(subject, f"site-{subject % 3}", begin=0, end=20)
        shards.add(subject, None, "GENDER//F").add(subject, 3.0, "DIAGNOSIS//A419")
        rows: list[dict[str, float | None]] = []
        for step in range(5):
            sbp, warm = float(rng.integers(60, 200)), float(rng.integers(35, 41))
            at = 4 * step
            shards.add(subject, at - 0.25, rng.choice(["BP//systolic", "BP//arterial"]), sbp)
            shards.add(subject, at + 1.0, "BP//systolic", 999.0)  # not plausible
            fahrenheit = rng.random() < 0.5
            shards.add(
                subject, at - 0.5, "TEMP//F" if fahrenheit else "TEMP//C", warm * 1.8 + 32 if fahrenheit else warm
            )
            volume = 0.0
            if rng.random() < 0.6:  # saline for an hour, changed in between; Ringer's beside it
                rate, later = float(rng.integers(1, 400)), float(rng.integers(1, 400))
                shards.add(subject, at + 0.5, "SALINE//rate", rate).add(subject, at + 1.5, "SALINE//rate", later)
                shards.add(subject, at + 2.5, "SALINE//stop")
                shards.add(subject, at + 1, "RINGER//rate//L", 0.25).add(subject, at + 3, "RINGER//rate//L", 0.0)
                volume += rate + later + 500
            if rng.random() < 0.4:
                bolus = float(rng.integers(10, 500))
                shards.add(subject, at, "ALBUMIN//ml", bolus)  # at the edge: of the step that begins
                volume += bolus
            rows.append({"sbp": sbp, "temperature": warm, "dose": volume})
        truth[f"{subject}-1"] = rows
    return shards, truth
