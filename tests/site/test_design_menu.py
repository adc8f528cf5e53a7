"""The menu of designs: public, exact about the data it would change, and told in bands."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from fdtr.site.design_menu import BANDS, menu, try_designs
from fdtr.site.rows import read_trajectories
from random_tables import make_study, make_table

STUDY = make_study(ends={"left": 0.5, "died": 0.0})
SITES = {"a": 60, "b": 90, "c": 300}


def rows_of(study, table):
    return read_trajectories(table, study)


def transformed(table, design):
    """The table as a person would change it for a design."""
    table = table.filter(pc.less(table["step"], design.study.horizon))
    before, after = STUDY.actions.levels, design.study.actions.levels
    codes = [after[design.levels[before.index(code)]] for code in table["action"].to_pylist()]
    return table.set_column(table.column_names.index("action"), "action", pa.array(codes))


@pytest.mark.parametrize("number", range(8))
def test_rows_are_recast_as_a_changed_table_would_be_read(number):
    table = make_table(STUDY, SITES, ragged=True)
    designs, _ = menu(STUDY, 3)
    design = designs[number]
    recast = rows_of(STUDY, table).recast(design.study.table_layout, design.levels).by_site()
    for site, read in rows_of(design.study, transformed(table, design)).by_site().items():
        assert recast[site].meaning == read.meaning
        assert set(recast[site].patients.to_pylist()) == set(read.patients.to_pylist())
        for h in range(design.study.horizon):
            [one], [other] = recast[site].step(h).chunks(), read.step(h).chunks()
            for name in ("states", "rewards", "actions"):
                np.testing.assert_allclose(
                    np.sort(getattr(one, name)), np.sort(getattr(other, name)), rtol=0, atol=1e-12, err_msg=name
                )
            assert one.next_states.shape == other.next_states.shape
            np.testing.assert_allclose(np.sort(one.ended_value), np.sort(other.ended_value), atol=1e-12)


def test_the_menu_depends_on_the_study_alone():
    designs, notes = menu(STUDY, 3)
    assert [design.name for design in designs] == [
        "as it is", "none or low as one action", "low or high as one action", "the first 2 steps", "the first step",
        "share u only", "narrower ranges", "a secure sum",
    ]  # fmt: skip
    assert notes == []
    assert designs[1].changes[0] == '[actions] levels = [0, 2], labels = ["none or low", "high"], degree = 1'
    assert designs[1].changes[1] == "in the table, column action: 1 becomes 0"
    assert designs[6].changes[0] == "[[covariates]] u: range = [-0.8, 0.8]"
    assert designs[7].changes == ("[disclosure] secure_sum = true, max_patients = 10000",)
    assert [design.name for design in menu(STUDY, 1)[0]][-1] == "narrower ranges"
    assert "A secure sum is not tried" in menu(STUDY, 1)[1][0]
    secure = make_study(disclosure={"secure_sum": True, "max_patients": 400})
    assert menu(secure, 1)[0][-1].changes == ("[disclosure] secure_sum = false",)
    eight = make_study(actions={"levels": list(range(8)), "basis": "categorical"})
    names = [design.name for design in menu(eight, 1)[0]]
    assert sum("as one action" in name for name in names) == 8  # seven neighbours, and all but the first
    doses = make_study(actions={"levels": [0, 1, 2], "cuts": [0, 10]})
    merged = menu(doses, 1)[0][1].study.actions
    assert (merged.levels, merged.cuts) == ((0, 1), (10.0,))


def test_bands_hold_no_counts_and_show_which_design_helps():
    study = make_study(horizon=2)
    rows = rows_of(study, make_table(study, {"a": 36, "b": 37, "c": 38, "d": 39}))
    tried, _ = try_designs(study, rows)
    found = {one.design.name: one.bands for one in tried}
    assert set(found["as it is"].values()) == {"nothing"}
    assert "nothing" not in found["a secure sum"].values()
    assert {band for bands in found.values() for band in bands.values()} <= set(BANDS)
    again, _ = try_designs(study, rows)
    assert [one.bands for one in again] == [one.bands for one in tried]


def test_one_hospital_may_see_what_a_secure_sum_with_others_like_it_would_let_out():
    rows = rows_of(STUDY, make_table(STUDY, {"a": 40}, ragged=True))
    alone, notes = try_designs(STUDY, rows)
    assert "a secure sum" not in {tried.design.name for tried in alone}
    assert "--sites K" in notes[0]
    together, notes = try_designs(STUDY, rows, n_alike=9)
    assert notes == ["A secure sum is judged as if there were 9 sites like this one."]
    bands = {tried.design.name: tried.bands["a"] for tried in together}
    assert BANDS.index(bands["a secure sum"]) > BANDS.index(bands["as it is"]) == 0


def test_weights_are_tried_where_the_study_has_none():
    for jitter, tried in ((0.0, True), (0.1, True), (0.3, False)):
        designs, _ = menu(make_study(disclosure={"jitter": jitter}), 3)
        assert [design.name for design in designs].count("weights (jitter 0.3)") == tried
        if tried:
            assert designs[1].changes == ("[disclosure] jitter = 0.3",)
            assert designs[1].study.disclosure.jitter == 0.3
    grams, _ = menu(make_study(disclosure={"payload": "gram", "jitter": 0}), 3)
    assert "weights (jitter 0.3)" not in {design.name for design in grams}
