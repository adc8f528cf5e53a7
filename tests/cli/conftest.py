"""What tests of commands set up."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pytest

from command_line import SITES, fdtr
from made_once import made_once
from random_tables import make_study, make_table


def fill(folder: Path) -> None:
    study = make_study()
    study.save(folder / "study.toml")
    pa.csv.write_csv(make_table(study, SITES), folder / "table.csv")


@pytest.fixture
def place(tmp_path):
    """A folder with a study and a table of three sites."""
    fill(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def ran_once(tmp_path_factory) -> Path:
    """The same, with the `results` of `fdtr run`, and what it printed in `printed.json`."""

    def make(folder: Path) -> None:
        fill(folder)
        done = fdtr("run", "study.toml", "table.csv", "--out", "results", "--json", cwd=folder)
        assert done.returncode == 0, done.stderr
        (folder / "printed.json").write_text(done.stdout)

    return made_once(tmp_path_factory, "ran", make)


@pytest.fixture
def ran(ran_once, tmp_path) -> Path:
    """A copy of that for one test, without the state of whoever ran it."""
    folder = tmp_path / "ran"
    shutil.copytree(ran_once, folder, ignore=shutil.ignore_patterns("state"))
    return folder
