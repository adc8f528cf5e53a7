"""A generated database with MIMIC-IV's schema, whose true trajectories are known: traps are planted around them.

Each stay has a true state, volume and lactate at every step. They are charted the way such databases chart them: in °F
or °C, in ml or litres, over intervals that overlap and cross steps, with rows that are void. `truth` is what an
extraction has to give back.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Array = NDArray[np.float64]

STEPS, MINUTES = 5, 240
UNITS = (
    "Medical Intensive Care Unit (MICU)",
    "Surgical Intensive Care Unit (SICU)",
    "Coronary Care Unit (CCU)",
    "Neuro Stepdown",
    "Trauma SICU (TSICU)",
    "Cardiac Vascular Intensive Care Unit (CVICU)",
    "Medical/Surgical Intensive Care Unit (MICU/SICU)",
    "Neuro Intermediate",
    "Neuro Surgical Intensive Care Unit (Neuro SICU)",
)
NOT_ICUS = (3, 7)
TRAPS = frozenset(
    {
        "fahrenheit", "litres", "overlap", "rewritten", "edges", "missing_labs", "two_stays", "early_ends", "carriers",
        "implausible", "late_onset", "several_onsets", "ages", "late_sepsis",
    }
)  # fmt: skip
SCHEMAS = {
    "icustays": "mimiciv_icu", "chartevents": "mimiciv_icu", "inputevents": "mimiciv_icu", "patients": "mimiciv_hosp",
    "admissions": "mimiciv_hosp", "labevents": "mimiciv_hosp", "diagnoses_icd": "mimiciv_hosp",
    "sepsis3": "mimiciv_derived",
}  # fmt: skip
START = np.datetime64("2150-01-01T00:00", "m")
NORMAL = {"temperature": (37.0, 0.8), "sbp": (110.0, 15.0), "hemoglobin": (10.0, 1.5), "potassium": (4.2, 0.5)}
ITEMS = {
    "temperature": [223762],
    "sbp": [220179, 220050, 225309],
    "hemoglobin": [51222, 50811],
    "potassium": [50971, 50822],
    "lactate": [50813],
    "weight": [226512, 224639],
}
LABS = ("hemoglobin", "potassium", "lactate")
CRYSTALLOID = (225158, 225828, 225944, 225797, 225159, 225823, 225825, 225827, 225941, 226089)
COLLOID = (220864, 220862, 225174, 225795, 225796)
SEPTIC_CODES = (
    ("A400", 10), ("A419", 10), ("R6520", 10), ("R6521", 10), ("0389", 9), ("99591", 9), ("99592", 9), ("78552", 9),
)  # fmt: skip
OTHER_CODES = (("A429", 10), ("R651", 10), ("0389", 10), ("A419", 9), ("99593", 9), ("78551", 9))
"""Not of sepsis, or not in this version of the ICD."""

NOT_SEPTIC, MINOR, SEPTIC_LATER = 1_000_001, 2_000_001, 3_000_001
"""Where the ids begin of persons who are not in the cohort, though lactate is known of them."""

# As mimic-code's create.sql declares them: FLOAT has 4 bytes in DuckDB, and 8 in PostgreSQL.
DECLARED = {
    ("chartevents", "valuenum"): "FLOAT", ("inputevents", "amount"): "FLOAT", ("diagnoses_icd", "icd_code"): "CHAR(7)",
    ("diagnoses_icd", "icd_version"): "SMALLINT",
}  # fmt: skip
LATER = 5_000
"""Minutes between a first stay and a second."""

LOW_HELPS, HIGH_HURTS = 1.5, 0.5
"""mmol/L by which a low dose lowers, and a high dose raises, the next lactate: the planted effects."""


@dataclass
class World:
    """The tables of the database, and the `truth`: stay_id → column → values by step (NaN where missing).

    `ends` are how stays ended.
    """

    tables: dict[str, pa.Table]
    truth: dict[int, dict[str, list[float]]]
    ends: dict[int, str | None]


@dataclass
class _Chart:
    """Rows that wait to be written."""

    stay: list[Array] = field(default_factory=list)
    minute: list[Array] = field(default_factory=list)
    item: list[Array] = field(default_factory=list)
    value: list[Array] = field(default_factory=list)

    def add(self, stay: Array, minute: Array, item: Array | int, value: Array | float) -> None:
        self.stay.append(stay)
        self.minute.append(minute)
        self.item.append(np.broadcast_to(item, stay.shape))
        self.value.append(np.broadcast_to(value, stay.shape).astype(float))

    def arrays(self) -> tuple[Array, Array, Array, Array]:
        stay, minute, item, value = (np.concatenate(x) for x in (self.stay, self.minute, self.item, self.value))
        return stay, minute, item, value


def make_world(n: int, seed: int, traps: frozenset[str] = TRAPS) -> World:
    """`n` persons with sepsis, as many stays that must not be in the cohort as the traps ask for."""
    rng = np.random.default_rng(seed)
    index = np.arange(n)
    admitted = rng.integers(0, 300_000, n)  # minutes after START
    onset = admitted + (rng.integers(-300, 360, n) if "late_onset" in traps else np.zeros(n, int))
    zero = np.maximum(admitted, onset)
    length, died = _lengths(rng, n, traps)
    present = np.arange(STEPS) * MINUTES < length[:, None]
    unit = rng.integers(0, len(UNITS), n)

    charts, labs, states = _Chart(), _Chart(), {}
    for name, (mean, spread) in NORMAL.items():
        states[name] = _state(rng, name, mean, spread, zero, labs if name in LABS else charts, traps)
    weight = rng.normal(80, 15, n).clip(45, 150).round(1)
    charts.add(index, admitted - rng.integers(0, 60, n), rng.choice(ITEMS["weight"], n), weight)
    if "implausible" in traps:
        charts.add(index, admitted, 224639, rng.choice([0.5, 515.0], n))
    states["weight"] = np.repeat(weight[:, None], STEPS, axis=1)

    doses, volume = _doses(rng, zero, length, traps)
    action = np.searchsorted([0.0, 180.0], volume, side="left")
    lactate, measured = _lactate(rng, action, states["sbp"], unit, zero, labs, traps)
    people = np.concatenate([index + 1, *(first + index for first in (NOT_SEPTIC, MINOR, SEPTIC_LATER))])
    later = zero + length + LATER
    if "two_stays" in traps:  # the second would be in the cohort, too
        labs.add(_again(index), later[_again(index)] - 30, 50813, 3.0)
    for group, when in enumerate((admitted, admitted, later), start=1):  # and so would those who are left out
        labs.add(group * n + index, when - 30, 50813, 3.0)
    truth = {
        **states, "dose": volume, "action": action.astype(float), "reward": _reward(lactate, length, died),
        "lactate_measured": measured, "site": np.repeat(np.array(UNITS)[unit][:, None], STEPS, axis=1),
        "no_icu": np.repeat(np.isin(unit, NOT_ICUS).astype(float)[:, None], STEPS, axis=1),
    }  # fmt: skip
    ends = np.where(length > (STEPS - 1) * MINUTES, None, np.where(died, "death", "discharge"))
    tables = {
        **_stays(index, admitted, zero, onset, length, died, unit, traps),
        "chartevents": _events(charts, "stay_id", index + 1000),
        "labevents": _events(labs, "subject_id", people),
        "inputevents": doses,
    }
    share = _flow(tables["icustays"])
    truth["flow"] = np.repeat(np.array([share[UNITS[k]] for k in unit])[:, None], STEPS, axis=1)
    return World(
        tables,
        {int(i) + 1000: {k: v[i][present[i]].tolist() for k, v in truth.items()} for i in index},
        {int(i) + 1000: ends[i] for i in index},
    )


def _flow(stays: pa.Table) -> dict[str, float]:
    """Each unit's share of all the time that anybody spent."""
    hours = dict.fromkeys(UNITS, 0.0)
    for row in stays.to_pylist():
        hours[row["first_careunit"]] += (row["outtime"] - row["intime"]).total_seconds() / 3600
    return {unit: spent / sum(hours.values()) for unit, spent in hours.items()}


