"""The values that SCOPE-RL finds on the same frozen patients, to 1e-8. `make agree-scope-rl` asks SCOPE-RL itself."""

from itertools import combinations

import numpy as np
import pytest

from scope_rl_patients import TOLERANCE, fdtr_values, read_patients, read_values

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("method", ["pdis", "wis", "dr", "wdr"])
@pytest.mark.parametrize("target", ["stochastic", "deterministic"])
def test_values_are_those_of_scope_rl(target, method):
    # values.json is what SCOPE-RL 0.2.1 (Kiyohara et al. 2023) returned; "made_with" in it says with which versions.
    expected = read_values()["values"][target][method]
    assert fdtr_values(read_patients())[target][method] == pytest.approx(expected, rel=0, abs=TOLERANCE)


def test_the_frozen_patients_tell_the_estimators_apart():
    patients, values = read_patients(), read_values()["values"]
    assert patients.q.shape == (200, 4, 3)
    for chances in (patients.behaviour, *patients.targets.values()):
        np.testing.assert_allclose(chances.sum(axis=2), 1, atol=1e-12)
    followed = np.take_along_axis(patients.targets["deterministic"], patients.actions[..., None], axis=2)
    assert followed.all(axis=1).sum() >= 10
    for found in values.values():
        assert all(abs(one - other) > 1e-3 for one, other in combinations(found.values(), 2))
