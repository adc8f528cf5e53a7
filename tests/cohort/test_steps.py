"""The long table from stays, measurements and doses that were written by hand, on both engines."""

import numpy as np
import pytest

from cohort_relations import SETTINGS, Hand, column
from fdtr.cohort.settings import Options
from fdtr.errors import EmptyCohort, NoValues, OneSite


def test_the_state_is_what_was_known_when_the_step_began(engine):
    hand = Hand().chart("sbp", -1, 90).chart("sbp", 0, 100).chart("sbp", 0.1, 110).chart("sbp", 3.9, 120)
    assert column(hand.table(engine), "sbp") == [100, 120, 120, 120, 120]


def test_a_value_older_than_the_look_back_is_missing(engine):
    table = Hand().chart("sbp", -20, 90).table(engine)
    assert column(table, "sbp") == [90, 90, None, None, None]  # 20, 24, 28 hours old
    assert column(table, "sbp_missing") == [0, 0, 1, 1, 1]


def test_implausible_values_are_dropped_and_counted(engine):
    found = Hand().chart("weight", -2, 70).chart("weight", -1, 0.5).chart("weight", -1, 515).extract(engine)
    assert column(found.table, "weight") == [70] * 5
    entry = next(entry for entry in found.dictionary if entry.column == "weight")
    assert (entry.charted, entry.dropped) == (3, 2)


def test_a_dose_is_spread_over_its_interval_and_overlapping_ones_add(engine):
    hand = Hand().give(2, 10, 800).give(3, 5, 100, "colloid").give(0, 40, 50, "dextrose")
    assert column(hand.table(engine), "dose") == [200 + 50, 400 + 50, 200, 0, 0]


def test_a_bolus_belongs_to_the_step_that_begins_at_its_instant(engine):
    hand = Hand().give(0, 0, 1).give(4, 4, 10).give(7.999, 7.999, 100).give(20, 20, 1000).give(-0.001, -0.001, 1e4)
    assert column(hand.table(engine), "dose") == [1, 110, 0, 0, 0]


def test_levels_are_how_many_cuts_a_dose_exceeds(engine):
    hand = Hand().give(4, 4, 0.001).give(8, 8, 180).give(12, 12, 180.001)
    assert column(hand.table(engine), "action") == [0, 1, 1, 2, 0]


def test_the_reward_of_a_step_is_the_outcome_at_its_end(engine):
    hand = Hand().chart("lactate", 4, 0.5).chart("lactate", 4.001, 10.0)
    assert column(hand.table(engine), "reward") == [1, 0, 0, 0, 0]


def test_the_reward_can_be_the_change_of_the_outcome(engine):
    outcome = SETTINGS.outcome.model_copy(update={"reward": "change"})
    settings = SETTINGS.model_copy(update={"outcome": outcome})
    found = column(Hand().chart("lactate", 3, 4.0).table(engine, settings), "reward")
    np.testing.assert_allclose(found, [0.5 - 2 / 19, 0.5, 0.5, 0.5, 0.5])


def test_who_dies_has_no_further_step_and_the_last_is_worth_nothing(engine):
    table = Hand(out=9.0, died=9.0).table(engine)
    assert column(table, "step") == [0, 1, 2]
    assert column(table, "end") == [None, None, "death"]
    assert column(table, "reward")[-1] == 0 < column(table, "reward")[0]


def test_who_leaves_is_discharged_unless_death_follows_within_the_window(engine):
    assert column(Hand(out=9.0).table(engine), "end")[-1] == "discharge"
    assert column(Hand(out=9.0, died=19.0).table(engine), "end")[-1] == "death"
    assert column(Hand(out=9.0, died=20.0).table(engine), "end")[-1] == "discharge"
    assert column(Hand(out=16.001).table(engine), "end") == [None] * 5
    assert column(Hand(out=8.0).table(engine), "step") == [0, 1]  # step 2 begins when the patient is gone


def test_stays_without_an_outcome_leave_and_the_flow_says_so(engine):
    hand = Hand(4, lactate=False).chart("lactate", 1, 2.0, stay=0).chart("lactate", 1, 2.0, stay=1)
    found = hand.extract(engine)
    assert found.flow.left == 2
    assert found.flow.removals[-1].removed == 2
    assert found.table.num_rows == 10


