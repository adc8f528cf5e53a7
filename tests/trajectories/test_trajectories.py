"""Reading a table: arrays by step, and every fault by its sentence."""

from __future__ import annotations

import datetime
import decimal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdtr.errors import InvalidTable, UnknownSite, UnreadableFile
from fdtr.trajectories import CHUNK_ROWS, Covariate, TableLayout, Trajectories, read

pytestmark = pytest.mark.quick

AGE = Covariate("age", "age", 0, 100)
FLOW = Covariate("flow", "flow", 0, 1)
SPEC = TableLayout(2, (AGE, FLOW), (0, 1, 2), 0, 10)
ENDS = replace(SPEC, horizon=3, ends={"death": 0.0, "discharge": 0.5})

SECRET = 77.125  # a value no message may repeat
SECRET_ID = "secret-id"


def table(**changes: list[Any]) -> dict[str, list[Any]]:
    """Two sites with the same patient ids, two steps each."""
    columns: dict[str, list[Any]] = {
        "site": ["south", "south", "south", "south", "north", "north"],
        "patient": ["a", "a", "b", "b", "a", "a"],
        "step": [0, 1, 0, 1, 1, 0],
        "action": [0, 1, 2, 0, 1, 2],
        "reward": [0, 1, 2, 3, 4, 5],
        "age": [10.0, 11.0, 20.0, 21.0, 31.0, 30.0],
        "flow": [0.1, 0.2, 0.3, 0.4, 0.6, 0.5],
    }
    return {name: column for name, column in (columns | changes).items() if column}


def ragged(**changes: list[Any]) -> dict[str, list[Any]]:
    """One site; `a` has one step, `b` three, `c` two, `d` one, with a horizon of three."""
    columns: dict[str, list[Any]] = {
        "site": ["s"] * 7,
        "patient": ["a", "b", "b", "b", "c", "c", "d"],
        "step": [0, 0, 1, 2, 0, 1, 0],
        "action": [0, 1, 2, 0, 1, 2, 0],
        "reward": [1, 2, 3, 4, 5, 6, 7],
        "age": [10.0, 20.0, 21.0, 22.0, 30.0, 31.0, 40.0],
        "flow": [0.0] * 7,
        "end": ["discharge", None, None, None, None, "discharge", "death"],
    }
    return {name: column for name, column in (columns | changes).items() if column}


def faults(columns: Any, spec: TableLayout = SPEC, site: str | None = None) -> tuple[str, ...]:
    """The faults of a table, after making sure that they are told as promised and keep the secrets."""
    source = pa.table(columns) if isinstance(columns, dict) else columns
    with pytest.raises(InvalidTable) as caught:
        read(source, spec, site)
    lines = str(caught.value).splitlines()
    n = len(caught.value.faults)
    assert lines[1:] == list(caught.value.faults)
    assert f"has {n} fault{'s' * (n > 1)};" in lines[0]
    assert str(SECRET) not in str(caught.value)
    assert SECRET_ID not in str(caught.value)
    return caught.value.faults


def assert_same(one: Trajectories, other: Trajectories) -> None:
    assert one.sites == other.sites
    for a, b in zip(one.by_site().values(), other.by_site().values(), strict=True):
        assert a.patients.equals(b.patients)
        assert (a.clipped, a.filled) == (b.clipped, b.filled)
        for h in range(one.horizon):
            for x, y in zip(a.step(h).chunks(), b.step(h).chunks(), strict=True):
                for name in ("states", "actions", "rewards", "next_states", "ended_value"):
                    np.testing.assert_array_equal(getattr(x, name), getattr(y, name))


# ── what is read ──


def test_sites_are_sorted_and_steps_are_slices() -> None:
    data = read(pa.table(table()), SPEC)
    assert data.sites == ("north", "south")
    assert (data.n_patients, data.n_rows, data.horizon, data.covariates) == (3, 6, 2, ("age", "flow"))
    assert repr(data) == "<Trajectories: 2 sites, 3 patients, 6 rows, horizon 2>"
    south = data.by_site()["south"]
    (first,), (last,) = south.step(0).chunks(), south.step(1).chunks()
    np.testing.assert_array_equal(first.states, [[10, 20], [0.1, 0.3]])
    np.testing.assert_array_equal(first.next_states, [[11, 21], [0.2, 0.4]])
    np.testing.assert_array_equal(first.actions, [0, 2])
    np.testing.assert_array_equal(first.rewards, [0, 0.2])
    assert first.ended_value.shape == (0,)
    np.testing.assert_array_equal(last.states, first.next_states)
    assert last.next_states.shape == (2, 0)
    np.testing.assert_array_equal(last.ended_value, [0, 0])
    np.testing.assert_array_equal(south.action_counts(), [[1, 0, 1], [1, 1, 0]])
    assert south.patients.to_pylist() == ["a", "b"]


def test_arrays_are_read_only_views_of_one_contiguous_block() -> None:
    data = read(pa.table(table()), SPEC)
    blocks = set()
    for site in data.by_site().values():
        for h in range(2):
            (chunk,) = site.step(h).chunks()
            assert chunk.states.dtype == chunk.rewards.dtype == np.float64
            assert chunk.actions.dtype == np.intp
            base = chunk.states
            while isinstance(base.base, np.ndarray):
                base = base.base
            blocks.add(id(base))
            assert base.flags.c_contiguous
            assert base.shape == (2, 6)
            with pytest.raises(ValueError, match="read-only"):
                chunk.states[0, 0] = 1
    assert len(blocks) == 1


