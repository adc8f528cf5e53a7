"""What a curious hub could do, as attacks: each succeeds where the study relaxes its rule, and none by default.

The attacker has the study file and the messages, never a row.
"""

import numpy as np
import pyarrow as pa
import pytest

from fdtr.exchange.site_state.ledger import Ledger
from fdtr.site.fitting import fit_local
from fdtr.site.rows import read_trajectories
from fdtr.site.site_message import release_of, summarize
from random_tables import make_study, make_table
from refusals import refuses

pytestmark = pytest.mark.quick
RELAXED = {
    "jitter": 0,
    "min_patients": 1,
    "max_ratio": 1.0,
    "min_action": 1,
    "min_cell": 1,
    "max_leverage": 1.0,
    "once_margin": 0,
}
COVARIATES = [{"name": "x"}, {"name": "y"}, {"name": "u", "effect": "shared"}, {"name": "hiv"}]


def study_of(payload="gram", **asked):
    """One step and an intercept, so that a message is about one decision of each patient."""
    return make_study(horizon=1, covariates=COVARIATES, disclosure={"payload": payload} | asked)


def table_of(study, n, **columns):
    table = make_table(study, {"a": n}, seed=5)
    defaults = {"hiv": np.arange(n) % 2 * 1.0, "action": np.arange(n) // 2 % 3}
    for name, values in (defaults | columns).items():
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    return table


def sent(study, table, ledger=None):
    """A site's message, recorded as it is written."""
    rows = read_trajectories(table, study)
    message = summarize(study, rows, ledger)
    if ledger is not None:
        with ledger.recording(release_of(study, rows, message.summary)):
            pass
    return message.summary


def row_of(study, rows, step=0):
    """φ and the reward of one patient, whose `rows` of the table these are: what the attacker is after."""
    chunk = next(read_trajectories(rows, study).step(step).chunks())
    return study.feature_map.phi(chunk.states, chunk.actions)[0], chunk.rewards[0]


# Differencing: the same site sends twice, the second time with one patient more.


def differenced(before, after, step=0):
    """The patient who came: the difference of two Grams has rank one and is φφᵀ; that of the moments is φ·r."""
    gram, moment = after.gram[step] - before.gram[step], after.reward_moment[step] - before.reward_moment[step]
    values, vectors = np.linalg.eigh(gram)
    phi = vectors[:, -1] * np.sqrt(values[-1])
    phi *= np.sign(phi[np.abs(phi).argmax()])  # the study's features are not negative
    return phi, float(phi @ moment / (phi @ phi))


def test_differencing_gives_a_patient_away_and_the_ledger_stops_it(tmp_path):
    n = 600
    relaxed, strict = study_of(once_margin=0), study_of()
    table = table_of(strict, n)
    ledger = Ledger(tmp_path / "relaxed")
    first, second = sent(relaxed, table.slice(0, n - 1), ledger), sent(relaxed, table, ledger)
    phi, reward = row_of(relaxed, table.slice(n - 1, 1))
    stolen_phi, stolen_reward = differenced(first.grams, second.grams)
    np.testing.assert_allclose(stolen_phi, phi, atol=1e-6)
    assert stolen_reward == pytest.approx(reward, abs=1e-6)

    ledger = Ledger(tmp_path / "strict")
    sent(strict, table.slice(0, n - 1), ledger)
    with refuses("ONCE", match="1 patient differs"):
        sent(strict, table, ledger)
    with refuses("ONCE"):  # nor under another study
        sent(study_of(min_sites=4), table, ledger)
    sent(strict, table.slice(0, n - 1), ledger)  # the same again tells nothing new


def test_differencing_under_two_names_of_one_study_is_no_other(tmp_path):
    n = 600
    relaxed, strict = study_of(once_margin=0), study_of()
    table = table_of(strict, n)
    as_other = table.set_column(table.column_names.index("site"), "site", pa.array(["b"] * n))
    first, second = sent(relaxed, table.slice(0, n - 1)), sent(relaxed, as_other)
    np.testing.assert_allclose(
        differenced(first.grams, second.grams)[0], row_of(relaxed, table.slice(n - 1, 1))[0], atol=1e-6
    )

    ledger = Ledger(tmp_path)
    sent(strict, table.slice(0, n - 1), ledger)
    with refuses("ONCE", match=r"1 patient differs .* released as site 'a'\. .*FDTR_STATE"):
        sent(strict, as_other, ledger)


def ragged_table(study, n):
    """`n` patients of two steps, then as many who leave after the first."""
    table = make_table(study, {"a": 2 * n}, seed=5)
    late, short = np.array(table["step"]) == 1, np.arange(4 * n) >= 2 * n
    for name, values in (
        ("hiv", np.arange(4 * n) // 2 % 2 * 1.0),
        ("action", np.arange(4 * n) // 4 % 3),
        ("end", np.where(late | short, "home", None)),
    ):
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    return table.filter(pa.array(~(late & short)))


def test_differencing_at_a_late_step_gives_a_patient_away_where_whole_tables_differ_by_many(tmp_path):
    n = 400
    relaxed, strict = (
        make_study(horizon=2, covariates=COVARIATES, ends={"home": 1.0}, disclosure={"payload": "gram"} | asked)
        for asked in ({"once_margin": 0}, {})
    )
    table = ragged_table(strict, n)
    # Of those who stay the second release has one more; of those who leave it has fifty others.
    first_table, second_table = (
        pa.concat_tables([table.slice(0, 2 * stay), table.slice(2 * n + start, n - 50)])
        for stay, start in ((n - 1, 0), (n, 50))
    )
    first, second = sent(relaxed, first_table), sent(relaxed, second_table)
    phi, reward = row_of(relaxed, table.slice(2 * (n - 1), 2), step=1)
    stolen_phi, stolen_reward = differenced(first.grams, second.grams, step=1)
    np.testing.assert_allclose(stolen_phi, phi, atol=1e-6)
    assert stolen_reward == pytest.approx(reward, abs=1e-6)

    ledger = Ledger(tmp_path)
    sent(strict, first_table, ledger)
    with refuses("ONCE", match="step 1, rule ONCE: 1 patient differs"):
        sent(strict, second_table, ledger)


def test_a_row_that_was_corrected_at_a_late_step_is_told_by_how_its_sums_changed(tmp_path):
    n, patient = 400, 7
    relaxed, strict = (
        make_study(horizon=2, covariates=COVARIATES, ends={"home": 1.0}, disclosure={"payload": "gram"} | asked)
        for asked in ({"once_margin": 0}, {})
    )
    table = ragged_table(strict, n)
    row = 2 * patient + 1
    rewards = np.array(table["reward"].to_pylist())
    rewards[row] = 0.0
    corrected = table.set_column(table.column_names.index("reward"), "reward", pa.array(rewards))
    fewer = corrected.slice(0, 3 * n - 50)  # fifty who left after the first step are no longer in it
    change = sent(relaxed, table).grams.reward_moment[1] - sent(relaxed, fewer).grams.reward_moment[1]
    phi, reward = row_of(relaxed, table.slice(2 * patient, 2), step=1)
    np.testing.assert_allclose(change, phi * reward, atol=1e-9)

    ledger = Ledger(tmp_path)
    sent(strict, table, ledger)
    with refuses("ONCE", match=r"step 1, rule ONCE: the patients are .* with other values"):
        sent(strict, fewer, ledger)


def test_differencing_gives_an_outcome_away_from_schur_sums_too(tmp_path):
    """S grows by a multiple of φ̃φ̃ᵀ and s_r by the same multiple of φ̃·ẽ: the patient's residual is told."""
    n = 600
    relaxed, strict = study_of("schur", jitter=0, once_margin=0), study_of("schur")
    table = table_of(strict, n)
    first, second = (sent(relaxed, table.slice(0, k)).sums for k in (n - 1, n))
    change, moment = second.schur[0] - first.schur[0], second.schur_reward[0] - first.schur_reward[0]
    values, vectors = np.linalg.eigh(change)
    assert values[-1] > 1e6 * np.abs(values[:-1]).max()  # rank one: one patient
    direction = vectors[:, -1]

    d0 = relaxed.feature_map.n_shared
    others = read_trajectories(table.slice(0, n - 1), relaxed)
    chunk = next(others.step(0).chunks(n))
    rows, rewards = relaxed.feature_map.phi(chunk.states, chunk.actions), chunk.rewards
    phi, reward = row_of(relaxed, table.slice(n - 1, 1))
    coefficients = np.linalg.lstsq(rows[:, d0:], np.column_stack([rows[:, :d0], rewards]), rcond=1e-10)[0]
    left = np.append(phi[:d0], reward) - phi[d0:] @ coefficients  # φ̃ and the reward's residual
    assert abs(direction @ left[:d0]) / np.linalg.norm(left[:d0]) == pytest.approx(1, abs=1e-6)
    assert (direction @ moment) / values[-1] * (direction @ left[:d0]) == pytest.approx(left[-1], rel=1e-5)

    ledger = Ledger(tmp_path)
    sent(strict, table.slice(0, n - 1), ledger)
    with refuses("ONCE"):
        sent(strict, table, ledger)


# Rare actions: with (1, a, a²) and three levels a Gram is three Grams, one for each action.


def by_action(study, grams):
    """Σψψᵀ and Σψr of each action, from one Gram: p(a)p(a)ᵀ of three levels are independent."""
    features, n_levels = study.feature_map, study.feature_map.n_actions
    d, m = features.n_features, features.n_functions
    # φ = B_a ψ: every entry of ΦᵀΦ is linear in the three Grams of ψ.
    columns = []
    for action in range(n_levels):
        for i in range(m):
            for j in range(m):
                columns.append(np.outer(features.embeddings[action][:, i], features.embeddings[action][:, j]).ravel())
    solved = np.linalg.lstsq(np.array(columns).T, grams.gram[0].ravel(), rcond=1e-12)[0].reshape(n_levels, m, m)
    wide = np.concatenate(list(features.embeddings), axis=1)
    moments = np.linalg.lstsq(wide, grams.reward_moment[0], rcond=1e-12)[0].reshape(n_levels, m)
    assert wide.shape == (d, n_levels * m)
    return solved, moments


def test_a_rare_action_gives_its_patient_away_and_rule_action_stops_it():
    n = 600
    actions = np.where(np.arange(n) == 123, 2, np.arange(n) // 2 % 2)  # one patient got the third action
    relaxed, strict = study_of(**RELAXED), study_of()
    table = table_of(strict, n, action=actions)
    # A study cannot relax ACTION below dim ψ + 10: the attacker has what would have been sent without it.
    grams, moments = by_action(relaxed, fit_local(relaxed, read_trajectories(table, relaxed)).summary.grams)
    one = next(read_trajectories(table.slice(123, 1), relaxed).step(0).chunks())
    psi = relaxed.feature_map.psi(one.states)[:, 0]
    intercept = [label for block in relaxed.feature_map.blocks for label in block.labels].index("1")
    assert grams[2][intercept, intercept] == pytest.approx(1, abs=1e-6)  # how many got it
    np.testing.assert_allclose(grams[2][intercept], psi, atol=1e-6)  # the whole row
    assert moments[2][intercept] == pytest.approx(one.rewards[0], abs=1e-6)  # and the outcome
    for study in (relaxed, strict):
        with refuses("ACTION", match="rule ACTION: 1 patient at the least used action"):
            sent(study, table)


# Small cells: the Gram of a binary column holds its counts.


def test_a_small_cell_is_read_off_the_gram_and_rule_cell_stops_it():
    n = 600
    hiv = np.where(np.isin(np.arange(n), (10, 200, 400)), 1.0, 0.0)  # three patients
    relaxed, strict = study_of(min_cell=1, max_leverage=1.0), study_of(max_leverage=1.0)
    table = table_of(strict, n, hiv=hiv)
    grams, moments = by_action(relaxed, sent(relaxed, table).grams)
    labels = [label for block in relaxed.feature_map.blocks for label in block.labels]
    hiv_at, x_at = labels.index("hiv"), labels.index("x")
    action = np.array(table["action"].to_pylist())
    for level in range(3):
        there = (action == level) & (hiv == 1)
        assert grams[level][hiv_at, hiv_at] == pytest.approx(there.sum(), abs=1e-6)
        # A cell of one is a row: its covariates and its outcome stand beside the count.
        if there.sum() == 1:
            x = np.array(table["x"].to_pylist())[there][0]
            assert grams[level][hiv_at, x_at] == pytest.approx(x, abs=1e-6)
            reward = np.array(table["reward"].to_pylist())[there][0]
            assert moments[level][hiv_at] == pytest.approx(reward, abs=1e-6)
    with refuses("CELL", match='rule CELL: 1 patient in the rarer of two values of column "hiv"'):
        sent(strict, table)


def test_a_small_cell_of_two_columns_is_read_off_too():
    """Each column has many patients in both values, yet few have both: PAIR."""
    n = 1800
    hiv = np.arange(n) % 2 * 1.0
    old = np.where(np.arange(n) < 12, hiv, 1 - hiv)
    covariates = [*COVARIATES, {"name": "old"}]
    relaxed, strict = (
        make_study(horizon=1, covariates=covariates, disclosure={"payload": "gram"} | asked)
        for asked in ({"min_cell": 1}, {})
    )
    table = table_of(relaxed, n, hiv=hiv, old=old)
    grams, _ = by_action(relaxed, sent(relaxed, table).grams)
    labels = [label for block in relaxed.feature_map.blocks for label in block.labels]
    action = np.array(table["action"].to_pylist())
    for level in range(3):
        both = np.sum((action == level) & (hiv == 1) & (old == 1))
        assert 0 < both < 11
        assert grams[level][labels.index("hiv"), labels.index("old")] == pytest.approx(both, abs=1e-6)
    with refuses("PAIR", match='rule PAIR: 2 patients in a cell of columns "hiv" and "old"'):
        sent(strict, table)
