"""MEDS shards: a planted truth comes back, and each rule of the map has a case of its own."""

from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fdtr.cohort.meds import MedsSettings, example_settings, extract_meds
from fdtr.errors import EmptyCohort, InvalidSettings, UnsuitableTables
from meds_shards import MAP, Shards, planted, settings

pytestmark = pytest.mark.slow  # a database for every case


def found(shards, folder, site=None, **meds):
    return extract_meds(shards.write(folder), MedsSettings.model_validate(settings(**meds)), site=site)


def column(shards, folder, name, patient="0-1", **meds):
    rows = found(shards, folder, **meds).table.to_pylist()
    return [row[name] for row in rows if row["patient"] == patient]


def two():
    return Shards().stay(0).stay(1, "south")


@pytest.mark.quick
def test_a_planted_truth_comes_back(tmp_path):
    shards, truth = planted(60)
    table = found(shards, tmp_path).table.to_pylist()
    assert len(table) == 300
    for row in table:
        expected = truth[row["patient"]][row["step"]]
        assert row["sbp"] == expected["sbp"]
        assert row["temperature"] == pytest.approx(expected["temperature"], abs=1e-5)  # °F in float32
        assert row["dose"] == pytest.approx(expected["dose"], abs=1e-6)
        assert row["site"] == f"site-{int(row['person']) % 3}"


def test_implausible_values_are_counted(tmp_path):
    shards, _ = planted(4)
    entries = {e.column: e for e in found(shards, tmp_path).dictionary}
    assert (entries["sbp"].charted, entries["sbp"].dropped) == (40, 20)


def test_a_rate_ends_with_its_own_line_of_the_map(tmp_path):
    shards = two().add(0, 0, "SALINE//rate", 100).add(0, 1, "RINGER//rate//x", 0.06).add(0, 2, "SALINE//stop")
    shards.add(0, 3, "RINGER//rate//x", 0)
    assert column(shards, tmp_path, "dose")[0] == pytest.approx(200 + 120, abs=1e-4)  # 0.06 in float32


def test_a_rate_with_nothing_after_it_and_an_event_without_a_number_are_counted(tmp_path):
    shards = two().add(0, 1, "SALINE//rate", 100).add(0, 1, "BP//systolic")
    whole = found(shards, tmp_path)
    assert sum(whole.table["dose"].to_pylist()) == 0
    assert whole.left_out.to_pylist() == [
        {"reason": "event without a number", "name": "sbp", "entries": 1},
        {"reason": "rate with nothing charted after it", "name": "crystalloid", "entries": 1},
    ]


def test_a_code_that_two_lines_match_is_given_once(tmp_path):
    doses = [{"name": "crystalloid", "codes": ["ALBUMIN//*"]}, *MAP["doses"]]
    assert column(two().add(0, 1, "ALBUMIN//ml", 70), tmp_path, "dose", doses=doses)[0] == 70


def test_a_code_that_stops_a_rate_sets_none_though_a_prefix_matches_it(tmp_path):
    infusion = {"name": "crystalloid", "codes": ["INF//saline*"], "kind": "rate", "stop": ["INF//saline//END"]}
    shards = two().add(0, 0, "INF//saline", 100).add(0, 1, "INF//saline//END", 100)
    shards.add(0, 12, "INF//saline", 50).add(0, 13, "INF//saline//END", 50)
    assert column(shards, tmp_path, "dose", doses=[infusion]) == [100, 0, 0, 50, 0]


def test_a_rate_may_stop_the_infusion_of_another_line(tmp_path):
    doses = [MAP["doses"][0], MAP["doses"][1] | {"stop": ["SALINE//rate"]}, MAP["doses"][2]]
    shards = two().add(0, 0, "RINGER//rate//L", 0.25).add(0, 1, "SALINE//rate", 100).add(0, 3, "SALINE//stop")
    assert column(shards, tmp_path, "dose", doses=doses)[0] == 450


def test_of_several_lines_that_match_a_code_the_first_counts(tmp_path):
    charted = [{"name": "sbp", "codes": ["BP//*"], "factor": 2.0}, *MAP["charted"]]
    assert column(two().add(0, -1, "BP//systolic", 50), tmp_path, "sbp", charted=charted)[0] == 100


def test_a_code_without_an_asterisk_means_itself_alone(tmp_path):
    shards = two().add(0, -2, "BP//systolic", 100).add(0, -1, "BP//systolic//manual", 70)
    assert column(shards, tmp_path, "sbp")[0] == 100


def test_a_rate_is_held_no_longer_than_the_map_says(tmp_path):
    shards = two().add(0, 0, "SALINE//rate", 100).add(0, 20, "SALINE//stop")
    assert column(shards, tmp_path / "a", "dose", longest_hours=6.0) == [400, 200, 0, 0, 0]
    assert sum(column(shards, tmp_path / "b", "dose")) == 2000


