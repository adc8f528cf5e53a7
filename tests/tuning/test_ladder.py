"""The ladder: scores against refits on the dense rows, honest folds, what is taken, and what "auto" changes."""

import hashlib
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

import paper_algorithms as paper
from fdtr.learners import federated, local
from fdtr.learners.backward import Settings
from fdtr.simulation import DiscreteSpec, make_discrete_world
from fdtr.site import message_settings, score_together
from fdtr.site.fitting import fit_federated, fit_local, fit_message
from fdtr.site.rows import read_trajectories, tuning_folds
from fdtr.site.settings_choice import choose_alone, choose_together, no_others
from fdtr.study import Study
from fdtr.summary import combine
from fdtr.tuning import Candidate, Choice, Rung, Scores, candidates_of, choose, ladder, usual_care
from fdtr.tuning.ladder import LADDER, RIDGES
from random_tables import make_study
from tuned_sites import AUTO, others_of, values_after

pytestmark = pytest.mark.quick
SETTINGS = Settings(0.0005, 0.02, 0.99, 0.0)
CANDIDATES = tuple(
    Candidate(ridge, w, share)
    for ridge in (0.01, 1.0)
    for w, share in ((0.0, "value"), (0.3, "value"), (0.3, "reward"))
)


def test_the_ladder_goes_from_the_paper_to_nothing_and_a_study_restricts_it():
    rungs = [
        (1.0, "value"),
        (0.3, "value"),
        (0.1, "value"),
        (1.0, "reward"),
        (0.3, "reward"),
        (0.1, "reward"),
        (0.0, "value"),
    ]
    assert candidates_of() == tuple(Candidate(r, w, share) for w, share in rungs for r in (0.001, 0.003, 0.01))
    assert [(c.sharing, c.share) for c in candidates_of(ridge=1.0)] == rungs
    assert candidates_of(ridge=1.0, sharing=0.5) == (Candidate(1.0, 0.5, "value"), Candidate(1.0, 0.5, "reward"))
    assert candidates_of(ridge=1.0, sharing=0.0) == (Candidate(1.0, 0.0, "value"),)
    assert candidates_of(ridge=1.0, sharing=0.0, share="reward") == (Candidate(1.0, 0.0, "reward"),)
    assert {c.share for c in candidates_of(share="reward")} == {"reward"}
    assert len(candidates_of(sharing=0.0)) == len(RIDGES)


def test_a_site_with_few_patients_does_not_share_rewards_alone_unless_the_study_says_so():
    rungs = [(w, "value") for w in (1.0, 0.3, 0.1, 0.0)]
    assert [(c.sharing, c.share) for c in candidates_of(ridge=1.0, few=True)] == rungs
    assert candidates_of(ridge=1.0, sharing=0.5, few=True) == (Candidate(1.0, 0.5, "value"),)
    for fixed in ({"sharing": 0.0}, {"share": "reward"}, {"share": "reward", "sharing": 0.5}):
        assert candidates_of(few=True, **fixed) == candidates_of(**fixed)


def test_more_is_tolerated_the_fewer_patients_there_are_for_the_features():
    assert [ladder.tolerance_for(n, 100) for n in (10**6, 200)] == [0.5, 0.5]
    assert ladder.tolerance_for(100, 100) == pytest.approx(0.5 * 2**1.5)
    assert ladder.tolerance_for(50, 100) == pytest.approx(4.0)
    assert ladder.tolerance_for(0, 100) > 100
    assert [ladder.has_few(n, 100) for n in (199, 200)] == [True, False]


def test_folds_follow_the_patient_and_the_seed():
    ids = [f"p{i}" for i in range(2000)]
    folds = ladder.assign_folds(ids, seed=0)
    assert set(folds) == set(range(5))
    assert np.bincount(folds).min() > 300
    np.testing.assert_array_equal(ladder.assign_folds(ids[::-1], seed=0), folds[::-1])
    assert (ladder.assign_folds(ids, seed=1) != folds).mean() > 0.5


@given(
    st.lists(st.text(st.characters(codec="utf-8"), max_size=5), max_size=12),
    st.integers(0, 2**64 - 1),
    st.integers(1, 300),
    st.binary(max_size=16),
)
def test_a_fold_is_the_hash_of_one_unit(units, seed, n_folds, purpose):
    """As it was computed one by one before; the numbers take few bytes, however many units are taken at once."""
    hashes = [
        hashlib.blake2b(one.encode(), digest_size=8, key=seed.to_bytes(8, "little"), person=purpose) for one in units
    ]
    with patch.object(ladder, "_UNITS_AT_ONCE", 5):
        folds = ladder.assign_folds(iter(units), seed, n_folds, purpose)
    assert folds.tolist() == [int.from_bytes(one.digest(), "little") % n_folds for one in hashes]
    assert folds.itemsize == (1 if n_folds <= 256 else 2)


