"""Many sites fitted at once: the same sums, total and policies as one site after another."""

from dataclasses import fields, replace

import numpy as np
import pytest

from fdtr.disclosure import Message
from fdtr.errors import ChangedSummary, InvalidSettings, OtherStudy, UnknownSite
from fdtr.exchange.validity import check_site
from fdtr.exchange.wire import encode_message
from fdtr.hub import combine_messages
from fdtr.learners import batched_fits
from fdtr.simulation import NO_DISCLOSURE_RULES
from fdtr.site.fitting import fit_federated, fit_local
from fdtr.site.many_sites import fit_many, fit_many_federated
from fdtr.site.rows import partition_table, read_trajectories
from fdtr.summary import combine
from random_tables import make_study, make_table

pytestmark = pytest.mark.quick

SIZES = {f"site-{k:02}": n for k, n in enumerate([40, 3, 40, 25, 1, 160, 40, 2, 60, 40, 12, 40, 30])}
STUDIES = {
    "paper": {},
    "rewards": {"learning": {"share": "reward", "sharing": 0.3}},
    "noise units": {"learning": {"pessimism": {"noise": 0.03}}},
    "misspecified": {"learning": {"misspecification": 0.01, "sharing": 0.5}},
    "ends": {"ends": {"death": 0.0, "discharge": 1.0}},
    "all shared": {"covariates": [{"name": "u", "effect": "shared"}, {"name": "v", "effect": "shared"}],
                   "features": {"intercept": "none"}},
    "splines": {"covariates": [{"name": "u", "effect": "shared", "basis": {"kind": "spline", "knots": [0.3, 0.6]}},
                               {"name": "x", "interacts": False},
                               {"name": "c", "basis": {"kind": "categorical", "levels": [0, 1]}}]},
    "categorical actions": {"actions": {"levels": [3, 0, 1], "basis": "categorical"},
                            "features": {"intercept": "shared"}},
}  # fmt: skip
TABLES = {
    "plain": {},
    "some actions": {"actions": {"site-00": [0], "site-03": [0, 1], "site-09": [1]}},
    "duplicates": {},
    "constant": {"constant_within_site": ("u",)},
}


def study_and_data(study, table):
    study = make_study(disclosure=NO_DISCLOSURE_RULES, **STUDIES[study])
    first, second = (covariate.name for covariate in study.covariates[:2])
    duplicate = (first, second) if table == "duplicates" else None
    made = make_table(study, SIZES, seed=3, ragged=bool(study.ends), duplicate=duplicate, **TABLES[table])
    for covariate in study.covariates:
        if covariate.basis.kind == "categorical":
            place, values = made.column_names.index(covariate.name), np.array(made[covariate.name])
            made = made.set_column(place, covariate.name, [np.round(values)])
    return study, read_trajectories(made, study)


def assert_close(found, expected, what, tolerance=1e-10):
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * scale, err_msg=what)


@pytest.mark.parametrize("rows_at_once", [100, 4096])
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("study", STUDIES)
def test_all_is_as_one_site_after_another(study, table, rows_at_once, monkeypatch):
    monkeypatch.setattr(batched_fits, "ROWS_AT_ONCE", rows_at_once)
    study, data = study_and_data(study, table)
    alone = {site: fit_local(study, rows) for site, rows in data.by_site().items()}
    local = fit_many(study, data)
    assert local.sites == tuple(sorted(SIZES))
    for site, fit in alone.items():
        sums, expected = local.summary(site).sums, fit.summary.sums
        for field in fields(sums):
            # σ̂² is rᵀr less what is explained, a difference of almost equal numbers where a site has few patients more
            # than features, or nearly collinear ones: both ways round it by this much, and W, v and u divide by it.
            tolerance = 1e-6 if field.name.startswith("information") else 1e-10
            what = f"{field.name} of {site}"
            assert_close(getattr(sums, field.name), getattr(expected, field.name), what, tolerance)
        assert_same_policy(local.policy(site), fit.policy)
    total = local.total()
    together = fit_many_federated(study, data, local)
    for site, rows in data.by_site().items():
        one = fit_federated(study, rows, total, local.summary(site))
        assert_same_policy(together.policy(site), one.policy)


