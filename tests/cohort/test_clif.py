"""CLIF tables: each rule has a planted case that comes out otherwise where the rule is wrong."""

from datetime import timedelta
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from clif_tables import COLUMNS, Clif, at
from cohort_relations import SPARSE
from fdtr import __version__
from fdtr.cohort.clif import extract_clif
from fdtr.cohort.clif_settings import ClifSettings
from fdtr.errors import EmptyCohort, InvalidSettings, UnreadableFile, UnsuitableTables

pytestmark = pytest.mark.slow  # a database for every case
MAP = {"name": "map", "meaning": "mean pressure", "unit": "mmHg", "plausible": [20, 200], "range": [40, 140]}
CARRIER = "01-Drips; Mixed solution; Continuous Med"


def settings(**clif):
    return ClifSettings.model_validate({"may_be_absent": SPARSE, "clif": clif})


def found(made: Clif, folder, chosen=None, **options):
    return extract_clif(made.write(folder), chosen or settings(), **options)


def column(made: Clif, folder, name, chosen=None, patient="h0-1", **options):
    rows = found(made, folder, chosen, **options).table.to_pylist()
    return [row[name] for row in rows if row["patient"] == patient]


class TestFluids:
    @pytest.mark.quick
    def test_a_rate_holds_until_the_next_entry_of_its_order(self, tmp_path):
        made = Clif().rate(1, 100).rate(3, 50, "dose_change").rate(6, 0, "stop")
        assert column(made, tmp_path, "dose") == [250.0, 100.0, 0.0, 0.0, 0.0]

    def test_orders_that_overlap_are_added(self, tmp_path):
        made = Clif().rate(0, 100).rate(2, 0, "stop").rate(1, 30, order="2").rate(3, 0, "stop", order="2")
        assert column(made, tmp_path, "dose")[0] == 260.0

    def test_two_products_of_one_order_are_two_infusions(self, tmp_path):
        made = (
            Clif()
            .rate(0, 100, name="a")
            .rate(1, 10, name="b")
            .rate(2, 0, "stop", name="a")
            .rate(3, 0, "stop", name="b")
        )
        assert column(made, tmp_path, "dose")[0] == 220.0

    def test_an_entry_under_two_categories_is_one_entry(self, tmp_path):
        made = Clif()
        for category in ("dextrose", "dextrose_in_water_d5w"):
            made.rate(0, 100, category=category, name="D5W").rate(2, 0, "stop", category=category, name="D5W")
            made.bolus(1, 50, category=category, name="D5W")
            made.rate(3, 9, category=category, name="D5W", order="2", route=CARRIER)
        chosen = settings(fluids={"dextrose": "crystalloid", "dextrose in water D5W": "crystalloid"})
        assert column(made, tmp_path / "a", "dose", chosen)[0] == 250.0
        assert found(made, tmp_path / "b", chosen).left_out["entries"].to_pylist() == [1]

    def test_a_stop_comes_before_a_start_at_the_same_instant(self, tmp_path):
        made = Clif().rate(0, 100).rate(2, 60).rate(2, 0, "stop").rate(4, 0, "stop")
        assert column(made, tmp_path, "dose")[0] == 320.0

    def test_a_stop_stops_even_where_it_repeats_the_rate(self, tmp_path):
        made = Clif().rate(0, 100).rate(2, 100, "stop").rate(3, 50).rate(4, 50, "stop")
        assert column(made, tmp_path, "dose") == [250.0, 0.0, 0.0, 0.0, 0.0]

    def test_nothing_flows_after_the_last_entry_and_that_is_counted(self, tmp_path):
        whole = found(Clif().rate(1, 100), tmp_path)
        assert sum(whole.table["dose"].to_pylist()) == 0
        assert whole.left_out.to_pylist() == [
            {"reason": "rate with nothing charted after it", "name": "crystalloid", "entries": 1}
        ]

    def test_a_rate_that_nobody_confirms_is_held_no_longer_than_the_settings_say(self, tmp_path):
        made = Clif().rate(0, 100).rate(20, 0, "stop")
        assert column(made, tmp_path / "a", "dose", settings(longest_hours=6.0)) == [400.0, 200.0, 0.0, 0.0, 0.0]
        assert sum(column(made, tmp_path / "b", "dose")) == 2000.0

    def test_an_infusion_from_before_time_zero_counts_from_there(self, tmp_path):
        assert column(Clif().rate(-3, 100).rate(1, 0, "stop"), tmp_path, "dose")[0] == 100.0

    def test_a_bolus_at_an_edge_belongs_to_the_step_that_begins_there(self, tmp_path):
        assert column(Clif().bolus(4, 500), tmp_path, "dose")[:2] == [0.0, 500.0]

    def test_what_was_not_given_does_not_count(self, tmp_path):
        assert column(Clif().bolus(1, 500, "not_given"), tmp_path, "dose")[0] == 0.0

    def test_what_was_given_without_a_word_about_it_counts(self, tmp_path):
        made = Clif().bolus(1, 500, None).rate(4, 100, None).rate(6, 0, "stop")
        assert column(made, tmp_path, "dose")[:2] == [500.0, 200.0]

    def test_a_bolus_at_time_zero_counts(self, tmp_path):
        assert column(Clif().bolus(0, 500).bolus(-0.01, 70, order="2"), tmp_path, "dose")[0] == 500.0

    @pytest.mark.parametrize("action", ["verify", "going"])
    def test_an_entry_that_only_confirms_an_infusion_goes_on_with_its_rate(self, tmp_path, action):
        made = Clif().rate(0, 100).rate(1, None, action).rate(2, None, action).rate(3, 0, "stop").rate(4, None, action)
        assert column(made, tmp_path / "a", "dose", settings(longest_hours=1.0)) == [300.0, 0.0, 0.0, 0.0, 0.0]
        assert found(made, tmp_path / "b").left_out.num_rows == 0

    def test_a_confirmation_tells_no_rate_where_none_is_known(self, tmp_path):
        made = Clif().rate(0, None, "verify").rate(1, 100).rate(2, 5, "dose_change", unit="mcg/min")
        made.rate(3, None, "verify").rate(3.5, None, "dose_change").rate(4, 0, "stop")
        assert column(made, tmp_path / "a", "dose")[0] == 100.0
        assert {row["reason"]: row["entries"] for row in found(made, tmp_path / "b").left_out.to_pylist()} == {
            "confirmation of a rate that is not known": 2,
            "fluid in a unit that is no volume": 1,
            "fluid without a dose": 1,
        }

    def test_albumin_under_both_of_its_categories_is_one_entry(self, tmp_path):
        made = Clif()
        for category in ("albumin", "albumin_infusion"):
            made.bolus(1, 250, category=category, order=None)
            made.rate(4, 50, category=category, order=None).rate(5, 0, "stop", category=category, order=None)
        assert column(made, tmp_path, "dose")[:2] == [250.0, 50.0]

    def test_boluses_alike_are_two_without_an_order_and_one_within_it(self, tmp_path):
        made = Clif().bolus(1, 500, order=None).bolus(1, 500, order=None).bolus(5, 300).bolus(5, 300)
        assert column(made, tmp_path, "dose")[:2] == [1000.0, 300.0]

    def test_two_fluids_without_names_run_beside_each_other(self, tmp_path):
        made = Clif().bolus(1, 500, order=None).bolus(1, 500, order=None, category="plasma_lyte")
        for begin, category in ((4, "sodium_chloride"), (5, "plasma_lyte")):
            made.rate(begin, 100, order=None, category=category)
            made.rate(begin + 2, 0, "stop", order=None, category=category)
        assert column(made, tmp_path, "dose")[:2] == [1000.0, 400.0]

    def test_a_modest_rate_may_be_held_for_long(self, tmp_path):
        whole = found(Clif().rate(-3, 450).rate(20, 0, "stop").rate(0, 9000, order="2").rate(7, 0, order="2"), tmp_path)
        mine = [row["dose"] for row in whole.table.to_pylist() if row["patient"] == "h0-1"]
        assert mine == [1800.0] * 5  # 36 litres in four hours are an error
        assert next((e.charted, e.dropped) for e in whole.dictionary if e.column == "dose") == (2, 1)

    @pytest.mark.parametrize(
        ("unit", "ml"), [("L/hour", 1000), ("l/hr", 1000), ("L/h", 1000), ("mL/hr", 1), ("mL/h", 1), ("mL/min", 60)]
    )
    def test_rates_become_ml_an_hour(self, tmp_path, unit, ml):
        made = Clif().rate(0, 0.5, unit=unit).rate(2, 0, "stop", unit=unit)
        assert column(made, tmp_path, "dose")[0] == ml

    def test_units_become_ml(self, tmp_path):
        made = Clif().bolus(1, 0.5, unit="L").rate(0, 2, unit="mL / min").rate(1, 0, "stop", unit="mL / min")
        assert column(made, tmp_path, "dose")[0] == 620.0

    def test_a_unit_that_is_no_volume_is_left_out_and_counted(self, tmp_path):
        whole = found(Clif().bolus(1, 5, unit="mg").rate(0, 2, unit="mcg/min").rate(1, 0, "stop"), tmp_path)
        assert sum(whole.table["dose"].to_pylist()) == 0
        assert whole.left_out.to_pylist() == [
            {"reason": "fluid in a unit that is no volume", "name": "crystalloid", "entries": 2}
        ]

    def test_fluids_that_carry_drugs_are_left_out_and_counted(self, tmp_path):
        whole = found(
            Clif().rate(0, 80, route=CARRIER).rate(2, 0, "stop", route=CARRIER).bolus(1, 9, route=CARRIER), tmp_path
        )
        assert sum(whole.table["dose"].to_pylist()) == 0
        assert whole.left_out.to_pylist() == [
            {"reason": "fluid that carries a drug", "name": "crystalloid", "entries": 2}
        ]

    def test_drugs_are_no_fluids(self, tmp_path):
        assert column(Clif().bolus(1, 100, category="cefepime"), tmp_path, "dose")[0] == 0.0

    def test_volume_is_conserved(self, tmp_path):
        made = Clif().rate(-1.5, 90).rate(2.7, 33.3, "dose_change").rate(7.11, 0, "stop").bolus(3.9, 123.4)
        assert sum(column(made, tmp_path, "dose")) == pytest.approx(2.7 * 90 + 4.41 * 33.3 + 123.4, abs=1e-6)


