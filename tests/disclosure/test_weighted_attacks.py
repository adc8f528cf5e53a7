"""Attacks on messages that pass the rules for exact sums: each succeeds on those, and fails on weighted, repaired ones.

The attacker has the study file and a message. Further knowledge is named where an attack needs it.
"""

from itertools import product

import numpy as np
import pyarrow as pa
import pytest

from fdtr.disclosure.blocks import Design, directions_of
from fdtr.site.rows import read_trajectories
from fdtr.site.site_message import summarize
from random_tables import make_study, make_table

EXACT = {"jitter": 0}
N_ACTIONS = 3


def message_of(covariates, columns, disclosure, rewards=None, key=0):
    """The message of one step, and its study; `key` names the patients, and so changes their weights."""
    n = len(columns["action"])
    study = make_study(horizon=1, covariates=covariates, disclosure=disclosure)
    table = make_table(study, {"a": n}, seed=3)
    ids = {"patient": [f"{key}-{i}" for i in range(n)]}
    for name, values in (ids | columns | ({} if rewards is None else {"reward": rewards})).items():
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    return study, summarize(study, read_trajectories(table, study))


def block_of(study, message, action):
    """S_a and s_r of one action, which everybody can compute from a message."""
    features, sums = study.feature_map, message.summary.sums
    v = directions_of(Design(features, tuple(range(N_ACTIONS))).within(action), features.n_shared)
    return v.T @ sums.schur[0] @ v, v.T @ sums.schur_reward[0]


def counts_of(variance, n):
    """How many of n patients have a value of 1, by n₁(n − n₁)/n; both of two that fit."""
    root = np.sqrt(max(n * n / 4 - n * variance, 0.0))
    return n / 2 - root, n / 2 + root


TWO = [{"name": "u", "effect": "shared"}, {"name": "v", "effect": "shared"}, {"name": "x"}]


@pytest.mark.quick
def test_the_cell_of_two_columns_is_read_off_exact_sums_and_taken_out_of_weighted_ones():
    """Known: how many patients got the action. Five of them have both traits; each trait alone is frequent."""
    n, action = 900, np.arange(900) % 3
    u, position = np.arange(n) // 3 % 2, np.arange(n) // 3
    v = np.where(u == 1, position < 10, position % 4 < 2)  # of the patients with u, five have v too
    columns = {"action": action, "u": u * 1.0, "v": v * 1.0, "x": np.zeros(n)}
    there = action == 0
    n_there, both = int(there.sum()), int(np.sum(there & (u == 1) & v))
    assert 0 < both < 11
    study, message = message_of(TWO, columns, EXACT)
    schur, _ = block_of(study, message, 0)
    fits = [
        (n_u, n_v, schur[0, 1] + n_u * n_v / n_there)
        for n_u, n_v in product(counts_of(schur[0, 0], n_there), counts_of(schur[1, 1], n_there))
    ]
    truth = (np.sum(there & (u == 1)), np.sum(there & v), both)
    assert min(np.abs(np.subtract(fit, truth)).max() for fit in fits) < 1e-6
    study, message = message_of(TWO, columns, {})
    schur, reward = block_of(study, message, 0)
    assert np.abs(schur[1]).max() < 1e-9
    assert abs(reward[1]) < 1e-9
    assert abs(min(counts_of(schur[0, 0] / 0.85, n_there)) - truth[0]) > 0.2  # and what is left is not exact


@pytest.mark.quick
def test_the_reference_level_is_read_off_exact_sums_and_taken_out_of_weighted_ones():
    """Known: how many patients got the action. Seven of them are at the reference level of a category."""
    n, action, position = 900, np.arange(900) % 3, np.arange(900) // 3
    ward = np.where(position < 7, 1.0, 2.0 + position % 2)
    covariates = [{"name": "ward", "effect": "shared", "basis": {"kind": "categorical", "levels": [1, 2, 3]}},
                  {"name": "x"}]  # fmt: skip
    columns = {"action": action, "ward": ward, "x": np.zeros(n)}
    n_there = int(np.sum(action == 0))
    study, message = message_of(covariates, columns, EXACT)
    schur, _ = block_of(study, message, 0)
    fits = [
        n_there - second - third
        for second, third in product(counts_of(schur[0, 0], n_there), counts_of(schur[1, 1], n_there))
        if abs(schur[0, 1] + second * third / n_there) < 1e-6  # nobody is at two levels
    ]
    assert np.round(fits, 6).tolist() == [7.0]
    study, message = message_of(covariates, columns, {})
    schur, reward = block_of(study, message, 0)
    assert abs(schur.sum()) < 1e-9  # the reference level against all others: nothing is told
    assert abs(reward.sum()) < 1e-9
    assert message.kept.rank == (3,)  # the second level against the third, at each action


