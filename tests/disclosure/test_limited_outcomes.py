"""Limited outcomes: how many are moved, how far, what is said of it, and when a secure sum does without a site."""

from itertools import permutations

import numpy as np
import pyarrow as pa
import pytest

from fdtr.cli.check_output import in_short, may_send
from fdtr.disclosure import told_by_patients, weighted_sums
from fdtr.disclosure.limited_outcomes import LEAST_LEFT, MOST_LIMITED
from fdtr.disclosure.rules import largest_share, membership
from fdtr.exchange.release import describe_message
from fdtr.pipeline.run import ALLOWED, run
from fdtr.signing import HUB, Key
from fdtr.site.fitting import fit_federated, fit_message
from fdtr.site.rows import read_trajectories
from fdtr.site.site_check import agree_on_repairs, check, check_sites
from fdtr.site.site_message import count_message, summarize, weigh_message
from fdtr.study import Study
from fdtr.summary import combine
from random_tables import make_study
from refusals import refuses

pytestmark = pytest.mark.quick
TWO_ACTIONS = {"levels": [0, 1], "degree": 1}
SHARED = [{"name": "u", "effect": "shared"}, {"name": "v", "effect": "shared"}, {"name": "x"}]
SECURE = {"secure_sum": True, "max_patients": 5000}


def table_of(study, states, actions, rewards, site="a", order=None):
    """Rows of states (H, n, q), actions and rewards (H, n), in some `order` of patients."""
    horizon, n = actions.shape
    order = np.arange(n) if order is None else order
    columns = {
        "site": [site] * (horizon * n), "patient": np.tile([f"{site}{i}" for i in order], horizon),
        "step": np.repeat(np.arange(horizon), n), "action": actions[:, order].ravel(),
        "reward": rewards[:, order].ravel(),
        **{c.name: states[:, order, j].ravel() for j, c in enumerate(study.covariates)},
    }  # fmt: skip
    return pa.table(columns)


def rows_of(study, *arrays, **options):
    return read_trajectories(table_of(study, *arrays, **options), study)


def rare_events(seed, n, n_rare, horizon=6, noise=0.0):
    rng = np.random.default_rng(seed)
    states, actions = rng.random((horizon, 2 * n, 3)), np.arange(2 * n) % 2 * np.ones((horizon, 1), int)
    rewards = noise * rng.random((horizon, 2 * n))
    for h in range(horizon):
        for action in (0, 1):
            rewards[h, action + 2 * rng.choice(n, n_rare, replace=False)] = 1.0
    return states, actions, rewards


def plans_of(monkeypatch, study, rows):
    """The steps of a message when all repairs are made."""
    plans, original = [], weighted_sums.judge_step
    with monkeypatch.context() as patched:
        patched.setattr(weighted_sums, "judge_step", lambda plan: plans.append(plan) or original(plan))
        message = summarize(study, rows)
    return sorted(plans, key=lambda plan: plan.number), message


@pytest.mark.parametrize("seed", range(16))
def test_few_outcomes_are_moved_and_none_by_almost_all_of_its_difference(monkeypatch, seed):
    """Over random tables with rare events, in noise of some size or in none."""
    rng = np.random.default_rng([5, seed])
    n, n_rare, noise = int(rng.choice([40, 75, 120])), int(rng.integers(3, 9)), float(rng.choice([0, 0.02, 0.1, 0.4]))
    study = make_study(horizon=4, covariates=SHARED, actions=TWO_ACTIONS, disclosure={"min_patients": 20})
    plans, _ = plans_of(monkeypatch, study, rows_of(study, *rare_events(seed, n, n_rare, 4, noise)))
    for plan in plans:
        for action in plan.kept_actions:
            there = plan.actions == action
            changed = plan.outcomes_sent[:, there] != plan.measured[:, there]
            assert changed.any(axis=0).sum() <= MOST_LIMITED * there.sum()
            rewards, sent = plan.measured[0, there], plan.outcomes_sent[0, there]
            usual = np.median(rewards)
            rare = np.abs(rewards - usual) > 0.5
            assert ((sent - usual)[rare] / (rewards - usual)[rare] >= LEAST_LEFT - 1e-9).all()
            if plan.number == 3:  # the last step has no V
                assert (np.abs(sent - rewards) <= (1 - LEAST_LEFT) * np.abs(rewards - usual).max() * 1.5).all()


def test_rewards_that_are_all_the_same_tell_of_nobody(monkeypatch):
    """Rewards from −1 to 1 that are 0 at all steps but the last: what fits leave of them are rounding errors.

    With the weights of one seed in four a value of the next step is limited; these are others.
    """
    study = make_study(horizon=3, covariates=SHARED, reward={"range": [-1, 1]}, learning={"seed": 1})
    rng, n = np.random.default_rng(0), 120
    states, actions = 0.5 + 0.3 * (rng.random((3, n, 3)) - 0.5), np.arange(n) % 3 * np.ones((3, 1), int)
    rewards = np.zeros((3, n))
    rewards[-1] = np.where(rng.random(n) < 0.3, 1.0, -1.0)
    plans, message = plans_of(monkeypatch, study, rows_of(study, states, actions, rewards))
    others, _ = plans_of(monkeypatch, study, rows_of(study, states, actions, 2 * rng.random((3, n)) - 1))
    for plan, usual in zip(plans, others, strict=True):
        assert not plan.limited.any()
        np.testing.assert_array_equal(plan.weights, usual.weights)  # smaller for leverage alone
    other = summarize(study, rows_of(study, states, actions, rewards, order=rng.permutation(n)))
    for name, array in message.summary.sums.packed().items():
        np.testing.assert_allclose(other.summary.sums.packed()[name], array, rtol=1e-9, atol=1e-9)