def test_one_site_is_asked_for_by_its_name_when_there_are_several() -> None:
    data = read(pa.table(table()), SPEC)
    for ask in (
        lambda: data.site,
        lambda: data.step(0),
        lambda: data.patients,
        data.action_counts,
        lambda: data.select(np.ones(3, bool)),
    ):
        with pytest.raises(UnknownSite, match=r"by_site\(\)"):
            ask()


def test_step_outside_the_horizon_is_refused() -> None:
    data = read(pa.table(table()), SPEC, "north")
    for h in (-1, 2):
        with pytest.raises(IndexError, match=r"0 … 1"):
            data.step(h)


def write_csv(columns: dict[str, list[Any]], path: Path, newline: str = "\n", bom: str = "") -> Path:
    rows = [",".join(columns)]
    for cells in zip(*columns.values(), strict=True):
        rows.append(",".join("" if cell is None else str(cell) for cell in cells))
    path.write_bytes((bom + newline.join(rows) + newline).encode())
    return path


def test_every_source_gives_the_same_arrays(tmp_path: Path) -> None:
    columns = ragged(age=[-5.0, 20.0, 21.0, None, 30.0, 31.0, 40.0])
    spec = replace(ENDS, covariates=(replace(AGE, missing="forward"), FLOW))
    arrow = pa.table(columns)
    expected = read(arrow, spec)
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    pq.write_table(arrow, tmp_path / "one.parquet", row_group_size=2)
    pq.write_table(arrow[:3], tmp_path / "folder" / "a.parquet")
    pq.write_table(arrow[3:], tmp_path / "folder" / "deep" / "b.PARQUET")
    (tmp_path / "folder" / "_SUCCESS").touch()
    sources: list[Any] = [
        tmp_path / "one.parquet",
        str(tmp_path / "one.parquet"),
        tmp_path / "folder",
        write_csv(columns, tmp_path / "plain.csv"),
        write_csv(columns, tmp_path / "windows.CSV", "\r\n", "\ufeff"),
        pd.DataFrame(columns),
        pd.DataFrame(columns).astype({"site": "category", "patient": "category", "action": "Int8"}),
        pd.DataFrame(columns).convert_dtypes(dtype_backend="pyarrow"),
        pl.DataFrame(columns),
        pl.LazyFrame(columns),
        pl.DataFrame(columns, schema_overrides={"site": pl.Categorical, "flow": pl.Float32, "age": pl.Decimal(9, 2)}),
        pa.table(columns | {"note": [["nested"]] * 7}),
        arrow.set_column(1, "patient", arrow["patient"].dictionary_encode()),
    ]
    for source in sources:
        assert_same(read(source, spec), expected)


def test_a_table_filtered_to_one_hospital_knows_no_other() -> None:
    whole = pd.DataFrame(table()).astype({"site": "category"})
    first, *rest = whole["site"].cat.categories
    one = whole[whole["site"] == first]
    assert read(one, SPEC).sites == (first,)
    with pytest.raises(UnknownSite):
        read(one, SPEC, site=rest[0])


def test_files_of_a_folder_may_differ_in_number_types(tmp_path: Path) -> None:
    arrow = pa.table(table())
    whole = arrow[:4].set_column(5, "age", arrow["age"][:4].cast(pa.int32()))
    pq.write_table(whole, tmp_path / "a.parquet")
    pq.write_table(arrow[4:], tmp_path / "b.parquet")
    assert_same(read(tmp_path, SPEC), read(arrow, SPEC))


def test_site_may_stand_in_the_folder_names(tmp_path: Path) -> None:
    arrow = pa.table(table(site=[]))
    for name, part in (("007", arrow[:4]), ("north", arrow[4:])):
        (tmp_path / f"site={name}").mkdir()
        pq.write_table(part, tmp_path / f"site={name}" / "part-0.parquet")
    data = read(tmp_path, SPEC)
    assert data.sites == ("007", "north")
    assert data.by_site()["007"].n_patients == 2


def test_ids_keep_their_text_and_numbers_become_decimal_text(tmp_path: Path) -> None:
    path = write_csv(table(patient=["007", "007", "7", "7", "1e3", "1e3"], site=["01"] * 6), tmp_path / "t.csv")
    data = read(path, SPEC)
    assert data.site == "01"
    assert data.patients.to_pylist() == ["007", "7", "1e3"]
    ids = [1, 1, 2, 2, 3, 3]
    for numbers in (pa.array(ids), pa.array(ids, pa.float64()), pa.array([decimal.Decimal(i) for i in ids])):
        frame = pa.table(table() | {"site": pa.array([9] * 6), "patient": numbers})
        assert read(frame, SPEC).site == "9"
        assert read(frame, SPEC).patients.to_pylist() == ["1", "2", "3"]


def test_mixed_python_objects_in_pandas_are_read_as_text() -> None:
    frame = pd.DataFrame(table(patient=["a", "a", 2, 2, 3.5, 3.5]))
    assert read(frame, replace(SPEC), "south").patients.to_pylist() == ["a", "2"]
    mixed = pd.DataFrame(table(age=[1.0, "old", None, SECRET, 5, 6]))
    assert faults(mixed)[:2] == (
        (
            'Column "age": text instead of numbers in 1 row (2). '
            "Write numbers with a decimal point; leave a missing cell empty."
        ),
        (
            'Column "age": missing values in 1 row (3). '
            'Complete the table, or set missing = "forward" or "range-middle" for it in the study.'
        ),
    )