class TestCharts:
    @pytest.mark.quick
    def test_a_state_is_known_before_its_step(self, tmp_path):
        made = Clif().vital("sbp", -1, 100).vital("sbp", 0, 110).vital("sbp", 0.1, 120)
        assert column(made, tmp_path, "sbp")[:2] == [110.0, 120.0]

    def test_results_are_converted_by_the_unit_they_state(self, tmp_path):
        made = Clif().lab("hemoglobin", -1, 120, "g/L").lab("potassium", -1, 4.1, "mEq/L")
        assert column(made, tmp_path, "hemoglobin")[0] == 12.0
        assert column(made, tmp_path, "potassium")[0] == 4.1

    @pytest.mark.parametrize(
        ("category", "value", "unit", "expected"),
        [
            ("hemoglobin", 7.5, "mmol/L", 7.5 * 1.6114),  # 64.458 g/mol of the monomer, ×4 hemes: 16.114 g/L per mmol/L
            ("potassium", 4.1, "mmol/L", 4.1),
        ],
    )
    def test_usual_conversions(self, tmp_path, category, value, unit, expected):
        assert column(Clif().lab(category, -1, value, unit), tmp_path, category)[0] == pytest.approx(expected)

    @pytest.mark.parametrize(("unit", "mmol"), [("mg/dL", 4.995), ("mEq/L", 45.0), ("mmol/L", 45.0)])
    def test_lactate_becomes_mmol(self, tmp_path, unit, mmol):
        made = Clif().lab("lactate", -0.5, 45.0, unit)
        chosen = ClifSettings.model_validate(
            {"may_be_absent": SPARSE, "outcome": {"plausible": [0, 100], "range": [0, 100]}}
        )
        assert column(made, tmp_path, "reward", chosen)[0] == pytest.approx(1 - mmol / 100)

    def test_a_changed_unit_is_the_one_that_results_are_converted_to(self, tmp_path):
        made = Clif().lab("lactate", -0.5, 45.0, "mg/dL").lab("lactate", -0.5, 5.0, "mmol/L", stay=1)
        changed = {"unit": "mg/dL", "plausible": [1, 400], "range": [0, 90]}
        chosen = ClifSettings.model_validate({"may_be_absent": SPARSE, "outcome": changed})
        assert column(made, tmp_path / "a", "reward", chosen)[0] == 0.5
        assert column(made, tmp_path / "b", "reward", chosen, "h1-1")[0] == pytest.approx(1 - 5 / 0.111 / 90)

    def test_a_unit_of_ones_own_has_no_usual_conversions(self, tmp_path):
        made = Clif().lab("hemoglobin", -1, 120, "g/L").lab("hemoglobin", -1, 74, "percent", stay=1)
        hemoglobin = {"name": "hemoglobin", "unit": "percent", "plausible": [0, 200], "range": [0, 200]}
        given = {"covariates": [hemoglobin], "may_be_absent": ["lactate", "crystalloid", "colloid"]}
        whole = found(made, tmp_path / "a", ClifSettings.model_validate(given))
        assert whole.left_out.to_pylist() == [{"reason": "result in another unit", "name": "hemoglobin", "entries": 1}]
        given["clif"] = {"conversions": {"hemoglobin": {"g/L": 0.625}}}
        assert column(made, tmp_path / "b", "hemoglobin", ClifSettings.model_validate(given))[0] == 75.0

    def test_a_result_in_another_unit_is_left_out_and_counted(self, tmp_path):
        whole = found(Clif().lab("hemoglobin", -1, 12, "furlongs"), tmp_path)
        assert whole.table["hemoglobin"].null_count == whole.table.num_rows
        assert whole.left_out.to_pylist() == [{"reason": "result in another unit", "name": "hemoglobin", "entries": 1}]

    def test_a_covariate_of_ones_own_has_its_own_unit_and_those_that_the_settings_convert(self, tmp_path):
        creatinine = {"name": "creatinine", "meaning": "creatinine", "unit": "mg/dL", "plausible": [0.1, 20]}
        given = {"covariates": [creatinine | {"range": [0.3, 8]}], "may_be_absent": ["crystalloid", "colloid"]}
        given["clif"] = {"labs": {"creatinine": "creatinine"}}
        given["clif"] |= {"conversions": {"creatinine": {"µmol/L": 0.0113}}}
        made = Clif().lab("creatinine", -2, 1.5, "mg/dl").lab("creatinine", -1, 100, "µmol/L", stay=1)
        chosen = ClifSettings.model_validate(given)
        assert column(made, tmp_path / "a", "creatinine", chosen)[0] == 1.5
        assert column(made, tmp_path / "b", "creatinine", chosen, "h1-1")[0] == pytest.approx(1.13)

    def test_a_temperature_in_fahrenheit_is_not_plausible_and_counted(self, tmp_path):
        made = Clif().vital("temp_c", -2, 37.0).vital("temp_c", -1, 98.6)
        whole = found(made, tmp_path)
        assert next(row["temperature"] for row in whole.table.to_pylist() if row["patient"] == "h0-1") == 37.0
        assert next((e.charted, e.dropped) for e in whole.dictionary if e.column == "temperature") == (2, 1)

    def test_categories_are_read_as_sites_write_them(self, tmp_path):
        assert column(Clif().vital("SBP ", -1, 100), tmp_path, "sbp")[0] == 100.0


