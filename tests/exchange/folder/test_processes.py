"""A whole study through a folder: five hospitals and a hub as processes of their own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import command_line
import fdtr
from command_line import FDTR, Running, start
from fdtr.policy import Policy
from fdtr.signing import HUB
from folder_parties import EXACT, Parties, key_of, study_of
from random_tables import make_table

pytestmark = pytest.mark.slow

SITES = ("north", "south", "east", "west", "St. Mary's / ICU")
N = 150
UNTIL_DONE = """
import contextlib, io, json, sys, time
from fdtr.cli.app import app
arguments, until = sys.argv[1:], time.monotonic() + 90
while time.monotonic() < until:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        app([*arguments, "--json"], standalone_mode=False)
    if not json.loads(said.getvalue())["waits"]:
        sys.exit(0)
    time.sleep(0.1)
sys.exit("still waiting")
"""


def command(parties: Parties, name: str, *arguments: object, program: str = FDTR) -> Running:
    """A process of a party, which runs fdtr, or a `program` around it."""
    state = str(parties.root / "homes" / plain(name))
    return start(*arguments, cwd=parties.root, program=program, FDTR_STATE=state)


def plain(name: str) -> str:
    return name.replace("/", "-")


def done(process: Running) -> str:
    ended = process.done()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def refused(process: Running, sentence: str) -> None:
    command_line.refused(process.done(), sentence)


def all_done(processes: list[Running]) -> list[str]:
    return [done(process) for process in processes]


@pytest.fixture(params=[False, True], ids=["open", "masked"])
def study(request):
    return study_of(SITES, masked=request.param, disclosure=EXACT, learning={"ridge": 1e-5})


@pytest.fixture
def parties(in_memory, study):
    parties = Parties(in_memory, SITES)
    study.save(in_memory / "study.toml")
    pa.csv.write_csv(make_table(study, dict.fromkeys(SITES, N)), in_memory / "table.csv")
    for name in (*SITES, HUB):
        key_of(name).save(in_memory / f"{plain(name)}.key")
    done(command(parties, HUB, "hub", "open", "shared", "study.toml", "--key", "hub.key"))
    join = ("site", "join", "shared", "--data", "table.csv")
    joins = [command(parties, site, *join, "--site", site, "--key", f"{plain(site)}.key") for site in SITES]
    assert all("compare by telephone" in said for said in all_done(joins))
    return parties


def test_the_policies_are_those_of_one_table(parties, study):
    masked = study.disclosure.secure_sum
    refused(command(parties, HUB, "site", "next"), "Run `fdtr site join FOLDER` first")
    if not masked:
        refused(command(parties, "north", "site", "next"), "Add --yes to answer beforehand")
    go_on = ("site", "next", "shared", "--yes", "--out")
    loops = [command(parties, site, *go_on, f"{i}.policy", program=UNTIL_DONE) for i, site in enumerate(SITES)]
    hub = command(parties, HUB, "hub", "next", "shared", "--key", "hub.key", program=UNTIL_DONE)
    all_done([hub, *loops])
    told = json.loads(done(command(parties, "anybody", "status", "shared", "--json")))
    assert told["total"] == sorted(SITES)
    assert told["faults"] == []
    assert "The total is there" in done(command(parties, "anybody", "status", "shared"))
    assert "Nothing is left to do" in done(command(parties, "west", "site", "next"))

    rows = fdtr.read_trajectories(parties.root / "table.csv", study)
    results = fdtr.run(study, rows)
    for number, site in enumerate(SITES):
        policy, expected = Policy.load(parties.root / f"{number}.policy"), results.federated[site].policy
        if not masked:
            np.testing.assert_array_equal(policy.theta, expected.theta)
            np.testing.assert_array_equal(policy.precision, expected.precision)
            continue
        assert np.abs(policy.theta - expected.theta).max() <= 1e-7 * np.abs(expected.theta).max()
        for step in range(study.horizon):
            states = _states(parties.root, site, study, step)
            bounds = np.sort(expected.lower_bound(states, step), axis=1)
            clear = bounds[:, -1] - bounds[:, -2] > 1e-6
            assert clear.mean() > 0.9
            assert (policy.act(states, step) == expected.act(states, step))[clear].all()


def _states(root: Path, site: str, study, step: int) -> pa.Table:
    table = pa.csv.read_csv(root / "table.csv")
    here = pa.compute.and_(pa.compute.equal(table["site"], site), pa.compute.equal(table["step"], step))
    return table.filter(here).select([covariate.name for covariate in study.covariates])
