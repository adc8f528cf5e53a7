"""Summaries: adding is pooling, subtracting takes out exactly what went in."""

from itertools import permutations

import numpy as np
import pytest

import paper_algorithms as paper
from fdtr.errors import ChangedSummary, InvalidSums, OtherStudy, WrongSite
from fdtr.site.fitting import fit_local
from fdtr.site.rows import read_trajectories
from fdtr.summary import SiteSummary, combine
from fdtr.sums import Sums
from random_tables import make_sites, make_study, make_table

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def study():
    return make_study()


@pytest.fixture(scope="module")
def sites(study):
    return make_sites(study, {"a": 80, "b": 60, "c": 120})


@pytest.fixture(scope="module")
def summaries(study, sites):
    return {name: fit_local(study, rows).summary for name, rows in sites.items()}


def test_combining_does_not_depend_on_order(summaries):
    totals = [combine(order) for order in permutations(summaries.values())]
    assert all(total == totals[0] for total in totals)


def test_adding_is_commutative_and_associative(summaries):
    a, b, c = summaries.values()
    assert (a + b).sums.close_to((b + a).sums)
    assert ((a + b) + c).sums.close_to((a + (b + c)).sums)
    assert (a + b + c).sums.close_to(combine([a, b, c]).sums)
    assert (a + b).members == (b + a).members


def test_a_site_that_leaves_is_removed(summaries):
    a, b, c = summaries.values()
    left = combine([a, b, c]) - b
    assert left.sites == ("a", "c")
    assert left.sums.close_to(combine([a, c]).sums)


def test_a_site_cannot_be_added_twice(summaries):
    a, b, _ = summaries.values()
    with pytest.raises(WrongSite, match="'a' is already in the total"):
        (a + b) + a
    with pytest.raises(WrongSite, match="'a' is already in the total"):
        combine([a, b, a])


def test_only_the_summary_that_was_sent_can_be_taken_out(study, sites, summaries):
    a, b, _ = summaries.values()
    fewer = fit_local(study, sites["a"].select(np.arange(80) > 0)).summary
    with pytest.raises(ChangedSummary, match="not the one that went into the total"):
        combine([a, b]) - fewer
    with pytest.raises(WrongSite, match="does not contain site 'a'"):
        b.as_total() - a
    with pytest.raises(WrongSite, match="nothing to combine"):
        combine([])


def test_other_studies_and_shapes_are_refused(summaries):
    a, b, _ = summaries.values()
    with pytest.raises(OtherStudy, match="different studies"):
        a + SiteSummary("b", "0" * 64, b.sums)
    shorter = Sums(*(getattr(b.sums, name)[:2] for name in b.sums.__dataclass_fields__))
    with pytest.raises(OtherStudy, match="3 steps and 6 shared features, the other 2"):
        a + SiteSummary("b", a.fingerprint, shorter)


def test_a_message_holds_just_the_numbers_it_should(study, summaries):
    packed = summaries["a"].sums.packed()
    d0, horizon = study.feature_map.n_shared, study.horizon
    assert sum(array.size for array in packed.values()) == horizon * (d0 * (d0 + 1) + 3 * d0 + 3)
    assert Sums.unpacked(packed) == summaries["a"].sums


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ("missing", OtherStudy, "holds the arrays information, "),
        ("extra", OtherStudy, "holds the arrays information, "),
        ("shape", OtherStudy, "their shapes disagree"),
        ("dtype", OtherStudy, "holds the arrays information, "),
        ("nan", InvalidSums, "numbers that are not finite"),
    ],
    ids=["missing", "extra", "shape", "dtype", "nan"],
)
def test_numbers_that_do_not_fit_are_refused(summaries, change, error, match):
    packed = {name: array.copy() for name, array in summaries["a"].sums.packed().items()}
    if change == "missing":
        del packed["n"]
    elif change == "extra":
        packed["rows"] = np.zeros(3)
    elif change == "shape":
        packed["schur"] = packed["schur"][:, 1:]
    elif change == "dtype":
        packed["n"] = packed["n"].astype(np.float32)
    else:
        packed["schur"][0, 0] = np.nan
    with pytest.raises(error, match=match):
        Sums.unpacked(packed)


def test_sums_are_the_residualised_regression(study, sites, summaries):

    d0 = study.feature_map.n_shared
    sums = summaries["a"].sums
    for h, rows in enumerate(paper.dense(sites["a"], study.feature_map)):
        own = rows.phi[:, d0:]
        shared = rows.phi[:, :d0] - own @ np.linalg.lstsq(own, rows.phi[:, :d0], rcond=None)[0]
        np.testing.assert_allclose(sums.schur[h], shared.T @ shared, rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(sums.schur_reward[h], shared.T @ rows.reward, rtol=1e-8, atol=1e-10)
        _, [rss], rank, _ = np.linalg.lstsq(rows.phi, rows.reward, rcond=None)
        variance = rss / (len(own) - rank)
        np.testing.assert_allclose(sums.information[h], sums.schur[h] / variance, rtol=1e-8)
        np.testing.assert_allclose(sums.information_moment[h], sums.schur_reward[h] / variance, rtol=1e-8, atol=1e-9)
        effect = np.linalg.lstsq(rows.phi, rows.reward, rcond=None)[0][:d0]
        square = effect @ sums.schur[h] @ effect / variance
        np.testing.assert_allclose(sums.information_square[h], square, rtol=1e-7)
        assert sums.rank[h] == d0
        assert sums.n[h] == 80


def test_degrees_of_freedom_count_independent_features(study):

    rows = make_sites(study, {"a": 60}, duplicate=("y", "x"))["a"]  # 15 features, 12 of them independent
    sums = fit_local(study, rows).summary.sums
    dense = paper.dense(rows, study.feature_map)[0]
    theta, _, rank, _ = np.linalg.lstsq(dense.phi, dense.reward, rcond=1e-9)
    variance = np.sum((dense.reward - dense.phi @ theta) ** 2) / (60 - rank)
    assert rank == 12
    np.testing.assert_allclose(sums.information[0], sums.schur[0] / variance, rtol=1e-8)


def test_the_variance_has_a_floor(study):
    table = make_table(study, {"a": 200})
    rewards = 0.5 + 1e-4 * np.array(table["reward"])
    table = table.set_column(table.column_names.index("reward"), "reward", [rewards])
    sums = fit_local(study, read_trajectories(table, study)).summary.sums
    np.testing.assert_allclose(sums.information, sums.schur / 0.001, rtol=1e-12)


def test_a_digest_covers_the_site(summaries):
    a = summaries["a"]
    assert SiteSummary("z", a.fingerprint, a.sums).digest != a.digest
    assert SiteSummary("a", "0" * 64, a.sums).digest != a.digest


def test_summaries_subtract(summaries):
    a, b, _ = summaries.values()
    assert ((a + b) - b).sums.close_to(a.sums)
    assert (a - a).members == ()


def test_too_few_patients_carry_no_inference(study):
    # 12 patients, four at each action: the site's own 9 features leave 3 directions to the shared, and no residual.
    table = make_table(study, {"a": 12})
    actions = np.arange(36) // 3 % 3
    table = table.set_column(table.column_names.index("action"), "action", [actions])
    summary = fit_local(study, read_trajectories(table, study)).summary
    assert summary.sums.schur.any()
    for name in ("information", "information_moment", "information_square", "rank"):
        assert not getattr(summary.sums, name).any()
