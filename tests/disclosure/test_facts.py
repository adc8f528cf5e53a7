"""What the rules look at, against plain counting over dense rows."""

from itertools import combinations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdtr.algebra.schur import leverage_map
from fdtr.disclosure import judge
from fdtr.disclosure.cells import count_cells
from fdtr.disclosure.facts import measure
from fdtr.disclosure.pairs import count_pairs
from fdtr.disclosure.two_values import middle_of
from fdtr.site.fitting import fit_local
from fdtr.site.rows import read_trajectories
from random_tables import make_sites, make_study, make_table

pytestmark = pytest.mark.quick
MIXED = [
    {"name": "old", "effect": "shared"},
    {"name": "dialysis"},
    {"name": "ward", "basis": {"kind": "categorical", "levels": [1, 2, 3]}},
    {"name": "dose", "basis": {"kind": "spline", "knots": [0.3, 0.9], "degree": 1}},
    {"name": "age"},
]


def mixed(payload="schur", n=600, seed=0):
    """Binary, categorical, spline and continuous columns, rare at some actions."""
    study = make_study(covariates=MIXED, horizon=2, disclosure={"payload": payload})
    table = make_table(study, {"a": n}, seed)
    rng = np.random.default_rng(seed)
    drawn = {
        "old": rng.integers(0, 2, 2 * n) * 1.0,
        "dialysis": (rng.random(2 * n) < 0.03) * 1.0,
        "ward": rng.choice([1.0, 2.0, 3.0], 2 * n, p=[0.6, 0.37, 0.03]),
        "dose": np.where(rng.random(2 * n) < 0.97, 0.0, rng.random(2 * n)),
    }
    for name, values in drawn.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    return study, read_trajectories(table, study).by_site()["a"]


def measured(study, rows):
    return measure(rows, study.feature_map, fit_local(study, rows).fit, study.rules)


def dense(study, rows, h):
    chunk = next(rows.step(h).chunks(10**9))
    return study.feature_map.psi(chunk.states).T, study.feature_map.phi(chunk.states, chunk.actions), chunk.actions


def counted(psi, actions):
    """Smallest cell, fewest apart from zero or the most common value, smallest cell of a pair: by the rules' words."""
    cells, apart, pairs = [], [], []
    for action in np.unique(actions):
        block = psi[actions == action]
        levels = [np.unique(column) for column in block.T]
        binary = [j for j, values in enumerate(levels) if len(values) == 2]
        cells += [min(np.sum(block[:, j] == value) for value in levels[j]) for j in binary]
        for column in (block[:, j] for j, values in enumerate(levels) if len(values) > 2):
            values, counts = np.unique(column, return_counts=True)
            apart += [np.count_nonzero(column), np.sum(column != values[counts.argmax()])]
        for i, j in combinations(binary, 2):
            table = [np.sum((block[:, i] == x) & (block[:, j] == y)) for x in levels[i] for y in levels[j]]
            pairs += [cell for cell in table if cell]
    return [min((count for count in found if count), default=None) for found in (cells, apart, pairs)]


@pytest.mark.parametrize("n", [120, 2500])  # within one chunk, and over several
def test_cells_are_those_of_plain_counting(n):
    study, rows = mixed("gram", n)
    facts = measured(study, rows)
    for h, fact in enumerate(facts):
        psi, _, actions = dense(study, rows, h)
        cell, apart, pair = counted(psi, actions)
        assert (fact.cell.count, fact.pair.count) == (cell, pair)
        assert refuses_alike(fact, apart, study.rules)


def refuses_alike(fact, apart, rules):
    """Whether NONZERO would say the same: counts that it refuses are exact, the others large enough."""
    found = fact.nonzero and fact.nonzero.count
    return found == apart or min(found, apart) >= rules.min_cell


def one_column(values, actions, **covariate):
    """A study of one step whose covariate "dose" has these values."""
    study = make_study(covariates=[{"name": "dose", **covariate}, {"name": "u", "effect": "shared"}], horizon=1)
    table = make_table(study, {"a": len(values)})
    for name, column in (("dose", values), ("action", actions)):
        table = table.set_column(table.column_names.index(name), name, pa.array(column))
    return study, read_trajectories(table, study).by_site()["a"]


