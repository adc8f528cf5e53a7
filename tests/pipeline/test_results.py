"""A whole study in one table: every method for every site, and what is kept."""

import numpy as np
import pytest

import fdtr
from fdtr.pipeline.results import practice_of
from worlds import make_study, make_table

pytestmark = pytest.mark.quick
METHODS = ["FDTR", "LDTR", "LDTR (MV)", "Q-learn (1)", "Q-learn (1-MV)", "Q-learn (H)"]


@pytest.fixture(scope="module")
def study():
    return make_study()


@pytest.fixture(scope="module")
def data(study):
    return fdtr.read_trajectories(make_table(study, {"b": 120, "a": 150, "c/d": 130}), study)


@pytest.fixture(scope="module")
def results(study, data):
    return fdtr.run(study, data)


def test_every_method_has_a_policy_for_every_site(results):
    assert list(results.methods) == METHODS
    for policies in results.methods.values():
        assert list(policies) == ["a", "b", "c/d"]
        assert set(policies["a"].act(np.zeros((5, 4)), 0)) <= {0, 1, 2}


def test_baselines_alone_are_the_same(study, data, results):
    alone = fdtr.fit_baselines(study, data.by_site())
    states = np.random.default_rng(0).random((40, 4))
    assert list(alone) == METHODS[1:]
    for method, policies in alone.items():
        for site, policy in policies.items():
            np.testing.assert_array_equal(policy.act(states, 1), results.methods[method][site].act(states, 1))


def test_shared_coefficients_are_the_average_over_sites(results):
    by_hand = np.mean([fit.theta[:, :6] for fit in results.federated.values()], axis=0)
    np.testing.assert_allclose(results.shared_coefficients, by_hand)
    assert results.identified == [True] * 6


def test_a_coefficient_that_nobody_identifies_is_marked(study):
    table = make_table(study, {"a": 100, "b": 100}, constant_within_site=("u",))
    results = fdtr.run(study, fdtr.read_trajectories(table, study))
    marked = {name: found["identified"] for name, found in results.as_json()["shared_coefficients"].items()}
    assert marked == {"u": False, "v": True, "a·u": False, "a·v": True, "a^2·u": False, "a^2·v": True}


def test_practice_counts_shares(data, results):
    rows = data.by_site()["a"]
    others = {"same": results.federated["a"].policy, "LDTR": results.local["a"].policy}
    practice = practice_of(results.federated["a"].policy, rows, others)
    assert practice.as_others["same"] == 1
    assert 0 < practice.as_others["LDTR"] <= 1
    np.testing.assert_allclose(practice.given.sum(axis=1), 1)
    np.testing.assert_allclose(practice.recommended.sum(axis=1), 1)
    np.testing.assert_allclose(practice.given, rows.action_counts() / 150)
    assert 0 < practice.agreement < 1


def test_progress_is_told_in_order(study, data):
    told = []
    fdtr.run(study, data, progress=lambda what, done, of: told.append((done, of)))
    assert told == [(done, 9) for done in range(10)]


def test_sites_whose_names_are_no_file_names_are_kept_apart(results, tmp_path):
    results.save(tmp_path / "out")
    names = sorted(path.name for path in (tmp_path / "out" / "policies").iterdir())
    assert names == ["a.policy", "b.policy", "c-d.policy"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_report_alone_can_be_written(results, tmp_path):
    results.report(tmp_path / "r.html")
    assert "<!doctype html>" in (tmp_path / "r.html").read_text().lower()
