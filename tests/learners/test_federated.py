"""FDTR against the paper's formulas as printed, and the laws that follow from them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import paper_algorithms as paper
from fdtr.algebra.pessimism import NoiseUnits
from fdtr.errors import OtherStudy, WrongSite
from fdtr.learners import federated
from fdtr.learners.federated import fit_with_each
from fdtr.learners.local import fit_local as fit_alone
from fdtr.site import others_in
from fdtr.site.fitting import fit_federated, fit_local
from fdtr.site.rows import read_trajectories
from fdtr.site.settings_choice import settings_of
from fdtr.summary import combine
from random_tables import make_sites, make_study, make_table

LEARNING = {"pessimism": 0.002, "ridge": 0.3}


def relative(found, expected):
    return np.max(np.abs(found - expected)) / max(np.max(np.abs(expected)), 1e-12)


@settings(max_examples=25, derandomize=True)
@given(
    sizes=st.lists(st.integers(2, 40), min_size=1, max_size=8),
    seed=st.integers(0, 10**6),
    ragged=st.booleans(),
    site_constant=st.booleans(),
    deficient=st.booleans(),
    misspecification=st.sampled_from([0.0, 0.001]),
    scale=st.sampled_from(["unit", "none"]),
)
def test_schur_message_gives_the_literal_minimiser(
    sizes, seed, ragged, site_constant, deficient, misspecification, scale
):
    # 1e-9 relative: the oracle's pseudo-inverse over d0 + K·d1 columns is itself good to about 1e-11.
    study = make_study(
        ends={"death": 0.0, "discharge": 1.0} if ragged else {},
        learning=LEARNING | {"misspecification": misspecification},
        features={"scale": scale},
    )
    names = {f"s{i}": n for i, n in enumerate(sizes)}
    sites = make_sites(
        study, names, seed, ragged=ragged, constant_within_site=("u", "v") if site_constant else (),
        duplicate=("y", "x") if deficient else None,
    )  # fmt: skip
    features = study.feature_map
    dense = {name: paper.dense(rows, features) for name, rows in sites.items()}
    total = combine([fit_local(study, rows).summary for rows in sites.values()])
    constants = (study.learning.pessimism, study.learning.ridge, 0.99, misspecification)
    for name, rows in sites.items():
        fit = fit_federated(study, rows, total)
        expected = paper.federated(dense, name, features.n_shared, *constants)
        assert relative(fit.policy.precision, expected.precision) < 1e-9
        assert relative(fit.theta, expected.theta) < 1e-9


def test_local_fit_is_algorithm_1():
    study = make_study(ends={"death": 0.0, "discharge": 1.0})
    rows = make_sites(study, {"a": 60}, ragged=True)["a"]
    expected, _ = paper.local(paper.dense(rows, study.feature_map), 0.001, 0.1, 0.99)
    fit = fit_local(study, rows)
    assert relative(fit.theta, expected.theta) < 1e-10
    assert relative(fit.policy.precision, expected.precision) < 1e-12


def test_values_are_capped_at_the_steps_that_are_left():
    # Rewards of 1 throughout and no ridge to speak of: every estimate is the number of steps left, and where the
    # extrapolation goes beyond it the cap holds it back, as in the literal algorithm.
    study = make_study(learning={"pessimism": 0.0, "ridge": 1e-6}, reward={"range": [0, 0.5]})
    table = make_table(study, {"a": 25}, seed=3)
    rewards = np.minimum(np.array(table["reward"]), 0.5)
    rewards[np.array(table["step"]) > 0] = 0.5
    table = table.set_column(table.column_names.index("reward"), "reward", [rewards])
    rows = read_trajectories(table, study)
    dense = paper.dense(rows, study.feature_map)
    fit = fit_local(study, rows)
    expected, targets = paper.local(dense, 0.0, 1e-6, 0.99)
    assert targets[1].max() == pytest.approx(2, abs=1e-6)  # never above the cap of step 1
    states = np.random.default_rng(0).random((4, 300)) * [[2], [10], [1], [1]] - [[1], [0], [0], [0]]
    values = fit.fit.bounds[1].values(study.feature_map.psi(states))
    assert values.max() <= 2
    assert fit.policy.lower_bound(states.T, 1).max() > 2  # so the cap was needed
    assert relative(fit.theta, expected.theta) < 1e-5


def test_one_site_alone_is_the_local_fit():
    study = make_study()
    rows = make_sites(study, {"a": 80})["a"]
    local = fit_local(study, rows)
    together = fit_federated(study, rows, combine([local.summary]))
    np.testing.assert_array_equal(together.theta, local.theta)
    np.testing.assert_array_equal(together.policy.precision, local.policy.precision)
    assert together.policy.scale == local.policy.scale  # N = n


def test_no_sharing_is_the_local_policy():
    study = make_study(learning=LEARNING | {"sharing": 0.0})
    sites = make_sites(study, {"a": 80, "b": 50})
    fits = {name: fit_local(study, rows) for name, rows in sites.items()}
    together = fit_federated(study, sites["a"], combine([fit.summary for fit in fits.values()]))
    np.testing.assert_array_equal(together.theta, fits["a"].theta)
    assert together.policy.scale == fits["a"].policy.scale


def test_weight_moves_from_alone_to_the_paper():
    sites = make_sites(make_study(), {"a": 80, "b": 500})
    for weight in (0.0, 0.25, 1.0):
        study = make_study(learning=LEARNING | {"sharing": weight})
        fits = [fit_local(study, rows).summary for rows in sites.values()]
        fit = fit_federated(study, sites["a"], combine(fits))
        n = 80 + weight * 500
        features, d0 = study.feature_map, study.feature_map.n_shared
        own, other = (paper.dense(sites[name], features)[2] for name in ("a", "b"))
        left = np.eye(500) - other.phi[:, d0:] @ np.linalg.pinv(other.phi[:, d0:])
        gram, moment = own.phi.T @ own.phi + 0.3 * np.eye(features.n_features), own.phi.T @ own.reward
        gram[:d0, :d0] += weight * other.phi[:, :d0].T @ left @ other.phi[:, :d0]
        moment[:d0] += weight * other.phi[:, :d0].T @ left @ other.reward
        np.testing.assert_allclose(fit.theta[2], np.linalg.solve(gram, moment), rtol=1e-8, atol=1e-10)
        alpha = paper.alpha_of(0.002, study.feature_map.n_features, 3, n, 0.99)
        assert fit.policy.scale == pytest.approx((alpha,) * 3)


def test_reward_sharing_estimates_rewards_together_and_values_at_home():
    study = make_study(learning=LEARNING | {"share": "reward", "sharing": 0.5})
    sites = make_sites(study, {"a": 90, "b": 70, "c": 60})
    features = study.feature_map
    d0, ridge = features.n_shared, 0.3 * np.eye(features.n_features)
    total = combine([fit_local(study, rows).summary for rows in sites.values()])
    fit = fit_federated(study, sites["a"], total)
    others = {name: paper.dense(sites[name], features) for name in ("b", "c")}
    own = paper.dense(sites["a"], features)
    following = None
    for h in reversed(range(3)):
        gram = own[h].phi.T @ own[h].phi
        shared_gram, shared_moment = np.zeros((d0, d0)), np.zeros(d0)
        for rows in others.values():
            left = np.eye(len(rows[h].phi)) - rows[h].phi[:, d0:] @ np.linalg.pinv(rows[h].phi[:, d0:])
            shared_gram += rows[h].phi[:, :d0].T @ left @ rows[h].phi[:, :d0]
            shared_moment += rows[h].phi[:, :d0].T @ left @ rows[h].reward
        together, moment = gram + ridge, own[h].phi.T @ own[h].reward
        together[:d0, :d0] += 0.5 * shared_gram
        moment[:d0] += 0.5 * shared_moment
        alpha = paper.alpha_of(0.002, features.n_features, 3, 90, 0.99)  # the local penalty
        future = paper.targets(own[h], 3, h, following, alpha, 0.0, 90) - own[h].reward
        theta = np.linalg.solve(together, moment) + np.linalg.solve(gram + ridge, own[h].phi.T @ future)
        assert relative(fit.theta[h], theta) < 1e-9
        np.testing.assert_allclose(fit.policy.precision[h], gram + ridge, rtol=1e-12, atol=1e-12)
        following = (theta, gram + ridge)


def test_site_constant_covariates_beside_an_intercept_share_nothing():
    study = make_study()
    sites = make_sites(study, {"a": 90, "b": 70, "c": 60}, constant_within_site=("u", "v"))
    fits = {name: fit_local(study, rows) for name, rows in sites.items()}
    total = combine([fit.summary for fit in fits.values()])
    assert not total.sums.schur.any()
    assert not total.sums.rank.any()
    together = fit_federated(study, sites["a"], total)
    np.testing.assert_allclose(together.theta[-1], fits["a"].theta[-1], rtol=1e-12)


def test_a_total_of_another_study_or_a_summary_of_another_site_is_refused():
    study = make_study()
    sites = make_sites(study, {"a": 90, "b": 70})
    summaries = {name: fit_local(study, rows).summary for name, rows in sites.items()}
    total = combine(summaries.values())
    with pytest.raises(OtherStudy, match="total belongs to another study"):
        fit_federated(make_study(name="other"), sites["a"], total, own=summaries["a"])
    with pytest.raises(OtherStudy, match="rows were read with another study"):
        fit_local(make_study(reward={"range": [0, 2]}), sites["a"])
    renamed = make_study(columns={"patient": "stay_id"})  # only names of columns: the same rows
    assert fit_local(renamed, sites["a"]).summary.digest == summaries["a"].digest
    with pytest.raises(WrongSite, match="rows are of site 'a'"):
        fit_federated(study, sites["a"], total, own=summaries["b"])


def test_rows_may_be_a_part_of_the_patients_while_own_stays_what_was_sent():
    study = make_study()
    sites = make_sites(study, {"a": 90, "b": 70})
    fits = {name: fit_local(study, rows) for name, rows in sites.items()}
    total = combine([fit.summary for fit in fits.values()])
    half = sites["a"].select(np.arange(90) < 45)
    fit = fit_federated(study, half, total, own=fits["a"].summary)
    expected = fit_federated(
        study, half, combine([fit_local(study, half).summary, fits["b"].summary])
    )  # the others' sums are the same, only rounding of total − own differs
    np.testing.assert_allclose(fit.theta, expected.theta, rtol=1e-9)


def test_an_own_penalty_is_that_of_the_site_alone_with_the_estimates_of_all():
    study = make_study()
    sites = make_sites(study, {"a": 60, "b": 70, "c": 50})
    local = {name: fit_local(study, rows).summary for name, rows in sites.items()}
    others = others_in(study, combine(local.values()), local["a"])
    settings = settings_of(study, ridge=0.1, pessimism=0.002)
    own = replace(settings, own_penalty=True)
    fits = [federated.fit_federated(sites["a"], study.feature_map, each, others) for each in (settings, own)]
    alone = fit_alone(sites["a"], study.feature_map, settings)
    np.testing.assert_array_equal(fits[1].theta[-1], fits[0].theta[-1])  # before any penalty has a part in it
    np.testing.assert_array_equal(fits[1].precision, alone.precision)
    assert fits[1].penalties == alone.penalties != fits[0].penalties


@pytest.mark.parametrize("share", ["value", "reward"])
def test_fits_with_several_penalties_at_once_are_the_separate_fits(share):
    study = make_study(ends={"death": 0.0, "discharge": 1.0})
    sites = make_sites(study, {"a": 60, "b": 70, "c": 50}, ragged=True)
    local = {name: fit_local(study, rows).summary for name, rows in sites.items()}
    others = others_in(study, combine(local.values()), local["a"])
    tried = (0.01, 0.0, NoiseUnits(0.03), 0.002, NoiseUnits(0.1))
    at = settings_of(study, ridge=0.1, pessimism=0.001)
    together = fit_with_each(sites["a"], study.feature_map, at, others, 0.5, share, tried)
    assert len({fit.penalties for fit in together}) == len(tried)
    for c, lane in zip(tried, together, strict=True):
        alone = federated.fit_federated(
            sites["a"], study.feature_map, replace(at, pessimism=c), others, sharing=0.5, share=share
        )
        np.testing.assert_allclose(lane.theta, alone.theta, rtol=1e-12, atol=1e-13)
        np.testing.assert_array_equal(lane.precision, alone.precision)
        scales = [[penalty.scale for penalty in fit.penalties] for fit in (lane, alone)]
        assert scales[0] == pytest.approx(scales[1], rel=1e-12)
        for mine, theirs in zip(lane.statistics, alone.statistics, strict=True):
            assert mine.target_square == pytest.approx(theirs.target_square, rel=1e-12)
