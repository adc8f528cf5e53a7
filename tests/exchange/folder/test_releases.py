"""What a site posts stands in its ledger, and is the same after whatever happened."""

from __future__ import annotations

import errno
import itertools
import os
from typing import Any

import pytest
from numpy.random import default_rng

from fdtr.errors import ChangedSummary, FdtrError
from fdtr.exchange import atomic_files
from fdtr.exchange.folder.site_steps import take_site_steps
from fdtr.exchange.folder_layout import MASKED, SUMS
from fdtr.exchange.site_state.joined_folders import RoundState, find_joined
from fdtr.exchange.site_state.ledger import site_ledger
from fdtr.exchange.site_state.sent_copies import find_kept
from fdtr.learners.private_fit import Noise
from fdtr.site import fitting
from fdtr.site.fitting import fit_message
from fdtr.site.rows import read_trajectories
from folder_releases import BOTH, at_home, crash, due, reachable, shorter, standing, taken_back, unreachable

pytestmark = pytest.mark.slow

PRIVATE = {"epsilon": 100.0, "delta": 1e-6}


@pytest.fixture
def counted(monkeypatch):
    """Every draw is another, and small: OpenDP's leaves nothing of 120 patients, and two such messages are the same."""
    draws = itertools.count()

    def add(sums: Any) -> Any:
        return sums + 1e-3 * default_rng(next(draws)).normal(size=len(sums))

    monkeypatch.setattr(fitting, "noise_of", lambda _: Noise(1e-3, add))


@BOTH
def test_a_message_that_was_saved_and_not_recorded_is_asked_about_and_goes_out_as_it_is(tmp_path, masked):
    parties = due(tmp_path, masked=masked)
    crash(parties)
    [path] = at_home(parties, SUMS)
    saved = path.read_bytes()
    assert standing(parties) == []
    parties.site("a")
    assert path.read_bytes() == saved
    assert len(standing(parties)) == 1
    if not masked:
        assert parties.snapshot.path(SUMS, "a").read_bytes() == saved
    parties.play()


def test_a_disk_that_fails_after_the_message_is_in_place_leaves_message_and_record_together(tmp_path, monkeypatch):
    parties = due(tmp_path, masked=False)
    flush, failed = atomic_files.flush_folder, []

    def fails_once(folder: int) -> None:
        if not failed and "sums.fdtr" in os.listdir(folder):
            failed.append(folder)
            raise OSError(errno.EIO, "Input/output error")
        flush(folder)

    monkeypatch.setattr(atomic_files, "flush_folder", fails_once)
    with pytest.raises(FdtrError, match="Input/output error"):
        parties.site("a")
    assert standing(parties) == []
    with pytest.raises(FdtrError, match="Nothing was posted"):
        parties.site("a", says=False)
    assert parties.snapshot.sums == {}
    parties.site("a")
    assert parties.snapshot.sums["a"].digest == standing(parties)[0]


@BOTH
def test_what_the_ledger_no_longer_holds_is_asked_about_before_it_is_posted(tmp_path, masked):
    parties = due(tmp_path, masked=masked)
    place = unreachable(parties, masked=masked)
    with pytest.raises(FdtrError, match="could not be written"):
        parties.site("a")
    part = MASKED if masked else SUMS
    [path] = at_home(parties, part)
    saved = path.read_bytes()
    [message] = standing(parties)
    with parties.at_home("a"):
        site_ledger().withdraw(message)  # past the command, which would delete what waits
    reachable(parties, place)
    with pytest.raises(FdtrError, match="Nothing was posted"):
        parties.site("a", says=False)
    assert not parties.snapshot.path(part, "a").exists()
    parties.site("a")
    assert parties.snapshot.path(part, "a").read_bytes() == saved
    assert standing(parties) == [message]


@BOTH
def test_a_message_of_another_table_is_not_recorded_under_the_present_one(tmp_path, masked):
    parties = due(tmp_path, masked=masked)
    crash(parties)
    shorter(tmp_path / "a.csv")
    with pytest.raises(ChangedSummary, match="fdtr site withdraw") as refused:
        parties.site("a")
    assert standing(parties) == []
    message = str(refused.value).partition("site withdraw ")[2][:12]
    assert taken_back(parties, message) == 0  # there was no record to strike
    assert at_home(parties, SUMS) == []
    if not masked:
        parties.site("a")
        assert parties.snapshot.sums["a"].sums.n.max() == 100


def test_who_says_no_may_change_the_table(tmp_path):
    parties = due(tmp_path, masked=False)
    with pytest.raises(FdtrError, match="Nothing was posted"):
        parties.site("a", says=False)
    shorter(tmp_path / "a.csv")
    parties.site("a")
    assert parties.snapshot.sums["a"].sums.n.max() == 100


