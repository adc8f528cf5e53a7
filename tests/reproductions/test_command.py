"""`make reproduce` as a real process: what it prints, writes, and refuses."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from command_line import refused, reproduce
from experiments import comparison
from experiments.authors_world import FIGURE_2, AuthorsSpec, make_authors_world
from experiments.command import PANELS, Figure2World, Request, app
from experiments.figure2 import WORLDS
from experiments.icu_world import IcuSpec, make_icu_world
from fdtr.errors import InvalidStudy
from fdtr.site.rows import read_trajectories
from fdtr.study import Study
from tiny_icu import tiny_arrays

ROOT = Path(__file__).parents[2]
PAGES = sorted(page for page in (ROOT / "reproductions").glob("*.md") if page.name != "README.md")


@pytest.mark.slow
def test_reproduce_shows_what_it_found_and_where(tmp_path):
    command = [sys.executable, "-W", "error", "-m", "experiments", "figure2", "--quick", "--panel", "3", "--seed", "4"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "reproductions"), "COLUMNS": "200"}
    done = subprocess.run([*command, "--out", "found"], cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "2/2 Figure 2, valid" in done.stderr
    assert "Figure 2 on a valid linear MDP" in done.stdout
    page = (tmp_path / "found" / "figure2-valid.md").read_text()
    assert page.startswith('`make reproduce WHAT="figure2 --world valid --panel 3 --quick --seed 4"`')
    assert "(20,2,5,5)" in (tmp_path / "found" / "figure2-valid.csv").read_text()
    refused(reproduce("theorems", "--out", "found/figure2-valid.csv", cwd=tmp_path), "Name another folder")


@pytest.mark.parametrize(
    ("words", "make"),
    [
        (
            ["authors", "--sites", "3", "--actions", "4", "--horizon", "2", "--shared", "3", "--specific", "2"],
            lambda rng: make_authors_world(AuthorsSpec(n_sites=3, n_shared=3, n_actions=4, horizon=2), rng),
        ),
        (
            ["icu-sepsis", "--sites", "2", "--horizon", "4", "--deviation", "0.5", "--effect", "2", "--follow-up"],
            lambda rng: make_icu_world(
                IcuSpec(n_sites=2, horizon=4, deviation=0.5, effect=2.0, follow_up=True), tiny_arrays(12), rng
            ),
        ),
    ],
    ids=["authors", "icu-sepsis"],
)
def test_a_world_is_written_as_the_first_child_of_its_seed_draws_it_and_the_second_its_patients(
    tmp_path, monkeypatch, words, make
):
    monkeypatch.setattr(comparison, "_icu_arrays", lambda: tiny_arrays(12))
    options = ["--seed", "7", "--patients", "30", "--out", str(tmp_path / "world")]
    result = CliRunner().invoke(app, ["world", *words, *options])
    assert result.exit_code == 0, result.output
    assert f"fdtr check {tmp_path}/world/study.toml" in result.stdout
    world_rng, table_rng = np.random.default_rng(7).spawn(2)
    world = make(world_rng)
    study = Study.load(tmp_path / "world/study.toml")
    assert study.fingerprint == Study.model_validate(world.study()).fingerprint
    rows = read_trajectories(tmp_path / "world/table.csv", study)
    assert (rows.sites, rows.n_patients) == (world.sites, 30 * len(world.sites))
    header, *lines = (tmp_path / "world/table.csv").read_text().splitlines()
    table = world.table(30, table_rng)
    assert header.split(",") == list(table)
    assert lines == [",".join(map(str, row)) for row in zip(*(c.tolist() for c in table.values()), strict=True)]


def test_a_world_that_cannot_be_drawn_is_refused(tmp_path):
    folder = tmp_path / "world"
    result = CliRunner().invoke(app, ["world", "icu-sepsis", "--deviation", "2", "--out", str(folder)])
    assert isinstance(result.exception, InvalidStudy)
    assert "cannot be drawn: deviation is 2" in str(result.exception)
    for world, option in (("icu-sepsis", "--noise"), ("authors", "--noise"), ("authors", "--follow-up"), ("mars", "")):
        assert CliRunner().invoke(app, ["world", world, option, "0.3", "--out", str(folder)]).exit_code == 2
    assert not folder.exists()


def test_panels_are_those_of_the_paper():
    assert tuple(FIGURE_2) == PANELS
    assert {world.value for world in Figure2World} == set(WORLDS)


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["figure2"],
        ["tuning"],
        ["theorems"],
        ["evaluation"],
        ["verdicts"],
        ["effects"],
        ["disclosure"],
        ["world"],
        ["world", "authors"],
        ["world", "icu-sepsis"],
    ],
    ids=" ".join,
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
    numbers = {
        name: int(words.pop(words.index(f"--{name}") + 1)) for name in ("replications", "seed") if f"--{name}" in words
    }
    downloads = {name: f"--{name.replace('_', '-')}" in words for name in ("icu_sepsis", "clif_demo")}
    options = ("--replications", "--seed", "--icu-sepsis", "--clif-demo")
    plain = tuple(word for word in words if word not in options)
    assert recorded == Request(plain, **numbers, **downloads).command
