"""The commands of the study file as real processes."""

import json

import pytest

from command_line import fdtr
from random_tables import make_study

pytestmark = pytest.mark.slow  # a process for every command


def test_study_commands(place):
    assert fdtr("study", "fingerprint", "study.toml", cwd=place).stdout.strip() == make_study().fingerprint
    assert "horizon" in json.loads(fdtr("study", "schema", cwd=place).stdout)["properties"]
