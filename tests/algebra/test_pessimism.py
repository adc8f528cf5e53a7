"""Penalties and bounds against the formula with φ itself."""

import math

import numpy as np

from fdtr.algebra.normal_equations import factor
from fdtr.algebra.pessimism import LowerBound, Penalty, argmax_first, log_term, penalty_roots
from paper_algorithms import penalty
from random_tables import make_study


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
