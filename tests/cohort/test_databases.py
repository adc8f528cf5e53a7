"""Databases as users have them: what is refused, in which words, and that nothing is left behind."""

import re
import subprocess
import sys

import psycopg
import pyarrow as pa
import pytest

from fdtr.cohort.engines import open_database
from fdtr.cohort.mimic_iv import extract_mimic_iv, read_stays
from fdtr.cohort.settings import Extraction
from fdtr.errors import (
    InvalidSettings,
    MissingColumn,
    MissingTable,
    NotPermitted,
    RefusedStatement,
    Unreachable,
    UnreadableFile,
)
from mimic_world import World, make_world, write_duckdb, write_postgresql


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(60, seed=2)


@pytest.fixture(params=["duckdb", pytest.param("postgresql", marks=pytest.mark.database)])
def written(request, tmp_path):
    """Writes a world into a database of each engine in turn, and gives its address."""
    if request.param == "duckdb":
        return lambda world: write_duckdb(world, tmp_path / "mimic.duckdb")
    server = request.getfixturevalue("postgres")
    return lambda world: write_postgresql(world, server, re.sub(r"\W", "_", request.node.name)[:60])


def changed(world: World, table: str, rows: pa.Table | None) -> World:
    tables = {name: rows if name == table else old for name, old in world.tables.items()}
    return World({name: rows for name, rows in tables.items() if rows is not None}, world.truth, world.ends)


def extract(address: str, **options):
    with open_database(address) as db:
        return extract_mimic_iv(db, Extraction(), **options)


def test_a_missing_table_is_named(world, written):
    with pytest.raises(MissingTable, match=r"lacks inputevents.*Load the missing tables"):
        extract(written(changed(world, "inputevents", None)))


def test_without_sepsis3_the_ways_out_are_told(world, written):
    address = written(changed(world, "sepsis3", None))
    with pytest.raises(MissingTable, match=r"sepsis3.*--sepsis icd.*--stays FILE"):
        extract(address)
    assert extract(address, sepsis="icd").flow.removals[2].left == 60
    listed = pa.table({"stay_id": list(range(1000, 1040)), "onset": pa.array([None] * 40, pa.timestamp("us"))})
    assert extract(address, sepsis="listed", stays=listed).flow.removals[2].left == 40


def test_a_missing_column_is_named(world, written):
    rows = world.tables["chartevents"].drop_columns(["valuenum"])
    with pytest.raises(MissingColumn, match=r"mimiciv_icu\.chartevents lacks the column valuenum"):
        extract(written(changed(world, "chartevents", rows)))


@pytest.mark.database
def test_a_table_that_may_not_be_read_is_told(world, postgres):
    address = write_postgresql(world, postgres, "forbidden")
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS guest")
        connection.execute("CREATE ROLE guest LOGIN")
    guest = "postgresql://guest@" + address.split("@")[1]
    with pytest.raises(NotPermitted, match=r"permission.*administrator"):
        extract(guest)


@pytest.mark.database
def test_nothing_is_left_in_the_database(world, postgres):
    address = write_postgresql(world, postgres, "untouched")
    with open_database(address) as db:
        before = db.tables()
    extract(address)
    with open_database(address) as db:
        assert db.tables() == before


def test_a_wrong_address_is_told_without_its_password(tmp_path):
    for address in (
        "postgresql://me:hunter2@127.0.0.1:1/x",
        "postgresql://me:hunter2@127.0.0.1:port/x",
        "postgresql://me:hunter%2@127.0.0.1/x",
        "mysql://me:hunter2@h/x",
        "me:hunter2",
    ):
        with pytest.raises(Unreachable, match="Name it as duckdb:FILE or postgresql://") as told:
            open_database(address)
        assert "hunter" not in str(told.value)
    with pytest.raises(Unreachable, match="There is no database"):
        open_database(f"duckdb:{tmp_path / 'none.duckdb'}")
    (tmp_path / "text").write_text("no database" * 1000)
    with pytest.raises(Unreachable, match="no DuckDB database"):
        open_database(f"duckdb:{tmp_path / 'text'}")


def test_what_a_driver_says_of_a_value_is_not_passed_on(engine):
    with open_database(engine) as db, pytest.raises(RefusedStatement) as told:
        db.arrow("SELECT CAST('secret-value' AS INTEGER)")
    assert "secret" not in str(told.value)


def test_a_table_of_the_user_never_stands_for_a_temporary_one(written, world):
    """A user's own table `stays` in the default schema is neither read nor replaced."""
    plain = extract(written(world)).table
    mine = pa.table({"stay_id": [1], "name": ["x"]})
    others = {"stays": mine, "doses": mine, "measurements": mine, "presence": mine}
    again = extract(written(World(world.tables | others, world.truth, world.ends))).table
    assert again.equals(plain)


def test_settings_that_the_source_does_not_know_are_refused(world, tmp_path):
    settings = Extraction()
    odd = settings.covariates[0].model_copy(update={"name": "mood"})
    with (
        open_database(write_duckdb(world, tmp_path / "m.duckdb")) as db,
        pytest.raises(InvalidSettings, match=r"mood, which is not extracted from MIMIC-IV \(known: weight"),
    ):
        extract_mimic_iv(db, settings.model_copy(update={"covariates": (odd,)}))


def test_a_list_of_stays_is_read_and_its_faults_told(tmp_path):
    file = tmp_path / "stays.csv"
    file.write_text("stay_id,onset\n1000,2150-03-01 08:00:00\n1001,\n")
    assert read_stays(file)["stay_id"].to_pylist() == [1000, 1001]
    file.write_text("id\n1000\n")
    with pytest.raises(UnreadableFile, match="needs a column stay_id"):
        read_stays(file)


def test_without_the_drivers_the_extra_is_named():
    code = (
        "import sys; sys.modules['duckdb'] = None\n"
        "from fdtr.cohort.engines import open_database\n"
        "from fdtr.errors import MissingExtra\n"
        "try:\n    open_database('duckdb:')\n"
        "except MissingExtra as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'fdtr[extract]'" in done.stdout
