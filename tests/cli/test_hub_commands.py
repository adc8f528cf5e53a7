"""The hub's commands on files as real processes."""

import pytest

from command_line import fdtr, refused
from random_tables import make_study

pytestmark = pytest.mark.slow  # a process for every command


def test_messages_that_do_not_belong_are_refused(place):
    make_study(name="other").save(place / "other.toml")
    for site, study in {"north": "study", "south": "study", "west": "other"}.items():
        arguments = [f"{study}.toml", "table.csv", "--site", site, "--out", f"{site}.fdtr", "--yes"]
        assert fdtr("site", "summarize", *arguments, cwd=place).returncode == 0
    combine = ["hub", "combine", "study.toml"]
    refused(
        fdtr(*combine, "north.fdtr", "south.fdtr", "west.fdtr", "--out", "t.fdtr", cwd=place),
        "belongs to another study",
    )
    refused(fdtr(*combine, "north.fdtr", "south.fdtr", "--out", "t.fdtr", cwd=place), "rule SITES asks for 3")
    refused(fdtr(*combine, "north.fdtr", "north.fdtr", "--out", "t.fdtr", cwd=place), "already in the total")
    (place / "cut.fdtr").write_bytes((place / "south.fdtr").read_bytes()[:-3])
    refused(fdtr(*combine, "north.fdtr", "cut.fdtr", "--out", "t.fdtr", cwd=place), "truncated, damaged")
    assert not (place / "t.fdtr").exists()
    arguments = ["study.toml", "table.csv", "south.fdtr", "--site", "north", "--out", "p.policy"]
    refused(fdtr("site", "fit", *arguments, cwd=place), "holds a message, not a total")
    assert not (place / "p.policy").exists()
    before = (place / "north.fdtr").read_bytes()
    refused(fdtr(*combine, "north.fdtr", "south.fdtr", "--out", "north.fdtr", cwd=place), "one of the files to read")
    assert (place / "north.fdtr").read_bytes() == before
