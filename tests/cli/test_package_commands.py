"""A hospital's package, run for real by its own run.sh."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clif_tables import hospital
from fdtr.cli.app import app
from fdtr.cohort.clif_settings import ClifSettings
from fdtr.cohort.site_package import Config, check_fits, write_package
from fdtr.cohort.study_drafts import draft_study_from_settings
from fdtr.errors import InvalidSettings, InvalidStudy, MissingFile, OutputExists
from fdtr.exchange.wire import read_message
from fdtr.study import Study

SETTINGS = ClifSettings()
MADE = {"config.json", "study.toml", "settings.toml", "run.sh", "run.bat", "README.md", ".gitignore"}


@pytest.fixture
def place(tmp_path):
    """A study, and a folder of programs that has `fdtr`, as an installation would put it there."""
    (tmp_path / "study.toml").write_text(draft_study_from_settings(SETTINGS))
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "fdtr"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -W error -m fdtr "$@"\n')
    program.chmod(0o755)
    return tmp_path


def configure(folder, **changed):
    config = {"site_name": "north", "tables_path": "../tables", "file_type": "parquet", "time_zone": "UTC"}
    (folder / "config.json").write_text(json.dumps(config | changed))


def run_sh(folder, *arguments, path=None):
    environment = {**os.environ, "FDTR_STATE": str(folder.parent / f"state-{folder.name}"), "COLUMNS": "160"}
    environment["PATH"] = path or f"{folder.parent / 'bin'}:{environment['PATH']}"
    command = ["/bin/sh", str(folder / "run.sh"), *arguments]
    return subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, timeout=120)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_three_sites_run_their_packages_and_the_hub_adds_up(place):
    messages = []
    for seed, site in enumerate(("north", "south", "west")):
        package = write_package(place / site, place / "study.toml", SETTINGS)
        hospital(260, seed, early=4).write(place / f"tables-{site}")
        configure(package.folder, site_name=site, tables_path=f"../tables-{site}")
        done = run_sh(package.folder, "--yes")
        assert done.returncode == 0, done.stderr
        assert {path.name for path in package.output.iterdir()} == {f"{site}.fdtr", f"{site}-table1.csv"}
        assert {path.name for path in package.folder.iterdir()} == {*MADE, "private", "output"}
        assert package.private.stat().st_mode & 0o077 == 0
        assert "sums over 260 patients" in done.stdout
        table = list(csv.DictReader((package.output / f"{site}-table1.csv").read_text().splitlines()))
        assert {row["site"] for row in table} == {site}
        ends = {row["level"]: row["patients"] for row in table if row["variable"] == "end"}
        # The message tells how many there are at each step; of the others, not even who died is told by a zero.
        assert ends == {"followed to the last step": "260", "death": "not shown", "discharge": "not shown"}
        assert {row["unit"] for row in table if row["variable"] == "sbp"} == {"mmHg"}
        messages.append(package.output / f"{site}.fdtr")
    study = Study.load(place / "study.toml")
    assert [read_message(path, study).site for path in messages] == ["north", "south", "west"]
    assert all(read_message(path, study).sums.schur.any(axis=(1, 2)).all() for path in messages)  # they teach something
    command = [str(place / "bin" / "fdtr"), "hub", "combine", "study.toml", *map(str, messages), "--out", "total.fdtr"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "3 sites: north, south, west" in done.stdout
    command = [str(place / "bin" / "fdtr"), "site", "fit", "study.toml", "private/table.parquet", "../total.fdtr"]
    environment = {**os.environ, "FDTR_STATE": str(place / "state-west")}
    done = subprocess.run(
        [*command, "--out", "west.policy"],
        cwd=place / "west",
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "learnt with 2 other sites" in done.stdout
    assert " ".join(command[1:4]) in (place / "west" / "README.md").read_text()


@pytest.mark.slow
def test_a_run_may_be_repeated_and_leaves_nothing_where_a_rule_refuses(place):
    package = write_package(place / "north", place / "study.toml", SETTINGS)
    hospital(260, 0).write(place / "tables")
    configure(package.folder)
    asked = run_sh(package.folder)
    assert asked.returncode == 1
    assert "Add --yes" in asked.stderr
    assert list(package.output.iterdir()) == []
    assert not package.private.exists()
    first, second = run_sh(package.folder, "--yes"), run_sh(package.folder, "--yes")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    table = (package.output / "north-table1.csv").read_text().splitlines()
    assert table[1] == "north,patients,,,260,,,"
    kept = contents(package.folder)
    hospital(257, 0).write(place / "tables")  # three patients fewer: rule ONCE
    refused = run_sh(package.folder, "--yes")
    assert refused.returncode == 1
    assert "Do not forward this message" in refused.stderr
    assert contents(package.folder) == kept  # private/ too: it is the table of what was sent


@pytest.mark.slow
def test_a_killed_run_is_cleared_away_and_what_is_not_ours_is_not(place):
    package = write_package(place / "north", place / "study.toml", SETTINGS)
    hospital(260, 0).write(place / "tables")
    configure(package.folder)
    assert run_sh(package.folder, "--yes").returncode == 0
    kept = contents(package.folder)
    package.private.rename(package.folder / ".private-old")  # killed while the new one took its place
    shutil.copytree(package.folder / ".private-old", package.new)
    package.prepare()
    assert contents(package.folder) == kept
    (package.private / "settings.toml").unlink()
    done = run_sh(package.folder, "--yes")
    assert done.returncode == 1
    assert "private holds something that no run of this package made" in done.stderr
    shutil.rmtree(package.private)
    shutil.rmtree(package.output)
    package.output.write_text("mine")
    done = run_sh(package.folder, "--yes")
    assert done.returncode == 1
    assert "output is a file" in done.stderr
    package.output.unlink()
    package.output.mkdir()
    (package.output / "north.fdtr").write_text("mine")
    done = run_sh(package.folder, "--yes")
    assert done.returncode == 1
    assert "did not write" in done.stderr
    assert "--out" not in done.stderr


@pytest.mark.slow
def test_one_no_leaves_neither_message_nor_table(place, monkeypatch):
    package = write_package(place / "north", place / "study.toml", SETTINGS)
    hospital(260, 0).write(place / "tables")
    configure(package.folder)
    monkeypatch.setenv("FDTR_STATE", str(place / "state"))
    asked = []
    monkeypatch.setattr("fdtr.cli.site_commands.agreed", lambda question: asked.append(question))  # None is no
    done = CliRunner().invoke(app, ["site", "run", str(package.folder)])
    assert done.exit_code == 1
    assert asked == [f"Write all this to {package.output}/?"]
    assert list(package.output.iterdir()) == []
    assert not package.private.exists()
    assert not package.new.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "leaves"),
    [
        ("secure_sum = true\nmax_patients = 1000", set()),
        ('small_step = "withhold"\nepsilon = 100.0\ndelta = 1e-6', {"north.fdtr"}),
    ],
)
def test_what_a_study_asks_for_decides_what_leaves(place, monkeypatch, asked, leaves):
    study = draft_study_from_settings(SETTINGS).replace('small_step = "withhold"', asked)
    (place / "study.toml").write_text(study)
    package = write_package(place / "north", place / "study.toml", SETTINGS)
    hospital(260, 0).write(place / "tables")
    configure(package.folder)
    monkeypatch.setenv("FDTR_STATE", str(place / "state"))
    done = CliRunner().invoke(app, ["site", "run", str(package.folder), "--yes"])
    assert done.exit_code == 0, done.output
    assert {path.name for path in package.output.iterdir()} == leaves
    assert (package.private / "table.parquet").is_file()


@pytest.mark.slow
def test_few_patients_leave_nothing(place):
    package = write_package(place / "north", place / "study.toml", SETTINGS)
    hospital(30, 0).write(place / "tables")
    configure(package.folder)
    refused = run_sh(package.folder, "--yes")
    assert refused.returncode == 1
    assert "rule N" in refused.stderr
    assert list(package.output.iterdir()) == []


@pytest.mark.slow
def test_what_is_not_ready_is_said(place):
    package = write_package(place / "north", place / "study.toml", SETTINGS)
    cases = [
        ({}, "still says what it said"),
        ({"site": "x"}, 'did you mean "site_name"'),
        ({"tables_path": "gone"}, "no folder"),
        ({"tables_path": "~nobody-of-that-name/clif"}, "Write the path in full"),
    ]
    for number, (changed, words) in enumerate(cases):
        if number:
            configure(package.folder, **changed)
        done = run_sh(package.folder)
        assert done.returncode == 1
        assert words in done.stderr
        assert "Traceback" not in done.stderr
    bare = place / "bare"
    bare.mkdir()
    for tool in ("dirname",):
        (bare / tool).symlink_to(f"/usr/bin/{tool}")
    done = run_sh(package.folder, path=str(bare))
    assert done.returncode == 1
    assert "fdtr is not installed here" in done.stderr


@pytest.mark.quick
def test_the_folder_holds_what_an_analyst_expects_and_no_data(place):
    package = write_package(place / "p", place / "study.toml", SETTINGS)
    assert {path.name for path in package.folder.iterdir()} == MADE
    assert list(json.loads(package.config.read_text())) == ["site_name", "tables_path", "file_type", "time_zone"]
    assert ClifSettings.load(package.settings).dose.cuts == (0.0, 180.0)
    assert package.study.read_bytes() == (place / "study.toml").read_bytes()
    assert os.access(package.folder / "run.sh", os.X_OK)
    assert b"run.sh %*\r\n" in (package.folder / "run.bat").read_bytes()
    assert "icu-fluids" in (package.folder / "README.md").read_text()
    with pytest.raises(OutputExists, match=r"p exists already\. Nothing was written\. Name a folder that does not\."):
        write_package(place / "p", place / "study.toml", SETTINGS)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("replaced", "says"),
    [
        ({"horizon = 5": "horizon = 4"}, "4 steps and the settings make 5"),
        ({'name = "potassium"': 'name = "calcium"'}, "no such column"),
        ({'name = "potassium"': 'name = "flow"'}, "a package's table is one site's. Nothing was written. Drop it"),
        ({'effect = "shared"': ""}, "shares no effect, so nothing would be learnt together"),
        ({"cuts = [0, 180]": "", "levels = [0, 1, 2]": "levels = [0, 1, 3]"}, "cuts make"),
        ({"discharge = 1": ""}, "with both"),
    ],
)
def test_a_study_that_no_site_could_run_is_refused_when_the_package_is_made(replaced, says):
    text = draft_study_from_settings(SETTINGS)
    for old, new in replaced.items():
        text = text.replace(old, new)
    with pytest.raises((InvalidSettings, InvalidStudy), match=says):
        check_fits(Study.parse(text.encode(), "study.toml"), SETTINGS)


@pytest.mark.quick
def test_settings_that_need_a_list_are_refused_when_the_package_is_made():
    chosen = SETTINGS.model_copy(update={"time_zero": "onset"})
    with pytest.raises(InvalidSettings, match="a package carries no list"):
        check_fits(Study.parse(draft_study_from_settings(chosen).encode(), "study.toml"), chosen)


@pytest.mark.quick
def test_a_config_that_is_no_json_is_said(tmp_path):
    (tmp_path / "config.json").write_text('{"tables_path": "C:\\data"}')
    with pytest.raises(InvalidSettings, match="not valid JSON"):
        Config.load(tmp_path / "config.json")
    with pytest.raises(MissingFile):
        Config.load(tmp_path / "none.json")
    (tmp_path / "config.json").write_text('["north"]')
    with pytest.raises(InvalidSettings, match="four fields in braces"):
        Config.load(tmp_path / "config.json")


@pytest.mark.quick
@pytest.mark.parametrize("name", ["site_name", "tables_path", "file_type", "time_zone"])
def test_each_of_the_four_fields_is_needed(tmp_path, name):
    given = {"site_name": "north", "tables_path": "~/clif", "file_type": "parquet", "time_zone": "UTC"}
    (tmp_path / "config.json").write_text(json.dumps(given))
    assert Config.load(tmp_path / "config.json").tables(tmp_path) == Path.home() / "clif"
    del given[name]
    (tmp_path / "config.json").write_text(json.dumps(given))
    with pytest.raises(InvalidSettings, match=f"{name}: is required"):
        Config.load(tmp_path / "config.json")