@pytest.mark.parametrize("places", [[0, 300, 899], range(10), range(890, 900)])
def test_a_range_that_does_not_begin_at_zero_hides_no_few_who_differ(places):
    """All but a few have a dose of 5 within 2 … 10: none is zero after scaling, wherever in the table the few are."""
    values, actions = np.full(900, 5.0), np.zeros(900, int)
    values[places] = 4.0
    values[places[0]] = 3.0
    study, rows = one_column(values, actions, range=[2, 10])
    [verdict] = [v for v in judge(measured(study, rows), study.rules) if v.rule == "NONZERO"]
    assert verdict.sentence == (
        f"step 0, rule NONZERO: {len(places)} patients apart from zero or from the most common value in "
        'column "dose" at action 0; the study asks for none or at least 11.'
    )


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from([2, 2, 2, 2, 3, 4, 7]), st.integers(0, 2)), min_size=40, max_size=90))
def test_few_who_differ_are_those_of_plain_counting(drawn):
    values, actions = np.array(drawn, float).T
    study, rows = one_column(values, actions.astype(int), range=[1, 9])
    [fact] = measured(study, rows)
    psi, _, actions = dense(study, rows, 0)
    assert refuses_alike(fact, counted(psi, actions)[1], study.rules)


def test_counts_do_not_depend_on_chunks(monkeypatch):
    study, rows = mixed("gram", 700)
    whole = measured(study, rows)
    for module in ("facts", "cells", "pairs"):
        monkeypatch.setattr(f"fdtr.disclosure.{module}.rows_in_cache", lambda _: 37)
    for before, now in zip(whole, measured(study, rows), strict=True):
        assert (now.cell, now.nonzero, now.pair) == (before.cell, before.nonzero, before.pair)
        assert now.leverage == pytest.approx(before.leverage, rel=1e-12)


def test_a_small_cell_is_named_without_a_value():
    study, rows = mixed()
    [verdict, *_] = [v for v in judge(measured(study, rows), study.rules) if v.rule == "CELL"]
    assert not verdict.holds
    assert ' in the rarer of two values of column "' in verdict.sentence
    assert "at action " in verdict.sentence
    assert verdict.sentence.endswith("the study asks for none or at least 11.")


def test_pairs_are_found_where_each_column_alone_is_large():
    study = make_study(covariates=[{"name": "p"}, {"name": "q"}, {"name": "u", "effect": "shared"}],
                       horizon=1, disclosure={"payload": "gram"})  # fmt: skip
    n = 1200
    table = make_table(study, {"a": n})
    p = np.arange(n) % 2 * 1.0
    q = np.where(np.arange(n) < 40, p, 1 - p)  # at each action some 7 patients have both
    for name, values in (("p", p), ("q", q)):
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    rows = read_trajectories(table, study).by_site()["a"]
    verdicts = judge(measured(study, rows), study.rules)
    assert [v.rule for v in verdicts if not v.holds] == ["PAIR"]
    assert 'columns "p" and "q"' in next(v.measured for v in verdicts if not v.holds)


@pytest.mark.parametrize("payload", ["schur", "gram"])
@pytest.mark.parametrize("duplicate", [None, ("y", "v")])
def test_leverage_is_that_of_the_dense_projection(payload, duplicate):
    study = make_study(disclosure={"payload": payload})
    rows = make_sites(study, {"a": 150}, duplicate=duplicate)["a"]
    facts = measured(study, rows)
    d0 = study.feature_map.n_shared
    for h, fact in enumerate(facts):
        _, phi, _ = dense(study, rows, h)
        own = phi[:, d0:]
        left = phi if payload == "gram" else phi[:, :d0] - own @ np.linalg.lstsq(own, phi[:, :d0], rcond=1e-10)[0]
        basis, size, _ = np.linalg.svd(left, full_matrices=False)
        expected = np.sum(basis[:, size > 1e-8 * size[0]] ** 2, axis=1).max()
        assert fact.leverage == pytest.approx(expected, rel=1e-6)


