"""Identification and the F test, against regressions on the dense matrices."""

import numpy as np
import pytest

import paper_algorithms as paper
from fdtr.inference.identification import transition_test
from fdtr.site.fitting import fit_local
from fdtr.site.site_check import check
from random_tables import make_sites, make_study

pytestmark = pytest.mark.quick


def test_transition_test_is_the_f_test_of_two_regressions():
    study = make_study()
    rows = make_sites(study, {"a": 120})["a"]
    fit = fit_local(study, rows).fit
    d0 = study.feature_map.n_shared
    dense = paper.dense(rows, study.feature_map)
    for h in (0, 1):
        sums = fit.statistics[h]
        alpha = fit.penalties[h + 1].scale
        following = (fit.theta[h + 1], fit.precision[h + 1])
        value = paper.targets(dense[h], 3, h, following, alpha, 0.0, 120) - dense[h].reward
        full = np.linalg.lstsq(dense[h].phi, value, rcond=None)
        small = np.linalg.lstsq(dense[h].phi[:, d0:], value, rcond=None)
        spare = 120 - full[2]
        statistic = ((small[1][0] - full[1][0]) / d0) / (full[1][0] / spare)
        found = transition_test(sums.gram, sums.value_moment, sums.value_square, 120, d0)
        assert found.statistic == pytest.approx(statistic, rel=1e-6)
        assert (found.df_model, found.df_residual) == (d0, spare)
        assert 0 < found.p_value < 1


def test_degrees_of_freedom_count_independent_features():
    study = make_study()
    rows = make_sites(study, {"a": 80}, duplicate=("y", "x"))["a"]
    assert [(t.df_model, t.df_residual) for t in check(study, rows).transitions] == [(6, 68), (6, 68)]


def test_what_is_left_is_a_share_of_the_variation_beside_the_intercept():
    study = make_study(actions={"levels": [0, 1], "degree": 1})
    rows = make_sites(study, {"a": 300})["a"]
    retained = {i.feature: i.retained for i in check(study, rows).identified}
    own, shares = ["1", "x", "y", "a", "a·x", "a·y"], []
    names = list(study.feature_map.names)
    for dense in paper.dense(rows, study.feature_map):
        columns = {name: dense.phi[:, names.index(name)] for name in names}

        def residual(name, beside, columns=columns):
            design = np.column_stack([columns[other] for other in beside])
            return np.sum((columns[name] - design @ np.linalg.lstsq(design, columns[name], rcond=None)[0]) ** 2)

        shares.append(residual("a·u", own) / residual("a·u", ["1", "a"]))
    assert retained["a·u"] == pytest.approx(np.mean(shares))
    assert 0.9 < retained["a·u"] < 1  # independent covariates: nearly all of it is left


def simulated(static: bool, seed: int):
    """One site whose shared covariate is redrawn each step, or stays the same (which breaks the model)."""
    rng = np.random.default_rng(seed)
    study = make_study(horizon=2, actions={"levels": [0, 1], "degree": 1})
    n = 300
    rows = {name: [] for name in ("site", "patient", "step", "action", "reward", "u", "x", "v", "y")}
    first = rng.uniform(-1, 1, n)
    for step in range(2):
        u = first if static or step == 0 else rng.uniform(-1, 1, n)
        action, x, v, y = rng.integers(0, 2, n), rng.uniform(0, 10, n), rng.random(n), rng.random(n)
        reward = 0.5 + 0.2 * u + 0.02 * (x - 5) * action + rng.uniform(-0.1, 0.1, n)
        for name, value in zip(rows, (["a"] * n, range(n), [step] * n, action, reward, u, x, v, y), strict=True):
            rows[name].extend(value)
    import pandas as pd

    from fdtr.site.rows import read_trajectories

    return study, read_trajectories(pd.DataFrame(rows), study)


def test_a_static_shared_covariate_is_seen_and_a_redrawn_one_is_not():
    p_static = [check(*simulated(True, seed)).transitions[0].p_value for seed in range(20)]
    p_redrawn = [check(*simulated(False, seed)).transitions[0].p_value for seed in range(100)]
    assert max(p_static) < 1e-4
    # 100 valid worlds at 5%: between 0 and 12 rejections with probability above 0.999
    assert sum(p < 0.05 for p in p_redrawn) <= 12
    assert np.median(p_redrawn) > 0.2


def test_identification_says_why_nothing_is_left():
    study = make_study()
    sites = make_sites(study, {"a": 100, "b": 100}, constant_within_site=("u",))
    found = {i.feature: i for i in check(study, sites["a"]).identified}
    assert "constant within the site" in found["a·u"].reason
    assert found["a·u"].retained == pytest.approx(0, abs=1e-9)
    assert found["v"].reason == ""
    assert 0 < found["v"].retained < 1
    assert len(check(study, sites["a"]).transitions) == 2


def test_identification_sees_copies_and_unused_actions():
    study = make_study()
    copied = make_sites(study, {"a": 100}, duplicate=("y", "v"))["a"]
    found = {i.feature: i for i in check(study, copied).identified}
    assert "combination of the site's own features" in found["v"].reason
    categorical = make_study(actions={"levels": [0, 1, 2], "basis": "categorical"})
    unused = make_sites(categorical, {"a": 100}, actions={"a": [0, 1]})["a"]
    found = {i.feature: i for i in check(categorical, unused).identified}
    assert "zero for every patient" in found["[a=2]·u"].reason
    assert found["[a=1]·u"].reason == ""


def test_a_test_that_cannot_be_made_is_not_a_number():
    study = make_study()
    rows = make_sites(study, {"a": 100}, constant_within_site=("u", "v"))["a"]
    assert all(np.isnan(test.p_value) for test in check(study, rows).transitions)