class TestStays:
    def test_a_transfer_goes_on_with_the_stay_and_a_trip_to_the_ward_ends_it(self, tmp_path):
        made = Clif()
        made.rows["adt"][0] = ("h0", "north", at(0), at(6), "unit-0", "icu")
        made.locate(6.5, 10, "unit-1").locate(10, 12, "ward-1", "ward").locate(12, 40, "unit-1")
        whole = found(made, tmp_path / "a", settings(first_stay=False)).table.to_pylist()
        mine = {row["patient"]: row["site"] for row in whole if row["patient"].startswith("h0")}
        assert mine == {"h0-1": "unit-0", "h0-2": "unit-1"}  # lactate of 13 hours ago is known to the second
        assert column(made, tmp_path / "b", "end")[-1] == "discharge"
        assert len(column(made, tmp_path / "c", "end")) == 3

    def test_a_longer_gap_begins_another_stay(self, tmp_path):
        made = Clif()
        made.rows["adt"][0] = ("h0", "north", at(0), at(6), "unit-0", "icu")
        made.locate(7.5, 30, "unit-1")
        assert len(column(made, tmp_path / "a", "step")) == 2
        assert len(column(made, tmp_path / "b", "step", settings(gap_hours=2.0))) == 5

    def test_a_gap_as_long_as_the_settings_let_it_be_begins_no_other(self, tmp_path):
        assert len(column(Clif().leave(6).locate(7, 30, "unit-1"), tmp_path / "a", "step")) == 5
        assert len(column(Clif().leave(6).locate(7.01, 30, "unit-1"), tmp_path / "b", "step")) == 2

    def test_a_unit_within_another_ends_nothing(self, tmp_path):
        made = Clif().leave(10).locate(2, 4, "unit-1").locate(10.5, 40, "unit-0")
        assert len(column(made, tmp_path, "step")) == 5

    def test_a_trip_to_the_theatre_ends_no_stay(self, tmp_path):
        made = Clif().leave(6).locate(6, 9, "theatre", "procedural").locate(9, 40, "unit-1")
        assert column(made, tmp_path / "a", "end") == [None] * 5
        assert column(made, tmp_path / "b", "end", settings(trips=[])) == [None, "discharge"]

    def test_a_trip_begins_no_stay_and_ends_none(self, tmp_path):
        made = Clif().leave(6).locate(-3, 0, "theatre", "Procedural").locate(6, 9, "x-ray", "radiology")
        made.locate(-40, -30, "theatre", "procedural").vital("sbp", 0, 100)
        assert column(made, tmp_path / "a", "sbp") == [100.0, 100.0]  # step 0 begins with the unit
        assert column(made, tmp_path / "b", "site")[0] == "unit-0"
        assert column(made.locate(12, 40, "unit-1"), tmp_path / "c", "end") == [None, "discharge"]

    def test_only_the_first_stay_of_a_person_counts(self, tmp_path):
        made = Clif().admit(2, "unit-0", begin=500, end=600, person=0).lab("lactate", 499, 2.0, stay=2)
        flow = found(made, tmp_path / "a").flow
        assert [(one.rule, one.removed) for one in flow.removals][3] == ("the first stay of each person", 1)
        assert found(made, tmp_path / "b", settings(first_stay=False)).flow.left == 3

    def test_children_and_other_diagnoses_leave(self, tmp_path):
        made = Clif(4).admit(4, "unit-0", age=17).diagnose("R65.21").diagnose("R6520", stay=1).diagnose("I10", stay=2)
        removed = {r.rule: r.removed for r in found(made, tmp_path, settings(diagnoses=["r65.2"])).flow.removals}
        assert removed["18 years or older"] == 1
        assert removed["with a diagnosis of the settings"] == 2

    def test_sites_with_few_stays_leave(self, tmp_path):
        made = Clif(5).admit(5, "tiny").lab("lactate", -1, 2.0, stay=5)
        table = found(made, tmp_path, settings(smallest_site=2)).table
        assert set(table["site"].to_pylist()) == {"unit-0", "unit-1"}

    def test_sites_that_later_rules_make_small_leave_too(self, tmp_path):
        made = Clif(4).admit(4, "tiny").admit(5, "tiny").lab("lactate", -1, 2.0, stay=5)  # 4 has no lactate
        flow = found(made, tmp_path, settings(smallest_site=2)).flow
        assert (flow.removals[-1].rule, flow.removals[-1].removed) == ("at a site with 2 of them or more", 1)
        assert flow.left == 4

    def test_flow_is_the_units_share_of_all_time(self, tmp_path):
        made = Clif().admit(2, "unit-0", end=200, age=10)  # a child's time is the unit's time too
        assert column(made, tmp_path, "flow")[0] == 300 / 400

    def test_a_unit_that_is_no_icu_is_told(self, tmp_path):
        made = Clif().admit(2, "step-1").lab("lactate", -1, 2.0, stay=2)
        made.rows["adt"][-1] = (*made.rows["adt"][-1][:-1], "stepdown")
        covariate = {"name": "no_icu", "meaning": "not an ICU"}
        chosen = ClifSettings.model_validate(
            {"site_covariates": [covariate], "may_be_absent": SPARSE, "clif": {"locations": ["icu", "stepdown"]}}
        )
        assert column(made, tmp_path / "a", "no_icu", chosen, "h2-1")[0] == 1
        assert column(made, tmp_path / "b", "no_icu", chosen, "h0-1")[0] == 0

    def test_one_site_may_be_named(self, tmp_path):
        whole = found(Clif(), tmp_path, site="north")
        assert set(whole.table["site"].to_pylist()) == {"north"}
        assert "flow" not in whole.table.column_names