def test_leverages_add_up_to_the_rank():
    rng = np.random.default_rng(0)
    phi = rng.normal(size=(90, 7))
    phi[:, 2] = phi[:, 5] + phi[:, 6]  # absorbed
    image = phi @ leverage_map(phi.T @ phi, n_shared=3).T
    assert image.shape[1] == 2
    assert np.sum(image**2) == pytest.approx(2, rel=1e-8)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"constant_within_site": ("u", "v")}, "constant within the site, so that its own intercept absorbs them"),
        ({}, ""),
    ],
)
def test_what_absorbs_the_shared_features_is_told(options, why):
    study = make_study()
    rows = make_sites(study, {"a": 300}, **options)["a"]
    facts = measured(study, rows)
    assert all((why in fact.absorbed) if why else not fact.absorbed for fact in facts)
    assert all(fact.leverage == 0 for fact in facts if why)


def test_shared_features_that_copy_the_sites_own_are_absorbed():
    study = make_study(covariates=[{"name": "v", "effect": "shared"}, {"name": "y"}])
    rows = make_sites(study, {"a": 300}, duplicate=("y", "v"))["a"]
    assert "combinations of the site's own" in measured(study, rows)[0].absorbed


@pytest.mark.parametrize("n", [11, 16, 26, 40, 100])
def test_few_values_of_a_continuous_column_are_not_taken_for_two(n):
    rng = np.random.default_rng(n)
    columns = {"normal": rng.standard_normal((200, n)), "uniform": rng.random((200, n))}
    for values in columns.values():
        assert np.isnan([middle_of(np.histogram(row, 500)[0]) for row in values]).mean() >= 0.99
    nearly = np.repeat([0.0, 1.0], [n - n // 2, n // 2]) + rng.normal(0, 0.01, n)
    assert middle_of(np.histogram(nearly, 500)[0]) == pytest.approx(250, abs=10)


def pairs_of(u, v):
    """Cells of u and v at each of two actions, which patients get in turn."""
    covariates = [{"name": "u", "effect": "shared"}, {"name": "v", "effect": "shared"}, {"name": "x"}]
    study = make_study(horizon=1, actions={"levels": [0, 1]}, covariates=covariates)
    table = make_table(study, {"a": len(u)})
    for name, values in (("action", np.arange(len(u)) % 2), ("u", u), ("v", v)):
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    step = read_trajectories(table, study).by_site()["a"].step(0)
    cells = count_cells(step, study.feature_map, np.arange(2), 11)
    return {
        p.group: p.cells for p in count_pairs(step, study.feature_map, np.arange(2), cells, (0, 1), references=True)
    }


@pytest.mark.parametrize("case", ["one in a hundred", "sorted table"])
@pytest.mark.parametrize("other", ["none", "third value", "far out"])
def test_cells_of_rare_traits_and_sorted_tables_are_counted(case, other):
    """Five of 4,000 patients at an action have both traits; another value of one patient hides no cell."""
    position = np.arange(8000) // 2
    if case == "sorted table":
        u, v = (position >= 2000) * 0.5, ((position >= 1000) & (position < 2005)) * 1.0
    else:
        u = (position % 100 == 0) * 0.5
        v = np.where(u > 0, position < 500, position % 2 == 1) * 1.0
    u[2 * 3001 : 2 * 3001 + 2] = {"none": u[6002], "third value": 0.2, "far out": 1.0}[other]
    cells = pairs_of(u, v)
    assert set(cells) == {0, 1}
    assert all(min(of_action) in (5, 4, 6) for of_action in cells.values())


def test_powers_of_a_column_with_almost_two_values_are_no_pair_of_a_gram():
    """A Gram has been judged by columns of exactly two values: a few doses between do not refuse it."""
    rng, n = np.random.default_rng(0), 1800
    u = np.where(rng.random(n) < 0.5, 0.0, 1.0)
    u[rng.choice(n, 21, replace=False)] = 0.6
    covariates = [{"name": "u", "effect": "shared", "basis": {"kind": "polynomial", "degree": 2}}, {"name": "x"}]
    study = make_study(horizon=1, covariates=covariates, disclosure={"payload": "gram"})
    table = make_table(study, {"a": n})
    table = table.set_column(table.column_names.index("u"), "u", pa.array(u))
    assert measured(study, read_trajectories(table, study).by_site()["a"])[0].pair is None
