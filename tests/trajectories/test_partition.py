"""Partitions: what is read from disk is what the table holds, whatever its size and order."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from fdtr.errors import DamagedFile, InvalidTable, MissingFile, OtherStudy, OutputExists, UnknownSite, UnreadableFile
from fdtr.trajectories import Covariate, TableLayout, partition, read
from fdtr.trajectories.partition import PATIENTS, open_partition, step_file
from fdtr.trajectories.partition_writer import write_partition
from fdtr.trajectories.table_sources import MANIFEST

pytestmark = pytest.mark.quick

AGE = Covariate("age", "age", 20, 90)
FLOW = Covariate("flow", "volume", 0, 1, missing="forward")
LEVEL = Covariate("beds", "beds", 0, 100, constant_within_site=True)
COMPLETE = TableLayout(3, (AGE, FLOW, LEVEL), (0, 1, 2), 0, 10)
RAGGED = replace(COMPLETE, ends={"death": 0.0, "discharge": 0.5}, cluster="family")


def random_table(layout: TableLayout, n: int = 60, seed: int = 0) -> pa.Table:
    """Two sites with the same ids, rows in no order; volumes are missing here and there, ages out of range."""
    rng = np.random.default_rng(seed)
    rows = []
    for site, beds in (("north", 10), ("south", 40)):
        for patient in range(n):
            length = int(rng.integers(1, 4)) if layout.ends else 3
            for step in range(length):
                volume = None if step and rng.random() < 0.3 else rng.random()
                end = ("death", "discharge")[patient % 2] if step == length - 1 else None
                age, reward = rng.uniform(15, 95), rng.uniform(0, 10)
                family = f"{site}-{patient // 3}"
                rows.append((site, f"p{patient}", step, int(rng.integers(3)), reward, age, volume, beds, end, family))
    rng.shuffle(rows)
    names = ("site", "patient", "step", "action", "reward", "age", "volume", "beds", "end", "family")
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


def written(table: pa.Table, path: Path) -> Path:
    """The table as a file of the path's kind; Parquet in small row groups."""
    if path.suffix == ".csv":
        pa_csv.write_csv(table, path)
    else:
        pq.write_table(table, path, row_group_size=50)
    return path


def require_same(found, expected):
    """Require that two sites have the same rows, patient for patient."""
    assert found.patients.to_pylist() == expected.patients.to_pylist()
    assert (found.clusters is None) == (expected.clusters is None)
    assert found.clusters is None or found.clusters.to_pylist() == expected.clusters.to_pylist()
    assert [*found.units()] == [*expected.units()]
    assert [*found.ids] == expected.patients.to_pylist() == [*expected.ids]
    assert found.lengths.tolist() == expected.lengths.tolist()
    assert found.clustered == expected.clustered == (expected.clusters is not None)
    assert expected.clusters is None or np.array_equal(found.cluster_codes(), expected.cluster_codes())
    assert (found.clipped, found.filled) == (expected.clipped, expected.filled)
    assert np.array_equal(found.action_counts(), expected.action_counts())
    for h in range(expected.horizon):
        one, other = found.step(h), expected.step(h)
        assert (one.n, one.n_next) == (other.n, other.n_next)
        for mine, theirs in zip(one.chunks(7), other.chunks(7), strict=True):
            for name in ("states", "actions", "rewards", "next_states", "ended_value"):
                assert np.array_equal(getattr(mine, name), getattr(theirs, name)), (h, name)


@pytest.mark.parametrize("layout", [COMPLETE, RAGGED], ids=["complete", "ragged"])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("rows_at_once", [10_000, 90])
def test_a_partition_has_the_rows_of_the_table_in_the_order_of_ids(tmp_path, monkeypatch, layout, kind, rows_at_once):
    # Row groups of 16 rows, so that chunks of 7 rows, and patients who are picked, cross their borders.
    monkeypatch.setattr(partition, "GROUP_ROWS", 16)
    monkeypatch.setattr("fdtr.trajectories.partition_writer.GROUP_ROWS", 16)
    table = random_table(layout)
    source = written(table, tmp_path / f"table.{kind}")
    write_partition(source, layout, tmp_path / "made", rows_at_once=rows_at_once)
    found = open_partition(tmp_path / "made", layout)
    expected = read(table.sort_by("patient"), layout)
    assert found.sites == expected.sites
    for site, rows in expected.by_site().items():
        require_same(found.by_site()[site], rows)
        picked = np.random.default_rng(1).random(rows.n_patients) < 0.4
        require_same(found.by_site()[site].select(picked), rows.select(picked))
        again = np.random.default_rng(2).random(picked.sum()) < 0.5
        require_same(found.by_site()[site].select(picked).select(again), rows.select(picked).select(again))
    south = open_partition(tmp_path / "made", layout, "south")
    require_same(south, expected.by_site()["south"])
    recast = replace(layout, horizon=2, action_levels=(0, 1))
    require_same(south.recast(recast, [0, 1, 1]), expected.by_site()["south"].recast(recast, [0, 1, 1]))


