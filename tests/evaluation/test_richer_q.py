"""The richer Q against dense ridge regressions, and the test that says whether the linear model is wrong."""

import numpy as np
import pyarrow as pa
import pytest

from evaluation_patients import make_patients
from fdtr import read_trajectories
from fdtr.evaluation.fitted_q import fit_q
from fdtr.evaluation.richer_q import _Steps, fit_richer_q, products
from fdtr.evaluation.step_arrays import Design, state_functions, step_arrays
from fdtr.simulation import WorldSpec, make_world
from fdtr.study import Study

pytestmark = pytest.mark.quick


def test_products_are_of_two_covariates_and_squares_of_linear_ones():
    study = Study.model_validate(
        {
            "name": "x", "horizon": 1, "actions": {"levels": [0, 1]},
            "covariates": [
                {"name": "u"},
                {"name": "g", "basis": {"kind": "categorical", "levels": [0, 1, 2]}},
                {"name": "v", "basis": {"kind": "spline", "knots": [0.5], "degree": 1}},
            ],
        }
    )  # fmt: skip
    rng = np.random.default_rng(0)
    states = np.stack([rng.random(300), rng.integers(0, 3, 300).astype(float), rng.random(300)])
    psi = study.feature_map.psi(states)
    (found,) = products((psi,), study.feature_map)
    n_single = 1 + 2 + 2
    # 1; the functions; u², u·g (2), u·v (2), g·v (4)
    assert len(found) == 1 + n_single + 1 + 2 + 2 + 4
    np.testing.assert_allclose(found[1:].mean(axis=1), 0.0, atol=1e-12)
    np.testing.assert_allclose(found[1:].std(axis=1), 1.0)
    assert (found[0] == 1).all()


def test_a_step_is_solved_as_the_dense_ridge_regression():
    patients = make_patients(n=90)
    design, richer = patients.design, products(patients.design.psi, patients.features)
    step = _Steps(design, richer, 1e-3).at(1)
    targets = np.random.default_rng(1).random(len(step.actions))
    theta, gamma = step.solve(2, targets, [np.inf, 30.0])
    train = step.folds != 2
    phi = design.taken(1)
    n_actions, p, d = len(design.embeddings), len(step.richer), len(phi)
    blocks = np.vstack([np.where(step.actions == a, step.richer, 0.0) for a in range(n_actions)])
    for place, mu in enumerate([1e14, 30.0]):
        x = np.vstack([phi, blocks])[:, train]
        ridge = np.concatenate([np.full(d, 1e-3), np.full(n_actions * p, mu)])
        dense = np.linalg.solve(x @ x.T + np.diag(ridge), x @ targets[train])
        np.testing.assert_allclose(theta[place], dense[:d], rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(gamma[place].ravel(), dense[d:], rtol=1e-6, atol=1e-8)
    rows = np.array([0, 5, 11])
    predicted = step.predict(theta, gamma, rows)
    np.testing.assert_allclose(predicted[1], (dense @ np.vstack([phi, blocks]))[rows], rtol=1e-6)


def test_its_value_is_that_of_the_linear_model_where_it_adds_nothing():
    patients = make_patients(n=90)
    outcomes, transitions = patients.sums()
    linear = fit_q(patients.design, patients.target, outcomes, transitions)
    richer = products(patients.design.psi, patients.features)
    by_fold = [patients.target] * patients.design.n_folds
    found = fit_richer_q(patients.design, richer, by_fold, linear, patients.behaviour)
    if not np.isfinite(found.ridge):
        assert found.misfit == 0.0
    assert found.values.shape == (90,)
    assert abs(found.statistic.value - linear.value) < 0.2


def rejected(seed, crossing):
    """Whether T rejects for the highest dose; outcomes have a product of covariates with the weight `crossing`."""
    world = make_world(WorldSpec(n_sites=1, n_actions=2, horizon=2), np.random.default_rng(seed))
    study = Study.model_validate(world.study())
    table = world.table(300, np.random.default_rng([seed, 1]))
    product = (table["shared_1"] - 0.5) * (table["own_1"] - 0.5)
    table["reward"] = np.clip(table["reward"] + crossing * product * (2 * table["action"] - 1), 0, 1)
    rows = read_trajectories(pa.table(table), study)
    arrays = step_arrays(rows)
    psi = state_functions(arrays, study.feature_map)
    design = Design(arrays, psi, study.feature_map.embeddings, np.arange(300) % 5)
    from fdtr.evaluation.fitted_q import sum_outcomes, sum_transitions

    chances = tuple(np.stack([np.zeros(n), np.ones(n)]) for n in arrays.counts)
    linear = fit_q(design, chances, sum_outcomes(design), sum_transitions(design, chances))
    usual = tuple(np.full_like(table, 0.5) for table in chances)
    return fit_richer_q(design, products(psi, study.feature_map), [chances] * 5, linear, usual).rejects


def test_the_test_has_its_level_and_finds_products():
    # 5% nominal. Of 60 valid worlds 8 or more would be rejected by chance with probability 1%, at a true level of 6%.
    assert sum(rejected(seed, 0.0) for seed in range(60)) <= 8
    assert sum(rejected(seed, 4.0) for seed in range(10)) >= 9
