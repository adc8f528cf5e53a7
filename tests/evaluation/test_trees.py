"""Trees: taken where clinicians follow thresholds, left where they are logistic; and what no model explains."""

import numpy as np
import pyarrow as pa
import pytest

from fdtr import read_trajectories
from fdtr.algebra.care_models import LogisticCare, TreeCare
from fdtr.evaluation import Constant, Evaluator
from fdtr.evaluation.propensity import fit_propensities
from fdtr.evaluation.step_arrays import StepArrays, step_arrays
from fdtr.evaluation.trees import best_propensities, fit_care
from fdtr.simulation import DiscreteSpec, WorldSpec, make_discrete_world, make_world
from fdtr.study import Study

pytestmark = pytest.mark.quick


def drawn(world, n, seed=2):
    study = Study.model_validate(world.study())
    rows = read_trajectories(pa.table(world.table(n, np.random.default_rng(seed))), study)
    return study, rows, step_arrays(rows)


@pytest.fixture(scope="module")
def skilled():
    """Clinicians who nearly always do what is best, which depends on which of two scores is high."""
    spec = DiscreteSpec(kind="crossed", n_sites=1, skill=(0.3, 0.3))
    return make_discrete_world(spec, np.random.default_rng(1))


def test_clinicians_who_follow_thresholds_are_found_by_a_tree(skilled):
    study, _, arrays = drawn(skilled, 600)
    folds = np.arange(600) % 5
    logistic = fit_propensities(arrays, study.feature_map, folds)
    best = best_propensities([logistic], arrays, folds)
    errors = {}
    for name, found in (("logistic", logistic), ("best", best)):
        gaps = []
        for h, states in enumerate(arrays.states):
            truth = skilled.chances[0, h, 0][skilled.positions(states.T)].T
            gaps.append(np.mean((found.chances[h] - truth) ** 2))
        errors[name] = np.mean(gaps)
    assert errors["best"] < 0.1 * errors["logistic"]
    for chances in best.chances:
        np.testing.assert_allclose(chances.sum(axis=0), 1.0)
    assert isinstance(fit_care(arrays, study.feature_map), TreeCare)


def test_logistic_clinicians_keep_the_logistic_model():
    spec = WorldSpec(n_sites=1, n_actions=3, horizon=2, behaviour="softmax")
    study, _, arrays = drawn(make_world(spec, np.random.default_rng(3)), 800)
    folds = np.arange(800) % 5
    logistic = fit_propensities(arrays, study.feature_map, folds)
    assert best_propensities([logistic], arrays, folds) is logistic
    assert isinstance(fit_care(arrays, study.feature_map), LogisticCare)


def test_a_trees_chances_come_from_other_patients(skilled):
    study, _, arrays = drawn(skilled, 300)
    folds = np.arange(300) % 5
    mine = folds == 1
    before = best_propensities([fit_propensities(arrays, study.feature_map, folds)], arrays, folds)
    mixed = tuple(np.where(mine, np.random.default_rng(h).permutation(a), a) for h, a in enumerate(arrays.actions))
    other = StepArrays(arrays.rewards, mixed, arrays.states)
    after = best_propensities([fit_propensities(other, study.feature_map, folds)], other, folds)
    np.testing.assert_array_equal(before.chances[0][:, mine], after.chances[0][:, mine])
    assert (before.chances[0][:, ~mine] != after.chances[0][:, ~mine]).any()
    assert (before.in_sample[0] != before.chances[0]).any()


def test_a_tree_of_few_rows_is_what_everybody_gets():
    study, _, arrays = drawn(make_world(WorldSpec(n_sites=1, n_actions=2, horizon=1), np.random.default_rng(3)), 40)
    found = fit_care(arrays, study.feature_map)
    states, psi = arrays.states[0], study.feature_map.psi(arrays.states[0])
    assert found.chances(states, psi, 0).shape == (2, 40)


def test_what_no_model_explains_is_seen(skilled):
    study, rows, _ = drawn(skilled, 600)
    patients = Evaluator(rows, study.feature_map, np.arange(600) % 5)
    assert patients._evaluation(Constant(3)).unexplained > 1.645


def test_trees_are_asked_where_products_of_covariates_find_nothing():
    # Outcomes turn at a threshold, in both directions: no product of two covariates sees it, and T does not reject.
    rng, n = np.random.default_rng(1), 400
    study = Study.model_validate(
        {
            "name": "x", "horizon": 1, "actions": {"levels": [0, 1]},
            "covariates": [{"name": "x", "effect": "specific", "range": [0, 1]}],
        }
    )  # fmt: skip
    x, given = rng.random(n), rng.integers(0, 2, n)
    rewards = 0.5 + 0.3 * np.sign(np.sin(6 * np.pi * x)) + 0.05 * rng.normal(size=n)
    table = {"patient": range(n), "step": [0] * n, "action": given, "reward": rewards.clip(0, 1), "x": x}
    rows = read_trajectories(pa.table({name: list(column) for name, column in table.items()}), study, "a")
    patients = Evaluator(rows, study.feature_map, np.arange(n) % 5)
    target = patients._evaluation(Constant(1))
    assert not target.richer.rejects
    assert target.unexplained > 1.645


def test_one_model_for_all_steps_is_taken_where_models_of_single_steps_exaggerate():
    """Eight actions, none with a true chance below 0.08: models of single steps make up far smaller ones."""
    rng, n, horizon, n_actions = np.random.default_rng(0), 600, 5, 8
    study = Study.model_validate(
        {
            "name": "x", "horizon": horizon, "actions": {"levels": list(range(n_actions)), "basis": "categorical"},
            "covariates": [{"name": f"x{i}", "effect": "specific", "range": [0, 1]} for i in range(5)],
        }
    )  # fmt: skip
    states, slopes = rng.random((horizon, n, 5)), rng.normal(0, 0.35, (5, n_actions))
    odds = np.exp((states - 0.5) @ slopes)
    chances = 0.08 + (1 - 0.08 * n_actions) * odds / odds.sum(axis=-1, keepdims=True)
    given = (chances.cumsum(axis=-1) > rng.random((horizon, n, 1))).argmax(axis=-1)
    table = {
        "patient": np.tile(np.arange(n), horizon), "step": np.repeat(np.arange(horizon), n), "action": given.ravel(),
        "reward": rng.random(n * horizon), **{f"x{i}": states[..., i].ravel() for i in range(5)},
    }  # fmt: skip
    rows = read_trajectories(pa.table(table), study, site="a")
    folds = np.arange(n) % 5
    best = Evaluator(rows, study.feature_map, folds).data.propensities
    single = Evaluator(rows, study.feature_map, folds, steps="each").data.propensities
    assert best.pooled
    least, least_single = (min(float(part.min()) for part in found.chances) for found in (best, single))
    assert least > 0.04 > 0.03 > least_single
