"""Databases as users have them: what is refused, in which words, and that nothing is left behind."""

import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import duckdb
import psycopg
import pyarrow as pa
import pytest

from fdtr.cohort.databases import open_database
from fdtr.cohort.mimic_iv import extract_mimic_iv, read_stays
from fdtr.cohort.mimic_iv_settings import MimicSettings
from fdtr.errors import (
    EmptyCohort,
    InvalidSettings,
    NotPermitted,
    RefusedStatement,
    Unreachable,
    UnreadableFile,
    UnsuitableTables,
)
from mimic_world import World, changed, make_world, write_duckdb, write_postgresql


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


def extract(address: str, settings: MimicSettings | None = None, **options):
    with open_database(address) as db:
        return extract_mimic_iv(db, settings or MimicSettings(), **options)


def test_a_missing_table_is_named(world, written):
    with pytest.raises(UnsuitableTables, match=r"lacks inputevents.*Load the missing tables"):
        extract(written(changed(world, "inputevents", None)))


def test_without_sepsis3_the_ways_out_are_told(world, written):
    address = written(changed(world, "sepsis3", None))
    with pytest.raises(UnsuitableTables, match=r"sepsis3.*--sepsis icd.*--stays FILE"):
        extract(address)
    assert extract(address, sepsis="icd").flow.removals[4].left == 60
    listed = pa.table({"stay_id": list(range(1000, 1040)), "onset": pa.array([None] * 40, pa.timestamp("us"))})
    assert extract(address, sepsis="listed", stays=listed).flow.removals[4].left == 40


def test_a_missing_column_is_named(world, written):
    rows = world.tables["chartevents"].drop_columns(["valuenum"])
    with pytest.raises(UnsuitableTables, match=r"mimiciv_icu\.chartevents lacks the column valuenum"):
        extract(written(changed(world, "chartevents", rows)))


@pytest.mark.parametrize(
    ("table", "column", "values", "told"),
    [
        ("labevents", "valuenum", "<0.5", r"mimiciv_hosp\.labevents has valuenum as text instead of numbers"),
        ("chartevents", "charttime", "13/04/2150 10:00", r"mimiciv_icu\.chartevents has charttime as text .* times"),
        ("icustays", "stay_id", "S1000", r"mimiciv_icu\.icustays has stay_id as text instead of whole numbers"),
        ("sepsis3", "sepsis3", "yes", r"mimiciv_derived\.sepsis3 has sepsis3 as text instead of true or false"),
    ],
)
def test_a_column_of_another_type_is_named(world, written, table, column, values, told):
    rows = world.tables[table]
    rows = rows.set_column(rows.column_names.index(column), column, pa.array([values] * rows.num_rows))
    with pytest.raises(UnsuitableTables, match=f"{told}.*Nothing was written.*convert them") as error:
        extract(written(changed(world, table, rows)))
    assert values not in str(error.value)


def test_numbers_and_dates_that_mean_the_same_are_taken(world, written):
    """Ids as fractions, as CSV readers guess them; numbers in 4 bytes; flags as 0 and 1; times with a zone."""
    plain = extract(written(world)).table
    tables = dict(world.tables)
    for table, column, kind in (
        ("icustays", "hadm_id", pa.float64()),
        ("inputevents", "stay_id", pa.float64()),
        ("labevents", "charttime", pa.timestamp("us", "UTC")),
        ("labevents", "valuenum", pa.float32()),
        ("icustays", "intime", pa.timestamp("us", "UTC")),
        ("sepsis3", "sepsis3", pa.int64()),
    ):
        place = tables[table].column_names.index(column)
        tables[table] = tables[table].set_column(place, column, tables[table][column].cast(kind))
    assert extract(written(World(tables, world.truth, world.ends))).table.equals(plain)


def test_a_table_in_two_unknown_schemas_is_chosen_by_the_settings(world, tmp_path):
    address = write_duckdb(changed(world, "icustays", None), tmp_path / "m.duckdb")
    with duckdb.connect(address.removeprefix("duckdb:")) as connection:
        for schema in ("mine", "yours"):
            connection.execute(f"CREATE SCHEMA {schema}")
            connection.register("rows_of_world", world.tables["icustays"])
            connection.execute(f"CREATE TABLE {schema}.icustays AS SELECT * FROM rows_of_world")
        connection.execute("DELETE FROM yours.icustays WHERE stay_id > 1030")
    with pytest.raises(UnsuitableTables, match=r"mine\.icustays and yours\.icustays.*schemas under \[mimic_iv\]"):
        extract(address)
    found = [MimicSettings().mimic_iv.schemas, ("mine",), ("yours",)]
    chosen = [MimicSettings.model_validate({"mimic_iv": {"schemas": [*one, *found[0]]}}) for one in found[1:]]
    assert extract(address, chosen[0]).flow.found > extract(address, chosen[1]).flow.found == 31


