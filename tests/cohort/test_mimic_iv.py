"""MIMIC-IV: from a generated database with planted traps to the planted truth, on both engines."""

import re
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from fdtr.cohort import mimic_iv, time_steps
from fdtr.cohort.databases import open_database, read_sql
from fdtr.cohort.extraction_settings import ExtractionSettings
from fdtr.cohort.mimic_iv import extract_mimic_iv
from fdtr.cohort.mimic_iv_settings import AGE, CONCEPTS, MimicSettings
from fdtr.cohort.study_drafts import draft_target_trial
from fdtr.cohort.time_steps import ExtractedTable, complete_cases
from fdtr.errors import EmptyCohort, UnsuitableTables
from mimic_world import (
    COLLOID,
    CRYSTALLOID,
    OTHER_CODES,
    SEPTIC_CODES,
    TRAPS,
    World,
    changed,
    make_world,
    write_duckdb,
    write_postgresql,
)

NUMBERS = (
    "temperature", "sbp", "hemoglobin", "potassium", "weight", "dose", "action", "reward", "lactate_measured", "no_icu",
    "flow",
)  # fmt: skip
COLUMNS = ("site", *NUMBERS)


def extract(address: str, settings: MimicSettings | None = None, **options) -> ExtractedTable:
    with open_database(address) as db:
        return extract_mimic_iv(db, settings or MimicSettings(), **options)


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
        name for name in COLUMNS if not all(same(there[s][name], true[name]) for s, true in world.truth.items())
    }  # fmt: skip


