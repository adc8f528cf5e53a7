"""Limited outcomes: how many are moved, how far, what is said of it, and when a secure sum does without a site."""

import numpy as np
import pyarrow as pa
import pytest

from fdtr.cli.check_output import in_short, may_send
from fdtr.disclosure import weighted_sums
from fdtr.disclosure.limited_outcomes import LEAST_LEFT, MOST_LIMITED
from fdtr.exchange.release import describe_message
from fdtr.site.fitting import fit_message
from fdtr.site.rows import read_trajectories
from fdtr.site.site_check import agree_on_repairs, check
from fdtr.site.site_message import count_message, summarize
from random_tables import make_study
from refusals import refuses

pytestmark = pytest.mark.quick
TWO_ACTIONS = {"levels": [0, 1], "degree": 1}
SHARED = [{"name": "u", "effect": "shared"}, {"name": "v", "effect": "shared"}, {"name": "x"}]
SECURE = {"secure_sum": True, "max_patients": 5000}


def rows_of(study, states, actions, rewards, site="a", order=None):
    """Rows of states (H, n, q), actions and rewards (H, n), in some `order` of patients."""
    horizon, n = actions.shape
    order = np.arange(n) if order is None else order
    columns = {
        "site": [site] * (horizon * n), "patient": np.tile([f"{site}{i}" for i in order], horizon),
        "step": np.repeat(np.arange(horizon), n), "action": actions[:, order].ravel(),
        "reward": rewards[:, order].ravel(),
        **{c.name: states[:, order, j].ravel() for j, c in enumerate(study.covariates)},
    }  # fmt: skip
    return read_trajectories(pa.table(columns), study)


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
    """Rewards from −1 to 1 that are 0 at all steps but the last: what fits leave of them are rounding errors."""
    study = make_study(horizon=3, covariates=SHARED, reward={"range": [-1, 1]})
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


def test_few_outcomes_far_from_all_others_are_named_where_a_site_is_refused():
    study = make_study(horizon=1, covariates=SHARED, actions=TWO_ACTIONS)
    with refuses("NONZERO", match="a wider range of the reward does not help: drop or clip that outcome"):
        summarize(study, rows_of(study, *rare_events(0, 75, 2, 1)))
