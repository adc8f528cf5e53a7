"""Strangers' files in a study's folder: named, left out, and harmless."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from fdtr.errors import DamagedFile, NoStudyFolder, OtherPosting, ProtocolViolation, UnreadableFile, UnwritableFile
from fdtr.exchange import atomic_files
from fdtr.exchange.folder import round_snapshot
from fdtr.exchange.folder.round_files import seal_begun, seal_part
from fdtr.exchange.folder.round_snapshot import read_round
from fdtr.exchange.folder_layout import CONFIRMED, KEYS, MASKED, OPENED, SUMS, file_name
from fdtr.masking import Announcements
from fdtr.signing import HUB, Key, numbered_round
from folder_parties import Parties, key_of, study_of
from time_limit import within


def begun(root: Path, *, masked: bool) -> Parties:
    parties = Parties(root).set_up(study_of(masked=masked))
    parties.open()
    return parties.join_all()


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_each_is_ignored_with_its_own_reason(tmp_path):
    parties = begun(tmp_path, masked=False)
    parties.all("a", "b")
    board = parties.snapshot
    good = board.path(SUMS, "a").read_bytes()
    target = board.path(SUMS, "c")
    cases = {
        good: "is of 'a' and lies under the name of 'c'",
        good[:-8]: "was not read",
        good + b"\0": "was not read",
        bytes(len(good)): "has a header of 8 bytes",
        pickle.dumps({"a": 1}): "Python pickle",
        good[:-1] + bytes([good[-1] ^ 1]): "checksum differs",
        b"": "was not read",
    }
    for content, reason in cases.items():
        put(target, content)
        found = parties.snapshot
        assert "c" not in found.sums
        [fault] = found.faults
        assert fault.startswith(f"Ignored: {target}")
        assert reason in fault
        turn = parties.hub()
        assert turn.notes == (fault,)
        assert "Messages of c" in turn.waits
        with pytest.raises(OtherPosting, match=r"there already, with other content"):
            parties.site("c")
        assert target.read_bytes() == content
    target.unlink()
    parties.play()


def test_huge_files_links_pipes_and_folders_are_not_read(tmp_path):
    parties = begun(tmp_path, masked=False)
    target = parties.snapshot.path(SUMS, "c")
    target.parent.mkdir(exist_ok=True)
    with target.open("wb") as file:
        file.truncate(2**30)
    assert "1,073,741,824 bytes" in parties.snapshot.faults[0]
    target.unlink()
    secret = put(tmp_path / "secret", b"x" * 100)
    target.symlink_to(secret)
    assert "is a link" in parties.snapshot.faults[0]
    target.unlink()
    target.symlink_to(tmp_path / "nothing")
    assert "is a link" in parties.snapshot.faults[0]
    target.unlink()
    os.mkfifo(target)
    with within(10):
        assert "a pipe" in parties.snapshot.faults[0]
    target.unlink()
    target.mkdir()
    assert "is a folder" in parties.snapshot.faults[0]
    with pytest.raises(OtherPosting):
        parties.site("c")
    target.rmdir()
    with (parties.folder / "study.toml").open("r+b") as file:
        file.truncate(2**30)
    with pytest.raises(DamagedFile, match="too long for a study file"):
        read_round(parties.folder)


def linked(place: Path, elsewhere: Path) -> Path:
    """Move a folder elsewhere, and leave a link to it in its place."""
    elsewhere.mkdir(exist_ok=True)
    if place.exists():
        elsewhere.rmdir()
        place.rename(elsewhere)
    place.symlink_to(elsewhere)
    return elsewhere


@pytest.mark.parametrize("place", ["rounds/1/sums", "rounds/1", "rounds"])
def test_no_link_among_the_folders_is_followed(tmp_path, place):
    parties = begun(tmp_path, masked=False)
    parties.site("a")
    elsewhere = linked(parties.folder / place, tmp_path / "elsewhere")
    before = sorted(elsewhere.rglob("*"))
    if place == "rounds/1/sums":
        [fault] = parties.snapshot.faults  # once, not for each site
        assert fault.startswith(f"Ignored: {parties.folder / place} is a link")
        assert parties.snapshot.sums == {}
        with pytest.raises(UnwritableFile, match=f"{place} is a link"):
            parties.site("b")
    else:
        with pytest.raises(NoStudyFolder, match=f"{place} is a link"):
            read_round(parties.folder)
    assert sorted(elsewhere.rglob("*")) == before


def test_nothing_is_swept_or_posted_behind_a_link_of_the_hub_folder(tmp_path):
    parties = begun(tmp_path, masked=False)
    parties.all()
    place = parties.folder / "rounds/1/hub"
    elsewhere = linked(place, tmp_path / "elsewhere")
    half = put(elsewhere / ".total.fdtr.0123abcd.part", b"not the hub's")
    with pytest.raises(NoStudyFolder, match="hub is a link"):
        parties.hub()
    atomic_files.clean_up(place / "total.fdtr")
    with pytest.raises(UnwritableFile, match="hub is a link"):
        atomic_files.post(place / "total.fdtr", b"x")
    assert half.exists()
    assert not (elsewhere / "total.fdtr").exists()


def test_the_way_to_the_folder_may_be_a_link_and_its_study_may_not(tmp_path):
    parties = begun(tmp_path, masked=False)
    parties.all()
    (tmp_path / "way").symlink_to(parties.folder)
    assert sorted(read_round(tmp_path / "way").sums) == ["a", "b", "c"]
    study = parties.folder / "study.toml"
    study.rename(tmp_path / "elsewhere.toml")
    study.symlink_to(tmp_path / "elsewhere.toml")
    with pytest.raises(UnreadableFile, match=r"study\.toml is a link"):
        read_round(parties.folder)
    with pytest.raises(UnreadableFile, match=r"study\.toml is a link"):
        parties.open()


def plant(place: Path, number: int) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for i in range(number):
        os.close(os.open(place / f"{i:06}-planted.fdtr", os.O_CREAT | os.O_WRONLY, 0o644))


@pytest.mark.parametrize("roster", [True, False])
def test_planted_files_hide_no_site_however_many(tmp_path, monkeypatch, roster):
    monkeypatch.setattr(round_snapshot, "_MOST_COUNTED", 50)
    parties = Parties(tmp_path).set_up(study_of(masked=False, roster=roster))
    parties.open()
    parties.join_all()
    plant(parties.folder / "rounds/1/sums", 100)
    plant(parties.folder / "rounds", 100)
    parties.all()
    board = parties.snapshot
    assert board.sites == ("a", "b", "c")
    assert len(board.faults) == 21
    assert board.faults[-1] == f"Ignored: at least {30 if roster else 80} more."
    assert parties.hub(close=True).done


def test_a_strangers_file_name_writes_nothing_on_a_terminal(tmp_path):
    parties = begun(tmp_path, masked=False)
    for name in (b"\x1b[2J\x07.fdtr", b"\xff\n.fdtr"):
        put(parties.snapshot.path(SUMS, "a").with_name(os.fsdecode(name)), b"")
    assert all(fault.isprintable() for fault in parties.snapshot.faults)
    assert len(parties.snapshot.faults) == 2


def test_names_of_nobody_and_copies_of_a_synced_folder_are_named(tmp_path):
    parties = begun(tmp_path, masked=True)
    parties.all()
    keys = parties.snapshot.path(KEYS, "a")
    copy = put(keys.with_name(f"{keys.stem} (conflicted copy).fdtr"), keys.read_bytes())
    put(keys.with_name(".a.fdtr.0123abcd.part"), b"half")
    put(parties.folder / ".sync/journal", b"")
    put(parties.folder / "README.md", b"ours")
    [fault] = parties.snapshot.faults
    assert fault == f"Ignored: {copy} is under no name of this study's sites."
    parties.play()


def test_without_a_roster_a_message_counts_under_its_own_name_alone(tmp_path):
    parties = Parties(tmp_path).set_up(study_of(masked=False, roster=False))
    parties.open()
    parties.join_all().site("a")
    place = parties.folder / "rounds/1/sums"
    moved = (place / file_name("a")).rename(place / file_name("b"))
    assert parties.snapshot.sums == {}
    [fault] = parties.snapshot.faults
    assert fault == f"Ignored: {moved} is of 'a' and lies under another name."


def test_parts_of_another_round_or_key_or_sender_are_left_out(tmp_path):
    parties = begun(tmp_path, masked=True)
    parties.site("a")
    board = parties.snapshot
    mine = board.keys["a"]
    stranger, later = Key.new(), numbered_round(board.study.fingerprint, board.study.roster, 2)
    forged = Announcements(*(replace(key, site="b") for key in (mine.sums, mine.counts)))
    target = board.path(KEYS, "b")
    other_roster = numbered_round(board.study.fingerprint, {**board.study.roster, "b": stranger.public}, 1)
    cases = {
        seal_part(KEYS, "b", forged, later, key_of("b")): "is of round '2'",
        seal_part(KEYS, "b", forged, other_roster, stranger): "another list of keys",
        seal_part(KEYS, "a", mine, board.within, key_of("a")): "lies under the name of 'b'",
        seal_part(KEYS, "b", mine, board.within, key_of("b")): "holds a part of 'a'",
        seal_part(CONFIRMED, "b", forged, board.within, key_of("b")): "holds a confirmed, not a keys",
    }
    for content, reason in cases.items():
        put(target, content)
        [fault] = parties.snapshot.faults
        assert reason in fault
        assert "b" not in parties.snapshot.keys
    # Signed as a letter, but not as the secure sum asks: the site that would mask with it refuses.
    put(target, seal_part(KEYS, "b", forged, board.within, key_of("b")))
    for site in "ca":
        with pytest.raises(ProtocolViolation, match="'b' announced is not signed"):
            parties.site(site)
    assert parties.snapshot.counting.masked == {}


def test_a_round_that_the_hub_did_not_begin_is_ignored(tmp_path):
    parties = begun(tmp_path, masked=True)
    parties.all("a")
    later = numbered_round(parties.snapshot.study.fingerprint, parties.snapshot.study.roster, 2)
    place = parties.folder / "rounds/2/hub/begun.fdtr"
    forged = seal_begun(numbered_round(later.fingerprint, {}, 2), None)
    for content in (b"", forged, (parties.folder / "rounds/1/hub/begun.fdtr").read_bytes()):
        put(place, content)
        board = parties.snapshot
        assert board.number == 1
        assert str(place) in board.faults[0]
    put(parties.folder / "rounds/../rounds/-3/hub/begun.fdtr", forged)
    put(parties.folder / "rounds/99999/hub/begun.fdtr", forged)
    assert parties.snapshot.number == 1
    put(place, seal_begun(later, key_of(HUB)))
    assert parties.snapshot.number == 2


def test_a_folder_without_a_round_says_so(tmp_path):
    parties = begun(tmp_path, masked=False)
    begun_file = parties.folder / "rounds/1/hub/begun.fdtr"
    put(begun_file, b"x" * 2048)
    with pytest.raises(NoStudyFolder, match="has no round that the hub opened"):
        read_round(parties.folder)


def test_an_opening_or_confirmation_that_is_damaged_counts_as_absent(tmp_path):
    parties = begun(tmp_path, masked=True).count()
    parties.all()
    parties.all()
    parties.hub()
    parties.all()
    path = parties.snapshot.path(CONFIRMED, "b")
    right = path.read_bytes()
    put(path, right[:-1] + b"!")
    assert "of b" in parties.site("a").waits
    put(path, right)
    parties.all()
    for part in (OPENED, MASKED):
        path = parties.snapshot.path(part, "b")
        right = path.read_bytes()
        put(path, bytes(len(right)))
        assert parties.snapshot.total is None
        if part == OPENED:
            assert "Openings of b" in parties.hub().waits
        put(path, right)
    parties.play()


def test_site_names_cannot_leave_the_folder():
    names = ["../../etc/passwd", "a/b", "..", "CON", "con", "é", "e\u0301", "a" * 64, "Ä", "ä"]
    files = [file_name(name) for name in names]
    assert len({file.lower() for file in files}) == len(names)
    assert all(Path(file).name == file and file.isascii() and not file.startswith(".") for file in files)
