"""`fdtr extract` as a real process: its settings, and what it refuses."""

import os
import subprocess
import sys

import pytest

from fdtr.cohort.settings import Extraction
from mimic_world import make_world, write_duckdb

pytestmark = pytest.mark.slow  # a process for every command


def extract(*arguments: object, cwd) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "fdtr", "extract", "mimic-iv", *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


def test_printed_settings_are_the_papers_and_load_again(tmp_path):
    done = extract("--print-settings", cwd=tmp_path)
    (tmp_path / "mine.toml").write_text(done.stdout)
    assert Extraction.load(tmp_path / "mine.toml") == Extraction()
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
    ):
        done = extract(*arguments, cwd=tmp_path)
        assert done.returncode == 1
        assert sentence in done.stderr
        assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