def test_truth_values_are_numbers(tmp_path: Path) -> None:
    truth = [True, False, True, False, True, False]
    expected = read(pa.table(table(flow=[1, 0, 1, 0, 1, 0])), SPEC)
    assert_same(read(pa.table(table(flow=truth)), SPEC), expected)
    assert_same(read(write_csv(table(flow=truth), tmp_path / "t.csv"), SPEC), expected)


def test_columns_may_have_other_names_and_serve_twice() -> None:
    columns = table()
    columns["when"] = columns.pop("step")
    spec = replace(SPEC, step="when", covariates=(AGE, Covariate("time", "when", 0, 1)))
    (chunk,) = read(pa.table(columns), spec, "north").step(1).chunks()
    np.testing.assert_array_equal(chunk.states, [[31], [1]])


def test_action_codes_follow_the_levels_as_listed() -> None:
    spec = replace(SPEC, action_levels=(2, 0.5, 0, 1))
    (chunk,) = read(pa.table(table()), spec, "south").step(0).chunks()
    np.testing.assert_array_equal(chunk.actions, [2, 0])


# ── ragged ends ──


def test_patients_are_ordered_longest_first_then_by_appearance() -> None:
    data = read(pa.table(ragged()), ENDS)
    assert data.patients.to_pylist() == ["b", "c", "a", "d"]
    assert [(data.step(h).n, data.step(h).n_next) for h in range(3)] == [(4, 2), (2, 1), (1, 0)]
    (first,), (second,), (third,) = (data.step(h).chunks() for h in range(3))
    np.testing.assert_array_equal(first.states[0], [20, 30, 10, 40])
    np.testing.assert_array_equal(first.next_states[0], [21, 31])
    np.testing.assert_array_equal(first.ended_value, [2 * 0.5, 0])
    np.testing.assert_array_equal(second.next_states[0], [22])
    np.testing.assert_array_equal(second.ended_value, [0.5])
    np.testing.assert_array_equal(third.ended_value, [0])


def test_an_end_at_full_length_is_ignored() -> None:
    ends = ["discharge", None, None, "moved", None, "discharge", "death"]
    assert_same(read(pa.table(ragged(end=ends)), ENDS), read(pa.table(ragged()), ENDS))


def test_no_end_column_is_needed_where_nobody_ends_early() -> None:
    assert read(pa.table(table()), replace(SPEC, ends={"death": 0})).n_rows == 6


@st.composite
def random_tables(draw: st.DrawFn) -> tuple[dict[str, list[Any]], list[int]]:
    lengths = draw(st.lists(st.integers(1, 3), min_size=1, max_size=12))
    sites = draw(st.lists(st.sampled_from("xyz"), min_size=len(lengths), max_size=len(lengths)))
    rows = [(sites[p], f"p{p}", h, lengths[p]) for p in range(len(lengths)) for h in range(lengths[p])]
    columns = {
        "site": [site for site, *_ in rows],
        "patient": [patient for _, patient, *_ in rows],
        "step": [h for _, _, h, _ in rows],
        "action": [i % 3 for i in range(len(rows))],
        "reward": [i % 11 for i in range(len(rows))],
        "age": [int(patient[1:]) + h / 4 for _, patient, h, _ in rows],
        "flow": [0.5] * len(rows),
        "end": ["discharge" if h + 1 == length < 3 else None for _, _, h, length in rows],
    }
    return columns, draw(st.permutations(range(len(rows))))


@given(random_tables(), st.integers(1, 5))
@settings(max_examples=60)
def test_each_row_is_continued_by_the_same_row_one_step_later(
    case: tuple[dict[str, list[Any]], list[int]], size: int
) -> None:
    columns, order = case
    data = read(pa.table(columns).take(order), ENDS)
    assert data.n_rows == len(order)
    for site in data.by_site().values():
        people = np.array([int(patient[1:]) for patient in site.patients.to_pylist()])
        for h in range(3):
            step = site.step(h)
            parts = list(step.chunks(size))
            states = np.concatenate([part.states for part in parts] or [np.zeros((2, 0))], axis=1)
            later = np.concatenate([part.next_states for part in parts] or [np.zeros((2, 0))], axis=1)
            ended = np.concatenate([part.ended_value for part in parts] or [np.zeros(0)])
            np.testing.assert_array_equal(states[0], people[: step.n] + h / 4)
            np.testing.assert_array_equal(later[0], people[: step.n_next] + (h + 1) / 4)
            np.testing.assert_array_equal(ended, np.full(step.n - step.n_next, (2 - h) * 0.5))
            for part in parts:
                assert part.states.shape[1] == part.next_states.shape[1] + len(part.ended_value) <= size
                assert np.shares_memory(part.states, site.step(h)._whole.states)


@given(random_tables())
@settings(max_examples=60)
def test_row_order_changes_nothing_but_the_order_of_patients(
    case: tuple[dict[str, list[Any]], list[int]],
) -> None:
    columns, order = case
    arrow = pa.table(columns)
    one, other = read(arrow, ENDS).by_site(), read(arrow.take(order), ENDS).by_site()
    assert list(one) == list(other)
    for name in one:
        for h in range(3):
            rows = []
            for data in (one[name], other[name]):
                ids = data.patients.to_pylist()
                whole = data.step(h)._whole
                everything = zip(ids, whole.states.T.tolist(), whole.actions, whole.rewards, strict=False)
                rows.append(sorted(everything, key=lambda row: row[0]))
            assert rows[0] == rows[1]


# ── chunks, select ──


