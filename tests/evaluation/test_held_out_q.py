"""Fitted Q of policies that were fitted to the other folds: as written down, and honest."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from evaluation_patients import make_patients, random_chances
from fdtr.evaluation.evaluator import Evaluator
from fdtr.evaluation.fitted_q import fit_held_out_q, fit_q, sum_outcomes
from fdtr.evaluation.importance import doubly_robust
from fdtr.evaluation.intervals import mean_of
from fdtr.evaluation.step_arrays import Design, StepArrays
from fdtr.evaluation.targets import ByFold, Constant
from fdtr.simulation.sepsis import make_hospital_world
from fdtr.site import evaluate_site
from fdtr.site.fitting import fit_local
from fdtr.site.rows import read_trajectories
from fdtr.study import Study
from fdtr.summary import combine

RIDGE = 1e-3


def literally(patients, by_fold):
    """V̂, its terms and its effective sample sizes row by row, from nothing but the definitions."""
    arrays, folds = patients.arrays, patients.folds
    horizon, d = arrays.horizon, patients.embeddings.shape[1]

    def phi(h, i, a):
        return patients.embeddings[a] @ patients.psi[h][:, i]

    def follow(h, i, chances):
        return sum(chances[h][a, i] * phi(h, i, a) for a in range(len(patients.embeddings)))

    def sums(chances, chosen):
        grams = [RIDGE * np.eye(d) for _ in range(horizon)]
        moments, crosses = [np.zeros(d) for _ in range(horizon)], [np.zeros((d, d)) for _ in range(horizon)]
        for h in range(horizon):
            for i in range(arrays.counts[h]):
                if chosen[i]:
                    now = phi(h, i, arrays.actions[h][i])
                    grams[h] += np.outer(now, now)
                    moments[h] += now * arrays.rewards[h, i]
                    if h + 1 < horizon and i < arrays.counts[h + 1]:
                        crosses[h] += np.outer(now, follow(h + 1, i, chances))
        return grams, moments, crosses

    def kappa(i, chances, chosen):
        grams, _, crosses = sums(chances, chosen)
        n = chosen.sum()
        nu = sum(follow(0, j, chances) for j in np.flatnonzero(chosen)) / n
        weights, bounds = [], []
        for h in range(horizon):
            direction = np.linalg.solve(grams[h], nu)
            weights.append(n * direction @ phi(h, i, arrays.actions[h][i]) if i < arrays.counts[h] else 0.0)
            bounds.append(n * nu @ direction)  # at least the mean of κ² over the chosen
            nu = crosses[h].T @ direction
        return np.array(weights), np.array(bounds)

    terms = {True: np.zeros(arrays.n), False: np.zeros(arrays.n)}
    sizes = {}
    for i in range(arrays.n):
        chances, others = by_fold[folds[i]], folds != folds[i]
        grams, moments, crosses = sums(chances, others)
        theta = [np.zeros(d) for _ in range(horizon + 1)]
        for h in reversed(range(horizon)):
            theta[h] = np.linalg.solve(grams[h], moments[h] + crosses[h] @ theta[h + 1])
        for everybody, chosen in ((True, np.ones(arrays.n, bool)), (False, others)):
            total = follow(0, i, chances) @ theta[0]
            weights, bounds = kappa(i, chances, chosen)
            sizes[everybody, i] = weights, bounds
            for h, weight in enumerate(weights):
                if i < arrays.counts[h]:
                    ahead = h + 1 < horizon and i < arrays.counts[h + 1]
                    later = follow(h + 1, i, chances) @ theta[h + 1] if ahead else 0.0
                    total += weight * (arrays.rewards[h, i] + later - theta[h] @ phi(h, i, arrays.actions[h][i]))
            terms[everybody][i] = total
    summed = sum(sizes[False, i][0] for i in range(arrays.n))
    squared = sum(  # of each fold what the model says of κ², or what it is, if that is more
        np.maximum(
            sum(sizes[False, i][1] for i in np.flatnonzero(folds == fold)),
            sum(sizes[False, i][0] ** 2 for i in np.flatnonzero(folds == fold)),
        )
        for fold in np.unique(folds)
    )
    return terms[True].mean(), terms[False] - terms[False].mean(), summed**2 / squared


@pytest.mark.quick
@pytest.mark.parametrize("ragged", [False, True])
def test_it_is_what_the_definition_says(ragged):
    patients = make_patients(n=24, n_folds=2, ragged=ragged)
    rng = np.random.default_rng(5)
    by_fold = [random_chances(rng, patients.arrays, len(patients.embeddings)) for _ in range(2)]
    outcomes, _ = patients.sums()
    found = fit_held_out_q(patients.design, by_fold, outcomes, RIDGE)
    value, influence, size = literally(patients, by_fold)
    assert found.value == pytest.approx(value, abs=1e-9)
    np.testing.assert_allclose(found.influence, influence, atol=1e-8)
    assert found.statistic.value == pytest.approx(value, abs=1e-9)
    np.testing.assert_allclose(found.effective_sample_size, size, rtol=1e-8)


@pytest.mark.quick
@pytest.mark.parametrize("ragged", [False, True])
def test_many_patients_under_one_policy_are_worth_as_many_as_in_fitted_q(ragged):
    # 15 features and 3,000 patients, of whom 1,000 stay to the end: leverage moves Σκ and Σκ² by about 15/800 there.
    patients = make_patients(n=3000, n_folds=5, ragged=ragged)
    outcomes, transitions = patients.sums()
    held_out = fit_held_out_q(patients.design, [patients.target] * 5, outcomes)
    plain = fit_q(patients.design, patients.target, outcomes, transitions)
    np.testing.assert_allclose(held_out.effective_sample_size, plain.effective_sample_size, rtol=0.05)
    assert held_out.effective_sample_size.min() > 100


@pytest.mark.quick
def test_each_patients_q_is_that_of_their_own_folds_policy_and_in_range():
    """Q of π_k from the other folds, not of the mixture of all policies: what a fold's policy alone would be given."""
    patients = make_patients(n=48, n_folds=3)
    evaluator = Evaluator(patients.rows, patients.features, patients.folds)
    alone = [Constant(action) for action in range(3)]
    view = evaluator._evaluation(ByFold(patients.folds, alone))
    for h, found in enumerate(view.q):
        for fold, target in enumerate(alone):
            mine = patients.folds[: found.shape[1]] == fold
            np.testing.assert_allclose(
                found[:, mine], evaluator._evaluation(target).q[h][:, mine], rtol=1e-9, atol=1e-12
            )
        assert found.min() >= 0
        assert found.max() <= 3 - h
    outside = [np.any((q < 0) | (q > 3 - h)) for h, q in enumerate(view.held_out.q)]
    assert all(outside), "so few patients leave Q in range: nothing was cut"
    by_hand = doubly_robust(patients.arrays, view.weights, view.q, view.chances)
    assert evaluator.value(view.target, "dr").value == pytest.approx(by_hand.value, rel=1e-12)


