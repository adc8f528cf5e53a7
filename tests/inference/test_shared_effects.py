"""Shared effects against generalised least squares on all rows; multiple comparisons, gains and Theorem 3."""

import numpy as np
import pytest
from scipy.stats import norm

import paper_algorithms as paper
from fdtr.inference import holm, infer_effects, raw_factors, sidak
from fdtr.inference.shared_effects import gain_from_sharing, theorem3_bound
from fdtr.learners.backward import Settings
from fdtr.site.fitting import fit_federated, fit_local
from fdtr.summary import combine
from fdtr.sums import Sums
from random_tables import make_sites, make_study, make_table

pytestmark = pytest.mark.quick


SITES = {"a": 90, "b": 140, "c": 60}


def total_of(study, sites) -> Sums:
    return combine(fit_local(study, rows).summary for rows in sites.values()).sums


def stacked_least_squares(study, sites, step, dropped=()):
    """θ̂⁰ and its covariance: every site's rows over its own σ̂, φ0 common, φ1 a block of columns for each site."""
    d0 = study.feature_map.n_shared
    kept = [j for j in range(d0) if j not in dropped]
    blocks, rewards = [], []
    for place, rows in enumerate(sites.values()):
        dense = paper.dense(rows, study.feature_map)[step]
        shared, own = dense.phi[:, kept], dense.phi[:, d0:]
        _, left, rank, _ = np.linalg.lstsq(np.hstack([shared, own]), dense.reward, rcond=None)
        sigma = np.sqrt(left[0] / (len(own) - rank))
        wide = [own if place == other else np.zeros_like(own) for other in range(len(sites))]
        blocks.append(np.hstack([shared, *wide]) / sigma)
        rewards.append(dense.reward / sigma)
    design, reward = np.vstack(blocks), np.concatenate(rewards)
    theta = np.linalg.lstsq(design, reward, rcond=None)[0]
    return theta[: len(kept)], np.linalg.inv(design.T @ design)[: len(kept), : len(kept)], kept


def test_effects_are_generalised_least_squares_over_all_rows():
    study = make_study()
    sites = make_sites(study, SITES)
    effects = infer_effects(total_of(study, sites))
    assert effects.identified.all()
    for step in range(study.horizon):
        theta, covariance, _ = stacked_least_squares(study, sites, step)
        assert np.allclose(effects.estimates[step], theta, rtol=1e-8, atol=1e-8 * np.abs(theta).max())
        assert np.allclose(effects.covariance[step], covariance, rtol=1e-8, atol=1e-8 * np.abs(covariance).max())


def test_what_no_site_can_tell_from_its_own_effects_is_not_a_number():
    study = make_study()
    sites = make_sites(study, SITES, constant_within_site=("u",))
    effects = infer_effects(total_of(study, sites))
    lost = [j for j, name in enumerate(study.feature_map.names[: study.feature_map.n_shared]) if "u" in name]
    assert not effects.identified[:, lost].any()
    for step in range(study.horizon):
        theta, covariance, kept = stacked_least_squares(study, sites, step, dropped=lost)
        assert effects.identified[step, kept].all()
        assert np.allclose(effects.estimates[step, kept], theta, rtol=1e-8)
        assert np.allclose(effects.covariance[step][np.ix_(kept, kept)], covariance, rtol=1e-8)
    for shown in (effects.estimates, effects.standard_errors, effects.p_values, effects.adjusted_p_values):
        assert np.isnan(shown[:, lost]).all()
        assert np.isfinite(np.delete(shown, lost, axis=1)).all()
    assert np.isnan(effects.bands().low[:, lost]).all()