class TestDeaths:
    @pytest.mark.parametrize("category", ["Expired", "Hospice", "Deceased", "Home", None])
    def test_a_time_of_death_counts_whatever_the_discharge_was_called(self, tmp_path, category):
        assert column(Clif().die(9, category=category), tmp_path / "a", "end") == [None, None, "death"]
        assert column(Clif().leave(9).die(12, category=category), tmp_path / "b", "end") == [None, None, "death"]

    def test_a_death_after_the_last_step_is_none_of_the_stays(self, tmp_path):
        assert column(Clif().die(30), tmp_path / "a", "end") == [None] * 5
        assert column(Clif().leave(9).die(30), tmp_path / "b", "end") == [None, None, "discharge"]

    def test_who_expired_without_a_time_died_when_the_hospitalization_ended(self, tmp_path):
        made = Clif().leave(9).die(None).hospitalize(-2, 14)
        assert column(made, tmp_path / "a", "end") == [None, None, "death"]
        made.hospitalize(-2, -6)  # a date without a time: the stay tells more
        assert column(made, tmp_path / "d", "end") == [None, None, "death"]
        made.hospitalize(-2, None).locate(9, 13, "ward-1", "ward")
        assert column(made, tmp_path / "b", "end") == [None, None, "death"]
        assert column(made.die(None, category="Home"), tmp_path / "c", "end") == [None, None, "discharge"]

    def test_the_reward_of_a_last_step_is_that_of_a_death(self, tmp_path):
        assert column(Clif().leave(9).die(None).hospitalize(-2, 9), tmp_path, "reward")[-1] == 0.0

    def test_what_the_tables_contradict_is_counted(self, tmp_path):
        made = Clif(6).die(None).die(None, stay=1).die(9, stay=2, category="Home").die(200, stay=3, category="Home")
        notes = found(made.die(-6, stay=4), tmp_path).notes
        told = [note for note in notes if note.startswith("Stays with")]
        assert [(note.split(";")[0], note.split(": ")[-1]) for note in told] == [
            ("Stays with discharge_category expired and no death_dttm", "2."),
            (
                "Stays with a death_dttm before the hospitalization ended and another discharge_category than expired",
                "1.",
            ),
            (
                "Stays with a death_dttm at midnight of the day on which step 0 begins, which is a date without a time",
                "1.",
            ),
        ]

    def test_a_date_of_death_is_the_end_of_that_day_or_of_the_stay(self, tmp_path):
        """Step 0 begins at 06:00: midnight was six hours before, and the day has 18 hours left."""
        assert column(Clif().leave(9).die(-6), tmp_path / "a", "end") == [None, None, "death"]
        assert column(Clif().leave(9).die(-6), tmp_path / "a", "reward")[-1] == 0.0  # within the stay
        rewards = column(Clif().die(-6), tmp_path / "b", "reward")
        assert rewards[-1] == 0.0 < rewards[-2]
        assert found(Clif(3).die(-7), tmp_path / "c").flow.left == 2  # a time, before step 0

    def test_midnight_is_that_of_the_hospital(self, tmp_path):
        made = Clif(3).leave(9).die(0)  # 06:00 in UTC is midnight in Chicago
        assert column(made, tmp_path / "a", "end", time_zone="America/Chicago") == [None, None, "death"]
        assert found(made, tmp_path / "b").flow.left == 2