def test_one_site_is_taken_from_a_table_of_several(tmp_path):
    table = random_table(COMPLETE)
    source = written(table, tmp_path / "table.parquet")
    write_partition(source, COMPLETE, tmp_path / "made", " north ", rows_at_once=90)
    require_same(open_partition(tmp_path / "made", COMPLETE), read(table.sort_by("patient"), COMPLETE, "north"))
    for rows_at_once in (10_000, 90):
        with pytest.raises(UnknownSite, match='Its sites: "north", "south"'):
            write_partition(source, COMPLETE, tmp_path / "none", "west", rows_at_once=rows_at_once)
    with pytest.raises(UnknownSite, match='Its sites: "north"'):
        open_partition(tmp_path / "made", COMPLETE, "west")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "table.parquet"]


def test_a_dataframe_and_a_folder_can_be_partitioned(tmp_path):
    table = random_table(COMPLETE).sort_by("patient")
    write_partition(table, COMPLETE, tmp_path / "made")
    (tmp_path / "tables").mkdir()
    for part in range(3):
        written(table.slice(120 * part, 120), tmp_path / f"tables/{part}.parquet")
    write_partition(tmp_path / "tables", COMPLETE, tmp_path / "again", rows_at_once=100)
    for site, rows in read(table, COMPLETE).by_site().items():
        require_same(open_partition(tmp_path / "made", COMPLETE).by_site()[site], rows)
        require_same(open_partition(tmp_path / "again", COMPLETE).by_site()[site], rows)


def test_ids_that_are_numbers_are_spelled_as_in_the_whole_table(tmp_path):
    table = random_table(COMPLETE, n=40)
    numbers = [float(text[1:]) for text in table["patient"].to_pylist()]
    for extra in (0.0, 0.5):
        ids = pa.array([number + extra * (number == 39) for number in numbers])
        changed = table.set_column(1, "patient", ids)
        source = written(changed, tmp_path / f"table-{extra}.parquet")
        write_partition(source, COMPLETE, tmp_path / f"made-{extra}", rows_at_once=50)
        order = np.argsort(np.array([f"{number:g}" for number in ids.to_pylist()]), kind="stable")
        expected = read(changed.take(pa.array(order)), COMPLETE)
        found = open_partition(tmp_path / f"made-{extra}", COMPLETE)
        require_same(found.by_site()["north"], expected.by_site()["north"])


def test_long_ids_keep_every_digit(tmp_path):
    """As floats, forty patients would be one."""
    table = random_table(COMPLETE, n=40)
    ids = [Decimal(9_007_199_254_740_992_000 + int(text[1:])) for text in table["patient"].to_pylist()]
    changed = table.set_column(1, "patient", pa.array(ids, pa.decimal128(20, 0)))
    write_partition(written(changed, tmp_path / "table.parquet"), COMPLETE, tmp_path / "parts", rows_at_once=50)
    write_partition(changed, COMPLETE, tmp_path / "whole")
    expected = sorted({str(number) for number in ids})
    assert len(expected) == 40
    for rows in (read(changed, COMPLETE), *(open_partition(tmp_path / name, COMPLETE) for name in ("parts", "whole"))):
        assert sorted(rows.by_site()["north"].patients.to_pylist()) == expected


def test_ids_that_floats_cannot_tell_apart_are_refused():
    table = random_table(COMPLETE, n=2)
    ids = [2.0**60 + int(text[1:]) for text in table["patient"].to_pylist()]
    with pytest.raises(InvalidTable, match="same step"):
        read(table.set_column(1, "patient", pa.array(ids)), COMPLETE)


def test_faults_of_all_parts_are_reported_together_with_their_rows_in_the_table(tmp_path):
    table = random_table(RAGGED)
    columns = table.to_pydict()
    columns["action"][3], columns["action"][200] = 9, 9
    columns["reward"][100] = None
    columns["step"][57] = 2.5
    for row in range(0, 60, 7):
        columns["end"][row] = "gone"
    source = written(pa.table(columns), tmp_path / "table.csv")
    with pytest.raises(InvalidTable) as whole:
        read(source, RAGGED)
    with pytest.raises(InvalidTable) as parts:
        write_partition(source, RAGGED, tmp_path / "made", rows_at_once=80)
    assert sorted(parts.value.faults) == sorted(whole.value.faults)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "is empty"),
        ("site,patient\nnorth,1\n", 'Column "step" is missing'),
        ("site,step\nnorth,0\n", 'Column "patient" is missing'),
        ("site;patient\nnorth;1\n", "semicolons"),
    ],
)
def test_what_is_no_table_is_refused_as_elsewhere(tmp_path, content, sentence):
    (tmp_path / "table.csv").write_text(content)
    with pytest.raises((InvalidTable, UnreadableFile), match=sentence):
        write_partition(tmp_path / "table.csv", COMPLETE, tmp_path / "made", rows_at_once=1)
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]


