"""Rows on a device: the fits of every role are those of the rows in memory, and everything else still finds the rows.

array-api-strict stands for a device in every environment; PyTorch, on the processor, where it is installed.
"""

from __future__ import annotations

import array_api_strict
import numpy as np
import pytest
from scipy.interpolate import BSpline

import fdtr
from fdtr.algebra.namespaces import Runs, add_gram, count_groups, like, namespace_of, sum_groups, to_numpy, zeros
from fdtr.errors import InvalidSettings, MissingExtra
from fdtr.features.bases import make_basis
from fdtr.learners.accumulate import accumulate_each, accumulate_folds
from fdtr.site import evaluate_site, fit_q_learning, partition_table, summarize, to_device
from fdtr.trajectories import device_rows
from fdtr.trajectories.device_rows import Place, move
from random_tables import make_study, make_table

UNIT = {"effect": "shared", "range": [0, 1]}
FOURIER = {"name": "hour", "range": [0, 24], "basis": {"kind": "fourier", "order": 2}}
POLYNOMIAL = {"name": "age", "range": [18, 90], "basis": {"kind": "polynomial", "degree": 3}}
SPLINE = {"name": "x", "range": [-1, 3], "basis": {"kind": "spline", "knots": [0.3, 0.6], "degree": 2}}
STUDIES = {
    "ragged": {"ends": {"death": 0.0, "discharge": 1.0}},
    "categorical actions": {"actions": {"levels": [0, 1, 4, 5], "basis": "categorical"}},
    "bases": {"covariates": [{"name": "u", **UNIT}, FOURIER, POLYNOMIAL], "horizon": 2},
    "splines": {"covariates": [SPLINE, {"name": "y", **UNIT}], "misspecified": 0.01},
}
TUNED = {"ridge": "auto", "sharing": "auto", "share": "auto", "pessimism": "auto"}


@pytest.fixture(params=["array-api-strict", "torch"])
def place(request):
    if request.param == "array-api-strict":
        return Place(array_api_strict, None, "float64")
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'fdtr[gpu]'")
    from array_api_compat import torch

    return Place(torch, "cpu", "float64")


@pytest.fixture(params=list(STUDIES))
def patients(request):
    """A study and the rows of its two sites."""
    changes = dict(STUDIES[request.param])
    learning = {"misspecification": changes.pop("misspecified", 0.0)}
    study = make_study(learning=learning, **changes)
    table = make_table(study, {"a": 300, "b": 240}, seed=3, ragged=bool(study.ends))
    return study, fdtr.read_trajectories(table, study)


def of_both(study, rows):
    """θ of LDTR and FDTR at every site, one after another, and what FDTR chose."""
    sites = rows.by_site()
    local = {site: fdtr.fit_local(study, of_site) for site, of_site in sites.items()}
    total = fdtr.combine(fit.summary for fit in local.values())
    together = {site: fdtr.fit_federated(study, of_site, total, local[site].summary) for site, of_site in sites.items()}
    thetas = [fit.theta for fits in (local, together) for fit in fits.values()]
    return np.concatenate(thetas), [fit.chosen for fit in together.values()]


def test_policies_are_those_of_rows_in_memory(patients, place):
    study, rows = patients
    theta, _ = of_both(study, rows)
    on_device, _ = of_both(study, move(rows, place))
    np.testing.assert_allclose(on_device, theta, rtol=0, atol=1e-9)


def test_tuned_policies_of_the_demo_are_those_of_rows_in_memory(demo, place):
    study = fdtr.Study.load(demo / "fdtr-demo" / "study.toml")
    rows = fdtr.read_trajectories(demo / "fdtr-demo" / "table.csv", study)
    theta, chosen = of_both(study, rows)
    on_device, chosen_on_device = of_both(study, move(rows, place))
    np.testing.assert_allclose(on_device, theta, rtol=0, atol=1e-9)
    assert chosen_on_device == chosen


