"""The long table from stays, measurements and doses that were written by hand, on both engines."""

import numpy as np
import pytest

from cohort_relations import SETTINGS, Hand, column
from fdtr.cohort.extraction_settings import ExtractionSettings, Options, StateCovariate
from fdtr.errors import EmptyCohort, InvalidSettings, UnsuitableTables


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


@pytest.mark.parametrize("gone", [{"out": 9.0}, {"died": 9.0}, {"out": 9.0, "died": 11.0}, {"out": 11.0, "died": 9.0}])
def test_nothing_flows_after_the_patient_left_or_died(engine, gone):
    """A rate of 100 ml/h from 8 hours on whose stop was charted at 20; a bolus when nobody is there."""
    found = Hand(**gone).give(8, 20, 1200).give(9, 9, 50).give(10, 11, 50).give(13, 14, 500).extract(engine)
    assert column(found.table, "dose") == [0, 0, 100]
    assert next(entry.charted for entry in found.dictionary if entry.column == "dose") == 1


def test_a_dose_without_a_charted_end_was_given_at_its_start(engine):
    found = Hand().give(5, None, 250).give(-1, None, 70).give(21, None, 70).extract(engine)
    assert column(found.table, "dose") == [0, 250, 0, 0, 0]
    assert next(entry.charted for entry in found.dictionary if entry.column == "dose") == 1


def test_a_dose_larger_than_any_is_dropped(engine):
    hand = Hand().give(1, 1, SETTINGS.dose.largest).give(5, 6, SETTINGS.dose.largest + 1)
    assert column(hand.table(engine), "dose") == [SETTINGS.dose.largest, 0, 0, 0, 0]


def test_of_values_at_the_same_instant_the_lowest_counts(engine):
    hand = Hand().chart("sbp", 3, 110).chart("sbp", 3, 90).chart("sbp", 3, 100).chart("sbp", 2, 70)
    assert column(hand.table(engine), "sbp") == [None, 90, 90, 90, 90]


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
    assert column(Hand(died=8.0).table(engine), "step") == [0, 1]  # nobody is there when step 2 begins
    assert column(Hand(died=8.0).table(engine), "reward")[-1] == 0


def test_who_leaves_is_discharged_unless_death_follows_within_the_window(engine):
    assert column(Hand(out=9.0).table(engine), "end")[-1] == "discharge"
    later = Hand(out=9.0, died=19.0).table(engine)
    assert column(later, "end")[-1] == "death"
    assert column(later, "reward")[-1] == column(later, "reward")[0] > 0  # death came after the step
    assert column(Hand(out=16.001).table(engine), "end") == [None] * 5
    assert column(Hand(out=8.0).table(engine), "step") == [0, 1]  # step 2 begins when the patient is gone


def test_a_death_at_the_very_end_of_the_last_step_is_within_it(engine):
    assert column(Hand(out=9.0, died=20.0).table(engine), "end")[-1] == "death"
    assert column(Hand(out=9.0, died=20.001).table(engine), "end")[-1] == "discharge"
    assert column(Hand(died=20.0).table(engine), "reward")[-1] == 0
    assert column(Hand(died=20.001).table(engine), "reward")[-1] > 0


def test_stays_without_an_outcome_at_time_zero_leave_and_the_flow_says_so(engine):
    hand = Hand(4, lactate=False).chart("lactate", -24, 2.0, stay=0).chart("lactate", 0, 2.0, stay=1)
    hand.chart("lactate", -24.001, 2.0, stay=2).chart("lactate", 0.001, 2.0, stay=3)
    found = hand.extract(engine)
    assert (found.flow.removals[-1].rule, found.flow.removals[-1].removed) == ("lactate known when step 0 begins", 2)
    assert set(found.table["patient"].to_pylist()) == {"0", "1"}
    assert found.table.num_rows == 10


