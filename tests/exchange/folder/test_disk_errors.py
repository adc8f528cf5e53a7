"""A disk that fails or is full at whatever call: a sentence, nothing half-written, and the next turn goes on."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest

from command_line import start
from crash_points import EVERY, PROGRAM, at, fail, hook, spread
from fdtr.errors import FdtrError
from fdtr.signing import HUB
from folder_disk import MASKED_TURNS, OPEN_TURNS, Disk, require_same
from folder_parties import SITES, Parties, study_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("weights_of_the_seed")]

PLAYED = 10


def fails(parties: Parties, turn: str, point: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a turn reaches the boundary, where the disk fails. It ends as if nothing were, or with a sentence."""
    reached = False

    def now(name: str) -> None:
        nonlocal reached
        reached = True
        fail(name, errno.EIO if point % 2 else errno.ENOSPC)

    with monkeypatch.context() as patched:
        hook(at(point, now), patched.setattr)
        with suppress(FdtrError):  # the command line prints it and ends with 1
            parties.turn(turn)
    return reached


def calls_of(parties: Parties, turn: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls at the boundaries of a turn that nothing disturbs."""
    calls: list[str] = []
    with monkeypatch.context() as patched:
        hook(calls.append, patched.setattr)
        parties.turn(turn)
    return calls


@EVERY
@pytest.mark.parametrize("masked", [False, True], ids=["open", "masked"])
def test_a_party_whose_disk_fails_at_any_call_goes_on(in_memory, repeatable, monkeypatch, masked, every):
    turns = MASKED_TURNS if masked else OPEN_TURNS
    parties = Parties(in_memory / "work").set_up(study_of(masked=masked))
    disk = Disk(parties)
    start = disk.look()
    for turn in turns:
        parties.turn(turn)
    expected = {site: parties.policy(site) for site in SITES}
    disk.put_back(start)
    points = states = 0
    met, tried = set[str](), set[str]()
    for number, turn in enumerate(turns):
        before = disk.look()
        parties.turn(turn)
        after, seen = (disk.content(turn), disk.recorded(turn)), set[int]()
        disk.put_back(before, turn)
        calls = calls_of(parties, turn, monkeypatch)
        disk.put_back(before, turn)
        points += len(calls)
        met |= set(calls)
        for i in spread(calls, number, every, tried):
            assert fails(parties, turn, i + 1, monkeypatch)
            disk.require_whole()
            if (condition := disk.condition(turn)) not in seen:
                seen.add(condition)
                parties.turn(turn)
                assert (disk.content(turn), disk.recorded(turn)) == after
                states += 1
                if states % PLAYED == 0:
                    for following in turns[number + 1 :]:
                        parties.turn(following)
                    require_same(parties, expected)
                    disk.put_back(before)
            disk.put_back(before, turn)
        assert not fails(parties, turn, len(calls) + 1, monkeypatch)
        assert (disk.content(turn), disk.recorded(turn)) == after
    require_same(parties, expected)
    print(f"{points} failures, {states} different disks")
    assert points >= (600 if masked else 250)
    assert tried == met


def test_what_is_posted_after_a_failure_is_in_the_ledger(in_memory, repeatable, monkeypatch):
    parties = Parties(in_memory / "work").set_up(study_of(masked=False))
    parties.open()
    parties.join_all()
    disk, point = Disk(parties), 1
    start = disk.look()
    while fails(parties, "c", point, monkeypatch):
        parties.turn("c")
        assert len(disk.recorded("c")) == 1
        disk.put_back(start, "c")
        point += 1


@pytest.mark.parametrize(("party", "point"), [("c", 1), ("c", 15), (HUB, 3)])
def test_a_command_whose_disk_fails_says_so_and_ends_with_1(tmp_path, party, point):
    parties = Parties(tmp_path).set_up(study_of(masked=False))
    for turn in ("open", "join a", "join b", "join c", "a", "b", *(["c"] if party == HUB else [])):
        parties.turn(turn)
    command = ["hub", "next", "shared", "--key", "hub.key"] if party == HUB else ["site", "next", "--yes"]
    failing = ("fail", point, "unused", *command)
    done = start(*failing, cwd=tmp_path, program=PROGRAM, FDTR_STATE=f"homes/{party}").done()
    assert done.returncode == 1, done.stdout
    assert "Traceback" not in done.stderr
    assert "nobody foresaw" not in done.stderr
    assert "error" in done.stderr
    parties.play()
