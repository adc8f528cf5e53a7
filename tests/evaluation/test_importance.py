"""Importance sampling against loops over patients; influence functions against leaving patients out."""

import numpy as np
import pytest

from evaluated import each_patient, make_patients
from fdtr.evaluation.importance import per_decision, step_weighted
from fdtr.evaluation.statistic import Statistic, weighted_means
from fdtr.evaluation.weights import weigh

pytestmark = pytest.mark.quick


def literal_ratio(patients, steps, i, h):
    so_far = 1.0
    for t in range(min(h + 1, len(steps))):
        action = steps[t][0]
        so_far *= patients.target[t][action, i] / patients.behaviour[t][action, i]
    return so_far


def test_per_decision_is_the_literal_double_sum():
    patients = make_patients()
    total = 0.0
    for i, steps in enumerate(each_patient(patients)):
        for h, (_, reward) in enumerate(steps):
            total += literal_ratio(patients, steps, i, h) * reward
    assert per_decision(patients.paths, patients.weights).value == pytest.approx(total / 40, rel=1e-10)


def test_step_weighted_normalises_every_step_over_all_patients():
    patients = make_patients()
    each = each_patient(patients)
    value = 0.0
    for h in range(3):
        weights = [literal_ratio(patients, steps, i, h) for i, steps in enumerate(each)]
        rewards = [steps[h][1] if h < len(steps) else 0.0 for steps in each]
        value += sum(w * r for w, r in zip(weights, rewards, strict=True)) / sum(weights)
    assert step_weighted(patients.paths, patients.weights).value == pytest.approx(value, rel=1e-10)


def test_doing_as_clinicians_do_is_worth_the_observed_mean():
    patients = make_patients()
    weights = weigh(patients.paths, patients.behaviour, patients.behaviour)
    observed = np.mean([sum(reward for _, reward in steps) for steps in each_patient(patients)])
    for estimator in (per_decision, step_weighted):
        assert estimator(patients.paths, weights).value == pytest.approx(observed, rel=1e-12)


def test_step_weighted_stays_in_range_where_per_decision_does_not():
    patients = make_patients(n=12, seed=3, ragged=False)
    weights = weigh(patients.paths, patients.target, [b / 4 for b in patients.behaviour])
    assert per_decision(patients.paths, weights).value > 3
    assert 0 <= step_weighted(patients.paths, weights).value <= 3


@pytest.mark.parametrize("estimator", [per_decision, step_weighted])
def test_influence_values_are_derivatives_in_a_patients_weight(estimator):
    # A patient's weight enters numerators and denominators alike; central differences are good to 1e-8 or so.
    patients = make_patients()
    found = estimator(patients.paths, patients.weights)
    for i in (0, 7, 39):
        values = []
        for change in (1e-5, -1e-5):
            weight = np.ones((40, 1))
            weight[i] += change
            moved = Statistic(weight * found.numerators, weight * found.denominators, found.signs)
            values.append(moved.value)
        assert found.influence[i] / 40 == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-6)
    assert found.influence.sum() == pytest.approx(0.0, abs=1e-10)


@pytest.mark.parametrize(("estimator", "tolerance"), [(per_decision, 1e-10), (step_weighted, 0.05)])
def test_the_standard_error_is_that_of_the_jackknife_and_nearly_of_the_influence_function(estimator, tolerance):
    # For an average the two are one; for a ratio they differ in the second order, by shares of weight of about 1/n.
    patients = make_patients(n=300)
    found = estimator(patients.paths, patients.weights)
    left_out = np.array([_without(found, i).value for i in range(300)])
    jackknife = np.sqrt(299 / 300 * np.sum((left_out - found.value) ** 2))
    assert found.standard_error == pytest.approx(jackknife, rel=1e-9)
    assert found.standard_error == pytest.approx(np.sqrt(np.sum(found.influence**2) / (300 * 299)), rel=tolerance)


def test_one_patient_with_all_the_weight_is_not_certainty():
    weights = np.zeros((1, 20))
    weights[0, 3] = 5.0
    alone = weighted_means(np.linspace(0, 1, 20)[None], weights)
    assert not alone.influence.any()
    assert alone.standard_error == pytest.approx(np.sqrt(19 / 20) * alone.value)


def _without(found, i):
    return Statistic(np.delete(found.numerators, i, 0), np.delete(found.denominators, i, 0), found.signs)
