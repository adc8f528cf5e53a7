"""`make reproduce` as a real process: what it prints, writes, and refuses."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.command import PANELS, Figure2World, Request, app
from experiments.figure2 import WORLDS
from fdtr.simulation.authors import FIGURE_2

ROOT = Path(__file__).parents[2]
PAGES = sorted(page for page in (ROOT / "reproductions").glob("*.md") if page.name != "README.md")


def reproduce(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT / "reproductions"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200"}
    command = [sys.executable, "-W", "error", "-m", "experiments", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_reproduce_shows_what_it_found_and_where(tmp_path):
    done = reproduce("figure2", "--quick", "--panel", 3, "--seed", 4, "--out", "found", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2/2 Figure 2, valid" in done.stderr
    assert "Figure 2 on a valid linear MDP" in done.stdout
    page = (tmp_path / "found" / "figure2-valid.md").read_text()
    assert page.startswith('`make reproduce WHAT="figure2 --world valid --panel 3 --quick --seed 4"`')
    assert "(20,2,5,5)" in (tmp_path / "found" / "figure2-valid.csv").read_text()
    refused = reproduce("theorems", "--out", "found/figure2-valid.csv", cwd=tmp_path)
    assert refused.returncode == 1
    assert "Name another folder" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_panels_are_those_of_the_paper():
    assert tuple(FIGURE_2) == PANELS
    assert {world.value for world in Figure2World} == set(WORLDS)


@pytest.mark.parametrize(
    "command", [[], ["figure2"], ["worlds"], ["tuning"], ["theorems"], ["evaluation"], ["effects"]], ids=" ".join
)
def test_every_command_has_help(command):
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert len(result.stdout) > 150


def test_make_runs_what_is_named(tmp_path):
    """`make -n` prints the recipe: the words of WHAT are handed on as they are."""
    command = ["make", "-n", "-o", ".venv/ready", "reproduce", "WHAT=figure2 --world authors --quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "-m experiments figure2 --world authors --quick" in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_recorded_pages_name_the_command_that_writes_them(page):
    recorded = page.read_text().splitlines()[0].strip("`")
    words = recorded.removeprefix("make reproduce WHAT=").strip('"').split()
    replications = int(words.pop(words.index("--replications") + 1)) if "--replications" in words else None
    icu_sepsis = "--icu-sepsis" in words
    plain = tuple(word for word in words if word not in ("--replications", "--icu-sepsis"))
    assert recorded == Request(plain, replications=replications, icu_sepsis=icu_sepsis).command
