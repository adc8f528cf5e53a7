"""`fdtr init`, `fdtr check` and `fdtr tune` as real processes."""

import json
import re

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from command_line import SITES, fdtr, refused
from fdtr.site.rows import read_trajectories
from fdtr.study import Study
from worlds import make_study, make_table

pytestmark = pytest.mark.slow  # a process for every command


def test_init_drafts_a_study_that_reads_its_table(place):
    done = fdtr("init", "table.csv", "--out", "draft.toml", "--name", "trial", cwd=place)
    assert done.returncode == 0, done.stderr
    draft = Study.load(place / "draft.toml")
    assert draft.horizon == 3
    assert draft.actions.levels == (0, 1, 2)
    assert {c.name for c in draft.covariates} == {"u", "x", "v", "y"}
    rows = read_trajectories(place / "table.csv", draft)
    assert rows.n_patients == sum(SITES.values())
    assert not any(rows.clipped.values())
    refused(fdtr("init", "table.csv", "--out", "draft.toml", cwd=place), "exists already")


def test_check_tells_everything_and_writes_nothing(place):
    before = sorted(place.iterdir())
    done = fdtr("check", "study.toml", "table.csv", cwd=place)
    assert done.returncode == 0, done.stderr
    for words in (
        "Patients by action",
        "Share of each shared feature",
        "predict the next value",
        "every site may release",
    ):
        assert words in done.stdout
    found = json.loads(fdtr("check", "study.toml", "table.csv", "--site", "west", "--json", cwd=place).stdout)
    assert list(found) == ["west"]
    assert sum(found["west"]["actions"]["0"].values()) == 220
    assert {verdict["rule"] for verdict in found["west"]["disclosure"]} == {
        "N", "RATIO", "ACTION", "CELL", "NONZERO", "LEVERAGE", "BOUND", "COLLINEAR", "ONCE",
    }  # fmt: skip
    assert sorted(place.iterdir()) == before


def test_check_counts_clusters_where_there_are_some(place):
    plain = fdtr("check", "study.toml", "table.csv", cwd=place)
    assert "clusters" not in plain.stdout
    study = make_study(columns={"cluster": "clinician"})
    study.save(place / "clustered.toml")
    table = make_table(study, SITES)
    clinicians = [f"c{int(patient[1:]) % 37}" for patient in table["patient"].to_pylist()]
    pa.csv.write_csv(table.append_column("clinician", [clinicians]), place / "clustered.csv")
    done = fdtr("check", "clustered.toml", "clustered.csv", cwd=place)
    assert re.search(r"site +patients +clusters +rows", done.stdout), done.stderr
    assert re.search(r"west +220 +37 +660", done.stdout)
    machine = fdtr("check", "clustered.toml", "clustered.csv", "--site", "west", "--json", cwd=place)
    assert json.loads(machine.stdout)["west"]["clusters"] == 37
    refused(fdtr("check", "clustered.toml", "table.csv", cwd=place), 'Column "clinician" is missing.')


def test_check_says_why_nothing_would_be_shared(place):
    study = make_study()
    table = make_table(study, SITES, constant_within_site=("u", "v"))
    pa.parquet.write_table(table, place / "constant.parquet")
    done = fdtr("check", "study.toml", "constant.parquet", cwd=place)
    assert "it is constant within the site, so the site's own intercept absorbs it" in done.stdout


def test_tune_shows_both_criteria_and_writes_nothing(place):
    text = (
        (place / "study.toml")
        .read_text()
        .replace("ridge = 0.1", 'ridge = "auto"')
        .replace("sharing = 1", 'sharing = "auto"')
    )
    (place / "auto.toml").write_text(text)
    before = sorted(place.iterdir())
    done = fdtr("tune", "auto.toml", "table.csv", "--site", "west", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "west chose λ = " in done.stdout
    assert "held-out error" in done.stdout
    assert "By c" not in done.stdout  # the study fixes it
    (place / "auto.toml").write_text(re.sub(r"pessimism = .*", 'pessimism = "auto"', text))
    done = fdtr("tune", "auto.toml", "table.csv", "--site", "west", cwd=place)
    assert "By c: gain over 0.0005" in done.stdout
    found = json.loads(fdtr("tune", "auto.toml", "table.csv", "--json", cwd=place).stdout)
    assert set(found) == set(SITES)
    for curves in found.values():
        assert min(point["error"] + point["contrast"] for point in curves["ridge"] + curves["sharing"]) == 0
        assert len(curves["ridge"]) == 11
        assert len(curves["sharing"]) == 7
        assert [other["pessimism"] for other in curves["pessimism"]] == [0.0, 0.0002, 0.001, 0.002, 0.005]
    assert sorted(place.iterdir()) == before
