"""Near ties, against a patient-by-patient count."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from fdtr.inference.near_ties import NearTies, near_ties, residual_variances
from fdtr.simulation.linear import WorldSpec, make_world
from fdtr.site.fitting import fit_local
from fdtr.site.rows import read_trajectories
from fdtr.study import Study
from random_tables import make_sites, make_study

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("ragged", [False, True])
def test_shares_are_those_counted_patient_by_patient(ragged):
    study = make_study(ends={"home": 1.0, "died": 0.0}) if ragged else make_study()
    rows = make_sites(study, {"a": 80}, ragged=ragged)["a"]
    fitted, features = fit_local(study, rows), study.feature_map
    found = near_ties(rows, features, fitted.fit, errors=1.5)
    variances = residual_variances(fitted.fit)
    for h in range(study.horizon):
        inverse, near, seen = np.linalg.inv(fitted.fit.precision[h]), 0, 0
        for chunk in rows.step(h).chunks():
            for state in chunk.states.T:
                phi = features.phi(np.repeat(state[:, None], 3, axis=1), np.arange(3))
                bound = fitted.policy.lower_bound(state[None], h)[0]
                best = int(np.argmax(bound))
                near += any(
                    bound[best] - bound[a]
                    <= 1.5 * np.sqrt(variances[h] * (phi[best] - phi[a]) @ inverse @ (phi[best] - phi[a]))
                    for a in range(3)
                    if a != best
                )
                seen += 1
        assert found.shares[h] == pytest.approx(near / seen)


def test_residual_variances_are_those_of_the_rows():
    study = make_study(horizon=1)
    rows = make_sites(study, {"a": 80})["a"]
    fit = fit_local(study, rows).fit
    chunk = next(rows.step(0).chunks())
    left = chunk.rewards - study.feature_map.phi(chunk.states, chunk.actions) @ fit.theta[0]
    assert residual_variances(fit)[0] == pytest.approx(left @ left / (80 - 15))


def test_too_few_patients_are_all_near_a_tie():
    study = make_study()
    rows = make_sites(study, {"a": 12})["a"]  # fewer than the 15 features
    assert np.array_equal(near_ties(rows, study.feature_map, fit_local(study, rows).fit).shares, np.ones(3))


def test_more_patients_make_fewer_near_ties():
    world = make_world(WorldSpec(n_sites=1, n_actions=2, horizon=2), np.random.default_rng(0))
    study = Study.model_validate(world.study(pessimism=0.0, ridge=0.01, sharing=1.0, share="value"))
    shares = []
    for n in (100, 1_000, 10_000):
        rows = read_trajectories(pa.table(world.table(n, np.random.default_rng(1))), study)
        shares.append(near_ties(rows, study.feature_map, fit_local(study, rows).fit).shares)
    assert np.all(np.diff(shares, axis=0) < 0)
    assert np.all(shares[0] > 0.3)
    assert np.all(shares[-1] < 0.15)


def test_intervals_are_withheld_with_the_worst_step_named():
    assert NearTies(np.array([0.05, 0.1, np.nan]), 1.96).withheld == ""
    reason = NearTies(np.array([0.05, 0.31, np.nan]), 1.96).withheld
    assert "At step 1" in reason
    assert "31% of patients" in reason
    assert NearTies(np.array([np.nan]), 1.96).withheld == ""


def test_a_policy_that_is_sure_has_no_near_ties():
    study = make_study()
    rows = make_sites(study, {"a": 80})["a"]
    fit = fit_local(study, rows).fit
    sure = dataclasses.replace(fit, precision=fit.precision * 1e12)
    assert np.all(near_ties(rows, study.feature_map, sure).shares < 0.02)
