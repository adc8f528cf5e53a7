"""Fitted-Q evaluation against regressions on the dense rows, its influence function against derivatives."""

import numpy as np
import pytest

import paper_algorithms as paper
from evaluation_patients import literal_theta, make_patients
from fdtr.evaluation import Behaviour, Constant, Evaluator, known_propensities
from fdtr.evaluation.fitted_q import cross_fitted_q, fit_q, fitted_q_values, solve_backward
from fdtr.evaluation.target_evaluation import SiteData, TargetEvaluation
from fdtr.evaluation.targets import Deterministic
from fdtr.site.fitting import fit_local
from random_tables import make_sites, make_study

pytestmark = pytest.mark.quick


def fitted(patients, ridge=1e-3):
    outcomes, transitions = patients.sums()
    return fit_q(patients.design, patients.target, outcomes, transitions, ridge)


def test_it_is_the_regression_of_what_the_policy_would_do():
    study = make_study(ends={"death": 0.0, "discharge": 1.0})
    rows = make_sites(study, {"a": 120}, ragged=True)["a"]
    fit = fit_local(study, rows)
    features = study.feature_map
    policy, theta = fit.policy, None
    for h in reversed(range(3)):
        dense = paper.dense(rows, features)[h]
        chunk = next(rows.step(h).chunks(10**6))
        future = np.zeros(len(dense.reward))
        k = len(dense.following)
        future[k:] = dense.ended
        if k and theta is not None:
            chosen = policy.act(chunk.next_states.T, h + 1)
            future[:k] = (features.phi(chunk.next_states, chosen) * theta).sum(axis=1)
        gram = dense.phi.T @ dense.phi + 1e-3 * np.eye(features.n_features)
        theta = np.linalg.solve(gram, dense.phi.T @ (dense.reward + future))
    start = next(rows.step(0).chunks(10**6)).states
    expected = (features.phi(start, policy.act(start.T, 0)) * theta).sum(axis=1).mean()
    assert fitted_q_values(rows, features, [fit.fit.bounds])[0] == pytest.approx(expected, rel=1e-9)


def test_any_target_is_valued_by_the_same_regression():
    patients = make_patients(n=80)
    found, theta = fitted(patients), literal_theta(patients)
    np.testing.assert_allclose(found.theta, theta, rtol=1e-8, atol=1e-10)
    start = next(patients.rows.step(0).chunks(10**6)).states
    value = np.mean(
        [
            sum(
                patients.target[0][a, i] * (patients.features.phi(start[:, [i]], np.array([a]))[0] @ theta[0])
                for a in range(3)
            )
            for i in range(80)
        ]
    )
    assert found.value == pytest.approx(value, rel=1e-10)
    assert found.statistic.value == pytest.approx(value, rel=1e-10)


def test_a_policy_is_valued_as_tuning_values_it():
    study = make_study(ends={"death": 0.0, "discharge": 1.0})
    rows = make_sites(study, {"a": 120}, ragged=True)["a"]
    fit = fit_local(study, rows)
    patients = make_patients(n=120)
    outcomes, _ = patients.sums()
    data = SiteData(
        **vars(patients.design),
        clusters=None,
        propensities=known_propensities(patients.behaviour),
        outcomes=outcomes,
        cautions=(),
        richer=(),
    )
    view = TargetEvaluation(data, Deterministic(fit.policy.act, study.feature_map.levels), None, 1e-3)
    assert view.fitted.value == pytest.approx(fitted_q_values(rows, study.feature_map, [fit.fit.bounds])[0], rel=1e-9)