def _again(index: Array) -> Array:
    """Who has a second stay."""
    return index[index % 4 == 0]


def _lengths(rng: np.random.Generator, n: int, traps: frozenset[str]) -> tuple[Array, NDArray[np.bool_]]:
    """Minutes from time zero to the end of the stay, and whether it ended by death."""
    length = rng.integers(2_000, 10_000, n)
    died = np.zeros(n, bool)
    if "early_ends" in traps:
        early = rng.random(n) < 0.2
        length[early] = rng.integers(30, STEPS * MINUTES, early.sum())
        length[rng.random(n) < 0.02] = 2 * MINUTES  # gone at the very moment when a step would begin
        died = (length < STEPS * MINUTES) & (rng.random(n) < 0.5)
    return length, died


def _state(
    rng: np.random.Generator, name: str, mean: float, spread: float, zero: Array, chart: _Chart, traps: frozenset[str]
) -> Array:
    """True values by step; charted within four hours before each step, one earlier value beside each."""
    n = len(zero)
    value = rng.normal(mean, spread, (n, STEPS)).clip(mean - 4 * spread, mean + 4 * spread).round(1)
    charted = np.ones((n, STEPS), bool)
    if "missing_labs" in traps and name in LABS:
        charted = (rng.random((n, STEPS)) < 0.6) & (rng.random(n) > 0.05)[:, None]
    for h in range(STEPS):
        who = np.flatnonzero(charted[:, h])
        minute = zero[who] + h * MINUTES - rng.integers(0, 120, len(who))
        fahrenheit = (rng.random(len(who)) < 0.5) & (name == "temperature") & ("fahrenheit" in traps)
        for reading, offset in ((value[who, h], 0), (value[who, h] + spread, 60)):  # the second is older
            item = rng.choice(ITEMS[name], len(who))
            chart.add(
                who,
                minute - offset,
                np.where(fahrenheit, 223761, item),
                np.where(fahrenheit, reading * 1.8 + 32.0, reading).round(2),  # as many digits as 4 bytes hold
            )
    return _carried(np.where(charted, value, np.nan))


