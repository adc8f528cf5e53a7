"""Bands and adjusted p-values, against their definitions."""

import numpy as np
import pytest
from scipy.stats import norm

from fdtr.inference import holm, sidak

pytestmark = pytest.mark.quick


def test_sidak_holds_together_for_independent_estimates():
    for m in (1, 2, 15, 120):
        assert (2 * norm.cdf(sidak(m)) - 1) ** m == pytest.approx(0.95)
    assert np.isnan(sidak(0))


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.95])
def test_sidak_is_enough_under_correlation(correlation):
    rng = np.random.default_rng(0)
    common, own = rng.standard_normal((2, 40_000, 6))
    z = np.sqrt(correlation) * common[:, :1] + np.sqrt(1 - correlation) * own
    held = np.mean(np.abs(z).max(axis=1) <= sidak(6))
    assert held >= 0.95 - 4 * np.sqrt(0.95 * 0.05 / 40_000)


def test_holm_rejects_as_the_step_down_procedure_does():
    rng = np.random.default_rng(1)
    for _ in range(50):
        p = rng.random(12) ** 3
        adjusted = holm(p)
        order, rejected = np.argsort(p), np.zeros(12, dtype=bool)
        for place, index in enumerate(order):  # Holm (1979): from the smallest, stop at the first that is not
            if p[index] > 0.05 / (12 - place):
                break
            rejected[index] = True
        assert np.array_equal(adjusted <= 0.05, rejected)


def test_holm_keeps_the_shape_and_leaves_out_tests_that_were_not_made():
    p = np.array([[0.001, np.nan], [0.4, 0.03]])
    assert np.allclose(holm(p), [[0.003, np.nan], [0.4, 0.06]], equal_nan=True)
    assert np.isnan(holm([np.nan])).all()
    assert holm([]).shape == (0,)
    assert np.array_equal(holm([0.9, 0.8]), [1.0, 1.0])