def test_the_value_is_a_weighted_sum_of_rewards():
    # κ of the docstring; with H = 1 it is νᵀΣ⁻¹φ, and Kish's number of κ bounds the effective sample size.
    patients = make_patients(n=60, horizon=1, ragged=False)
    phi = paper.dense(patients.rows, patients.features)[0].phi
    outcomes, transitions = patients.sums()
    precision = outcomes.gram.sum(axis=0)[0] + 1e-3 * np.eye(phi.shape[1])
    nu = transitions.start.sum(axis=0)
    kappa = phi @ np.linalg.solve(precision, nu)
    found = fitted(patients)
    assert found.value == pytest.approx(kappa @ patients.arrays.rewards[0] / 60, rel=1e-9)
    size = kappa.sum() ** 2 / (nu @ np.linalg.solve(precision, nu))
    assert found.effective_sample_size[0] == pytest.approx(size, rel=1e-9)
    assert size <= kappa.sum() ** 2 / np.sum(kappa**2)


def weighted_values(patients, weights, ridge=1e-3):
    """V̂ for each row of `weights`, how often patients count: one fold a patient makes every sum a weighted one."""
    outcomes, transitions = patients.sums(np.arange(patients.arrays.n))
    found = []
    for weight in weights:
        gram, moment, cross, start = (
            np.tensordot(weight, part, axes=1)
            for part in (outcomes.gram, outcomes.moment, transitions.cross, transitions.start)
        )
        found.append(start @ solve_backward(gram, moment, cross, ridge)[0] / weight.sum())
    return np.array(found)


def test_influence_values_are_derivatives_in_a_patients_weight():
    # Central differences in the weight: good to about 1e-7. A fixed λ moves the mean of ψ from 0, so it is centred.
    patients = make_patients(n=60)
    found = fitted(patients)
    up, down = (weighted_values(patients, 1 + change * np.eye(60)) for change in (1e-4, -1e-4))
    slopes = 60 * (up - down) / 2e-4
    np.testing.assert_allclose(found.influence, slopes - slopes.mean(), rtol=1e-5, atol=1e-7)


def test_the_standard_error_is_near_that_of_the_jackknife():
    # The jackknife is larger by leverages of about d/n = 12/400 a step.
    patients = make_patients(n=400)
    found = fitted(patients)
    own = np.sqrt(np.sum(found.influence**2) / (400 * 399))
    left_out = weighted_values(patients, 1 - np.eye(400))
    jackknife = np.sqrt(399 / 400 * np.sum((left_out - left_out.mean()) ** 2))
    assert own == pytest.approx(jackknife, rel=0.1)
    assert own < jackknife


def test_extrapolation_shows_in_the_effective_sample_size():
    # Nobody gets the highest dose; with a quadratic in the dose its effect is then free.
    study = make_study()
    rows = make_sites(study, {"a": 300}, actions={"a": [0, 1]})["a"]
    patients = Evaluator(rows, study.feature_map, np.arange(300) % 3)
    asked, used = (patients.value(Constant(action), "fqe") for action in (2, 1))
    assert asked.effective_sample_size.max() < 1
    assert not asked.believable
    assert "step" in asked.reason
    assert used.effective_sample_size.min() > 30
    assert used.believable


def test_doing_as_clinicians_do_is_close_to_the_observed_mean():
    patients = make_patients(n=2000, ragged=False)
    estimate = Evaluator(patients.rows, patients.features, patients.folds).value(Behaviour(), "fqe")
    observed = patients.arrays.rewards.sum(axis=0).mean()
    assert estimate.low < observed < estimate.high


def test_q_comes_from_the_other_folds_and_stays_in_range():
    patients = make_patients(n=80)
    outcomes, transitions = patients.sums()
    found = cross_fitted_q(patients.design, outcomes, transitions)
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
    outcomes, transitions = patients.sums()
    before = cross_fitted_q(patients.design, outcomes, transitions)
    patients.arrays.rewards[0, patients.folds == 0] = 0.5
    outcomes, _ = patients.sums()
    after = cross_fitted_q(patients.design, outcomes, transitions)
    own = patients.folds == 0
    np.testing.assert_allclose(before[0][:, own], after[0][:, own], rtol=1e-10)  # sums differ by rounding
    assert np.abs(before[0] - after[0])[:, ~own].max() > 0.01
