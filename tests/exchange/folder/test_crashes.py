"""Whoever dies at whatever write: nothing is corrupt, nothing is lost, and the next turn goes on."""

from __future__ import annotations

import signal
import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from command_line import start
from crash_points import EVERY, PROGRAM, hook, spread
from fdtr.policy import Policy
from fdtr.signing import HUB
from fdtr.study import Study
from folder_disk import MASKED_TURNS, OPEN_TURNS, Disk, Tree, require_same
from folder_parties import EXACT, SITES, Parties, study_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("weights_of_the_seed")]

PLAYED = 10


def study_like(kind: str) -> Study:
    """An open study, one with a secure sum, or an open one with the noise of differential privacy; exact or not."""
    noised = {"epsilon": 100.0, "delta": 1e-6} if kind == "noised" else {}
    return study_of(masked="masked" in kind, disclosure=noised | (EXACT if "exact" in kind else {}))


@cache
def undisturbed(kind: str) -> dict[str, Policy]:
    """The policies of a round in which nobody died; masks differ from round to round, and sums do not."""
    with TemporaryDirectory() as place:
        parties = Parties(Path(place)).set_up(study_like(kind))
        parties.open()
        parties.join_all().play()
        return {site: parties.policy(site) for site in SITES}


def deaths(disk: Disk, turn: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[tuple[str, Tree]]]:
    """The number of a turn's boundaries, and each different disk that they leave, with the call at that boundary.

    A process that dies leaves what lies on the disk then, so that one life shows all of its deaths.
    """
    boundaries: list[tuple[str, Tree]] = []
    with monkeypatch.context() as patched:
        hook(lambda call: boundaries.append((call, disk.look(turn))), patched.setattr)
        disk.parties.turn(turn)
    different = [boundary for i, boundary in enumerate(boundaries) if i == 0 or boundary[1] != boundaries[i - 1][1]]
    return len(boundaries), different


@EVERY
@pytest.mark.parametrize("kind", ["open", "masked", "noised"])
def test_a_party_that_dies_at_any_write_goes_on(in_memory, repeatable, monkeypatch, kind, every):
    turns = MASKED_TURNS if kind == "masked" else OPEN_TURNS
    parties = Parties(in_memory / "work").set_up(study_like(kind))
    disk = Disk(parties)
    points = states = 0
    met, tried = set[str](), set[str]()
    expected = undisturbed(kind)
    for number, turn in enumerate(turns):
        before = disk.look()
        reached, different = deaths(disk, turn, monkeypatch)
        after = disk.content(turn), disk.recorded(turn)
        points += reached
        calls = [call for call, _ in different]
        met |= set(calls)
        for i in spread(calls, number, every, tried):
            disk.put_back(different[i][1], turn)
            disk.require_whole()
            parties.turn(turn)
            assert (disk.content(turn), disk.recorded(turn)) == after
            states += 1
            if states % PLAYED == 0:
                for following in turns[number + 1 :]:
                    parties.turn(following)
                require_same(parties, expected)
                disk.put_back(before)
        disk.put_back(before)
        parties.turn(turn)
    require_same(parties, expected)
    print(f"{points} deaths, {states} different disks")
    assert points >= (600 if kind == "masked" else 250)
    assert tried == met


def killed(parties: Parties, party: str, point: int) -> None:
    """A process of its own takes the party's turn, and is killed at a boundary."""
    marker = parties.root / "there"
    where = ["hub", "next", str(parties.folder), "--key", str(parties.root / "hub.key")]
    command = where if party == HUB else ["site", "next", "--yes"]
    state = str(parties.root / "homes" / party)
    process = start("die", point, marker, *command, cwd=parties.root, program=PROGRAM, FDTR_STATE=state)
    until = time.monotonic() + 60
    while not marker.exists() and not process.ended and time.monotonic() < until:
        time.sleep(0.02)
    there = marker.exists()
    process.kill()
    done = process.done()
    assert there, done.stdout + done.stderr
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("kind", "before", "party", "points"),
    [
        ("masked", "a b", "c", (1, 19, 38, 55)),
        ("masked", "a b c a b", HUB, (2, 5)),
        ("masked", "a b c a b hub a b c a b", HUB, (4,)),
        ("open", "a b", "c", (3, 25)),
        ("open", "a b c", HUB, (2, 7)),
        ("open", "a b c hub", "a", (5,)),
    ],
    ids=["site masks", "hub lists", "hub unmasks", "site posts", "hub adds", "site finishes"],
)
def test_a_real_process_that_is_killed_goes_on(in_memory, kind, before, party, points):
    for point in points:
        parties = Parties(in_memory / str(point)).set_up(study_like(f"exact {kind}"))
        for turn in ("open", "join a", "join b", "join c", *before.split()):
            parties.turn(turn)
        killed(parties, party, point)
        Disk(parties).require_whole()
        parties.turn(party)
        parties.play()
        require_same(parties, undisturbed(f"exact {kind}"))
        assert not list(parties.root.rglob(".*.part"))
