"""Arrays by step against a loop over patients."""

import numpy as np
import pytest

from evaluation_patients import each_patient, make_patients

pytestmark = pytest.mark.quick


def test_paths_are_the_rows_with_the_worth_of_ends():
    patients = make_patients()
    for i, steps in enumerate(each_patient(patients)):
        padded = np.zeros(3)
        padded[: len(steps)] = [reward for _, reward in steps]
        np.testing.assert_allclose(patients.arrays.rewards[:, i], padded, atol=1e-15)
    assert patients.arrays.counts[0] == 40 > patients.arrays.counts[2] > 0