def test_a_stop_comes_before_a_rate_at_the_same_instant(tmp_path):
    shards = two().add(0, 0, "SALINE//rate", 100).add(0, 2, "SALINE//rate", 60).add(0, 2, "SALINE//stop")
    assert column(shards.add(0, 4, "SALINE//stop"), tmp_path, "dose")[0] == 320.0


def test_a_stay_whose_end_is_missing_lasts_until_the_next(tmp_path):
    shards = two().add(0, 6, "ICU_IN//south")
    shards.events = [e for e in shards.events if e[0] != 0 or e[2] != "ICU_OUT"]
    assert len(column(shards.add(0, 50, "ICU_OUT"), tmp_path, "step")) == 2


def test_an_event_without_a_time_begins_no_stay(tmp_path):
    assert found(two().add(0, None, "ICU_IN//north"), tmp_path).flow.found == 2


def test_only_the_first_stay_counts(tmp_path):
    shards = two().add(0, 500, "ICU_IN//south").add(0, 499, "LAB//lactate//x", 2.0)
    assert found(shards, tmp_path / "a").flow.left == 2
    assert found(shards, tmp_path / "b", first_stay=False).flow.left == 3
    assert len(column(shards, tmp_path / "c", "step", "0-2", first_stay=False)) == 5  # not over yet


def test_deaths_and_discharges_end_stays(tmp_path):
    shards = two().add(0, 9, "MEDS_DEATH").stay(2, end=6)
    assert column(shards, tmp_path / "a", "end") == [None, None, "death"]
    assert column(shards, tmp_path / "b", "end", "2-1") == [None, "discharge"]


def test_who_left_at_the_instant_of_a_beginning_left_an_earlier_stay(tmp_path):
    assert len(column(two().add(0, 0, "ICU_OUT"), tmp_path, "step")) == 5


def test_of_several_deaths_the_first_counts(tmp_path):
    shards = two().add(0, 30, "MEDS_DEATH").add(0, 5, "MEDS_DEATH")
    assert column(shards, tmp_path, "end") == [None, "death"]


def test_a_date_of_death_is_the_end_of_that_day_or_of_the_stay(tmp_path):
    """Stays begin at 08:00: midnight was eight hours before, and the day has 16 hours left."""
    shards = two().stay(2, begin=8, end=17).add(2, 0, "MEDS_DEATH").stay(4, begin=8).add(4, 0, "MEDS_DEATH")
    whole = found(shards.stay(6, begin=8).add(6, 1, "MEDS_DEATH"), tmp_path)
    ends = {key: [row["end"] for row in whole.table.to_pylist() if row["patient"] == key] for key in ("2-1", "4-1")}
    assert ends == {"2-1": [None, None, "death"], "4-1": [None, None, None, "death"]}
    assert whole.flow.left == 4  # 01:00 is a time, and before the stay
    assert [note.split(": ")[-1] for note in whole.notes if "midnight" in note] == ["2."]


def test_flow_is_the_sites_share_of_all_time(tmp_path):
    shards = two().stay(2, end=300)
    given = settings() | {"site_covariates": [{"name": "flow"}]}
    table = extract_meds(shards.write(tmp_path), MedsSettings.model_validate(given)).table.to_pylist()
    assert {row["site"]: row["flow"] for row in table} == {"north": 400 / 500, "south": 100 / 500}


def test_age_counts_birthdays(tmp_path):
    """Stays begin on 1 May 2130: who was born on 2 May 2112 is 17 on that day."""
    shards = two().stay(2).stay(4)
    shards.events = [e for e in shards.events if e[2] != "MEDS_BIRTH" or e[0] < 2]
    shards.events += [(2, datetime(2112, 5, 2), "MEDS_BIRTH", None), (4, datetime(2112, 5, 1), "MEDS_BIRTH", None)]
    table = found(shards, tmp_path).table
    assert set(table["patient"].to_pylist()) == {"0-1", "1-1", "4-1"}


def test_sites_that_later_rules_make_small_leave_too(tmp_path):
    shards = two().stay(2).stay(3, "south").stay(4, "tiny").stay(5, "tiny")
    shards.events = [e for e in shards.events if e[0] != 4 or "lactate" not in e[2]]
    whole = found(shards, tmp_path, smallest_site=2)
    assert set(whole.table["site"].to_pylist()) == {"north", "south"}
    assert whole.flow.removals[-1].removed == 1


