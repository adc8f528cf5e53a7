"""Table 1: no small count is in it, none follows from the others, and no patient shows in a mean."""

import csv
import itertools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdtr.disclosure import TableOne, release_table
from fdtr.disclosure.released_table import Groups, Measured, hidden_cells
from fdtr.errors import ExchangeError
from fdtr.exchange.site_state.ledger import Ledger
from fdtr.exchange.wire import write_table
from fdtr.site import summarize_table
from fdtr.site.rows import read_trajectories
from fdtr.site.site_table_one import release_of_table
from random_tables import make_sites, make_study, make_table
from refusals import refuses

pytestmark = pytest.mark.quick


def table(*facts, n=100, min_patients=50, min_cell=11):
    return release_table("a", "f" * 64, n, facts, min_patients, min_cell)


@given(st.lists(st.integers(0, 30), min_size=2, max_size=4))
def test_every_hidden_count_could_be_another_one(counts):
    """Whoever subtracts what is shown from the sum of all, and knows the rule, finds no hidden count."""
    hidden = hidden_of(counts)
    assert all(n == 0 or n >= 11 or i in hidden for i, n in enumerate(counts))
    left = sum(counts[i] for i in hidden)
    if not hidden or left == sum(counts) < 22:  # a table of so few patients is refused by rule N
        return
    shown = [n for i, n in enumerate(counts) if i not in hidden]
    parts = (o for o in itertools.product(range(1, left), repeat=len(hidden) - 1) if sum(o) < left)
    fitting = [o for part in parts if len(hidden_of([*(o := (*part, left - sum(part))), *shown])) == len(hidden)]
    assert all(len(set(place)) > 1 for place in zip(*fitting, strict=True))


def hidden_of(counts):
    return {int(level) for level in hidden_cells({str(i): n for i, n in enumerate(counts)}, 11)}


