"""Weighted sums: what weights do to them, what each rule of a block takes out, and what is left."""

import hmac
import re
import tomllib
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from fdtr.algebra.schur import eliminate, present
from fdtr.container import temporary
from fdtr.disclosure.blocks import Design, describe, directions_of, is_uneven
from fdtr.disclosure.common_repairs import CommonRepairs
from fdtr.disclosure.masked_counts import SiteCounts
from fdtr.disclosure.rule_once import Draws, drawn
from fdtr.disclosure.rules import largest_share, membership
from fdtr.disclosure.weighted_sums import weigh, weigh_alone
from fdtr.errors import NotRepeatable
from fdtr.exchange.release import describe_message
from fdtr.exchange.site_state.ledger import Ledger
from fdtr.hub import combine_messages
from fdtr.pipeline.demo import SEED, table_as_csv
from fdtr.simulation import sepsis
from fdtr.site.fitting import fit_federated, fit_message, others_in
from fdtr.site.rows import read_trajectories
from fdtr.site.site_check import check
from fdtr.site.site_message import count_message, summarize
from fdtr.study import Study
from fdtr.summary import combine
from fdtr.sums import Removed
from fdtr.trajectories.patient_ids import plain_id
from random_tables import make_sites, make_study, make_table
from refusals import refuses

pytestmark = pytest.mark.quick
SHARED = [{"name": "u", "effect": "shared"}, {"name": "v", "effect": "shared"}, {"name": "x"}]
WARD = {"name": "ward", "effect": "shared", "basis": {"kind": "categorical", "levels": [1, 2, 3]}}


def table_of(study, n, seed=5, **columns):
    table = make_table(study, {"a": n}, seed)
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    return table


def one_step(n, covariates=SHARED, disclosure=None, **columns):
    """A study of one step with three actions in turn, and its rows."""
    study = make_study(horizon=1, covariates=covariates, disclosure=disclosure or {})
    table = table_of(study, n, **({"action": np.arange(n) % 3} | columns))
    return study, read_trajectories(table, study).by_site()["a"]


def weighed(study, rows, **rules):
    fitted = fit_message(study, rows)
    draws = drawn(b"key", rows.patients.to_pylist(), rows.horizon)
    return weigh(rows, study.feature_map, fitted.fit, replace(study.rules, **rules), draws)


def broken(weighted):
    return {v.rule: v for v in weighted.verdicts if not v.holds}


def dense(study, rows, h=0):
    chunk = next(rows.step(h).chunks(10**9))
    return study.feature_map.phi(chunk.states, chunk.actions), chunk


def test_weighted_sums_are_those_of_weighted_rows():
    study, rows = one_step(400)
    weighted, (phi, chunk) = weighed(study, rows), dense(study, rows)
    weights = 1 - 0.3 * drawn(b"key", rows.patients.to_pylist(), 1).at(0)
    root, d0 = np.sqrt(weights)[:, None], study.feature_map.n_shared
    own, shared, reward = root * phi[:, d0:], root * phi[:, :d0], root[:, 0] * chunk.rewards
    left = shared - own @ np.linalg.lstsq(own, shared, rcond=None)[0]
    np.testing.assert_allclose(weighted.sums.schur[0], left.T @ left, atol=1e-9)
    np.testing.assert_allclose(weighted.sums.schur_reward[0], left.T @ reward, atol=1e-9)
    # The variance is that of weighted residuals over the patients' degrees of freedom.
    everything = np.column_stack([shared, own])
    residual = reward - everything @ np.linalg.lstsq(everything, reward, rcond=None)[0]
    variance = residual @ residual / (400 - phi.shape[1])
    np.testing.assert_allclose(weighted.sums.information[0], left.T @ left / variance, rtol=1e-9)
    assert weighted.sums.n.tolist() == [400]


def test_without_jitter_and_repairs_they_are_the_exact_ones():
    study, rows = one_step(900)
    weighted = weigh_alone(rows, study.feature_map, fit_message(study, rows).fit, replace(study.rules, jitter=0.0),
                           Draws(np.ones((1, 900))))  # fmt: skip
    exact = fit_message(study, rows).summary.sums
    assert weighted.close_to(exact, 1e-12)
    message = summarize(make_study(horizon=1, covariates=SHARED, disclosure={"jitter": 0}), rows)
    assert message.summary.sums == exact
    assert message.summary.mean_weight == 1.0


def by_step(draws, horizon):
    return np.array([draws.at(step) for step in range(horizon)])


def test_a_weight_belongs_to_a_patient_and_a_step_whatever_else_is_sent(tmp_path):
    ledger = Ledger(tmp_path)
    assert ledger.draws(["p1"], 1, make=False) is None
    first, second = (by_step(ledger.draws(ids, 6, make=True), 6) for ids in (["p1", "p2"], ["p2", "p1", "p3"]))
    assert first.tolist() == second[:, [1, 0]].tolist()
    longer = by_step(ledger.draws(["p1"], 9, make=False), 9)
    assert longer[:6, 0].tolist() == first[:, 0].tolist()
    assert len({*first.ravel()}) == 12
    assert ledger.draws([" p1 "], 1, make=False).at(0)[0] == first[0, 0]  # in the spelling of the ledger
    assert Ledger(tmp_path / "other").draws(["p1"], 1, make=True).at(0)[0] != first[0, 0]
    many = by_step(ledger.draws([str(i) for i in range(1000)], 4, make=False), 4)
    assert many.min() >= 0
    assert many.max() < 1
    assert abs(many.mean() - 0.5) < 4 * np.sqrt(1 / 12 / 4000)
    assert np.abs(np.corrcoef(many) - np.eye(4)).max() < 4 / np.sqrt(1000)