def test_lines_of_another_length_are_counted(tmp_path):
    source = written(random_table(COMPLETE), tmp_path / "table.csv")
    source.write_text(source.read_text() + "a,b\n" * 2)
    for rows_at_once in (10_000, 50):
        with pytest.raises(UnreadableFile, match=r"2 of the other lines more or fewer \(362, 363"):
            write_partition(source, COMPLETE, tmp_path / "made", rows_at_once=rows_at_once)


def test_a_site_level_covariate_that_differs_between_parts_is_found(tmp_path):
    table = random_table(COMPLETE).sort_by("patient")
    beds = [value + (place >= 180) for place, value in enumerate(table["beds"].to_pylist())]
    source = written(table.set_column(7, "beds", pa.array(beds)), tmp_path / "table.parquet")
    with pytest.raises(InvalidTable, match='"beds": differs from the site\'s first value'):
        write_partition(source, COMPLETE, tmp_path / "made", rows_at_once=180)


@pytest.fixture
def made(tmp_path):
    write_partition(random_table(COMPLETE), COMPLETE, tmp_path / "made")
    return tmp_path / "made"


def test_an_existing_folder_is_not_overwritten(made):
    with pytest.raises(OutputExists, match="exists already"):
        write_partition(random_table(COMPLETE), COMPLETE, made)


def test_a_partition_of_another_study_is_refused(made):
    with pytest.raises(OtherStudy, match="made with another study"):
        open_partition(made, replace(COMPLETE, covariates=(replace(AGE, high=95), FLOW, LEVEL)))
    renamed = replace(COMPLETE, patient="id", covariates=(replace(AGE, column="years"), FLOW, LEVEL))
    assert open_partition(made, renamed).n_patients == 120  # names of columns are each site's own


def test_a_file_that_is_missing_or_cut_short_is_named(made):
    victim = made / "000" / step_file(1)
    whole = victim.read_bytes()
    victim.write_bytes(whole[:-10])
    with pytest.raises(DamagedFile, match=r"step-001.parquet has .* instead of"):
        open_partition(made, COMPLETE)
    victim.unlink()
    with pytest.raises(MissingFile, match=r"step-001.parquet is missing"):
        open_partition(made, COMPLETE)


def test_a_file_that_vanishes_or_breaks_while_it_is_read_is_named(made):
    rows = open_partition(made, COMPLETE).by_site()["north"]
    victim = made / "000" / step_file(2)
    content = victim.read_bytes()
    victim.write_bytes(bytes(len(content)))
    with pytest.raises(DamagedFile, match=r"step-002.parquet is cut short or was changed"):
        list(rows.step(1).chunks())
    victim.unlink()
    with pytest.raises(MissingFile, match=r"step-002.parquet is missing"):
        list(rows.step(2).chunks())
    (made / "000" / PATIENTS).unlink()
    with pytest.raises(MissingFile, match=r"patients.parquet is missing"):
        rows.patients.to_pylist()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 1}', "\x00"])
def test_a_broken_manifest_is_refused(made, content):
    (made / MANIFEST).write_text(content)
    with pytest.raises(DamagedFile, match="is no manifest of a partition"):
        open_partition(made, COMPLETE)


def test_what_needs_the_table_itself_says_so(made):
    with pytest.raises(UnreadableFile, match="is a partition of a table"):
        read(made, COMPLETE)


def test_a_later_format_is_refused_by_name(made):
    manifest = json.loads((made / MANIFEST).read_text())
    (made / MANIFEST).write_text(json.dumps({**manifest, "format": 2}))
    with pytest.raises(DamagedFile, match="has format 2; this version of fdtr reads 1"):
        open_partition(made, COMPLETE)


def test_the_parts_of_a_step_have_its_rows_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr(partition, "GROUP_ROWS", 16)
    monkeypatch.setattr("fdtr.trajectories.partition_writer.GROUP_ROWS", 16)
    write_partition(random_table(RAGGED), RAGGED, tmp_path / "made")
    whole = open_partition(tmp_path / "made", RAGGED).by_site()["north"]
    few = whole.select(np.random.default_rng(1).random(whole.n_patients) < 0.3)
    late = whole.select(np.arange(whole.n_patients) >= 40)  # the first groups hold nobody who counts
    for rows in (whole, few, late):
        for step in map(rows.step, range(3)):
            expected = next(step.chunks(100), None)
            for size in (1, 7, 16, 25, 100):
                parts = [step.part(start, min(start + size, step.n)) for start in range(0, step.n, size)]
                chunks = [next(part.chunks(100)) for part in parts]
                assert [len(chunk.actions) for chunk in chunks[:-1]] == [size] * (len(chunks) - 1)
                for name in ("states", "actions", "rewards", "next_states", "ended_value"):
                    together = [getattr(chunk, name) for chunk in chunks]
                    if expected is not None:
                        assert np.array_equal(np.concatenate(together, axis=-1), getattr(expected, name)), (name, size)