@pytest.mark.quick
def test_policies_of_other_folds_are_refused():
    patients = make_patients()
    evaluator = Evaluator(patients.rows, patients.features, patients.folds)
    target = ByFold(patients.folds[::-1].copy(), [Constant(0)] * 4)
    with pytest.raises(ValueError, match="folds are not those"):
        evaluator.value(target, "fqe")


@pytest.mark.slow
def test_learnt_policies_are_not_valued_by_what_they_believe():
    """Over sites and seeds the held-out value is near the truth; plain fitted Q on everybody's patients is far above.

    Both are measured on the same policies: 2 × 5 sites of 240 to 300 patients, 12 features and their products.
    """
    world = make_hospital_world()
    study = Study.model_validate(world.study())
    honest, plain, covered = [], [], []
    for seed in range(2):
        table = pa.table(world.table([250, 300, 270, 280, 240], np.random.default_rng([41, seed])))
        sites = read_trajectories(table, study).by_site()
        alone = {site: fit_local(study, rows).summary for site, rows in sites.items()}
        total = combine(alone.values())
        for number, (site, rows) in enumerate(sites.items()):
            found = evaluate_site(study, rows, total, alone[site])
            policies = found.targets["Q-learn (H)"].targets
            rng = np.random.default_rng([42, number])
            truth = np.mean([world.value(number, policy.act, 4000, rng).mean for policy in policies])
            estimate = found.value("Q-learn (H)", "fqe")
            honest.append(estimate.value - truth)
            covered.append(estimate.low <= truth <= estimate.high)
            plain.append(found.evaluator._evaluation(found.targets["Q-learn (H)"]).fitted_to_all.value - truth)
    error = np.std(honest, ddof=1) / np.sqrt(len(honest))
    assert abs(np.mean(honest)) < 3 * error
    assert np.mean(covered) >= 0.8
    assert np.mean(plain) > 0.3