def onsets(folder, *lines: str):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "onsets.csv").write_text("\n".join(["hospitalization_id,onset", *lines, ""]))
    return folder / "onsets.csv"


class TestTimeZero:
    def test_admission_to_the_hospital(self, tmp_path):
        made = Clif().hospitalize(-8, 100).vital("sbp", -9, 90).vital("sbp", -5, 100).bolus(-7, 300)
        chosen = settings(admission="hospital")
        whole = found(made.lab("lactate", -9, 2.0).lab("lactate", -9, 2.0, stay=1), tmp_path / "a", chosen)
        mine = [row for row in whole.table.to_pylist() if row["patient"] == "h0-1"]
        assert [row["sbp"] for row in mine][:2] == [90.0, 100.0]
        assert [row["dose"] for row in mine] == [300.0, 0.0, 0.0, 0.0, 0.0]
        assert mine[0]["flow"] == 0.5  # the unit's time, not the hospital's
        step = next(entry for entry in whole.dictionary if entry.column == "step")
        assert step.meaning.endswith("from admission to the hospital")

    def test_admission_to_the_hospital_begins_one_stay_and_has_to_be_known(self, tmp_path):
        made = Clif(4).leave(6).locate(30, 60, "unit-1").hospitalize(None, 100, stay=1)
        for stay in range(4):
            made.lab("lactate", -3, 2.0, stay=stay)
        chosen = settings(admission="hospital", first_stay=False)
        flow = found(made, tmp_path, chosen).flow
        assert {one.rule: one.removed for one in flow.removals}[
            "the first in a hospitalization with a time of admission"
        ] == 2

    def test_a_delay(self, tmp_path):
        made = Clif(4).vital("sbp", 2.5, 100).leave(2, stay=1)
        whole = found(made, tmp_path, settings(delay_hours=3.0))
        assert next(row["sbp"] for row in whole.table.to_pylist() if row["patient"] == "h0-1") == 100.0
        assert {one.rule: one.removed for one in whole.flow.removals}["there when step 0 begins"] == 1
        assert any("from 3 hours after admission to the unit" in entry.meaning for entry in whole.dictionary)

    def test_a_list_of_onsets_says_who_and_when(self, tmp_path):
        made = Clif(4).vital("sbp", 2.5, 100).vital("sbp", -0.5, 90, stay=1)
        listed = onsets(tmp_path, "h0,2024-02-10 03:00:00", "h1,2024-02-10T01:00:00+00:00", "h9,2024-02-10 01:00")
        whole = found(made, tmp_path / "a", onsets=listed, time_zone="America/Chicago")  # 03:00 is three hours in
        first = {row["patient"]: row["sbp"] for row in whole.table.to_pylist() if row["step"] == 0}
        assert first == {"h0-1": 100.0, "h1-1": 90.0}  # an onset before the unit: step 0 begins with the unit
        assert "Lines of the list of onsets whose hospitalization_id stands nowhere in adt: 1." in whole.notes
        assert whole.settings.time_zero == "onset"

    def test_an_onset_begins_the_first_stay_that_is_not_over(self, tmp_path):
        made = Clif(3).leave(6).locate(30, 60, "unit-0").lab("lactate", 29, 2.0).lab("lactate", 3, 2.0, stay=1)
        listed = onsets(tmp_path, *(f"h{k},2024-02-10 {hour}:00:00Z" for k, hour in ((0, 13), (1, 10))))
        table = found(made, tmp_path / "a", onsets=listed).table.to_pylist()
        assert {row["patient"] for row in table} == {"h0-2", "h1-1"}

    @pytest.mark.parametrize(
        ("lines", "says"),
        [
            (["h0,yesterday"], "times such as"),
            (["h0"], "times such as"),
            (["h0,0001-01-01 00:00:00+14:00"], "times such as"),
            ([], "in every line"),
            (["h0,2024-02-10 13:00", "h0,2024-02-10 14:00"], "in two lines"),
        ],
    )
    def test_lists_that_cannot_be(self, tmp_path, lines, says):
        with pytest.raises(UnreadableFile, match=says) as told:
            found(Clif(), tmp_path / "a", onsets=onsets(tmp_path, *lines))
        assert "h0" not in str(told.value)
        assert "yesterday" not in str(told.value)

    def test_a_list_that_is_needed_or_not_there(self, tmp_path):
        with pytest.raises(InvalidSettings, match="--onsets FILE"):
            found(Clif(), tmp_path, ClifSettings(time_zero="onset"))
        with pytest.raises(UnreadableFile, match="could not be read"):
            found(Clif(), tmp_path, onsets=tmp_path / "gone.csv")
        with pytest.raises(EmptyCohort, match="listed onset"):
            found(Clif(), tmp_path, onsets=onsets(tmp_path, "h7,2024-02-10 13:00"))


