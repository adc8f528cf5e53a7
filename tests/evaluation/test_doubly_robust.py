"""Doubly robust estimators against loops over patients, and their limits."""

import numpy as np
import pytest

from evaluated import each_patient, literal_theta, make_patients
from fdtr.evaluation.doubly_robust import cross_fitted_q, doubly_robust, weighted_doubly_robust
from fdtr.evaluation.importance import per_decision, step_weighted
from fdtr.evaluation.statistic import Statistic

pytestmark = pytest.mark.quick


def random_q(patients, seed=5):
    rng = np.random.default_rng(seed)
    return tuple(rng.random((3, count)) for count in patients.paths.counts)


def literal_terms(patients, q):
    """ρ, r − Q and V of every patient and step, as Thomas and Brunskill write them; (n, H) with ρ kept after an end."""
    rho, gap, value = (np.zeros((patients.paths.n, 3)) for _ in range(3))
    for i, steps in enumerate(each_patient(patients)):
        so_far = 1.0
        for h in range(3):
            if h < len(steps):
                action, reward = steps[h]
                so_far *= patients.target[h][action, i] / patients.behaviour[h][action, i]
                gap[i, h] = reward - q[h][action, i]
                value[i, h] = sum(patients.target[h][a, i] * q[h][a, i] for a in range(3))
            rho[i, h] = so_far
    return rho, gap, value


def test_dr_is_the_literal_sum():
    patients = make_patients()
    q = random_q(patients)
    rho, gap, value = literal_terms(patients, q)
    total = 0.0
    for i in range(40):
        for h in range(3):
            total += rho[i, h] * gap[i, h] + (rho[i, h - 1] if h else 1.0) * value[i, h]
    found = doubly_robust(patients.paths, patients.weights, q, patients.target)
    assert found.value == pytest.approx(total / 40, rel=1e-10)


def test_wdr_is_the_literal_sum_with_normalised_weights():
    patients = make_patients()
    q = random_q(patients)
    rho, gap, value = literal_terms(patients, q)
    weight = rho / rho.sum(axis=0)
    total = 0.0
    for i in range(40):
        for h in range(3):
            total += weight[i, h] * gap[i, h] + (weight[i, h - 1] if h else 1 / 40) * value[i, h]
    found = weighted_doubly_robust(patients.paths, patients.weights, q, patients.target)
    assert found.value == pytest.approx(total, rel=1e-10)


def test_without_q_they_are_importance_sampling():
    patients = make_patients()
    zero = tuple(np.zeros((3, count)) for count in patients.paths.counts)
    dr, wdr = (
        f(patients.paths, patients.weights, zero, patients.target) for f in (doubly_robust, weighted_doubly_robust)
    )
    pdis, wis = (f(patients.paths, patients.weights) for f in (per_decision, step_weighted))
    assert dr.value == pytest.approx(pdis.value, rel=1e-12)
    assert wdr.value == pytest.approx(wis.value, rel=1e-12)
    np.testing.assert_allclose(dr.influence, pdis.influence, atol=1e-12)
    np.testing.assert_allclose(wdr.influence, wis.influence, atol=1e-12)


def test_influence_values_are_derivatives_in_a_patients_weight():
    patients = make_patients()
    found = weighted_doubly_robust(patients.paths, patients.weights, random_q(patients), patients.target)
    for i in (0, 11, 39):
        values = []
        for change in (1e-5, -1e-5):
            weight = np.ones((40, 1))
            weight[i] += change
            values.append(Statistic(weight * found.numerators, weight * found.denominators, found.signs).value)
        assert found.influence[i] / 40 == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-6)


def test_q_comes_from_the_other_folds_and_stays_in_range():
    patients = make_patients(n=80)
    outcomes, onward = patients.sums()
    found = cross_fitted_q(patients.psi, patients.embeddings, patients.folds, outcomes, onward)
    for fold in range(4):
        theta = literal_theta(patients, kept=patients.folds != fold)
        for h in range(3):
            chunk = next(patients.rows.step(h).chunks(10**6))
            for i in np.flatnonzero(patients.folds[: len(chunk.actions)] == fold)[:3]:
                for a in range(3):
                    phi = patients.features.phi(chunk.states[:, [i]], np.array([a]))[0]
                    expected = np.clip(phi @ theta[h], 0, 3 - h)
                    assert found[h][a, i] == pytest.approx(expected, rel=1e-8, abs=1e-10)


def test_a_patients_own_rewards_do_not_enter_its_q():
    patients = make_patients(n=80)
    outcomes, onward = patients.sums()
    before = cross_fitted_q(patients.psi, patients.embeddings, patients.folds, outcomes, onward)
    patients.paths.rewards[0, patients.folds == 0] = 0.5
    outcomes, _ = patients.sums()
    after = cross_fitted_q(patients.psi, patients.embeddings, patients.folds, outcomes, onward)
    own = patients.folds == 0
    np.testing.assert_allclose(before[0][:, own], after[0][:, own], rtol=1e-10)  # sums differ by rounding
    assert np.abs(before[0] - after[0])[:, ~own].max() > 0.01