def recovered(disclosure, seed):
    """Share of outcomes that the attacker gets right, of fourteen patients at a rare action, and the best guess.

    Known: the action, the covariates and who was in the data; unknown: outcomes of 0 or 1.
    """
    rng = np.random.default_rng(seed)
    n_rare, n = 14, 314
    action = np.concatenate([np.full(n_rare, 2), np.arange(n - n_rare) % 2])
    u, rewards = rng.random(n), (rng.random(n) < 0.7) * 1.0
    u[:n_rare] = 0.1 + 0.05 * np.arange(n_rare) + 0.01 * rng.random(n_rare)  # nobody is far out
    columns = {"action": action, "u": u, "x": np.zeros(n)}
    study, message = message_of([TWO[0], {"name": "x"}], columns, disclosure, rewards, key=seed)
    _, reward = block_of(study, message, 2)
    left = u[:n_rare] - u[:n_rare].mean()
    outcomes = np.array(list(product((0.0, 1.0), repeat=n_rare)))
    guess = outcomes[np.abs(outcomes @ left * message.summary.mean_weight - reward[0]).argmin()]
    truth = rewards[:n_rare]
    return float(np.mean(guess == truth)), float(max(truth.mean(), 1 - truth.mean()))


@pytest.mark.quick
def test_outcomes_are_solved_for_in_exact_sums_and_not_in_weighted_ones():
    exact = [recovered(EXACT, seed)[0] for seed in range(12)]
    assert np.mean(np.array(exact) == 1.0) >= 0.9
    weighted = np.array([recovered({}, seed) for seed in range(40)])
    assert np.mean(weighted[:, 0] == 1.0) <= 0.05
    assert weighted[:, 0].mean() <= weighted[:, 1].mean() + 0.05  # no better than guessing the more frequent outcome


def far_out(disclosure, with_patient, seed):
    """Numbers of a message about one shared covariate, with or without a patient who is far out in it."""
    rng = np.random.default_rng(seed)
    n = 900
    u = np.clip(rng.normal(0.3, 0.05, n), 0, 1)
    if with_patient:
        u[0] = 0.65  # a leverage of about 0.14 among the 300 patients of its action
    columns = {"action": np.arange(n) % 3, "u": u, "x": np.zeros(n)}
    study, message = message_of([TWO[0], {"name": "x"}], columns, disclosure, rng.random(n), key=seed)
    schur, reward = block_of(study, message, 0)
    sums = message.summary.sums
    return [schur[0, 0], reward[0], sums.information[0].max(), sums.information_square[0]]


def auc(disclosure, n_messages):
    """AUC of a linear discriminant, trained on half of the messages and tried on the others."""
    draws = [
        np.array([far_out(disclosure, inside, 10 * i + inside) for i in range(n_messages)]) for inside in (False, True)
    ]
    (out, out_tried), (inside, inside_tried) = (np.split(part, 2) for part in draws)
    spread = np.cov(np.vstack([out - out.mean(axis=0), inside - inside.mean(axis=0)]).T)
    direction = np.linalg.lstsq(spread, inside.mean(axis=0) - out.mean(axis=0), rcond=1e-12)[0]
    return float(np.mean((inside_tried @ direction)[:, None] > (out_tried @ direction)[None, :]))


@pytest.mark.slow
def test_a_patient_who_is_far_out_is_found_in_exact_sums_and_hidden_in_weighted_ones():
    """Known: how the covariate is distributed, and the patient's value. 200 messages with it and 200 without."""
    assert auc(EXACT, 200) > 0.88
    assert auc({}, 200) <= 0.82


def told_of_an_outcome(disclosure):
    """R² of one patient's outcome and the message's s_r, over many outcomes of the same patients."""
    rng = np.random.default_rng(0)
    n = 150
    u = np.where(np.arange(n) == 0, 1.0, rng.random(n) / 3)
    columns = {"action": np.arange(n) % 3, "u": u, "x": np.zeros(n)}
    outcomes = rng.random((200, n))
    sent = []
    for rewards in outcomes:
        study, message = message_of([TWO[0], {"name": "x"}], columns, disclosure, rewards)
        sent.append(block_of(study, message, 0)[1][0])
    return float(np.corrcoef(sent, outcomes[:, 0])[0, 1] ** 2)


@pytest.mark.slow
def test_the_outcome_of_a_patient_who_is_far_out_is_told_by_exact_sums_and_hardly_by_weighted_ones():
    """Known: all covariates."""
    assert told_of_an_outcome(EXACT | {"max_leverage": 1.0}) > 0.4
    assert told_of_an_outcome({}) <= 0.20