def test_children_leave_and_so_do_those_of_unknown_age(tmp_path):
    shards = two().stay(2).stay(3)
    shards.events = [e for e in shards.events if not (e[0] == 2 and e[2] == "MEDS_BIRTH")]
    shards.events.append((3, shards.events[-1][1].replace(year=2120), "CHILD", None))
    whole = found(shards, tmp_path, birth=["MEDS_BIRTH", "CHILD"])
    assert {r.rule: r.removed for r in whole.flow.removals}["18 years or older"] == 1
    assert found(shards, tmp_path / "any", youngest=0).flow.left == 4


def test_a_column_of_the_shards_may_name_the_site(tmp_path):
    folder = two().write(tmp_path)
    for n, path in enumerate(sorted(folder.glob("data/*/*.parquet"))):
        table = pq.read_table(path)
        pq.write_table(table.append_column("hospital", pa.array([f"hospital {n}"] * table.num_rows)), path)
    chosen = MedsSettings.model_validate(settings(site_part=None, site_column="hospital"))
    table = extract_meds(folder, chosen).table
    assert set(table["site"].to_pylist()) == {"hospital 0", "hospital 1"}


def test_refusals_say_what_to_do(tmp_path):
    with pytest.raises(UnsuitableTables, match="subfolder data"):
        extract_meds(tmp_path, MedsSettings.model_validate(settings()))
    with pytest.raises(InvalidSettings, match=r"site_part or site_column.*--site"):
        found(two(), tmp_path / "a", site_part=None)
    with pytest.raises(UnsuitableTables, match="no column ward"):
        found(two(), tmp_path / "b", site_part=None, site_column="ward")
    with pytest.raises(UnsuitableTables, match="one site"):
        found(Shards().stay(0).stay(1), tmp_path / "c")
    with pytest.raises(EmptyCohort, match="No stay is left of 0"):
        found(two(), tmp_path / "d", begin=["ADMIT"])
    assert found(Shards().stay(0), tmp_path / "e", site="north").flow.left == 1


@pytest.mark.quick
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"covariates": []}, "covariates"),
        (settings(charted=MAP["charted"][:-1]), "no codes for 'lactate'"),
        (settings(doses=[{"name": "blood", "codes": ["x"]}]), "'blood'"),
        (settings(doses=[{"name": "colloid", "codes": ["x"], "stop": ["y"]}]), "a bolus is over at once"),
        (settings(site_column="unit"), "give one of them"),
        (settings(beginning=["x"]), "did you mean"),
        ({}, "meds: is required"),
    ],
)
def test_maps_that_cannot_be(given, says):
    with pytest.raises(InvalidSettings, match=says):
        MedsSettings.model_validate(given)


def test_the_map_that_is_printed_loads(tmp_path):
    (tmp_path / "map.toml").write_text(example_settings().as_toml())
    assert MedsSettings.load(tmp_path / "map.toml") == example_settings()


def strict(folder, **meds):
    return extract_meds(folder, MedsSettings.model_validate(settings(**meds) | {"may_be_absent": []}))


def test_codes_that_no_event_has_are_named(tmp_path):
    folder = planted(12)[0].write(tmp_path)
    assert strict(folder).notes == ()
    charted = [line | {"codes": ["BP//sistolic"]} if line["name"] == "sbp" else line for line in MAP["charted"]]
    with pytest.raises(
        UnsuitableTables, match=r"sbp: no value within its look-back; codes that no event has: BP//sistolic"
    ):
        strict(folder, charted=charted)
    doses = [MAP["doses"][0] | {"codes": ["SALIN//rate"]}, MAP["doses"][2] | {"codes": ["ALBUMEN//ml"]}]
    with pytest.raises(UnsuitableTables, match=r"(?s)crystalloid: .*SALIN//rate.*colloid: .*ALBUMEN//ml"):
        strict(folder, doses=doses)
    charted = [*MAP["charted"], {"name": "sbp", "codes": ["BP//cuff*"]}]
    assert strict(folder, charted=charted).notes == (
        "No event has the code BP//cuff*, which the map uses for sbp: is it written as in the dataset?",
    )


def test_a_map_without_ends_of_stays_has_no_flow(tmp_path):
    given = settings(leave=[]) | {"site_covariates": [{"name": "flow"}]}
    with pytest.raises(InvalidSettings, match=r"\[meds\] leave, or write site_covariates = \[\]"):
        MedsSettings.model_validate(given)
    given["meds"]["leave"] = ["LEFT"]  # a code that no event has
    with pytest.raises(UnsuitableTables, match=r"flow is not known for north.*site_covariates = \[\]"):
        extract_meds(two().write(tmp_path), MedsSettings.model_validate(given))


def test_events_are_left_out_within_the_time_of_a_stay(tmp_path):
    shards = two().add(0, 1, "BP//systolic").add(0, 60, "BP//systolic").add(0, 60, "SALINE//rate", 5)
    assert found(shards, tmp_path).left_out.to_pylist() == [
        {"reason": "event without a number", "name": "sbp", "entries": 1}
    ]
