"""`fdtr policy recommend` as a real process."""

import json

import pytest

from command_line import fdtr, refused
from fdtr.policy import Policy
from fdtr.verified_policy import VerifiedPolicy

pytestmark = pytest.mark.slow  # a process for every command


def test_recommend_explains(ran):
    policy = "results/policies/north.policy"
    done = fdtr("policy", "recommend", policy, "--step", 1, "u=0.1", "x=4", "v=0.5", "y=0.2", cwd=ran)
    assert done.returncode == 0, done.stderr
    assert "not for bedside use" in done.stdout
    machine = fdtr("policy", "recommend", policy, "--step", 1, "--json", "u=0.1", "x=4", "v=0.5", "y=0.2", cwd=ran)
    found = json.loads(machine.stdout)
    assert found["action"] == Policy.load(ran / policy).act([[0.1, 4, 0.5, 0.2]], 1)[0]
    assert [a["label"] for a in found["actions"]] == ["none", "low", "high"]
    refused(fdtr("policy", "recommend", policy, "u=0.1", "x=4", "v=0.5", cwd=ran), "lack 'y'")
    refused(fdtr("policy", "recommend", policy, "u=0.1", "sbp=4", cwd=ran), "knows no 'sbp'")
    refused(fdtr("policy", "recommend", policy, "u", cwd=ran), "NAME=VALUE")
    refused(fdtr("policy", "recommend", policy, "u=0,5", cwd=ran), "not a number. Write a decimal point")
    refused(fdtr("policy", "recommend", policy, "u=1", "u=2", cwd=ran), "given twice")
    clipped = fdtr("policy", "recommend", policy, "u=0.1", "x=400", "v=0.5", "y=0.2", cwd=ran)
    assert "outside the study's range, taken as its end: x" in clipped.stderr
    refused(fdtr("policy", "recommend", policy, "--step", 9, "u=1", "x=1", "v=1", "y=1", cwd=ran), "from 0 to 2")
    refused(fdtr("policy", "recommend", "study.toml", "u=1", cwd=ran), "not a readable fdtr policy file")


def test_recommend_says_what_the_verified_part_says(ran, tmp_path):
    path = ran / "results" / "policies" / "north.policy"
    verified = VerifiedPolicy.load(path)
    state = {"u": 0.1, "x": 4.0, "v": 0.5, "y": 0.2}
    given = [f"{name}={value}" for name, value in state.items()]
    advice = verified.explain({name: [value] for name, value in state.items()}, 1)
    done = fdtr("policy", "recommend", path, "--step", 1, *given, cwd=ran)
    says = advice.explanation.chosen.label if advice.advised else "nothing; clinicians decide"
    assert f"Its verified part: {says}. {advice.reason}" in done.stdout
    machine = json.loads(fdtr("policy", "recommend", path, "--step", 1, "--json", *given, cwd=ran).stdout)
    assert machine["verified"]["advised"] == advice.advised
    assert machine["verified"]["reason"] == advice.reason
    verified.policy.save(tmp_path / "full.policy")  # as an earlier version wrote it
    without = fdtr("policy", "recommend", tmp_path / "full.policy", "--json", *given, cwd=ran)
    assert json.loads(without.stdout)["verified"] is None
