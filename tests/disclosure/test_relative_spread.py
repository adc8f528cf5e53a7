"""Sites that are not alike in a secure sum: what each tells of its variances, and how much its rows count."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from fdtr.disclosure import weighted_sums
from fdtr.disclosure.relative_spread import own_share, strengths
from fdtr.disclosure.rule_once import Draws, drawn
from fdtr.disclosure.variance_moments import is_one_sites, least_left, times_the_rest
from fdtr.disclosure.weighted_step import StepPlan
from fdtr.errors import ProtocolViolation
from fdtr.exchange.release import describe_message
from fdtr.site.fitting import fit_message
from fdtr.site.rows import read_trajectories
from fdtr.site.site_message import count_message, summarize
from random_tables import make_study, make_table

pytestmark = pytest.mark.quick
SECURE = {"secure_sum": True, "max_patients": 5000}
FIVE = [*({"name": name, "effect": "shared"} for name in "uvwyz"), {"name": "x"}]
TWO = [*({"name": name, "effect": "shared"} for name in "uv"), {"name": "x"}]


def study_of(covariates=FIVE, horizon=1, degree=2, **rules):
    actions = {"levels": [0, 1, 2], "degree": degree}
    return make_study(horizon=horizon, covariates=covariates, actions=actions, disclosure=SECURE | rules)


def site_of(study, n, seed=0, **columns):
    """A site with n patients, and actions in turn; `columns` (n, H) replace random ones."""
    table = make_table(study, {"a": n}, seed)
    columns = {"action": np.repeat(np.arange(n) % 3, study.horizon)} | columns
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(np.ravel(values)))
    return read_trajectories(table, study).by_site()["a"]


def around_half(study, width, n=600, seed=0):
    """A site whose column u varies uniformly around its middle, at each step by another width; rewards by 0.25."""
    rng = np.random.default_rng([3, seed])
    reward = 0.5 + 0.25 * (rng.random((n, study.horizon)) - 0.5)
    return site_of(study, n, seed, reward=reward, u=0.5 + np.atleast_1d(width) * (rng.random((n, study.horizon)) - 0.5))


def together(study, tables):
    counts = [count_message(study, table) for table in tables]
    return counts, study.combine_counts(counts)


def scales(study, table, common):
    """How much S is of what it is where all sites are taken to vary alike, step by step."""
    after, before = (summarize(study, table, common=c).summary.sums for c in (common, replace(common, spread=())))
    traces = [np.trace(sums.schur, axis1=1, axis2=2) for sums in (after, before)]
    return traces[0] / traces[1]


def ratios(study, table, own, common):
    """r of each block, before anything is taken out."""
    draws = drawn(b"key", table.patients.to_pylist(), 1)
    plan = StepPlan.of(table, study.feature_map, fit_message(study, table).fit, 0, study.rules, draws)
    return {action: r for action, (r, _) in strengths(study.count_layout, own, common, plan).items()}


def test_rows_of_a_site_that_varies_more_count_less_in_a_secure_sum():
    """At three actions a site varies 1.4 times as much as the eight others, in one column of five."""
    study = study_of(max_membership=0.55, min_sites=9)
    tables = [around_half(study, 0.25 if k else 0.35, seed=k) for k in range(9)]
    counts, common = together(study, tables)
    variances = counts[0].variances / counts[1].variances
    assert (np.abs(np.log2(variances[0, :, 0] / 1.96)) < 0.5).all()  # (0.35 / 0.25)², in quarters of octaves
    scale = float(scales(study, tables[0], common)[0])
    assert not common.functions
    assert 1 / 4 <= scale < 0.7
    assert scales(study, tables[1], common)[0] > 0.9  # by chance others vary a little less
    message, alike = (summarize(study, tables[0], common=c) for c in (common, replace(common, spread=())))
    first, before = message.summary.sums, alike.summary.sums
    for name in ("schur", "information"):  # a few rows that are far out count less still
        less = scale * getattr(before, name)
        assert np.linalg.norm(getattr(first, name) - less) < 0.25 * np.linalg.norm(less)
    [verdict] = [v for v in message.verdicts if v.rule == "SITES" and v.step == 0]
    assert verdict.measured.startswith("u at action ")
    assert "varies more than at the other sites together" in verdict.measured
    told = int(verdict.advice.removeprefix("All rows of the step count ").removesuffix("% as much."))
    assert scale <= told / 100 <= scale + 0.1
    *_, note, last = describe_message(study, message)
    assert note == f"  Note: {verdict.sentence}"
    assert last == "  Do not forward these lines."
    assert not [v for v in alike.verdicts if v.rule == "SITES" and v.step == 0]


def test_rows_of_sites_that_are_alike_count_as_they_do():
    study = study_of()
    for n_sites in (3, 9):
        tables = [around_half(study, 0.5, seed=k) for k in range(n_sites)]
        counts, common = together(study, tables)
        for own, table in zip(counts, tables, strict=True):
            # Without the site, and one that subtracts its part; of 200 patients of each the most are counted.
            left = (n_sites - 2) * study.count_layout.most_patients / 200
            assert all(1 / 2 < left * r < 3 for r in ratios(study, table, own, common).values())
            np.testing.assert_array_equal(scales(study, table, common), 1.0)


def test_the_residual_variance_of_a_site_whose_rows_count_less_is_its_own():
    """It is about 0.005, and at least 0.001 whatever the weights are."""
    study = study_of(max_membership=0.55, min_sites=9)
    tables = [around_half(study, 0.25 if k else 0.35, seed=k) for k in range(9)]
    _, common = together(study, tables)
    variances = []
    for c in (common, replace(common, spread=())):
        sums = summarize(study, tables[0], common=c).summary.sums
        variances.append(sums.schur[0].max() / sums.information[0].max())
    assert scales(study, tables[0], common)[0] < 0.7
    assert variances[0] == pytest.approx(variances[1], rel=0.2)  # LEVERAGE moves outcomes that are far out


def test_outcomes_are_judged_as_if_the_others_rows_counted_as_little(monkeypatch):
    """A site whose rows count less is no better hidden by others whose rows may do so as well."""
    study, plans = study_of(max_membership=0.55, min_sites=9), []
    tables = [around_half(study, 0.25 if k else 0.35, seed=k) for k in range(9)]
    _, common = together(study, tables)
    original = weighted_sums.judge_step
    monkeypatch.setattr(weighted_sums, "judge_step", lambda plan: plans.append(plan) or original(plan))
    summarize(study, tables[0], common=common)
    [plan] = plans
    assert plan.scale < 0.8
    for shown in (plan.shown_by_number, plan.shown_among_few):
        np.testing.assert_array_equal(shown, own_share(plan, common))


def test_a_column_that_only_one_site_varies_in_changes_nothing_beside_it():
    """All sites take it out, and the rows of the site count as before."""
    study = study_of(TWO, max_membership=0.55)
    rng = np.random.default_rng(1)
    tables = [site_of(study, 900, k, u=rng.random(900) if k == 0 else np.full(900, 0.5)) for k in range(6)]
    _, common = together(study, tables)
    assert {(action, functions) for _, action, functions in common.functions} >= {(a, (0,)) for a in range(3)}
    np.testing.assert_array_equal(scales(study, tables[0], common), 1.0)


def test_all_sites_take_out_a_column_of_which_one_holds_almost_all_that_varies():
    study = study_of(TWO)
    _, common = together(study, [around_half(study, 0.1 if k else 1.0, seed=k) for k in range(6)])
    assert common.functions == tuple((0, action, (0,)) for action in range(3))
    _, common = together(study, [around_half(study, 0.5 if k else 1.0, seed=k) for k in range(6)])
    assert not common.functions


def test_all_sites_take_a_column_out_where_rows_of_one_would_have_to_count_less_than_half():
    """A third site is hidden by a site whose rows count less: its sums are not left in the clear."""
    study = study_of(FIVE, horizon=5)
    tables = [around_half(study, np.full(5, 0.25 if k else 1.0), n=210, seed=k) for k in range(3)]
    _, common = together(study, tables)
    assert {(h, (0,)) for h in range(5)} == {(h, functions) for h, _, functions in common.functions}
    assert scales(study, tables[0], common).min() > 0.99
    study = study_of(max_membership=0.55, min_sites=9)
    for width in (0.3, 0.35, 0.4, 0.6, 1.0):
        tables = [around_half(study, 0.25 if k else width, seed=k) for k in range(9)]
        _, common = together(study, tables)
        assert scales(study, tables[0], common)[0] >= 1 / 4


def test_identical_sites_lose_little_by_chance():
    study = study_of(TWO, horizon=4)
    for sizes in ([150] * 9, [90] * 5, [300] + [60] * 11):
        tables = [around_half(study, np.full(4, 0.5), n=n, seed=k) for k, n in enumerate(sizes)]
        _, common = together(study, tables)
        assert common.functions == common.steps == ()


def test_a_site_that_varies_as_much_hides_nobody_from_itself():
    """One of two wide sites subtracts its part: the other is left with the narrow ones."""
    study, patients = study_of(TWO), {}
    for wide in (1, 2, 3):
        tables = [around_half(study, 1.0 if k < wide else 0.25, seed=k) for k in range(6)]
        counts, common = together(study, tables)
        patients[wide] = ratios(study, tables[0], counts[0], common)[0]
    alone = 16**2 / 4  # of five others one subtracts its part
    alone *= 200 / study.count_layout.most_patients  # and no more of their patients are counted
    assert alone / 2 < patients[1] < 2 * alone
    assert alone / 2 < patients[2] < 2 * alone
    assert patients[3] < alone / 8


def test_accomplices_that_vary_as_much_are_subtracted_together():
    ratio = {}
    for colluding in (0, 1):
        study = study_of(TWO, colluding=colluding)
        tables = [around_half(study, 1.0 if k < 3 else 0.25, seed=k) for k in range(8)]
        counts, common = together(study, tables)
        ratio[colluding] = ratios(study, tables[0], counts[0], common)[0]
    assert ratio[1] > 5 * ratio[0]


def test_one_step_in_which_a_site_differs_leaves_the_others_as_they_are():
    """At the second of four steps a column varies 1.75 times as much as at the eight other sites."""
    study = study_of(FIVE, horizon=4, max_membership=0.6, min_sites=9)
    widths = np.array([[0.2, 0.2, 0.2, 0.2], [0.2, 0.35, 0.2, 0.2]])
    tables = [around_half(study, widths[int(k == 0)], seed=k) for k in range(9)]
    _, common = together(study, tables)
    scale = scales(study, tables[0], common)
    assert scale[1] < 0.8
    assert (scale[[0, 2, 3]] > 0.9).all()


def test_where_actions_cannot_be_told_apart_the_step_has_one_variance():
    study = study_of(TWO, degree=1, max_membership=0.55, min_sites=9)
    tables = [around_half(study, 0.25 if k else 0.5, seed=k) for k in range(9)]
    counts, common = together(study, tables)
    assert counts[0].spread[0, 0].all()
    assert not counts[0].spread[0, 1:].any()
    assert ratios(study, tables[0], counts[0], common).keys() == {None}
    assert scales(study, tables[0], common)[0] < 0.9


@pytest.mark.parametrize("degree", [1, 2])
def test_a_variance_that_few_patients_make_is_not_told(degree):
    """In a column of two values as many as fifteen have to differ at each action; the site knows its own."""
    study = study_of(TWO, degree=degree)
    told = {}
    for few in (3, 4, 7, 12, 14, 30):
        at_each = few if degree == 2 else few / 3
        counts = count_message(study, site_of(study, 180, u=(np.arange(180) // 3 < at_each) * 1.0))
        told[few] = counts.spread[0, 0, 0].any()
        assert degree == 1 or few < 7 or counts.variances[0, 0, 0]
    assert told == {3: False, 4: False, 7: False, 12: False, 14: False, 30: True}


@pytest.mark.parametrize("value", ["one value", "doses"])
def test_a_variance_that_rows_of_small_weight_hide_in_no_count_is_not_told(value):
    """Twelve patients of each action differ in u, and up to ten others count little, as they are far out in v.

    Counts take these from every cell, as they may be any of them: what they tell of u is at most ten.
    """
    study, rng, n = study_of(TWO), np.random.default_rng(0), 900
    position = np.arange(n) // 3
    u = np.where(position < 12, 1.0 if value == "one value" else 0.3 + position / 20, 0.1)
    v = 0.5 + 0.01 * rng.standard_normal(n)
    far = (position >= 100) & (position < 110)
    v[far] = np.where(rng.random(far.sum()) < 0.5, 0.0, 1.0)
    counts = count_message(study, site_of(study, n, u=u, v=np.clip(v, 0, 1)))
    assert counts.patients[0, 0] < 300  # light rows
    assert counts.sends[0, :, 0].all()
    assert not counts.spread[0, :, 0].any()
    np.testing.assert_array_equal(
        count_message(study, site_of(study, n, v=v.clip(0, 1))).spread[0, :, 0] > 0, [[True] * 3] * 3
    )


def test_the_least_that_is_left_is_less_than_what_any_sites_leave():
    """Over random sites: whoever subtracts up to so many patients leaves at least this, and no site varies more."""
    rng = np.random.default_rng(5)
    for _ in range(300):
        n_sites = int(rng.integers(2, 8))
        n, v = 5 * rng.integers(3, 20, n_sites), rng.integers(1, 1000, n_sites) ** int(rng.integers(1, 3))
        moments = np.array([np.sum(n * v**k) for k in range(3)])
        for gone in range(n_sites):
            left = np.sum((n * v**2)[np.arange(n_sites) != gone])
            assert least_left(moments, int(n[gone])) <= left * (1 + 1e-9)
            assert least_left(moments, int(n.max())) <= left * (1 + 1e-9)
            if n[gone] < n.sum():
                others = np.sum((n * v)[np.arange(n_sites) != gone]) / (n.sum() - n[gone])
                assert times_the_rest(moments, int(n[gone])) >= v[gone] / others * (1 - 1e-9)
    alike = np.array([300, 3000, 30000])
    assert least_left(alike, 100) == pytest.approx(20000)
    assert times_the_rest(alike, 100) == pytest.approx(1.0)
    assert not is_one_sites(np.zeros(3, np.int64), 100, 1, 300)
    assert is_one_sites(alike, 100, 3, 300)
    assert not is_one_sites(alike, 100, 3, 600)
    assert not is_one_sites(alike, 100, 2, 300)


def test_from_sites_that_do_not_tell_their_variance_nothing_is_concluded():
    """Of twelve identical sites, one of 150 patients and eleven of 51 of whom few tell, nothing is taken out."""
    study = study_of(TWO, horizon=4)
    tables = [around_half(study, np.full(4, 0.5), n=150 if k == 0 else 51, seed=k) for k in range(12)]
    counts, common = together(study, tables)
    assert 0 < np.mean([site.spread[..., 0] > 0 for site in counts[1:]]) < 0.5
    assert common.functions == common.steps == ()


def test_a_site_larger_than_the_cap_knows_how_little_the_others_hide_it():
    """Its sums leave with all its patients, though it counts no more than the cap."""
    study = study_of(TWO)
    tables = [around_half(study, 0.5, n=3000 if k == 0 else 240, seed=k) for k in range(4)]
    counts, common = together(study, tables)
    fit = fit_message(study, tables[0]).fit
    plan = StepPlan.of(tables[0], study.feature_map, fit, 0, study.rules, Draws(np.zeros((1, 3000))))
    most = study.count_layout.most_patients
    assert most < 240 / 3
    np.testing.assert_allclose(own_share(plan, common), 1000 / (1000 + 2 * most))
    assert min(ratios(study, tables[0], counts[0], common).values()) > 0.5 * 1000 / (2 * most)


def test_totals_in_which_more_patients_tell_a_variance_than_there_are_are_refused():
    study = study_of(TWO)
    layout = study.count_layout
    counts = [count_message(study, around_half(study, 0.5, seed=k)) for k in range(3)]
    words = sum(layout.encode(site, lambda n: b"\1" * n) for site in counts)
    assert layout.decode(words, 3).spread[0, 0, 0, 0] == 3 * layout.most_patients
    words[-3 * 3 * len(layout.functions)] += np.uint64(5)
    with pytest.raises(ProtocolViolation, match="not those that 3 sites can have"):
        layout.decode(words, 3)


@pytest.mark.parametrize(("low", "high", "far"), [(0.1, 0.3, 1.0), (0.010, 0.0115, 1.0), (0.2, 0.201, 0.9)])
def test_two_values_that_are_close_are_found_beside_a_patient_who_is_far_out(low, high, far):
    study, position = study_of(TWO), np.arange(900) // 3
    u = np.where(position % 2 == 0, low, high)
    u[:3] = far
    v = ((position % 2 == 0) & (position < 10)) | ((position % 2 == 1) & (position % 4 < 2))
    assert count_message(study, site_of(study, 900, u=u, v=v * 1.0)).pairs[0, 0].any()
