"""`fdtr policy recommend` as a real process."""

import json

import pytest

from command_line import fdtr, refused
from fdtr.policy import Policy

pytestmark = pytest.mark.slow  # a process for every command


def test_recommend_explains(place):
    assert fdtr("run", "study.toml", "table.csv", "--out", "results", cwd=place).returncode == 0
    policy = "results/policies/north.policy"
    done = fdtr("policy", "recommend", policy, "--step", 1, "u=0.1", "x=4", "v=0.5", "y=0.2", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "not for bedside use" in done.stdout
    machine = fdtr("policy", "recommend", policy, "--step", 1, "--json", "u=0.1", "x=4", "v=0.5", "y=0.2", cwd=place)
    found = json.loads(machine.stdout)
    assert found["action"] == Policy.load(place / policy).act([[0.1, 4, 0.5, 0.2]], 1)[0]
    assert [a["label"] for a in found["actions"]] == ["none", "low", "high"]
    refused(fdtr("policy", "recommend", policy, "u=0.1", "x=4", "v=0.5", cwd=place), "lack 'y'")
    refused(fdtr("policy", "recommend", policy, "u=0.1", "sbp=4", cwd=place), "knows no 'sbp'")
    refused(fdtr("policy", "recommend", policy, "u", cwd=place), "NAME=VALUE")
    refused(fdtr("policy", "recommend", policy, "u=0,5", cwd=place), "not a number. Write a decimal point")
    refused(fdtr("policy", "recommend", policy, "u=1", "u=2", cwd=place), "given twice")
    clipped = fdtr("policy", "recommend", policy, "u=0.1", "x=400", "v=0.5", "y=0.2", cwd=place)
    assert "outside the study's range, taken as its end: x" in clipped.stderr
    refused(fdtr("policy", "recommend", policy, "--step", 9, "u=1", "x=1", "v=1", "y=1", cwd=place), "from 0 to 2")
    refused(fdtr("policy", "recommend", "study.toml", "u=1", cwd=place), "not a readable fdtr policy file")