def test_q_learning_is_that_of_rows_in_memory(patients, place):
    study, rows = patients
    expected, found = (
        fit_q_learning(study, of_site) for of_site in (rows.by_site()["a"], move(rows, place).by_site()["a"])
    )
    for method, policy in expected.items():
        np.testing.assert_allclose(found[method].theta, policy.theta, rtol=0, atol=1e-7)  # no ridge


@pytest.mark.parametrize("with_folds", [False, True])
def test_sums_of_small_chunks_are_those_of_rows_in_memory(patients, place, with_folds, monkeypatch):
    monkeypatch.setattr(device_rows, "CACHES", 1)
    monkeypatch.setattr("fdtr.learners.accumulate.rows_in_cache", lambda _: 17)
    monkeypatch.setattr(device_rows, "MOVED_ROWS", 41)
    study, rows = patients
    rows, features = rows.by_site()["a"], study.feature_map
    bounds = fdtr.fit_local(study, rows).fit.bounds
    folds = np.random.default_rng(0).integers(0, 4, rows.n_patients)
    folds[folds == 2] = 1  # a fold of nobody
    moved = move(rows, place)
    for h in range(study.horizon):
        values = [None] if h + 1 == study.horizon else [bounds[h + 1], None]

        def sums(of, h=h, values=values):
            if with_folds:
                return [one for fold in accumulate_folds(of.step(h), features, values, folds) for one in fold]
            return accumulate_each(of.step(h), features, values)

        for ours, theirs in zip(sums(moved), sums(rows), strict=True):
            assert np.array_equal(ours.action_counts, theirs.action_counts)
            for name in ("gram", "reward_moment", "value_moment", "target_square", "target_sum", "reward_square"):
                np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-12, atol=1e-12)


class RowsSeen:
    """Takes the rows of the chunks that a device sums, in place of their products."""

    def __init__(self):
        self.rows, self.libraries = [], set()

    def zeros(self):
        return ()

    def __call__(self, chunk, labels):
        self.libraries.add(namespace_of(chunk.states).__name__)
        states, following, ended = map(to_numpy, (chunk.states, chunk.next_states, chunk.ended_value))
        n, k = states.shape[1], following.shape[1]
        assert len(ended) == n - k
        later = [*map(tuple, following.T), *((value,) for value in ended.tolist())]
        actions = np.empty(n, int)
        for action, start, stop in chunk.actions.runs:
            actions[start:stop] = action
        assert np.array_equal(actions, to_numpy(chunk.actions.values))
        columns = (to_numpy(chunk.rewards).tolist(), actions.tolist(), later, to_numpy(labels).tolist())
        self.rows += zip(map(tuple, states.T.tolist()), *columns, strict=True)
        return ()


def test_a_device_holds_every_row_once_with_its_future_and_its_label(patients, place, monkeypatch):
    monkeypatch.setattr(device_rows, "CACHES", 1)
    study, rows = patients
    rows, moved = rows.by_site()["b"], move(rows, place).by_site()["b"]
    labels = np.arange(rows.n_patients)
    for h in range(study.horizon):
        seen, (whole,) = RowsSeen(), rows.step(h).chunks(10**6)
        moved.step(h).sums(seen, 29, labels)
        later = [*map(tuple, whole.next_states.T), *((value,) for value in whole.ended_value.tolist())]
        columns = (map(tuple, whole.states.T.tolist()), whole.rewards.tolist(), whole.actions.tolist(), later)
        assert sorted(seen.rows) == sorted(zip(*columns, labels[: len(later)].tolist(), strict=True))
        assert seen.libraries == {place.namespace.__name__}