class TestFiles:
    def test_local_times_without_a_zone_are_those_with_one(self, tmp_path):
        """Through the hour that is skipped in spring: two hours on the wall are one."""
        made = Clif()
        shift = timedelta(days=29, hours=1)  # time zero at 01:00 in Chicago on 10 March 2024
        zone = ZoneInfo("America/Chicago")
        made.rate(0.5, 60).rate(1.5, 0, "stop").vital("sbp", 1.2, 99)
        aware = {name: _shifted(table, shift, None) for name, table in made.tables().items()}
        naive = {name: _shifted(table, shift, zone) for name, table in made.tables().items()}
        one, two = (
            extract_clif(made.write(tmp_path / name, **tables), settings(), time_zone=zone.key).table
            for name, tables in (("aware", aware), ("naive", naive))
        )
        assert one.equals(two)
        assert one["dose"].to_pylist()[0] == 60.0

    def test_csv_gives_the_same_table(self, tmp_path):
        made = Clif().rate(0, 100).rate(2, 0, "stop").vital("sbp", -1, 100.5)
        folder = tmp_path / "csv"
        folder.mkdir()
        for name, table in made.tables().items():
            pyarrow.csv.write_csv(table, folder / f"clif_{name}.csv")
        whole = extract_clif(folder, settings(), file_type="csv").table
        assert whole.equals(found(made, tmp_path / "parquet").table)

    def test_ids_in_csv_keep_their_zeros_and_na_is_nothing(self, tmp_path):
        stay = "2024-02-01 00:00:00Z,2024-02-09 00:00:00Z"
        lines = {
            "patient": ["1,NA", "2,NA"],
            "hospitalization": [f"007,1,{stay},50,Home", f"7,2,{stay},50,Home"],
            "adt": [f"007,x,{stay},unit-0,icu", f"7,x,{stay},unit-1,icu"],
            "labs": [f"{key},2024-01-31 23:00:00Z,lactate,2.0,NA" for key in ("007", "7")],
        }
        for name, columns in COLUMNS.items():
            (tmp_path / f"clif_{name}.csv").write_text("\n".join([",".join(columns), *lines.get(name, []), ""]))
        table = extract_clif(tmp_path, settings(), file_type="csv").table
        assert set(table["patient"].to_pylist()) == {"007-1", "7-1"}

    def test_a_table_in_several_files_is_read_whole(self, tmp_path):
        made = Clif().vital("sbp", -1, 100).vital("sbp", -1, 90, stay=1)
        folder = made.write(tmp_path)
        parts = folder / "clif_vitals"
        parts.mkdir()
        table = made.tables()["vitals"]
        for n in range(2):
            pyarrow.parquet.write_table(table.slice(n, 1), parts / f"part-{n}.parquet")
        (folder / "clif_vitals.parquet").unlink()
        assert extract_clif(folder, settings()).table["sbp"].null_count == 0

    def test_a_table_that_is_not_there_is_named(self, tmp_path):
        folder = Clif().write(tmp_path, labs=None)
        with pytest.raises(UnsuitableTables, match=r"holds no clif_labs\.parquet.*folder of CLIF tables"):
            extract_clif(folder, settings())
        with pytest.raises(UnsuitableTables, match="There is no folder"):
            extract_clif(tmp_path / "nowhere", settings())

    def test_a_column_that_is_not_there_is_named(self, tmp_path):
        tables = Clif().tables()
        folder = Clif().write(tmp_path, vitals=tables["vitals"].drop_columns(["vital_value"]))
        with pytest.raises(UnsuitableTables, match=r"clif_vitals\.parquet has no column vital_value"):
            extract_clif(folder, settings())

    def test_columns_that_clif_leaves_to_sites_may_be_missing(self, tmp_path):
        tables = Clif().rate(0, 100).rate(2, 0, "stop").tables()
        lean = {
            "labs": tables["labs"].drop_columns(["reference_unit"]),
            "medication_admin_continuous": tables["medication_admin_continuous"].drop_columns(
                ["med_order_id", "med_name", "med_route_name"]
            ),
        }
        rows = extract_clif(Clif().write(tmp_path, **lean), settings()).table.to_pylist()
        assert rows[0]["dose"] == 200.0

    @pytest.mark.parametrize(
        ("options", "says"),
        [({"file_type": "fst"}, "parquet and csv can"), ({"time_zone": "Chicago'; DROP"}, "no time zone")],
    )
    def test_options_that_cannot_be_are_refused(self, tmp_path, options, says):
        with pytest.raises(InvalidSettings, match=says):
            extract_clif(Clif().write(tmp_path), settings(), **options)

    def test_a_folder_with_a_quote_in_its_name_is_read(self, tmp_path):
        assert found(Clif(), tmp_path / "St. Mary's").flow.left == 2