def same(values: list, true: list) -> bool:
    if isinstance(true[0], str):
        return values == true
    return np.allclose(values, true, rtol=0, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("trap", [*(pytest.param(trap, marks=pytest.mark.slow) for trap in sorted(TRAPS)), "all"])
def test_the_truth_comes_back_through_each_trap(trap, tmp_path):
    world = make_world(150, seed=1, traps=TRAPS if trap == "all" else frozenset({trap}))
    table = extract(write_duckdb(world, tmp_path / "mimic.duckdb")).table
    assert wrong_columns(table, world) == set()
    ends = {int(r["patient"]): r["end"] for r in table.to_pylist() if r["end"] is not None}
    assert ends == {stay: end for stay, end in world.ends.items() if end is not None}


DOSES, CARRIED = {"dose", "action"}, {"hemoglobin", "potassium", "weight", "reward"}
FLUID_ITEMS = {
    f"without {item}": ("edges", "mimic_iv/doses", r"f\.itemid = e\.itemid", rf"\g<0> AND f.itemid <> {item}", DOSES)
    for item in CRYSTALLOID + COLLOID
}
# What is made wrong: the trap that finds it out, the file, a pattern in it, what stands there instead, and the columns
# that differ then (None: more than one can say).
MUTATIONS = {
    "fahrenheit": ("fahrenheit", "mimic_iv/temperature", "WHEN 223761", "WHEN 0", {"temperature"}),
    "litres": ("litres", "mimic_iv/doses", r"\* 1000\.0", "* 1.0", DOSES),
    "overlap": ("overlap", "volumes", r"sum\(CAST\(floor", "max(CAST(floor", DOSES),
    "rewritten": ("rewritten", "mimic_iv/doses", "'Rewritten'", "'Stopped'", DOSES),
    "carriers": ("carriers", "mimic_iv/doses", "'Mixed solution'", "'Additives'", DOSES),
    "edges": ("edges", "volumes", "p.started >= g.begins", "p.started > g.begins", DOSES),
    "missing labs": ("missing_labs", "readings", "g.step >= k.step", "g.step = k.step", CARRIED),
    "all is measured": ("missing_labs", "readings", " AND known_from = step", "", {"lactate_measured"}),
    "second stays": (
        "two_stays", "mimic_iv/candidates", "PARTITION BY i.subject_id", "PARTITION BY i.stay_id", {"stays"},
    ),
    "first of an admission": (
        "two_stays", "mimic_iv/candidates", "PARTITION BY i.subject_id", "PARTITION BY i.hadm_id", {"stays"},
    ),
    "first with sepsis": (
        "late_sepsis", "mimic_iv/candidates", "PARTITION BY i.subject_id",
        "PARTITION BY i.subject_id, s.stay_id IS NULL", {"stays"},
    ),
    "leaving": ("early_ends", "presence", "g.begins < o.seen_until", "g.begins <= o.seen_until", {"steps"}),
    "after leaving": (
        "early_ends", "volumes", r"least\(p.ended, g.ends, p.seen_until\)", "least(p.ended, g.ends)", DOSES,
    ),
    "implausible": ("implausible", "readings", r"m\.value BETWEEN a.lowest AND a.highest", "m.value > 0", {"weight"}),
    "onset": ("late_onset", "mimic_iv/stays", "z.time_zero = 'onset'", "z.time_zero = 'never'", None),
    "latest onset": ("several_onsets", "mimic_iv/septic_sepsis3", r"min\(", "max(", None),
    "without sepsis": ("edges", "mimic_iv/septic_sepsis3", "WHERE sepsis3", "", {"stays"}),
    "minors": ("ages", "mimic_iv/candidates", ">= 18", ">= 0", {"stays"}),
    "age at the anchor": (
        "ages", "mimic_iv/candidates", r"anchor_age \+ EXTRACT\(YEAR FROM i.intime\) - p.anchor_year >=",
        "anchor_age >=", {"stays"},
    ),
    "coronary care": ("edges", "mimic_iv/units", "Coronary Care", "Koronar", {"no_icu"}),
    "intensive care": ("edges", "mimic_iv/units", "ELSE 1", "ELSE 0", {"no_icu"}),
    "flow by stays": ("edges", "mimic_iv/units", r"sum\(spent\)", "count(spent)", {"flow"}),
    "flow of one": (
        "edges", "mimic_iv/units", r"CAST\(sum\(sum\(spent\)\) OVER \(\)", "CAST(sum(spent)", {"flow"},
    ),
    **FLUID_ITEMS,
}  # fmt: skip


def test_every_trap_has_a_rule_that_it_finds_out():
    assert {trap for trap, *_ in MUTATIONS.values()} == TRAPS


@pytest.mark.slow
@pytest.mark.parametrize("rule", MUTATIONS)
def test_a_wrong_rule_is_found_out_by_its_trap(rule, tmp_path, monkeypatch):
    trap, file, right, wrong, columns = MUTATIONS[rule]
    assert re.search(right, read_sql(file))

    def mutated(path: str) -> str:
        sql = read_sql(path)
        return re.sub(right, wrong, sql) if path == file else sql

    monkeypatch.setattr(time_steps, "read_sql", mutated)
    monkeypatch.setattr(mimic_iv, "read_sql", mutated)
    world = make_world(150, seed=1, traps=frozenset({trap}))
    settings = MimicSettings(may_be_absent=("weight", "crystalloid", "colloid"))
    differing = wrong_columns(extract(write_duckdb(world, tmp_path / "mimic.duckdb"), settings).table, world)
    assert differing == columns if columns else differing


def test_icd_codes_of_both_versions_say_who_has_sepsis(written):
    """Each person has one code, all of them in turn; those who are not septic have others. Time zero is admission."""
    world = make_world(60, seed=5, traps=TRAPS - {"late_onset"})
    given = {(row["icd_code"], row["icd_version"]) for row in world.tables["diagnoses_icd"].to_pylist()}
    assert given == set(SEPTIC_CODES) | set(OTHER_CODES)
    assert wrong_columns(extract(written(world), sepsis="icd").table, world) == set()


def first_onsets(world: World) -> dict:
    """When infection was first suspected, of each stay."""
    rows = sorted(world.tables["sepsis3"].to_pylist(), key=lambda row: row["suspected_infection_time"], reverse=True)
    return {row["stay_id"]: row["suspected_infection_time"] for row in rows}


def test_the_onsets_of_a_list_are_time_zero_and_the_first_counts(written):
    world = make_world(60, seed=5)
    onset = first_onsets(world)
    listed = [(stay, onset[stay] + later) for stay in world.truth for later in (timedelta(), timedelta(hours=3))]
    stays = pa.table(
        {"stay_id": [stay for stay, _ in listed], "onset": pa.array([when for _, when in listed], pa.timestamp("us"))}
    )
    table = extract(written(world), sepsis="listed", stays=stays).table
    assert wrong_columns(table, world) == set()


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
    world = make_world(400, seed=4)
    table = extract(write_duckdb(world, tmp_path / "mimic.duckdb")).table
    given = table.group_by("patient").aggregate([("dose", "sum")])
    volumes = dict(zip(given["patient"].to_pylist(), given["dose_sum"].to_pylist(), strict=True))
    clipped = {str(stay): volume for stay, volume in clipped_sums(world).items()}
    assert volumes.keys() == clipped.keys()
    assert max(abs(volumes[stay] - clipped[stay]) for stay in clipped) < 1e-6


def clipped_sums(world: World) -> dict[int, float]:
    """Each stay's doses, clipped to twenty hours from time zero or to its end, event by event and without steps."""
    into, out = ({r["stay_id"]: r[key] for r in world.tables["icustays"].to_pylist()} for key in ("intime", "outtime"))
    onset = first_onsets(world)
    sums = dict.fromkeys(world.truth, 0.0)
    for row in world.tables["inputevents"].to_pylist():
        void = row["statusdescription"] == "Rewritten" or row["ordercomponenttypedescription"] == "Mixed solution"
        zero = max(into[row["stay_id"]], onset[row["stay_id"]])
        start, end = ((row[key] - zero).total_seconds() for key in ("starttime", "endtime"))
        last = min(72_000.0, (out[row["stay_id"]] - zero).total_seconds())
        if end > start:
            share = max(0.0, min(end, last) - max(start, 0.0)) / (end - start)
        else:
            share = float(0.0 <= start < last)
        sums[row["stay_id"]] += 0.0 if void else share * row["amount"] * (1000.0 if row["amountuom"] == "L" else 1.0)
    return sums


def test_complete_cases_have_every_step_and_every_covariate(tmp_path):
    world = make_world(300, seed=6)
    whole = complete_cases(extract(write_duckdb(world, tmp_path / "mimic.duckdb")))
    true = {s for s, t in world.truth.items() if len(t["dose"]) == 5 and not np.isnan([t[c] for c in NUMBERS]).any()}
    assert {int(patient) for patient in whole.table["patient"].to_pylist()} == true
    assert whole.flow.left == len(true) == whole.table.num_rows // 5
    assert "end" not in whole.table.column_names


def test_no_complete_case_at_all_is_told(tmp_path):
    world = make_world(40, seed=6, traps=frozenset())
    labs = world.tables["labevents"]
    none = labs.filter(pc.invert(pc.is_in(labs["itemid"], pa.array([50971, 50822]))))
    settings = MimicSettings(may_be_absent=("potassium",))
    found = extract(write_duckdb(changed(world, "labevents", none), tmp_path / "mimic.duckdb"), settings)
    with pytest.raises(EmptyCohort, match=r"No stay is a complete case.*“every covariate known at every step” \(40\)"):
        complete_cases(found)


def test_complete_cases_know_the_outcome_at_the_end_of_every_step(tmp_path):
    """Where lactate may be six hours old, some stays have an older one carried on."""
    settings = MimicSettings.model_validate({"outcome": {"look_back_hours": 6.0}})
    found = extract(write_duckdb(make_world(200, seed=6), tmp_path / "mimic.duckdb"), settings)
    whole = complete_cases(found)
    assert [removal.rule for removal in whole.flow.removals[-2:]] == [
        "lactate known at the end of every step", "every covariate known at every step",
    ]  # fmt: skip
    gaps = {row["patient"] for row in found.table.to_pylist() if not row["lactate_measured"] and row["end"] != "death"}
    assert found.carried
    assert found.carried <= gaps
    assert whole.flow.removals[-2].removed > 0
    assert not found.carried & set(whole.table["patient"].to_pylist())


def asking(*covariates: dict, **mimic_iv) -> MimicSettings:
    """The default settings with further covariates."""
    there = [covariate.model_dump() for covariate in MimicSettings().covariates]
    return MimicSettings.model_validate({"covariates": [*there, *covariates], "mimic_iv": mimic_iv})


@pytest.fixture(params=["duckdb", pytest.param("postgresql", marks=pytest.mark.database)])
def written(request, tmp_path):
    """Writes a world into a database of each engine in turn, and gives its address."""
    if request.param == "duckdb":
        return lambda world: write_duckdb(world, tmp_path / "mimic.duckdb")
    server = request.getfixturevalue("postgres")
    return lambda world: write_postgresql(world, server, "further")


def test_items_of_the_settings_become_covariates_in_their_units(written):
    """The same temperature again by items: °F by factor and shift beside °C, and hemoglobin in g/L."""
    world = make_world(60, seed=5)
    warmth = {"meaning": "warmth", "unit": "°C", "plausible": [25, 45], "range": [34, 41]}
    blood = {"meaning": "hemoglobin", "unit": "g/L", "plausible": [20, 250], "range": [50, 170]}
    settings = asking(
        {"name": "warmth", **warmth},
        {"name": "blood", **blood},
        charted=[
            {"name": "warmth", "table": "chartevents", "items": [223761], "factor": 5 / 9, "shift": -160 / 9},
            {"name": "warmth", "table": "chartevents", "items": [223762]},
            {"name": "blood", "table": "labevents", "items": [51222, 50811], "factor": 10.0},
        ],
    )
    found = extract(written(world), settings)
    columns = {name: found.table[name].to_numpy() for name in ("warmth", "temperature", "blood", "hemoglobin")}
    assert np.allclose(columns["warmth"], columns["temperature"], rtol=0, atol=1e-9)
    assert np.allclose(columns["blood"], columns["hemoglobin"] * 10, rtol=0, atol=1e-9, equal_nan=True)
    told = {entry.column: entry.source for entry in found.dictionary}
    assert told["warmth"] == "chartevents 223761 (× 0.555555555556 − 17.7777777778); chartevents 223762"
    assert told["blood"] == "labevents 51222, 50811 (× 10)"


def test_a_built_in_covariate_with_items_of_its_own_is_read_by_these_alone(tmp_path):
    address = write_duckdb(make_world(60, seed=5, traps=frozenset()), tmp_path / "mimic.duckdb")
    only = extract(address, asking(charted=[{"name": "sbp", "table": "chartevents", "items": [220050]}]))
    assert only.table["sbp"].null_count > extract(address).table["sbp"].null_count
    assert next(entry.source for entry in only.dictionary if entry.column == "sbp") == "chartevents 220050"


def test_age_is_that_at_admission_and_nobody_is_above_91(written):
    world = make_world(60, seed=5)
    people = world.tables["patients"]
    ages = np.where(np.arange(people.num_rows) % 2 == 0, 91, 40)
    ages = people.set_column(1, "anchor_age", pa.array(ages)).set_column(
        2, "anchor_year", pa.array(np.full(people.num_rows, 2147))
    )
    age = AGE.model_dump()
    settings = asking(age).model_copy(update={"look_back_hours": 1.0})
    table = extract(written(changed(world, "patients", ages)), settings).table
    year = {row["stay_id"]: row["intime"].year for row in world.tables["icustays"].to_pylist()}
    person = dict(zip(ages["subject_id"].to_pylist(), ages["anchor_age"].to_pylist(), strict=True))
    rows = table.to_pylist()
    assert {row["step"] for row in rows} == set(range(5))
    for row in rows:
        assert row["age"] == min(91, person[int(row["person"])] + year[int(row["patient"])] - 2147)


def test_items_that_are_not_to_count_as_fluids_do_not(tmp_path):
    world = make_world(100, seed=5)
    address = write_duckdb(world, tmp_path / "mimic.duckdb")
    found = extract(address, asking(not_fluids=[225944]))
    given = world.tables["inputevents"]
    rest = changed(world, "inputevents", given.filter(pc.not_equal(given["itemid"], 225944)))
    assert found.table.equals(extract(write_duckdb(rest, tmp_path / "rest.duckdb")).table)
    assert not found.table.equals(extract(address).table)
    source = next(entry.source for entry in found.dictionary if entry.column == "dose")
    assert "225158" in source
    assert "225944" not in source


def test_stays_without_patient_admission_unit_or_time_are_counted_and_not_lost(written):
    world = make_world(60, seed=5, traps=frozenset())
    stays = world.tables["icustays"]
    names, times = stays["first_careunit"].to_pylist(), stays["intime"].to_pylist()
    names[0], times[1] = None, None
    partial = stays.set_column(3, "first_careunit", pa.array(names)).set_column(
        4, "intime", pa.array(times, pa.timestamp("us"))
    )
    without = changed(changed(world, "icustays", partial), "patients", world.tables["patients"].slice(5))
    without = changed(without, "admissions", world.tables["admissions"].slice(3))
    flow = extract(written(without)).flow
    assert flow.found == stays.num_rows == 72
    assert [(removal.rule, removal.removed) for removal in flow.removals[:3]] == [
        ("with their rows in patients and admissions", 5),
        ("with a care unit and a time of admission", 0),
        ("of adults", 0),
    ]
    flow = extract(written(changed(world, "icustays", partial))).flow
    assert flow.removals[1].removed == 2


@pytest.mark.parametrize("all_stays", [False, True])
def test_a_stay_whose_end_is_not_known_goes_on(written, all_stays):
    """Every second one, or every one: then no flow is known, which has to be left out."""
    world = make_world(60, seed=5, traps=frozenset())
    stays = world.tables["icustays"]
    ends = [None if all_stays or number % 2 else end for number, end in enumerate(stays["outtime"].to_pylist())]
    address = written(changed(world, "icustays", stays.set_column(5, "outtime", pa.array(ends, pa.timestamp("us")))))
    settings = MimicSettings()
    if all_stays:
        with pytest.raises(UnsuitableTables, match=r"flow is not known for .*stays has an end.*Load icustays"):
            extract(address, settings)
        settings = MimicSettings(site_covariates=settings.site_covariates[:1])
    assert extract(address, settings).table.num_rows == 300


def test_the_dictionary_names_the_items_that_the_sql_files_read():
    for name, told in CONCEPTS.items():
        written_in = set(re.findall(r"\b2\d{5}\b|\b5\d{4}\b", read_sql(f"mimic_iv/{name}").split("SELECT", 1)[1]))
        assert written_in == set(re.findall(r"\b2\d{5}\b|\b5\d{4}\b", told)), name


@pytest.mark.parametrize(
    ("sepsis", "told"), [("sepsis3", "up to 24 hours after infection was suspected"), ("icd", "given at discharge")]
)
def test_the_target_trial_says_what_looks_ahead_what_is_assumed_and_what_is_planned(tmp_path, sepsis, told):
    address = write_duckdb(make_world(100, seed=5), tmp_path / "mimic.duckdb")
    settings = MimicSettings.model_validate({"ends": {"death": 0.125, "discharge": 0.75}})
    page = draft_target_trial(extract(address, settings, sepsis=sepsis))
    eligibility = next(line for line in page.splitlines() if line.startswith("| Eligibility"))
    assert told in eligibility
    assert "lactate known when step 0 begins" in eligibility
    assert "it is known rather" not in eligibility
    assert "a missing step is worth 0.125 after death, 0.75 after discharge" in page
    assert "Death is worth 0.125 and discharge 0.75 for each missing step" in page
    assert "onset of sepsis, or admission where onset is earlier or not known |" in page
    assert "| Strategies | At 5 times, every 4 hours, a dose by" in page
    assert "Levels of the volume given in a step: none, up to 180 ml, above 180 ml." in page
    assert (
        "lactate, its value at the step's end, the last value carried forward (`lactate_measured` is 0 there)" in page
    )
    assert re.search(r"\| Size \| Planned\. \| \d+ of 2\d\d ICU stays", page)
    for word in ("Exchangeability", "Positivity", "Consistency", "No interference", "Measured as charted"):
        assert f"* **{word}.**" in page
    assert "## Analysis plan" in page
    assert "step-importance sampling" in page
    everybody = {"outcome": {"unmeasured": 1.0}}
    whole = extract(address, MimicSettings.model_validate(everybody), sepsis=sepsis)
    plain = replace(whole, settings=ExtractionSettings.model_validate(everybody))  # which looks ahead nowhere
    assert "Looks ahead" not in draft_target_trial(plain)