def test_sums_of_many_folds_do_not_depend_on_how_folds_are_stored(study, sites):
    rows, features = sites["a"], study.feature_map
    folds = ladder.assign_folds(rows.units(), seed=0, n_folds=200)
    references = [[*federated.fit_federated(rows, features, SETTINGS, others_of(study, sites, "a"), 0.0).bounds]]
    narrow, wide = (ladder.sum_folds(rows, features, each, references) for each in (folds, folds.astype(np.int64)))
    assert folds.dtype == np.uint8
    assert len(narrow.gram) > 256 // features.n_actions
    np.testing.assert_array_equal(narrow.gram, wide.gram)
    np.testing.assert_array_equal(narrow.value_moment, wide.value_moment)


def test_scores_are_those_of_refits_on_the_rows(study, sites):
    rows, features = sites["a"], study.feature_map
    d0, d = features.n_shared, features.n_features
    others = others_of(study, sites, "a")
    folds = ladder.assign_folds(rows.patients.to_pylist(), seed=0)
    settings = SETTINGS
    references = [federated.fit_federated(rows, features, settings, others, w).bounds for w in (0.0, 1.0)]
    sums = ladder.sum_folds(rows, features, folds, references)
    scores = ladder.score(sums, others, d0, features.main_effects, CANDIDATES)
    main = features.main_effects
    error, contrast = np.zeros(scores.error.shape), np.zeros(scores.error.shape)
    for bounds in references:
        for fold in range(5):
            train, test = (paper.dense(rows.select(mask), features) for mask in (folds != fold, folds == fold))
            for h in range(3):
                future = [
                    values_after(part, features, h, bounds)
                    for part in (rows.select(folds != fold), rows.select(folds == fold))
                ]
                y = test[h].reward + future[1]
                for place, candidate in enumerate(CANDIDATES):
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


def test_all_of_tuning_runs_with_one_blas_thread(sites, monkeypatch):
    """More would compete with each other on a busy machine, and sums would depend on their number."""
    auto = make_study(ends={"death": 0.0, "discharge": 1.0}, learning=AUTO)
    others, seen = others_of(auto, sites, "a"), {}

    def watch(room, name):
        real = getattr(room, name)

        def watched(*args):
            pools = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
            seen.setdefault(name, []).extend(pools)
            return real(*args)

        monkeypatch.setattr(room, name, watched)

    for name in ("accumulate_folds", "_solve_step", "_without_main"):
        watch(ladder, name)
    watch(usual_care, "_models_of_care")
    with threadpool_limits(limits=2, user_api="blas"):
        choose_together(auto, sites["a"], others)
    assert len(seen) == 4
    assert {count for counts in seen.values() for count in counts} == {1}