class TestRefusals:
    def test_an_empty_cohort(self, tmp_path):
        with pytest.raises(EmptyCohort, match=r"No stay is left.*years or older"):
            found(Clif(), tmp_path, settings(youngest=90))

    def test_a_cohort_of_one_site(self, tmp_path):
        with pytest.raises(UnsuitableTables, match="one site"):
            found(Clif(1), tmp_path)

    @pytest.mark.quick
    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({"clif": {"fluid": {}}}, 'did you mean "fluids"'),
            ({"covariates": [MAP]}, "names no category for 'map'"),
            ({"clif": {"locations": ["icu", "procedural"]}}, "under locations and under trips"),
            ({"clif": {"admission": "ward"}}, "admission"),
            ({"clif": {"delay_hours": -1}}, "delay_hours"),
            ({"site_covariates": [{"name": "beds", "meaning": "beds"}]}, "no site covariate 'beds'"),
        ],
    )
    def test_settings_that_cannot_be(self, given, says):
        with pytest.raises(InvalidSettings, match=says):
            ClifSettings.model_validate(given)

    def test_the_settings_that_are_printed_load(self, tmp_path):
        (tmp_path / "settings.toml").write_text(ClifSettings().as_toml())
        assert ClifSettings.load(tmp_path / "settings.toml") == ClifSettings()


