"""examples/sepsis: the paper's study files, and the whole path from a generated MIMIC-IV to reports."""

import csv
import json
import subprocess
from pathlib import Path

import pytest

from command_line import FDTR, start
from fdtr.cohort.extraction_settings import ExtractionSettings
from fdtr.study import Study
from mimic_world import make_world, write_duckdb

EXAMPLE = Path(__file__).parents[1] / "examples" / "sepsis"
# Section 5.2: d0 = 6, d1 = 15; S9: d = 36. The primary study is not the paper's: beside an intercept of each unit's own
# the paper's shared covariates are not identified, so it shares the five measurements instead, (x, ax, a²x), and leaves
# the intercept and its action terms to each unit.
ANALYSE = f"import runpy; runpy.run_path({str(EXAMPLE / 'analyse.py')!r}, run_name='__main__')"
SHAPES = {"paper": (6, 15), "intercept": (6, 18), "reward": (6, 15), "squares": (6, 30), "primary": (15, 3)}


@pytest.mark.quick
@pytest.mark.parametrize("name", SHAPES)
def test_each_study_has_its_shape_and_the_defaults_of_the_extraction(name):
    study = Study.load(EXAMPLE / f"{name}.toml")
    features = study.feature_map
    assert (features.n_shared, features.n_features - features.n_shared) == SHAPES[name]
    assert ExtractionSettings().agreeing_with(study) == ExtractionSettings()
    ranges = {covariate.name: covariate.range for covariate in ExtractionSettings().covariates}
    assert {c.name: c.range for c in study.covariates if c.name in ranges} == ranges


@pytest.mark.slow
def test_a_table_that_was_made_with_other_cuts_is_refused_before_any_study_is_fitted(tmp_path):
    (tmp_path / "data").mkdir()
    settings = ExtractionSettings()
    dose = settings.dose.model_copy(update={"cuts": (0.0, 400.0)})
    (tmp_path / "data" / "settings.toml").write_text(settings.model_copy(update={"dose": dose}).as_toml())
    done = start(tmp_path, program=ANALYSE, cwd=tmp_path).done()
    assert done.returncode == 1
    assert "primary.toml has 5 steps and cuts doses at 0 and 180 ml" in done.stderr
    assert "made with 5 steps and 0 and 400 ml" in done.stderr
    assert "SEPSIS=" in done.stderr
    (tmp_path / "data" / "settings.toml").write_text("steps = 5")
    done = start(tmp_path, program=ANALYSE, cwd=tmp_path).done()
    assert "is not what `fdtr extract` wrote" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.quick
def test_make_neither_extracts_over_a_table_nor_takes_an_old_one_for_another_databases(tmp_path):
    make = [
        "make",
        "--no-print-directory",
        "--assume-old=setup",
        "sepsis",
        f"SEPSIS={tmp_path / 'study'}",
        "BIN=/bin/false",
    ]
    done = subprocess.run(make, cwd=EXAMPLE.parents[1], capture_output=True, text=True, timeout=60)
    assert "Name your MIMIC-IV" in done.stderr
    (tmp_path / "study" / "data").mkdir(parents=True)
    done = subprocess.run(
        [*make, "DB=duckdb:other"], cwd=EXAMPLE.parents[1], capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert "was extracted before, perhaps from another database" in done.stderr


@pytest.mark.slow
def test_a_database_becomes_reports_without_hand_work(tmp_path):
    # So many that the disclosure rules let units share: 18 features of 1,500 stays at nine units would be withheld.
    address = write_duckdb(make_world(5_000, seed=9), tmp_path / "mimic.duckdb")
    place = tmp_path / "sepsis"

    def do(*arguments: object, program: str = FDTR) -> str:
        done = start(*arguments, program=program, cwd=tmp_path, FDTR_STATE=str(tmp_path / "state")).done()
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    told = do("extract", "mimic-iv", "--db", address, "--study", EXAMPLE / "paper.toml", "--out", place / "data")
    assert "the person's first ICU stay" in told
    assert "1000" not in told  # no id of a stay: they begin at 1000
    do(place, "--only", "primary", "--only", "paper", program=ANALYSE)
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
        # Units learn from each other: else the two would agree to the last digit.
        fdtr, ldtr = ({row["estimator"]: row["value"] for row in rows if row["method"] == m} for m in ("FDTR", "LDTR"))
        assert all(fdtr[estimator] != ldtr[estimator] for estimator in fdtr)
        assert "Treatment rules learnt together" in (place / name / "report.html").read_text()
    checked = do("check", EXAMPLE / "primary.toml", place / "data" / "table.parquet")
    assert "COLLINEAR" not in checked
    assert "LEARNT TOGETHER" not in checked
    splits = {name: json.loads((place / name / "results.json").read_text())["split"] for name in ("primary", "paper")}
    assert splits == {"primary": "folds", "paper": "half"}