@given(
    st.binary(min_size=1, max_size=80),
    st.lists(st.text(max_size=5), max_size=30),
    st.integers(0, 30),
    st.integers(0, 30),
    st.booleans(),
)
def test_a_weight_is_the_ciphered_hash_of_the_id_under_the_key_of_its_step(secret, ids, start, length, in_memory):
    """Number by number: the first 53 bits of AES of the hash, under the HMAC of the step's name."""
    with patch.object(temporary, "IN_MEMORY", 1 << 30 if in_memory else 0):
        draws = drawn(secret, ids, 3)
    for step in range(3):
        key = hmac.digest(secret, b"\xffweights of step " + str(step).encode(), "sha256")
        expected = []
        for one in ids:
            hashed = hmac.digest(secret, plain_id(one), "sha256")[:16]
            block = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(hashed)
            expected.append((int.from_bytes(block[:8]) >> 11) / 2**53)
        assert draws.at(step).tolist() == expected
        assert draws.at(step, slice(start, start + length)).tolist() == expected[start : start + length]


def test_numbers_of_patients_leave_rounded_up_to_tens():
    study, rows = one_step(401)
    message = summarize(study, rows)
    assert message.summary.sums.n.tolist() == [410]
    assert message.summary.mean_weight == 0.85


def test_others_are_used_without_their_mean_weight():
    """Over many patients, weighted sums divided by the mean weight are the exact ones, to a percent."""
    study = make_study(horizon=1, covariates=SHARED)
    sites = make_sites(study, dict.fromkeys("abc", 4000))
    exact = combine(fit_message(study, rows).summary for rows in sites.values())
    messages = [summarize(study, rows).summary for rows in sites.values()]
    weighted = combine_messages(study, messages)
    alone = fit_message(study, sites["a"]).summary
    expected, used = others_in(study, exact, alone), others_in(study, weighted, messages[0])
    np.testing.assert_allclose(used.schur, expected.schur, rtol=0.02, atol=0.02 * np.abs(expected.schur).max())
    assert used.n == expected.n == 8000


def test_a_weighted_message_is_not_computed_again():
    study = make_study()
    sites = make_sites(study, dict.fromkeys("abc", 400))
    messages = {name: summarize(study, rows).summary for name, rows in sites.items()}
    total = combine_messages(study, list(messages.values()))
    with pytest.raises(NotRepeatable, match="weights rows by a secret of the site and is not computed again"):
        fit_federated(study, sites["a"], total)
    assert np.isfinite(fit_federated(study, sites["a"], total, messages["a"]).theta).all()


def test_blocks_are_actions_where_the_sums_can_be_told_apart():
    by_action = make_study(horizon=1, covariates=SHARED).feature_map  # three levels, (1, a, a²)
    design = Design(by_action, (0, 1, 2))
    assert design.by_action
    assert not design.partly
    assert [describe(by_action, unit) for unit in design.within(1)] == ["u at action 1", "v at action 1"]
    straight = make_study(horizon=1, covariates=SHARED, actions={"levels": [0, 1, 2], "degree": 1}).feature_map
    assert not Design(straight, (0, 1, 2)).by_action
    assert Design(straight, (0, 2)).by_action  # a site that uses two of the levels
    main = make_study(horizon=1, covariates=[SHARED[0], {**SHARED[1], "interacts": False}, SHARED[2]]).feature_map
    assert Design(main, (0, 1, 2)).partly


def test_a_unit_is_its_function_at_its_action():
    study, rows = one_step(300)
    phi, chunk = dense(study, rows)
    psi, d0 = study.feature_map.psi(chunk.states), study.feature_map.n_shared
    for unit in Design(study.feature_map, (0, 1, 2)).units:
        expected = np.where(chunk.actions == unit.action, psi[unit.functions[0]], 0.0)
        np.testing.assert_allclose(phi[:, :d0] @ unit.directions[:, 0], expected, atol=1e-9)


