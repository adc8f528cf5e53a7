"""Tables of a real database become partitions: the same messages and policies, to the last bit."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import fdtr
from fdtr.cohort.database_table import partition_database_table
from fdtr.cohort.databases import open_database
from fdtr.errors import InvalidTable, RefusedStatement, Unreachable, UnsuitableTables
from fdtr.site import partition_table, summarize
from fdtr.trajectories import partition
from random_tables import make_study, make_table

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
    import duckdb

    path = tmp_path / "hospital.duckdb"
    with duckdb.connect(path) as connection:
        connection.register("arriving", shuffled)
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM arriving")
    return f"duckdb:{path}"


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


@pytest.mark.database
def test_a_connection_that_is_lost_in_the_middle_is_a_sentence(postgres, tmp_path, monkeypatch):
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
    with pytest.raises((Unreachable, RefusedStatement), match="lost") as error:
        partition_database_table(study, address, "lost", tmp_path / "made")
    assert "Nothing was written" in str(error.value)
    assert [path for path in tmp_path.iterdir() if "made" in path.name] == []
