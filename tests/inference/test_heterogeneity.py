"""Cochran's Q, against its definition from each site's own estimates."""

import numpy as np
import pytest
from scipy.stats import chi2, ncx2

import paper_algorithms as paper
from fdtr.inference import heterogeneity, power
from fdtr.inference.shared_effects import Heterogeneity
from fdtr.site.fitting import fit_local
from fdtr.summary import combine
from random_tables import make_sites, make_study

pytestmark = pytest.mark.quick

SITES = {"a": 90, "b": 140, "c": 60}


def test_q_is_the_weighted_spread_of_the_sites_own_estimates():
    study = make_study()
    sites = make_sites(study, SITES)
    test = heterogeneity(combine(fit_local(study, rows).summary for rows in sites.values()).sums)
    d0 = study.feature_map.n_shared
    for step in range(study.horizon):
        estimates, weights = [], []
        for rows in sites.values():
            dense = paper.dense(rows, study.feature_map)[step]
            theta, left, rank, _ = np.linalg.lstsq(dense.phi, dense.reward, rcond=None)
            variance = left[0] / (len(dense.reward) - rank)
            estimates.append(theta[:d0])
            weights.append(np.linalg.inv(variance * np.linalg.inv(dense.phi.T @ dense.phi)[:d0, :d0]))
        centre = np.linalg.solve(sum(weights), sum(w @ t for w, t in zip(weights, estimates, strict=True)))
        q = sum((t - centre) @ w @ (t - centre) for w, t in zip(weights, estimates, strict=True))
        df = d0 * (len(sites) - 1)
        assert test.statistic[step] == pytest.approx(q, rel=1e-8)
        assert test.df[step] == df
        assert test.p_value[step] == pytest.approx(chi2.sf(q, df), rel=1e-8)
        assert test.i_squared[step] == pytest.approx(max(0, 1 - df / q), abs=1e-9)


def test_one_site_has_nothing_to_compare():
    study = make_study()
    test = heterogeneity(fit_local(study, make_sites(study, {"a": 90})["a"]).summary.sums)
    assert np.array_equal(test.statistic, np.zeros(3))
    assert np.array_equal(test.df, [0, 0, 0])
    assert np.isnan(test.p_value).all()
    assert np.isnan(test.i_squared).all()
    assert np.isnan(test.over_steps().p_value).all()


def test_directions_that_only_one_site_knows_are_not_compared():
    study = make_study()
    sites = make_sites(study, {"a": 120, "b": 120}, actions={"a": [0, 1], "b": [0, 2]})
    test = heterogeneity(combine(fit_local(study, rows).summary for rows in sites.values()).sums)
    assert np.array_equal(test.df, [2, 2, 2])  # rank 4 at each site, 6 together: the main effects of u and v
    assert np.all(test.statistic > 0)


def test_a_site_added_twice_changes_nothing_but_the_degrees_of_freedom():
    study = make_study()
    one = fit_local(study, make_sites(study, {"a": 90})["a"]).summary.sums
    test = heterogeneity(one + one)
    assert np.allclose(test.statistic, 0, atol=1e-9)
    assert np.array_equal(test.df, [6, 6, 6])
    assert np.array_equal(test.i_squared, np.zeros(3))


def test_steps_add():
    test = Heterogeneity(np.array([4.0, 9.0]), np.array([2, 3])).over_steps()
    assert test.p_value == pytest.approx(chi2.sf(13, 5))
    assert test.i_squared == pytest.approx(1 - 5 / 13)


def test_power_is_the_tail_of_the_non_central_chi_square():
    noncentrality = np.array([0.0, 1.0, 12.0, 80.0])
    df = np.full(4, 16)
    assert np.allclose(power(noncentrality, df), ncx2.sf(chi2.isf(0.05, 16), 16, np.maximum(noncentrality, 1e-12)))
    assert power(np.zeros(1), np.array([3]), size=0.01) == pytest.approx(0.01)
