"""Noised sums: how far a patient can move them, and what is left of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdtr.algebra.noised import SENSITIVITY, StepSums, discount, flatten, unflatten

pytestmark = pytest.mark.quick


def one_patient(rng, d, span):
    phi = rng.normal(size=d)
    phi /= np.linalg.norm(phi)
    reward, target = rng.random(), span * rng.random()
    return StepSums(np.outer(phi, phi), phi * target, phi * reward, reward**2)


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 5))
def test_one_patient_moves_the_vector_by_at_most_the_sensitivity(seed, d, span):
    sums = one_patient(np.random.default_rng(seed), d, float(span))
    vector = flatten(sums, span)
    parts = [sums.gram, sums.moment / span, sums.reward_moment, [sums.reward_square]]
    assert np.linalg.norm(vector) == pytest.approx(np.sqrt(sum(np.sum(np.square(part)) for part in parts)))
    assert np.linalg.norm(vector) <= SENSITIVITY * (1 + 1e-12)


def test_the_sensitivity_is_attained():
    phi = np.array([0.6, 0.8])
    sums = StepSums(np.outer(phi, phi), 3 * phi, phi, 1.0)
    assert np.linalg.norm(flatten(sums, span=3.0)) == pytest.approx(SENSITIVITY)


def test_a_vector_is_read_back():
    sums = one_patient(np.random.default_rng(0), 4, 3.0)
    back = unflatten(flatten(sums, 3.0), 4, 3.0)
    for name in ("gram", "moment", "reward_moment", "reward_square"):
        np.testing.assert_allclose(getattr(back, name), getattr(sums, name), rtol=1e-14)


def test_equal_noise_on_the_vector_is_symmetric_and_smaller_off_the_diagonal():
    noise = np.random.default_rng(1).normal(size=(20_000, 2 * 3 // 2 + 2 * 2 + 1))
    grams = np.stack([unflatten(vector, 2, 1.0).gram for vector in noise])
    np.testing.assert_array_equal(grams, grams.transpose(0, 2, 1))
    np.testing.assert_allclose(grams.std(axis=0), [[1, np.sqrt(0.5)], [np.sqrt(0.5), 1]], rtol=0.03)


def test_without_noise_nothing_is_discounted():
    rows = np.random.default_rng(2).normal(size=(30, 4))
    gram, moments = rows.T @ rows, rows.T @ np.ones((30, 2))
    kept = discount(gram, moments, lost=0.0)
    np.testing.assert_allclose(kept.gram, gram, rtol=1e-12)
    np.testing.assert_allclose(kept.moments, moments, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(kept.explained, np.sum(moments * np.linalg.solve(gram, moments), axis=0), rtol=1e-10)


def test_discounting_is_generalised_least_squares():
    """P/σ² is the information of b = Λθ + error, whose covariance is σ²(Λ + μI), and c its moment."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(30, 3))
    gram, moment, lost = rows.T @ rows, rng.normal(size=(3, 1)), 7.0
    weight = np.linalg.inv(gram + lost * np.eye(3))
    kept = discount(gram, moment, lost)
    np.testing.assert_allclose(kept.gram, gram @ weight @ gram, rtol=1e-10)
    np.testing.assert_allclose(kept.moments, gram @ weight @ moment, rtol=1e-10)


def test_negative_directions_count_nothing():
    kept = discount(np.diag([4.0, -1.0]), np.array([[8.0], [5.0]]), lost=0.0)
    np.testing.assert_allclose(kept.gram, np.diag([4.0, 0.0]))
    np.testing.assert_allclose(kept.moments, [[8.0], [0.0]])
    assert kept.rank == 1