def test_a_database_of_something_else_is_told(engine):
    with pytest.raises(UnsuitableTables, match=r"lacks icustays, patients.* and sepsis3, which MIMIC-IV has.*--db"):
        extract(engine)


def test_an_empty_database_is_told(world, written):
    with pytest.raises(EmptyCohort, match=r"icustays of the database is empty.*Load MIMIC-IV"):
        extract(written(changed(world, "icustays", world.tables["icustays"].slice(0, 0))))


def role(address: str, name: str, *rights: str) -> str:
    """A role of the server, made anew; its address."""
    with psycopg.connect(address, autocommit=True) as connection:
        if connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [name]).fetchone():
            connection.execute(f"DROP OWNED BY {name}")
            connection.execute(f"DROP ROLE {name}")
        for statement in (f"CREATE ROLE {name} LOGIN", *rights):
            connection.execute(statement)
    return f"postgresql://{name}@" + address.split("@")[1]


SCHEMAS_READ = "mimiciv_icu, mimiciv_hosp, mimiciv_derived"


@pytest.mark.database
def test_tables_that_may_not_be_read_are_named_with_what_to_ask_for(world, postgres):
    address = write_postgresql(world, postgres, "forbidden")
    guest = role(
        address,
        "guest",
        f"GRANT USAGE ON SCHEMA {SCHEMAS_READ} TO guest",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA {SCHEMAS_READ} TO guest",
        "REVOKE SELECT ON mimiciv_icu.chartevents, mimiciv_hosp.patients FROM guest",
    )
    asked = r'GRANT SELECT ON mimiciv_hosp\.patients, mimiciv_icu\.chartevents TO "guest";'
    with pytest.raises(NotPermitted, match=rf"read mimiciv_hosp\.patients and mimiciv_icu\.chartevents\..*{asked}"):
        extract(guest)


@pytest.mark.database
def test_a_role_that_may_make_no_temporary_table_is_told(world, postgres):
    address = write_postgresql(world, postgres, "reading")
    rights = (
        f"GRANT USAGE ON SCHEMA {SCHEMAS_READ} TO reader",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA {SCHEMAS_READ} TO reader",
    )
    with pytest.raises(NotPermitted, match=r"only read.*default_transaction_read_only.*standby"):
        extract(role(address, "reader", *rights, "ALTER ROLE reader SET default_transaction_read_only = on"))
    reader = role(address, "reader", *rights, "REVOKE TEMPORARY ON DATABASE reading FROM PUBLIC")
    with pytest.raises(NotPermitted, match=r'temporary tables.*GRANT TEMPORARY ON DATABASE "reading" TO "reader";'):
        extract(reader)


@pytest.mark.database
def test_a_statement_that_takes_too_long_is_told_with_its_table(world, postgres):
    address = write_postgresql(world, postgres, "slow")
    with open_database(address) as db:
        db.view(
            "source_x", "SELECT CAST(pg_sleep(stay_id) AS TEXT) AS x FROM mimiciv_icu.icustays", "mimiciv_icu.icustays"
        )
        db.run("SET statement_timeout = 50")
        with pytest.raises(RefusedStatement, match=r"stopped reading mimiciv_icu\.icustays.*statement_timeout"):
            db.number("SELECT count(x) FROM source_x")


@pytest.mark.database
def test_a_lost_connection_is_told(postgres):
    with open_database(postgres) as db, pytest.raises(Unreachable, match=r"connection .* was lost.*command again"):
        db.run("SELECT pg_terminate_backend(pg_backend_pid())")


def test_too_little_memory_is_told_with_the_option(tmp_path):
    with open_database("duckdb:", memory="20MB") as db:
        db.run("SET max_temp_directory_size = '1MB'")
        with pytest.raises(RefusedStatement, match=r"more memory than the 20MB.*--memory 8GB"):
            db.make("large", "SELECT range AS a, md5(CAST(range AS VARCHAR)) AS b FROM range(3000000)")
    for wrong in ("3XB", "3", "much", "-3GB"):
        with pytest.raises(InvalidSettings, match=f"--memory {wrong} is no amount"):
            open_database("duckdb:", memory=wrong)


def test_a_damaged_file_is_told_with_its_table(tmp_path):
    file = tmp_path / "clif_labs.parquet"
    duckdb.sql(f"COPY (SELECT range AS a FROM range(200000)) TO '{file}' (FORMAT parquet)")
    whole = bytearray(file.read_bytes())
    whole[1_000:60_000] = bytes((byte + 7) % 256 for byte in whole[1_000:60_000])
    file.write_bytes(whole)
    with open_database("duckdb:") as db:
        db.view("clif_labs", f"SELECT * FROM read_parquet('{file}')", "clif_labs")
        with pytest.raises(RefusedStatement, match=r"Not all of clif_labs could be read.*damaged.*Copy it again"):
            db.arrow("SELECT sum(a) FROM clif_labs")


