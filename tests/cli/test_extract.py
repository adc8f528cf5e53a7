"""`fdtr extract` as a real process: its settings, and what it refuses."""

import os
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from fdtr.cohort.mimic_settings import MimicExtraction
from mimic_world import make_world, write_duckdb

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
    ):
        done = extract(*arguments, cwd=tmp_path)
        assert done.returncode == 1
        assert sentence in done.stderr
        assert "Traceback" not in done.stderr
        assert "Word7" not in done.stderr
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


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