def _carried(values: Array) -> Array:
    """The last known value: no look-back is shorter than the window."""
    filled = values.copy()
    for h in range(1, values.shape[1]):
        filled[:, h] = np.where(np.isnan(filled[:, h]), filled[:, h - 1], filled[:, h])
    return filled


def _doses(rng: np.random.Generator, zero: Array, length: Array, traps: frozenset[str]) -> tuple[pa.Table, Array]:
    """Rows of inputevents, and the volume in each step until the stay ends, by arithmetic of its own."""
    n = len(zero)
    volume = np.zeros((n, STEPS))
    listed: list[dict[str, Array]] = []

    def give(who: Array, start: Array, end: Array, ml: Array, *, void: str = "") -> None:
        """`start` and `end` in minutes from time zero."""
        litres = (rng.random(len(who)) < 0.3) & ("litres" in traps)
        item = rng.choice(CRYSTALLOID + COLLOID, len(who))
        listed.append(
            {
                "stay_id": who + 1000, "starttime": zero[who] + start, "endtime": zero[who] + end, "itemid": item,
                "amount": np.where(litres, ml / 1000.0, ml), "amountuom": np.where(litres, "L", "ml"),
                "statusdescription": np.full(len(who), "Rewritten" if void == "rewritten" else "FinishedRunning"),
                "ordercomponenttypedescription": np.full(
                    len(who), "Mixed solution" if void == "carrier" else "Main order parameter"
                ),
            }
        )  # fmt: skip
        if void:
            return
        for h in range(STEPS):
            low, high = h * MINUTES, np.minimum((h + 1) * MINUTES, length[who])
            within = (np.minimum(end, high) - np.maximum(start, low)).clip(0) / np.maximum(end - start, 1)
            bolus = (start == end) & (start >= low) & (start < high)
            np.add.at(volume[:, h], who, ml * np.where(start == end, bolus, within))

    for _ in range(3 if "overlap" in traps else 1):
        who = np.flatnonzero(rng.random(n) < 0.6)
        start = rng.integers(-120, STEPS * MINUTES, len(who))
        give(who, start, start + rng.integers(10, 600, len(who)), rng.integers(50, 1000, len(who)).astype(float))
    if "edges" in traps:
        for h in range(STEPS + 1):
            who = np.flatnonzero(rng.random(n) < 0.2)
            edge = np.full(len(who), h * MINUTES)
            give(who, edge, edge, rng.integers(50, 500, len(who)).astype(float))
    for void in ("rewritten", "carrier"):
        if {"rewritten": "rewritten", "carrier": "carriers"}[void] in traps:
            who = np.flatnonzero(rng.random(n) < 0.4)
            start = rng.integers(0, STEPS * MINUTES, len(who))
            give(who, start, start + 60, rng.integers(100, 900, len(who)).astype(float), void=void)
    columns = {key: np.concatenate([part[key] for part in listed]) for key in listed[0]}
    times = {key: START + columns[key].astype("timedelta64[m]") for key in ("starttime", "endtime")}
    return pa.table(columns | {k: v.astype("datetime64[us]") for k, v in times.items()}), volume


