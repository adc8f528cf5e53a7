"""Tuning: scores against refits on the dense rows, honest folds, the ladder, usual care, and what "auto" changes."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import paper_algorithms as paper
from fdtr import tuning
from fdtr.algebra.pessimism import NoiseUnits
from fdtr.learners import federated, local
from fdtr.learners.backward import Settings
from fdtr.learners.federated import Others
from fdtr.simulation import DiscreteSpec, WorldSpec, make_discrete_world, make_world
from fdtr.site import message_settings, score_together
from fdtr.site.fitting import fit_federated, fit_local, fit_message
from fdtr.site.rows import read_trajectories, tuning_folds
from fdtr.site.settings_choice import choose_alone, choose_together, no_others, references
from fdtr.study import Study
from fdtr.summary import combine
from fdtr.tuning import LADDER, RIDGES, Candidate, Choice, Rung, Scores, UsualCare, candidates_of, choose
from random_tables import make_sites, make_study

pytestmark = pytest.mark.quick
CANDIDATES = tuple(
    Candidate(ridge, w, share)
    for ridge in (0.01, 1.0)
    for w, share in ((0.0, "value"), (0.3, "value"), (0.3, "reward"))
)
AUTO = {"pessimism": "auto", "ridge": "auto", "sharing": "auto", "share": "auto"}


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
    settings = Settings(0.0005, 0.02, 0.99, 0.0)
    references = [federated.fit_federated(rows, features, settings, others, w).bounds for w in (0.0, 1.0)]
    sums = tuning.sum_folds(rows, features, folds, references)
    scores = tuning.score(sums, others, d0, features.main_effects, CANDIDATES)
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

    def watch(name):
        real = getattr(tuning, name)

        def watched(*args):
            pools = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
            seen.setdefault(name, []).extend(pools)
            return real(*args)

        monkeypatch.setattr(tuning, name, watched)

    for name in ("accumulate_each", "_solve_step", "_without_main", "_models_of_care"):
        watch(name)
    with threadpool_limits(limits=2, user_api="blas"):
        choose_together(auto, sites["a"], others)
    assert len(seen) == 4
    assert {count for counts in seen.values() for count in counts} == {1}


def values_after(rows, features, h, bounds):
    """V_ref of what follows step h, for every row: of the next state, or the worth of an end."""
    future = np.zeros(rows.step(h).n)
    for chunk in rows.step(h).chunks():
        n_next = chunk.next_states.shape[1]
        future[n_next:] = chunk.ended_value
        for action in range(features.n_actions) if n_next and h + 1 < rows.horizon else ():
            bound = bounds[h + 1].bounds(features.psi(chunk.next_states))[action]
            future[:n_next] = np.maximum(future[:n_next], np.clip(bound, 0, rows.horizon - h - 1))
    return future


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


def test_fewer_than_three_folds_reject_nothing():
    assert choose(made_up([99.0, 0.0], [0.0, 0.0], n_folds=2)).candidate.sharing == 1.0
    assert choose(made_up([99.0, 0.0], [0.0, 0.0], n_folds=3)).candidate.sharing == 0.3


def test_a_choice_is_told_in_words():
    full, some, alone = (Rung(Candidate(0.01, w, "value"), 0.0, 0.1) for w in (1.0, 0.3, 0.0))
    reward = Rung(Candidate(0.01, 1.0, "reward"), 0.0, 0.1)
    rungs = (full, some, reward, alone)
    assert Choice(full.candidate, rungs).in_words("A") == "A shares fully: its held-out patients do not contradict it."
    words = {rung.candidate: Choice(rung.candidate, rungs).in_words("A") for rung in rungs[1:]}
    assert words[some.candidate] == "A shares with weight 0.3: its held-out patients do better with it than with more."
    assert words[reward.candidate] == (
        "A shares effects on rewards alone: its held-out patients do better with it than with more."
    )
    assert words[alone.candidate] == "A stays alone: its held-out patients do better without the others."
    assert "nothing about sharing was left open" in Choice(full.candidate, (full,)).in_words("A")
    assert "the other sites' sums say nothing yet" in Choice(alone.candidate, (alone,)).in_words("A")
    unsure = (Rung(full.candidate, 0.1, np.inf), Rung(alone.candidate, 0.0, np.inf))
    assert (
        Choice(full.candidate, unsure).in_words("A")
        == "A shares fully: it has too few patients, or clusters, to say more."
    )


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
    sums = tuning.sum_folds(rows, features, tuning_folds(auto, rows), [own, papers])
    scores = tuning.score(sums, others, features.n_shared, features.main_effects, candidates_of())
    assert fit.choice.rungs == choose(scores).rungs
    assert fit.chosen == choose(scores).candidate
    alone = tuning.sum_folds(rows, features, tuning_folds(auto, rows), [fit_message(auto, rows).fit.bounds])
    scores = tuning.score(alone, no_others(auto), features.n_shared, features.main_effects, candidates_of(sharing=0.0))
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
    sums = tuning.sum_folds(rows, features, tuning_folds(auto, rows), bounds)
    expected = tuning.score(sums, others, features.n_shared, features.main_effects, CANDIDATES)
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


# ── usual care, and the pessimism that follows from it ──


def weight_of_usual_care(fold, h, psi, chances, actions):
    return chances[np.arange(len(actions)), actions] - np.sum(chances**2, axis=1)


def statistic_by_hand(rows, features, folds, bounds, weigh=weight_of_usual_care, ridge=0.001):
    """The statistic from whole matrices, patient by patient."""
    terms = np.zeros(rows.n_patients)
    for h in range(rows.horizon):
        (chunk,) = rows.step(h).chunks(10**6)
        psi, n = features.psi(chunk.states).T, len(chunk.actions)
        target = chunk.rewards + values_after(rows, features, h, bounds)
        for fold in np.unique(folds):
            held = folds[:n] == fold
            gram = psi[~held].T @ psi[~held]
            gram += ridge * np.trace(gram) / len(gram) * np.eye(len(gram))
            chances = psi @ np.linalg.solve(gram, psi[~held].T @ np.eye(features.n_actions)[chunk.actions[~held]])
            chances = np.maximum(chances, 0) / np.maximum(chances, 0).sum(axis=1, keepdims=True)
            rest = target - psi @ np.linalg.solve(gram, psi[~held].T @ target[~held])
            terms[:n][held] += (weigh(fold, h, psi, chances, chunk.actions) * rest)[held]
    units = np.array(rows.units.to_pylist())
    sums = np.array([terms[units == unit].sum() for unit in np.unique(units)])
    return sums.sum() / np.sqrt(np.sum(sums**2))


@pytest.mark.parametrize("ragged", [False, True])
def test_the_statistic_of_usual_care_is_its_formula(study, ragged):
    rows = make_sites(study, {"a": 300}, ragged=ragged)["a"]
    features, folds = study.feature_map, tuning.assign_folds(rows.patients.to_pylist(), 0)
    bounds = fit_message(study, rows).fit.bounds
    found = tuning.judge_usual_care(rows, features, folds, bounds)
    assert found.statistic == pytest.approx(statistic_by_hand(rows, features, folds, bounds), rel=1e-9)


def test_the_statistic_of_usual_care_counts_clusters():
    study = make_study(columns={"cluster": "ward"})
    table = make_table_of_wards(study, 300)
    rows = read_trajectories(table, study)
    features, folds = study.feature_map, tuning_folds(study, rows)
    bounds = fit_message(study, rows).fit.bounds
    found = tuning.judge_usual_care(rows, features, folds, bounds)
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
        found = tuning.judge_usual_care(part, features, np.zeros(part.n_patients, dtype=np.intp), bounds)
        assert found.statistic == 0.0
        assert "too few patients" in found.in_words("A")
        assert tuning.compare_policies(part, features, np.zeros(part.n_patients, dtype=np.intp), bounds, None) == 0.0


@pytest.mark.parametrize("n", [4, 8, 12])
def test_empty_folds_of_small_sites_are_left_out(study, n, monkeypatch):
    monkeypatch.setattr(tuning, "CRITICAL", -np.inf)  # so that policies are compared
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
            care = tuning.judge_usual_care(rows, study.feature_map, tuning_folds(study, rows), bounds)
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
        monkeypatch.setattr(tuning, "judge_usual_care", lambda *_, t=statistic: UsualCare(t))
        monkeypatch.setattr(tuning, "compare_policies", lambda *_, t=bolder: t)
        fits = (fit_local(auto, sites["a"]), fit_federated(auto, sites["a"], total))
        assert [fit.policy.settings["pessimism"] for fit in fits] == [{"noise": noise}] * 2
        scales[noise] = fits[1].policy.scale[-1]  # the last step's Y is the reward, whatever the pessimism
    assert scales[0.1] == pytest.approx(scales[0.03] / 0.3)
    assert "stays closer to usual care" in UsualCare(1.7).in_words("A")
    choice = Choice(Candidate(0.01, 1.0, "value"), (), UsualCare(1.7))
    assert choice.reasons("A") == [choice.in_words("A"), UsualCare(1.7).in_words("A")]
    assert "may leave usual care: no clear sign" in UsualCare(1.6).in_words("A")
    assert "a bolder policy advises did better still" in UsualCare(1.7, bolder=1.1).in_words("A")
    assert (UsualCare(1.7, bolder=1.1).closer, UsualCare(1.7, bolder=0.9).closer) == (False, True)


@pytest.mark.parametrize("ragged", [False, True])
def test_two_policies_are_compared_where_they_differ(study, ragged):
    rows = make_sites(study, {"a": 300}, ragged=ragged)["a"]
    features, folds = study.feature_map, tuning.assign_folds(rows.patients.to_pylist(), 0)
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
    t = tuning.compare_policies(rows, features, folds, bounds, fit)
    assert t == pytest.approx(statistic_by_hand(rows, features, folds, bounds, weigh), rel=1e-9)
    assert tuning.compare_policies(rows, features, folds, bounds, lambda part: fit(part)[::-1]) == pytest.approx(-t)
    assert tuning.compare_policies(rows, features, folds, bounds, lambda part: [fit(part)[0]] * 2) == 0


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


def test_usual_care_is_judged_with_the_ladders_targets(study, sites):
    auto = make_study(ends=study.ends, learning=AUTO)
    others, rows = others_of(auto, sites, "a"), sites["a"]
    papers = references(auto, rows, others)[-1]
    expected = tuning.judge_usual_care(rows, auto.feature_map, tuning_folds(auto, rows), papers)
    assert choose_together(auto, rows, others).usual_care.statistic == expected.statistic


# ── noise units ──


def test_penalties_in_noise_units_are_their_formula(study, sites):
    """α_h = κ d σ̂_h from the rows themselves, for value and reward sharing, with early ends."""
    rows, features, others = sites["c"], study.feature_map, others_of(study, sites, "c")
    d, d0, kappa, ridge = features.n_features, features.n_shared, 0.07, 0.02
    settings = Settings(NoiseUnits(kappa), ridge, 0.99, 0.0)
    for weight, share in ((0.0, "value"), (0.4, "value"), (0.4, "reward")):
        fit = federated.fit_federated(rows, features, settings, others, weight, share)
        dense = paper.dense(rows, features)
        for h, step in enumerate(dense):
            y = step.reward + values_after(rows, features, h, fit.bounds)
            precision = step.phi.T @ step.phi + ridge * np.eye(d)
            if share == "value":
                precision[:d0, :d0] += weight * others.schur[h]
            n = len(y)
            degrees = np.trace(np.linalg.solve(precision, step.phi.T @ step.phi))
            variance = max(np.sum((y - step.phi @ fit.theta[h]) ** 2) / max(n - degrees, n / 5), 0.001)
            if n < 2 * d:
                variance = max(variance, y.var(ddof=1))
            assert fit.penalties[h].scale == pytest.approx(kappa * d * np.sqrt(variance), rel=1e-7)
    sizes = [len(step.reward) for step in paper.dense(rows, features)]
    assert min(sizes) < 2 * d < max(sizes)  # both sides of the floor are met
    assert all(first >= second for first, second in pairwise(sizes))


def test_few_patients_do_not_make_pessimism_vanish():
    study = make_study(learning={"pessimism": {"noise": 0.03}, "ridge": 0.001, "sharing": 0.0})
    scales = {n: fit_local(study, make_sites(study, {"a": n})["a"]).policy.scale for n in (14, 30, 400)}
    for n, scale in scales.items():  # rewards are uniform on [0, 1]: σ = 0.289 at the last step
        assert scale[-1] == pytest.approx(0.03 * 15 * np.sqrt(1 / 12), rel=0.35), n


def test_a_step_without_patients_has_half_of_its_span():
    study = make_study(ends={"death": 0.0}, learning={"pessimism": {"noise": 0.1}})
    rows = make_sites(study, {"a": 40}, ragged=True)["a"]
    early = rows.select(np.arange(40) >= rows.step(1).n)
    assert early.step(1).n == 0
    fit = local.fit_local(early, study.feature_map, Settings(NoiseUnits(0.1), 0.1, 0.99, 0.0))
    assert [penalty.scale for penalty in fit.penalties[1:]] == pytest.approx([0.1 * 15 * 2 / 2, 0.1 * 15 * 1 / 2])


def test_noise_units_follow_the_noise_and_not_the_horizon():
    scales = {}
    for noise in (0.2, 0.8):
        world = make_world(
            WorldSpec(n_sites=1, n_shared=2, n_specific=2, n_actions=2, noise=noise, horizon=4),
            np.random.default_rng(0),
        )
        study = Study.model_validate(world.study(pessimism={"noise": 0.03}, ridge=0.01, sharing=0.0))
        rows = read_trajectories(pa.table(world.table(2000, np.random.default_rng(1))), study)
        scales[noise] = np.array(fit_local(study, rows).policy.scale)
    assert np.all(scales[0.8] > 2 * scales[0.2])
    assert scales[0.8].max() / scales[0.8].min() < 1.5
