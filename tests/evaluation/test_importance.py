"""Importance weights, importance sampling and doubly robust estimators against loops over patients."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import stdtrit

from evaluation_patients import each_patient, make_patients
from fdtr.evaluation.importance import (
    doubly_robust,
    effective_sample_size,
    patients_behind,
    per_decision,
    step_weighted,
    weigh,
    weighted_doubly_robust,
)
from fdtr.evaluation.intervals import Range, Statistic, influence_interval, weighted_means

pytestmark = pytest.mark.quick


def test_ratios_are_products_and_stay_where_a_patient_left():
    patients = make_patients()
    weights = patients.weights
    for i, steps in enumerate(each_patient(patients)):
        so_far = 1.0
        for h in range(3):
            if h < len(steps):
                action = steps[h][0]
                so_far *= patients.target[h][action, i] / patients.behaviour[h][action, i]
            assert weights.ratios[h, i] == pytest.approx(so_far, rel=1e-12)
    assert not weights.clipped_share.any()


def test_a_cap_cuts_and_is_counted():
    patients = make_patients()
    plain = patients.weights.ratios
    capped = weigh(patients.arrays, patients.target, patients.behaviour, cap=1.5)
    np.testing.assert_array_equal(capped.ratios, np.minimum(plain, 1.5))
    np.testing.assert_allclose(capped.clipped_share, (plain > 1.5).mean(axis=1))
    assert capped.clipped_share.any()


def test_what_is_left_of_weights():
    patients = make_patients()
    weights, ratios = patients.weights, patients.weights.ratios
    np.testing.assert_allclose(weights.effective_sample_size, ratios.sum(axis=1) ** 2 / (ratios**2).sum(axis=1))
    np.testing.assert_allclose(weights.largest_share, ratios.max(axis=1) / ratios.sum(axis=1))
    assert not weights.zero_share.any()


def test_the_effective_sample_size_survives_tiny_weights():
    assert effective_sample_size(np.full((1, 4), 1e-200)) == pytest.approx(4.0)


def test_equal_chances_weigh_one():
    patients = make_patients()
    weights = weigh(patients.arrays, patients.behaviour, patients.behaviour)
    np.testing.assert_array_equal(weights.ratios, np.ones((3, 40)))
    np.testing.assert_allclose(weights.effective_sample_size, 40.0)


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
    assert per_decision(patients.arrays, patients.weights).value == pytest.approx(total / 40, rel=1e-10)


def test_step_weighted_normalises_every_step_over_all_patients():
    patients = make_patients()
    each = each_patient(patients)
    value = 0.0
    for h in range(3):
        weights = [literal_ratio(patients, steps, i, h) for i, steps in enumerate(each)]
        rewards = [steps[h][1] if h < len(steps) else 0.0 for steps in each]
        value += sum(w * r for w, r in zip(weights, rewards, strict=True)) / sum(weights)
    assert step_weighted(patients.arrays, patients.weights).value == pytest.approx(value, rel=1e-10)


def test_doing_as_clinicians_do_is_worth_the_observed_mean():
    patients = make_patients()
    weights = weigh(patients.arrays, patients.behaviour, patients.behaviour)
    observed = np.mean([sum(reward for _, reward in steps) for steps in each_patient(patients)])
    for estimator in (per_decision, step_weighted):
        assert estimator(patients.arrays, weights).value == pytest.approx(observed, rel=1e-12)


def test_step_weighted_stays_in_range_where_per_decision_does_not():
    patients = make_patients(n=12, seed=3, ragged=False)
    weights = weigh(patients.arrays, patients.target, [b / 4 for b in patients.behaviour])
    assert per_decision(patients.arrays, weights).value > 3
    assert 0 <= step_weighted(patients.arrays, weights).value <= 3


@pytest.mark.parametrize("estimator", [per_decision, step_weighted])
def test_influence_values_are_derivatives_in_a_patients_weight(estimator):
    # A patient's weight enters numerators and denominators alike; central differences are good to 1e-8 or so.
    patients = make_patients()
    found = estimator(patients.arrays, patients.weights)
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
    found = estimator(patients.arrays, patients.weights)
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


def random_q(patients, seed=5):
    rng = np.random.default_rng(seed)
    return tuple(rng.random((3, count)) for count in patients.arrays.counts)


def literal_terms(patients, q):
    """ρ, r − Q and V of every patient and step, as Thomas and Brunskill write them; (n, H) with ρ kept after an end."""
    rho, gap, value = (np.zeros((patients.arrays.n, 3)) for _ in range(3))
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
    found = doubly_robust(patients.arrays, patients.weights, q, patients.target)
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
    found = weighted_doubly_robust(patients.arrays, patients.weights, q, patients.target)
    assert found.value == pytest.approx(total, rel=1e-10)


def test_without_q_they_are_importance_sampling():
    patients = make_patients()
    zero = tuple(np.zeros((3, count)) for count in patients.arrays.counts)
    dr, wdr = (
        f(patients.arrays, patients.weights, zero, patients.target) for f in (doubly_robust, weighted_doubly_robust)
    )
    pdis, wis = (f(patients.arrays, patients.weights) for f in (per_decision, step_weighted))
    assert dr.value == pytest.approx(pdis.value, rel=1e-12)
    assert wdr.value == pytest.approx(wis.value, rel=1e-12)
    np.testing.assert_allclose(dr.influence, pdis.influence, atol=1e-12)
    np.testing.assert_allclose(wdr.influence, wis.influence, atol=1e-12)


def test_influence_values_of_wdr_are_derivatives_in_a_patients_weight():
    patients = make_patients()
    found = weighted_doubly_robust(patients.arrays, patients.weights, random_q(patients), patients.target)
    for i in (0, 11, 39):
        values = []
        for change in (1e-5, -1e-5):
            weight = np.ones((40, 1))
            weight[i] += change
            values.append(Statistic(weight * found.numerators, weight * found.denominators, found.signs).value)
        assert found.influence[i] / 40 == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-6)


def test_patients_behind_a_value_are_counted_by_moments_over_what_clinicians_might_have_done():
    patients = make_patients()
    ratios, counts, n = patients.weights.ratios, patients.arrays.counts, patients.arrays.n
    before = [np.ones(counts[0]), *(ratios[h, : counts[h + 1]] for h in range(2))]
    pairs = list(zip(before, patients.target, patients.behaviour, strict=True))
    changes = [(wanted / usual - 1) * rho for rho, wanted, usual in pairs]
    second, fourth = np.zeros(n), np.zeros(n)
    for i in range(n):
        steps = [(d[:, i], b[:, i]) for d, b in zip(changes, patients.behaviour, strict=True) if i < d.shape[1]]
        # D is a sum of independent terms of mean 0: its moments over all that clinicians might have done
        for path in itertools.product(*(range(len(b)) for _, b in steps)):
            chance = float(np.prod([b[a] for (_, b), a in zip(steps, path, strict=True)]))
            total = sum(d[a] for (d, _), a in zip(steps, path, strict=True))
            second[i] += chance * total**2
            fourth[i] += chance * total**4
    behind = patients_behind(changes, patients.behaviour, n)
    assert behind == pytest.approx(second.sum() ** 2 / fourth.sum(), rel=1e-9)
    twice = [np.repeat(part, 2, axis=-1) for part in (*changes, *patients.behaviour)]
    assert patients_behind(twice[:3], twice[3:], 2 * n, np.repeat(np.arange(n), 2)) == pytest.approx(behind, rel=1e-9)
    assert patients_behind([np.zeros_like(d) for d in changes], patients.behaviour, n) == np.inf


def test_a_patient_with_many_decisions_is_one_patient():
    usual = np.full((2, 100), 0.5)
    change = np.vstack([np.full(100, -1.0), np.full(100, 1.0)])
    assert patients_behind([change], [usual], 100) == pytest.approx(100)
    assert patients_behind([change] * 5, [usual] * 5, 100) == pytest.approx(100 / (3 - 2 / 5))


def test_an_interval_is_wider_where_few_patients_show_what_a_target_does_otherwise():
    """A tenth of 300 patients is treated in another way in 5%: one or two of them carry the value, or nobody."""
    rng, n, truth = np.random.default_rng(5), 300, -0.02
    hits = {"by n": 0, "by patients behind": 0}
    for _ in range(400):
        rare = rng.random(n) < 0.1
        usual = np.where(rare, 0.05, 0.9)
        weights = (rng.random(n) < usual) / usual
        outcomes = np.where(rare, 0.6 * rng.random(n), 0.35 + 0.3 * rng.random(n)) - 0.5
        always, chances = np.vstack([np.ones(n), np.zeros(n)]), np.vstack([usual, 1 - usual])
        behind = patients_behind([always / chances - 1], [chances], n)
        plain = weighted_means(outcomes[None], weights[None])
        for name, statistic in zip(hits, (plain, replace(plain, freedom=2 * behind)), strict=True):
            interval = influence_interval(statistic, Range(-1.0, 1.0))
            hits[name] += interval.low <= truth <= interval.high
        assert interval.standard_error / plain.standard_error == pytest.approx(
            stdtrit(2 * behind, 0.975) / stdtrit(n - 1, 0.975)
        )
    assert hits["by n"] < 0.72 * 400
    assert hits["by patients behind"] > hits["by n"] + 0.05 * 400
