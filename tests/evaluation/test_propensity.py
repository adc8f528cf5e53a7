"""Propensities: cross-fitted, close to the truth where it is logistic, and named warnings where data are awkward."""

import numpy as np
import pyarrow as pa
import pytest

import fdtr.evaluation.propensity as propensity_module
from fdtr.evaluation import Behaviour, Constant, Evaluator, known_propensities
from fdtr.evaluation.estimate import CautionKind
from fdtr.evaluation.propensity import calibrate, fit_propensities
from fdtr.evaluation.step_arrays import StepArrays, step_arrays
from fdtr.simulation.linear import WorldSpec, make_world
from fdtr.site.rows import read_trajectories
from fdtr.study import Study
from random_tables import make_sites, make_study, make_table

METHODS = ("pdis", "wis", "fqe", "dr", "wdr")
pytestmark = pytest.mark.quick


def site_of(n=200, seed=0, study=None, **options):
    study = study or make_study()
    rows = make_sites(study, {"a": n}, seed, **options)["a"]
    return study.feature_map, rows, step_arrays(rows)


def kinds(found):
    return {caution.kind for caution in found.cautions}


@pytest.mark.parametrize("steps", ["each", "pooled"])
def test_chances_are_found_where_clinicians_are_logistic(steps):
    # With 20,000 patients the coefficients are good to about 0.03; "softmax" clinicians differ between steps.
    spec = WorldSpec(n_sites=1, n_actions=3, horizon=2, behaviour="softmax" if steps == "each" else "narrow")
    world = make_world(spec, np.random.default_rng(3))
    study = Study.model_validate(world.study())
    rows = read_trajectories(pa.table(world.table(20_000, np.random.default_rng(4))), study)
    arrays = step_arrays(rows)
    found = fit_propensities(arrays, study.feature_map, np.arange(20_000) % 3, steps)
    assert found.pooled == (steps == "pooled")
    for h in range(2):
        truth = world.behaviour_chances(0, arrays.states[h].T, h).T
        assert np.abs(found.chances[h] - truth).max() < 0.05
        assert np.abs(found.chances[h] - truth).mean() < 0.01
        np.testing.assert_allclose(found.chances[h].sum(axis=0), 1.0)
    table = calibrate(found, arrays)
    gaps = np.abs(table.predicted - table.observed) * table.count
    assert (gaps.sum(axis=1) / table.count.sum(axis=1)).max() < 0.02
    assert (table.count.sum(axis=1) == 40_000).all()
    assert (np.diff(table.predicted, axis=1) >= 0).all()


def test_a_patients_own_action_does_not_enter_its_chances():
    features, _, arrays = site_of()
    folds = np.arange(200) % 4
    before = fit_propensities(arrays, features, folds, "each")
    changed = arrays.actions[0].copy()
    changed[folds == 1] = 0
    after = fit_propensities(
        StepArrays(arrays.rewards, (changed, *arrays.actions[1:]), arrays.states), features, folds, "each"
    )
    np.testing.assert_array_equal(before.chances[0][:, folds == 1], after.chances[0][:, folds == 1])
    assert np.abs(before.chances[0] - after.chances[0])[:, folds != 1].max() > 0.01


@pytest.mark.parametrize("steps", ["each", "pooled"])
def test_in_sample_chances_balance_the_patients_they_were_fitted_to(steps):
    features, _, arrays = site_of()
    found = fit_propensities(arrays, features, np.arange(200) % 4, steps)
    expected = sum(chances.sum(axis=1) for chances in found.in_sample)
    np.testing.assert_allclose(expected, np.bincount(np.concatenate(arrays.actions)), rtol=1e-6)
    held_out = sum(chances.sum(axis=1) for chances in found.chances)
    assert np.abs(held_out / expected - 1).max() > 1e-4


def test_values_without_a_normaliser_take_in_sample_chances_and_others_held_out_ones():
    features, rows, arrays = site_of()
    found = fit_propensities(arrays, features, folds := np.arange(200) % 4)
    by = {
        name: Evaluator(rows, features, folds, propensities=known_propensities(chances))
        for name, chances in (("in sample", found.in_sample), ("held out", found.chances))
    }
    both = Evaluator(rows, features, folds, propensities=found)
    for method, name in (("pdis", "in sample"), ("wis", "held out"), ("dr", "held out"), ("wdr", "held out")):
        assert both.value(Constant(1), method).value == by[name].value(Constant(1), method).value, method
    assert by["in sample"].value(Constant(1), "pdis").value != by["held out"].value(Constant(1), "pdis").value
    observed = arrays.rewards.sum(axis=0).mean()
    assert both.value(Behaviour(), "pdis").value == pytest.approx(observed, abs=1e-12)


def test_few_rows_are_pooled_unless_told_otherwise():
    features, _, arrays = site_of(60)
    folds = np.arange(60) % 3
    assert fit_propensities(arrays, features, folds).pooled
    assert not fit_propensities(arrays, features, folds, "each").pooled
    features, _, arrays = site_of(200)
    assert not fit_propensities(arrays, features, np.arange(200) % 3).pooled


