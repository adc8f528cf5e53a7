"""Table 1: no small count is in it, none follows from the others, and no patient shows in a mean."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdtr.disclosure import Ledger, TableOne, release_table
from fdtr.disclosure.table_one import Groups, Measured, hidden_cells
from fdtr.errors import NotNoised, ReleasedBefore, TooFewPatients
from fdtr.exchange.table_one import write_table
from fdtr.site import release_of_table, tell_table
from worlds import make_sites, make_study

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


def test_a_mean_that_counts_a_few_patients_is_left_out():
    values = np.zeros(100)
    values[:5] = [1, 2, 3, 4, 5]
    assert table(Measured("dialysis", values)).rows[1].mean == "not shown"


def test_too_few_patients_are_refused():
    with pytest.raises(TooFewPatients, match=r"rule N: 49 patients.*Do not forward"):
        table(n=49)


def test_nothing_else_makes_a_table():
    with pytest.raises(TypeError, match="release_table"):
        TableOne("a", "f", (), object())


def test_a_sites_table_holds_covariates_actions_and_follow_up_of_the_first_step(tmp_path):
    study = make_study(ends={"death": 0.0})
    rows = make_sites(study, {"a": 120}, ragged=True)["a"]
    write_table(tell_table(study, rows), tmp_path / "table1.csv")
    lines = (tmp_path / "table1.csv").read_text().splitlines()
    assert lines[0] == "variable,level,patients,percent,mean,standard_deviation"
    assert lines[1] == "patients,,120,,,"
    assert [line.split(",")[0] for line in lines[2:]] == ["u", "x", "v", "y", *["first action"] * 3] + [
        "followed to the last step"
    ] * 2


def test_a_table_without_noise_is_refused_where_the_study_promises_noise():
    study = make_study(disclosure={"epsilon": 1.0, "delta": 1e-6})
    with pytest.raises(NotNoised, match="Table 1 would leave this site without noise"):
        tell_table(study, make_sites(study, {"a": 60})["a"])


def test_two_tables_of_nearly_the_same_patients_are_refused(tmp_path):
    study, ledger = make_study(), Ledger(tmp_path / "ledger")
    rows, more = (make_sites(study, {"a": n})["a"] for n in (60, 61))
    first, second = (release_of_table(study, part, tell_table(study, part)) for part in (rows, more))
    ledger.record(first)
    ledger.require(first)
    with pytest.raises(ReleasedBefore, match="1 patient differs"):
        ledger.require(second)