def tens(n):
    """A count as a table shows it."""
    return str(-(-int(n) // 10) * 10)


def test_small_counts_are_left_out_and_so_is_what_gives_them_away():
    shown = {row.level: (row.patients, row.percent) for row in table(Groups("x", {"a": 3, "b": 37, "c": 60})).rows[1:]}
    assert shown == {"a": ("not shown", ""), "b": ("not shown", ""), "c": ("60", "60")}


def test_a_count_of_nobody_is_shown():
    assert [row.patients for row in table(Groups("x", {"a": 0, "b": 100})).rows[1:]] == ["0", "100"]


def test_a_mean_is_rounded_so_that_one_patient_hardly_shows():
    values = np.random.default_rng(0).normal(120.0, 20.0, 100)
    first = table(Measured("sbp", values)).rows[1]
    without = table(Measured("sbp", values[:-1])).rows[1]
    assert (first.mean, first.standard_deviation) == ("121.6", "19")  # its standard error is 1.9
    assert abs(float(first.mean) - float(without.mean)) < 0.5


def test_a_mean_is_of_those_who_were_measured_and_both_counts_are_told():
    values = np.random.default_rng(0).normal(120.0, 20.0, 100)
    values[:40] = np.nan
    known, missing = table(Measured("sbp", values, "mmHg")).rows[1:]
    assert known.cells == ["sbp", "mmHg", "measured", "60", "60", "124", "21"]  # its standard error is 2.7
    assert abs(values[40:].mean() - 124) < 0.5
    assert missing.cells == ["sbp", "mmHg", "missing", "40", "40", "", ""]


def test_a_small_number_of_missing_values_is_a_small_count():
    values = np.random.default_rng(0).normal(120.0, 20.0, 100)
    values[:3] = np.nan
    assert [row.patients for row in table(Measured("sbp", values)).rows[1:]] == ["not shown", "not shown"]


def test_a_mean_of_few_measured_patients_is_left_out():
    values = np.full(100, np.nan)
    values[:12] = np.arange(12.0)
    known = table(Measured("weight", values)).rows[1]
    assert (known.patients, known.mean, known.standard_deviation) == ("20", "not shown", "")
    nobody = table(Measured("weight", np.full(100, np.nan))).rows[1]
    assert (nobody.patients, nobody.mean) == ("0", "")


def test_a_mean_that_one_patient_moves_is_left_out():
    values = np.random.default_rng(0).normal(120.0, 20.0, 100)
    assert table(Measured("sbp", values)).rows[1].mean != "not shown"
    values[0] = 5000.0
    assert table(Measured("sbp", values)).rows[1].mean == "not shown"


def test_a_mean_that_counts_a_few_patients_is_left_out():
    values = np.zeros(100)
    values[:5] = [1, 2, 3, 4, 5]
    assert table(Measured("dialysis", values)).rows[1].mean == "not shown"


def test_too_few_patients_are_refused():
    with refuses("N", match=r"rule N: 49 patients.*Do not forward"):
        table(n=49)


def test_nothing_else_makes_a_table():
    with pytest.raises(TypeError, match="release_table"):
        TableOne("a", "f", (), object())


def test_a_sites_table_holds_covariates_actions_and_follow_up_of_the_first_step(tmp_path):
    study = make_study(ends={"death": 0.0, "discharge": 1.0})
    source = make_table(study, {"a": 120, "b": 60}, ragged=True)
    rows = read_trajectories(source, study).by_site()["a"]
    write_table(summarize_table(study, rows, source, {"x": "kg"}), tmp_path / "table1.csv")
    lines = list(csv.DictReader((tmp_path / "table1.csv").read_text().splitlines()))
    assert list(lines[0]) == ["site", "variable", "unit", "level", "patients", "percent", "mean", "standard_deviation"]
    assert {line["site"] for line in lines} == {"a"}
    assert [line["variable"] for line in lines] == [
        "patients", *[name for name in "uxvy" for _ in range(2)], *["first action"] * 3, *["end"] * 3
    ]  # fmt: skip
    assert {line["variable"] for line in lines if line["unit"] == "kg"} == {"x"}
    frame = source.filter(pc.equal(source["site"], "a"))
    last = frame.filter(pc.less(frame["step"], 2)).filter(pc.is_valid(frame.filter(pc.less(frame["step"], 2))["end"]))
    ended = {end: pc.sum(pc.equal(last["end"], end)).as_py() for end in ("death", "discharge")}
    shown = {line["level"]: line["patients"] for line in lines if line["variable"] == "end"}
    whole = pc.sum(pc.equal(frame["step"], 2)).as_py()
    assert shown == {"followed to the last step": tens(whole), **{end: tens(n) for end, n in ended.items()}}


def test_a_sites_table_is_of_values_as_they_were_measured_neither_filled_nor_clipped():
    covariates = [
        {"name": "u", "effect": "shared", "range": [0, 1], "missing": "range-middle"},
        {"name": "two", "range": [0, 1], "missing": "range-middle"},
    ]
    study = make_study(covariates=covariates)
    source = make_table(study, {"a": 200})
    first = np.asarray(source["step"]) == 0
    rng = np.random.default_rng(0)
    u, two = rng.normal(3.0, 1.0, len(first)), rng.choice([0.0, 1.0, np.nan], len(first))
    u[rng.random(len(first)) < 0.5] = np.nan
    for name, values in (("u", u), ("two", two)):
        source = source.set_column(source.column_names.index(name), name, pa.array(values))
    rows = read_trajectories(source, study).by_site()["a"]
    assert rows.clipped["u"] > 0
    lines = summarize_table(study, rows, source).rows
    assert float(lines[1].mean) == pytest.approx(np.nanmean(u[first]), abs=0.1)
    assert float(lines[1].standard_deviation) == pytest.approx(np.nanstd(u[first], ddof=1), abs=0.05)
    assert [line.patients for line in lines[1:3]] == [
        tens(n) for n in (np.isfinite(u[first]).sum(), np.isnan(u[first]).sum())
    ]
    assert {line.level: line.patients for line in lines if line.variable == "two"} == {
        "0": tens((two[first] == 0).sum()), "1": tens((two[first] == 1).sum()),
        "missing": tens(np.isnan(two[first]).sum()),
    }  # fmt: skip


def test_a_table_without_noise_is_refused_where_the_study_promises_noise():
    study = make_study(disclosure={"epsilon": 1.0, "delta": 1e-6})
    with refuses("NOISE", match="Table 1 would leave this site without noise"):
        summarize_table(study, make_sites(study, {"a": 60})["a"], make_table(study, {"a": 60}))


def test_a_table_is_refused_where_nobody_is_to_see_one_sites_numbers():
    study = make_study(disclosure={"secure_sum": True, "max_patients": 1000})
    with pytest.raises(ExchangeError, match="The study asks for a secure sum"):
        summarize_table(study, make_sites(study, {"a": 200})["a"], make_table(study, {"a": 200}))


def test_what_the_message_tells_is_not_hidden_and_all_others_are():
    counts = {"whole": 96, "death": 4, "discharge": 0}
    shown = [row.patients for row in table(Groups("end", counts, public=frozenset({"whole"}))).rows[1:]]
    assert shown == ["100", "not shown", "not shown"]
    plenty = {"whole": 60, "death": 15, "discharge": 25}
    shown = [row.patients for row in table(Groups("end", plenty, public=frozenset({"whole"}))).rows[1:]]
    assert shown == ["60", "20", "30"]


def test_two_tables_of_nearly_the_same_patients_are_refused(tmp_path):
    study, ledger = make_study(), Ledger(tmp_path / "ledger")
    sources = [make_table(study, {"a": n}) for n in (60, 61)]
    parts = [read_trajectories(source, study) for source in sources]
    tables = [summarize_table(study, part, source) for part, source in zip(parts, sources, strict=True)]
    first, second = (release_of_table(study, part, told) for part, told in zip(parts, tables, strict=True))
    with ledger.recording(first):
        pass
    ledger.require(first)
    with refuses("ONCE", match="1 patient differs"):
        ledger.require(second)
