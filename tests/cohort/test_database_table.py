"""Tables of a real database: the same messages, policies and values as from a file, to the last bit."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import fdtr
from command_line import fdtr as command
from command_line import refused
from fdtr.cohort.database_table import partition_database_table
from fdtr.cohort.databases import open_database
from fdtr.errors import InvalidTable, RefusedStatement, UnknownSite, Unreachable, UnsuitableTables, UnwritableFile
from fdtr.site import partition_table, summarize
from fdtr.trajectories import partition
from random_tables import make_study, make_table, put_into_duckdb

STUDIES = {
    "plain": {},
    "ragged": {"ends": {"death": 0.0, "discharge": 1.0}},
    "splines": {
        "covariates": [
            {"name": "x", "range": [0, 1], "basis": {"kind": "spline", "knots": [0.3, 0.6], "degree": 2}},
            {"name": "y", "effect": "shared", "range": [0, 1]},
        ]
    },
}


def loaded(engine, table, name, tmp_path):
    """The address of a database with the table in it, rows in no order."""
    shuffled = table.take(pa.array(np.random.default_rng(3).permutation(table.num_rows)))
    if engine != "duckdb:":
        with open_database(engine) as database:
            database.put("arriving", shuffled)
            database.run(f"DROP TABLE IF EXISTS public.{name}")
            database.run(f"CREATE TABLE public.{name} AS SELECT * FROM pg_temp.arriving")
            database._connection.commit()  # a session of fdtr never does
        return engine
    return put_into_duckdb(shuffled, tmp_path / "hospital.duckdb", name)


@pytest.mark.parametrize("kind", list(STUDIES))
def test_messages_and_policies_are_those_of_the_same_rows_in_parquet(engine, kind, tmp_path, monkeypatch):
    monkeypatch.setattr(partition, "GROUP_ROWS", 100)
    monkeypatch.setattr("fdtr.trajectories.partition_writer.GROUP_ROWS", 100)
    study = make_study(**STUDIES[kind])
    table = make_table(study, {"a": 250, "b": 230}, ragged=bool(study.ends))
    address = loaded(engine, table, f"rows_{kind}", tmp_path)
    pa.parquet.write_table(table, tmp_path / "table.parquet")
    from_file = partition_table(study, tmp_path / "table.parquet", tmp_path / "of-file")
    from_base = partition_database_table(study, address, f"rows_{kind}", tmp_path / "of-base")
    assert from_base.sites == from_file.sites == ("a", "b")
    for site, rows in from_file.by_site().items():
        other = from_base.by_site()[site]
        assert other.patients.to_pylist() == rows.patients.to_pylist()
        assert summarize(study, other).summary.digest == summarize(study, rows).summary.digest
        one, two = fdtr.fit_local(study, rows).policy, fdtr.fit_local(study, other).policy
        one.save(tmp_path / "one.policy")
        two.save(tmp_path / "two.policy")
        assert (tmp_path / "one.policy").read_bytes() == (tmp_path / "two.policy").read_bytes()


def test_a_site_of_a_table_with_its_schema_is_taken_in_small_parts(engine, tmp_path, monkeypatch):
    study = make_study()
    table = make_table(study, {"a": 120, "b": 110})
    address = loaded(engine, table, "small_parts", tmp_path)
    schema = "main" if engine == "duckdb:" else "public"
    whole = partition_database_table(study, address, f"{schema}.small_parts", tmp_path / "whole", "b")
    monkeypatch.setattr("fdtr.trajectories.partition_writer.write_partition.__defaults__", (None, 50))
    parts = partition_database_table(study, address, "SMALL_PARTS", tmp_path / "parts", "b")
    assert parts.patients.to_pylist() == whole.patients.to_pylist()
    assert np.array_equal(fdtr.fit_local(study, parts).theta, fdtr.fit_local(study, whole).theta)


def test_what_cannot_be_read_is_refused_and_leaves_nothing(engine, tmp_path):
    study = make_study()
    table = make_table(study, {"a": 60})
    faulty = table.set_column(table.column_names.index("action"), "action", pa.array([7] * table.num_rows))
    address = loaded(engine, faulty, "faulty", tmp_path)
    with pytest.raises(InvalidTable, match="not one of the action levels in 180 rows"):
        partition_database_table(study, address, "faulty", tmp_path / "made")
    with pytest.raises(UnsuitableTables, match="no table elsewhere"):
        partition_database_table(study, address, "elsewhere", tmp_path / "made")
    (tmp_path / "another").mkdir()
    without = loaded(engine, table.drop_columns("reward"), "without", tmp_path / "another")
    with pytest.raises(InvalidTable, match='"reward" is missing'):
        partition_database_table(study, without, "without", tmp_path / "made")
    assert not (tmp_path / "made").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".made")]


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where temporary files go: nothing else lies there."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def test_a_table_is_read_into_a_folder_that_lives_as_long_as_its_rows(engine, tmp_path, temporary):
    study = make_study()
    table = make_table(study, {"a": 120, "b": 110})
    named = fdtr.DatabaseTable(loaded(engine, table, "kept", tmp_path), "kept")
    rows = fdtr.read_trajectories(named, study)
    [folder] = temporary.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert rows.sites == ("a", "b")
    one = rows.by_site()["b"].select(np.arange(110) < 50)
    del rows
    assert folder.exists()
    fdtr.fit_local(study, one)  # some of the patients are read from it
    del one
    gc.collect()
    assert [*temporary.iterdir()] == []


def test_a_table_that_is_refused_leaves_no_temporary_folder(engine, tmp_path, temporary, monkeypatch):
    study = make_study()
    address = loaded(engine, make_table(study, {"a": 60, "b": 60}), "refused", tmp_path)
    with pytest.raises(UnknownSite, match=r'no rows of site "c"\. Its sites: "a", "b"'):
        fdtr.read_trajectories(fdtr.DatabaseTable(address, "refused"), study, "c")
    assert [*temporary.iterdir()] == []

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fdtr.trajectories.partition_writer._GroupWriter.append", full)
    with pytest.raises(UnwritableFile, match=r"No space left on device.*Name a larger place with TMPDIR"):
        fdtr.read_trajectories(fdtr.DatabaseTable(address, "refused"), study)
    assert [*temporary.iterdir()] == []


def test_a_draft_of_a_study_is_that_of_the_same_rows_in_a_file(engine, tmp_path, monkeypatch):
    monkeypatch.setattr("fdtr.cohort.databases.ROWS_AT_ONCE", 100)
    monkeypatch.setattr(f"fdtr.cohort.{'duckdb' if engine == 'duckdb:' else 'postgres'}_engine.ROWS_AT_ONCE", 100)
    study = make_study(**STUDIES["ragged"])
    table = make_table(study, {"a": 120, "b": 110}, ragged=True, constant_within_site=("v",))
    x = table["x"].to_pylist()
    table = table.set_column(
        table.column_names.index("x"), "x", pa.array([None if i % 7 == 0 else v for i, v in enumerate(x)])
    )
    drafted = fdtr.draft_study(fdtr.DatabaseTable(loaded(engine, table, "drafted", tmp_path), "drafted"), "trial")
    assert drafted == fdtr.draft_study(table, "trial")
    pa.parquet.write_table(table, tmp_path / "table.parquet", row_group_size=50)
    assert drafted == fdtr.draft_study(tmp_path / "table.parquet", "trial")
    for told in ('level = "site"', 'missing = "forward"', "[ends]"):
        assert drafted.text.count(told) == 1


@pytest.fixture(params=["demo", "ragged", "splines"])
def place(request, tmp_path):
    """A folder with a study, and its table in Parquet, in the order that the database is asked for."""
    if request.param == "demo":
        folder = request.getfixturevalue("demo") / "fdtr-demo"
        shutil.copy(folder / "study.toml", tmp_path)
        table = pa.csv.read_csv(folder / "table.csv")
    else:
        study = make_study(**STUDIES[request.param])
        study.save(tmp_path / "study.toml")
        table = make_table(study, {"a": 250, "b": 230, "c": 240}, ragged=bool(study.ends))
    table = table.sort_by([(name, "ascending") for name in ("site", "patient", "step")])
    pa.parquet.write_table(table, tmp_path / "table.parquet")
    return tmp_path


def done(*arguments: object, cwd, **environment: str) -> str:
    result = command(*arguments, cwd=cwd, **environment)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_commands_write_and_say_the_same_of_a_table_in_a_database(engine, place, temporary):
    table = pa.parquet.read_table(place / "table.parquet")
    in_base = ("--db", loaded(engine, table, "commands", place), "--table", "commands")
    sites = sorted(set(table["site"].to_pylist()))[:3]
    for site in sites:
        home, end = {"FDTR_STATE": str(place / site)}, ("--site", site, "--out", f"{site}.fdtr", "--yes")
        done("site", "summarize", "study.toml", "table.parquet", *end, cwd=place, **home)
    done("hub", "combine", "study.toml", *(f"{site}.fdtr" for site in sites), "--out", "total.fdtr", cwd=place)
    said, written = [], []
    for number, source in enumerate([("table.parquet",), in_base]):
        out = [f"{number}.{kind}" for kind in ("fdtr", "policy", "parts")]
        at = {"cwd": place, "FDTR_STATE": str(place / sites[0])}
        end = ("--site", sites[0], "--json")
        said.append(
            [
                done("check", "study.toml", *source, "--json", **at),
                done("tune", "study.toml", *source, "--json", **at),
                done("site", "evaluate", "study.toml", *source, "total.fdtr", *end, **at),
            ]
        )
        done("site", "summarize", "study.toml", *source, "--out", out[0], "--yes", *end, **at)
        done("site", "fit", "study.toml", *source, "total.fdtr", "--out", out[1], *end, **at)
        done("table", "partition", "study.toml", *source, "--out", out[2], **at)
        parts = sorted((place / out[2]).rglob("*.parquet"))
        written.append([(place / name).read_bytes() for name in (*out[:2], *parts)])
    assert said[0] == said[1]
    assert written[0] == written[1]
    assert [*temporary.iterdir()] == []


@contextmanager
def running(*arguments: str, cwd, temporary):
    """A process of its own, as signals reach it, also where the tests run under `nohup`."""
    program = [sys.executable, "-W", "error", "-m", "fdtr", *arguments]
    environment = {**os.environ, "TMPDIR": str(temporary), "FDTR_STATE": str(cwd / "state")}
    program = ["env", "--default-signal=HUP", *program]
    with subprocess.Popen(
        program, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def stopped_by(process, number) -> str:
    """What a process said at last that gets a signal each second: Python drops one that arrives in a finalizer."""
    for _ in range(60):
        process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=1)[1]
    raise AssertionError("It does not end.")


def wait_for(happened, process) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 1), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_command_that_is_stopped_leaves_no_rows(tmp_path, temporary, number, code):
    study = make_study()
    study.save(tmp_path / "study.toml")
    address = loaded("duckdb:", make_table(study, {"a": 250, "b": 230}), "stopped", tmp_path)
    arguments = ("run", "study.toml", "--db", address, "--table", "stopped", "--out", "results")
    with running(*arguments, cwd=tmp_path, temporary=temporary) as process:
        wait_for(lambda: [*temporary.glob("*/rows/partition.json")], process)
        said = stopped_by(process, number)
    assert (process.returncode, said.splitlines()[-1]) == (code, "Stopped. Nothing half-written was left behind.")
    assert [*temporary.iterdir()] == []
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
@pytest.mark.database
@pytest.mark.parametrize("what", ["interrupted", "cut"])
def test_what_ends_a_command_in_the_middle_of_a_query_leaves_nothing(postgres, tmp_path, temporary, what):
    import psycopg

    study = make_study()
    study.save(tmp_path / "study.toml")
    loaded(postgres, make_table(study, {"a": 250}), f"of_{what}", tmp_path)
    waiting = "SELECT pid FROM pg_stat_activity WHERE application_name = 'fdtr' AND wait_event = 'advisory'"
    arguments = ("site", "summarize", "study.toml", "--db", postgres, "--table", what, "--out", "a.fdtr", "--yes")
    with psycopg.connect(postgres) as locking, psycopg.connect(postgres, autocommit=True) as looking:
        locked = "WHERE CAST((SELECT pg_advisory_lock_shared(7)) AS TEXT) = ''"  # a row is asked for, and does not come
        looking.execute(f"CREATE VIEW {what} AS SELECT * FROM of_{what} {locked}")
        locking.execute("SELECT pg_advisory_lock(7)")
        with running(*arguments, cwd=tmp_path, temporary=temporary) as process:
            wait_for(lambda: looking.execute(waiting).fetchone(), process)
            assert len([*temporary.iterdir()]) == 1
            if what == "interrupted":
                process.send_signal(signal.SIGINT)
            else:
                looking.execute(f"SELECT pg_terminate_backend(pid) FROM ({waiting}) AS ours")
            _, said = process.communicate(timeout=60)
    told = "Stopped." if what == "interrupted" else "The connection to the database was lost while public.cut was read"
    assert process.returncode == 1
    assert said.splitlines()[-1].startswith(told)
    assert [*temporary.iterdir()] == []
    assert not (tmp_path / "a.fdtr").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("duckdb:none.duckdb", "There is no database none.duckdb"),
        ("duckdb:study.toml", "could not be opened"),
        ("postgresql://me:hunter2@127.0.0.1:1/x", "No PostgreSQL server answers"),
        ("postgresql://me:hun@ter2@127.0.0.1:1/x", "no host of the name"),
        ("postgresql://me@127.0.0.1:1/x?password=hunter2", "No PostgreSQL server answers"),
        ("hunter2://me", "names no database"),
    ],
)
def test_a_database_that_cannot_be_read_is_told_without_its_password(tmp_path, temporary, address, told):
    make_study().save(tmp_path / "study.toml")
    for ahead in (), ("--debug", "--verbose"):
        arguments = (*ahead, "run", "study.toml", "--db", address, "--table", "rows", "--out", "results")
        result = command(*arguments, cwd=tmp_path)
        assert result.returncode == 1
        assert told in result.stderr
        assert ("Traceback" in result.stderr) == bool(ahead)
        assert not [word for word in ("hunter", "hun@", "ter2") if word in result.stdout + result.stderr]
    assert [*temporary.iterdir()] == []
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
def test_what_the_table_lacks_is_named(engine, tmp_path, temporary):
    study = make_study()
    study.save(tmp_path / "study.toml")
    address = loaded(engine, make_table(study, {"a": 60}).drop_columns(["reward", "step"]), "lacking", tmp_path)
    for table, told in {"lacking": 'Column "reward" is missing', "elsewhere": "no table elsewhere"}.items():
        refused(command("check", "study.toml", "--db", address, "--table", table, cwd=tmp_path), told)
    refused(command("init", "--db", address, "--table", "lacking", "--out", "draft.toml", cwd=tmp_path), "the step")
    assert [*temporary.iterdir()] == []
    assert not (tmp_path / "draft.toml").exists()


@pytest.mark.slow
def test_without_the_drivers_a_command_names_the_extra(tmp_path, temporary):
    make_study().save(tmp_path / "study.toml")
    code = (
        "import sys; sys.modules['duckdb'] = None\n"
        "sys.argv = ['fdtr', 'check', 'study.toml', '--db', 'duckdb:x', '--table', 'rows']\n"
        "from fdtr.cli import main; main()"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    refused(result, "pip install 'fdtr[extract]'")
    assert [*temporary.iterdir()] == []


@pytest.mark.database
def test_a_connection_that_is_lost_in_the_middle_is_a_sentence(postgres, tmp_path, temporary, monkeypatch):
    study = make_study()
    address = loaded(postgres, make_table(study, {"a": 400}), "lost", tmp_path)
    monkeypatch.setattr("fdtr.cohort.postgres_engine.ROWS_AT_ONCE", 100)

    def ended(database, sql):
        for number, batch in enumerate(real(database, sql)):
            if number == 2:
                with open_database(postgres) as other:
                    other.run(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                        "WHERE pid <> pg_backend_pid() AND application_name = 'fdtr'"
                    )
            yield batch

    from fdtr.cohort.postgres_engine import PostgreSql

    real = PostgreSql._batches
    monkeypatch.setattr(PostgreSql, "_batches", ended)
    for read in (
        lambda: partition_database_table(study, address, "lost", tmp_path / "made"),
        lambda: fdtr.read_trajectories(fdtr.DatabaseTable(address, "lost"), study),
        lambda: fdtr.draft_study(fdtr.DatabaseTable(address, "lost"), "trial"),
    ):
        with pytest.raises((Unreachable, RefusedStatement), match="lost") as error:
            read()
        assert "Nothing was written" in str(error.value)
    assert [path for path in tmp_path.iterdir() if "made" in path.name] == [*temporary.iterdir()] == []
