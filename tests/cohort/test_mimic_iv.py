"""MIMIC-IV: from a generated database with planted traps to the planted truth, on both engines."""

import numpy as np
import pyarrow as pa
import pytest

from fdtr.cohort import dialects, mimic_iv, steps
from fdtr.cohort.complete import complete_cases
from fdtr.cohort.engines import open_database
from fdtr.cohort.mimic_iv import extract_mimic_iv
from fdtr.cohort.settings import Extraction
from fdtr.cohort.steps import Extracted
from mimic_world import TRAPS, World, make_world, write_duckdb, write_postgresql

COLUMNS = ("temperature", "sbp", "hemoglobin", "potassium", "weight", "dose", "action", "reward")


def extract(address: str, **options) -> Extracted:
    with open_database(address) as db:
        return extract_mimic_iv(db, Extraction(), **options)


def found(table: pa.Table) -> dict[int, dict[str, list[float]]]:
    rows: dict[int, dict[str, list[float]]] = {}
    for row in table.select(["patient", *COLUMNS]).to_pylist():
        stay = rows.setdefault(int(row["patient"]), {name: [] for name in COLUMNS})
        for name in COLUMNS:
            stay[name].append(np.nan if row[name] is None else row[name])
    return rows


def wrong_columns(table: pa.Table, world: World) -> set[str]:
    """Where a table differs from the truth: column names, or "stays" and "steps"."""
    there = found(table)
    if set(there) != set(world.truth):
        return {"stays"}
    if any(len(there[stay]["dose"]) != len(true["dose"]) for stay, true in world.truth.items()):
        return {"steps"}
    return {
        name
        for name in COLUMNS
        if not all(
            np.allclose(there[s][name], true[name], rtol=0, atol=1e-6, equal_nan=True)
            for s, true in world.truth.items()
        )
    }


@pytest.mark.parametrize("trap", [*(pytest.param(trap, marks=pytest.mark.slow) for trap in sorted(TRAPS)), "all"])
def test_the_truth_comes_back_through_each_trap(trap, tmp_path):
    world = make_world(150, seed=1, traps=TRAPS if trap == "all" else frozenset({trap}))
    table = extract(write_duckdb(world, tmp_path / "mimic.duckdb")).table
    assert wrong_columns(table, world) == set()
    ends = {int(r["patient"]): r["end"] for r in table.to_pylist() if r["end"] is not None}
    assert ends == {stay: end for stay, end in world.ends.items() if end is not None}


MUTATIONS = {
    "fahrenheit": ("mimic_iv/temperature", "WHEN 223761", "WHEN 0", {"temperature"}),
    "litres": ("mimic_iv/crystalloid", "* 1000.0", "* 1.0", {"dose", "action"}),
    "overlap": ("volumes", "sum(CAST(floor", "max(CAST(floor", {"dose", "action"}),
    "rewritten": ("mimic_iv/crystalloid", "'Rewritten'", "'Stopped'", {"dose", "action"}),
    "carriers": ("mimic_iv/colloid", "'Mixed solution'", "'Additives'", {"dose", "action"}),
    "edges": ("volumes", "p.started >= g.begins", "p.started > g.begins", {"dose", "action"}),
    "missing_labs": ("readings", "g.step >= k.step", "g.step = k.step", {"hemoglobin", "potassium", "weight"}),
    "two_stays": ("mimic_iv/stays", "c.stay_number = 1", "c.stay_number > 0", {"stays"}),
    "early_ends": ("presence", "g.begins < t.left_at", "g.begins <= t.left_at", {"steps"}),
    "implausible": ("readings", "m.value BETWEEN c.lowest AND c.highest", "m.value IS NOT NULL", {"weight"}),
    "late_onset": ("mimic_iv/stays", "z.time_zero = 'onset'", "z.time_zero = 'never'", None),
}


@pytest.mark.slow
@pytest.mark.parametrize("trap", sorted(TRAPS))
def test_a_wrong_rule_is_found_out_by_its_trap(trap, tmp_path, monkeypatch):
    file, right, wrong, columns = MUTATIONS[trap]
    assert right in dialects.statement(file)

    def mutated(path: str) -> str:
        sql = dialects.statement(path)
        return sql.replace(right, wrong) if path == file else sql

    monkeypatch.setattr(steps, "statement", mutated)
    monkeypatch.setattr(mimic_iv, "statement", mutated)
    world = make_world(150, seed=1, traps=frozenset({trap}))
    differing = wrong_columns(extract(write_duckdb(world, tmp_path / "mimic.duckdb")).table, world)
    assert differing == columns if columns else differing


@pytest.mark.slow
@pytest.mark.database
def test_both_engines_give_the_same_table_row_for_row_at_5000_stays(tmp_path, postgres):
    world = make_world(5_000, seed=3)
    first = extract(write_duckdb(world, tmp_path / "mimic.duckdb"))
    second = extract(write_postgresql(world, postgres, "mimic_5000"))
    assert first.table.num_rows > 20_000
    assert first.table.equals(second.table)  # every bit of it
    assert first.flow == second.flow
    assert first.missing.equals(second.missing)
    assert first.dictionary == second.dictionary


def test_no_millilitre_is_lost_or_made(tmp_path):
    world = make_world(400, seed=4, traps=TRAPS - {"early_ends"})
    table = extract(write_duckdb(world, tmp_path / "mimic.duckdb")).table
    given = table.group_by("patient").aggregate([("dose", "sum")])
    volumes = dict(zip(given["patient"].to_pylist(), given["dose_sum"].to_pylist(), strict=True))
    clipped = {str(stay): volume for stay, volume in clipped_sums(world).items()}
    assert volumes.keys() == clipped.keys()
    assert max(abs(volumes[stay] - clipped[stay]) for stay in clipped) < 1e-6


def clipped_sums(world: World) -> dict[int, float]:
    """Each stay's doses, clipped to twenty hours from time zero, event by event and without steps."""
    into = {r["stay_id"]: r["intime"] for r in world.tables["icustays"].to_pylist()}
    onset = {r["stay_id"]: r["suspected_infection_time"] for r in world.tables["sepsis3"].to_pylist()}
    sums = dict.fromkeys(world.truth, 0.0)
    for row in world.tables["inputevents"].to_pylist():
        void = row["statusdescription"] == "Rewritten" or row["ordercomponenttypedescription"] == "Mixed solution"
        zero = max(into[row["stay_id"]], onset[row["stay_id"]])
        start, end = ((row[key] - zero).total_seconds() for key in ("starttime", "endtime"))
        if end > start:
            share = max(0.0, min(end, 72_000.0) - max(start, 0.0)) / (end - start)
        else:
            share = float(0.0 <= start < 72_000.0)
        sums[row["stay_id"]] += 0.0 if void else share * row["amount"] * (1000.0 if row["amountuom"] == "L" else 1.0)
    return sums


def test_complete_cases_have_every_step_and_every_covariate(tmp_path):
    world = make_world(300, seed=6)
    whole = complete_cases(extract(write_duckdb(world, tmp_path / "mimic.duckdb")))
    true = {s for s, t in world.truth.items() if len(t["dose"]) == 5 and not np.isnan([t[c] for c in COLUMNS]).any()}
    assert {int(patient) for patient in whole.table["patient"].to_pylist()} == true
    assert whole.flow.left == len(true) == whole.table.num_rows // 5
    assert "end" not in whole.table.column_names
