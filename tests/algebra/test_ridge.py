"""Solves against numpy's."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fdtr.algebra.ridge import factor, half_solve, minimum_norm, solve
from fdtr.errors import SingularSystem


@settings(max_examples=50, deadline=None, derandomize=True)
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