def made_up(sums, spread, n_folds=5):
    """Scores of one candidate a rung: what each adds up to, beside fold noise of this spread about the best."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(len(sums), n_folds))
    noise -= noise.mean(axis=1, keepdims=True)
    noise /= np.maximum(noise.std(axis=1, ddof=1, keepdims=True), 1e-12)
    error = np.array(sums)[:, None] / n_folds + np.array(spread)[:, None] * noise
    candidates = tuple(Candidate(0.01, w, share) for w, share in LADDER[: len(sums)])
    return Scores(candidates, error, np.zeros_like(error))


def test_the_first_rung_that_folds_do_not_reject_is_taken():
    root = np.sqrt(5) / 2
    # The last rung is best, without any spread: Σ D_f and sd(D_f) of the others are those given.
    for excess, spread, taken in (
        ([0.9 * root, 0.0, 0.0], [1.0, 1.0, 0.0], 0),
        ([1.1 * root, 0.9 * root, 0.0], [1.0, 1.0, 0.0], 1),
        ([1.1 * root, 1.1 * root, 0.0], [1.0, 1.0, 0.0], 2),
        ([0.0, -0.5, -1.0], [0.0, 0.0, 0.0], 2),
    ):
        choice = choose(made_up(excess, spread))
        assert choice.candidate == choice.rungs[taken].candidate
        assert [rung.rejected for rung in choice.rungs[: taken + 1]] == [True] * taken + [False]
    rungs = choose(made_up([1.1 * root, 0.9 * root, 0.0], [1.0, 2.0, 0.0])).rungs
    assert [rung.excess for rung in rungs] == pytest.approx([1.1 * root, 0.9 * root, 0.0])
    assert [rung.tolerance for rung in rungs] == pytest.approx([root, 2 * root, 0.0])


def test_a_larger_tolerance_rejects_on_clearer_evidence():
    root = np.sqrt(5)
    for excess, taken in ((2.9 * root, 0), (3.1 * root, 1)):
        scores = made_up([excess, 0.0], [1.0, 0.0])
        choice = choose(scores, 3.0, few=True)
        assert choice.candidate == choice.rungs[taken].candidate
        assert choice.rungs[0].tolerance == pytest.approx(3 * root)
        assert choice.few
        assert choose(scores).candidate == choice.rungs[1].candidate


def test_each_rung_takes_its_own_ridge_and_the_best_of_all_is_the_measure():
    candidates = candidates_of(share="value")
    sums = np.arange(len(candidates), dtype=float)[::-1] * 10  # better down the ladder, and with more ridge
    scores = Scores(
        candidates, np.repeat(sums[:, None], 5, axis=1) / 10, np.repeat(sums[:, None], 5, axis=1) * 0.9 / 10
    )
    choice = choose(scores)
    assert all(rung.candidate.ridge == 0.01 for rung in choice.rungs)
    assert choice.candidate == Candidate(0.01, 0.0, "value")
    assert choice.rungs[0].excess == pytest.approx(5 * 1.9 * (sums[2] - sums[-1]) / 10)
    assert choose(Scores(candidates, scores.error + 1, scores.contrast)).error == pytest.approx(5)


def test_fewer_than_three_folds_reject_nothing():
    assert choose(made_up([99.0, 0.0], [0.0, 0.0], n_folds=2)).candidate.sharing == 1.0
    assert choose(made_up([99.0, 0.0], [0.0, 0.0], n_folds=3)).candidate.sharing == 0.3


def test_a_choice_is_told_in_words():
    full, some, alone = (Rung(Candidate(0.01, w, "value"), 0.0, 0.1) for w in (1.0, 0.3, 0.0))
    reward = Rung(Candidate(0.01, 1.0, "reward"), 0.0, 0.1)
    rungs = (full, some, reward, alone)
    assert Choice(full.candidate, rungs).in_words("A") == "A shares fully: its held-out patients do not contradict it."
    words = {rung.candidate: Choice(rung.candidate, rungs).in_words("A") for rung in rungs[1:]}
    against = "its held-out patients speak against sharing"
    assert words[some.candidate] == f"A shares with weight 0.3: {against} more."
    assert words[reward.candidate] == f"A shares effects on rewards alone: {against} more."
    assert words[alone.candidate] == f"A stays alone: {against}."
    assert "there was no other way to choose" in Choice(full.candidate, (full,)).in_words("A")
    assert "the other sites' sums say nothing yet" in Choice(alone.candidate, (alone,)).in_words("A")
    few = {rung.candidate: Choice(rung.candidate, rungs[:2], few=True).in_words("A") for rung in rungs[:2]}
    patients = "its held-out patients, few for so many features,"
    assert few[full.candidate] == f"A shares fully: {patients} do not contradict it."
    assert few[some.candidate] == f"A shares with weight 0.3: {patients} speak against sharing more."
    unsure = (Rung(full.candidate, 0.1, np.inf), Rung(alone.candidate, 0.0, np.inf))
    assert (
        Choice(full.candidate, unsure).in_words("A")
        == "A shares fully: it has too few patients, or clusters, to say more."
    )


def test_errors_are_shares_of_the_best_ways_unless_there_is_none():
    choice = choose(made_up([2.0, 1.0], [0.0, 0.0]))
    assert [choice.relative(rung.excess) for rung in choice.rungs] == pytest.approx([1.0, 0.0])
    assert np.isnan(choose(made_up([0.0, 0.0], [0.0, 0.0])).relative(0.0))


def test_auto_is_the_ladder_on_targets_of_the_site_alone_and_of_the_paper(study, sites):
    auto = make_study(ends=study.ends, learning=AUTO)
    summaries = {name: fit_local(auto, rows).summary for name, rows in sites.items()}
    total = combine(summaries.values())
    fit = fit_federated(auto, sites["a"], total)
    others, rows, features = others_of(auto, sites, "a"), sites["a"], auto.feature_map
    assert message_settings(auto) == Settings(0.0005, 0.01, 0.99, 0.0)
    usual = Settings(0.0005, 0.01, 0.99, 0.0)
    papers = federated.fit_federated(rows, features, usual, others, 1.0, "value").bounds
    own = local.fit_local(rows, features, usual).bounds
    sums = ladder.sum_folds(rows, features, tuning_folds(auto, rows), [own, papers])
    scores = ladder.score(sums, others, features.n_shared, features.main_effects, candidates_of())
    assert fit.choice.rungs == choose(scores).rungs
    assert fit.chosen == choose(scores).candidate
    alone = ladder.sum_folds(rows, features, tuning_folds(auto, rows), [fit_message(auto, rows).fit.bounds])
    scores = ladder.score(alone, no_others(auto), features.n_shared, features.main_effects, candidates_of(sharing=0.0))
    assert fit_local(auto, rows).chosen == choose(scores).candidate
    fixed = make_study(ends=study.ends, learning=vars(fit.chosen) | {"pessimism": fit.policy.settings["pessimism"]})
    by_hand = fit_federated(fixed, sites["a"], combine(fit_local(fixed, rows).summary for rows in sites.values()))
    assert fit.policy.settings == by_hand.policy.settings
    # The messages differ: an auto study's come from λ = 0.01 and c = 0.0005, whatever is chosen.
    assert fit_local(auto, sites["a"]).summary.digest == summaries["a"].digest


def test_noise_units_and_auto_never_enter_a_message(study, sites):
    learning = [{"pessimism": p, "ridge": "auto"} for p in (0.0005, "auto", {"noise": 0.03}, {"noise": 2.0})]
    sums = [fit_local(make_study(ends=study.ends, learning=own), sites["a"]).summary.sums for own in learning]
    for other in sums[1:]:
        for name in ("schur", "schur_moment", "schur_reward"):
            np.testing.assert_array_equal(getattr(other, name), getattr(sums[0], name))
    fixed = fit_local(
        make_study(ends=study.ends, learning={"pessimism": 0.5, "ridge": "auto"}), sites["a"]
    ).summary.sums
    assert np.abs(fixed.schur_moment - sums[0].schur_moment).max() > 1e-3


def test_what_the_study_fixes_is_not_tuned(study, sites):
    half = make_study(ends=study.ends, learning={"ridge": "auto", "sharing": 0.5, "share": "reward"})
    total = combine(fit_local(half, rows).summary for rows in sites.values())
    fit = fit_federated(half, sites["a"], total)
    assert (fit.chosen.sharing, fit.chosen.share) == (0.5, "reward")
    assert fit.choice.usual_care is None
    plain = make_study(ends=study.ends)
    message = fit_message(plain, sites["a"]).fit
    assert choose_alone(plain, sites["a"], message) == Choice(Candidate(0.1, 0.0, "value"), ())
    only_care = make_study(ends=study.ends, learning={"pessimism": "auto"})
    choice = choose_together(only_care, sites["a"], others_of(only_care, sites, "a"))
    assert (choice.candidate, choice.rungs) == (Candidate(0.1, 1.0, "value"), ())
    assert choice.usual_care is not None


def test_a_weight_that_the_study_fixes_stands_even_if_the_others_have_nothing(study, sites):
    nothing = no_others(study)
    for learning, weight in (({}, 1.0), ({"sharing": 0.4}, 0.4), ({"sharing": "auto"}, 0.0)):
        own = make_study(ends=study.ends, learning=learning)
        assert choose_together(own, sites["a"], nothing).candidate.sharing == weight


def test_other_targets_may_be_given_for_the_scores(study, sites):
    auto = make_study(ends=study.ends, learning=AUTO)
    others, rows, features = others_of(auto, sites, "a"), sites["a"], auto.feature_map
    bounds = [local.fit_local(rows, features, Settings(0.0, 1.0, 0.99, 0.0)).bounds]
    found = score_together(auto, rows, others, CANDIDATES, bounds)
    sums = ladder.sum_folds(rows, features, tuning_folds(auto, rows), bounds)
    expected = ladder.score(sums, others, features.n_shared, features.main_effects, CANDIDATES)
    np.testing.assert_array_equal(found.error, expected.error)
    assert not np.allclose(found.error, score_together(auto, rows, others, CANDIDATES).error)


def test_without_others_a_site_stays_alone(study, sites):
    auto = make_study(ends=study.ends, learning=AUTO)
    summary = fit_local(auto, sites["a"]).summary
    fit = fit_federated(auto, sites["a"], combine([summary]), summary)
    assert fit.chosen.sharing == 0.0
    assert fit.chosen == fit_local(auto, sites["a"]).chosen


def test_useless_neighbours_are_ignored_and_alike_ones_are_used():
    """Rewards of the others follow the site's effects, or the opposite ones: w is chosen accordingly."""
    import pandas as pd

    study = make_study(horizon=1, learning=AUTO)
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
    assert weights == {True: 1.0, False: 0.0}