def test_what_is_no_fit_takes_the_rows_that_were_moved(place, tmp_path):
    study = make_study(ends={"death": 0.0, "discharge": 1.0}, learning=TUNED)
    table = make_table(study, {"a": 300, "b": 260}, seed=5, ragged=True)
    for rows in (fdtr.read_trajectories(table, study), partition_table(study, table, tmp_path / "rows")):
        moved = move(rows, place)
        assert repr(moved) == repr(rows)
        local = {site: fdtr.fit_local(study, of_site) for site, of_site in moved.by_site().items()}
        total = fdtr.combine(fit.summary for fit in local.values())
        of_site, on_device = rows.by_site()["a"], moved.by_site()["a"]
        assert on_device.patients.to_pylist() == of_site.patients.to_pylist()
        assert np.array_equal(on_device.action_counts(), of_site.action_counts())
        messages = [summarize(study, each).summary.sums for each in (on_device, of_site)]
        np.testing.assert_allclose(messages[0].schur, messages[1].schur, rtol=0, atol=1e-9)
        values = [
            evaluate_site(study, each, total, local["a"].summary).value("FDTR").value for each in (on_device, of_site)
        ]
        assert values[0] == pytest.approx(values[1], abs=1e-9)


def test_some_patients_of_a_device_stay_there(patients, place):
    study, rows = patients
    rows, moved = rows.by_site()["a"], move(rows, place).by_site()["a"]
    mask = np.arange(rows.n_patients) % 2 == 0
    half = moved.select(mask)
    assert isinstance(half.step(0), device_rows.StepOnDevice)
    ours, theirs = fdtr.fit_local(study, half), fdtr.fit_local(study, rows.select(mask))
    np.testing.assert_allclose(ours.theta, theirs.theta, rtol=0, atol=1e-9)


def test_the_same_fit_gives_the_same_bits(patients, place):
    study, rows = patients
    moved = move(rows, place)
    assert np.array_equal(of_both(study, moved)[0], of_both(study, moved)[0])


def test_in_float32_sums_are_added_in_float64(place):
    study = make_study()
    rows = fdtr.read_trajectories(make_table(study, {"a": 2000}), study)
    coarse = move(rows, Place(place.namespace, place.device, "float32"))
    ours, theirs = (fdtr.fit_local(study, each) for each in (coarse, rows))
    assert 0 < np.abs(ours.theta - theirs.theta).max() < 1e-3
    for one, other in zip(ours.fit.statistics, theirs.fit.statistics, strict=True):
        np.testing.assert_allclose(one.gram, other.gram, rtol=1e-5)
        assert one.gram.dtype == np.float64
    n = 1 << 20
    ones = Place(place.namespace, place.device, "float32").array(np.full((1, n), 1.1))
    total = zeros((1, 1), ones)
    add_gram(ones, to=total)
    assert to_numpy(total)[0, 0] == pytest.approx(n * float(np.float32(1.1)) ** 2, rel=2e-6)


@pytest.mark.parametrize("n", [0, 1, 511, 4097, 3 * 4096 + 7])
def test_a_gram_in_parts_is_the_gram(place, n):
    rows = np.random.default_rng(n).normal(size=(3, n))
    moved = place.array(rows)
    total = zeros((3, 3), moved)
    add_gram(moved, to=total)
    np.testing.assert_allclose(to_numpy(total), rows @ rows.T, rtol=1e-12, atol=1e-10)


def test_groups_are_counted_and_summed_as_numpy_does(place):
    rng = np.random.default_rng(1)
    rows, groups = rng.normal(size=(2, 500)), rng.choice([0, 1, 3, 6], 500)
    moved = place.array(groups, place.namespace.int64)
    assert np.array_equal(count_groups(moved, 8), count_groups(groups, 8))
    runs = Runs(np.array([3, 3, 1, 1, 1, 3]), ((3, 0, 2), (1, 2, 5), (3, 5, 6)))
    assert runs[1:4].runs == ((3, 0, 1), (1, 1, 3))
    assert [count_groups(part, 4).tolist() for part in (runs, runs[5:])] == [[0, 3, 0, 3], [0, 0, 0, 1]]
    ours = to_numpy(sum_groups(place.array(rows), moved, 8))
    np.testing.assert_allclose(ours, sum_groups(rows, groups, 8), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("knots", "degree"), [((), 3), ((0.3, 0.6), 2), ((-0.5, 0.25, 2.0), 3), ((1.0,), 1)])
