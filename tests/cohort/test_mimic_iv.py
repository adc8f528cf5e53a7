"""MIMIC-IV: from a generated database with planted traps to the planted truth, on both engines."""

import numpy as np
import pyarrow as pa
import pytest

from fdtr.cohort import dialects, mimic_iv, steps
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


@pytest.mark.parametrize("trap", [*sorted(TRAPS), "all"])
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