@pytest.mark.parametrize("column", ["value", "time"])
def test_a_value_that_does_not_convert_is_told_with_its_column_alone(tmp_path, column):
    file = tmp_path / "clif_labs.csv"
    file.write_text("value,time\n1.5,2150-03-01\n<0.77,13/04/2150\n")
    with open_database("duckdb:") as db:
        columns = "CAST(value AS DOUBLE) AS value, CAST(time AS TIMESTAMP) AS time"
        db.view("clif_labs", f"SELECT {columns} FROM read_csv('{file}', all_varchar = true)", "clif_labs")
        with pytest.raises(UnsuitableTables, match=f"The column {column} of clif_labs holds text") as told:
            db.arrow(f"SELECT max({column}) FROM clif_labs")
    assert "0.77" not in str(told.value)
    assert "13/04" not in str(told.value)


@pytest.mark.database
def test_nothing_is_left_in_the_database(world, postgres):
    address = write_postgresql(world, postgres, "untouched")
    with open_database(address) as db:
        before = db.tables()
    extract(address)
    with open_database(address) as db:
        assert db.tables() == before


SECRETS = ("hunter", "Pass", "Word7", "pa@", "ss/", "word", "'ss'")


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("postgresql://me:hunter2@127.0.0.1:1/x", "No PostgreSQL server answers"),
        ("postgresql://me:hunter2@127.0.0.1:port/x", r"does not answer\..*Name it as duckdb:FILE"),
        ("postgresql://me:hunter%2@127.0.0.1/x", "cannot be understood"),
        ("postgresql://me:Pass@Word7@127.0.0.1:1/x", r'no host of the name.*%40 for "@" and %2F for "/".*~/\.pgpass'),
        ("postgresql://me:pa@ss/word@127.0.0.1:1/x", r'no host of the name.*%40 for "@" and %2F for "/".*~/\.pgpass'),
        ("postgresql://me:pa/ss@127.0.0.1:1/x", r"no host of the name.*%2F"),
        ("postgresql://me@127.0.0.1:1/x?password=hunter2", "No PostgreSQL server answers"),
        ("mysql://me:hunter2@h/x", "Name it as duckdb:FILE or postgresql://"),
        ("me:hunter2", "Name it as duckdb:FILE or postgresql://"),
    ],
)
def test_a_wrong_address_is_told_without_its_password(address, told):
    with pytest.raises(Unreachable, match=told) as error:
        open_database(address)
    kept = str(error.value).replace("A password in the address", "").replace("~/.pgpass", "")
    assert not [part for part in SECRETS if part in kept]
    assert error.value.__context__ is None or error.value.__suppress_context__  # nor does a traceback quote it


@pytest.mark.database
def test_who_is_not_let_in_is_told_why(postgres):
    at = postgres.split("@")[1].rsplit("/", 1)[0]
    for address, told in {
        f"postgresql://stranger:Pass7@{at}/postgres": "knows no such user",
        f"{postgres.rsplit('/', 1)[0]}/nowhere": "no database of that name",
        f"{postgres}?sslmode=require": "agree on encryption",
    }.items():
        with pytest.raises(Unreachable, match=told) as error:
            open_database(address)
        assert "duckdb:FILE" not in str(error.value)
        assert not any(word in str(error.value) for word in ("stranger", "nowhere", "Pass7"))
    locked = role(postgres, "locked", "ALTER ROLE locked PASSWORD 'right'")
    with psycopg.connect(postgres, autocommit=True) as connection, asking_for_passwords(connection):
        with pytest.raises(Unreachable, match="does not take this user with this password"):
            open_database(locked.replace("locked@", "locked:Pass7@"))
        with pytest.raises(Unreachable, match="asks for a password"):
            open_database(locked)


@contextmanager
def asking_for_passwords(connection):
    """The server, while it asks the role `locked` for its password."""
    row = connection.execute("SHOW hba_file").fetchone()
    file = Path(row[0])
    before = file.read_text()
    file.write_text(f"host all locked 127.0.0.1/32 scram-sha-256\n{before}")
    connection.execute("SELECT pg_reload_conf()")
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and _rules(connection) == before.count("trust"):
        time.sleep(0.05)
    time.sleep(0.3)  # the postmaster takes it up a moment later
    yield
    file.write_text(before)
    connection.execute("SELECT pg_reload_conf()")


def _rules(connection) -> int:
    return int(connection.execute("SELECT count(*) FROM pg_hba_file_rules").fetchone()[0])


