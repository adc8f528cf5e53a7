"""What sharing gains, and Theorem 3's bound."""

import numpy as np
import pytest

from fdtr.inference import gain_from_sharing, theorem3_bound, theorem3_bound_from_total
from fdtr.learners.backward import Settings
from fdtr.site import fit_federated, fit_local
from fdtr.summary import combine
from worlds import make_sites, make_study

pytestmark = pytest.mark.quick


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
    from_total = theorem3_bound_from_total(total.sums, features.n_features, settings)
    for name, rows in sites.items():
        policy = fit_federated(study, rows, total, sent[name]).policy
        inverse = np.linalg.inv(policy.precision)[:, : features.n_shared, : features.n_shared]
        shared = policy.scale * np.sqrt(np.linalg.eigvalsh(inverse)[:, -1])
        assert np.all(shared <= from_total * (1 + 1e-9))
        assert np.all(shared <= theorem3_bound(policy.precision, policy.scale) * (1 + 1e-9))


def test_the_bound_from_the_total_is_the_formula():
    study = make_study()
    total = combine(summaries(study, make_sites(study, {"a": 90, "b": 140})).values()).sums
    d, horizon, n = 15, 3, 230
    alpha = 0.5 * d * horizon * np.sqrt(np.log(2 * d * horizon * n / 0.1))
    expected = [alpha / np.sqrt(2.0 + np.linalg.eigvalsh(schur)[0]) for schur in total.schur]
    assert np.allclose(theorem3_bound_from_total(total, d, Settings(0.5, 2.0, 0.1, 0.0)), expected)