def assert_same_policy(found, expected):
    assert_close(found.theta, expected.theta, f"θ of {found.site}")
    assert_close(found.precision, expected.precision, f"Σ of {found.site}")
    assert_close(np.array(found.scale), np.array(expected.scale), f"α of {found.site}")
    differ = {
        name
        for name in ("study", "fingerprint", "site", "method", "version", "offset", "settings")
        if getattr(found, name) != getattr(expected, name)
    }
    assert not differ


def test_the_total_is_that_of_the_summaries_to_the_last_bit():
    study, data = study_and_data("paper", "some actions")
    local = fit_many(study, data)
    summaries = [local.summary(site) for site in data.sites]
    assert local.total() == combine(summaries) == combine_messages(study, summaries[::-1])
    assert [summary.digest for summary in summaries] == list(local.digests)


def test_summaries_are_such_as_a_hub_accepts():
    study, data = study_and_data("paper", "some actions")
    local = fit_many(study, data)
    for site in data.sites:
        check_site(local.summary(site).sums, study.rules.norm_bound)


def test_a_summary_is_no_message():
    """What disclosure did not release cannot be written, however it was fitted."""
    study, data = study_and_data("paper", "plain")
    summary = fit_many(study, data).summary("site-00")
    with pytest.raises(TypeError, match=r"made by disclosure\.release"):
        Message(summary, (), 0.0, object())
    with pytest.raises(AttributeError):
        encode_message(summary)


def test_sites_subtract_only_what_is_in_the_total():
    study, data = study_and_data("paper", "plain")
    local = fit_many(study, data)
    with pytest.raises(ChangedSummary, match="does not contain the summaries of these sites"):
        fit_many_federated(study, data, local, local.total() - local.summary("site-03"))
    with pytest.raises(OtherStudy, match="belong to another study"):
        fit_many_federated(study, data, local, replace(local.total(), fingerprint="0" * 64))
    with pytest.raises(OtherStudy, match="secure sum"):
        fit_many_federated(study, data, local, replace(local.total(), resolution=2.0**-30))
    with pytest.raises(UnknownSite, match="no fit of site 'nowhere' among these 13 sites"):
        local.policy("nowhere")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"learning": {"ridge": "auto", "share": "auto"}}, "leaves ridge, share open"),
        ({"learning": {"pessimism": "auto"}}, "leaves pessimism open"),
        ({"disclosure": {"epsilon": 1.0, "delta": 1e-6}}, "without epsilon"),
        ({"disclosure": {"payload": "gram"}}, 'payload = "gram"'),
        ({"disclosure": {"small_step": "withhold"}}, "small_step"),
    ],
)
def test_a_study_that_needs_one_site_after_another_is_refused(changes, match):
    study = make_study(**changes)
    data = read_trajectories(make_table(study, {"a": 20, "b": 30}), study)
    with pytest.raises(InvalidSettings, match=match):
        fit_many(study, data)


def test_sites_of_like_size_are_fitted_together(monkeypatch):
    monkeypatch.setattr(batched_fits, "ROWS_AT_ONCE", 100)
    parts = batched_fits.batches(np.array([10, 500, 20, 30, 40, 10]))
    assert [part.tolist() for part in parts] == [[0, 2, 5], [3, 4], [1]]


def test_a_partition_may_hold_the_sites(tmp_path):
    study, data = study_and_data("ends", "plain")
    table = make_table(study, SIZES, seed=3, ragged=True)
    ordered = read_trajectories(table.sort_by("patient"), study)
    from_disk = fit_many(study, partition_table(study, table, tmp_path / "rows"))
    assert data.sites == from_disk.sites
    assert np.array_equal(fit_many(study, ordered).theta, from_disk.theta)