def test_a_duckdb_file_that_cannot_be_opened_is_told(tmp_path):
    with pytest.raises(Unreachable, match=r"There is no database.*Name it as duckdb:FILE"):
        open_database(f"duckdb:{tmp_path / 'none.duckdb'}")
    (tmp_path / "text").write_text("no database" * 1000)
    with pytest.raises(Unreachable, match="no DuckDB database"):
        open_database(f"duckdb:{tmp_path / 'text'}")
    code = f"import duckdb; open = duckdb.connect({str(tmp_path / 'busy')!r}); print('open', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writing:
        assert writing.stdout.readline() == "open\n"
        with pytest.raises(Unreachable, match=r"another program writes to it\. Close that program"):
            open_database(f"duckdb:{tmp_path / 'busy'}")
        writing.communicate("\n")


def test_what_a_driver_says_of_a_value_is_not_passed_on(engine):
    with (
        open_database(engine) as db,
        pytest.raises(UnsuitableTables, match="holds text where a number is needed") as told,
    ):
        db.arrow("SELECT CAST('secret-value' AS INTEGER)")
    assert "secret" not in str(told.value)


def test_a_table_of_the_user_never_stands_for_a_temporary_one(written, world):
    """A user's own table `stays` in the default schema is neither read nor replaced."""
    plain = extract(written(world)).table
    mine = pa.table({"stay_id": [1], "name": ["x"]})
    others = {"stays": mine, "doses": mine, "measurements": mine, "presence": mine}
    again = extract(written(World(world.tables | others, world.truth, world.ends))).table
    assert again.equals(plain)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"covariates": ["mood"]}, r"'mood' is not built in \(known: weight.*name its items under \[\[mimic_iv"),
        ({"dose": {"names": ["tea"]}}, "no dose 'tea'; crystalloid and colloid"),
        ({"site_covariates": [{"name": "size", "meaning": "beds"}]}, "no site covariate 'size'; no_icu and flow"),
        ({"mimic_iv": {"charted": [{"name": "map", "table": "chartevents", "items": [1]}]}}, "'map', which is no cov"),
        ({"mimic_iv": {"not_fluids": [50813]}}, "50813, which does not count as a fluid"),
        (
            {"mimic_iv": {"charted": [{"name": "sbp", "table": "chartevents", "items": [1, 1]}]}},
            "item 1 of chartevents stands twice for 'sbp'",
        ),
    ],
)
def test_settings_that_the_source_does_not_know_are_refused(given, told):
    if "covariates" in given:
        weight = MimicSettings().covariates[0].model_dump()
        given = {"covariates": [weight | {"name": name} for name in given["covariates"]]}
    with pytest.raises(InvalidSettings, match=told):
        MimicSettings.model_validate(given)


def test_a_list_of_stays_is_read_and_its_faults_told(tmp_path):
    file = tmp_path / "stays.csv"
    file.write_text("stay_id,onset\n1000,2150-03-01 08:00:00\n1001,\n")
    assert read_stays(file)["stay_id"].to_pylist() == [1000, 1001]
    for fault in ("id\n1000\n", f"stay_id\n{10**30}\n", f'stay_id\n"{"1" * 200_000}"\n'):
        file.write_text(fault)
        with pytest.raises(UnreadableFile, match="needs a column stay_id"):
            read_stays(file)


@pytest.mark.parametrize("onset", ["2150-03-01 08:00:00+02:00", "2150-03-01T08:00:00Z"])
def test_an_onset_with_an_offset_is_not_moved_but_refused(tmp_path, onset):
    file = tmp_path / "stays.csv"
    file.write_text(f"stay_id,onset\n1000,{onset}\n")
    with pytest.raises(UnreadableFile, match="without an offset or a zone") as told:
        read_stays(file)
    assert "08:00:00+" not in str(told.value)


def test_times_with_a_zone_do_not_depend_on_the_machine():
    code = (
        "from fdtr.cohort.databases import open_database\n"
        "with open_database('duckdb:') as db:\n"
        "    print(db.arrow(\"SELECT CAST(TIMESTAMPTZ '2150-03-01 08:00:00+00' AS TIMESTAMP)\")[0][0])"
    )
    zone = {**os.environ, "TZ": "America/New_York"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=zone)
    assert done.stdout.strip() == "2150-03-01 08:00:00"


def test_without_the_drivers_the_extra_is_named():
    code = (
        "import sys; sys.modules['duckdb'] = None\n"
        "from fdtr.cohort.databases import open_database\n"
        "from fdtr.errors import MissingExtra\n"
        "try:\n    open_database('duckdb:')\n"
        "except MissingExtra as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'fdtr[extract]'" in done.stdout
