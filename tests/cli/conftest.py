"""What tests of commands set up."""

import pyarrow as pa
import pyarrow.csv
import pytest

from command_line import SITES
from random_tables import make_study, make_table


@pytest.fixture
def place(tmp_path):
    """A folder with a study and a table of three sites."""
    study = make_study()
    study.save(tmp_path / "study.toml")
    pa.csv.write_csv(make_table(study, SITES), tmp_path / "table.csv")
    return tmp_path