@pytest.mark.parametrize("steps", ["each", "pooled"])
def test_an_action_that_is_never_used_gets_the_floor_and_a_name(steps):
    features, rows, arrays = site_of(actions={"a": [0, 2]})
    folds = np.arange(200) % 4
    found = fit_propensities(arrays, features, folds, steps)
    assert kinds(found) == {CautionKind.UNUSED_ACTION}
    (caution,) = found.cautions
    assert caution.sentence.startswith("Action 1 is never used at this site")
    for chances in found.chances:
        np.testing.assert_allclose(chances[1], 0.001 / 1.001)
    for method in METHODS:
        estimate = Evaluator(rows, features, folds, steps=steps).value(Constant(1), method)
        assert np.isfinite([estimate.value, estimate.low, estimate.high, estimate.standard_error]).all()
        assert not estimate.believable
        assert estimate.reason
        if method != "fqe":
            assert {CautionKind.UNUSED_ACTION, CautionKind.NO_WEIGHT_LEFT} <= {
                caution.kind for caution in estimate.warnings
            }
            assert (estimate.low, estimate.high) == (0, 3)


def test_an_action_that_a_training_fold_lacks_is_named():
    study = make_study()
    features, _, arrays = site_of(study=study, actions={"a": [0, 1]})
    once = tuple(actions.copy() for actions in arrays.actions)
    once[1][7] = 2
    arrays = StepArrays(arrays.rewards, once, arrays.states)
    found = fit_propensities(arrays, features, np.arange(200) % 4, "each")
    absent = [caution.sentence for caution in found.cautions if caution.kind == CautionKind.ACTION_ABSENT_IN_FOLD]
    assert absent == [
        "Action 2, step 1: it is so rare that a training fold lacks it; its propensity there is the floor."
    ]
    assert found.chances[1][2, 7] == pytest.approx(0.001, rel=0.01)
    assert CautionKind.FLOORED_PROPENSITY in kinds(found)
    assert CautionKind.UNUSED_ACTION not in kinds(found)
    assert all(np.isfinite(chances).all() for chances in found.chances)


def test_an_action_that_the_state_gives_away_is_named():
    features, _, arrays = site_of()
    given_away = tuple(
        np.where(states[1] > 7, 2, actions % 2) for states, actions in zip(arrays.states, arrays.actions, strict=True)
    )
    arrays = StepArrays(arrays.rewards, given_away, arrays.states)
    found = fit_propensities(arrays, features, np.arange(200) % 4, "each")
    separated = [caution.sentence for caution in found.cautions if caution.kind == CautionKind.SEPARATED_ACTION]
    assert len(separated) == 1
    assert separated[0].startswith("Action 2, steps 0, 1 and 2: the state tells its patients from all others")
    assert all(np.isfinite(chances).all() and (chances > 0).all() for chances in found.chances)


def test_a_separated_action_leaves_finite_values():
    study = make_study()
    table = make_table(study, {"a": 200})
    codes = np.where(np.asarray(table["x"]) > 5, 2, 0)
    rows = read_trajectories(table.set_column(table.column_names.index("action"), "action", pa.array(codes)), study)
    patients = Evaluator(rows, study.feature_map, np.arange(200) % 4)
    for method in METHODS:
        estimate = patients.value(Constant(2), method)
        assert np.isfinite([estimate.value, estimate.low, estimate.high]).all()
        named = {caution.kind for caution in estimate.warnings}
        assert method == "fqe" or CautionKind.SEPARATED_ACTION in named


@pytest.mark.parametrize("steps", ["each", "pooled"])
def test_a_constant_covariate_is_left_out_and_named(steps):
    features, _, arrays = site_of(constant_within_site=("u", "y"))
    found = fit_propensities(arrays, features, np.arange(200) % 4, steps)
    where = "steps 0, 1 and 2" if steps == "each" else "all steps"
    assert [caution.sentence for caution in found.cautions if caution.kind == CautionKind.CONSTANT_COVARIATE] == [
        f"{name}, {where}: it does not vary there and is left out of the propensity model." for name in ("u", "y")
    ]


def test_one_action_for_everybody_has_chance_one():
    features, _, arrays = site_of(actions={"a": [1]})
    found = fit_propensities(arrays, features, np.arange(200) % 4)
    for chances in found.chances:
        np.testing.assert_allclose(chances[1], 1 / 1.002)
    assert {caution.sentence[:8] for caution in found.cautions} == {"Action 0", "Action 2"}


def test_no_convergence_is_told_not_raised(monkeypatch):
    monkeypatch.setattr(propensity_module, "ITERATIONS", 1)
    features, _, arrays = site_of()
    found = fit_propensities(arrays, features, np.arange(200) % 4, "each")
    assert kinds(found) == {CautionKind.NO_CONVERGENCE}
    assert found.cautions[0].sentence == "The propensity model did not converge (steps 0, 1 and 2)."


def test_a_step_with_one_patient_gets_overall_frequencies():
    features, _, arrays = site_of(50)
    alone = StepArrays(
        arrays.rewards, (*arrays.actions[:2], arrays.actions[2][:1]), (*arrays.states[:2], arrays.states[2][:, :1])
    )
    found = fit_propensities(alone, features, np.arange(50) % 5, "each")
    assert CautionKind.TOO_FEW_ROWS in kinds(found)
    others = np.concatenate([actions[np.arange(len(actions)) % 5 != 0] for actions in alone.actions])
    np.testing.assert_allclose(found.chances[2][:, 0], np.bincount(others, minlength=3) / len(others))


def test_calibration_of_few_rows_has_empty_bins():
    features, _, arrays = site_of(3)
    found = fit_propensities(arrays, features, np.arange(3))
    table = calibrate(found, arrays)
    assert table.count[0].tolist() == [1] * 9 + [0]
    assert np.isnan(table.predicted[:, 9]).all()
    assert np.isfinite(table.predicted[:, :9] - table.observed[:, :9]).all()
