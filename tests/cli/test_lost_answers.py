"""`fdtr site summarize` on a disk that fails: the record stays with whatever may have been written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fdtr.cli.app import app
from fdtr.errors import PerhapsWritten, UnwritableFile
from fdtr.exchange.site_state.ledger import site_ledger
from fdtr.exchange.site_state.sent_copies import find_copy
from folder_parties import Parties, study_of


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FDTR_STATE", str(tmp_path / "state"))
    Parties(tmp_path).set_up(study_of(masked=False, roster=False))
    return tmp_path


def summarize() -> None:
    command = ["site", "summarize", "study.toml", "a.csv", "--out", "m.fdtr", "--yes"]
    done = CliRunner().invoke(app, command)
    if done.exception is not None:
        raise done.exception


def failing(monkeypatch: pytest.MonkeyPatch, *, renamed: bool) -> None:
    """The message's own rename fails, before it was done or after."""
    real = os.replace

    def replace(source: Path, target: Path) -> None:
        ours = Path(target).name == "m.fdtr"
        if renamed or not ours:
            real(source, target)
        if ours:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "replace", replace)


def test_a_message_whose_answer_was_lost_keeps_its_record_and_its_copy(place, monkeypatch):
    with monkeypatch.context() as patched:
        failing(patched, renamed=True)
        with pytest.raises(PerhapsWritten, match="The ledger keeps its record"):
            summarize()
    [recorded] = site_ledger().recorded()
    assert (place / "m.fdtr").exists()
    assert find_copy(recorded.message) is not None
    summarize()
    assert {one.message for one in site_ledger().recorded()} == {recorded.message}


def test_a_message_that_was_surely_not_written_leaves_neither(place, monkeypatch):
    failing(monkeypatch, renamed=False)
    with pytest.raises(UnwritableFile, match="Nothing was written"):
        summarize()
    assert site_ledger().recorded() == []
    assert not list(place.rglob("*.fdtr"))
