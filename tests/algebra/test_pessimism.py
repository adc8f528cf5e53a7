"""Penalties and bounds against the formula with φ itself."""

import math

import numpy as np
import pytest

from fdtr.algebra.normal_equations import factor
from fdtr.algebra.pessimism import LowerBound, NoiseUnits, Penalty, argmax_first, log_term, noise_level, penalty_roots
from fdtr.learners.backward import Settings
from fdtr.learners.local import fit_local
from paper_algorithms import penalty
from random_tables import make_sites, make_study


def test_log_term_is_the_papers():
    assert log_term(21, 5, 25_568, 0.99) == math.log(2 * 21 * 5 * 25_568 / 0.99)


def _roots(sigma, features):
    return penalty_roots(factor(sigma), features.embeddings)


def test_bounds_over_the_state_basis_equal_those_over_phi():
    features = make_study().feature_map
    rng = np.random.default_rng(0)
    d = features.n_features
    half = rng.normal(size=(d, d))
    sigma, theta = half @ half.T + 0.01 * np.eye(d), rng.normal(size=d)
    states = rng.random((4, 50))
    rule = LowerBound.of_penalised(theta, _roots(sigma, features), features.embeddings, Penalty(0.7, 0.2), cap=3)
    psi = features.psi(states)
    for action in range(3):
        phi = features.phi(states, np.full(50, action))
        expected = phi @ theta - penalty(phi, factor(sigma), 0.7) - 0.2
        np.testing.assert_allclose(rule.bounds(psi)[action], expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(rule.estimates(psi) - rule.penalties(psi), rule.bounds(psi))
    np.testing.assert_array_equal(rule.values(psi), np.clip(rule.bounds(psi), 0, 3).max(axis=0))


def test_bounds_survive_a_tiny_ridge():
    # φᵀΣ⁻¹φ reaches 1e10 where Σ is almost singular; forming B_aᵀΣ⁻¹B_a and factoring it would fail here.
    features = make_study().feature_map
    d = features.n_features
    sigma = 1e-10 * np.eye(d)
    sigma[0, 0] = 1e6
    rule = LowerBound.of_penalised(np.zeros(d), _roots(sigma, features), features.embeddings, Penalty(1.0), cap=3)
    states = np.random.default_rng(0).random((4, 20))
    phi = features.phi(states, np.full(20, 1))
    np.testing.assert_allclose(-rule.bounds(features.psi(states))[1], penalty(phi, factor(sigma), 1.0), rtol=1e-9)


def test_ties_go_to_the_first_in_order():
    bounds = np.array([[1.0, 0.0, 2.0], [1.0, 5.0, 2.0], [1.0, 5.0, 1.0]])
    assert argmax_first(bounds, [0, 1, 2]).tolist() == [0, 1, 0]
    assert argmax_first(bounds, [2, 1, 0]).tolist() == [2, 2, 1]


@pytest.mark.parametrize(
    ("residual", "n", "degrees", "spread", "variance"),
    [
        (20.0, 100, 20.0, 1.0, 20 / 80),
        (20.0, 100, 95.0, 1.0, 20 / 20),  # no fewer degrees of freedom than a fifth of the patients
        (20.0, 40, 10.0, 0.1, 20 / 30),  # n = 2d: the residual alone
        (1.0, 39, 10.0, 0.5, 0.5),  # n < 2d: at least the spread of Y
        (20.0, 39, 10.0, 0.5, 20 / 29),
        (0.0, 100, 20.0, 0.0, 0.001),  # Y is constant
        (0.0, 2, 2.0, 0.0, 0.001),
        (0.0, 1, 1.0, 0.0, 2.5**2),  # half of the span
        (0.0, 0, 0.0, 0.0, 2.5**2),
    ],
)
def test_the_noise_of_a_step(residual, n, degrees, spread, variance):
    found = noise_level(residual, n, degrees, spread, n_features=20, span=5.0)
    assert found == pytest.approx(math.sqrt(variance))


def test_misspecification_widens_noise_units_too():
    study = make_study()
    rows = make_sites(study, {"a": 100})["a"]
    plain, wide = (fit_local(rows, study.feature_map, Settings(NoiseUnits(0.1), 0.1, 0.99, eta)) for eta in (0.0, 0.01))
    assert [penalty.offset for penalty in wide.penalties] == pytest.approx([0.04] * 3)
    assert wide.penalties[-1].scale == pytest.approx(plain.penalties[-1].scale + 10 * 0.04)


def test_pessimism_is_multiplied_in_its_own_units():
    assert Settings(0.002, 0.1, 0.99, 0.0).with_pessimism_times(5).pessimism == pytest.approx(0.01)
    assert Settings(NoiseUnits(0.03), 0.1, 0.99, 0.0).with_pessimism_times(2).pessimism == NoiseUnits(0.06)
