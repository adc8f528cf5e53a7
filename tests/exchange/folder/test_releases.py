"""What a site posts stands in its ledger, is the same after whatever happened, and is taken back if nobody had it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from fdtr.errors import AlreadyPosted, ChangedSummary, FdtrError, OutOfTurn, UnknownRelease, UnreadableFile
from fdtr.exchange.folder import durable, find_home, take_site_turn, withdraw
from fdtr.exchange.folder.board import SUMS
from fdtr.exchange.folder.parts import MASKED
from fdtr.exchange.kept import find_kept, ledger
from folder_parties import Parties, study_of

PRIVATE = {"epsilon": 100.0, "delta": 1e-6}
BOTH = pytest.mark.parametrize("masked", [False, True], ids=["open", "masked"])


def due(root: Path, *, masked: bool, **asked: object) -> Parties:
    """Site a is about to release: in a masked round the keys are there."""
    parties = Parties(root).set_up(study_of(masked=masked, asked=asked))
    parties.open()
    parties.join_all()
    if masked:
        parties.all()
    return parties


def crash(parties: Parties, site: str = "a") -> None:
    """The site dies when it is asked: its message is saved, and not recorded."""

    class Died(Exception):
        pass

    def dies(_: object) -> bool:
        raise Died

    with parties.at_home(site), pytest.raises(Died):
        take_site_turn(find_home(), parties.key(site), dies)


def unreachable(parties: Parties, *, masked: bool) -> Path:
    """Nothing can be posted: what is in the way."""
    place = parties.folder / "rounds/1" / (MASKED if masked else SUMS)
    for file in place.glob("*"):  # c came last and masked at once
        file.rename(parties.root / file.name)
    if place.exists():
        place.rmdir()
    place.write_text("in the way")
    return place


def reachable(parties: Parties, place: Path) -> None:
    place.unlink()
    place.mkdir()
    for file in parties.root.glob("*.fdtr"):
        file.rename(place / file.name)


def at_home(parties: Parties, part: str, site: str = "a") -> list[Path]:
    return sorted(parties.home_of(site).glob(f"*/{part}.fdtr"))


def standing(parties: Parties, site: str = "a") -> list[str]:
    with parties.at_home(site):
        return [one.message for one in ledger().recorded() if not one.withdrawn]


def taken_back(parties: Parties, message: str, site: str = "a") -> int:
    with parties.at_home(site):
        return len(withdraw(message))


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
        assert parties.board.path(SUMS, "a").read_bytes() == saved
    parties.play()


def test_a_disk_that_fails_after_the_message_is_in_place_leaves_message_and_record_together(tmp_path, monkeypatch):
    parties = due(tmp_path, masked=False)
    flush, failed = durable._flush, []

    def fails_once(folder: int) -> None:
        if not failed and "sums.fdtr" in os.listdir(folder):
            failed.append(folder)
            raise OSError(errno.EIO, "Input/output error")
        flush(folder)

    monkeypatch.setattr(durable, "_flush", fails_once)
    with pytest.raises(FdtrError, match="Input/output error"):
        parties.site("a")
    assert standing(parties) == []
    with pytest.raises(FdtrError, match="Nothing was posted"):
        parties.site("a", says=False)
    assert parties.board.sums == {}
    parties.site("a")
    assert parties.board.sums["a"].digest == standing(parties)[0]


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
        ledger().withdraw(message)  # past the command, which would delete what waits
    reachable(parties, place)
    with pytest.raises(FdtrError, match="Nothing was posted"):
        parties.site("a", says=False)
    assert not parties.board.path(part, "a").exists()
    parties.site("a")
    assert parties.board.path(part, "a").read_bytes() == saved
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
        assert parties.board.sums["a"].sums.n.max() == 100


def shorter(table: Path, patients: int = 100) -> None:
    """Without the last patients."""
    lines = table.read_text().splitlines(keepends=True)
    table.write_text("".join(lines[: 1 + 2 * patients]))


def test_who_says_no_may_change_the_table(tmp_path):
    parties = due(tmp_path, masked=False)
    with pytest.raises(FdtrError, match="Nothing was posted"):
        parties.site("a", says=False)
    shorter(tmp_path / "a.csv")
    parties.site("a")
    assert parties.board.sums["a"].sums.n.max() == 100


@BOTH
def test_a_message_that_waits_is_taken_back_with_its_bytes_and_masks(tmp_path, masked):
    parties = due(tmp_path, masked=masked)
    place = unreachable(parties, masked=masked)
    with pytest.raises(FdtrError, match="could not be written"):
        parties.site("a")
    [message] = standing(parties)
    assert taken_back(parties, message[:12]) == 1
    assert standing(parties) == []
    assert at_home(parties, SUMS) == at_home(parties, MASKED) == []
    reachable(parties, place)
    shorter(tmp_path / "a.csv", patients=115)  # ONCE no longer minds
    if masked:
        with pytest.raises(OutOfTurn, match="its masks are destroyed"):
            parties.site("a")
        parties.new_round()
    parties.play()
    assert standing(parties) != [message]


@BOTH
def test_a_message_that_was_posted_is_not_taken_back_even_if_somebody_hid_it(tmp_path, masked):
    parties = due(tmp_path, masked=masked)
    parties.site("a")
    [message] = standing(parties)
    posted = parties.board.path(MASKED if masked else SUMS, "a")
    for hide in (lambda: None, posted.unlink, lambda: parties.folder.rename(tmp_path / "elsewhere")):
        hide()
        with pytest.raises((AlreadyPosted, UnreadableFile), match="Nothing was struck"):
            taken_back(parties, message)
        assert standing(parties) == [message]
    (tmp_path / "elsewhere").rename(parties.folder)
    parties.new_round()
    parties.site("a")
    with pytest.raises(AlreadyPosted, match="posted in round 1"):
        taken_back(parties, message)
    with pytest.raises(UnknownRelease):
        taken_back(parties, message[:4])


@BOTH
@pytest.mark.parametrize("call", ["fsync", "link"], ids=["while it is written", "after it got its name"])
def test_a_message_whose_posting_failed_midway_is_not_taken_back(tmp_path, monkeypatch, masked, call):
    parties = due(tmp_path, masked=masked)
    place = parties.folder / "rounds/1" / (MASKED if masked else SUMS)
    real = getattr(os, call)

    def fails_on_the_share(*arguments: Any, **options: Any) -> None:
        real(*arguments, **options)
        if any(path.name.startswith((".a-", "a-")) for path in place.glob("*")):
            raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fails_on_the_share)
        with pytest.raises(FdtrError, match="Input/output error"):
            parties.site("a")
    [message] = standing(parties)
    parties.board.path(place.name, "a").unlink(missing_ok=True)  # somebody has it now, and hides it
    with pytest.raises(AlreadyPosted, match="or its posting began and failed"):
        taken_back(parties, message)
    assert standing(parties) == [message]
    parties.play()


@BOTH
def test_that_a_message_was_posted_is_remembered_when_it_is_released_again(tmp_path, masked):
    parties = due(tmp_path, masked=masked)
    parties.site("a")
    [message] = standing(parties)
    with parties.at_home("a"):
        ledger().withdraw(message)  # past the command
    place = unreachable(parties, masked=masked)
    with pytest.raises(FdtrError, match="could not be written"):
        parties.site("a")
    assert standing(parties) == [message]
    reachable(parties, place)
    parties.board.path(place.name, "a").unlink()
    with pytest.raises(AlreadyPosted, match="Nothing was struck"):
        taken_back(parties, message)


@BOTH
def test_noise_is_drawn_once_whoever_dies_or_begins_another_round(tmp_path, masked):
    parties = due(tmp_path, masked=masked, **PRIVATE)
    crash(parties)
    [path] = at_home(parties, SUMS)
    saved = path.read_bytes()
    with pytest.raises(FdtrError, match="Nothing was posted"):
        parties.site("a", says=False)
    crash(parties)
    assert path.read_bytes() == saved
    parties.all()
    [message] = standing(parties)
    parties.new_round()
    parties.play()
    assert parties.board.number == 2
    assert set(standing(parties)) == {message}
    if not masked:
        assert parties.board.sums["a"].digest == message
        return
    board = parties.board
    with parties.at_home("a"):
        rounded = find_kept(board.checked_total(), "a", board.study)
        [kept] = [p for p in (tmp_path / "homes/a/sent").iterdir() if p.stem == message]
    assert rounded is not None
    assert kept.exists()


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
    assert parties.board.path(SUMS, "a").read_bytes() == saved


def test_noise_drawn_in_a_round_that_was_given_up_unasked_is_used_in_the_next(tmp_path):
    parties = due(tmp_path, masked=False, **PRIVATE)
    crash(parties)
    [path] = at_home(parties, SUMS)
    [drawn] = (tmp_path / "homes/a/sent").iterdir()
    parties.site("b")
    parties.new_round()
    parties.site("a")
    assert parties.board.sums["a"].digest == drawn.stem
    assert path.exists()


def test_a_masked_round_leaves_of_the_message_only_what_has_to_be_subtracted(tmp_path):
    parties = due(tmp_path, masked=True)
    parties.play()
    board = parties.board
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
