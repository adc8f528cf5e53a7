"""The folder of an extraction: whole, described, and loadable."""

import csv
from xml.etree import ElementTree

import pyarrow.parquet as pq
import pytest

from cohort_relations import SETTINGS, Hand
from fdtr.cohort.dictionary import as_markdown
from fdtr.cohort.drafting import draft_study
from fdtr.cohort.flow import Flow
from fdtr.cohort.settings import Extraction
from fdtr.cohort.writing import refuse_taken, write
from fdtr.errors import InvalidSettings, InvalidStudy, OutputExists, UnwritableFile
from fdtr.site import read_trajectories
from fdtr.study import Study


def test_the_folder_holds_a_table_that_its_study_reads(tmp_path):
    found = Hand(6).chart("sbp", -1, 90).extract("duckdb:")
    write(found, draft_study(SETTINGS), tmp_path / "out", {"more/notes.md": b"x"})
    names = {str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert names == {
        "table.parquet", "study.toml", "settings.toml", "dictionary.csv", "dictionary.md", "flow.csv", "flow.svg",
        "missing.csv", "more/notes.md",
    }  # fmt: skip
    study = Study.load(tmp_path / "out" / "study.toml")
    assert read_trajectories(tmp_path / "out" / "table.parquet", study).n_patients == 6
    assert Extraction.load(tmp_path / "out" / "settings.toml") == SETTINGS
    described = {
        row["column"] for row in csv.DictReader((tmp_path / "out" / "dictionary.csv").read_text().splitlines())
    }
    assert described == set(pq.read_schema(tmp_path / "out" / "table.parquet").names)


def test_a_folder_that_is_taken_or_a_study_that_is_wrong_leaves_nothing(tmp_path):
    found = Hand().extract("duckdb:")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(OutputExists, match="exists already"):
        write(found, draft_study(SETTINGS), tmp_path / "out")
    with pytest.raises(InvalidStudy):
        write(found, "format = 1", tmp_path / "other")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_draft_shares_what_patients_differ_in_and_leaves_out_what_an_intercept_absorbs():
    text = draft_study(Extraction())
    study = Study.parse(text.encode(), "study.toml")
    assert {c.effect for c in study.covariates} == {"shared"}
    assert {c.name for c in study.covariates} == {c.name for c in Extraction().covariates}
    assert study.features.intercept == "specific"
    assert (study.learning.ridge, study.learning.sharing, study.learning.share) == ("auto", "auto", "auto")
    assert "no_icu and flow too, constant within a site" in text
    assert "NOTHING IS LEARNT TOGETHER" not in text


def test_a_draft_has_every_digit_of_the_settings():
    dose = {"cuts": [0, 1234.5678, 2_000_000]}
    settings = Extraction.model_validate(
        {"dose": dose, "ends": {"death": 0.12345678}, "covariates": [{"name": "sbp", "range": [60.1234567, 200]}]}
    )
    study = Study.parse(draft_study(settings).encode(), "study.toml")
    assert study.actions.cuts == (0, 1234.5678, 2_000_000)
    assert study.actions.labels[2] == "above 1234.5678 and up to 2000000 ml"
    assert study.ends["death"] == 0.12345678
    assert study.covariates[0].range == (60.1234567, 200)


def test_a_draft_that_shares_nothing_says_so_first():
    own = [one.model_copy(update={"effect": "specific"}) for one in Extraction().covariates]
    text = draft_study(Extraction(covariates=tuple(own), site_covariates=()))
    assert not Study.parse(text.encode(), "study.toml").feature_map.n_shared
    assert text.index("NOTHING IS LEARNT TOGETHER") < text.index("format = 1")
    assert "constant within a site" not in text


def test_unknown_settings_are_refused_with_the_nearest_known(tmp_path):
    (tmp_path / "s.toml").write_text("step_hour = 2.0")
    with pytest.raises(InvalidSettings, match='did you mean "step_hours"'):
        Extraction.load(tmp_path / "s.toml")
    (tmp_path / "s.toml").write_text(Extraction().as_toml())
    assert Extraction.load(tmp_path / "s.toml") == Extraction()


def test_a_file_of_settings_may_hold_only_what_differs(tmp_path):
    (tmp_path / "s.toml").write_text("steps = 4\n[outcome]\nunmeasured = 1.0\n")
    settings = Extraction.load(tmp_path / "s.toml")
    assert (settings.steps, settings.outcome.unmeasured, settings.outcome.range) == (4, 1.0, (0.5, 10.0))


def test_a_place_that_cannot_be_written_is_found_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(UnwritableFile, match=r"cannot be written: Not a directory\. Nothing was written"):
        refuse_taken(tmp_path / "file" / "below" / "out")
    assert refuse_taken(tmp_path / "new" / "out") == tmp_path / "new" / "out"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]

    def full(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    with pytest.raises(UnwritableFile, match="Read-only file system"):
        refuse_taken(tmp_path / "out")


def test_the_dictionary_explains_its_headings():
    page = as_markdown(Hand().chart("sbp", -1, 90).extract("duckdb:").dictionary, "x: columns")
    assert "* **charted**: values that were read for the stays of the table" in page
    assert "each has 4 hours from the onset of sepsis" in page
    assert "| 60 to 200 | 10 | 5 | 1 | 0 |" in page


def test_the_drawing_has_every_rule_with_its_reason_and_number():
    drawn = Flow("ICU stays", 1_000).then("of adults", left=900).then("a rule <that> removes nobody", left=900).as_svg()
    root = ElementTree.fromstring(drawn)
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == [
        "ICU stays", "n = 1,000", "Removed: n = 100", "does not meet: of adults", "Left", "n = 900", "Removed: n = 0",
        "does not meet: a rule <that> removes nobody", "In the table", "n = 900",
    ]  # fmt: skip
    boxes = [box for box in root.iter("{http://www.w3.org/2000/svg}rect") if box.get("x")]
    middle = {float(box.get("x")) + float(box.get("width")) / 2 for box in boxes[::2]}
    down = [line for line in root.iter("{http://www.w3.org/2000/svg}line") if line.get("x1") == line.get("x2")]
    assert {float(line.get("x1")) for line in down} == middle
    assert len(down) == 2
