"""Elimination and rank, against projections on the dense matrices."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdtr.algebra.schur import RANK_TOLERANCE, eliminate, project, whiten, without_directions


def by_projection(shared, own, y):
    left = np.eye(len(own)) - own @ np.linalg.pinv(own, rcond=1e-9)
    return shared.T @ left @ shared, shared.T @ left @ y, y @ y - y @ left @ y


def eliminated(shared, own, y):
    phi = np.column_stack([shared, own])
    return eliminate(phi.T @ phi, (phi.T @ y)[:, None], shared.shape[1])


@settings(max_examples=60, derandomize=True)
@given(
    n=st.integers(1, 60), d0=st.integers(0, 4), d1=st.integers(0, 5), seed=st.integers(0, 10**6),
    duplicated=st.booleans(), empty=st.booleans(),
)  # fmt: skip
def test_elimination_is_the_projection(n, d0, d1, seed, duplicated, empty):
    rng = np.random.default_rng(seed)
    shared, own, y = rng.normal(size=(n, d0)), rng.normal(size=(n, d1)), rng.normal(size=n)
    if duplicated and d1 > 1:
        own[:, 1] = 3 * own[:, 0]
    if empty and d1:
        own[:, -1] = 0  # an action never used
    schur, moment, explained = by_projection(shared, own, y)
    found = eliminated(shared, own, y)
    scale = max(n, 1)
    np.testing.assert_allclose(found.schur, schur, atol=1e-9 * scale)
    np.testing.assert_allclose(found.moments[:, 0], moment, atol=1e-9 * scale)
    np.testing.assert_allclose(found.explained[0], explained, atol=1e-9 * scale)
    assert found.rank_specific == np.linalg.matrix_rank(own, tol=1e-9) if d1 else found.rank_specific == 0
    np.testing.assert_array_equal(found.schur, found.schur.T)


@settings(max_examples=40, derandomize=True)
@given(seed=st.integers(0, 10**6), inside=st.booleans())
def test_schur_vanishes_exactly_when_shared_features_lie_in_the_span_of_the_own(seed, inside):
    rng = np.random.default_rng(seed)
    own = rng.normal(size=(80, 4))
    shared = own @ rng.normal(size=(4, 2))
    if not inside:
        shared += 1e-3 * rng.normal(size=(80, 2))
    found = eliminated(shared, own, rng.normal(size=80))
    kept = project(found.schur, found.moments, shared.T @ shared)
    assert (kept.rank == 0 and not kept.schur.any() and not kept.moments.any()) if inside else kept.rank == 2


def test_projection_keeps_the_directions_that_are_identified():
    rng = np.random.default_rng(0)
    own = rng.normal(size=(100, 3))
    free = rng.normal(size=100)
    shared = np.column_stack([free, own @ [1.0, 2.0, 3.0]])  # the second is absorbed
    y = rng.normal(size=100)
    found = eliminated(shared, own, y)
    kept = project(found.schur, found.moments, shared.T @ shared)
    assert kept.rank == 1
    np.testing.assert_allclose(kept.schur[0, 0], found.schur[0, 0], rtol=1e-9)
    np.testing.assert_allclose(kept.explained[0], found.moments[0, 0] ** 2 / found.schur[0, 0], rtol=1e-6)
    # s lies in the range of S, or nobody else could use it.
    np.testing.assert_allclose(kept.schur @ np.linalg.pinv(kept.schur) @ kept.moments, kept.moments, atol=1e-10)


@pytest.mark.parametrize(("share", "rank"), [(RANK_TOLERANCE / 3, 1), (RANK_TOLERANCE * 10, 2)])
def test_the_rank_cut_off_is_where_it_is_said_to_be(share, rank):
    # Two unit columns at an angle whose smaller eigenvalue is `share` of the larger (about 2).
    cosine = 1 - 2 * share
    assert whiten(np.array([[1, cosine], [cosine, 1]])).rank == rank


@pytest.mark.parametrize(("share", "rank"), [(0.5, 0), (2.0, 1)])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_schur_is_judged_beside_the_features_own_length(share, rank, size):
    reference = np.array([[size]])
    assert project(share * RANK_TOLERANCE * reference, np.zeros((1, 0)), reference).rank == rank


@pytest.mark.parametrize(("share", "rank"), [(0.5, 3), (2.0, 4)])
def test_the_cut_off_is_relative_to_the_largest_eigenvalue(share, rank):
    # Unit diagonal, eigenvalues 2.5, 1.5 − e, …: built from a rotation so that the smallest is share·1e-10·largest.
    largest = 2.0
    values = np.array([largest, 1.0, 1.0 - share * RANK_TOLERANCE * largest, share * RANK_TOLERANCE * largest])
    gram = random_correlation(values, 0)
    assert whiten(gram).rank == rank


def random_correlation(values, seed):
    from scipy.stats import random_correlation as draw

    return draw.rvs(values * len(values) / values.sum(), random_state=np.random.default_rng(seed), tol=1e-8)


def test_scale_of_columns_does_not_change_the_rank():
    rng = np.random.default_rng(0)
    design = rng.normal(size=(50, 3)) * [1e-6, 1.0, 1e6]
    assert whiten(design.T @ design).rank == 3


def test_a_feature_that_the_site_absorbs_leaves_exact_zeros_beside_one_that_it_does_not():
    """Rounding of 1e-28 in its row would pass for information once somebody scales the total by its own diagonal."""
    rng = np.random.default_rng(0)
    action, free = rng.integers(0, 3, 90) / 2.0, rng.random(90)
    terms = np.column_stack([np.ones(90), action, action**2])
    phi = np.hstack([0.37 * terms, free[:, None] * terms, terms])  # a covariate constant within the site comes first
    found = eliminate(phi.T @ phi, phi.T @ rng.random((90, 1)), 6)
    kept = project(found.schur, found.moments, (phi.T @ phi)[:6, :6])
    assert kept.rank == 3
    assert not kept.schur[:3].any()
    assert not kept.moments[:3].any()
    np.testing.assert_allclose(kept.schur[3:, 3:], found.schur[3:, 3:], rtol=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_directions_that_a_site_did_not_send_are_no_directions_to_eliminate(seed):
    """One site tells of five columns, five sites of the last two alone: what is left of these is all that they have."""
    rng = np.random.default_rng(seed)

    def schur(columns):
        x = np.zeros((40, 5))
        x[:, columns] = rng.normal(size=(40, len(columns)))
        return x.T @ x, x.T @ rng.normal(size=(40, 1))

    sites = [schur(range(5)), *(schur([3, 4]) for _ in range(5))]
    unsent = rng.normal(size=(5, 3))
    unsent[3:] *= 1e-16  # rounding errors beside the three columns that one site alone has
    whole = without_directions(*sites[0], unsent)
    assert whole.rank == 2
    for one, moments in sites[1:]:
        left = without_directions(one, moments, unsent)
        assert left.rank == 2
        np.testing.assert_allclose(left.schur, one, rtol=0, atol=1e-12)
        np.testing.assert_allclose(left.moments, moments, rtol=0, atol=1e-12)


def test_eliminated_directions_are_those_of_a_schur_complement():
    rng = np.random.default_rng(0)
    x, y, directions = rng.normal(size=(60, 6)), rng.normal(size=(60, 2)), rng.normal(size=(6, 2))
    left = without_directions(x.T @ x, x.T @ y, directions)
    out = x @ directions
    rest = x - out @ np.linalg.lstsq(out, x, rcond=None)[0]
    np.testing.assert_allclose(left.schur, rest.T @ rest, rtol=0, atol=1e-10)
    np.testing.assert_allclose(left.moments, rest.T @ y, rtol=0, atol=1e-10)
    assert left.rank == 4
