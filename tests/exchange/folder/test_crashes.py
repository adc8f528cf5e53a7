"""Whoever dies at whatever write: nothing is corrupt, nothing is lost, and the next turn goes on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import default_rng

from crash_points import crash_at
from fdtr.exchange.folder import home, masked_site, player
from fdtr.exchange.kept import ledger
from fdtr.learners.private import Noise
from fdtr.masking import start
from fdtr.policy import Policy
from fdtr.signing import HUB
from fdtr.site import fits
from fdtr.summary import Total
from folder_parties import SITES, Parties, study_of
from secure_sum import entropy

pytestmark = pytest.mark.slow

CRASHED = 17
FEWEST_POINTS = 200
PLAYED = 25
OPEN_TURNS = ["open", "join a", "join b", "join c", "a", "b", "c", "hub", "a", "b", "c"]
MASKED_TURNS = [
    *["open", "join a", "join b", "join c"],
    *["a", "b", "c", "a", "b"],  # keys and masked messages; c, who comes last, does both at once
    *["hub", "a", "b", "c", "a", "b"],  # the list, signatures under it, openings
    *["hub", "a", "b", "c"],
]


def dies(parties: Parties, turn: str, point: int) -> bool:
    """Whether a child that takes the turn reaches the boundary, and dies there."""
    child = os.fork()
    if child == 0:
        try:
            crash_at(point, lambda: os._exit(CRASHED))
            parties.turn(turn)
        except BaseException:
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, CRASHED)
    return code == CRASHED


def require_whole(parties: Parties) -> None:
    """Every file that others read is whole; what is half-written has a name that readers pass over."""
    if (parties.folder / "rounds/1/hub/begun.fdtr").exists():
        assert parties.board.faults == ()
    for path in parties.folder.rglob("*"):
        assert path.is_dir() or path.stat().st_size or path.name.startswith(".")


def touched(parties: Parties, turn: str) -> list[str]:
    """The folders that a turn writes into: the shared one and its party's home."""
    return ["shared", f"homes/{HUB if turn in ('open', HUB) else turn.removeprefix('join ')}"]


def everything(parties: Parties, turn: str) -> dict[str, bytes | list[str]]:
    """All files that a turn may touch, shared and private, but for the ledger's secret and times."""
    found: dict[str, bytes | list[str]] = {}
    for folder in touched(parties, turn):
        for path in sorted((parties.root / folder).rglob("*")):
            if path.is_file() and "ledger" not in path.parts:
                found[str(path.relative_to(parties.root))] = path.read_bytes()
    with parties.at_home(Path(touched(parties, turn)[1]).name):
        found["ledger"] = sorted({one.message for one in ledger().recorded()})
    return found


def put_back(parties: Parties, before: Path, folders: list[str]) -> None:
    for folder in folders:
        shutil.rmtree(parties.root / folder, ignore_errors=True)
        if (before / folder).exists():
            shutil.copytree(before / folder, parties.root / folder)


def require_same_ending(parties: Parties, expected: dict[str, Policy], total: Total) -> None:
    assert parties.board.checked_total() == total
    for site, policy in expected.items():
        found = parties.policy(site)
        np.testing.assert_array_equal(found.theta, policy.theta)
        np.testing.assert_array_equal(found.precision, policy.precision)


@pytest.fixture
def repeatable(monkeypatch):
    """Tables are read once, and nobody waits for the disk, which survives a process; the same keys are drawn again."""
    seen: dict[str, Any] = {}
    read = player.read_trajectories

    def once(path: Path, *arguments: Any) -> Any:
        if str(path) not in seen:
            seen[str(path)] = read(path, *arguments)
        return seen[str(path)]

    monkeypatch.setattr(player, "read_trajectories", once)
    monkeypatch.setattr(home, "read_trajectories", once)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(
        fits, "noise_of", lambda _: Noise(2.0, lambda sums: sums + 2.0 * default_rng(0).normal(size=len(sums)))
    )
    monkeypatch.setattr(
        masked_site, "start", lambda agreed, site, history: start(agreed, site, history, entropy(site, agreed.context))
    )


@pytest.mark.parametrize(
    ("masked", "asked"),
    [(False, {}), (True, {}), (False, {"epsilon": 100.0, "delta": 1e-6})],
    ids=["open", "masked", "noised"],
)
def test_a_party_that_dies_at_any_write_goes_on(tmp_path, repeatable, masked, asked):
    turns = MASKED_TURNS if masked else OPEN_TURNS
    parties = Parties(tmp_path / "work").set_up(study_of(masked=masked, asked=asked))
    before = tmp_path / "before"
    shutil.copytree(parties.root, before)

    for turn in turns:
        parties.turn(turn)
    total = parties.board.checked_total()
    policies = {site: parties.policy(site) for site in SITES}
    put_back(parties, before, ["shared", "homes"])
    points = 0
    for number, turn in enumerate(turns):
        folders = touched(parties, turn)
        parties.turn(turn)
        expected, point = everything(parties, turn), 1
        put_back(parties, before, folders)
        while dies(parties, turn, point):
            require_whole(parties)
            parties.turn(turn)
            # Where everything is as if nobody had died, the rest of the round is too: it is played now and then.
            assert everything(parties, turn) == expected
            points += 1
            if points % PLAYED == 0:
                for following in turns[number + 1 :]:
                    parties.turn(following)
                require_same_ending(parties, policies, total)
                put_back(parties, before, ["homes"])
            put_back(parties, before, folders)
            point += 1
        put_back(parties, before, folders)
        parties.turn(turn)
        shutil.rmtree(before)
        shutil.copytree(parties.root, before)
    print(f"{points} crashes")
    assert points >= (FEWEST_POINTS if masked else FEWEST_POINTS // 2)


@pytest.mark.parametrize("point", [1, 3, 6, 9, 12, 15, 18, 21, 25, 29])
def test_a_real_process_that_is_killed_goes_on(tmp_path, point):
    parties = Parties(tmp_path / "work").set_up(study_of(masked=True))
    for turn in ("open", "join a", "join b", "join c", "a", "b"):
        parties.turn(turn)
    marker = tmp_path / "there"
    process = subprocess.Popen(
        [sys.executable, "-m", "crash_points", str(point), str(marker), "site", "next", "--yes"],
        env={**os.environ, "FDTR_STATE": str(parties.root / "homes" / "c"), "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        until = time.monotonic() + 60
        while not marker.exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        assert marker.exists(), process.communicate()[0]
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    require_whole(parties)
    parties.play()
    assert parties.board.checked_total().sites == SITES
    assert not list(parties.root.rglob(".*.part"))
