"""Bounds under unmeasured confounding against linear programmes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from evaluation_patients import make_patients
from fdtr.evaluation.confounding import Bounds, Confounded, largest_mean, sensitivity
from fdtr.evaluation.importance import step_weighted

pytestmark = pytest.mark.quick


def programme(values, lower, upper):
    """max Σ w y / Σ w, by Charnes and Cooper: v = t w with Σ v = 1, t·lower ≤ v ≤ t·upper."""
    n = len(values)
    above, below = np.hstack([np.eye(n), -upper[:, None]]), np.hstack([-np.eye(n), lower[:, None]])
    found = linprog(
        np.append(-values, 0.0), A_ub=np.vstack([above, below]), b_ub=np.zeros(2 * n),
        A_eq=np.append(np.ones(n), 0.0)[None], b_eq=[1.0], bounds=[(0, None)] * (n + 1),
    )  # fmt: skip
    assert found.success
    return -found.fun


@given(st.integers(0, 100_000))
def test_sorting_solves_the_linear_programme(seed):
    # HiGHS works to 1e-7.
    rng = np.random.default_rng(seed)
    lower = rng.random(9) * (rng.random(9) < 0.8)
    upper = lower * (1 + 3 * rng.random(9)) + 1e-3
    values = rng.normal(size=9).round(1)  # with ties
    assert largest_mean(values, lower, upper) == pytest.approx(programme(values, lower, upper), abs=1e-6)


def test_bounds_are_those_of_a_programme_a_step():
    patients = make_patients(n=15)
    of = Confounded(patients.arrays, patients.target, patients.behaviour)
    for gamma in (1.0, 1.3, 2.0):
        low = high = 0.0
        lower, upper = np.ones(15), np.ones(15)
        for h, actions in enumerate(patients.arrays.actions):
            for i, action in enumerate(actions):
                p, wanted = patients.behaviour[h][action, i], patients.target[h][action, i]
                odds = p / (1 - p)
                truths = [gamma * odds / (1 + gamma * odds), odds / gamma / (1 + odds / gamma)]
                lower[i] *= wanted / truths[0]
                upper[i] *= wanted / truths[1]
            low -= programme(-patients.arrays.rewards[h], lower, upper)
            high += programme(patients.arrays.rewards[h], lower, upper)
        found = of.bounds(gamma)
        assert (found.low, found.high) == pytest.approx((low, min(high, 3.0)), abs=1e-6)


def test_no_confounding_is_the_estimate_and_more_of_it_widens():
    patients = make_patients()
    value = step_weighted(patients.arrays, patients.weights).value
    found = sensitivity(Confounded(patients.arrays, patients.target, patients.behaviour))
    assert (found.low[0], found.high[0]) == pytest.approx((value, value), rel=1e-10)
    assert (np.diff(found.low) < 0).all()
    assert (np.diff(found.high)[found.high[1:] < 3] > 0).all()
    assert found.high[-1] == 3.0  # no value is above H


def test_the_tipping_point_is_where_a_bound_meets_what_clinicians_reach():
    patients = make_patients()
    of = Confounded(patients.arrays, patients.target, patients.behaviour)
    value = of.bounds(1.0).low
    for reference, end in ((value - 0.2, "low"), (value + 0.2, "high")):
        tipping = of.tipping_odds(reference)
        assert tipping > 1
        assert getattr(of.bounds(tipping), end) == pytest.approx(reference, abs=1e-3)
    assert of.tipping_odds(value) == 1.0
    assert of.tipping_odds(-1.0) == np.inf


def test_a_cap_holds_for_bounds_too():
    patients = make_patients()
    of = Confounded(patients.arrays, patients.target, patients.behaviour, cap=1.0)
    capped = np.minimum(patients.weights.ratios, 1.0)
    value = ((capped * patients.arrays.rewards).sum(axis=1) / capped.sum(axis=1)).sum()
    assert of.bounds(1.0).high == pytest.approx(value)


def test_nobody_treated_so_bounds_nothing():
    patients = make_patients()
    never = tuple(np.zeros_like(chances) for chances in patients.target)
    of = Confounded(patients.arrays, never, patients.behaviour)
    assert of.bounds(1.0) == Bounds(0.0, 3.0)
    found = sensitivity(of, doubt="nobody was treated so")
    assert np.isnan(found.tipping_odds)
    assert found.doubt == "nobody was treated so"
