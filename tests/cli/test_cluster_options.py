"""--workers and --scheduler on the command line: the same files as without, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from command_line import SITES, fdtr, refused, start
from fdtr.policy import Policy
from random_tables import make_study

pytest.importorskip("distributed", reason="Dask is not installed: pip install 'fdtr[cluster]'")

pytestmark = pytest.mark.network


@pytest.fixture
def parts(place):
    """The folder of a study with its table as a partition, and an empty folder for temporary files."""
    make_study(learning={"sharing": "auto", "ridge": "auto"}, disclosure={"jitter": 0}).save(place / "study.toml")
    done = fdtr("table", "partition", "study.toml", "table.csv", "--out", "parts", cwd=place)
    assert done.returncode == 0, done.stderr
    (place / "temporary").mkdir()
    return place


def temporary(place: Path) -> dict[str, str]:
    return {"TMPDIR": str(place / "temporary")}


def processes_of(place: Path) -> list[Path]:
    """Processes that were started with the temporary folder of this test: those that a command starts."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"TMPDIR={place / 'temporary'}\0".encode() in (process / "environ").read_bytes():
                found.append(process)
    return found


def require_nothing_left(place: Path) -> None:
    assert list((place / "temporary").iterdir()) == []
    for _ in range(100):
        if not processes_of(place):
            return
        time.sleep(0.1)
    raise AssertionError([(process / "cmdline").read_text() for process in processes_of(place)])


def test_messages_policies_and_settings_are_those_of_one_process(parts):
    found = {}
    for options in ((), ("--workers", 2)):
        place = parts / ("cluster" if options else "alone")
        place.mkdir()
        end = {**temporary(parts), "FDTR_STATE": str(place / "state")}
        for site in SITES:
            out = ("--site", site, "--out", place / f"{site}.fdtr", "--yes")
            here = options if site == "west" else ()
            done = fdtr("site", "summarize", "study.toml", "parts", *out, "--json", *here, cwd=parts, **end)
            assert done.returncode == 0, done.stderr
        messages = [place / f"{site}.fdtr" for site in SITES]
        assert fdtr("hub", "combine", "study.toml", *messages, "--out", place / "total", cwd=parts).returncode == 0
        out = ("--site", "west", "--out", place / "policy", "--json")
        done = fdtr("site", "fit", "study.toml", "parts", place / "total", *out, *options, cwd=parts, **end)
        assert done.returncode == 0, done.stderr
        assert "not the one that the message" not in done.stderr  # the site knows its message again
        tuned = fdtr("tune", "study.toml", "parts", "--json", *options, cwd=parts, **end)
        assert tuned.returncode == 0, tuned.stderr
        policy = Policy.load(place / "policy")
        found[options] = json.loads(tuned.stdout), policy.theta, (place / "west.fdtr").read_bytes()
    (tuned, theta, message), (tuned_there, theta_there, message_there) = found.values()
    assert tuned == tuned_there
    assert np.array_equal(theta, theta_there)
    assert message == message_there
    require_nothing_left(parts)


def test_a_whole_study_runs_on_a_cluster(parts):
    for out, options in (("alone", ()), ("cluster", ("--workers", 2))):
        where = ("--site", "west", "--out", out)
        done = fdtr("run", "study.toml", "parts", *where, *options, cwd=parts, **temporary(parts))
        assert done.returncode == 0, done.stderr
    alone, cluster = (Policy.load(parts / out / "policies/west.policy") for out in ("alone", "cluster"))
    assert np.array_equal(alone.theta, cluster.theta)
    require_nothing_left(parts)


def test_what_cannot_be_summed_on_a_cluster_gets_a_sentence_and_writes_nothing(parts):
    before = sorted(parts.iterdir())
    out = ("--site", "west", "--out", "w.fdtr", "--yes")

    def summarize(data, *options):
        return fdtr("site", "summarize", "study.toml", data, *out, *options, cwd=parts, **temporary(parts))

    refused(summarize("table.csv", "--workers", 2), "a table in memory", "fdtr table partition")
    refused(summarize("parts", "--workers", 2, "--scheduler", "tcp://127.0.0.1:9"), "Leave one out")
    refused(summarize("parts", "--scheduler", "pigeon://127.0.0.1:9"), "No Dask scheduler answers at pigeon:")
    file = parts / "parts" / "002" / "step-001.parquet"
    content = file.read_bytes()
    file.write_bytes(content[:-200] + bytes(200))  # of the same length
    refused(summarize("parts", "--workers", 1), "step-001.parquet is cut short or was changed")
    assert summarize("parts", "--workers", 0).returncode == 2
    assert sorted(parts.iterdir()) == before
    require_nothing_left(parts)


@pytest.mark.parametrize("moment", ["starting", "fitting"])
def test_ctrl_c_ends_a_cluster_without_a_trace(parts, moment):
    running = start("run", "study.toml", "parts", "--out", "results", "--workers", 2, cwd=parts, **temporary(parts))
    said = Path(running.folder.name) / "stderr"
    begun = {
        "starting": lambda: any((parts / "temporary").glob("fdtr-cluster-*/*/worker-*")),
        "fitting": lambda: said.exists() and "alone" in said.read_text(),
    }[moment]
    while not begun():
        assert not running.ended
        time.sleep(0.1)
    for pid in (*(int(process.name) for process in processes_of(parts)), running.pid):  # a terminal tells all of them
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)
    done = running.done()
    refused(done, "Stopped. Nothing half-written was left behind.")
    assert len([line for line in done.stderr.splitlines() if "alone" not in line]) == 1, done.stderr
    assert not (parts / "results").exists()
    require_nothing_left(parts)