def test_few_patients_are_judged_with_the_targets_of_the_paper_alone(study, sites):
    auto = make_study(ends=study.ends, learning=AUTO)
    features = auto.feature_map
    rows = sites["c"].select(np.arange(sites["c"].n_patients) < 25)
    others = others_of(auto, {**sites, "c": rows}, "c")
    papers = federated.fit_federated(rows, features, message_settings(auto), others).bounds
    sums = ladder.sum_folds(rows, features, tuning_folds(auto, rows), [papers])
    scores = ladder.score(sums, others, features.n_shared, features.main_effects, candidates_of(few=True))
    choice = choose_together(auto, rows, others)
    assert choice.few
    assert choice.rungs == choose(scores, ladder.tolerance_for(25, features.n_features)).rungs
    np.testing.assert_array_equal(score_together(auto, rows, others).error, scores.error)


def test_without_sharing_fdtr_is_ldtr_pessimism_included():
    """The other sites' sums must not decide how usual care is judged where nothing is shared."""
    for seed in range(3):
        rng = np.random.default_rng([3, seed])
        world = make_discrete_world(DiscreteSpec(n_sites=4), rng)
        study = Study.model_validate(world.study(sharing=0.0))
        sites = read_trajectories(pa.table(world.table(200, rng)), study).by_site()
        total = combine(fit_local(study, rows).summary for rows in sites.values())
        for rows in sites.values():
            alone, together = fit_local(study, rows), fit_federated(study, rows, total)
            assert together.chosen == alone.chosen
            assert together.policy.settings["pessimism"] == alone.policy.settings["pessimism"]
            np.testing.assert_array_equal(together.theta, alone.theta)


