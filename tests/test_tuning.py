"""Tuning: scores against refits on the dense rows, honest folds, and what "auto" changes."""

from dataclasses import replace

import numpy as np
import pytest

import paper_algorithms as paper
from fdtr import tuning
from fdtr.evaluation.fitted_q import fitted_q_values
from fdtr.learners import federated
from fdtr.learners.federated import Others
from fdtr.site import message_settings
from fdtr.site.fitting import fit_federated, fit_local
from fdtr.site.settings_choice import choose_alone
from fdtr.summary import combine
from fdtr.tuning import Candidate, Grid
from random_tables import make_sites, make_study

pytestmark = pytest.mark.quick
GRID = Grid(ridges=(0.01, 1.0), weights=(0.0, 0.3), shares=("value", "reward"))


@pytest.fixture(scope="module")
def study():
    return make_study(ends={"death": 0.0, "discharge": 1.0})


@pytest.fixture(scope="module")
def sites(study):
    return make_sites(study, {"a": 120, "b": 90, "c": 70}, ragged=True)


def others_of(study, sites, name):
    summaries = {site: fit_local(study, rows).summary for site, rows in sites.items()}
    rest = (combine(summaries.values()) - summaries[name]).sums
    return Others(rest.schur, rest.schur_moment, rest.schur_reward, float(rest.n[0]))


def test_every_candidate_stands_once():
    assert GRID.candidates == (
        Candidate(0.01, 0.0, "value"), Candidate(0.01, 0.3, "value"), Candidate(0.01, 0.3, "reward"),
        Candidate(1.0, 0.0, "value"), Candidate(1.0, 0.3, "value"), Candidate(1.0, 0.3, "reward"),
    )  # fmt: skip
    assert Grid(weights=(0.0,), shares=("reward",), ridges=(1.0,)).candidates == (Candidate(1.0, 0.0, "reward"),)
    assert min(Grid().ridges) <= 1e-5


def test_folds_follow_the_patient_and_the_seed():
    ids = [f"p{i}" for i in range(2000)]
    folds = tuning.assign_folds(ids, seed=0)
    assert set(folds) == set(range(5))
    assert np.bincount(folds).min() > 300
    np.testing.assert_array_equal(tuning.assign_folds(ids[::-1], seed=0), folds[::-1])
    assert (tuning.assign_folds(ids, seed=1) != folds).mean() > 0.5


def test_scores_are_those_of_refits_on_the_rows(study, sites):
    rows, features = sites["a"], study.feature_map
    d0, d = features.n_shared, features.n_features
    others = others_of(study, sites, "a")
    folds = tuning.assign_folds(rows.patients.to_pylist(), seed=0)
    scores = tuning.score(tuning.sum_folds(rows, features, folds), others, d0, features.main_effects, GRID)
    main = features.main_effects
    reference = paper.local(paper.dense(rows, features), 0.0, tuning.REFERENCE_RIDGE, 0.5)[0]
    error, contrast = np.zeros(scores.error.shape), np.zeros(scores.error.shape)
    for fold in range(5):
        train, test = (paper.dense(rows.select(mask), features) for mask in (folds != fold, folds == fold))
        for h in range(3):
            following = (reference.theta[h + 1], reference.precision[h + 1]) if h < 2 else None
            future = [paper.targets(part[h], 3, h, following, 0.0, 0.0, 1) - part[h].reward for part in (train, test)]
            y = test[h].reward + future[1]
            for place, candidate in enumerate(GRID.candidates):
                alone = train[h].phi.T @ train[h].phi + candidate.ridge * np.eye(d)
                together, by_value = alone.copy(), candidate.share == "value"
                together[:d0, :d0] += candidate.sharing * others.schur[h]
                right = train[h].phi.T @ (train[h].reward + future[0] * by_value)
                right[:d0] += candidate.sharing * (others.schur_moment if by_value else others.schur_reward)[h]
                theta = np.linalg.solve(together, right)
                if not by_value:
                    theta += np.linalg.solve(alone, train[h].phi.T @ future[0])
                error[place, fold] += np.sum((y - test[h].phi @ theta) ** 2)
                left = np.eye(len(y)) - test[h].phi[:, main] @ np.linalg.pinv(test[h].phi[:, main], rcond=1e-8)
                fitted = left @ test[h].phi[:, ~main] @ theta[~main]
                contrast[place, fold] += fitted @ fitted - 2 * fitted @ (left @ y)
    np.testing.assert_allclose(scores.error, error, rtol=1e-7)
    np.testing.assert_allclose(scores.contrast, contrast, rtol=1e-6, atol=1e-7)


def test_auto_takes_the_least_sum_of_both_criteria(study, sites):
    auto = make_study(ends=study.ends, learning={"ridge": "auto", "sharing": "auto", "share": "auto"})
    summaries = {name: fit_local(auto, rows).summary for name, rows in sites.items()}
    total = combine(summaries.values())
    fit = fit_federated(auto, sites["a"], total)
    others = others_of(auto, sites, "a")
    folds = tuning.assign_folds(sites["a"].patients.to_pylist(), seed=0)
    features = auto.feature_map
    sums = tuning.sum_folds(sites["a"], features, folds)
    scores = tuning.score(sums, others, features.n_shared, features.main_effects, Grid())
    assert fit.chosen == scores.candidates[(scores.error + scores.contrast).sum(axis=1).argmin()]
    assert tuning.least_error(scores) == scores.candidates[scores.error.sum(axis=1).argmin()]
    assert tuning.least_contrast(scores) == scores.candidates[scores.contrast.sum(axis=1).argmin()]
    fixed = make_study(ends=study.ends, learning=vars(fit.chosen))
    by_hand = fit_federated(fixed, sites["a"], combine(fit_local(fixed, rows).summary for rows in sites.values()))
    assert fit.policy.settings == by_hand.policy.settings
    # The messages differ: an auto study's come from λ = 0.01, whatever is chosen.
    assert message_settings(auto).ridge == 0.01
    assert fit_local(auto, sites["a"]).summary.digest == summaries["a"].digest


