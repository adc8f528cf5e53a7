"""Grams by action against the dense feature matrix, and solves against numpy's."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fdtr.algebra.normal_equations import (
    assemble_gram,
    assemble_moment,
    factor,
    grams_by_action,
    half_solve,
    minimum_norm,
    solve,
)
from fdtr.errors import SingularSystem
from random_tables import make_study


@pytest.mark.parametrize("n_actions", [2, 3, 300])
def test_grams_are_those_of_each_actions_rows(n_actions):
    rng = np.random.default_rng(0)
    rows, actions = rng.random((4, 500)), rng.integers(0, n_actions, 500)
    grams = grams_by_action(rows, actions, np.bincount(actions, minlength=n_actions))
    for action in range(n_actions):
        mine = rows[:, actions == action]
        np.testing.assert_allclose(grams[action], mine @ mine.T, rtol=1e-12)


@pytest.mark.parametrize("basis", ["polynomial", "categorical"])
def test_assembly_equals_the_dense_gram(basis):
    study = make_study(actions={"levels": [0, 1, 2], "basis": basis})
    features = study.feature_map
    rng = np.random.default_rng(0)
    states, actions, y = rng.random((4, 400)), rng.integers(0, 3, 400), rng.random(400)
    psi = features.psi(states)
    m = features.n_functions
    grams = grams_by_action(np.vstack([psi, y]), actions, np.bincount(actions))
    phi = features.phi(states, actions)
    gram = assemble_gram(features.embeddings, grams[:, :m, :m])
    np.testing.assert_allclose(gram, phi.T @ phi, rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(gram, gram.T)
    np.testing.assert_allclose(assemble_moment(features.embeddings, grams[:, :m, m]), phi.T @ y, rtol=1e-12)


@settings(max_examples=50, derandomize=True)
@given(n=st.integers(1, 40), d=st.integers(1, 6), seed=st.integers(0, 10**6), duplicated=st.booleans())
def test_minimum_norm_is_least_squares(n, d, seed, duplicated):
    rng = np.random.default_rng(seed)
    phi, y = rng.normal(size=(n, d)), rng.normal(size=n)
    if duplicated and d > 1:
        phi[:, 1] = phi[:, 0]
    expected = np.linalg.lstsq(phi, y, rcond=1e-8)[0]
    values = np.linalg.svd(phi, compute_uv=False)
    assume(values[values > 1e-8].min() > 1e-3 * values.max())  # the Gram squares the condition
    np.testing.assert_allclose(minimum_norm(phi.T @ phi, phi.T @ y), expected, rtol=1e-6, atol=1e-8)


def test_factor_and_solve():
    rng = np.random.default_rng(0)
    half = rng.normal(size=(5, 5))
    sigma, b = half @ half.T + np.eye(5), rng.normal(size=5)
    lower = factor(sigma)
    np.testing.assert_allclose(solve(lower, b), np.linalg.solve(sigma, b), rtol=1e-12)
    white = half_solve(lower, b[:, None])
    np.testing.assert_allclose(white.T @ white, [[b @ np.linalg.solve(sigma, b)]], rtol=1e-12)


def test_a_singular_system_says_what_to_do():
    with pytest.raises(SingularSystem, match="Raise `ridge`"):
        factor(np.array([[1.0, 2.0], [2.0, 1.0]]))