def moved_by_leverage():
    """A study and rows whose outcomes LEVERAGE alone limits."""
    study = make_study(horizon=6, covariates=SHARED, actions=TWO_ACTIONS)
    return study, rows_of(study, *rare_events(3, 75, 5))


def test_outcomes_that_leverage_limits_are_told_to_the_site(monkeypatch):
    study, rows = moved_by_leverage()
    plans, message = plans_of(monkeypatch, study, rows)
    assert not any("largest outcomes" in what for plan in plans for what in plan.repairs.get("NONZERO", []))
    moved = [int(plan.limited.sum()) for plan in plans]
    assert any(moved)
    assert message.kept.limited == tuple(moved)
    lines = [line for line in describe_message(study, message) if line.startswith("  Step ")]
    for step, count in enumerate(moved):
        words = f"part of the outcomes of {count} patient{'s' * (count != 1)} (LEVERAGE)"
        assert sum(words in line and line.startswith(f"  Step {step} ") for line in lines) == bool(count)
    site = check(study, rows)
    assert "LEVERAGE" in {verdict.rule for verdict in site.repaired}


def test_check_says_all_directions_where_outcomes_are_limited():
    study, rows = moved_by_leverage()
    site = check(study, rows)
    assert site.sends_all_directions
    assert not site.sends_all
    most = max(site.kept.limited)
    limited = f"outcomes of up to {most} patient{'s' * (most != 1)} a step are limited"
    assert may_send(site) == f"all directions; {limited}"
    assert any(f"May leave:  a may send all directions; {limited}"[:40] in line for line in in_short(study, [site]))
    assert "all directions at 2" in " ".join(in_short(study, [site, site]))


def secure_sites(n_rare=6):
    study = make_study(horizon=5, covariates=SHARED, actions=TWO_ACTIONS, disclosure=SECURE)
    return study, {z: rows_of(study, *rare_events([k, 9], 75, n_rare, 5), z) for k, z in enumerate("abc")}


def test_a_site_refuses_a_secure_sum_that_would_show_a_rare_outcome_after_counts_were_opened(monkeypatch):
    """Before counts functions are taken out instead: here that is left out, as if the other sites hid much more."""
    study, sites = secure_sites()
    common = study.combine_counts([count_message(study, rows) for rows in sites.values()])
    assert all(summarize(study, rows, common=common).kept.share for rows in sites.values())
    monkeypatch.setattr("fdtr.disclosure.relative_spread.own_share", lambda plan, _: np.full(len(plan.weights), 0.999))
    monkeypatch.setattr("fdtr.disclosure.weighted_sums.share_among_alike", lambda *_: 0.0)
    common = study.combine_counts([count_message(study, rows) for rows in sites.values()])
    monkeypatch.setattr("fdtr.disclosure.limited_outcomes.MOST_LIMITED", 0.0)
    with refuses(
        "LEVERAGE",
        match="(?s)would show patients with a rare outcome.*it may receive only.*Nothing was written. Go on without",
    ):
        summarize(study, sites["a"], common=common)
    assert any(verdict.refuses for verdict in check(study, sites["a"], common=common).verdicts)


@pytest.mark.parametrize("n_rare", [3, 6])
def test_sites_with_rare_outcomes_send_what_they_counted(n_rare):
    """Among three sites alike none is refused: what outcomes tell is judged before counts as well."""
    study, sites = secure_sites(n_rare)
    common = agree_on_repairs(study, sites, {z: fit_message(study, rows) for z, rows in sites.items()})
    for rows in sites.values():
        summarize(study, rows, common=common)


def two_valued(seed, n, n_lasting, horizon):
    """Of n patients at each of two actions one in twenty has a high outcome at a step, and `n_lasting` at all steps."""
    rng = np.random.default_rng(seed)
    states, actions = rng.random((horizon, 2 * n, 2)), np.arange(2 * n) % 2 * np.ones((horizon, 1), int)
    high = rng.random((horizon, 2 * n)) < 0.05
    high[:, : 2 * n_lasting] = True
    return states, actions, 0.9 * high + 0.1 * rng.random(high.shape)


def nine_small_sites():
    """A study, and rows of nine sites in which functions depend on how many others a site reckons with."""
    study = make_study(horizon=3, covariates=SHARED[1:], actions=TWO_ACTIONS, disclosure=SECURE)
    tables = [table_of(study, *two_valued([1, k], 12, 0, 3), site) for k, site in enumerate("abcdefghi")]
    return study, read_trajectories(pa.concat_tables(tables), study)