@pytest.mark.quick
def test_one_policy_for_all_folds_has_no_error_of_policies():
    patients = make_patients(n=60, n_folds=3)
    outcomes, _ = patients.sums()
    same = fit_held_out_q(patients.design, [patients.target] * 3, outcomes, RIDGE).statistic
    assert same.standard_error == pytest.approx(replace(same, by_policy=None).standard_error, rel=1e-9)
    rng = np.random.default_rng(5)
    others = [random_chances(rng, patients.arrays, 3) for _ in range(3)]
    apart = fit_held_out_q(patients.design, others, outcomes, RIDGE).statistic
    by_hand = 2 / 3 * np.sum((apart.by_policy - apart.by_policy.mean(axis=0)) ** 2) / 60**2
    assert apart.standard_error**2 - replace(apart, by_policy=None).standard_error ** 2 == pytest.approx(by_hand)
    pairs = np.arange(60) // 2
    together = apart.by_policy.reshape(3, 30, 2).sum(axis=2)
    by_pairs = 2 / 3 * np.sum((together - together.mean(axis=0)) ** 2) / 60**2
    clustered = apart.clustered(pairs)
    assert clustered.standard_error**2 - replace(clustered, by_policy=None).standard_error ** 2 == pytest.approx(
        by_pairs
    )


@pytest.mark.quick
def test_errors_of_policies_that_share_patients_go_together():
    """Two actions by a coin, eight groups, no effect at all: a policy takes what did better in a group of other folds.

    300 tables of 200 patients. A quarter of the variance is missing where patients count as if they were independent.
    What is added is too much here, where chance alone decides what a policy does.
    """
    rng, n, groups = np.random.default_rng(8), 200, 8
    errors, with_policies, without = [], [], []
    folds, embeddings = (
        np.arange(n) % 5,
        np.stack([np.eye(2 * groups)[a * groups : (a + 1) * groups].T for a in (0, 1)]),
    )
    for _ in range(300):
        group, given, outcome = rng.integers(0, groups, n), rng.integers(0, 2, n), rng.random((1, n))
        psi = np.eye(groups)[:, group]
        design = Design(StepArrays(outcome, (given,), (group[None].astype(float),)), (psi,), embeddings, folds)
        by_fold = []
        for fold in range(5):
            train = folds != fold
            sums = [np.bincount(group[train], (outcome[0, train] - 0.5) * (given[train] == a), groups) for a in (0, 1)]
            better = (sums[1] > sums[0])[group]
            by_fold.append((np.vstack([~better, better]).astype(float),))
        gain = fit_held_out_q(design, by_fold, sum_outcomes(design)).statistic.minus(mean_of(outcome[0]))
        errors.append(gain.value)
        with_policies.append(gain.standard_error)
        without.append(replace(gain, by_policy=None).standard_error)
    spread = np.std(errors)
    assert spread / np.mean(without) > 1.1
    assert 0.75 < spread / np.mean(with_policies) < 1