def test_chunks_are_of_the_usual_size_unless_told() -> None:
    n = CHUNK_ROWS + 1
    columns = {
        "patient": list(range(n)),
        "step": [0] * n,
        "action": [0] * n,
        "reward": [0] * n,
        "age": [1] * n,
    }
    data = read(pa.table(columns), replace(SPEC, horizon=1, covariates=(AGE,)), "s")
    assert [chunk.states.shape for chunk in data.step(0).chunks()] == [(1, CHUNK_ROWS), (1, 1)]
    with pytest.raises(ValueError, match="at least 1 row"):
        next(data.step(0).chunks(0))


@given(random_tables(), st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_selecting_patients_equals_reading_their_rows_alone(
    case: tuple[dict[str, list[Any]], list[int]], random: Any
) -> None:
    arrow = pa.table(case[0]).take(case[1])
    for name, data in read(arrow, ENDS).by_site().items():
        chosen = np.array([random.random() < 0.5 for _ in range(data.n_patients)])
        part = data.select(chosen)
        ids = data.patients.filter(pa.array(chosen))
        assert (part.site, part.n_patients) == (name, chosen.sum())
        if chosen.any():
            mine = np.isin(arrow["patient"].to_pylist(), ids.to_pylist())
            assert_same(part, read(arrow.filter(pa.array(mine)), ENDS))
        else:
            assert [list(part.step(h).chunks()) for h in range(3)] == [[], [], []]


def test_a_mask_of_another_shape_or_type_is_refused() -> None:
    data = read(pa.table(table()), SPEC, "south")
    for mask in (np.ones(3, bool), np.array([0, 1])):
        with pytest.raises(ValueError, match="2 booleans"):
            data.select(mask)


# ── clusters ──


def test_clusters_follow_the_patients_and_there_are_none_unless_asked_for(tmp_path: Path) -> None:
    spec = replace(ENDS, cluster="clinician")
    columns = ragged(clinician=["7", "08", "08", " 08", "7 ", "7", "9"])
    data = read(pa.table(columns), spec)
    assert data.patients.to_pylist() == ["b", "c", "a", "d"]
    assert data.clusters.to_pylist() == ["08", "7", "7", "9"]
    assert data.n_clusters == 3
    assert data.cluster_codes().tolist() == data.clusters.dictionary_encode().indices.to_pylist() == [0, 1, 1, 2]
    assert [*data.units()] == data.clusters.to_pylist()
    some = data.select(np.array([False, True, True, False]))
    assert (some.patients.to_pylist(), some.clusters.to_pylist(), some.n_clusters) == (["c", "a"], ["7", "7"], 1)
    plain = read(pa.table(columns), ENDS)
    assert (plain.clusters, plain.n_clusters, plain.cluster_codes()) == (None, None, None)
    assert plain.select(np.ones(4, np.bool_)).clusters is None
    assert [*plain.units()] == plain.patients.to_pylist()
    assert_same(plain, data)
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    for source in (write_csv(columns, tmp_path / "t.csv"), tmp_path / "t.parquet", pl.DataFrame(columns)):
        assert read(source, spec).clusters.equals(data.clusters)


def test_a_cluster_belongs_to_its_site() -> None:
    spec = replace(SPEC, cluster="clinician")
    data = read(pa.table(table(clinician=[1.0, 1.0, 2.0, 2.0, 1.0, 1.0])), spec)
    sites = data.by_site()
    assert (sites["south"].clusters.to_pylist(), sites["north"].clusters.to_pylist()) == (["1", "2"], ["1"])
    with pytest.raises(UnknownSite, match="One site is needed and the table holds 2"):
        data.clusters  # noqa: B018


def test_rows_with_and_without_clusters_mean_the_same() -> None:
    assert replace(SPEC, cluster="clinician").meaning == SPEC.meaning


@given(people=st.lists(st.tuples(st.sampled_from("rst"), st.integers(1, 3)), min_size=1, max_size=12), data=st.data())
@settings(max_examples=40)
def test_every_patient_keeps_the_cluster_whatever_the_order_of_rows(
    people: list[tuple[str, int]], data: st.DataObject
) -> None:
    rows = [(f"p{i}", h, cluster, n) for i, (cluster, n) in enumerate(people) for h in range(n)]
    rows = data.draw(st.permutations(rows))
    columns = {
        "site": ["s"] * len(rows),
        "patient": [row[0] for row in rows],
        "step": [row[1] for row in rows],
        "clinician": [row[2] for row in rows],
        "end": ["death" if row[1] == row[3] - 1 < 2 else None for row in rows],
        **dict.fromkeys(("action", "reward", "age", "flow"), [0.0] * len(rows)),
    }
    found = read(pa.table(columns), replace(ENDS, cluster="clinician"))
    expected = {f"p{i}": cluster for i, (cluster, _) in enumerate(people)}
    assert dict(zip(found.patients.to_pylist(), found.clusters.to_pylist(), strict=True)) == expected


# ── clipping and filling ──


def test_clipping_is_counted_by_site() -> None:
    data = read(pa.table(table(age=[-1.0, 11.0, 120.0, 21.0, 31.0, 500.0])), SPEC)
    assert data.clipped == {"age": 3, "flow": 0}
    assert {name: site.clipped["age"] for name, site in data.by_site().items()} == {"north": 1, "south": 2}
    np.testing.assert_array_equal(next(data.by_site()["south"].step(0).chunks()).states[0], [0, 100])


def test_missing_values_are_carried_forward_over_several_steps() -> None:
    spec = replace(SPEC, horizon=3, covariates=(replace(AGE, missing="forward"),))
    columns = {
        "patient": ["a", "a", "a", "b", "b", "b"],
        "step": [2, 0, 1, 0, 1, 2],
        "action": [0] * 6,
        "reward": [0] * 6,
        "age": [None, 120.0, float("nan"), 5.0, None, 7.0],
    }
    data = read(pa.table(columns), spec, "s")
    assert (data.filled, data.clipped) == ({"age": 3}, {"age": 1})
    (last,) = data.step(2).chunks()
    np.testing.assert_array_equal(last.states, [[100, 7]])
    np.testing.assert_array_equal(next(data.step(0).chunks()).next_states, [[100, 5]])


def test_missing_values_are_filled_with_the_middle_of_the_range() -> None:
    spec = replace(SPEC, covariates=(replace(AGE, missing="range-middle", low=20), FLOW))
    data = read(pa.table(table(age=[None, 10.0, 20.0, None, 31.0, 30.0])), spec)
    assert (data.filled, data.clipped) == ({"age": 2, "flow": 0}, {"age": 1, "flow": 0})
    np.testing.assert_array_equal(next(data.by_site()["south"].step(0).chunks()).states[0], [60, 20])


def test_levels_are_not_clipped_and_may_be_carried_forward() -> None:
    spec = replace(SPEC, covariates=(Covariate("age", "age", 0, 1, levels=(5, 10), missing="forward"),))
    data = read(pa.table(table(age=[10, None, 5, 10, None, 5])), spec)
    assert (data.filled, data.clipped) == ({"age": 2}, {"age": 0})
    np.testing.assert_array_equal(next(data.by_site()["south"].step(1).chunks()).states, [[10, 10]])


# ── the site argument ──


def test_site_names_the_one_site_of_a_table_without_the_column() -> None:
    columns = table(site=[], patient=list("aabbcc"))
    data = read(pa.table(columns), SPEC, "west")
    assert data.site == "west"
    assert list(data.by_site()) == ["west"]
    assert faults(columns) == (
        ('Column "site" is missing. Name the site (site=, or --site NAME on the command line), or map the column.'),
    )


def test_site_selects_rows_and_faults_elsewhere_do_not_matter() -> None:
    broken = table(age=[10.0, 11.0, 20.0, 21.0, None, 30.0], site=[*["south"] * 4, "north", None])
    assert_same(read(pa.table(broken), SPEC, "south"), read(pa.table(table()), SPEC, "south"))
    assert faults(broken, site="north")[0].startswith('Column "age": missing values in 1 row (5).')


def test_a_site_without_rows_is_refused_with_those_that_have_some() -> None:
    with pytest.raises(UnknownSite, match=r'no rows of site "west"\. Its sites: "north", "south"\.'):
        read(pa.table(table()), SPEC, "west")
    mistaken = pa.table(table()).take([0] * 60).set_column(0, "site", [[f"{SECRET_ID}-{i}" for i in range(60)]])
    with pytest.raises(UnknownSite, match=r"Its sites: 60 others\."):
        read(mistaken, SPEC, "west")


# ── faults of the table ──


def test_missing_columns_come_with_the_nearest_name_and_the_rest_is_still_checked() -> None:
    columns = table(reward=[11] * 6)
    columns["Age"], columns["patients"] = columns.pop("age"), columns.pop("patient")
    assert faults(columns) == (
        'Column "patient" is missing. The nearest is "patients". [columns] in the study file maps names.',
        'Column "age" is missing. The nearest is "Age". [columns] in the study file maps names.',
        (
            'Column "reward": outside 0 … 10 in 6 rows (1, 2, 3, 4, 5, …). '
            "Correct the table or widen [reward] range in the study."
        ),
    )
    assert faults(table(step=[], action=[])) == (
        'Column "step" is missing. [columns] in the study file maps names.',
        'Column "action" is missing. [columns] in the study file maps names.',
    )


def test_a_table_without_a_header_is_refused_without_quoting_its_first_row(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"s,{SECRET_ID},patient-9,0,0,{SECRET}\ns,{SECRET_ID},patient-9,1,0,1\n")
    (fault,) = faults(path)
    assert fault == (
        'None of the columns "patient", "step", "action", "reward", "age", "flow" is there. '
        "Does the first line hold column names?"
    )


def test_a_repeated_column_is_refused_where_it_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = "patient,step,action,reward,age,flow,age,note,note\na,0,0,0,1,0,1,,\na,1,0,0,1,0,1,,\n"
    path.write_text(rows)
    assert faults(path, site="s") == ('Column "age" appears 2 times. Rename or drop all but one.',)
    path.write_text(rows.replace("flow,age", "flow,other"))
    assert read(path, SPEC, "s").n_rows == 2
    arrow = pa.table(table(site=["s"] * 6))
    assert 'Column "age" appears 2 times.' in faults(arrow.append_column("age", arrow["age"]))[0]


@pytest.mark.parametrize("column", ["site", "patient", "step", "age"])
def test_dataframes_with_repeated_columns_are_refused(column: str) -> None:
    frame = pd.DataFrame(table())
    frame = pd.concat([frame, frame[[column]]], axis=1)
    assert faults(frame)[0] == f'Column "{column}" appears 2 times. Rename or drop all but one.'


def test_an_empty_table_is_refused(tmp_path: Path) -> None:
    sentence = "The table has no rows. Check the export."
    empty = pa.table(table())[:0]
    assert faults(empty) == (sentence,)
    assert faults(empty, site="north") == (sentence,)
    pq.write_table(empty, tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text(",".join(table()))
    assert faults(tmp_path / "t.parquet") == faults(tmp_path / "t.csv") == (sentence,)
    assert faults(pd.DataFrame(columns=list(table()))) == (sentence,)


def test_text_among_numbers_is_found_in_every_column(tmp_path: Path) -> None:
    columns = table(age=[SECRET_ID, 1, SECRET, "1,5", "x_1", "1_0"], step=[0, 1, 0, "one", 1, 0])
    expected = (
        (
            'Column "step": text instead of numbers in 1 row (4). '
            "Write numbers with a decimal point; leave a missing cell empty."
        ),
        (
            'Column "age": text instead of numbers in 4 rows (1, 4, 5, 6). '
            "Write numbers with a decimal point; leave a missing cell empty."
        ),
    )
    columns["age"] = [f'"{cell}"' for cell in columns["age"]]
    assert faults(write_csv(columns, tmp_path / "t.csv")) == expected
    text = {name: [str(cell).strip('"') for cell in cells] for name, cells in columns.items()}
    assert faults(text) == expected
    assert faults(pd.DataFrame(text)) == faults(pl.DataFrame(text)) == expected


def test_types_without_numbers_or_names_are_refused() -> None:
    day = datetime.date(2020, 1, 1)
    assert faults(table(age=[day] * 6)) == ('Column "age" is of type date32[day]; numbers are needed. Convert it.',)
    nested = 'Column "patient" is of type list<item: string>; text is needed. Convert it.'
    assert faults({**table(), "patient": pa.array([[SECRET_ID]] * 6)}) == (nested,)
    assert "text is needed" in faults({**table(), "site": pa.array([[SECRET_ID]] * 6)})[0]


def test_missing_and_infinite_values_are_refused_in_every_number_column() -> None:
    nan, inf = float("nan"), float("inf")
    columns = table(
        step=[0, 1, 0, 1, None, 0],
        action=[0, nan, 2, 0, 1, 2],
        reward=[0, 1, None, 3, -inf, 5],
        age=[None, nan, None, None, None, None],
        flow=[0.1, 0.2, inf, 0.4, 0.6, 0.5],
    )
    own = "Complete the table or drop the patient."
    assert faults(columns) == (
        f'Column "step": missing values in 1 row (5). {own}',
        f'Column "action": missing values in 1 row (2). {own}',
        f'Column "reward": missing values in 1 row (3). {own}',
        'Column "reward": infinite values in 1 row (5). Correct them in the table.',
        (
            'Column "age": missing values in 6 rows (1, 2, 3, 4, 5, …). '
            'Complete the table, or set missing = "forward" or "range-middle" for it in the study.'
        ),
        'Column "flow": infinite values in 1 row (3). Correct them in the table.',
    )


@pytest.mark.parametrize("missing", ["forward", "range-middle"])
def test_infinite_values_are_never_filled(missing: str) -> None:
    spec = replace(SPEC, covariates=(replace(AGE, missing=missing),))
    columns = table(age=[1.0, float("inf"), 2.0, None, 3.0, 4.0])
    columns["age"][4] = float("-inf")
    assert faults(columns, spec) == ('Column "age": infinite values in 2 rows (2, 5). Correct them in the table.',)


def test_missing_words_in_csv_are_missing_values(tmp_path: Path) -> None:
    path = write_csv(table(age=[" 1", "NA", "nan", "", "NULL", "+2"]), tmp_path / "t.csv")
    assert faults(path)[0].startswith('Column "age": missing values in 4 rows (2, 3, 4, 5).')


def test_a_first_value_cannot_be_carried_forward() -> None:
    spec = replace(SPEC, covariates=(replace(AGE, missing="forward"),))
    sentence = (
        'Column "age": missing values with no earlier one in 3 rows (1, 2, 6). '
        'Complete the table, or set missing = "range-middle" for it in the study.'
    )
    columns = table(age=[None, None, 1.0, None, 2.0, None])
    assert faults(columns, spec) == (sentence,)
    twice = faults({**columns, "step": [0, 1, 0, 0, 1, 0]}, spec)
    assert twice[0] == sentence
    assert "the same step of a patient more than once in 1 row (4)" in twice[1]


def test_empty_ids_are_refused(tmp_path: Path) -> None:
    columns = table(site=["south", "south", "south", "south", "", " "], patient=["a", "a", None, "", "a", "a"])
    expected = (
        'Column "site": empty in 2 rows (5, 6). Every row needs one.',
        'Column "patient": empty in 2 rows (3, 4). Every row needs one.',
    )
    assert faults(columns) == expected
    assert faults(write_csv(columns, tmp_path / "t.csv")) == expected


def test_steps_must_be_whole_and_within_the_horizon() -> None:
    columns = table(step=[0, 1.5, -1, 2, 1e300, -1e300])
    assert faults(columns) == (
        'Column "step": not a whole number in 1 row (2). Steps run 0 … 1.',
        'Column "step": negative in 2 rows (3, 6). Steps run 0 … 1.',
        (
            'Column "step": at or beyond the horizon 2 in 2 rows (4, 5). '
            "Steps run 0 … 1. Subtract 1 where the table counts from 1."
        ),
    )


def test_a_step_twice_is_refused_at_its_second_row() -> None:
    assert faults(table(step=[0, 1, 0, 1, 0, 0], site=["s"] * 6, patient=list("aabbbb"))) == (
        'Columns "patient", "step": the same step of a patient more than once in 2 rows (5, 6). Keep one row a step.',
    )


def test_holes_are_refused_at_the_row_after_them() -> None:
    columns = ragged(step=[1, 0, 2, 1, 0, 2, 0])
    assert faults(columns, ENDS) == (
        (
            'Columns "patient", "step": steps skipped just before the one in 2 rows (1, 6). '
            "Steps of a patient run 0, 1, … without holes."
        ),
    )


def test_early_ends_are_refused_without_ends_in_the_study() -> None:
    assert faults(ragged(), replace(ENDS, ends={})) == (
        (
            'Column "step": trajectories of fewer than 3 steps end in 3 rows (1, 6, 7). '
            "Complete them, or say in [ends] of the study what the missing steps are worth."
        ),
    )


def test_early_ends_need_the_column_end() -> None:
    columns = ragged()
    columns["ends"] = columns.pop("end")
    assert faults(columns, ENDS) == (
        (
            'Column "end" is missing. The nearest is "ends". '
            "Trajectories end early, so it is needed; [columns] in the study file maps names."
        ),
    )


def test_ends_must_be_known_and_on_the_last_row() -> None:
    ends = [None, "death", None, None, "discharge", SECRET_ID, ""]
    assert faults(ragged(end=ends), ENDS) == (
        ('Column "end": empty where a trajectory ends early, in 2 rows (1, 7). The study knows "death", "discharge".'),
        'Column "end": an unknown end in 1 row (6). The study knows "death", "discharge".',
        'Column "end": given before the last step in 2 rows (2, 5). An end belongs on a patient\'s last row.',
    )


def test_values_outside_levels_and_ranges_are_refused() -> None:
    spec = replace(SPEC, covariates=(AGE, Covariate("flow", "flow", 0, 1, levels=(0, 0.5))))
    columns = table(action=[0, 3, 2, 0, 0.5, 2], reward=[0, 1, SECRET, 3, 4, -1], flow=[0, 0.5, 0, SECRET, 0.5, 0])
    assert faults(columns, spec) == (
        'Column "action": not one of the action levels in 2 rows (2, 5). The study has 0, 1, 2.',
        ('Column "reward": outside 0 … 10 in 2 rows (3, 6). Correct the table or widen [reward] range in the study.'),
        'Column "flow": not one of its levels in 1 row (4). The study has 0, 0.5.',
    )


def test_a_site_level_covariate_may_not_vary_within_a_site() -> None:
    spec = replace(SPEC, covariates=(AGE, replace(FLOW, constant_within_site=True)))
    assert read(pa.table(table(flow=[0.1, 0.1, 0.1, 0.1, 0.2, 0.2])), spec).n_rows == 6
    assert faults(table(flow=[0.1, 0.1, 0.1, 0.3, 0.2, 0.25]), spec) == (
        (
            'Column "flow": differs from the site\'s first value in 2 rows (4, 6). '
            'Correct them, or set level = "patient" in the study.'
        ),
    )


def test_a_patient_has_one_cluster_on_every_row() -> None:
    spec = replace(SPEC, cluster="clinician")
    one_for_each = "A patient has one cluster. Correct them, or drop cluster from [columns] in the study file."
    varies = f'Column "clinician": differs from the patient\'s first value in 2 rows (4, 6). {one_for_each}'
    empty = 'Column "clinician": empty in 2 rows (2, 3). Every row needs one.'
    assert faults(table(clinician=["r", "r", "s", SECRET_ID, "r", SECRET_ID]), spec) == (varies,)
    assert faults(table(clinician=["r", None, " ", "s", "r", "r"]), spec) == (empty,)
    # Of one site of several, rows are counted in the whole table.
    assert faults(table(clinician=["r", "s", "", "s", "r", SECRET_ID]), spec, "north") == (
        f'Column "clinician": differs from the patient\'s first value in 1 row (6). {one_for_each}',
    )
    assert faults(table(clinicians=["r"] * 6), spec) == (
        'Column "clinician" is missing. The nearest is "clinicians". [columns] in the study file maps names.',
    )
    assert faults(table(clinician=[[SECRET]] * 6), spec) == (
        'Column "clinician" is of type list<item: double>; text is needed. Convert it.',
    )
    without_ids = faults(table(patient=[], clinician=["r", "s", None, "s", "r", "r"]), spec)
    assert without_ids[0].startswith('Column "patient" is missing.')
    assert without_ids[1].startswith('Column "clinician": empty in 1 row (3).')


def test_a_site_level_covariate_is_checked_after_filling() -> None:
    flow = [0.1, None, 0.1, 0.1, 0.2, 0.2]
    site_level = replace(FLOW, constant_within_site=True)
    for missing, good in (("forward", True), ("range-middle", False)):
        spec = replace(SPEC, covariates=(replace(site_level, missing=missing),))
        if good:
            assert read(pa.table(table(flow=[*flow[:4], None, 0.2])), spec).filled == {"flow": 2}
        else:
            assert "differs from the site's first value in 1 row (2)" in faults(table(flow=flow), spec)[0]


def test_many_faults_come_together_the_most_important_first() -> None:
    spec = replace(
        ENDS,
        covariates=(
            AGE,
            replace(FLOW, constant_within_site=True),
            Covariate("sex", "sex", 0, 1, levels=(0, 1)),
        ),
    )
    columns = {
        "site": [*["s"] * 10, ""],
        "patient": ["a", "a", "b", "b", "c", "c", "d", SECRET_ID, "e", "e", "e"],
        "step": [0, 0, 0, 2, 0, 3, 0, 0, 0, 1, 2],
        "action": [9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        "reward": [0, 99, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        "age": ["1", "old", "", "1", "1", "1", "1", "1", "1", "1", "1"],
        "flow": [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0],
        "sex": [0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0],
        "end": [None, None, None, None, None, None, "death", None, None, "death", None],
        "more": [0] * 11,
    }
    beginnings = (
        'Column "age": text',
        'Column "age": missing values',
        'Column "site": empty in 1 row (11)',
        'Column "step": at or beyond',
        'Columns "patient", "step": the same step of a patient more than once in 1 row (2)',
        'Columns "patient", "step": steps skipped',
        'Column "end": empty where',
        'Column "action": not one',
        'Column "reward": outside',
        'Column "sex": not one of its levels',
        'Column "flow": differs',
    )
    found = faults(columns, spec)
    assert len(found) == len(beginnings)
    for line, beginning in zip(found, beginnings, strict=True):
        assert line.startswith(beginning)


# ── unreadable sources ──


def unreadable(source: Any) -> str:
    with pytest.raises(UnreadableFile) as caught:
        read(source, SPEC)
    message = str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert str(SECRET) not in message
    assert SECRET_ID not in message
    return message


def test_files_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    assert unreadable(path) == f'File "{path}" does not exist. Check the path.'
    path.write_bytes(b"")
    assert unreadable(path) == f'File "{path}" is empty. Export it again.'
    path.write_bytes(b"patient,step\n\xff\xfe\x00,1\n")
    assert "not text in UTF-8" in unreadable(path)
    path.write_bytes(b"patient,step\n" + b"a,1\n" * 9999 + b"\xff\xfe,1\n")
    assert "not a CSV table in UTF-8" in unreadable(path)
    path.write_text("patient;step;action\na;0;1\n")
    assert "separates columns by semicolons" in unreadable(path)
    path.write_text("patient\tstep\taction\na\t0\t1\n")
    assert "separates columns by tabs" in unreadable(path)
    other = tmp_path / "t.xlsx"
    other.touch()
    assert "ends in neither .csv nor .parquet" in unreadable(other)


def test_quoted_line_breaks_and_blank_lines_are_no_faults(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    header = "\npatient,step,action,reward,age,flow,note\n"
    path.write_text(header + 'a,0,0,0,1,0,"two\nlines, one cell"\n\na,1,0,0,1,0,\n\n')
    assert read(path, SPEC, "s").n_rows == 2


def test_ragged_lines_are_named_by_number_and_not_quoted(tmp_path: Path) -> None:
    path = write_csv(table(), tmp_path / "t.csv")
    lines = path.read_text().splitlines()
    lines[2] += f",{SECRET}"
    lines[4] = f"{SECRET_ID},1"
    path.write_text("\n".join(lines))
    message = unreadable(path)
    assert "the header has 7 fields, 2 of the other lines more or fewer (3, 5; the header is line 1)" in message


def test_broken_parquet_says_so(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table(table()), path)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"patient,step\n", whole[:-30] + b"x" * 30):
        path.write_bytes(content)
        assert unreadable(path).startswith(f'File "{path}" is not sound Parquet')
    assert unreadable(tmp_path).startswith(f'Folder "{tmp_path}" is not sound Parquet')


def test_folders_need_parquet_files_that_agree(tmp_path: Path) -> None:
    folder = tmp_path / "t.csv"
    folder.mkdir()
    write_csv(table(), folder / "part.csv")
    assert unreadable(folder) == f'Folder "{folder}" holds no Parquet file. Name one, or a folder of them.'
    pq.write_table(pa.table(table()), folder / "a.parquet")
    pq.write_table(pa.table(table(age=[SECRET_ID] * 6)), folder / "b.parquet")
    assert "files disagree on a column's type" in unreadable(folder)


def test_a_lazy_query_that_fails_is_refused_without_its_error() -> None:
    frame = pl.LazyFrame(table(age=[SECRET_ID] * 6)).with_columns(pl.col("age").cast(pl.Float64))
    assert unreadable(frame) == "Dataframe (LazyFrame) could not be read. Check that its query runs."


@pytest.mark.parametrize("source", [None, 7, table(), [1], np.zeros((2, 2)), pd.Series([1])])
def test_other_objects_are_no_tables(source: Any) -> None:
    with pytest.raises(TypeError, match="a path or a dataframe"):
        read(source, SPEC)


def test_representations_hold_no_values() -> None:
    data = read(pa.table(table(site=[], patient=[SECRET_ID, SECRET_ID, "b", "b", "c", "c"])), SPEC, "s")
    (chunk,) = data.step(0).chunks()
    spec = replace(SPEC, cluster="clinician")
    clustered = read(pa.table(table(site=[], patient=list("aabbcc"), clinician=[SECRET_ID] * 6)), spec, "s")
    for thing in (data, data.step(0), chunk, clustered):
        assert SECRET_ID not in repr(thing)
        assert "array" not in repr(thing)


def test_rewards_are_mapped_from_their_own_range():
    rows = {"patient": ["p", "q", "r"], "step": [0, 0, 0], "action": [0, 1, 0], "reward": [-3, 1, -1], "x": [0, 0, 0]}
    spec = TableLayout(1, (Covariate("x", "x", 0, 1),), (0, 1), reward_low=-3, reward_high=1)
    (chunk,) = read(pa.table(rows), spec, site="a").step(0).chunks()
    assert chunk.rewards.tolist() == [0, 1, 0.5]