@pytest.mark.parametrize("died", [None, 2.0, 6.0, 19.0])
def test_who_is_in_the_cohort_does_not_depend_on_who_dies(engine, died):
    hand = Hand(4, died=died, lactate=False)
    for stay in (0, 1):  # measured once; it is too old before the last step ends
        hand.chart("lactate", -20, 4.0, stay=stay)
    assert set(hand.table(engine)["patient"].to_pylist()) == {"0", "1"}


def test_an_outcome_that_is_not_measured_again_is_carried_forward_and_marked(engine):
    found = Hand().chart("lactate", -20, 9.0).chart("lactate", 9, 5.25).extract(engine, SETTINGS)
    assert column(found.table, "lactate_measured") == [0, 0, 1, 0, 0]
    old = Hand(lactate=False).chart("lactate", -20, 5.25).chart("lactate", -1, 2.0, stay=1).extract(engine)
    assert column(old.table, "reward") == [0.5] * 5  # 24 to 40 hours old
    assert old.carried == {"0"}
    counted = {(r["site"], r["step"]): r["missing"] for r in found.missing.to_pylist() if r["column"] == "reward"}
    assert [counted["unit-0", step] for step in range(5)] == [1, 1, 0, 1, 1]
    entries = {entry.column: entry for entry in found.dictionary}
    assert entries["reward"].missing == 9
    assert "however old" in entries["lactate_measured"].meaning


def test_what_nobody_measured_is_no_recovery(engine):
    """Lactate 9 goes stale, and 1 is agreed for what nobody measured."""
    agreed = {"unmeasured": 1.0, "look_back_hours": 4.0}
    changing = SETTINGS.outcome.model_copy(update={**agreed, "reward": "change"})
    hand = Hand(lactate=False).chart("lactate", -1, 9.0)
    table = hand.table(engine, SETTINGS.model_copy(update={"outcome": changing}))
    assert column(table, "reward") == [0.5] * 5
    assert column(table, "lactate_measured") == [0] * 5
    level = SETTINGS.outcome.model_copy(update=agreed)
    table = hand.chart("lactate", 4, 9.0).table(engine, SETTINGS.model_copy(update={"outcome": level}))
    assert column(table, "reward") == pytest.approx([1 / 9.5, 1 / 9.5, 9 / 9.5, 9 / 9.5, 9 / 9.5])


def test_an_outcome_that_is_a_covariate_too_keeps_a_look_back_and_a_range_of_its_own(engine):
    state = StateCovariate(
        name="lactate", meaning="lactate", unit="mmol/L", plausible=(0.1, 40.0), range=(0.5, 10.0), look_back_hours=48.0
    )
    own = {"look_back_hours": 4.0, "unmeasured": 9.0, "plausible": (0.1, 6.0)}
    settings = ExtractionSettings(
        site_covariates=(), may_be_absent=("crystalloid", "colloid"), covariates=(state,),
        outcome=SETTINGS.outcome.model_copy(update=own),
    )  # fmt: skip
    found = Hand(lactate=False).chart("lactate", 1, 2.0).chart("lactate", 9, 20.0).extract(engine, settings)
    assert column(found.table, "lactate") == [None, 2, 2, 20, 20]
    assert column(found.table, "reward") == pytest.approx([8 / 9.5, *[1 / 9.5] * 4])
    entries = {entry.column: entry for entry in found.dictionary}
    assert (entries["lactate"].charted, entries["lactate"].dropped) == (2, 0)
    assert (entries["reward"].charted, entries["reward"].dropped) == (2, 1)
    with pytest.raises(InvalidSettings, match="covariate in mg/dL and the outcome in mmol/L: give both the same unit"):
        ExtractionSettings.model_validate({"covariates": [state.model_dump() | {"unit": "mg/dL"}]})


