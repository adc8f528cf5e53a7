"""`fdtr simulate` as a real process."""

import pytest

from command_line import fdtr, refused
from fdtr.site.rows import read_trajectories
from fdtr.study import Study

pytestmark = pytest.mark.slow  # a process for every command


def test_simulate_writes_a_table_and_its_study(tmp_path):
    options = ["--patients", 60, "--sites", 3, "--horizon", 4, "--shared-kind", "static", "--seed", 7]
    for folder in ("one", "two"):
        done = fdtr("simulate", "linear", "--out", folder, *options, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    study = Study.load(tmp_path / "one/study.toml")
    rows = read_trajectories(tmp_path / "one/table.csv", study)
    assert (len(rows.sites), rows.n_patients, rows.horizon) == (3, 180, 4)
    assert (tmp_path / "one/table.csv").read_bytes() == (tmp_path / "two/table.csv").read_bytes()
    assert fdtr("simulate", "sepsis", "--out", "sepsis", cwd=tmp_path).returncode == 0
    assert read_trajectories(tmp_path / "sepsis/table.csv", Study.load(tmp_path / "sepsis/study.toml")).n_patients
    discrete = ["--patients", 40, "--sites", 2, "--confounding", 1, "--ends"]
    assert fdtr("simulate", "discrete", "--out", "discrete", *discrete, cwd=tmp_path).returncode == 0
    rows = read_trajectories(tmp_path / "discrete/table.csv", Study.load(tmp_path / "discrete/study.toml"))
    assert (rows.n_patients, rows.horizon) == (80, 5)
    refused(fdtr("simulate", "linear", "--ends", "--out", "x", cwd=tmp_path), "has no such options: --ends")
    refused(fdtr("simulate", "discrete", "--censoring", 2, "--out", "x", cwd=tmp_path), "cannot be drawn")
    refused(fdtr("simulate", "sepsis", "--sites", 3, "--out", "x", cwd=tmp_path), "leave out --sites")
    refused(fdtr("simulate", "linear", "--noise", 7, "--out", "x", cwd=tmp_path), "cannot be drawn")
    for world in ("mars", "authors", "icu-sepsis"):
        assert fdtr("simulate", world, "--out", "x", cwd=tmp_path).returncode == 2
    assert not (tmp_path / "x").exists()