def test_what_the_study_fixes_is_not_tuned(study, sites):
    half = make_study(ends=study.ends, learning={"ridge": "auto", "sharing": 0.5, "share": "reward"})
    total = combine(fit_local(half, rows).summary for rows in sites.values())
    chosen = fit_federated(half, sites["a"], total).chosen
    assert (chosen.sharing, chosen.share) == (0.5, "reward")
    assert choose_alone(make_study(ends=study.ends), sites["a"]) == Candidate(0.1, 0.0, "value")


def test_useless_neighbours_are_ignored_and_alike_ones_are_used():
    """Rewards of the others follow the site's effects, or the opposite ones: w is chosen accordingly."""
    import pandas as pd

    from fdtr.site.rows import read_trajectories

    study = make_study(horizon=1, learning={"ridge": "auto", "sharing": "auto", "share": "auto"})
    weights = {}
    for alike in (True, False):
        rng = np.random.default_rng(0)
        frames = []
        for number, site in enumerate("abcd"):
            n = 80 if site == "a" else 2000
            frame = pd.DataFrame({name: rng.random(n) for name in ("u", "x", "v", "y")})
            frame = frame.assign(site=site, patient=range(n), step=0, action=rng.integers(0, 3, n))
            sign = 1 if alike or number == 0 else -1
            slope = sign * (0.5 * frame.u - 0.4 * frame.v * frame.action / 2)
            frame["reward"] = 0.5 + 0.5 * slope + rng.uniform(-0.05, 0.05, n)
            frames.append(frame.assign(u=2 * frame.u - 1))
        sites = read_trajectories(pd.concat(frames), study).by_site()
        total = combine(fit_local(study, rows).summary for rows in sites.values())
        weights[alike] = fit_federated(study, sites["a"], total).chosen.sharing
    assert weights[True] >= 0.03  # three times 2000 patients: even so they outweigh the site's own 80
    assert weights[False] <= 0.003


def test_pessimism_moves_only_on_clear_evidence():
    judged = [
        tuning.PessimismGain(0.0, 0.01, 0.02),
        tuning.PessimismGain(0.002, 0.03, 0.01),
        tuning.PessimismGain(0.005, 0.02, 0.001),
    ]
    assert tuning.choose_pessimism(judged) == 0.002
    assert tuning.choose_pessimism(judged[:1]) == tuning.USUAL_PESSIMISM
    assert tuning.choose_pessimism([]) == tuning.USUAL_PESSIMISM


def test_auto_pessimism_is_one_of_the_grid_and_is_told(study, sites):
    auto = make_study(ends=study.ends, learning={"pessimism": "auto"})
    total = combine(fit_local(auto, rows).summary for rows in sites.values())
    fit = fit_federated(auto, sites["a"], total)
    folds = tuning.assign_folds(sites["a"].patients.to_pylist(), 0)
    settings = message_settings(auto)
    assert settings.pessimism == tuning.USUAL_PESSIMISM  # messages are never tuned
    judged = tuning.judge_pessimism(
        sites["a"], auto.feature_map, folds, others_of(auto, sites, "a"), fit.chosen, settings
    )
    assert [other.pessimism for other in judged] == list(tuning.PESSIMISMS)
    assert all(other.standard_error > 0 for other in judged)
    assert fit.policy.settings["pessimism"] == tuning.choose_pessimism(judged)


def test_pessimism_is_judged_on_patients_the_policy_has_not_seen(study, sites):
    rows, features, others = sites["a"], study.feature_map, others_of(study, sites, "a")
    folds = tuning.assign_folds(rows.patients.to_pylist(), 3)
    candidate, at = Candidate(0.3, 0.5, "value"), message_settings(study)
    values = {}
    for c in (tuning.USUAL_PESSIMISM, *tuning.PESSIMISMS):
        values[c] = []
        for fold in range(tuning.N_FOLDS):
            settings = replace(at, pessimism=c, ridge=0.3)
            fit = federated.fit_federated(rows.select(folds != fold), features, settings, others, 0.5, "value")
            values[c].append(fitted_q_values(rows.select(folds == fold), features, [fit.bounds])[0])
    judged = tuning.judge_pessimism(rows, features, folds, others, candidate, at)
    for other in judged:
        gains = np.array(values[other.pessimism]) - values[tuning.USUAL_PESSIMISM]
        assert other.gain == pytest.approx(gains.mean(), rel=1e-6, abs=1e-10)
        assert other.standard_error == pytest.approx(gains.std(ddof=1) / np.sqrt(5), rel=1e-6, abs=1e-10)


def test_a_clear_gain_moves_pessimism_at_a_site_alone_and_together(study, sites, monkeypatch):
    auto = make_study(ends=study.ends, learning={"pessimism": "auto"})
    monkeypatch.setattr(tuning, "judge_pessimism", lambda *_: (tuning.PessimismGain(0.002, 0.3, 0.1),))
    total = combine(fit_local(auto, rows).summary for rows in sites.values())
    for fit in (fit_local(auto, sites["a"]), fit_federated(auto, sites["a"], total)):
        assert fit.policy.settings["pessimism"] == 0.002
        assert fit.policy.scale == pytest.approx(
            4 * fit_local(make_study(ends=study.ends, learning={"pessimism": 0.0005}), sites["a"]).policy.scale, rel=0.2
        )