@pytest.mark.parametrize("name", ["volume", "died", "ending", "stay_id", "measured", "state_at", "last_after"])
def test_a_covariate_may_be_called_as_the_working_tables_call_their_columns(engine, name):
    called = SETTINGS.covariates[2].model_copy(update={"name": name})
    settings = SETTINGS.model_copy(update={"covariates": (called,), "may_be_absent": ("crystalloid", "colloid")})
    assert column(Hand().chart(name, -1, 90).table(engine, settings), name) == [90] * 5


def test_a_column_of_the_table_is_not_a_covariate_too():
    called = SETTINGS.covariates[2].model_dump() | {"name": "lactate_measured"}
    with pytest.raises(InvalidSettings, match="two columns would be called 'lactate_measured'"):
        ExtractionSettings.model_validate({"covariates": [called]})


def test_an_agreed_value_stands_for_an_outcome_that_nobody_measured(engine):
    outcome = SETTINGS.outcome.model_copy(update={"unmeasured": 0.5})
    table = Hand(lactate=False).table(engine, SETTINGS.model_copy(update={"outcome": outcome}))
    assert column(table, "reward") == [1.0] * 5


def test_an_empty_cohort_names_the_rule_that_removed_most(engine):
    with pytest.raises(EmptyCohort, match=r"No stay is left of 3 stays.*lactate known"):
        Hand(3, lactate=False).table(engine)


def test_one_site_is_refused_unless_asked_for(engine):
    with pytest.raises(UnsuitableTables, match=r"one site.*--one-site"):
        Hand(1).table(engine)
    assert Hand(1).table(engine, SETTINGS.with_options(one_site=True)).num_rows == 5


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
    with pytest.raises(UnsuitableTables, match="Without a single usable value") as told:
        hand.extract(engine, strict())
    assert "usable value in the whole cohort: sbp, colloid." in str(told.value)
    assert "sbp: values outside 20 to 300 mmHg: 1 of 1" in str(told.value)
    assert "colloid: no dose within the steps" in str(told.value)
    assert 'may_be_absent = ["sbp", "colloid"]' in str(told.value)
    assert hand.extract(engine, strict("sbp", "colloid")).table.num_rows == 10


def test_an_outcome_that_is_nowhere_usable_is_not_blamed_on_the_rule(engine):
    hand = full().chart("lactate", -1, 180).chart("lactate", -1, 170, stay=1)
    hand.measurements = [m for m in hand.measurements if m[3] != 2.0]
    with pytest.raises(UnsuitableTables, match=r"lactate: values outside 0\.1 to 40 mmol/L: 2 of 2"):
        hand.extract(engine, strict())


def test_a_covariate_that_most_rows_lack_is_noted(engine):
    found = Hand(12).chart("sbp", -20, 90).extract(engine)
    assert any(note.startswith("sbp is missing in 96.7% of rows") for note in found.notes)
    assert full().extract(engine, strict()).notes == ()


def test_counts_are_of_the_stays_of_the_table_and_of_the_time_that_counts(engine):
    hand = Hand(3, lactate=False).chart("lactate", -1, 2.0, stay=0).chart("lactate", -1, 2.0, stay=1)
    hand.chart("sbp", -1, 90).chart("sbp", -30, 80).chart("sbp", 21, 80).chart("sbp", -1, 70, stay=2)
    hand.give(1, 2, 100).give(30, 31, 100).give(-5, -1, 100).give(1, 1, 1e6).give(1, 2, 100, stay=2)
    entries = {entry.column: entry for entry in hand.extract(engine).dictionary}
    assert (entries["sbp"].charted, entries["sbp"].dropped, entries["sbp"].rows) == (1, 0, 10)
    assert (entries["dose"].charted, entries["dose"].dropped) == (2, 1)
    assert entries["sbp"].range == "60 to 200"
    assert entries["person"].meaning == "the person; each has one stay here"


def test_one_site_may_be_named_for_every_source(engine):
    named = SETTINGS.model_copy(update={"options": Options(site="north")})
    assert set(Hand(2).table(engine, named)["site"].to_pylist()) == {"north"}
