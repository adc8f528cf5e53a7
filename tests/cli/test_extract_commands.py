"""`fdtr extract` as real processes: what is written, said and refused."""

import json
import os
import stat
import subprocess
import sys

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import tomli_w

from clif_tables import Clif, hospital
from command_line import fdtr
from fdtr.cohort.clif_settings import ClifSettings
from fdtr.cohort.meds import MedsSettings
from fdtr.cohort.mimic_iv_settings import MimicSettings
from fdtr.study import Study
from meds_shards import planted, settings
from mimic_world import changed, make_world, write_duckdb

pytestmark = pytest.mark.slow  # a process for every command


def extract(*arguments: object, cwd) -> subprocess.CompletedProcess[str]:
    return fdtr("extract", "mimic-iv", *arguments, cwd=cwd)


def test_printed_settings_are_the_defaults_and_load_again(tmp_path):
    done = extract("--print-settings", cwd=tmp_path)
    (tmp_path / "mine.toml").write_text(done.stdout)
    assert MimicSettings.load(tmp_path / "mine.toml") == MimicSettings()
    assert extract("--settings", "mine.toml", "--print-settings", cwd=tmp_path).stdout == done.stdout


def test_refusals_are_sentences_and_leave_nothing(tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").touch()
    (tmp_path / "odd.toml").write_text("stepp = 3")
    address = write_duckdb(make_world(40, seed=0, traps=frozenset()), tmp_path / "m.duckdb")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    for arguments, sentence in (
        ((), "Name the database: --db"),
        (("--db", "duckdb:none"), "There is no database none"),
        (("--db", address, "--out", "taken"), "exists already"),
        (("--db", address, "--settings", "odd.toml"), 'did you mean "steps"'),
        (("--db", address, "--stays", "none.csv"), "could not be read"),
        (("--db", address, "--memory", "3XB"), "--memory 3XB is no amount of memory"),
        (("--db", "postgresql://me:Pass@Word7@127.0.0.1:1/x"), "no host of the name"),
        (("--db", address, "--stays", "none.csv", "--sepsis", "icd"), "Give one of them"),
        (("--db", address, "--out", "odd.toml/out"), "odd.toml/out cannot be written: Not a directory"),
    ):
        done = extract(*arguments, cwd=tmp_path)
        assert done.returncode == 1
        assert sentence in done.stderr
        assert "Traceback" not in done.stderr
        assert "Word7" not in done.stderr
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_without_a_complete_case_the_table_is_written_and_their_folder_is_not(tmp_path):
    world = make_world(60, seed=0)
    labs = world.tables["labevents"]
    rest = labs.filter(pc.invert(pc.is_in(labs["itemid"], pa.array([50971, 50822]))))  # potassium
    address = write_duckdb(changed(world, "labevents", rest), tmp_path / "m.duckdb")
    (tmp_path / "s.toml").write_text('may_be_absent = ["potassium"]')
    done = extract("--db", address, "--settings", "s.toml", "--out", "data", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "There is no folder complete/. No stay is a complete case." in " ".join(done.stderr.split())
    assert (tmp_path / "data" / "table.parquet").exists()
    assert not (tmp_path / "data" / "complete").exists()


def test_settings_with_further_items_give_further_columns(tmp_path):
    address = write_duckdb(make_world(60, seed=0), tmp_path / "m.duckdb")
    printed = extract("--print-settings", cwd=tmp_path).stdout
    (tmp_path / "mine.toml").write_text(
        printed
        + """
[[covariates]]
name = "arterial"
meaning = "systolic blood pressure by arterial line"
unit = "mmHg"
plausible = [20, 300]
range = [60, 200]

[[mimic_iv.charted]]
name = "arterial"
table = "chartevents"
items = [220050, 225309]
"""
    )
    done = extract("--db", address, "--settings", "mine.toml", "--out", "data", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "| arterial | systolic blood pressure by arterial line" in (tmp_path / "data" / "dictionary.md").read_text()
    assert "arterial_missing" in pq.read_table(tmp_path / "data" / "table.parquet").column_names
    assert "Looks ahead" in (tmp_path / "data" / "target-trial.md").read_text()


def test_the_settings_beside_a_table_make_it_again(tmp_path):
    address = write_duckdb(make_world(300, seed=0), tmp_path / "m.duckdb")
    ids = [row["stay_id"] for row in make_world(300, seed=0).tables["icustays"].to_pylist()]
    (tmp_path / "list.csv").write_text("\n".join(["stay_id", *map(str, ids[::2])]))
    done = extract("--db", address, "--stays", "list.csv", "--site", "north", "--out", "a", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    settings = ("--settings", "a/settings.toml", "--db", address)
    done = extract(*settings, "--out", "b", cwd=tmp_path)
    assert done.returncode == 1
    assert "Give that list with --stays" in done.stderr
    done = extract(*settings, "--stays", "list.csv", "--out", "b", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = (pq.read_table(tmp_path / name / "table.parquet") for name in "ab")
    assert first.equals(second)
    assert set(first["site"].to_pylist()) == {"north"}
    assert (tmp_path / "a" / "settings.toml").read_bytes() == (tmp_path / "b" / "settings.toml").read_bytes()


def test_a_process_that_is_ended_leaves_no_temporary_files(tmp_path):
    address = write_duckdb(make_world(2_000, seed=0), tmp_path / "m.duckdb")
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, "-m", "fdtr", "extract", "mimic-iv", "--db", address, "--out", "data"]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    running = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stderr is not None
    assert "stays" in running.stderr.readline()  # the work has begun
    assert any((tmp_path / "tmp").iterdir())
    running.terminate()
    running.communicate(timeout=60)
    assert running.returncode == 143
    assert not any((tmp_path / "tmp").iterdir())
    assert not (tmp_path / "data").exists()


def test_clif_tables_become_a_folder_that_only_its_owner_enters(tmp_path):
    made = Clif(6).full().rate(0, 100).rate(2, 0, "stop").vital("sbp", -1, 123.25)
    done = fdtr("extract", "clif", made.write(tmp_path / "clif"), "--out", "data", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the first stay of each person" in done.stdout
    assert "readings" in done.stderr  # progress
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
    assert Study.load(tmp_path / "data" / "study.toml").horizon == 5
    assert "## Assumptions" in (tmp_path / "data" / "target-trial.md").read_text()
    assert pq.read_table(tmp_path / "data" / "table.parquet").num_rows == 30
    for patients in ("123.25", "h0", "p0"):
        assert patients not in done.stdout + done.stderr
    again = fdtr("extract", "clif", "clif", "--out", "data", cwd=tmp_path)
    assert again.returncode == 1
    assert "exists already" in again.stderr


def test_steps_and_cuts_of_an_agreed_study_are_used(tmp_path):
    hospital(12, 0).write(tmp_path / "clif")
    fdtr("extract", "clif", "clif", "--out", "first", "--site", "north", cwd=tmp_path)
    study = (tmp_path / "first" / "study.toml").read_text()
    agreed = study.replace("horizon = 5", "horizon = 3").replace("cuts = [0, 180]", "cuts = [0, 50]")
    agreed = agreed.replace("180 ml", "50 ml")
    (tmp_path / "agreed.toml").write_text(agreed)
    command = ("extract", "clif", "clif", "--out", "second", "--site", "north", "--study", "agreed.toml", "--json")
    done = fdtr(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sites"][0]["site"] == "north"
    rows = pq.read_table(tmp_path / "second" / "table.parquet").to_pylist()
    assert {row["step"] for row in rows} == {0, 1, 2}
    assert {row["action"] for row in rows if row["dose"]} == {2}


def test_a_list_of_onsets_begins_the_steps(tmp_path):
    Clif(6).full().write(tmp_path / "clif")
    lines = ["hospitalization_id,onset", *(f"h{k},2024-02-10 06:30:00" for k in range(4))]
    (tmp_path / "onsets.csv").write_text("\n".join(lines))
    done = fdtr("extract", "clif", "clif", "--out", "data", "--onsets", "onsets.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert pq.read_table(tmp_path / "data" / "table.parquet").num_rows == 20
    page = (tmp_path / "data" / "target-trial.md").read_text()
    assert "| the listed onset, or admission" in page
    assert "Looks ahead: Whether the list of onsets looks beyond time zero" in page
    again = ("extract", "clif", "clif", "--out", "again", "--settings", "data/settings.toml")
    done = fdtr(*again, cwd=tmp_path)
    assert done.returncode == 1
    assert "--onsets FILE" in done.stderr
    done = fdtr(*again, "--onsets", "onsets.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "again" / "settings.toml").read_text() == (tmp_path / "data" / "settings.toml").read_text()


def test_persons_with_several_stays_are_held_out_together(tmp_path):
    made = Clif(4).full().admit(4, "unit-0", begin=500, end=600, person=0).lab("lactate", 499, 2.0, stay=4)
    made.write(tmp_path / "clif")
    (tmp_path / "settings.toml").write_text("[clif]\nfirst_stay = false\n")
    done = fdtr("extract", "clif", "clif", "--out", "data", "--settings", "settings.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert Study.load(tmp_path / "data" / "study.toml").columns.cluster == "person"


def test_meds_events_become_a_study_that_runs(tmp_path):
    planted(90)[0].write(tmp_path / "meds")
    (tmp_path / "map.toml").write_text(tomli_w.dumps(settings()))
    done = fdtr("extract", "meds", "meds", "--map", "map.toml", "--out", "data", "--teaching", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = fdtr("check", "data/study.toml", "data/table.parquet", "--all", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "site-2" in done.stdout


def test_settings_that_are_printed_are_those_that_load(tmp_path):
    for source, model in (("clif", ClifSettings), ("meds", MedsSettings)):
        done = fdtr("extract", source, "--print-settings", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        (tmp_path / "printed.toml").write_text(done.stdout)
        assert model.load(tmp_path / "printed.toml").steps == 5
        (tmp_path / "printed.toml").write_text(done.stdout.replace("steps = 5", "steps = 3"))
        done = fdtr("extract", source, "--settings", "printed.toml", "--print-settings", cwd=tmp_path)
        assert "steps = 3" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("clif", "nowhere", "--out", "data"), "There is no folder nowhere"),
        (("clif", ".", "--out", "data"), "holds no clif_patient.parquet"),
        (("clif", "clif", "--out", "data"), "one site"),
        (("clif", "clif", "--out", "data", "--time-zone", "Chicago"), "no time zone"),
        (("clif", "clif", "--out", "data", "--settings", "gone.toml"), "gone.toml does not exist"),
        (("clif", "clif", "--out", "data", "--onsets", "gone.csv"), "gone.csv could not be read"),
        (("clif", "clif", "--out", "data", "--onsets", "clif.toml"), "needs a column hospitalization_id"),
        (("meds", ".", "--map", "clif.toml", "--out", "data"), "meds: is required"),
        (("minari", "a=clif", "--out", "data"), "no Minari dataset"),
        (("clif", "clif", "--out", "clif.toml/data"), "clif.toml/data cannot be written"),
        (("meds", "clif", "--map", "map.toml", "--out", "clif.toml/data"), "clif.toml/data cannot be written"),
        (("minari", "a=nowhere", "--out", "clif.toml/data"), "clif.toml/data cannot be written"),
    ],
)
def test_failures_are_sentences_and_leave_nothing(tmp_path, arguments, says):
    Clif(1).full(0).write(tmp_path / "clif")
    (tmp_path / "clif.toml").write_text("steps = 3\n")
    (tmp_path / "map.toml").write_text(tomli_w.dumps(settings()))
    done = fdtr("extract", *arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "data").exists()


def test_a_damaged_file_is_a_sentence(tmp_path):
    folder = Clif().write(tmp_path / "clif")
    (folder / "clif_labs.parquet").write_bytes(b"PAR1 and then nothing")
    done = fdtr("extract", "clif", "clif", "--out", "data", cwd=tmp_path)
    assert done.returncode == 1
    assert "clif_labs.parquet could not be read" in done.stderr


def test_a_dataset_without_its_site_is_wrong_usage(tmp_path):
    done = fdtr("extract", "minari", "folder", "--out", "data", cwd=tmp_path)
    assert done.returncode == 2
    assert "SITE=DIR" in done.stderr


def test_a_missing_folder_is_wrong_usage(tmp_path):
    for source in ("clif", "meds"):
        done = fdtr("extract", source, cwd=tmp_path)
        assert done.returncode == 2
        assert "name the folder" in done.stderr


def test_what_was_left_out_and_what_to_look_at_is_told(tmp_path):
    made = Clif(12).full().bolus(1, 5, unit="vials").lab("hemoglobin", -1, 12.0, "furlongs")
    made.write(tmp_path / "clif")
    done = fdtr("extract", "clif", "clif", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "cohort" / "table.parquet").is_file()  # the place that all sources have
    assert "fluid in a unit that is no volume" in done.stdout
    assert "Note: sbp is missing in 91.7% of rows" in done.stderr
    done = fdtr("extract", "clif", "clif", "--out", "again", "--json", cwd=tmp_path)
    told = json.loads(done.stdout)
    assert told["left_out"][1] == {"reason": "result in another unit", "name": "hemoglobin", "entries": 1}
    assert len(told["notes"]) == 5


def test_one_unit_may_be_a_table_of_its_own(tmp_path):
    Clif(1).full(0).write(tmp_path / "clif")
    done = fdtr("extract", "clif", "clif", "--one-site", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert set(pq.read_table(tmp_path / "cohort" / "table.parquet")["site"].to_pylist()) == {"unit-0"}
    done = fdtr("extract", "clif", "clif", "--settings", "cohort/settings.toml", "--out", "again", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