@BOTH
@pytest.mark.parametrize("why", [FdtrError("There is no terminal."), KeyboardInterrupt()], ids=["nobody", "Ctrl-C"])
def test_who_cannot_be_asked_may_change_the_table(tmp_path, masked, why):
    parties = due(tmp_path, masked=masked)

    def ask(_: object) -> bool:
        raise why

    with parties.at_home("a"), pytest.raises(type(why)):
        take_site_steps(find_joined(), confirm=ask, key=parties.key("a"))
    assert at_home(parties, SUMS) == []
    shorter(tmp_path / "a.csv")
    if masked:
        with pytest.raises(ChangedSummary, match=r"counts of site 'a' .* another table"):
            parties.site("a")
        parties.new_round()
    parties.play()
    assert parties.snapshot.checked_total().sums.n.max() == 340


def test_a_message_that_was_recorded_stays_whatever_is_said_then(tmp_path, monkeypatch):
    parties = due(tmp_path, masked=False)
    with monkeypatch.context() as patched:
        patched.setattr(RoundState, "save_sent", lambda *_: 1 / 0)  # it dies after it recorded
        with pytest.raises(ZeroDivisionError):
            parties.site("a")
    [path] = at_home(parties, SUMS)
    with pytest.raises(FdtrError, match="Nothing was posted"):
        parties.site("a", says=False)
    assert path.exists()
    parties.play()


@pytest.mark.usefixtures("counted")
def test_two_draws_differ(tmp_path):
    parties = due(tmp_path, masked=False, **PRIVATE)
    study = parties.snapshot.study
    rows = read_trajectories(tmp_path / "a.csv", study, "a")
    first, second = (fit_message(study, rows).summary for _ in range(2))
    assert first.digest != second.digest
    assert first.sums.schur.any(axis=(1, 2)).all()


@BOTH
@pytest.mark.usefixtures("counted")
def test_noise_is_drawn_once_whoever_dies_or_begins_another_round(tmp_path, masked):
    parties = due(tmp_path, masked=masked, **PRIVATE)
    crash(parties)
    [path] = at_home(parties, SUMS)
    saved = path.read_bytes()
    with pytest.raises(FdtrError, match="Nothing was posted"):
        parties.site("a", says=False)
    assert path.read_bytes() == saved
    crash(parties)
    assert path.read_bytes() == saved
    parties.all()
    [message] = standing(parties)
    parties.new_round()
    parties.play()
    assert parties.snapshot.number == 2
    assert set(standing(parties)) == {message}
    if not masked:
        assert parties.snapshot.sums["a"].digest == message
        return
    board = parties.snapshot
    with parties.at_home("a"):
        rounded = find_kept(board.checked_total(), "a", board.study)
        [kept] = [p for p in (tmp_path / "homes/a/sent").iterdir() if p.stem == message]
    assert rounded is not None
    assert kept.exists()


@pytest.mark.usefixtures("counted")
def test_noise_that_waits_is_there_when_the_table_is_restored(tmp_path):
    parties = due(tmp_path, masked=False, **PRIVATE)
    crash(parties)
    [path] = at_home(parties, SUMS)
    saved, table = path.read_bytes(), (tmp_path / "a.csv").read_text()
    shorter(tmp_path / "a.csv")
    with pytest.raises(ChangedSummary, match="Restore the table"):
        parties.site("a")
    (tmp_path / "a.csv").write_text(table)
    parties.site("a")
    assert parties.snapshot.path(SUMS, "a").read_bytes() == saved


@pytest.mark.usefixtures("counted")
def test_noise_drawn_in_a_round_that_was_given_up_unasked_is_used_in_the_next(tmp_path):
    parties = due(tmp_path, masked=False, **PRIVATE)
    crash(parties)
    [path] = at_home(parties, SUMS)
    [drawn] = (tmp_path / "homes/a/sent").iterdir()
    parties.site("b")
    parties.new_round()
    parties.site("a")
    assert parties.snapshot.sums["a"].digest == drawn.stem
    assert path.exists()


def test_a_masked_round_leaves_of_the_message_only_what_has_to_be_subtracted(tmp_path):
    parties = due(tmp_path, masked=True)
    parties.play()
    board = parties.snapshot
    [member] = [digest for site, digest in board.checked_total().members if site == "a"]
    assert [path.stem for path in (tmp_path / "homes/a/sent").iterdir()] == [member]
    assert at_home(parties, SUMS) == []
    given_up = due(tmp_path / "given up", masked=True)
    given_up.site("a")
    given_up.new_round()
    given_up.site("a")
    [first, second] = [one for one in given_up.home_of("a").iterdir() if one.is_dir()]
    assert not (first / "sums.fdtr").exists()
    assert not (second / "sums.fdtr").exists()
    (next((tmp_path / "homes/a/sent").iterdir())).unlink()
    with pytest.raises(ChangedSummary, match="Restore it from a copy"):
        parties.site("a", out=tmp_path / "again.policy")
