"""The folder of an extraction: whole, described, and loadable."""

import csv

import pyarrow.parquet as pq
import pytest

from cohort_relations import SETTINGS, Hand
from fdtr.cohort.extraction_folder import require_new_folder, write_extraction
from fdtr.cohort.extraction_settings import ExtractionSettings
from fdtr.cohort.study_drafts import draft_study_from_settings
from fdtr.errors import InvalidStudy, OutputExists, UnwritableFile
from fdtr.site.rows import read_trajectories
from fdtr.study import Study


def test_the_folder_holds_a_table_that_its_study_reads(tmp_path):
    found = Hand(6).chart("sbp", -1, 90).extract("duckdb:")
    write_extraction(found, draft_study_from_settings(SETTINGS), tmp_path / "out", {"more/notes.md": b"x"})
    names = {str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert names == {
        "table.parquet", "study.toml", "settings.toml", "dictionary.csv", "dictionary.md", "flow.csv", "flow.svg",
        "missing.csv", "more/notes.md",
    }  # fmt: skip
    study = Study.load(tmp_path / "out" / "study.toml")
    assert read_trajectories(tmp_path / "out" / "table.parquet", study).n_patients == 6
    assert ExtractionSettings.load(tmp_path / "out" / "settings.toml") == SETTINGS
    described = {
        row["column"] for row in csv.DictReader((tmp_path / "out" / "dictionary.csv").read_text().splitlines())
    }
    assert described == set(pq.read_schema(tmp_path / "out" / "table.parquet").names)


def test_a_folder_that_is_taken_or_a_study_that_is_wrong_leaves_nothing(tmp_path):
    found = Hand().extract("duckdb:")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(OutputExists, match="exists already"):
        write_extraction(found, draft_study_from_settings(SETTINGS), tmp_path / "out")
    with pytest.raises(InvalidStudy, match="The study is not valid"):
        write_extraction(found, "format = 1", tmp_path / "other")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_place_that_cannot_be_written_is_found_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(UnwritableFile, match=r"cannot be written: Not a directory\. Nothing was written"):
        require_new_folder(tmp_path / "file" / "below" / "out")
    assert require_new_folder(tmp_path / "new" / "out") == tmp_path / "new" / "out"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]

    def full(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    with pytest.raises(UnwritableFile, match="Read-only file system"):
        require_new_folder(tmp_path / "out")