class TestNoValues:
    """Whole columns are never lost in silence."""

    def refused(self, made: Clif, folder, **changed) -> str:
        with pytest.raises(UnsuitableTables, match=r"single usable value|is not known for") as told:
            extract_clif(made.write(folder, **changed), ClifSettings())
        return str(told.value)

    def test_ids_of_another_type_in_one_table(self, tmp_path):
        made = Clif().full()
        vitals = made.tables()["vitals"]
        ids = pa.array([f"{one}.0" for one in vitals["hospitalization_id"].to_pylist()])
        said = self.refused(made, tmp_path, vitals=vitals.set_column(0, "hospitalization_id", ids))
        assert "cohort: weight, temperature, sbp." in said
        assert "rows of vitals with vital_category sbp: 1, none with a hospitalization_id of the cohort" in said

    def test_results_and_fluids_in_unknown_units(self, tmp_path):
        made = Clif().full()
        made.rows["labs"] = [(*row[:-1], "furlongs") for row in made.rows["labs"]]
        drugs = made.rows["medication_admin_intermittent"]
        made.rows["medication_admin_intermittent"] = [(*row[:-2], "vials", row[-1]) for row in drugs]
        said = self.refused(made, tmp_path)
        assert "lactate: no value within its look-back; result in another unit: 2" in said
        assert "crystalloid: no dose within the steps; fluid in a unit that is no volume: 1" in said

    def test_categories_that_no_row_has(self, tmp_path):
        made = Clif().full()
        made.rows["vitals"] = [row for row in made.rows["vitals"] if row[2] != "sbp"]
        assert "no row of vitals with vital_category sbp" in self.refused(made, tmp_path)
        assert extract_clif(tmp_path, ClifSettings(may_be_absent=("sbp",))).flow.left == 2


class TestFlow:
    def test_no_stay_vanishes_before_the_first_rule(self, tmp_path):
        made = Clif(6)
        made.rows["adt"][0] = ("h0", "north", at(0), None, "unit-0", "icu")  # still there
        made.rows["adt"][1] = ("h1", "north", at(5), at(5), "unit-1", "icu")
        made.rows["adt"][2] = ("h2", "north", None, at(9), "unit-0", "icu")
        made.rows["hospitalization"] = [row for row in made.rows["hospitalization"] if row[0] != "h3"]
        flow = found(made, tmp_path).flow
        assert (flow.found, flow.left) == (6, 2)
        removed = {one.rule: one.removed for one in flow.removals}
        assert removed["with a beginning and a later end in adt"] == 3
        assert removed["with a row in hospitalization"] == 1

    def test_a_transfer_to_a_unit_without_an_end_leaves_the_end_unknown(self, tmp_path):
        made = Clif(3)
        made.rows["adt"][0] = ("h0", "north", at(0), at(6), "unit-0", "icu")
        made.rows["adt"].append(("h0", "north", at(6), None, "unit-1", "icu"))
        assert found(made, tmp_path).flow.left == 2

    def test_a_location_of_no_length_changes_nothing(self, tmp_path):
        made = Clif().locate(-0.5, -0.5, "unit-9").vital("sbp", 0, 100)
        assert column(made, tmp_path, "sbp")[0] == 100.0  # time zero is where it was
        assert found(made, tmp_path / "b").table["site"].to_pylist()[0] == "unit-0"


class TestLeftOut:
    def test_entries_count_within_the_time_of_a_stay(self, tmp_path):
        made = Clif().bolus(1, 9, route=CARRIER).bolus(60, 9, route=CARRIER).bolus(-60, 9, route=CARRIER)
        made.lab("hemoglobin", -1, 12, "furlongs").lab("hemoglobin", 70, 12, "furlongs")
        made.rate(-1, 50, order="5").rate(-90, 50, order="6").rate(70, 50, order="7")
        assert {row["reason"]: row["entries"] for row in found(made, tmp_path).left_out.to_pylist()} == {
            "fluid that carries a drug": 1,
            "result in another unit": 1,
            "rate with nothing charted after it": 1,
        }


class TestOptions:
    def test_the_settings_beside_a_table_make_it_again(self, tmp_path):
        made = Clif().rate(0, 100).rate(2, 0, "stop")
        first = found(made, tmp_path / "t", site="north", time_zone="America/Chicago")
        (tmp_path / "s.toml").write_text(first.settings.as_toml())
        loaded = ClifSettings.load(tmp_path / "s.toml")
        assert loaded.options.model_dump(exclude_none=True) == {
            "source": "clif", "version": __version__, "site": "north", "one_site": False, "file_type": "parquet",
            "time_zone": "America/Chicago",
        }  # fmt: skip
        again = extract_clif(tmp_path / "t", loaded)
        assert again.table.equals(first.table)
        assert again.settings == first.settings


def _shifted(table, shift, zone):
    """The table later by `shift`; in local time without a zone where one is given."""
    for name in table.column_names:
        if name.endswith("_dttm"):
            times = [None if t is None else t + shift for t in table[name].to_pylist()]
            if zone:
                times = [None if t is None else t.astimezone(zone).replace(tzinfo=None) for t in times]
            kind = pa.timestamp("us") if zone else pa.timestamp("us", "UTC")
            table = table.set_column(table.column_names.index(name), name, pa.array(times, kind))
    return table
