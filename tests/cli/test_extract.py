"""`fdtr extract` as a real process: its settings, and what it refuses."""

import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from fdtr.cohort.mimic_settings import MimicExtraction
from mimic_world import changed, make_world, write_duckdb

pytestmark = pytest.mark.slow  # a process for every command


def extract(*arguments: object, cwd) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "fdtr", "extract", "mimic-iv", *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


def test_printed_settings_are_the_defaults_and_load_again(tmp_path):
    done = extract("--print-settings", cwd=tmp_path)
    (tmp_path / "mine.toml").write_text(done.stdout)
    assert MimicExtraction.load(tmp_path / "mine.toml") == MimicExtraction()
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