def test_two_sites_tell_what_neither_can_alone():
    study = make_study()  # u, a·u, a²·u: with two levels each site sees two of three combinations
    sites = make_sites(study, {"a": 120, "b": 120}, actions={"a": [0, 1], "b": [0, 2]})
    names = study.feature_map.names
    alone = infer_effects(fit_local(study, sites["a"]).summary.sums)
    assert [alone.identified[0, names.index(name)] for name in ("u", "a·u", "a^2·u")] == [True, False, False]
    assert infer_effects(total_of(study, sites)).identified.all()


def test_nothing_known_is_nothing_claimed():
    zeros = np.zeros((2, 3))
    effects = infer_effects(Sums(np.zeros((2, 3, 3)), zeros, zeros, np.zeros((2, 3, 3)), zeros, *np.zeros((3, 2))))
    assert not effects.identified.any()
    assert np.isnan(effects.bands().high).all()
    none = infer_effects(Sums(*(np.zeros(shape) for shape in [(2, 0, 0), (2, 0), (2, 0)] * 2), *np.zeros((2, 2))))
    assert none.estimates.shape == (2, 0)


def test_units_of_the_features_do_not_decide_what_is_identified():
    study = make_study()
    total = total_of(study, make_sites(study, SITES))
    units = 10.0 ** np.arange(-3, 3)  # per feature, a millionfold range
    rescaled = Sums(
        total.schur, total.schur_moment, total.schur_reward, total.information * np.outer(units, units),
        total.information_moment * units, total.information_square, total.rank, total.n,
    )  # fmt: skip
    plain, other = infer_effects(total), infer_effects(rescaled).in_units(units)
    assert other.identified.all()
    assert np.allclose(plain.estimates, other.estimates, rtol=1e-8)
    assert np.allclose(plain.standard_errors, other.standard_errors, rtol=1e-8)
    assert np.allclose(plain.p_values, other.p_values, rtol=1e-6)


def test_bands_are_nested_and_as_wide_as_their_multiplier():
    study = make_study()
    effects = infer_effects(total_of(study, make_sites(study, SITES)))
    widths = [(band.high - band.low) / (2 * effects.standard_errors) for band in (effects.intervals(), effects.bands())]
    assert np.allclose(widths[0], 1.959964)
    assert np.allclose(widths[1], 2.387741)  # three independent steps: (2Φ(z) − 1)³ = 0.95


def test_p_values_and_intervals_agree():
    study = make_study()
    effects = infer_effects(total_of(study, make_sites(study, SITES)))
    intervals = effects.intervals()
    inside = (intervals.low <= 0) & (intervals.high >= 0)
    assert np.array_equal(effects.p_values >= 0.05, inside)
    assert np.all(effects.adjusted_p_values >= effects.p_values)


def raw_effects(study, table):
    from fdtr.site.rows import read_trajectories

    sites = read_trajectories(table, study).by_site()
    factors = raw_factors(study.feature_map, *study.reward.range)
    return infer_effects(total_of(study, sites)).in_units(factors)


def test_raw_effects_do_not_depend_on_public_ranges():
    table = make_table(make_study(), SITES)
    wide = [
        {"name": "u", "effect": "shared", "range": [-3, 2]},
        {"name": "x", "effect": "specific", "range": [-5, 20]},
        {"name": "v", "effect": "shared", "range": [0, 4]},
        {"name": "y", "effect": "specific", "range": [-1, 1]},
    ]
    narrow = raw_effects(make_study(), table)
    for other in (
        make_study(covariates=wide),
        make_study(covariates=wide, features={"scale": "none"}),
        make_study(reward={"range": [-1, 3]}),
    ):
        found = raw_effects(other, table)
        assert np.allclose(found.estimates, narrow.estimates, rtol=1e-6)
        assert np.allclose(found.standard_errors, narrow.standard_errors, rtol=1e-6)


