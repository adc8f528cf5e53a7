"""Verdicts: what is verified, what rests on a model, and what has no number."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from fdtr import fit_local, read_trajectories, verify
from fdtr.evaluation import Behaviour, Constant, Evaluator, Evidence, known_propensities
from fdtr.evaluation.importance import doubly_robust, weigh, weighted_doubly_robust
from fdtr.evaluation.subgroups import Group
from fdtr.evaluation.targets import Advised, Deterministic
from fdtr.inference import SiteValue, pool
from fdtr.simulation import DiscreteSpec, WorldSpec, make_discrete_world, make_world
from fdtr.study import Study
from random_tables import make_sites, make_study

pytestmark = pytest.mark.quick


def patients_of(world, n, seed):
    study = Study.model_validate(world.study())
    rows = read_trajectories(pa.table(world.table(n, np.random.default_rng(seed))), study).by_site()[world.sites[0]]
    return study, rows, Evaluator(rows, study.feature_map, np.arange(n) % 5)


@pytest.fixture(scope="module")
def linear():
    """A policy from 1,000 patients of a valid world, and 1,000 others to value it on."""
    world = make_world(WorldSpec(n_sites=1, n_actions=2, horizon=3), np.random.default_rng(5))
    study, rows, _ = patients_of(world, 1000, 6)
    fit = fit_local(study, rows)
    return world, study, fit, verify(study, rows, fit), patients_of(world, 1000, 7)[2]


def test_clinicians_are_the_observed_mean_by_every_method():
    study = make_study(ends={"death": 0.0, "discharge": 1.0})
    rows = make_sites(study, {"a": 150}, ragged=True)["a"]
    patients = Evaluator(rows, study.feature_map, np.arange(150) % 5)
    rewards = patients.data.arrays.rewards.sum(axis=0)
    for method in ("pdis", "wis", "fqe", "dr", "wdr"):
        usual = patients.value(Behaviour(), method)
        assert usual.value == pytest.approx(rewards.mean(), rel=1e-14)
        assert usual.standard_error == pytest.approx(rewards.std(ddof=1) / np.sqrt(150), rel=1e-12)
        assert usual.effective_sample_size.tolist() == [150.0] * 3
    found = patients.assess(Behaviour())
    assert (found.verdict, found.value, found.reason) == ("verified", usual.value, "")


def test_a_patient_who_is_never_advised_adds_nothing_to_the_gain(linear):
    _, _, _, verified, patients = linear
    gain = patients.assess(verified, Behaviour())
    assert gain.verdict == "verified"
    advised = patients._evaluation(verified).weights.advised
    assert gain.n_differing == advised.sum() < 1000
    assert gain.n_unchanged == 1000 - advised.sum()
    difference = (
        patients._evaluation(verified).statistic("wdr").minus(patients._evaluation(Behaviour()).statistic("wdr"))
    )
    np.testing.assert_allclose(difference.contributions[~advised], 0.0, atol=1e-12)


def test_a_gain_rests_on_patients_who_are_treated_differently(linear):
    # Q of two targets differs a little, so that everybody who is advised adds a little to their difference.
    _, study, _, verified, patients = linear

    class Almost:
        """The same advice, but for three patients at the first step."""

        def decide(self, states, step):
            advised, codes = verified.decide(states, step)
            if step == 0:
                codes = np.where(np.cumsum(advised) <= 3, 1 - codes, codes)
            return advised, codes

    gain = patients.assess(Advised(Almost(), study.feature_map.levels), verified)
    assert gain.n_differing == 3
    assert gain.n_unchanged == 997
    assert gain.effective_sample_size <= 3


def test_a_gain_over_no_verified_part_is_not_verified(linear):
    _, study, _, verified, patients = linear

    class Silent:
        def decide(self, states, step):
            return np.zeros(len(states), bool), np.zeros(len(states), np.int64)

    gain = patients.assess(verified, Advised(Silent(), study.feature_map.levels))
    assert gain.verdict == "not estimable"
    assert "no verified part" in gain.reason


def test_bounds_under_confounding_begin_at_the_value_itself(linear):
    _, _, _, _, patients = linear
    usual = patients.sensitivity(Behaviour())
    assert usual.low[0] == pytest.approx(usual.behaviour)
    assert usual.high[0] == pytest.approx(usual.behaviour)


def test_weights_are_normalised_among_those_who_were_advised(linear):
    _, _, _, verified, patients = linear
    evaluation = patients._evaluation(verified)
    arrays, weights, q, chances = evaluation.data.arrays, evaluation.weights, evaluation.q, evaluation.chances
    values = [(c * table).sum(axis=0) for c, table in zip(chances, q, strict=True)]
    total = values[0].mean()
    for h in range(3):
        taken = q[h][arrays.actions[h], np.arange(1000)]
        later = values[h + 1] if h < 2 else 0.0
        error = arrays.rewards[h] + later - taken
        reached = weights.reached[h]
        assert (weights.ratios[h][~reached] == 1).all()
        share = reached.mean()
        total += (error * ~reached).mean()
        total += share * np.average(error[reached], weights=weights.ratios[h][reached])
    found = weighted_doubly_robust(arrays, weights, q, chances)
    assert found.value == pytest.approx(total, rel=1e-10)
    plain = doubly_robust(arrays, weights, q, chances)
    assert plain.value == pytest.approx(found.value, abs=0.05)


def test_a_part_for_everybody_is_the_policy_itself(linear):
    _, study, fit, _, patients = linear

    class Everywhere:
        def decide(self, states, step):
            return np.ones(len(states), bool), fit.policy.act(states, step)

    whole, part = patients.value(fit.policy), patients.value(Advised(Everywhere(), study.feature_map.levels))
    assert part.value == pytest.approx(whole.value, rel=1e-12)
    assert part.standard_error == pytest.approx(whole.standard_error, rel=1e-9)


def test_verified_gains_hold_the_truth(linear):
    # One set of patients: within three standard errors of the exact value, which a biased estimator would miss.
    world, _, _, verified, patients = linear
    from fdtr.simulation import AS_USUAL

    def act(states, step):
        advised, codes = verified.decide(states, step)
        return np.where(advised, codes, AS_USUAL)

    truth = world.value(0, act, 40_000, np.random.default_rng(1)).mean
    truth -= world.value(0, None, 40_000, np.random.default_rng(1)).mean
    gain = patients.assess(verified, Behaviour())
    assert abs(gain.value - truth) < 3 * gain.standard_error
    assert truth > 0.03


def test_little_advice_is_no_verified_part(linear):
    _, study, _, _, patients = linear

    class Seldom:
        def __init__(self, n):
            self.n = n

        def decide(self, states, step):
            return (np.arange(len(states)) < self.n) & (step == 0), np.zeros(len(states), np.int64)

    few = patients.assess(Advised(Seldom(29), study.feature_map.levels), Behaviour())
    assert few.verdict == "not estimable"
    assert np.isnan([few.value, few.low, few.high]).all()
    assert "It advises 29 patients" in few.reason


def test_where_held_out_data_reject_the_linear_model_the_interval_is_wider():
    # Four steps, four doses: nobody gets the same dose throughout, and a product of covariates decides who gains.
    rng, n = np.random.default_rng(1), 600
    x, dose = rng.random((n, 4, 2)), rng.integers(0, 4, (n, 4))
    gain = 0.6 * (x[..., 0] - 0.5) * (x[..., 1] - 0.5) * dose
    table = {
        "site": ["a"] * 4 * n, "patient": np.repeat(np.arange(n), 4), "step": np.tile(np.arange(4), n),
        "action": dose.ravel(), "reward": (0.5 + gain + 0.02 * rng.standard_normal((n, 4))).ravel(),
        "u": x[..., 0].ravel(), "v": x[..., 1].ravel(),
    }  # fmt: skip
    study = Study.model_validate(
        {
            "name": "products", "horizon": 4, "actions": {"levels": [0, 1, 2, 3], "degree": 1},
            "covariates": [{"name": "u", "effect": "shared"}, {"name": "v"}],
        }
    )  # fmt: skip
    rows = read_trajectories(pa.table(table), study)
    patients = Evaluator(rows, study.feature_map, np.arange(n) % 5)
    found, linear_value = patients.assess(Constant(3)), patients.value(Constant(3), "fqe")
    assert (found.verdict, found.estimator) == ("model-based", "richer")
    assert found.misfit > 1.645
    assert found.tolerance >= abs(linear_value.value - found.value)
    assert found.high - found.low > 2 * (1.96 * found.standard_error + found.tolerance) - 1e-9
    assert found.low < 2.0 < found.high  # E (u − ½)(v − ½) = 0


def test_where_the_richer_model_misses_as_much_there_is_no_number():
    world = make_discrete_world(DiscreteSpec(kind="crossed", n_sites=1), np.random.default_rng(1))
    _, _, patients = patients_of(world, 600, 2)
    found = patients.assess(Constant(3))
    assert found.verdict == "not estimable"
    assert found.reason.startswith("Held-out patients contradict the linear model and the richer one")


def test_a_model_that_contradicts_skilled_clinicians_gives_no_number():
    """Clinicians nearly always do what is best, by thresholds that no function of the model shows; it sees a gain."""
    world = make_discrete_world(DiscreteSpec(kind="crossed", n_sites=1, skill=(0.2, 0.2)), np.random.default_rng(0))
    study, rows, _ = patients_of(world, 600, 10)
    policy = fit_local(study, rows).policy
    patients = patients_of(world, 600, 20)[2]
    found, gain = patients._evaluation(policy).richer, patients.assess(policy, Behaviour())
    assert (
        patients.compare(policy, Behaviour(), "fqe").low
        > 0
        > world.value(0, policy.act).mean - world.value(0, None).mean
    )
    assert found.usual_misfit > 3 > found.misfit  # products of covariates do not show it here
    assert gain.verdict == "not estimable"
    assert "what is usual here fared better than the model says" in gain.reason


def test_usual_care_is_as_the_model_says_where_the_model_holds(linear):
    world, _, fit, _, _ = linear
    misfits = [patients_of(world, 300, 100 + seed)[2]._evaluation(fit.policy).richer.usual_misfit for seed in range(30)]
    assert sum(misfit > 1.645 for misfit in misfits) <= 5  # 1.5 of 30 are expected; 6 and more have a chance of 0.3%


def test_where_the_model_holds_it_is_not_rejected(linear):
    _, _, _, _, patients = linear
    assert patients._evaluation(Constant(1)).richer.misfit < 1.645


def test_what_nobody_does_has_no_number():
    study = make_study()
    rows = make_sites(study, {"a": 200})["a"]
    usual = tuple(np.full((3, 200), 1 / 3) for _ in range(3))
    from fdtr.evaluation import known_propensities

    rare = tuple(np.stack([0.002 * p[0], (p[1] + 0.998 * p[0]), p[2]]) for p in usual)
    patients = Evaluator(rows, study.feature_map, np.arange(200) % 4, propensities=known_propensities(rare))
    found = patients.assess(Constant(0))
    assert found.verdict == "not estimable"
    assert np.isnan(found.value)
    assert "practically never" in found.reason


def test_no_value_lies_outside_its_range_or_its_interval(linear):
    _, study, fit, verified, patients = linear
    for target in (fit.policy, verified, Behaviour(), Constant(0), Constant(1)):
        for method in ("pdis", "wis", "fqe", "dr", "wdr"):
            estimate = patients.value(target, method)
            assert 0 <= estimate.low <= estimate.value <= estimate.high <= study.horizon
        found = patients.assess(target)
        assert np.isnan(found.value) or 0 <= found.low <= found.value <= found.high <= study.horizon


def test_the_mean_of_one_site_has_the_sites_own_interval(linear):
    """Whoever pools knows how many patients a site has, and not how many clusters or degrees of freedom."""
    _, study, fit, verified, patients = linear
    clustered = Evaluator(patients.rows, study.feature_map, np.arange(1000) % 5, clusters=np.arange(1000) % 40)
    for target, over in ((verified, Behaviour()), (fit.policy, None), (Behaviour(), None)):
        found = clustered.assess(target, over)
        value = SiteValue("a", found.value, found.standard_error, n=1000, tolerance=found.tolerance)
        pooled = pool([value], (-3.0, 3.0)).plain
        assert (pooled.low, pooled.high) == pytest.approx((found.low, found.high), rel=1e-9)


def test_a_reason_comes_with_its_few_words(linear):
    """The first screen shows the few words alone."""
    _, study, fit, verified, patients = linear
    nobody = replace(verified, threshold=np.inf)
    rare = replace(verified, threshold=np.quantile(verified.contrast(patients.data.arrays.states[0], 0).worth, 0.999))
    targets = [fit.policy, verified, nobody, rare, Behaviour(), *map(Constant, range(len(study.actions.levels)))]
    found = [patients.assess(target, over) for target in targets for over in (None, Behaviour()) if target != over]
    for each in found:
        assert bool(each.reason) == bool(each.brief) == (each.verdict != Evidence.VERIFIED)
        assert len(each.brief.split()) <= 12
        assert not any(character.isdigit() for character in each.brief)
    assert patients.assess(nobody, Behaviour()).brief == "nobody could be advised"
    assert {each.verdict for each in found} >= {Evidence.VERIFIED, Evidence.NONE}


def test_gains_in_groups_are_those_of_their_patients(linear):
    _, _, _, verified, patients = linear
    first = patients.data.arrays.states[0][0]
    half = first < np.median(first)
    groups = [Group("x", "low", half), Group("x", "high", ~half), Group("x", "few", np.arange(1000) < 40)]
    low, high, few = patients.gains_in(groups, verified, Behaviour(), min_patients=50)
    assert low.n + high.n == 1000
    part, usual = patients._evaluation(verified), patients._evaluation(Behaviour())
    weights, arrays = part.weights, part.data.arrays
    values = [(c * table).sum(axis=0) for c, table in zip(part.chances, part.q, strict=True)]
    total = values[0][half].mean() - usual.data.arrays.rewards.sum(axis=0)[half].mean()
    for h in range(3):
        error = arrays.rewards[h] + (values[h + 1] if h < 2 else 0.0) - part.q[h][arrays.actions[h], np.arange(1000)]
        reached = weights.reached[h] & half
        total += (error * ~weights.reached[h])[half].mean()
        total += reached.sum() / half.sum() * np.average(error[reached], weights=weights.ratios[h][reached])
    assert low.value == pytest.approx(total, rel=1e-9)
    assert low.low < low.value < low.high
    assert 0 <= low.p_value <= 1
    assert few.reason == "It has fewer than 50 patients."
    assert np.isnan([few.value, few.p_value]).all()


def test_the_same_weights_as_without_abstaining_where_nobody_abstains(linear):
    _, study, fit, _, patients = linear
    evaluation = patients._evaluation(Deterministic(fit.policy.act, study.feature_map.levels))
    again = weigh(evaluation.data.arrays, evaluation.chances, evaluation.data.propensities.chances)
    np.testing.assert_array_equal(evaluation.weights.ratios, again.ratios)
    assert evaluation.weights.reached is None


def test_treating_all_alike_gives_no_gain():
    study = make_study()
    rows = make_sites(study, {"a": 150})["a"]
    patients = Evaluator(rows, study.feature_map, np.arange(150) % 5)
    same = Deterministic(lambda states, _step: np.full(len(states), study.actions.levels[1]), study.feature_map.levels)
    gain = patients.assess(Constant(1), same)
    assert (gain.verdict, gain.reason, gain.n_differing) == ("not estimable", "Both treat all patients alike.", 0)
    assert np.isnan([gain.value, gain.low, gain.high, gain.standard_error]).all()


def test_a_gain_of_one_policy_over_another_counts_the_patients_on_whom_they_differ():
    """Everybody but one in fifty is treated alike by both; in those clinicians rarely do what one of them asks for."""
    rng, n = np.random.default_rng(3), 1000
    x = rng.random(n)
    chance = np.where(x > 0.98, 0.05, 0.5)
    study = Study.model_validate(
        {"name": "x", "horizon": 1, "actions": {"levels": [0, 1]}, "covariates": [{"name": "x", "range": [0, 1]}]}
    )
    table = {"patient": np.arange(n), "step": np.zeros(n, int), "action": (rng.random(n) < chance).astype(int), "x": x}
    rows = read_trajectories(pa.table({**table, "reward": rng.random(n)}), study, site="a")
    known = known_propensities((np.vstack([1 - chance, chance]),))
    patients = Evaluator(rows, study.feature_map, np.arange(n) % 5, propensities=known)
    levels = np.array([0, 1])
    all_treated = Deterministic(lambda states, _step: np.ones(len(states), int), levels)
    spared = Deterministic(lambda states, _step: (np.asarray(states)[:, 0] <= 0.98).astype(int), levels)
    first, second = (patients._evaluation(target) for target in (all_treated, spared))
    rare = int((x > 0.98).sum())
    squares, fourths = (0.05 * (1 / 0.05) ** k + 0.95 * (1 / 0.95) ** k for k in (2, 4))  # of d = 1/b or −1/(1 − b)
    assert first.patients_behind(second) == pytest.approx(rare * squares**2 / fourths, rel=1e-9)
    assert first.patients_behind(second) < 2 < 400 < second.patients_behind()
    gain = patients.assess(all_treated, spared)
    assert (gain.verdict, gain.n_differing, gain.n_unchanged) == ("model-based", rare, n - rare)
    assert "patients who might have been treated so; 2 are the least" in gain.reason
    difference = first.difference(second, "wdr")
    assert difference.degrees_of_freedom == pytest.approx(2 * rare * squares**2 / fourths, rel=1e-9)


def test_no_model_is_believed_where_part_of_the_state_is_unseen():
    world = make_discrete_world(DiscreteSpec(n_sites=1, habit=True, unseen=("lactate",)), np.random.default_rng(21))
    study, rows, patients = patients_of(world, 2000, 22)
    fit = fit_local(study, rows)
    assert patients.markov.clear
    value = patients.assess(fit.policy)
    assert (value.verdict, np.isnan(value.value)) == ("not estimable", True)
    assert value.reason.startswith("The previous step still helps to predict held-out outcomes")
    assert patients.assess(Behaviour()).verdict == "verified"
