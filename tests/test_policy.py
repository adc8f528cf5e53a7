"""Policies: bounds, actions, explanations, and files."""

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

from fdtr.algebra.normal_equations import factor
from fdtr.errors import ForeignFile, InvalidStates, UnreadableFile
from fdtr.policy import Policy
from fdtr.site import fit_q_learning
from fdtr.site.fitting import fit_local
from fdtr.site.site_message import summarize
from paper_algorithms import penalty
from random_tables import make_sites, make_study

pytestmark = pytest.mark.quick
NAMES = ["u", "x", "v", "y"]


@pytest.fixture(scope="module")
def study():
    return make_study(actions={"levels": [5, 1, 3], "labels": ["five", "one", "three"]})


@pytest.fixture(scope="module")
def policy(study):
    return fit_local(study, make_sites(study, {"a": 100})["a"]).policy


@pytest.fixture(scope="module")
def states():
    return np.random.default_rng(0).uniform([-1, 0, 0, 0], [1, 10, 1, 1], (50, 4))


def test_bounds_are_estimate_minus_penalty(policy, states):
    features = policy.features
    for step in range(3):
        bounds = policy.lower_bound(states, step)
        for action in range(3):
            phi = features.phi(states.T, np.full(50, action))
            expected = phi @ policy.theta[step] - penalty(phi, factor(policy.precision[step]), policy.scale[step])
            np.testing.assert_allclose(bounds[:, action], expected, rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(policy.q_values(states, step), np.clip(bounds, 0, 3 - step))


def test_actions_maximise_the_untruncated_bound(policy, states):
    levels = np.array([5, 1, 3])
    np.testing.assert_array_equal(policy.act(states, 0), levels[policy.lower_bound(states, 0).argmax(axis=1)])
    assert policy.act(states, 0).dtype == np.int64


def test_ties_go_to_the_smallest_code(study, policy):
    tied = Policy(study.public, study.fingerprint, "a", "LDTR", "0", 0 * policy.theta, None, 0.0, 0.0)
    assert set(tied.act(np.zeros((3, 4)), 0)) == {1}


def test_every_way_to_give_states_is_the_same(policy, states):
    expected = policy.lower_bound(states, 1)
    columns = {name: states[:, j] for j, name in enumerate(NAMES)}
    shuffled = {name: columns[name] for name in reversed(NAMES)} | {"other": ["text"] * 50}
    ways = (
        shuffled,
        states.tolist(),
        columns,
        pd.DataFrame(shuffled),
        pl.DataFrame(shuffled),
        pl.DataFrame(shuffled).lazy(),
    )
    for way in (*ways, np.asfortranarray(states)):
        np.testing.assert_array_equal(policy.lower_bound(way, 1), expected)
    one = (states[0], states[:1], dict(zip(NAMES, states[0], strict=True)))
    for way in one:  # another block size: the last bit may differ
        np.testing.assert_allclose(policy.lower_bound(way, 1), expected[:1], rtol=1e-14)


def test_many_states_are_read_in_blocks(policy, states):
    many = np.tile(states, (500, 1))
    np.testing.assert_array_equal(policy.act(many, 0), np.tile(policy.act(states, 0), 500))
    np.testing.assert_allclose(
        policy.lower_bound(many, 0), np.tile(policy.lower_bound(states, 0), (500, 1)), rtol=1e-12
    )
    assert policy.act(states[:0], 0).shape == (0,)


def test_values_outside_the_range_count_as_its_end(policy):
    np.testing.assert_array_equal(policy.lower_bound([[9, 99, 9, 9]], 0), policy.lower_bound([[1, 10, 1, 1]], 0))


@pytest.mark.parametrize(
    ("states", "sentence"),
    [
        ({"u": [0], "x": [0], "v": [0]}, "lack 'y'"),
        (pd.DataFrame({"u": [0.5]}), "lack 'x', 'v', 'y'"),
        (np.zeros((2, 3)), "4 columns"),
        (np.zeros((2, 3, 4)), "4 columns"),
        ([["a", "b", "c", "d"]], "not a number"),
        ({"u": ["secret"], "x": [0], "v": [0], "y": [0]}, "'u' holds something that is not a number"),
        ([[np.nan, 0, 0, 0]], "'u' has 1 row (the first is number 1) without a finite value"),
        ([[0, 0, 0, 0], [0, np.inf, 0, 0]], "'x' has 1 row (the first is number 2)"),
        ({"u": [0, 1], "x": [0], "v": [0], "y": [0]}, "differ in length"),
        (3.0, "States may be a dataframe"),
        ({"u": [[0]], "x": [0], "v": [0], "y": [0]}, "'u' has 2 dimensions"),
        (
            pd.DataFrame(dict.fromkeys(NAMES, pd.to_datetime(["2020-01-01"]))),
            "'u' holds something that is not a number",
        ),
    ],
)
def test_states_that_do_not_fit_are_refused(policy, states, sentence):
    with pytest.raises(InvalidStates) as caught:
        policy.act(states, 0)
    assert sentence in str(caught.value)
    assert "secret" not in str(caught.value)


def test_unknown_levels_of_a_categorical_covariate_are_refused():
    study = make_study(covariates=[{"name": "c", "basis": {"kind": "categorical", "levels": [1, 2, 4]}}])
    table = {"site": ["a"] * 30, "patient": list(range(10)) * 3, "step": [0] * 10 + [1] * 10 + [2] * 10}
    table |= {"action": [0, 1, 2] * 10, "reward": [0.5] * 30, "c": [1, 2, 4] * 10}
    from fdtr.site.rows import read_trajectories

    policy = fit_local(study, read_trajectories(pd.DataFrame(table), study)).policy
    assert len(policy.act([[1], [2], [4]], 0)) == 3
    with pytest.raises(InvalidStates, match=r"outside the study's levels \(1, 2, 4\)"):
        policy.act([[1], [3]], 0)


@pytest.mark.parametrize("step", [-1, 3, 1.0])
def test_steps_that_do_not_exist_are_refused(policy, step):
    with pytest.raises(InvalidStates, match="steps run from 0 to 2"):
        policy.act(np.zeros((1, 4)), step)


def test_a_row_of_a_dataframe_is_a_state(policy, states):
    frame = pd.DataFrame(states, columns=NAMES)
    assert policy.act(frame.iloc[3], 1)[0] == policy.act(states, 1)[3]


def test_an_explanation_names_what_it_clipped(policy):
    assert policy.explain([0.5, 4, 0.5, 0.5], 0).clipped == ()
    assert policy.explain([0.5, 99, 0.5, -1], 0).clipped == ("x", "y")


def test_explanations_add_up(policy, states):
    for state in states[:10]:
        found = policy.explain(state, 1)
        assert found.chosen.action == policy.act(state, 1)[0]
        assert [a.label for a in found.actions] == ["five", "one", "three"]
        np.testing.assert_allclose([a.bound for a in found.actions], policy.lower_bound(state, 1)[0], rtol=1e-12)
        d0 = policy.features.n_shared
        phi = policy.features.phi(np.repeat(state[:, None], 3, axis=1), np.arange(3))
        shared = phi[:, :d0] @ policy.theta[1, :d0]
        np.testing.assert_allclose([a.shared for a in found.actions], shared, rtol=1e-12)
        for action in found.actions:
            assert action.estimate == pytest.approx(action.shared + action.specific)
            assert action.bound == pytest.approx(action.estimate - action.penalty)
    with pytest.raises(InvalidStates, match="One state is explained at a time"):
        policy.explain(states, 0)


def test_files_keep_every_bit(policy, states, tmp_path):
    policy.save(tmp_path / "a.policy")
    again = Policy.load(tmp_path / "a.policy")
    np.testing.assert_array_equal(again.lower_bound(states, 0), policy.lower_bound(states, 0))
    assert (again.site, again.method, again.fingerprint, again.version) == (
        "a",
        "LDTR",
        policy.fingerprint,
        policy.version,
    )
    assert again.act(states, 0).dtype == policy.act(states, 0).dtype
    assert (tmp_path / "a.policy").stat().st_mode & 0o077 == 0
    assert b"Confidential to its site" in (tmp_path / "a.policy").read_bytes()


def test_misspecification_widens_the_penalty_and_is_kept(states, tmp_path):
    study = make_study(learning={"pessimism": 0.001, "ridge": 0.1, "misspecification": 0.01})
    policy = fit_local(study, make_sites(study, {"a": 100})["a"]).policy
    alpha = 0.001 * 15 * 3 * np.sqrt(np.log(2 * 15 * 3 * 100 / 0.99))
    assert policy.offset == pytest.approx(4 * 0.01)
    assert policy.scale == pytest.approx((alpha + 10 * 4 * 0.01,) * 3)
    phi = policy.features.phi(states.T, np.full(50, 1))
    expected = phi @ policy.theta[0] - penalty(phi, factor(policy.precision[0]), policy.scale[0]) - 0.04
    np.testing.assert_allclose(policy.lower_bound(states, 0)[:, 1], expected, rtol=1e-9)
    policy.save(tmp_path / "a.policy")
    again = Policy.load(tmp_path / "a.policy")
    np.testing.assert_array_equal(again.lower_bound(states, 0), policy.lower_bound(states, 0))


def test_a_policy_without_penalty_is_kept_too(study, tmp_path, states):
    policy = fit_q_learning(study, make_sites(study, {"a": 60})["a"])["Q-learn (H)"]
    policy.save(tmp_path / "q.policy")
    again = Policy.load(tmp_path / "q.policy")
    assert again.precision is None
    np.testing.assert_array_equal(again.act(states, 2), policy.act(states, 2))


def test_foreign_and_broken_files_are_refused(policy, study, tmp_path):
    path = tmp_path / "a.policy"
    policy.save(path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(UnreadableFile, match="truncated"):
        Policy.load(path)
    from fdtr.exchange.wire import write_message

    write_message(summarize(study, make_sites(study, {"a": 400})["a"]), path)
    with pytest.raises(ForeignFile, match="holds a message, not a policy"):
        Policy.load(path)
    Policy(study.public, "0" * 64, "a", "LDTR", "0", policy.theta, None).save(path)
    with pytest.raises(UnreadableFile, match="do not fit together"):
        Policy.load(path)
    narrow = policy.precision[:, 1:, 1:]
    Policy(study.public, study.fingerprint, "a", "LDTR", "0", policy.theta, narrow, (1.0,) * 3).save(path)
    with pytest.raises(UnreadableFile, match="do not fit together"):
        Policy.load(path)
    Policy(study.public, study.fingerprint, "a", "LDTR", "0", policy.theta[:, 1:], None).save(path)
    with pytest.raises(UnreadableFile, match="do not fit together"):
        Policy.load(path)
    parts = (study.public, study.fingerprint, "a", "LDTR", "0", policy.theta, policy.precision)
    with pytest.raises(ValueError, match="scale has 2 numbers"):
        Policy(*parts, (1.0,) * 2)
    for scale in ((1.0, -1.0, 1.0), ("1", "1", "1"), (True, True, True)):
        Policy(*parts, scale).save(path)
        with pytest.raises(UnreadableFile, match="do not fit together"):
            Policy.load(path)


@pytest.mark.parametrize(
    ("file", "last_scale", "bounds"),
    [
        ("one-scale", 0.13418669996589355, [1.4883190476319326, 0.8732907928974226, 0.22080416788913498]),
        ("scale-by-step", 0.10558697946623324, [1.4952114040422964, 0.881253094150709, 0.2366892648148021]),
    ],
)
def test_policies_that_were_saved_once_are_read(file, last_scale, bounds):
    policy = Policy.load(Path(__file__).with_name("policies") / f"{file}.policy")
    states = np.array([[0.5, 5.0, 0.5, 0.5], [-0.9, 1.0, 0.1, 0.9]])
    assert len(policy.scale) == 3
    assert policy.scale[-1] == last_scale
    found = [policy.lower_bound(states, step)[row, action] for step, row, action in ((0, 0, 1), (1, 1, 1), (2, 1, 2))]
    assert found == pytest.approx(bounds, rel=1e-9)