def test_splines_by_pieces_are_those_of_scipy(place, knots, degree):
    basis = make_basis("x", -1.0, 3.0, True, {"kind": "spline", "knots": list(knots), "degree": degree})
    x = np.concatenate([np.linspace(-1.0, 3.0, 1001), knots])
    moved = place.array(x)
    out = place.empty(basis.size, len(x))
    basis.fill(moved, out)
    ends = [-1.0] * (degree + 1), [3.0] * (degree + 1)
    expected = BSpline(np.concatenate([ends[0], knots, ends[1]]), np.eye(basis.size + 1), degree)(x)[:, 1:].T
    np.testing.assert_allclose(to_numpy(out), expected, rtol=0, atol=1e-13)


def test_categorical_levels_are_found_in_float32(place):
    levels = [0.1, 0.2, 0.7]
    basis = make_basis("unit", 0.1, 0.7, True, {"kind": "categorical", "levels": levels})
    coarse = Place(place.namespace, place.device, "float32")
    out = coarse.empty(2, 4)
    basis.fill(coarse.array(np.array([0.7, 0.1, 0.2, 0.2])), out)
    assert to_numpy(out).tolist() == [[0, 0, 1, 1], [1, 0, 0, 0]]


def test_small_arrays_follow_the_rows(place):
    moved = place.array(np.zeros(3))
    found = like(np.array([1.0, 2.0]), moved)
    assert found.dtype == moved.dtype
    assert to_numpy(found).tolist() == [1.0, 2.0]


def test_rows_go_to_a_device_of_torch(patients):
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'fdtr[gpu]'")
    study, rows = patients
    moved = to_device(rows, "cpu")
    assert type(moved.by_site()["a"].step(0).resident._whole.states).__module__ == "torch"
    np.testing.assert_allclose(of_both(study, moved)[0], of_both(study, rows)[0], rtol=0, atol=1e-9)
    assert (
        str(to_device(rows, "cpu", "float32").by_site()["a"].step(0).resident._whole.rewards.dtype) == "torch.float32"
    )


def test_a_device_that_is_not_there_is_refused_in_a_sentence():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'fdtr[gpu]'")
    study = make_study()
    rows = fdtr.read_trajectories(make_table(study, {"a": 5}), study)
    for device in ["nowhere", *([] if torch.cuda.is_available() else ["cuda"])]:
        with pytest.raises(InvalidSettings, match=f"cannot use the device '{device}'.*Nothing was written"):
            to_device(rows, device)


def test_float32_with_fewer_digits_is_refused():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'fdtr[gpu]'")
    study = make_study()
    rows = fdtr.read_trajectories(make_table(study, {"a": 5}), study)
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(InvalidSettings, match="fewer digits"):
            to_device(rows, "cpu", "float32")
        to_device(rows, "cpu")
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_full_device_is_named(patients):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'fdtr[gpu]'")

    class Full(RowsSeen):
        def __call__(self, chunk, labels):
            raise torch.OutOfMemoryError("CUDA out of memory.")

    _, rows = patients
    with pytest.raises(InvalidSettings, match="memory is too small"):
        to_device(rows, "cpu").by_site()["a"].step(0).sums(Full(), 100)


def test_precision_and_a_missing_library_are_named(monkeypatch):
    study = make_study()
    rows = fdtr.read_trajectories(make_table(study, {"a": 5}), study)
    with pytest.raises(InvalidSettings, match="not 'float16'"):
        to_device(rows, "cpu", "float16")
    monkeypatch.setitem(__import__("sys").modules, "array_api_compat.torch", None)
    with pytest.raises(MissingExtra, match=r"pip install 'fdtr\[gpu\]'"):
        to_device(rows, "cuda")