def test_a_small_hospital_learns_from_large_ones():
    """50 patients for 88 features. Sharing rewards alone, or nothing, would leave it worse off than its clinicians."""
    gains = []
    for seed in range(4):
        rng = np.random.default_rng([11, seed])
        world = make_discrete_world(DiscreteSpec(n_sites=3), rng)
        study = Study.model_validate(world.study())
        sites = read_trajectories(pa.table(world.table((50, 1500, 1500), rng)), study).by_site()
        total = combine(fit_local(study, rows).summary for rows in sites.values())
        fit = fit_federated(study, sites["site-1"], total)
        behaviour, optimum = world.value(0, None).mean, world.optimal(0).value
        gains.append((world.value(0, fit.policy.act).mean - behaviour) / (optimum - behaviour))
    assert np.mean(gains) > 0.5


def test_a_small_hospital_leaves_neighbours_whose_effects_are_opposite():
    """80 patients for 51 features, little noise, and three hospitals of 2,000 in which everything is the other way."""
    names = [f"s{i}" for i in range(8)], [f"x{i}" for i in range(8)]
    covariates = [{"name": name, "effect": "shared"} for name in names[0]] + [{"name": name} for name in names[1]]
    study = Study.model_validate(
        {"name": "opposite", "horizon": 1, "actions": {"levels": [0, 1, 2], "basis": "categorical"}}
        | {"covariates": covariates}
    )
    chosen = []
    for seed in range(4):
        rng = np.random.default_rng([12, seed])
        shared, own = rng.normal(size=(2, 3, 8))
        parts = []
        for site, n in enumerate((80, 2000, 2000, 2000)):
            states, action = rng.random((n, 16)), rng.integers(0, 3, n)
            sign = 1 if site == 0 else -1
            effect = np.einsum("nj,nj->n", states - 0.5, np.hstack([sign * shared, 0.3 * own])[action])
            reward = np.clip(0.5 + 0.05 * effect + 0.03 * rng.standard_normal(n), 0, 1)
            columns = {"site": np.full(n, f"h{site}"), "patient": np.arange(n), "step": np.zeros(n, int)}
            columns |= {"action": action, "reward": reward} | dict(zip(names[0] + names[1], states.T, strict=True))
            parts.append(pa.table(columns))
        sites = read_trajectories(pa.concat_tables(parts), study).by_site()
        total = combine(fit_local(study, rows).summary for rows in sites.values())
        choice = fit_federated(study, sites["h0"], total).choice
        assert choice.few
        chosen.append(choice.candidate.sharing)
    assert chosen == [0.0] * 4
