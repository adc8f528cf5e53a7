"""Importance weights against a loop over patients."""

import numpy as np
import pytest

from evaluated import each_patient, make_patients
from fdtr.evaluation.weights import effective_sample_size, weigh

pytestmark = pytest.mark.quick


def test_paths_are_the_rows_with_the_worth_of_ends():
    patients = make_patients()
    for i, steps in enumerate(each_patient(patients)):
        padded = np.zeros(3)
        padded[: len(steps)] = [reward for _, reward in steps]
        np.testing.assert_allclose(patients.paths.rewards[:, i], padded, atol=1e-15)
    assert patients.paths.counts[0] == 40 > patients.paths.counts[2] > 0


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
    capped = weigh(patients.paths, patients.target, patients.behaviour, cap=1.5)
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
    weights = weigh(patients.paths, patients.behaviour, patients.behaviour)
    np.testing.assert_array_equal(weights.ratios, np.ones((3, 40)))
    np.testing.assert_allclose(weights.effective_sample_size, 40.0)
