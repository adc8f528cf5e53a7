"""Penalties in units of noise, against their formula."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

import paper_algorithms as paper
from fdtr.algebra.pessimism import NoiseUnits
from fdtr.learners import federated, local
from fdtr.learners.backward import Settings
from fdtr.simulation import WorldSpec, make_world
from fdtr.site.fitting import fit_local
from fdtr.site.rows import read_trajectories
from fdtr.study import Study
from random_tables import make_sites, make_study
from tuned_sites import others_of, values_after

pytestmark = pytest.mark.quick


def test_penalties_in_noise_units_are_their_formula():
    """α_h = κ d σ̂_h from the rows themselves, for value and reward sharing, with early ends."""
    study = make_study(ends={"death": 0.0, "discharge": 1.0})
    sites = make_sites(study, {"a": 120, "b": 90, "c": 70}, ragged=True)
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
