"""Laws of the learners: what must not change a policy, and how bounds behave."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdtr.algebra.normal_equations import factor
from fdtr.learners.accumulate import accumulate_each, accumulate_folds
from fdtr.site.fitting import fit_federated, fit_local
from fdtr.site.rows import read_trajectories
from fdtr.summary import combine
from paper_algorithms import penalty
from random_tables import make_sites, make_study, make_table


def federated_theta(study, table):
    sites = read_trajectories(table, study).by_site()
    total = combine([fit_local(study, rows).summary for rows in sites.values()])
    return fit_federated(study, sites["a"], total).theta


@pytest.fixture(scope="module")
def study():
    return make_study(ends={"death": 0.0, "discharge": 1.0})


@pytest.fixture(scope="module")
def table(study):
    return make_table(study, {"a": 300, "b": 200}, ragged=True)


@pytest.fixture(scope="module")
def theta(study, table):
    return federated_theta(study, table)


def test_row_order_does_not_change_a_policy(study, table, theta):
    order = np.random.default_rng(1).permutation(table.num_rows)
    np.testing.assert_allclose(federated_theta(study, table.take(order)), theta, rtol=1e-10, atol=1e-12)


def test_chunk_size_does_not_change_a_policy(study, table, theta, monkeypatch):
    monkeypatch.setattr("fdtr.learners.accumulate.rows_in_cache", lambda _: 37)
    np.testing.assert_allclose(federated_theta(study, table), theta, rtol=1e-10, atol=1e-12)


def test_thread_count_does_not_change_a_bit(study, table, monkeypatch):
    monkeypatch.setattr("fdtr.learners.accumulate.rows_in_cache", lambda _: 37)
    found = []
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("FDTR_THREADS", threads)
        found.append(federated_theta(study, table))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_dataframe_library_does_not_change_a_policy(study, table, theta):
    for frame in (table.to_pandas(), pl.from_arrow(table), pl.from_arrow(table).lazy()):
        np.testing.assert_array_equal(federated_theta(study, frame), theta)


@settings(max_examples=30, derandomize=True)
@given(seed=st.integers(0, 10**6), pessimism=st.floats(0, 0.1), step=st.integers(0, 2))
def test_q_stays_between_zero_and_the_steps_left(seed, pessimism, step):
    study = make_study(learning={"pessimism": pessimism, "ridge": 0.001})
    policy = fit_local(study, make_sites(study, {"a": 20}, seed)["a"]).policy
    states = np.random.default_rng(seed).uniform(-5, 15, (50, 4))
    q = policy.q_values(states, step)
    assert q.min() >= 0
    assert q.max() <= 3 - step


@settings(max_examples=30, derandomize=True)
@given(seed=st.integers(0, 10**6), kept=st.integers(1, 59))
def test_leverage_never_grows_when_rows_are_added(seed, kept):
    study = make_study()
    rows = make_sites(study, {"a": 60}, seed)["a"]
    few = fit_local(study, rows.select(np.arange(60) < kept))
    all_rows = fit_local(study, rows)
    rng = np.random.default_rng(seed)
    phi = study.feature_map.phi(rng.random((4, 20)), rng.integers(0, 3, 20))
    for h in range(3):
        narrow = penalty(phi, factor(all_rows.policy.precision[h]), 1.0)
        assert (narrow <= penalty(phi, factor(few.policy.precision[h]), 1.0) * (1 + 1e-12)).all()


@settings(max_examples=20, derandomize=True)
@given(seed=st.integers(0, 10**6), pair=st.tuples(st.floats(0, 0.05), st.floats(0, 0.05)))
def test_more_pessimism_never_raises_a_bound_at_the_last_step(seed, pair):
    rows = make_sites(make_study(), {"a": 40}, seed)["a"]
    states = np.random.default_rng(seed).uniform(0, 1, (30, 4))
    less, more = (
        fit_local(make_study(learning={"pessimism": c, "ridge": 0.1}), rows).policy.lower_bound(states, 2)
        for c in sorted(pair)
    )
    assert (more <= less + 1e-12).all()


@pytest.mark.parametrize("ragged", [False, True])
def test_the_sums_of_folds_in_one_pass_are_those_of_each_fold_by_itself(ragged):
    study = make_study(ends={"death": 0.0, "discharge": 1.0}) if ragged else make_study()
    rows = make_sites(study, {"a": 400}, ragged=ragged)["a"]
    bounds = fit_local(study, rows).fit.bounds
    folds = np.random.default_rng(0).integers(0, 4, rows.n_patients)
    folds[folds == 2] = 1  # a fold of nobody
    for h in range(study.horizon):
        values = [None] if h + 1 == study.horizon else [bounds[h + 1], None]
        together = accumulate_folds(rows.step(h), study.feature_map, values, folds)
        for fold, sums in enumerate(together):
            alone = accumulate_each(rows.select(folds == fold).step(h), study.feature_map, values)
            for one, other in zip(sums, alone, strict=True):
                assert one.n == other.n
                for name in ("gram", "reward_moment", "value_moment", "target_square", "target_sum", "reward_square"):
                    assert np.allclose(getattr(one, name), getattr(other, name), rtol=1e-12, atol=1e-12)