def test_an_agreed_value_stands_for_an_outcome_that_nobody_measured(engine):
    outcome = SETTINGS.outcome.model_copy(update={"unmeasured": 0.5})
    table = Hand(lactate=False).table(engine, SETTINGS.model_copy(update={"outcome": outcome}))
    assert column(table, "reward") == [1.0] * 5


def test_an_empty_cohort_names_the_rule_that_removed_most(engine):
    with pytest.raises(EmptyCohort, match=r"No stay is left of 3 stays.*lactate known"):
        Hand(3, lactate=False).table(engine)


def test_one_site_is_refused_unless_asked_for(engine):
    with pytest.raises(OneSite, match=r"one site.*--one-site"):
        Hand(1).table(engine)
    assert Hand(1).table(engine, sites=1).num_rows == 5


def test_what_is_missing_is_counted_by_site_step_and_column(engine):
    found = Hand(4).chart("sbp", -1, 90).extract(engine)
    counted = {(r["site"], r["step"], r["column"]): (r["rows"], r["missing"]) for r in found.missing.to_pylist()}
    assert counted["unit-0", 0, "sbp"] == (2, 1)
    assert counted["unit-1", 4, "sbp"] == (2, 2)


def strict(*absent: str):
    return SETTINGS.model_copy(update={"may_be_absent": absent})


def full() -> Hand:
    """Stay 0 has something of everything."""
    values = {"weight": 80, "temperature": 37, "sbp": 120, "hemoglobin": 12, "potassium": 4}
    hand = Hand().give(1, 1, 100).give(1, 1, 50, "colloid")
    for name, value in values.items():
        hand.chart(name, -1, value)
    return hand


def test_what_has_no_usable_value_at_all_is_refused_with_what_was_found(engine):
    assert full().extract(engine, strict()).table.num_rows == 10
    hand = full().chart("sbp", -0.5, 900)
    hand.measurements = [m for m in hand.measurements if m[2] != "sbp" or m[3] == 900]
    hand.doses = [d for d in hand.doses if d[1] != "colloid"]
    with pytest.raises(NoValues) as told:
        hand.extract(engine, strict())
    assert "usable value in the whole cohort: sbp, colloid." in str(told.value)
    assert "sbp: values outside 20 to 300 mmHg: 1 of 1" in str(told.value)
    assert "colloid: no dose within the steps" in str(told.value)
    assert 'may_be_absent = ["sbp", "colloid"]' in str(told.value)
    assert hand.extract(engine, strict("sbp", "colloid")).table.num_rows == 10


def test_an_outcome_that_is_nowhere_usable_is_not_blamed_on_the_rule(engine):
    hand = full().chart("lactate", -1, 180).chart("lactate", -1, 170, stay=1)
    hand.measurements = [m for m in hand.measurements if m[3] != 2.0]
    with pytest.raises(NoValues, match=r"lactate: values outside 0\.1 to 40 mmol/L: 2 of 2"):
        hand.extract(engine, strict())


def test_a_covariate_that_most_rows_lack_is_noted(engine):
    found = Hand(12).chart("sbp", -20, 90).extract(engine)
    assert any(note.startswith("sbp is missing in 96.7% of rows") for note in found.notes)
    assert full().extract(engine, strict()).notes == ()


def test_counts_are_of_the_stays_of_the_table_and_of_the_time_that_counts(engine):
    hand = Hand(3, lactate=False).chart("lactate", 1, 2.0, stay=0).chart("lactate", 1, 2.0, stay=1)
    hand.chart("sbp", -1, 90).chart("sbp", -30, 80).chart("sbp", 21, 80).chart("sbp", -1, 70, stay=2)
    hand.give(1, 2, 100).give(30, 31, 100).give(-5, -1, 100).give(1, 1, 1e6).give(1, 2, 100, stay=2)
    entries = {entry.column: entry for entry in hand.extract(engine).dictionary}
    assert (entries["sbp"].charted, entries["sbp"].dropped, entries["sbp"].rows) == (1, 0, 10)
    assert (entries["dose"].charted, entries["dose"].dropped) == (2, 1)
    assert entries["sbp"].range == "60 to 200"
    assert entries["person"].meaning == "the person; each has one stay here"


def test_one_site_may_be_named_for_every_source(engine):
    named = SETTINGS.model_copy(update={"options": Options(site="north")})
    assert set(Hand(2).table(engine, named, sites=1)["site"].to_pylist()) == {"north"}