def test_a_raw_effect_is_that_of_a_regression_in_raw_units():
    study = make_study(actions={"levels": [0, 1], "degree": 1}, reward={"range": [0, 5]})
    table = make_table(study, {"a": 200}).to_pandas()
    first = table[table["step"] == 0]
    columns = [first[name] * term for term in (1.0, first["action"]) for name in ("u", "v")]
    own = [first[name] * term for term in (1.0, first["action"]) for name in ("x", "y")]
    design = np.column_stack([*columns, *own, np.ones(len(first)), first["action"]]).astype(float)
    theta, left, rank, _ = np.linalg.lstsq(design, first["reward"].to_numpy(dtype=float), rcond=None)
    errors = np.sqrt(np.diag(np.linalg.inv(design.T @ design)) * left[0] / (200 - rank))
    found = raw_effects(study, make_table(study, {"a": 200}))
    assert study.feature_map.names[:4] == ("u", "v", "a·u", "a·v")
    assert np.allclose(found.estimates[0], theta[:4], rtol=1e-8)
    assert np.allclose(found.standard_errors[0], errors[:4], rtol=1e-8)


def test_powers_levels_and_the_intercept_have_their_factors():
    study = make_study(
        covariates=[
            {"name": "u", "effect": "shared", "range": [0, 10], "basis": {"kind": "polynomial", "degree": 2}},
            {"name": "k", "effect": "shared", "range": [0, 2], "basis": {"kind": "categorical", "levels": [0, 1, 2]}},
            {"name": "s", "effect": "shared", "range": [0, 4], "basis": {"kind": "spline", "knots": [2], "degree": 1}},
        ],
        actions={"levels": [0, 1], "degree": 1},
        features={"intercept": "shared"},
        reward={"range": [0, 2]},
    )
    features = study.feature_map
    norm = np.sqrt(2 * (1 + 2 + 1 + 1))  # c² of DESIGN, "The study file"
    factors = dict(zip(features.names, raw_factors(features, 0, 2) * norm / 2, strict=True))
    assert factors["1"] == factors["a"] == factors["k=1"] == factors["a·s~1"] == pytest.approx(1)
    assert factors["u"] == factors["a·u"] == pytest.approx(0.1)
    assert factors["u^2"] == pytest.approx(0.01)


def test_sidak_holds_together_for_independent_estimates():
    for m in (1, 2, 15, 120):
        assert (2 * norm.cdf(sidak(m)) - 1) ** m == pytest.approx(0.95)
    assert np.isnan(sidak(0))


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.95])
def test_sidak_is_enough_under_correlation(correlation):
    rng = np.random.default_rng(0)
    common, own = rng.standard_normal((2, 40_000, 6))
    z = np.sqrt(correlation) * common[:, :1] + np.sqrt(1 - correlation) * own
    held = np.mean(np.abs(z).max(axis=1) <= sidak(6))
    assert held >= 0.95 - 4 * np.sqrt(0.95 * 0.05 / 40_000)


def test_holm_rejects_as_the_step_down_procedure_does():
    rng = np.random.default_rng(1)
    for _ in range(50):
        p = rng.random(12) ** 3
        adjusted = holm(p)
        order, rejected = np.argsort(p), np.zeros(12, dtype=bool)
        for place, index in enumerate(order):  # Holm (1979): from the smallest, stop at the first that is not
            if p[index] > 0.05 / (12 - place):
                break
            rejected[index] = True
        assert np.array_equal(adjusted <= 0.05, rejected)


def test_holm_keeps_the_shape_and_leaves_out_tests_that_were_not_made():
    p = np.array([[0.001, np.nan], [0.4, 0.03]])
    assert np.allclose(holm(p), [[0.003, np.nan], [0.4, 0.06]], equal_nan=True)
    assert np.isnan(holm([np.nan])).all()
    assert holm([]).shape == (0,)
    assert np.array_equal(holm([0.9, 0.8]), [1.0, 1.0])


def summaries(study, sites):
    return {name: fit_local(study, rows).summary for name, rows in sites.items()}