def test_a_reference_level_is_one_less_the_others():
    study, rows = one_step(300, [WARD, {"name": "x"}], ward=np.arange(300) // 3 % 3 + 1.0)
    phi, chunk = dense(study, rows)
    d0 = study.feature_map.n_shared
    for unit in Design(study.feature_map, (0, 1, 2)).references:
        there = (chunk.actions == unit.action) & (chunk.states[0] == 1)
        rest = (chunk.actions == unit.action) & (chunk.states[0] != 1)
        # The own intercept is the one: less the indicators of the other levels it is the reference.
        np.testing.assert_allclose(phi[:, :d0] @ unit.directions[:, 0], np.where(rest, -1.0, 0.0), atol=1e-9)
        assert there.any()


SMALL = {"CELL": 5, "NONZERO": 6, "REF": 7, "PAIR": 8}


@pytest.mark.parametrize("rule", SMALL)
def test_what_shows_few_patients_is_taken_out_of_its_block(rule):
    """At the second action a few patients differ; the other actions are left as they are."""
    n = 900
    position, action = np.arange(n) // 3, np.arange(n) % 3
    few = (action == 1) & (position < SMALL[rule])
    half = position % 2 * 1.0
    columns = {
        "CELL": {"u": np.where(action == 1, few * 1.0, half)},
        "NONZERO": {"u": np.where(action == 1, np.where(few, 0.1 + position / 1000, 0.0), 0.1 + position / 1000)},
        "REF": {"ward": np.where(few, 1.0, np.where(action == 1, 2.0 + half, 1.0 + position % 3))},
        "PAIR": {"u": half, "v": np.where((action == 1) & (half == 1), position < 16, position // 2 % 2) * 1.0},
    }[rule]
    covariates = [WARD, *SHARED] if rule == "REF" else SHARED
    study, rows = one_step(n, covariates, **columns)
    weighted = weighed(study, rows)
    verdict = broken(weighted)[rule]
    assert verdict.repaired
    assert verdict.step == 0
    assert f"{SMALL[rule]} patients" in verdict.measured
    name = {"REF": "the reference level beside ward=2", "PAIR": "v"}.get(rule, "u")
    assert verdict.advice == f"Taken out of the sums: {name} at action 1."
    before = weigh_alone(rows, study.feature_map, fit_message(study, rows).fit, study.rules,
                         drawn(b"key", rows.patients.to_pylist(), 1)).schur[0]  # fmt: skip
    design = Design(study.feature_map, (0, 1, 2))
    for level in (0, 2):
        v = directions_of(design.within(level), len(before))
        np.testing.assert_allclose(v.T @ weighted.sums.schur[0] @ v, v.T @ before @ v, atol=1e-9)
    [out] = [u for u in (*design.units, *design.references) if describe(study.feature_map, u) == f"{name} at action 1"]
    assert out.directions.T @ weighted.sums.schur[0] @ out.directions == pytest.approx(0, abs=1e-9)
    assert sum(weighted.kept.rank) == sum(weighted.kept.possible_rank) - 1


def test_of_small_pairs_the_column_that_is_in_most_goes_alone():
    """At one action few patients have "u" beside each of the four other columns: "u" goes, and they stay."""
    n, names = 1200, ["v", "w", "y", "z"]
    position, action = np.arange(n) // 3, np.arange(n) % 3
    u = np.where(action == 1, position < 40, position % 2) * 1.0
    halves = [(position // 2**k % 2) * 1.0 for k in range(1, 5)]
    columns = {
        name: np.where((action == 1) & (u == 1), position < 6, half) * 1.0
        for name, half in zip(names, halves, strict=True)
    }
    covariates = [{"name": name, "effect": "shared"} for name in ["u", *names]] + [{"name": "x"}]
    study, rows = one_step(n, covariates, u=u, **columns)
    weighted = weighed(study, rows)
    assert broken(weighted)["PAIR"].advice == "Taken out of the sums: u at action 1."
    assert broken(weighted)["PAIR"].measured == '6 patients in a cell of columns "u" and "v" at action 1'
    assert sum(weighted.kept.rank) == sum(weighted.kept.possible_rank) - 1
    counted = {"secure_sum": True, "max_patients": 5000}
    study, rows = one_step(n, covariates, disclosure=counted, u=u, **columns)
    common = study.combine_counts([count_message(study, rows)] * 3)
    assert common.functions == ((0, 1, (0,)),)


def test_sums_are_uneven_where_a_function_is_told_of_at_some_actions_only():
    study, rows = one_step(600)
    features, exact = study.feature_map, fit_message(study, rows).summary.sums.schur
    design = Design(features, (0, 1, 2))
    at_one, everywhere = design.within(1), [unit for unit in design.units if unit.functions == (0,)]
    assert not is_uneven(features, exact)
    assert not is_uneven(features, np.zeros_like(exact))
    for out, uneven in ((at_one[:1], True), (at_one, True), (everywhere, False)):
        rest = fit_message(study, rows).summary.sums.without_directions(
            [Removed(0, (), tuple(map(tuple, directions_of(out, len(exact[0])).tolist())))]
        )
        assert is_uneven(features, rest.schur) is uneven


def test_an_action_that_nobody_gets_leaves_no_uneven_sums():
    """Three sites use two of three actions: what is told of the third is nothing, and no patient asks for it."""
    study = make_study(horizon=1, covariates=SHARED)
    tables = make_sites(study, dict.fromkeys("abc", 300), actions={site: [0, 1] for site in "abc"})
    messages = {site: summarize(study, rows).summary for site, rows in tables.items()}
    total = combine_messages(study, list(messages.values()))
    assert not others_in(study, total, messages["a"], tables["a"]).uneven
    everywhere = make_sites(study, {"d": 300})["d"]
    assert others_in(study, total, None, everywhere).uneven


def test_what_the_site_keeps_to_itself_is_not_looked_at():
    """Three patients have the site's own condition: its column is projected out, and the message may leave."""
    own = [*SHARED, {"name": "hiv"}]
    study, rows = one_step(600, own, hiv=(np.arange(600) < 9) * 1.0)
    assert not broken(weighed(study, rows))
    exact = make_study(horizon=1, covariates=own, disclosure={"jitter": 0})
    with refuses("CELL", match='column "hiv"'):
        summarize(exact, rows)


def test_rare_actions_are_left_out_and_few_patients_share_less():
    n = 300
    action = np.where(np.arange(n) < 8, 2, np.arange(n) % 2)
    weighted = weighed(*one_step(n, action=action))
    assert broken(weighted)["ACTION"].measured == "8 patients at action 2"
    assert weighted.sums.n.tolist() == [292]
    weighted = weighed(*one_step(54))  # 18 at each action: one direction each
    assert "18 patients for 2 independent shared features" in broken(weighted)["ACTION"].measured
    assert weighted.kept.rank == (3,)
    assert weighted.kept.possible_rank == (6,)
    assert weighted.kept.share == 0.5
    assert weighted.kept.efficiency[0] == pytest.approx(0.5, abs=0.1)


def test_numbers_add_up_over_the_steps_of_a_patient():
    """At each step and action two directions tell nine numbers, seven at the last one."""
    study = make_study(horizon=3, covariates=SHARED)
    table = table_of(study, 300, action=np.arange(900) // 3 % 3)
    rows = read_trajectories(table, study).by_site()["a"]
    told = (9 + 9 + 7) / 100
    assert "NUMBERS" not in broken(weighed(study, rows, max_membership=membership(told) + 1e-9))
    weighted = weighed(study, rows, max_membership=membership(told) - 1e-9)
    assert broken(weighted)["NUMBERS"].measured.startswith(f"an AUC of {membership(told):.2f}")
    assert 0 < sum(weighted.kept.rank) < sum(weighted.kept.possible_rank)
    assert membership(largest_share(0.8)) == pytest.approx(0.8)


def test_rows_that_are_far_out_count_less():
    n = 600
    far = np.where(np.arange(n) == 7, 1.0, np.arange(n) % 10 / 50)
    study, rows = one_step(n, u=far)
    weighted, cap = weighed(study, rows), 1.4 / np.sqrt(200)
    verdict = broken(weighted)["LEVERAGE"]
    assert verdict.advice == "Taken out of the sums: 1 patient in part, whose rows count less."
    assert weighted.leverage <= cap * (1 + 1e-6)
    assert weighted.kept.rank == weighted.kept.possible_rank
    # Twelve patients alike hide each other.
    study, rows = one_step(n, u=np.where(np.arange(n) % 3 + np.arange(n) // 3 / 1000 < 0.013, 1.0, far % 0.2))
    assert "LEVERAGE" not in broken(weighed(study, rows))


def test_too_few_patients_withhold_a_step_and_nothing_left_is_refused():
    study = make_study(ends={"home": 1.0}, covariates=SHARED)
    rows = make_sites(study, {"a": 130}, ragged=True)["a"]
    message = summarize(study, rows)
    assert message.withheld == [2]
    assert message.summary.sums.n[2] == 0
    assert not message.summary.sums.schur[2].any()
    with refuses("N", match="step 0, rule N: 40 patients; the study asks for at least 50"):
        summarize(study, make_sites(study, {"a": 40}, ragged=True)["a"])


def test_check_says_what_a_message_would(tmp_path):
    study = make_study()
    rows, ledger = make_sites(study, {"a": 60})["a"], Ledger(tmp_path)
    message = summarize(study, rows, ledger)
    site = check(study, rows, ledger=ledger)
    assert site.verdicts == list(message.verdicts)
    assert site.kept == message.kept


def test_small_cells_of_a_site_in_a_secure_sum_are_left_to_the_totals():
    few = (np.arange(180) < 24) * 1.0  # eight at each action
    secure = {"secure_sum": True, "max_patients": 5000}
    assert summarize(*one_step(180, u=few)).kept.share == 0.5
    study, rows = one_step(180, disclosure=secure, u=few)
    assert summarize(study, rows).kept.share == 1.0
    counts = count_message(study, rows)
    assert counts.cells[0, :, 0].tolist() == [8, 8, 8]
    with_others = [replace(counts, cells=counts.cells * [factor, 1]) for factor in (1, 1, 0, 0)]
    common = study.combine_counts(with_others)
    assert {functions for _, _, functions in common.functions} == {(0,)}
    assert summarize(study, rows, common=common).kept.share == 0.5
    assert study.combine_counts([counts] * 5).functions == ()  # without one of them 20 are left in each


def senders(study, spoilt):
    """Messages of four sites; at those of `spoilt` few patients differ in "v" at the second action."""
    messages = []
    for k, site in enumerate("abcd"):
        v = np.random.default_rng(k).random(900)
        if site in spoilt:
            v = np.where(np.arange(900) % 3 == 1, (np.arange(900) < 9) * 1.0, v)
        table = table_of(study, 900, seed=k, action=np.arange(900) % 3, v=v)
        table = table.set_column(table.column_names.index("site"), "site", pa.array([site] * 900))
        messages.append(summarize(study, read_trajectories(table, study)).summary)
    return messages


def test_what_too_few_sites_sent_is_eliminated_from_every_message():
    study = make_study(horizon=1, covariates=SHARED)
    messages = senders(study, "cd")  # two of four sent it, and three are asked for
    total = combine_messages(study, messages)
    [removed] = total.removed
    assert removed.names == ("v at action 1",)
    v = np.array(removed.directions)
    assert v.T @ total.sums.schur[0] @ v == pytest.approx(0, abs=1e-9)
    by_hand = []
    for message in messages:
        schur = message.sums.schur[0]
        pivot = (schur @ v) / np.sqrt(v.T @ schur @ v) if (v.T @ schur @ v) > 1e-6 else 0 * v
        by_hand.append(schur - pivot @ pivot.T)
    np.testing.assert_allclose(total.sums.schur[0], sum(by_hand), atol=1e-8)
    rest = (total - messages[0]).sums
    np.testing.assert_allclose(rest.schur[0], sum(by_hand[1:]), atol=1e-8)
    assert combine_messages(study, senders(study, "d")).removed == ()  # three sent it
    assert combine_messages(study, senders(study, "")).sums == combine(senders(study, "")).sums


def test_a_combination_that_one_site_alone_has_is_eliminated():
    """At three of four sites two columns are equal: their difference would be the fourth site's alone."""
    study = make_study(horizon=1, covariates=SHARED)
    messages = []
    for k, site in enumerate("abcd"):
        u, w = np.random.default_rng(k).random((2, 900))
        table = table_of(study, 900, seed=k, action=np.arange(900) % 3, u=u, v=w if site == "d" else u)
        table = table.set_column(table.column_names.index("site"), "site", pa.array([site] * 900))
        messages.append(summarize(study, read_trajectories(table, study)).summary)
    difference = np.kron(np.eye(3), np.array([[1.0], [-1.0]]))
    plain = combine(messages).sums.schur[0]
    np.testing.assert_allclose(plain @ difference, messages[3].sums.schur[0] @ difference, atol=1e-6)  # the attack
    total = combine_messages(study, messages)
    [removed] = total.removed
    assert removed.names == ("combinations of columns",)
    assert np.abs(total.sums.schur[0] @ difference).max() < 1e-6
    assert np.linalg.matrix_rank(total.sums.schur[0], tol=1e-6) == 3
    rest = (total - messages[0]).sums.schur[0]
    alone = [m.sums.without_directions(total.removed).schur[0] for m in messages]
    np.testing.assert_allclose(rest, sum(alone[1:]), atol=1e-6)


def test_a_site_takes_exactly_its_part_from_a_total_of_which_few_sent_much():
    """Six sites, of which two alone tell of most columns: own parts of what is left add up to the total."""
    study = make_study(horizon=1, covariates=[*SHARED, *({"name": f"w{i}", "effect": "shared"} for i in range(3))])
    rng = np.random.default_rng(0)
    messages = []
    for site in "abcdef":
        columns = {f"w{i}": rng.random(900) if site in "ab" else np.full(900, 0.5) for i in range(3)}
        table = table_of(
            study, 900, seed=ord(site), action=np.arange(900) % 3, u=rng.random(900), v=rng.random(900), **columns
        )
        table = table.set_column(table.column_names.index("site"), "site", pa.array([site] * 900))
        messages.append(summarize(study, read_trajectories(table, study)).summary)
    total = combine_messages(study, messages)
    own = [message.sums.without_directions(total.removed).schur[0] for message in messages]
    np.testing.assert_allclose(sum(own), total.sums.schur[0], rtol=0, atol=1e-9 * np.abs(total.sums.schur).max())
    assert np.linalg.matrix_rank(total.sums.schur[0], tol=1e-6) == 6
    assert [np.linalg.matrix_rank(part, tol=1e-6) for part in own] == [6] * 6


def test_eliminated_sums_are_those_of_a_message_that_never_had_the_column():
    study = make_study(horizon=1, covariates=SHARED)
    narrower = make_study(horizon=1, covariates=[SHARED[0], {"name": "v"}, SHARED[2]])
    sent = senders(study, "")[0]
    units = [u for u in Design(study.feature_map, (0, 1, 2)).units if describe(study.feature_map, u)[0] == "v"]
    directions = directions_of(units, study.feature_map.n_shared)
    reduced = sent.sums.without_directions([Removed(0, ("v",), tuple(map(tuple, directions.tolist())))])
    table = table_of(narrower, 900, seed=0, action=np.arange(900) % 3, v=np.random.default_rng(0).random(900))
    expected = summarize(narrower, read_trajectories(table, narrower)).summary.sums
    kept = [study.feature_map.names.index(name) for name in narrower.feature_map.names[:3]]
    np.testing.assert_allclose(reduced.schur[0][np.ix_(kept, kept)], expected.schur[0], atol=1e-8)
    assert not np.delete(reduced.schur[0], kept, axis=0).round(9).any()
    assert reduced.information_square == pytest.approx(expected.information_square, rel=1e-6)
    assert reduced.rank == expected.rank
    assert eliminate(sent.sums.schur[0], np.zeros((6, 0)), 6).rank_specific == 0


def test_main_effects_stay_where_one_covariate_alone_interacts():
    """Where leverage takes the interacting function out of a block, effects that all actions share are still told."""
    mains = [{"name": f"m{j}", "effect": "shared", "interacts": False} for j in range(8)]
    study = make_study(horizon=1, covariates=[SHARED[0], *mains, {"name": "x"}])
    rows = make_sites(study, {"a": 140})["a"]
    weighted = weighed(study, rows)
    assert 4 <= weighted.kept.rank[0] <= 14
    assert weighted.sums.n.tolist() == [140]


@pytest.mark.parametrize("seed", range(12))
def test_odd_designs_give_finite_sums_or_a_refusal(seed):
    """Rare actions under an unscaled polynomial, a shared intercept, constant and doubled columns."""
    rng = np.random.default_rng(seed)
    n, levels = 80, list(range(5))
    covariates = [
        {"name": "u", "effect": "shared", "basis": {"kind": "polynomial", "degree": 3}},
        {"name": "v", "effect": "shared", "interacts": bool(seed % 2)},
        {"name": "x", "effect": "shared" if seed % 3 else "specific"},
    ]
    study = make_study(
        horizon=1,
        covariates=covariates,
        actions={"levels": levels, "scale": "none" if seed % 4 else "unit"},
        features={"intercept": "shared", "scale": "unit"},
    )
    action = np.where(rng.random(n) < 0.85, 0, rng.integers(0, 5, n))
    u = rng.choice([0.0, 0.5, 1.0], n)
    rows = read_trajectories(table_of(study, n, action=action, u=u, v=u, x=np.full(n, 0.5)), study).by_site()["a"]
    weighted = weighed(study, rows)
    assert all(np.isfinite(array).all() for array in weighted.sums.packed().values())
    assert (np.linalg.eigvalsh(weighted.sums.schur[0]) > -1e-9).all()
    assert weighted.kept.rank[0] <= weighted.kept.possible_rank[0]


def test_numbers_are_repaired_where_actions_and_main_effects_share_a_step():
    """Effects of single actions go one by one once no main effect is left; this once never ended."""
    covariates = [{"name": "m", "effect": "shared", "interacts": False}, *SHARED]
    sections = {"features": {"intercept": "shared", "scale": "unit"}, "ends": {"home": 1.0}}
    study = make_study(horizon=4, covariates=covariates, **sections)
    table = make_table(study, {"a": 130}, seed=1, ragged=True)
    actions = np.random.default_rng(1).choice(3, len(table), p=[0.7, 0.2, 0.1])
    table = table.set_column(table.column_names.index("action"), "action", pa.array(actions))
    weighted = weighed(study, read_trajectories(table, study).by_site()["a"], max_membership=0.6)
    assert sum(weighted.kept.rank) < sum(weighted.kept.possible_rank)
    assert broken(weighted)["NUMBERS"].repaired


@pytest.mark.parametrize("seed", range(8))
def test_sums_are_the_same_each_time_and_in_any_order_of_patients(seed):
    rng = np.random.default_rng(seed)
    study = make_study(horizon=3, covariates=SHARED)
    n = 60 + 40 * seed
    table = make_table(study, {"a": n}, seed=seed)
    shuffled = table.take(pa.array(rng.permutation(len(table))))
    first, other = (read_trajectories(part, study).by_site()["a"] for part in (table, shuffled))
    assert first.patients.to_pylist() != other.patients.to_pylist()
    weighted = weighed(study, first)
    assert weighed(study, first).sums == weighted.sums
    assert weighed(study, other).sums.close_to(weighted.sums, 1e-7)


@pytest.mark.parametrize("seed", range(24))
def test_unusual_tables_give_finite_sums(seed):
    """One patient and up, constant, doubled and nearly constant columns, rewards that are all the same or nearly so."""
    rng = np.random.default_rng(seed)
    horizon, n = int(rng.integers(1, 4)), int(rng.choice([1, 2, 12, 60, 150]))
    mains = [{"name": "m", "effect": rng.choice(["shared", "specific"]), "interacts": False}]
    study = make_study(horizon=horizon, covariates=[*SHARED, *mains * (seed % 2)], disclosure={"jitter": 0.5})
    kinds = [
        lambda: rng.random(n * horizon),
        lambda: np.full(n * horizon, 0.5),
        lambda: (rng.random(n * horizon) < 0.05) * 1.0,
        lambda: 0.5 + 1e-9 * rng.random(n * horizon),
        lambda: np.where(np.arange(n * horizon) < horizon, 1.0, 1e-7),
    ]
    columns = {c.name: rng.choice(kinds)() for c in study.covariates} | {"reward": rng.choice(kinds)()}
    table = table_of(study, n, action=rng.choice(3, n * horizon, p=rng.dirichlet([0.5] * 3)), **columns)
    weighted = weighed(study, read_trajectories(table, study).by_site()["a"])
    assert all(np.isfinite(array).all() for array in weighted.sums.packed().values())
    assert all(np.linalg.eigvalsh(schur)[0] > -1e-8 * max(1, np.abs(schur).max()) for schur in weighted.sums.schur)
    assert all(rank <= most for rank, most in zip(weighted.kept.rank, weighted.kept.possible_rank, strict=True))


def test_few_other_rewards_leave_less_of_their_action():
    """s_r has two numbers there: two patients with another reward would be known by it, and four are hidden."""

    def with_others(count):
        reward = np.where(np.arange(900) % 3 == 1, (np.arange(900) < 3 * count) * 1.0, np.linspace(0, 1, 900))
        return weighed(*one_step(900, reward=reward))

    verdict = broken(with_others(3))["NONZERO"]
    where = "at action 1, for 2 independent features"
    assert verdict.measured == f"3 patients who stand out by an outcome {where}"
    assert verdict.asked == "none or at least 4"
    assert verdict.advice == "Taken out of the sums: v at action 1."
    assert [with_others(count).kept.rank for count in (2, 3, 4)] == [(4,), (5,), (6,)]
    assert with_others(2).sums.n.tolist() == [600]
    assert not broken(weighed(*one_step(900, reward=np.full(900, 0.5)))).get("NONZERO")  # nobody differs


def test_a_secure_sum_closes_an_action_where_few_of_all_sites_have_another_reward():
    """Three patients at each of three sites count as none; five at each are ten for each of them to see."""
    study = make_study(horizon=1, covariates=SHARED, disclosure={"secure_sum": True, "max_patients": 5000})

    def common(few):
        counts = []
        for k, site in enumerate("abc"):
            reward = np.where(np.arange(900) % 3 == 1, (np.arange(900) < 3 * few) * 1.0, np.linspace(0, 1, 900))
            table = table_of(study, 900, seed=k, action=np.arange(900) % 3, reward=reward)
            table = table.set_column(table.column_names.index("site"), "site", pa.array([site] * 900))
            counts.append(count_message(study, read_trajectories(table, study)))
        return study.combine_counts(counts)

    assert common(3).blocks == ((0, 1),)
    assert common(0) == common(5) == common(10) == CommonRepairs()


@pytest.mark.parametrize("interacts", [True, False])
@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("n_shared", [1, 5])
@pytest.mark.parametrize("horizon", [1, 5])
def test_three_large_sites_pass_every_rule_on_their_counts(interacts, degree, n_shared, horizon):
    """Whatever the design, counts are capped at a number with which two sites suffice."""
    covariates = [
        *({"name": f"u{i}", "effect": "shared"} for i in range(n_shared)),
        {"name": "x", "interacts": interacts},
    ]
    actions = {"levels": [0, 1, 2], "degree": degree}
    study = make_study(
        horizon=horizon, covariates=covariates, actions=actions, disclosure={"secure_sum": True, "max_patients": 10**6}
    )
    layout, base = study.count_layout, (horizon, 3)
    large = SiteCounts(
        patients=np.full(base, 10**5),
        sends=np.ones((*base, n_shared), bool),
        cells=np.full((*base, n_shared), 10**5),
        references=np.zeros((*base, len(layout.references)), np.int64),
        pairs=np.zeros((*base, len(layout.pairs), 4), np.int64),
        outcomes=np.full(base, 10**5),
        variances=np.zeros((*base, n_shared), np.int64),
        spread=np.zeros((*base, n_shared, 3), np.int64),
    )
    assert study.combine_counts([large] * 3) == CommonRepairs()


def test_a_separable_step_of_a_secure_sum_is_judged_by_action_as_in_the_open():
    """Three actions in two terms: twenty patients are left at the third, and five shared columns ask for fifty."""
    covariates = [*({"name": f"u{i}", "effect": "shared"} for i in range(5)), {"name": "x"}]
    secure = {"secure_sum": True, "max_patients": 5000}
    study = make_study(horizon=1, covariates=covariates, actions={"levels": [0, 1, 2], "degree": 1}, disclosure=secure)
    counts = SiteCounts(
        patients=np.array([[60, 60, 11]]),
        sends=np.ones((1, 3, 5), bool),
        cells=np.full((1, 3, 5), 11),
        references=np.zeros((1, 3, 0), np.int64),
        pairs=np.zeros((1, 3, 10, 4), np.int64),
        outcomes=np.array([[60, 60, 11]]),
        variances=np.zeros((1, 3, 5), np.int64),
        spread=np.zeros((1, 3, 5, 3), np.int64),
    )
    assert study.combine_counts([counts] * 3).blocks == ((0, 2),)


def test_a_site_where_a_column_hardly_varies_does_not_count_as_telling_of_it():
    secure = {"secure_sum": True, "max_patients": 5000}
    rng = np.random.default_rng(0)
    hardly = one_step(180, disclosure=secure, u=0.5 + 1e-4 * rng.random(180))
    assert not count_message(*hardly).sends[0, :, 0].any()
    assert count_message(*one_step(180, disclosure=secure)).sends.all()


def test_cells_of_a_column_that_is_constant_at_a_site_count_nobody():
    """Beside a shared intercept a constant column is told; its patients hide no cell of another site."""
    study = make_study(
        horizon=1,
        covariates=SHARED,
        features={"intercept": "shared"},
        disclosure={"secure_sum": True, "max_patients": 5000},
    )
    rows = read_trajectories(table_of(study, 180, action=np.arange(180) % 3, u=np.ones(180)), study)
    assert not count_message(study, rows).cells[0, :, study.count_layout.functions.index(1)].any()


def with_far_rewards(far, values=None, disclosure=None, n=225):
    """One step with three actions; rewards about 0.6, and 0 for the patients `far` at the first action."""
    rewards = 0.6 + np.clip(0.06 * np.random.default_rng(3).normal(size=n), -0.1, 0.1) if values is None else values
    rewards[[3 * i for i in far]] = 0.0
    return one_step(n, disclosure=disclosure, reward=rewards)


def test_few_rewards_that_are_far_out_are_limited_and_all_rows_stay():
    (study, rows), (_, usual) = with_far_rewards([1, 20]), with_far_rewards([])
    limited, without = weighed(study, rows), weighed(study, usual)
    assert limited.kept.rank == limited.kept.possible_rank
    assert broken(limited)["NONZERO"].advice == (
        "Taken out of the sums: part of the largest outcomes of 2 patients at action 0."
    )
    assert limited.sums.n.tolist() == [225]
    np.testing.assert_array_equal(limited.sums.schur, without.sums.schur)  # S depends on no outcome
    assert np.abs(limited.sums.schur_reward[0]).max() > 0


@pytest.mark.parametrize("case", ["two values", "almost two values", "many"])
def test_outcomes_are_not_limited_where_that_would_make_them_disappear(case):
    """Three deaths among 75 patients are no outliers: functions are taken out, and nothing says that nobody died."""
    values = np.full(225, 0.9)
    if case == "almost two values":
        values += 0.001 * np.random.default_rng(1).random(225)
    elif case == "many":
        values += 0.01 * np.random.default_rng(1).random(225)
    weighted = weighed(*with_far_rewards([1, 20, 40] if case != "many" else [], values))
    if case != "many":
        assert "largest outcomes" not in broken(weighted)["NONZERO"].advice
        assert weighted.kept.rank < weighted.kept.possible_rank
    else:
        assert "NONZERO" not in broken(weighted)


def test_a_site_of_a_secure_sum_limits_outcomes_before_it_counts():
    study, rows = with_far_rewards([1], disclosure={"secure_sum": True, "max_patients": 5000})
    counts = count_message(study, rows)
    assert counts.outcomes[0, 0] >= 4  # 1 before; the rule asks for r + 2
    again = count_message(study, rows)
    assert counts.outcomes.tolist() == again.outcomes.tolist()


def test_outcomes_of_a_secure_sum_are_limited_at_the_actions_that_patients_got():
    """Eight doses, a basis with three terms, and nobody at dose 0: outcomes are counted by action in one block."""
    n, doses = 420, range(8)
    rewards = 0.6 + 0.1 * np.random.default_rng(3).random(n)
    rewards[1] = 0.0
    rules = {"secure_sum": True, "max_patients": 5000}
    study = make_study(horizon=1, covariates=SHARED, disclosure=rules, actions={"levels": list(doses)})
    table = table_of(study, n, action=1 + np.arange(n) % 7, reward=rewards)
    rows = read_trajectories(table, study).by_site()["a"]
    counts = count_message(study, rows)
    assert counts.patients[0].tolist() == [0, *[60] * 7]
    assert counts.outcomes[0, 2] > 10  # the patient far out is at dose 2; not limited, only this one stands out


def test_a_person_is_told_of_all_that_is_taken_out_before_agreeing(tmp_path):
    """The smallest hospital of the demo: each function at each action that its message lacks, and who counts less."""
    study = Study.model_validate(tomllib.loads(sepsis.study_text()))
    (tmp_path / "table.csv").write_bytes(table_as_csv(sepsis.simulate_table(np.random.default_rng(SEED))))
    message = summarize(study, read_trajectories(tmp_path / "table.csv", study, "Ashford"))
    lines = [line for line in describe_message(study, message) if line.startswith("  Step ")]
    assert len(lines) == study.horizon
    features = study.feature_map
    for step, schur in enumerate(message.summary.sums.schur):
        assert lines[step].startswith(f"  Step {step} leaves out ")
        assert re.search(
            r"\d+ patients in part, whose rows count less(, part of the outcomes of [^;]*)? \(LEVERAGE\)", lines[step]
        )
        missing = [u for u in Design(features, (0, 1, 2)).units if not present(u.directions, schur).shape[1]]
        for unit in missing:
            name, action = describe(features, unit).split(" at action ")
            assert re.search(rf"{name} at actions? [\d, and]*{action}", lines[step])
        assert missing
        assert "(NUMBERS)" in lines[step]
    assert any("(ACTION)" in line for line in lines)
    assert describe_message(study, message)[-1] == "  Do not forward these lines."
