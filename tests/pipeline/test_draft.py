"""Drafting a study file from tables of all kinds."""

import tomllib

import pandas as pd
import pytest

from fdtr.errors import InvalidTable
from fdtr.pipeline.draft import draft_study
from fdtr.site.rows import read_trajectories
from fdtr.study import Study

pytestmark = pytest.mark.quick


def table(**changes):
    columns = {
        "Hospital": ["n", "n", "n", "n", "s", "s"],
        "subject_id": [1, 1, 2, 2, 1, 1],
        "visit": [0, 1, 0, 1, 0, 1],
        "treatment": [0, 10, 5, 0, 10, 5],
        "outcome": [-3.0, 2.5, 0, 1, 2, -1],
        "sbp": [92.4, 110, 131, 127, 101, 99],
        "beds": [20, 20, 20, 20, 35, 35],
        "note": ["a", "b", "c", "d", "e", "f"],
    }
    frame = pd.DataFrame(columns | changes)
    return frame[[name for name in frame if frame[name].iloc[0] is not Ellipsis]]


def test_a_draft_reads_its_own_table():
    text = draft_study(table(), "trial").text
    study = Study.model_validate(tomllib.loads(text))
    assert (study.name, study.horizon) == ("trial", 2)
    assert study.actions.levels == (0, 5, 10)
    assert study.reward.range[0] <= -3
    assert study.reward.range[1] >= 2.5
    covariates = {c.name: c for c in study.covariates}
    assert list(covariates) == ["sbp", "beds"]
    assert covariates["beds"].level == "site"
    assert covariates["sbp"].range == (90, 140)
    assert "Left out" in text
    assert "note" in text
    rows = read_trajectories(table(), study)
    assert rows.sites == ("n", "s")
    assert not any(rows.clipped.values())


def test_ends_and_gaps_are_drafted():
    frame = table(sbp=[92.4, None, 131, 127, 101, 99], end=[None, "discharge", None, "death", None, "discharge"])
    text = draft_study(frame, "trial").text
    study = Study.model_validate(tomllib.loads(text))
    assert study.ends == {"death": 0.0, "discharge": 0.0}
    assert '# missing = "forward"' in text


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"treatment": ...}, "No column looks like the action"),
        ({"treatment": ["a", "b", "c", "d", "e", "f"]}, "must hold a number in every row"),
        ({"visit": [0, 1, 0, float("inf"), 0, 1]}, "must hold a number in every row"),
        ({"treatment": [1, 1, 1, 1, 1, 1]}, "1 different values"),
        ({"subject_id": ...}, "No column looks like the patient"),
        ({"visit": [1, 2, 1, 2, 1, 2]}, "start at 1; they must count from 0. Subtract 1 first"),
    ],
)
def test_tables_that_cannot_be_drafted_from(changes, sentence):
    with pytest.raises(InvalidTable, match=sentence):
        draft_study(table(**changes), "trial")


def test_a_zero_one_reward_keeps_its_range():
    text = draft_study(table(outcome=[0, 1, 1, 0, 1, 0]), "trial").text
    assert "range = [0, 1]  # mapped" in text
    assert draft_study(table(Hospital=...), "trial").has_site is False


def test_no_patient_shows_in_a_draft_or_its_refusal(tmp_path):
    (tmp_path / "headerless.csv").write_text("north,p0,0,2,0.9127\nnorth,p1,0,1,0.8\n")
    with pytest.raises(InvalidTable, match="Does the first line hold column names") as caught:
        draft_study(tmp_path / "headerless.csv", "trial")
    assert "p0" not in str(caught.value)
    dates = [None, "2020-01-01", None, "2020-02-02", None, "2020-03-03"]
    assert "2020" not in draft_study(table(end=dates), "trial").text


def test_odd_column_names_stay_inside_their_quotes():
    frame = table().rename(columns={"note": 'a"\nhorizon = 99', "sbp": "s\nb"})
    assert Study.model_validate(tomllib.loads(draft_study(frame, "trial").text)).horizon == 2