def test_sharing_with_copies_of_oneself_is_worth_them_all():
    study = make_study()
    own = fit_local(study, make_sites(study, {"a": 90})["a"]).summary.sums
    gain = gain_from_sharing(own, own + own + own)
    assert np.allclose(gain.worth, 270)
    assert np.allclose(gain.alone / gain.together, np.sqrt(3))


def test_worth_counts_the_patients_of_each_step():
    study = make_study(ends={"death": 0.0, "discharge": 1.0})
    own = fit_local(study, make_sites(study, {"a": 300}, ragged=True)["a"]).summary.sums
    assert own.n[0] > own.n[1] > own.n[2]
    gain = gain_from_sharing(own, own + own + own)
    np.testing.assert_allclose(gain.worth, np.tile(3 * own.n[:, None], gain.worth.shape[1]), rtol=1e-9)


def test_sharing_is_never_worth_less_than_the_sites_own_patients():
    study = make_study()
    sent = summaries(study, make_sites(study, {"a": 90, "b": 140, "c": 60}))
    total = combine(sent.values()).sums
    for summary in sent.values():
        gain = gain_from_sharing(summary.sums, total)
        assert np.all(gain.worth >= summary.sums.n[:, None])
        assert np.isfinite(gain.worth).all()


def test_what_a_site_cannot_know_alone_is_worth_infinitely_many_patients():
    study = make_study()
    sent = summaries(study, make_sites(study, {"a": 120, "b": 120}, actions={"a": [0, 1], "b": [0, 2]}))
    gain = gain_from_sharing(sent["a"].sums, combine(sent.values()).sums)
    names = study.feature_map.names
    assert np.isfinite(gain.worth[:, names.index("u")]).all()
    assert np.isposinf(gain.worth[:, names.index("a·u")]).all()
    assert np.isnan(gain.alone[:, names.index("a·u")]).all()
    assert np.isfinite(gain.together).all()


def test_what_nobody_knows_has_no_worth():
    study = make_study()
    sites = make_sites(study, {"a": 90, "b": 90}, constant_within_site=("u",))
    sent = summaries(study, sites)
    gain = gain_from_sharing(sent["a"].sums, combine(sent.values()).sums)
    assert np.isnan(gain.worth[:, study.feature_map.names.index("u")]).all()


def test_the_total_bounds_the_shared_part_of_every_sites_fit():
    """α‖(Σ⁻¹)_00‖^½, what the proof of Theorem 3 gives for θ⁰, is below both the printed bound and the total's."""
    study = make_study()
    sites = make_sites(study, {"a": 90, "b": 140, "c": 60})
    sent = summaries(study, sites)
    total = combine(sent.values())
    learning = study.learning
    settings = Settings(learning.pessimism, learning.ridge, learning.failure_probability, 0.0)
    features = study.feature_map
    from_total = theorem3_bound(total.sums, features.n_features, settings)
    for name, rows in sites.items():
        policy = fit_federated(study, rows, total, sent[name]).policy
        inverse = np.linalg.inv(policy.precision)[:, : features.n_shared, : features.n_shared]
        shared = policy.scale * np.sqrt(np.linalg.eigvalsh(inverse)[:, -1])
        assert np.all(shared <= from_total * (1 + 1e-9))
        assert np.all(shared <= policy.scale / np.sqrt(np.linalg.eigvalsh(policy.precision)[:, 0]) * (1 + 1e-9))


def test_the_bound_from_the_total_is_the_formula():
    study = make_study()
    total = combine(summaries(study, make_sites(study, {"a": 90, "b": 140})).values()).sums
    d, horizon, n = 15, 3, 230
    alpha = 0.5 * d * horizon * np.sqrt(np.log(2 * d * horizon * n / 0.1))
    expected = [alpha / np.sqrt(2.0 + np.linalg.eigvalsh(schur)[0]) for schur in total.schur]
    assert np.allclose(theorem3_bound(total, d, Settings(0.5, 2.0, 0.1, 0.0)), expected)
