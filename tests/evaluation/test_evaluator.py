"""The evaluator: one fit of the nuisances, every method, verdicts, and values that are known."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pytest

import fdtr.evaluation.evaluator as evaluator_module
from evaluation_patients import make_patients
from fdtr.evaluation import Behaviour, Constant, Evaluator, IntervalOptions, Softened, known_propensities
from fdtr.evaluation.estimate import CautionKind, name_steps
from fdtr.evaluation.step_arrays import step_arrays
from fdtr.evaluation.targets import ByFold, Deterministic
from fdtr.simulation.linear import WorldSpec, make_world
from fdtr.site.fitting import fit_local
from fdtr.site.rows import read_trajectories
from fdtr.study import Study
from random_tables import make_study, make_table

METHODS = ("pdis", "wis", "fqe", "dr", "wdr")
pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def patients():
    return make_patients(n=200)


@pytest.fixture(scope="module")
def evaluator(patients):
    return Evaluator(patients.rows, patients.features, patients.folds)


def world_of(n, seed=0, **spec):
    world = make_world(WorldSpec(n_sites=1, **spec), np.random.default_rng(seed))
    study = Study.model_validate(world.study())
    rows = read_trajectories(pa.table(world.table(n, np.random.default_rng(seed + 1))), study)
    return world, study.feature_map, rows


def every_patient_as_often_as_likely():
    """A table that is its own population: every path, as many times as its chance asks for.

    x is 0 or 1, a drawn with chance ¼ or ¾; some die after step 0, some go home, others move on to x' by their action.
    """
    study = make_study(
        horizon=2,
        actions={"levels": [0, 1], "basis": "categorical"},
        covariates=[{"name": "x", "effect": "specific", "range": [0, 1]}],
        ends={"death": 0.0, "discharge": 0.75},
    )
    columns = {name: [] for name in ("site", "patient", "step", "action", "reward", "end", "x")}
    number = 0

    def add(step, action, reward, end, x):
        values = ("a", f"p{number}", step, action, reward, end, x)
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)

    for x in (0, 1):
        for a in (0, 1):
            dead, home = (1, 1) if a == 0 else (0, 2)  # quarters
            for _ in range(used(x, a) * dead * 4):
                number += 1
                add(0, a, reward_of(x, a), "death", x)
            for _ in range(used(x, a) * home * 4):
                number += 1
                add(0, a, reward_of(x, a), "discharge", x)
            for later in (0, 1):
                for second in (0, 1):
                    for _ in range(used(x, a) * (2 if later == a else 0) * used(later, second)):
                        number += 1
                        add(0, a, reward_of(x, a), None, x)
                        add(1, second, reward_of(later, second), None, later)
    return study, read_trajectories(pa.table(columns), study)


def used(x, a):
    """b(a | x) in quarters."""
    return 3 if (a == 1) == (x == 1) else 1


def reward_of(x, a):
    return (0.25 if x == 0 else 0.5) + 0.25 * a * (1 - x)


def truth_of(wanted):
    """V^π of π(1 | x) = wanted[x], by hand."""
    chance = lambda x, a: wanted[x] if a == 1 else 1 - wanted[x]  # noqa: E731
    last = [sum(chance(x, a) * reward_of(x, a) for a in (0, 1)) for x in (0, 1)]
    ahead = {0: 0.25 * 0.0 + 0.25 * 0.75 + 0.5 * last[0], 1: 0.5 * 0.75 + 0.5 * last[1]}
    return np.mean([sum(chance(x, a) * (reward_of(x, a) + ahead[a]) for a in (0, 1)) for x in (0, 1)])


@pytest.mark.parametrize("wanted", [(1.0, 0.0), (0.3, 0.9), (0.0, 0.0)])
def test_a_population_gives_the_truth_also_where_patients_leave_early(wanted):
    # Weights are exact, so every estimator is, whatever Q is; fqe is exact because the features span every table.
    study, rows = every_patient_as_often_as_likely()
    arrays = step_arrays(rows)
    usual = tuple(np.array([[(4 - 4 * (0.25 + 0.5 * x)) / 4, 0.25 + 0.5 * x] for x in s[0]]).T for s in arrays.states)

    class Wanted:
        def chances(self, states, step, behaviour):
            high = np.where(states[0] == 1, wanted[1], wanted[0])
            return np.stack([1 - high, high])

    folds = np.arange(arrays.n) % 2
    evaluator = Evaluator(rows, study.feature_map, folds, propensities=known_propensities(usual), ridge=1e-9)
    for method in METHODS:
        assert evaluator.value(Wanted(), method).value == pytest.approx(truth_of(wanted), rel=1e-6), method
    everywhere = evaluator.value(Behaviour(), "wis")
    assert everywhere.value == pytest.approx(arrays.rewards.sum(axis=0).mean(), rel=1e-12)


def test_fitted_q_finds_the_value_of_a_policy_in_a_linear_world():
    # 20,000 patients: 4 standard errors are about 0.02 of a value near 2.
    world, features, rows = world_of(20_000, n_actions=3, horizon=4)
    act = world.best_rule(0)
    truth = world.value(0, act, 200_000, np.random.default_rng(9))
    target = Deterministic(act, features.levels)
    patients = Evaluator(rows, features, np.arange(20_000) % 5)
    for method in ("fqe", "dr", "wdr", "wis"):
        found = patients.value(target, method)
        allowed = 4 * np.hypot(found.standard_error, truth.standard_error)
        assert found.value == pytest.approx(truth.mean, abs=allowed)
        assert found.believable
    assert patients.value(target, "fqe").standard_error < 0.01


def test_the_default_shape_of_the_paper_breaks_importance_sampling_and_it_says_so():
    # NOTES, point 6: a deterministic policy against six uniform actions leaves hardly any weight after a few steps.
    world, features, rows = world_of(1000)
    patients = Evaluator(rows, features, np.arange(1000) % 5)
    target = Deterministic(world.best_rule(0), features.levels)
    for method in ("pdis", "wis", "dr", "wdr"):
        found = patients.value(target, method)
        assert not found.believable
        assert "14 the weights of 1000 patients are worth no more than" in found.reason
        assert CautionKind.NO_WEIGHT_LEFT in {caution.kind for caution in found.warnings}
        assert (found.low, found.high) == (0, 15)
    model = patients.value(target, "fqe")
    assert model.believable
    assert CautionKind.MODEL_ALONE in {caution.kind for caution in model.warnings}
    assert model.effective_sample_size.min() > 50
    comparison = patients.compare(target, Behaviour(), "wdr")
    assert (comparison.low, comparison.high) == (-15, 15)
    assert not comparison.believable
    assert comparison.reason


@pytest.mark.parametrize("rule", ["best", "lowest dose", "highest dose", "by fold"])
def test_two_hundred_patients_cannot_be_weighted_through_fifteen_steps_of_six_actions(rule):
    # Uniform behaviour: a patient is treated as a policy says through h + 1 steps with chance 6⁻⁽ʰ⁺¹⁾, 200 · 6⁻² < 10.
    world, features, rows = world_of(200)
    assert (rows.horizon, features.n_actions) == (15, 6)
    folds = np.arange(200) % 5
    target = {
        "best": Deterministic(world.best_rule(0), features.levels),
        "lowest dose": Constant(0),
        "highest dose": Constant(5),
        "by fold": ByFold(folds, [Constant(action) for action in range(5)]),
    }[rule]
    patients = Evaluator(rows, features, folds)
    for method in ("pdis", "wis", "dr", "wdr"):
        found = patients.value(target, method)
        assert not found.believable
        low = np.flatnonzero(found.effective_sample_size < 10)
        assert set(range(2, 15)) <= set(low)
        assert found.reason == (
            f"At {name_steps(low.tolist())} the weights of 200 patients are worth no more than 0.0 equal ones; "
            "10 is the least."
        )


def test_nuisances_are_fitted_once(patients, monkeypatch):
    calls = []
    real = evaluator_module.fit_propensities
    monkeypatch.setattr(evaluator_module, "fit_propensities", lambda *a: calls.append(1) or real(*a))
    fresh = Evaluator(patients.rows, patients.features, patients.folds)
    targets = {"low": Constant(0), "as now": Behaviour()}
    found = {name: {m: fresh.value(target, m) for m in METHODS} for name, target in targets.items()}
    assert list(found) == ["low", "as now"]
    assert list(found["low"]) == list(METHODS)
    assert len(calls) == 1
    once = Evaluator(patients.rows, patients.features, patients.folds).value(Constant(0), "wdr")
    assert once.value == found["low"]["wdr"].value


@pytest.mark.parametrize("method", METHODS)
def test_an_estimate_is_whole(evaluator, method):
    found = evaluator.value(Softened(Constant(1), 0.5), method)
    assert 0 <= found.low < found.value < found.high <= 3
    assert found.effective_sample_size.shape == (3,)
    assert (found.n, found.n_clusters, found.method, found.level) == (200, 200, method, 0.95)
    assert found.believable
    assert found.reason == ""
    wider = evaluator.value(Softened(Constant(1), 0.5), method, IntervalOptions(level=0.99))
    assert wider.low < found.low
    drawn = evaluator.value(
        Softened(Constant(1), 0.5), method, IntervalOptions("bootstrap", draws=2000, rng=np.random.default_rng(0))
    )
    assert drawn.standard_error == pytest.approx(found.standard_error, rel=0.15)
    assert (drawn.low, drawn.high) == pytest.approx((found.low, found.high), abs=found.standard_error)


def test_softening_brings_overlap(evaluator):
    sizes = [
        evaluator.diagnose(Softened(Constant(1), s)).weights.effective_sample_size[-1] for s in (0.0, 0.3, 0.6, 1.0)
    ]
    assert sizes == sorted(sizes)
    assert sizes[-1] == pytest.approx(200.0)


@pytest.mark.parametrize("method", METHODS)
def test_a_comparison_is_paired(evaluator, method):
    found = evaluator.compare(Constant(1), Softened(Constant(1), 0.1), method)
    assert found.difference == pytest.approx(found.first.value - found.second.value)
    assert found.low <= found.difference <= found.high
    assert found.standard_error < found.first.standard_error
    same = evaluator.compare(Constant(1), Constant(1), method)
    assert (same.difference, same.low, same.high) == pytest.approx((0, 0, 0), abs=1e-12)


def test_clusters_of_twins_are_worth_one_of_them():
    # Twins share a fold. λ stands beside twice the Gram, so it is made too small to matter here.
    once_each = make_patients(n=150)
    names = once_each.rows.patients.to_pylist()
    doubled = twins_of(once_each)
    places = np.array([names.index(name[1:]) for name in doubled.patients.to_pylist()])
    counts = step_arrays(doubled).counts
    usual = tuple(b[:, places[:count]] for b, count in zip(once_each.behaviour, counts, strict=True))
    once, twice = (
        Evaluator(rows, once_each.features, once_each.folds[at], labels, known_propensities(chances), ridge=1e-9)
        for rows, at, labels, chances in (
            (once_each.rows, np.arange(150), None, once_each.behaviour),
            (doubled, places, np.array(names)[places], usual),
        )
    )
    for method in METHODS:
        first, second = once.value(Constant(1), method), twice.value(Constant(1), method)
        assert (second.n, second.n_clusters) == (300, 150)
        for name in ("value", "low", "high", "standard_error"):
            assert getattr(second, name) == pytest.approx(getattr(first, name), rel=1e-5), (method, name)
        first, second = (one.compare(Constant(1), Constant(2), method) for one in (once, twice))
        for name in ("difference", "low", "high", "standard_error"):
            assert getattr(second, name) == pytest.approx(getattr(first, name), rel=1e-5), (method, name)


def twins_of(patients):
    """Every row twice, under two names."""
    columns = {name: [] for name in ("site", "patient", "step", "action", "reward", "end", *patients.rows.covariates)}
    names = patients.rows.patients.to_pylist()
    for twin in "ab":
        for h in range(3):
            for chunk in patients.rows.step(h).chunks(10**6):
                going_on = chunk.next_states.shape[1]
                for i, reward in enumerate(chunk.rewards):
                    end = None if i < going_on else "discharge" if chunk.ended_value[i - going_on] > 0 else "death"
                    row = ("a", twin + names[i], h, chunk.actions[i], reward, end, *chunk.states[:, i])
                    for column, value in zip(columns.values(), row, strict=True):
                        column.append(value)
    return read_trajectories(pa.table(columns), patients.study)


def test_a_split_cluster_is_told(patients):
    labels = np.arange(200) // 2
    split = Evaluator(patients.rows, patients.features, np.arange(200) % 2, clusters=labels)
    whole = Evaluator(patients.rows, patients.features, (np.arange(200) // 2) % 2, clusters=labels)
    assert CautionKind.CLUSTER_SPLIT in {caution.kind for caution in split.value(Behaviour(), "wis").warnings}
    assert CautionKind.CLUSTER_SPLIT not in {caution.kind for caution in whole.value(Behaviour(), "wis").warnings}


@pytest.mark.parametrize(
    ("labels", "worth"),
    [
        (np.arange(200) % 19, "19 clusters, worth 19.0 of equal size"),
        (np.minimum(np.arange(200), 100), "101 clusters, worth 4.0 of equal size"),
        (np.arange(200) % 20, None),
        (np.arange(200), None),
    ],
)
def test_few_clusters_are_told_and_so_are_uneven_ones(patients, labels, worth):
    evaluator = Evaluator(patients.rows, patients.features, labels % 4, labels)
    told = {caution.kind: caution.sentence for caution in evaluator.value(Behaviour(), "wis").warnings}
    if worth is None:
        assert CautionKind.FEW_CLUSTERS not in told
    else:
        assert told[CautionKind.FEW_CLUSTERS] == f"There are {worth}; below 20 intervals tend to be too short."


def test_clipping_is_told(patients):
    capped = Evaluator(patients.rows, patients.features, patients.folds, cap=2.0)
    found = capped.value(Constant(0), "wis")
    assert CautionKind.CLIPPED_WEIGHTS in {caution.kind for caution in found.warnings}
    assert capped.diagnose(Constant(0)).weights.clipped_share.max() > 0


def test_rarely_used_actions_are_told(patients):
    usual = tuple(np.tile([[0.03], [0.5], [0.47]], count) for count in patients.arrays.counts)
    evaluator = Evaluator(patients.rows, patients.features, patients.folds, propensities=known_propensities(usual))
    found = evaluator.value(Constant(0), "pdis")
    told = {caution.kind: caution.sentence for caution in found.warnings}
    assert told[CautionKind.RARE_ACTIONS].startswith(
        "At steps 0, 1 and 2 up to 100% of recommended actions have a propensity"
    )
    assert told[CautionKind.OUTSIDE_RANGE].endswith(
        "lies outside [0, 3], where every value is; its interval was clipped."
    )


def test_wrong_questions_get_a_sentence(patients, evaluator):
    with pytest.raises(ValueError, match="two folds at least"):
        Evaluator(patients.rows, patients.features, np.zeros(200)).value(Behaviour())
    with pytest.raises(ValueError, match="Each of 200 patients has one fold"):
        Evaluator(patients.rows, patients.features, np.arange(3)).value(Behaviour())
    with pytest.raises(ValueError, match="give it a generator"):
        evaluator.value(Behaviour(), "wis", IntervalOptions("bootstrap"))
    with pytest.raises(ValueError, match="Method 'magic' is unknown"):
        evaluator.value(Behaviour(), "magic")
    with pytest.raises(ValueError, match="use method pdis"):
        evaluator.value(Constant(0), "wdr", IntervalOptions("bernstein"))
    bound = evaluator.value(Behaviour(), "pdis", IntervalOptions("bernstein"))
    assert bound.low < evaluator.value(Behaviour(), "pdis").low
    assert bound.high == 3


def test_a_step_that_nobody_reaches_adds_nothing():
    study = make_study(ends={"death": 0.0, "discharge": 1.0})
    table = make_table(study, {"a": 120})
    kept = table.filter(pa.compute.less(table["step"], 2))
    ends = [None if step == 0 else "discharge" for step in kept["step"].to_pylist()]
    rows = read_trajectories(kept.set_column(kept.column_names.index("end"), "end", pa.array(ends)), study)
    patients = Evaluator(rows, study.feature_map, np.arange(120) % 3)
    policy = fit_local(study, rows).policy
    for method in METHODS:
        found = patients.value(policy, method)
        assert np.isfinite([found.value, found.low, found.high]).all()
        assert found.value > 0.9  # everybody goes home, which the missing step is worth
    assert np.isnan(patients.diagnose(policy).overlap.agreement[2])
    assert np.isfinite(patients.markov.reward.gain)
    assert patients.calibration.count[0].sum() == 240


def test_a_fitted_policy_is_evaluated_as_it_is(patients, evaluator):
    policy = fit_local(patients.study, patients.rows).policy
    wrapped = Deterministic(policy.act, patients.features.levels)
    assert evaluator.value(policy, "wdr").value == evaluator.value(wrapped, "wdr").value


def test_no_repr_holds_a_patients_value(evaluator):
    for thing in (evaluator, evaluator.data, evaluator.data.arrays, evaluator.data.propensities):
        assert "array(" not in repr(thing)
        assert len(repr(thing)) < 100
    estimate = evaluator.value(Behaviour(), "wis")
    assert len(repr(estimate)) < 500


def test_importing_brings_no_scikit_learn():
    code = "import sys, fdtr.evaluation; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"sklearn", "joblib", "pandas", "scipy.stats"} & set(loaded)