def _lactate(
    rng: np.random.Generator, action: Array, sbp: Array, unit: Array, zero: Array, labs: _Chart, traps: frozenset[str]
) -> tuple[Array, Array]:
    """Lactate before step 0 and at the end of each step, charted up to an hour before; and in which steps it was."""
    n = len(zero)
    effect = np.select([action == 1, action == 2], [-LOW_HELPS, HIGH_HURTS], 0.0)
    mean = 4.0 + effect + 0.02 * (110.0 - sbp) + 0.1 * unit[:, None]
    after = (mean + rng.normal(0, 0.5, (n, STEPS))).clip(0.6, 9.5).round(2)
    known = np.column_stack([rng.uniform(1, 6, n).round(2), after])
    charted = np.ones((n, STEPS + 1), bool)
    if "missing_labs" in traps:
        charted[:, 1:] = rng.random((n, STEPS)) < 0.9
    for h in range(STEPS + 1):
        who = np.flatnonzero(charted[:, h])
        labs.add(who, (zero + h * MINUTES - rng.integers(0, 60, n))[who], 50813, known[who, h])
    return _carried(np.where(charted, known, np.nan)), charted[:, 1:].astype(float)


def _reward(lactate: Array, length: Array, died: NDArray[np.bool_]) -> Array:
    worth = np.clip((10.0 - lactate[:, 1:]) / 9.5, 0, 1)
    step = np.arange(STEPS)
    last = (np.ceil(length / MINUTES) - 1).clip(0, STEPS - 1)
    return np.where((step == last[:, None]) & died[:, None], 0.0, worth)


def _events(chart: _Chart, key: str, ids: Array) -> pa.Table:
    who, minute, item, value = chart.arrays()
    order = np.random.default_rng(0).permutation(len(who))  # a table has no order
    time = (START + minute[order].astype("timedelta64[m]")).astype("datetime64[us]")
    return pa.table({key: ids[who[order]], "charttime": time, "itemid": item[order], "valuenum": value[order]})


