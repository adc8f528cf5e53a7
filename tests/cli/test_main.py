"""What every command does: exit codes, Ctrl-C, --debug, --verbose, unforeseen errors, help."""

import subprocess
import sys

import pytest

from command_line import fdtr, refused

pytestmark = pytest.mark.slow  # a process for every command


def test_ctrl_c_is_said_and_leaves_nothing(place):
    code = (
        "import os, signal, sys, fdtr.cli, fdtr.pipeline.run as r\n"
        "def stopped(*_, **__): os.kill(os.getpid(), signal.SIGINT)\n"
        "r.run = stopped\n"
        "sys.argv = ['fdtr', 'run', 'study.toml', 'table.csv', '--out', 'results']\n"
        "fdtr.cli.main()\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True, timeout=60)
    refused(result, "Stopped.")
    assert not (place / "results").exists()


def test_wrong_usage_is_exit_code_2(place):
    assert fdtr("run", "study.toml", cwd=place).returncode == 2
    assert fdtr("nonsense", cwd=place).returncode == 2
    assert fdtr("--version", cwd=place).stdout.startswith("fdtr ")


def test_debug_shows_where_and_verbose_says_what(place):
    result = fdtr("run", "none.toml", "table.csv", "--out", "results", "--debug", cwd=place)
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    quiet, loud = (fdtr("check", "study.toml", "table.csv", *flags, cwd=place) for flags in ((), ("--verbose",)))
    assert "fdtr.site: site north: computing its sums" in loud.stderr
    assert "fdtr.site" not in quiet.stderr


def test_the_number_of_threads_changes_no_number(place):
    one, two = (fdtr("check", "study.toml", "table.csv", "--json", *words, cwd=place) for words in (
        ["--threads", "1"], ["--threads=2"],
    ))  # fmt: skip
    assert one.returncode == two.returncode == 0
    assert one.stdout == two.stdout
    wrong = fdtr("check", "study.toml", "table.csv", "--threads", "0", cwd=place)
    assert wrong.returncode == 2
    assert "whole number from 1 on" in wrong.stderr


def test_an_unforeseen_error_shows_its_kind_alone(place, monkeypatch):
    code = (
        "import sys, fdtr.cli, fdtr.site.rows as rows\n"
        "def broken(*_): raise RuntimeError('secret 4711')\n"
        "rows.read_trajectories = broken\n"
        "sys.argv = ['fdtr', 'check', 'study.toml', 'table.csv']\n"
        "fdtr.cli.main()\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True, timeout=60)
    refused(result, "RuntimeError", "--debug")
    assert "4711" not in result.stderr


@pytest.mark.parametrize("command", [
    [], ["demo"], ["init"], ["check"], ["tune"], ["simulate"], ["run"], ["report"], ["site"], ["site", "summarize"],
    ["site", "fit"], ["hub", "combine"], ["policy", "recommend"], ["study", "schema"],
    ["site", "evaluate"], ["hub", "pool"], ["keys"], ["keys", "new"], ["keys", "show"], ["roster"], ["roster", "add"],
    ["roster", "remove"], ["roster", "replace"], ["roster", "show"], ["message", "show"],
])  # fmt: skip
def test_every_command_has_help(command, tmp_path):
    result = fdtr(*command, "--help", cwd=tmp_path)
    assert result.returncode == 0
    assert len(result.stdout) > 150
