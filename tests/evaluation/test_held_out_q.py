"""Fitted Q of policies that were fitted to the other folds: as written down, and honest."""

import numpy as np
import pyarrow as pa
import pytest

from evaluated import make_patients
from fdtr.evaluation.evaluator import Evaluator
from fdtr.evaluation.held_out_q import fit_held_out_q
from fdtr.evaluation.target import ByFold, Constant
from fdtr.simulation.hospitals import hospital_world
from fdtr.site import evaluate_site, fit_local, read_trajectories
from fdtr.study import Study
from fdtr.summary import combine

RIDGE = 1e-3


def literally(patients, by_fold):
    """V̂ and its terms row by row, from nothing but the definitions."""
    paths, folds = patients.paths, patients.folds
    horizon, d = paths.horizon, patients.embeddings.shape[1]

    def phi(h, i, a):
        return patients.embeddings[a] @ patients.psi[h][:, i]

    def follow(h, i, chances):
        return sum(chances[h][a, i] * phi(h, i, a) for a in range(len(patients.embeddings)))

    def sums(chances, chosen):
        grams = [RIDGE * np.eye(d) for _ in range(horizon)]
        moments, crosses = [np.zeros(d) for _ in range(horizon)], [np.zeros((d, d)) for _ in range(horizon)]
        for h in range(horizon):
            for i in range(paths.counts[h]):
                if chosen[i]:
                    now = phi(h, i, paths.actions[h][i])
                    grams[h] += np.outer(now, now)
                    moments[h] += now * paths.rewards[h, i]
                    if h + 1 < horizon and i < paths.counts[h + 1]:
                        crosses[h] += np.outer(now, follow(h + 1, i, chances))
        return grams, moments, crosses

    def kappa(i, chances, chosen):
        grams, _, crosses = sums(chances, chosen)
        n = chosen.sum()
        nu = sum(follow(0, j, chances) for j in np.flatnonzero(chosen)) / n
        weights = []
        for h in range(horizon):
            direction = np.linalg.solve(grams[h], nu)
            weights.append(n * direction @ phi(h, i, paths.actions[h][i]) if i < paths.counts[h] else 0.0)
            nu = crosses[h].T @ direction
        return weights

    terms = {True: np.zeros(paths.n), False: np.zeros(paths.n)}
    for i in range(paths.n):
        chances, others = by_fold[folds[i]], folds != folds[i]
        grams, moments, crosses = sums(chances, others)
        theta = [np.zeros(d) for _ in range(horizon + 1)]
        for h in reversed(range(horizon)):
            theta[h] = np.linalg.solve(grams[h], moments[h] + crosses[h] @ theta[h + 1])
        for everybody, chosen in ((True, np.ones(paths.n, bool)), (False, others)):
            total = follow(0, i, chances) @ theta[0]
            for h, weight in enumerate(kappa(i, chances, chosen)):
                if i < paths.counts[h]:
                    ahead = h + 1 < horizon and i < paths.counts[h + 1]
                    later = follow(h + 1, i, chances) @ theta[h + 1] if ahead else 0.0
                    total += weight * (paths.rewards[h, i] + later - theta[h] @ phi(h, i, paths.actions[h][i]))
            terms[everybody][i] = total
    return terms[True].mean(), terms[False] - terms[False].mean()


@pytest.mark.quick
@pytest.mark.parametrize("ragged", [False, True])
def test_it_is_what_the_definition_says(ragged):
    patients = make_patients(n=24, n_folds=2, ragged=ragged)
    rng = np.random.default_rng(5)
    by_fold = [
        tuple(rng.dirichlet(np.ones(len(patients.embeddings)), size=count).T for count in patients.paths.counts)
        for _ in range(2)
    ]
    outcomes, _ = patients.sums()
    found = fit_held_out_q(patients.paths, patients.psi, patients.embeddings, patients.folds, by_fold, outcomes, RIDGE)
    value, influence = literally(patients, by_fold)
    assert found.value == pytest.approx(value, abs=1e-9)
    np.testing.assert_allclose(found.influence, influence, atol=1e-8)
    assert found.statistic.value == pytest.approx(value, abs=1e-9)


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

    Both are measured on the same policies: 3 × 5 sites of 240 to 300 patients, 12 features and their products.
    """
    world = hospital_world()
    study = Study.model_validate(world.study())
    honest, plain, covered = [], [], []
    for seed in range(3):
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
            plain.append(found.evaluator._view(found.targets["Q-learn (H)"]).of_all.value - truth)
    error = np.std(honest, ddof=1) / np.sqrt(len(honest))
    assert abs(np.mean(honest)) < 3 * error
    assert np.mean(covered) >= 0.8
    assert np.mean(plain) > 0.3