def _stays(
    index: Array,
    admitted: Array,
    zero: Array,
    onset: Array,
    length: Array,
    died: NDArray[np.bool_],
    unit: Array,
    traps: frozenset[str],
) -> dict[str, pa.Table]:
    n = len(index)
    names = np.array(UNITS)

    def when(minutes: Array) -> Array:
        return (START + minutes.astype("timedelta64[m]")).astype("datetime64[us]")

    out = zero + length
    stays = [(index + 1, index + 1, index + 1000, names[unit], when(admitted), when(out))]
    septic = [(index + 1000, when(onset), np.ones(n, bool))]
    if "several_onsets" in traps:  # the first counts
        septic.append((index + 1000, when(onset + 120), np.ones(n, bool)))

    def add(who: Array, person: int, stay: int, begins: Array, flag: bool) -> None:
        """A stay of each of `who`, in an admission of its own and another unit; `person`, `stay`: the first ids."""
        units = names[(unit[who] + 1) % 9]
        stays.append((who + person, who + stay, who + stay, units, when(begins[who]), when(begins[who] + 3_000)))
        septic.append((who + stay, when(begins[who]), np.full(len(who), flag)))

    if "two_stays" in traps:  # septic too
        add(_again(index), 1, 500_000, out + LATER, True)
    others = index[: n // 5]
    add(others, NOT_SEPTIC, NOT_SEPTIC, admitted, False)
    if "ages" in traps:
        add(others, MINOR, MINOR, admitted, True)
    if "late_sepsis" in traps:  # not in the first stay, but in the second
        add(others, SEPTIC_LATER, SEPTIC_LATER, admitted, False)
        add(others, SEPTIC_LATER, SEPTIC_LATER + 500_000, out + LATER, True)
    person, admission, stay, careunit, into, outof = (np.concatenate(x) for x in zip(*stays, strict=True))
    people = np.unique(person)
    death = {int(i) + 1: when(out[i : i + 1])[0] for i in index[died]}
    deaths = pa.array([death.get(int(h)) for h in np.unique(admission)], pa.timestamp("us"))
    return {
        "icustays": pa.table(
            {
                "subject_id": person, "hadm_id": admission, "stay_id": stay, "first_careunit": careunit,
                "intime": into, "outtime": outof,
            }
        ),
        "patients": pa.table(
            {"subject_id": people, "anchor_age": _anchor_ages(people, traps), "anchor_year": np.full(len(people), 2148)}
        ),
        "admissions": pa.table({"hadm_id": np.unique(admission), "deathtime": deaths}),
        "sepsis3": pa.table(
            dict(
                zip(
                    ("stay_id", "suspected_infection_time", "sepsis3"),
                    (np.concatenate(x) for x in zip(*septic, strict=True)),
                    strict=True,
                )
            )
        ),
        "diagnoses_icd": _codes(index + 1, others + NOT_SEPTIC),
    }  # fmt: skip


def _anchor_ages(people: Array, traps: frozenset[str]) -> Array:
    """Ages two years before admission: some become adults since, and some do not."""
    if "ages" not in traps:
        return np.full(len(people), 60)
    minor = (people >= MINOR) & (people < SEPTIC_LATER)
    return np.where(minor, 15, np.where((people < NOT_SEPTIC) & (people % 5 == 0), 16, 60))


def _codes(septic: Array, others: Array) -> pa.Table:
    """One code for each admission, every code in turn."""
    coded = [SEPTIC_CODES[k % len(SEPTIC_CODES)] for k in range(len(septic))]
    coded += [OTHER_CODES[k % len(OTHER_CODES)] for k in range(len(others))]
    codes, versions = zip(*coded, strict=True)
    return pa.table({"hadm_id": np.concatenate([septic, others]), "icd_code": codes, "icd_version": versions})


def _declared(table: str, rows: pa.Table) -> str:
    """The columns of a table as mimic-code declares them, where a test did not put other values there."""
    from fdtr.cohort.postgres_engine import to_sql

    def kind(field: pa.Field) -> str:
        known = DECLARED.get((table, field.name))
        if pa.types.is_integer(field.type):
            return known or "INTEGER"
        if pa.types.is_float32(field.type):
            return "REAL"
        if pa.types.is_timestamp(field.type) and field.type.tz is not None:
            return "TIMESTAMPTZ"
        fits = pa.types.is_floating(field.type) or known == "CHAR(7)"
        return known if known and fits else to_sql(field.type)

    return ", ".join(f"{field.name} {kind(field)}" for field in rows.schema)


def changed(world: World, table: str, rows: pa.Table | None) -> World:
    """The world with other rows in one table, or without it."""
    tables = {name: rows if name == table else old for name, old in world.tables.items()}
    return World({name: rows for name, rows in tables.items() if rows is not None}, world.truth, world.ends)


def write_duckdb(world: World, path: Path) -> str:
    """The world as a DuckDB file; its address."""
    import duckdb

    with duckdb.connect(str(path)) as connection:
        for name, rows in world.tables.items():
            schema = SCHEMAS.get(name, "main")
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
            connection.register("rows_of_world", rows)
            connection.execute(f"CREATE OR REPLACE TABLE {schema}.{name} ({_declared(name, rows)})")
            connection.execute(f"INSERT INTO {schema}.{name} SELECT * FROM rows_of_world")
            connection.unregister("rows_of_world")
    return f"duckdb:{path}"


def write_postgresql(world: World, address: str, database: str) -> str:
    """The world as a database of the server at `address`; its address."""
    import psycopg

    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{database}"')
        connection.execute(f'CREATE DATABASE "{database}"')
    own = address.rsplit("/", 1)[0] + f"/{database}"
    with psycopg.connect(own) as connection:
        for name, rows in world.tables.items():
            schema = SCHEMAS.get(name, "public")
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
            connection.execute(f"CREATE TABLE {schema}.{name} ({_declared(name, rows)})")
            with connection.cursor() as cursor, cursor.copy(f"COPY {schema}.{name} FROM STDIN") as copy:
                for row in zip(*(column.to_pylist() for column in rows.columns), strict=True):
                    copy.write_row(row)
        connection.execute("ANALYZE")
    return own
