"""A hospital's package, run for real by its own run.sh."""

import json
import os
import subprocess
import sys

import pytest

from clif_tables import hospital
from fdtr.cohort.clif_settings import ClifExtraction
from fdtr.cohort.drafting import draft_study
from fdtr.cohort.package import Config, check_fits, write_package
from fdtr.errors import InvalidSettings, MissingFile, OutputExists
from fdtr.exchange.wire import read_message
from fdtr.study import Study

SETTINGS = ClifExtraction(
    site_covariates=(),
    covariates=tuple(
        one.model_copy(update={"effect": "shared"}) if one.name == "sbp" else one for one in ClifExtraction().covariates
    ),
)


@pytest.fixture
def place(tmp_path):
    """A study, and a folder of programs that has `fdtr`, as an installation would put it there."""
    (tmp_path / "study.toml").write_text(draft_study(SETTINGS))
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


@pytest.mark.slow
def test_three_sites_run_their_packages_and_the_hub_adds_up(place):
    messages = []
    for seed, site in enumerate(("north", "south", "west")):
        package = write_package(place / site, place / "study.toml", SETTINGS)
        hospital(260, seed, early=4).write(place / f"tables-{site}")
        configure(package.folder, site_name=site, tables_path=f"../tables-{site}")
        done = run_sh(package.folder, "--yes")
        assert done.returncode == 0, done.stderr
        assert {path.name for path in package.output.iterdir()} == {f"{site}.fdtr", "table1.csv"}
        assert package.private.stat().st_mode & 0o077 == 0
        assert "sums over 260 patients" in done.stdout
        table = (package.output / "table1.csv").read_text().splitlines()
        assert table[-2:] == [f"followed to the last step,{level},not shown,,," for level in ("yes", "no")]
        messages.append(package.output / f"{site}.fdtr")
    study = Study.load(place / "study.toml")
    assert [read_message(path, study).site for path in messages] == ["north", "south", "west"]
    command = [str(place / "bin" / "fdtr"), "hub", "combine", "study.toml", *map(str, messages), "--out", "total.fdtr"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "3 sites: north, south, west" in done.stdout


@pytest.mark.slow
def test_a_run_may_be_repeated_and_leaves_nothing_where_a_rule_refuses(place):
    package = write_package(place / "north", place / "study.toml", SETTINGS)
    hospital(260, 0).write(place / "tables")
    configure(package.folder)
    asked = run_sh(package.folder)
    assert asked.returncode == 1
    assert "Add --yes" in asked.stderr
    assert list(package.output.iterdir()) == []
    first, second = run_sh(package.folder, "--yes"), run_sh(package.folder, "--yes")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    table = (package.output / "table1.csv").read_text().splitlines()
    assert table[1] == "patients,,260,,,"
    kept = {path.name: path.read_bytes() for path in package.output.iterdir()}
    hospital(257, 0).write(place / "tables")  # three patients fewer: rule ONCE
    refused = run_sh(package.folder, "--yes")
    assert refused.returncode == 1
    assert "Do not forward this message" in refused.stderr
    assert {path.name: path.read_bytes() for path in package.output.iterdir()} == kept


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
    assert "pip install 'fdtr[extract]'" in done.stderr


@pytest.mark.quick
def test_the_folder_holds_what_an_analyst_expects_and_no_data(place):
    package = write_package(place / "p", place / "study.toml", SETTINGS)
    assert {path.name for path in package.folder.iterdir()} == {
        "config.json", "study.toml", "settings.toml", "run.sh", "run.bat", "README.md", ".gitignore",
    }  # fmt: skip
    assert list(json.loads(package.config.read_text())) == ["site_name", "tables_path", "file_type", "time_zone"]
    assert ClifExtraction.load(package.settings).dose.cuts == (0.0, 180.0)
    assert package.study.read_bytes() == (place / "study.toml").read_bytes()
    assert os.access(package.folder / "run.sh", os.X_OK)
    assert b"run.sh %*\r\n" in (package.folder / "run.bat").read_bytes()
    assert "icu-fluids" in (package.folder / "README.md").read_text()
    with pytest.raises(OutputExists):
        write_package(place / "p", place / "study.toml", SETTINGS)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("replaced", "says"),
    [
        ({"horizon = 5": "horizon = 4"}, "4 steps and the settings make 5"),
        ({'name = "potassium"': 'name = "calcium"'}, "no such column"),
        ({"cuts = [0, 180]": "", "levels = [0, 1, 2]": "levels = [0, 1, 3]"}, "cuts make"),
        ({"discharge = 1": ""}, "with both"),
    ],
)
def test_a_study_that_no_site_could_run_is_refused_when_the_package_is_made(replaced, says):
    text = draft_study(SETTINGS)
    for old, new in replaced.items():
        text = text.replace(old, new)
    with pytest.raises(InvalidSettings, match=says):
        check_fits(Study.parse(text.encode(), "study.toml"), SETTINGS)


@pytest.mark.quick
def test_a_config_that_is_no_json_is_said(tmp_path):
    (tmp_path / "config.json").write_text('{"tables_path": "C:\\data"}')
    with pytest.raises(InvalidSettings, match="not valid JSON"):
        Config.load(tmp_path / "config.json")
    with pytest.raises(MissingFile):
        Config.load(tmp_path / "none.json")
