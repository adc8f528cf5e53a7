"""examples/sepsis: the paper's study files, and the whole path from a generated MIMIC-IV to reports."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fdtr.cohort.settings import Extraction
from fdtr.study import Study
from mimic_world import make_world, write_duckdb

EXAMPLE = Path(__file__).parents[1] / "examples" / "sepsis"
# Section 5.2: d0 = 6, d1 = 15; S9: d = 36.
SHAPES = {"paper": (6, 15), "intercept": (6, 18), "reward": (6, 15), "squares": (6, 30), "primary": (6, 18)}


@pytest.mark.quick
@pytest.mark.parametrize("name", SHAPES)
def test_each_study_has_its_shape_and_the_defaults_of_the_extraction(name):
    study = Study.load(EXAMPLE / f"{name}.toml")
    features = study.feature_map
    assert (features.n_shared, features.n_features - features.n_shared) == SHAPES[name]
    assert Extraction().agreeing_with(study) == Extraction()
    ranges = {covariate.name: covariate.range for covariate in Extraction().covariates}
    assert {c.name: c.range for c in study.covariates if c.name in ranges} == ranges


@pytest.mark.slow
def test_a_database_becomes_reports_without_hand_work(tmp_path):
    address = write_duckdb(make_world(1_500, seed=9), tmp_path / "mimic.duckdb")
    place, environment = tmp_path / "sepsis", {**os.environ, "FDTR_STATE": str(tmp_path / "state")}

    def do(*command: object) -> str:
        line = [sys.executable, "-W", "error", *map(str, command)]
        done = subprocess.run(line, capture_output=True, text=True, env=environment, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    told = do(
        "-m", "fdtr", "extract", "mimic-iv", "--db", address, "--study", EXAMPLE / "paper.toml", "--out", place / "data"
    )
    assert "the person's first ICU stay" in told
    assert "1000" not in told  # no id of a stay: they begin at 1000
    do(EXAMPLE / "analyse.py", place, "--only", "primary", "--only", "paper")
    for name in ("primary", "paper"):
        assert (place / name / "report.html").stat().st_size > 100_000
        rows = list(csv.DictReader((place / name / "figure3a.csv").read_text().splitlines()))
        assert len({row["method"] for row in rows}) == 7
        assert {row["estimator"] for row in rows} == {"step-importance sampling", "doubly robust", "linear model alone"}
        assert all(row["units"] == "9" for row in rows)
        values = {row["method"]: float(row["value"]) for row in rows if row["estimator"] == "linear model alone"}
        # A low dose lowers lactate in the generated patients: who learns that beats what was done.
        assert values["Q-learn (H)"] > values["Clinicians"] + 0.1
        assert "Clinicians" in (place / name / "figure3a.svg").read_text()
    splits = {name: json.loads((place / name / "results.json").read_text())["split"] for name in ("primary", "paper")}
    assert splits == {"primary": "folds", "paper": "half"}
