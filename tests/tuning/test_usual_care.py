"""Usual care, and the pessimism that follows from it."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from fdtr.algebra.pessimism import NoiseUnits
from fdtr.learners import federated, local
from fdtr.learners.backward import Settings
from fdtr.simulation import DiscreteSpec, WorldSpec, make_discrete_world, make_world
from fdtr.site import message_settings
from fdtr.site.fitting import fit_federated, fit_local, fit_message
from fdtr.site.rows import read_trajectories, tuning_folds
from fdtr.site.settings_choice import choose_alone, choose_together, reference, settings_for
from fdtr.study import Study
from fdtr.summary import combine
from fdtr.tuning import Candidate, Choice, OwnPenalty, UsualCare, ladder, usual_care
from random_tables import make_sites, make_study
from tuned_sites import AUTO, others_of, values_after

pytestmark = pytest.mark.quick


def weight_of_usual_care(fold, h, psi, chances, actions):
    return chances[np.arange(len(actions)), actions] - np.sum(chances**2, axis=1)


def statistic_by_hand(rows, features, folds, bounds, weigh=weight_of_usual_care, ridge=0.001):
    """The statistic from whole matrices, patient by patient."""
    terms = np.zeros(rows.n_patients)
    for h in range(rows.horizon):
        (chunk,) = rows.step(h).chunks(10**6)
        psi, n = features.psi(chunk.states).T, len(chunk.actions)
        basis = np.hstack([psi, psi**2])
        target = chunk.rewards + values_after(rows, features, h, bounds)
        for fold in np.unique(folds):
            held = folds[:n] == fold
            gram = basis[~held].T @ basis[~held]
            gram += ridge * np.diag(np.diag(gram))
            chances = basis @ np.linalg.solve(gram, basis[~held].T @ np.eye(features.n_actions)[chunk.actions[~held]])
            chances = np.maximum(chances, 0) / np.maximum(chances, 0).sum(axis=1, keepdims=True)
            rest = target - basis @ np.linalg.solve(gram, basis[~held].T @ target[~held])
            terms[:n][held] += (weigh(fold, h, psi, chances, chunk.actions) * rest)[held]
    units = np.array([*rows.units()])
    sums = np.array([terms[units == unit].sum() for unit in np.unique(units)])
    return sums.sum() / np.sqrt(np.sum(sums**2))


@pytest.mark.parametrize("ragged", [False, True])
def test_the_statistic_of_usual_care_is_its_formula(study, ragged):
    rows = make_sites(study, {"a": 300}, ragged=ragged)["a"]
    features, folds = study.feature_map, ladder.assign_folds(rows.patients.to_pylist(), 0)
    bounds = fit_message(study, rows).fit.bounds
    found = usual_care.judge_usual_care(rows, features, folds, bounds)
    assert found.statistic == pytest.approx(statistic_by_hand(rows, features, folds, bounds), rel=1e-9)


def test_the_statistic_of_usual_care_counts_clusters():
    study = make_study(columns={"cluster": "ward"})
    table = make_table_of_wards(study, 300)
    rows = read_trajectories(table, study)
    features, folds = study.feature_map, tuning_folds(study, rows)
    bounds = fit_message(study, rows).fit.bounds
    found = usual_care.judge_usual_care(rows, features, folds, bounds)
    assert found.statistic == pytest.approx(statistic_by_hand(rows, features, folds, bounds), rel=1e-9)


def make_table_of_wards(study, n):
    from random_tables import make_table

    table = make_table(make_study(), {"a": n})
    wards = [f"w{int(patient[1:]) % 30}" for patient in table["patient"].to_pylist()]
    return table.append_column("ward", pa.array(wards))


def test_one_fold_or_one_patient_says_nothing_of_usual_care(study, sites):
    rows, features = sites["a"], study.feature_map
    bounds = fit_message(study, rows).fit.bounds
    alone = rows.select(np.arange(rows.n_patients) == 0)
    for part in (rows, alone):
        one_fold = np.zeros(part.n_patients, dtype=np.intp)
        found = usual_care.judge_usual_care(part, features, one_fold, bounds)
        assert found.statistic is None
        assert "too few patients" in found.in_words("A")
        assert usual_care.compare_policies(part, features, one_fold, bounds, None) is None


@pytest.mark.parametrize("n", [4, 8, 12])
def test_empty_folds_of_small_sites_are_left_out(study, n, monkeypatch):
    monkeypatch.setattr(usual_care, "CRITICAL", -np.inf)  # so that policies are compared
    auto = make_study(ends=study.ends, learning=AUTO)
    for seed in range(5):
        rows = make_sites(auto, {"a": n}, seed=seed)["a"]
        assert fit_local(auto, rows).policy.settings["pessimism"] in ({"noise": 0.03}, {"noise": 0.1})


@pytest.mark.slow
def test_usual_care_that_is_better_is_found_and_only_then():
    """A rule of 5% where clinicians act at random or by habit; much more often where they know what is best."""
    judged: dict[str, list[bool]] = {"random": [], "habit": [], "skilled": []}
    for seed in range(40):
        rng = np.random.default_rng([7, seed])
        spec = WorldSpec(n_sites=1, n_shared=2, n_specific=2, n_actions=3, horizon=3)
        worlds = {
            "random": make_world(spec, rng),
            "habit": make_world(WorldSpec(**(vars(spec) | {"behaviour": "narrow"})), rng),
            "skilled": make_discrete_world(DiscreteSpec(n_sites=2), rng),
        }
        for name, world in worlds.items():
            study = Study.model_validate(world.study())
            rows = next(iter(read_trajectories(pa.table(world.table(400, rng)), study).by_site().values()))
            bounds = local.fit_local(rows, study.feature_map, message_settings(study)).bounds
            care = usual_care.judge_usual_care(rows, study.feature_map, tuning_folds(study, rows), bounds)
            judged[name].append(care.better)
    # 40 draws at 5%: more than seven would be seen once in two hundred times.
    assert sum(judged["random"]) <= 7
    assert sum(judged["habit"]) <= 7
    assert sum(judged["skilled"]) >= 30


def test_pessimism_follows_from_usual_care(study, sites, monkeypatch):
    auto = make_study(ends=study.ends, learning={"pessimism": "auto"})
    total = combine(fit_local(auto, rows).summary for rows in sites.values())
    scales = {}
    for statistic, bolder, noise in ((1.6, -3.0, 0.03), (1.7, 0.9, 0.1), (1.7, 1.1, 0.03)):
        monkeypatch.setattr(usual_care, "judge_usual_care", lambda *_, t=statistic: UsualCare(t))
        monkeypatch.setattr(usual_care, "compare_policies", lambda *_, t=bolder: t)
        fits = (fit_local(auto, sites["a"]), fit_federated(auto, sites["a"], total))
        assert [fit.policy.settings["pessimism"] for fit in fits] == [{"noise": noise}] * 2
        scales[noise] = fits[1].policy.scale[-1]  # the last step's Y is the reward, whatever the pessimism
    assert scales[0.1] == pytest.approx(scales[0.03] / 0.3)
    assert "stays closer to usual care" in UsualCare(1.7).in_words("A")
    choice = Choice(Candidate(0.01, 1.0, "value"), (), UsualCare(1.7))
    assert choice.reasons("A") == [choice.in_words("A"), UsualCare(1.7).in_words("A")]
    assert "does not stay closer to usual care: no clear sign" in UsualCare(1.6).in_words("A")
    assert (UsualCare(None).better, UsualCare(None).closer) == (False, False)
    assert "a bolder policy advises did better still" in UsualCare(1.7, bolder=1.1).in_words("A")
    assert (UsualCare(1.7, bolder=1.1).closer, UsualCare(1.7, bolder=0.9).closer) == (False, True)


def test_a_site_takes_its_own_penalty_where_uneven_sums_give_worse_advice(study, sites, monkeypatch):
    auto = make_study(ends=study.ends, learning=AUTO | {"sharing": 1.0, "share": "value"})
    rows, even = sites["a"], others_of(auto, sites, "a")
    uneven = replace(even, uneven=True)
    assert choose_together(auto, rows, even).own_penalty is None
    judged = choose_together(auto, rows, uneven)
    settings = settings_for(auto, judged)

    def fit(part):
        each = [replace(settings, own_penalty=own) for own in (False, True)]
        return [federated.fit_federated(part, auto.feature_map, one, uneven).bounds for one in each]

    bounds = reference(auto, rows, uneven, 1.0)
    t = usual_care.compare_policies(rows, auto.feature_map, tuning_folds(auto, rows), bounds, fit)
    assert judged.own_penalty == OwnPenalty(t)
    for statistic, taken in ((0.6, True), (0.4, False), (None, False)):
        monkeypatch.setattr(usual_care, "compare_policies", lambda *_, t=statistic: t)
        choice = choose_together(auto, rows, uneven)
        assert settings_for(auto, choice).own_penalty is taken
        assert choice.reasons("A")[-1] == OwnPenalty(statistic).in_words("A")
    for learning in (AUTO | {"share": "reward", "sharing": 1.0}, AUTO | {"sharing": 0.0}, AUTO | {"pessimism": 0.002}):
        other = make_study(ends=study.ends, learning=learning)
        assert choose_together(other, rows, uneven).own_penalty is None


@pytest.mark.parametrize("ragged", [False, True])
def test_two_policies_are_compared_where_they_differ(study, ragged):
    rows = make_sites(study, {"a": 300}, ragged=ragged)["a"]
    features, folds = study.feature_map, ladder.assign_folds(rows.patients.to_pylist(), 0)
    bounds = fit_message(study, rows).fit.bounds
    settings = Settings(0.0, 0.01, 0.99, 0.0)

    def fit(part):
        return [
            local.fit_local(part, features, replace(settings, pessimism=NoiseUnits(noise))).bounds
            for noise in (1.0, 0.0)
        ]

    def weigh(fold, h, psi, chances, actions):
        first, second = (b[h].bounds(np.ascontiguousarray(psi.T)).argmax(axis=0) for b in fits[fold])
        weights = np.zeros(len(actions))
        for i in np.flatnonzero(first != second):
            got_first, got_second = actions[i] == first[i], actions[i] == second[i]
            weights[i] = got_second * chances[i, first[i]] - got_first * chances[i, second[i]]
        return weights

    fits = [fit(rows.select(folds != fold)) for fold in range(5)]
    t = usual_care.compare_policies(rows, features, folds, bounds, fit)
    assert t == pytest.approx(statistic_by_hand(rows, features, folds, bounds, weigh), rel=1e-9)
    assert usual_care.compare_policies(rows, features, folds, bounds, lambda part: fit(part)[::-1]) == pytest.approx(-t)
    assert usual_care.compare_policies(rows, features, folds, bounds, lambda part: [fit(part)[0]] * 2) is None


def test_a_habit_is_left_where_patients_fared_better_without_it():
    """Usual care is better than chance, and another treatment better still: the larger pessimism would not give it."""
    rng, n = np.random.default_rng(5), 3000
    action, ward = rng.choice(3, n, p=[0.8, 0.1, 0.1]), rng.integers(0, 10, n)
    reward = np.clip(0.5 + 0.15 * (np.array([0.0, -1.0, 0.3])[action] + rng.standard_normal(n)), 0, 1)
    table = {"patient": np.arange(n), "step": np.zeros(n, int), "action": action, "ward": ward, "reward": reward}
    content = {
        "name": "habit",
        "horizon": 1,
        "actions": {"levels": [0, 1, 2], "basis": "categorical"},
        "covariates": [{"name": "ward", "basis": {"kind": "categorical", "levels": list(range(10))}}],
    }
    acts = {}
    for pessimism in ("auto", {"noise": 0.1}):
        study = Study.model_validate({**content, "learning": {"pessimism": pessimism}})
        rows = read_trajectories(pa.table(table), study, site="a")
        acts[str(pessimism)] = fit_local(study, rows).policy.act(np.arange(10.0)[:, None], step=0)
        if pessimism == "auto":
            care = choose_alone(study, rows, fit_message(study, rows).fit).usual_care
    assert care.statistic > 4
    assert care.bolder > 2
    assert np.mean(acts["auto"] == 2) > 0.5
    assert np.mean(acts["{'noise': 0.1}"] == 0) > 0.5


@pytest.mark.parametrize("sharing", [0.0, 1.0])
@pytest.mark.parametrize("share", ["value", "reward"])
def test_usual_care_is_judged_with_the_values_of_the_way_to_share(study, sites, sharing, share):
    auto = make_study(ends=study.ends, learning={"pessimism": "auto", "sharing": sharing, "share": share})
    others, rows = others_of(auto, sites, "a"), sites["a"]
    bounds = reference(auto, rows, others, 1.0 if (sharing, share) == (1.0, "value") else 0.0)
    expected = usual_care.judge_usual_care(rows, auto.feature_map, tuning_folds(auto, rows), bounds)
    assert choose_together(auto, rows, others).usual_care.statistic == expected.statistic


@pytest.mark.parametrize("shape", ["straight", "bad at both ends"])
def test_usual_care_without_effect_is_not_found_better(shape):
    """A vital that drives both treatment and outcome; the treatment does nothing."""
    study = Study.model_validate(
        {"name": "none", "horizon": 1, "actions": {"levels": [0, 1], "degree": 1}, "covariates": [{"name": "x"}]}
    )
    better = []
    for seed in range(30):
        rng, n = np.random.default_rng([8, seed]), 800
        x = rng.random(n)
        u = x if shape == "straight" else 4 * (x - 0.5) ** 2
        action = (rng.random(n) < 0.45 + 0.5 * u).astype(int)
        reward = np.clip(0.3 + 0.4 * u + 0.1 * rng.standard_normal(n), 0, 1)
        table = {"patient": np.arange(n), "step": np.zeros(n, int), "action": action, "reward": reward, "x": x}
        rows = read_trajectories(pa.table(table), study, site="a")
        better.append(choose_alone(study, rows, fit_message(study, rows).fit).usual_care.better)
    assert sum(better) <= 6  # 30 draws at 5%: more would be seen once in three hundred times


def test_nothing_is_said_of_usual_care_where_all_are_treated_or_fare_alike():
    world = make_world(WorldSpec(n_sites=1, n_shared=2, n_specific=2, n_actions=2, horizon=2), np.random.default_rng(0))
    auto = Study.model_validate(world.study())
    table = world.table(100, np.random.default_rng(1))
    alike = read_trajectories(pa.table(table | {"action": np.zeros_like(table["action"])}), auto)
    care = choose_alone(auto, alike, fit_message(auto, alike).fit).usual_care
    assert care.statistic is None
    assert "all were treated, or fared, alike" in care.in_words("A")
    equal = read_trajectories(pa.table(table | {"reward": np.zeros_like(table["reward"])}), auto)
    assert choose_alone(auto, equal, fit_message(auto, equal).fit).usual_care.statistic is None