def test_a_roster_says_how_many_sites_a_site_reckons_with():
    study, data = nine_small_sites()
    sites = data.by_site()
    keys = {name: Key.new().public for name in (*sites, HUB)}
    signed = Study.model_validate({**study.model_dump(), "roster": keys})
    assert signed.fingerprint == study.fingerprint
    digests = []
    for rows in sites.values():
        few, nine = (count_message(study, rows, n_sites=n).digest for n in (None, 9))
        assert [count_message(signed, rows, n_sites=n).digest for n in (None, 3, 30)] == [nine] * 3
        digests.append(few == nine)
    assert not all(digests)


def test_a_table_of_many_sites_is_checked_and_run_as_so_many():
    study, data = nine_small_sites()
    sites = data.by_site()
    common = study.combine_counts([count_message(study, rows, n_sites=9) for rows in sites.values()])
    messages = {site: summarize(study, rows, common=common, n_sites=9) for site, rows in sites.items()}
    kept = [message.kept for message in messages.values()]
    assert kept != [summarize(study, rows, common=common).kept for rows in sites.values()]
    results = run(study, data)
    for checks in (results.checks.values(), check_sites(study, sites)):
        assert [one.kept for one in checks] == kept
    total = combine(message.summary for message in messages.values())
    for site, rows in sites.items():
        expected = fit_federated(study, rows, total, messages[site].summary)
        np.testing.assert_array_equal(results.methods[ALLOWED][site].theta, expected.theta)


def test_one_site_is_checked_as_so_many_like_it():
    study, data = nine_small_sites()
    asked, alone = [], []
    for site, rows in data.by_site().items():
        common, fitted = study.combine_counts([count_message(study, rows, n_sites=9)] * 9), fit_message(study, rows)
        nine, few = (weigh_message(study, rows, fitted, None, common, n, make=False).kept for n in (9, None))
        asked.append(check_sites(study, {site: rows}, n_sites=9)[0].kept)
        alone.append(few)
        assert asked[-1] == nine
    assert asked != alone


def part_of(monkeypatch, study, rows, common, n_sites):
    """The steps of a site's part of a secure sum, and whether the site refuses it."""
    plans, original = [], weighted_sums.judge_step
    with monkeypatch.context() as patched:
        patched.setattr(weighted_sums, "judge_step", lambda plan: plans.append(plan) or original(plan))
        weighted = weigh_message(study, rows, fit_message(study, rows), None, common, n_sites, make=False)
    return sorted(plans, key=lambda plan: plan.number), any(verdict.refuses for verdict in weighted.verdicts)


def most_told(parts):
    """The largest AUC for a patient of one of three sites to another one, which subtracts its part from the total.

    By what rows and outcomes tell in the site's own sums, beside the patients of the third site, as rows count in both.
    """
    largest, most = largest_share(0.8), 0.0
    for part, other in permutations(parts, 2):
        rows, outcomes = np.zeros((2, part[0].step.n))
        for own, third in zip(part, other, strict=True):
            n, share = own.step.n, np.zeros(own.step.n)
            for block in own.blocks:
                here = own.scale**2 * own.patients(block)
                there = third.scale**2 * third.patients(block) if block in third.blocks else 0
                share[own.rows_of(block)] = here / (here + there)
            rows[:n] += share * told_by_patients.of_rows(own, 0.9 * largest)
            outcomes[:n] += share * told_by_patients.of_outcomes(own).sum(axis=0)
        most = max(most, float((rows + np.maximum(outcomes, 0)).max()))
    return membership(most)


@pytest.mark.parametrize(("n", "n_lasting", "horizon"), [(20, 0, 5), (30, 1, 5), (30, 1, 8)])
def test_where_three_of_nine_sites_are_left_no_part_shows_a_rare_outcome(monkeypatch, n, n_lasting, horizon):
    """Before counts a site reckons with six, of which five are left; afterwards the totals say that two are.

    Measured: AUC .87 to .94 in parts that are refused. While all rows of such a site counted less instead, which the
    others did not know, parts of these tables with up to .87 were sent.
    """
    study = make_study(horizon=horizon, covariates=SHARED[1:], actions=TWO_ACTIONS, disclosure=SECURE)
    told, refused = [], []
    for seed in range(3):
        sites = [rows_of(study, *two_valued([seed, k], n, n_lasting, horizon), site) for k, site in enumerate("abc")]
        common = study.combine_counts([count_message(study, rows, n_sites=9) for rows in sites])
        parts, refuse = zip(*(part_of(monkeypatch, study, rows, common, 9) for rows in sites), strict=True)
        told.append(most_told(parts))
        refused.append(any(refuse))
    assert max(told) > 0.85
    assert all(one or auc <= 0.82 for auc, one in zip(told, refused, strict=True))


def test_few_outcomes_far_from_all_others_are_named_where_a_site_is_refused():
    study = make_study(horizon=1, covariates=SHARED, actions=TWO_ACTIONS)
    with refuses("NONZERO", match="a wider range of the reward does not help: drop or clip that outcome"):
        summarize(study, rows_of(study, *rare_events(0, 75, 2, 1)))
