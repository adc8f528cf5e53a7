"""The verified part of a policy: where it speaks, what it says elsewhere, and its file."""

from dataclasses import replace

import numpy as np
import pytest

from fdtr import VerifiedPolicy, fit_local, verify
from fdtr.algebra.care_models import LogisticCare, TreeCare, floored
from fdtr.errors import Abstains, InvalidStates, UnreadableFile
from fdtr.evaluation.importance import effective_sample_size
from fdtr.evaluation.step_arrays import step_arrays
from fdtr.policy import Policy
from random_tables import make_sites, make_study

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def study():
    return make_study(
        actions={"levels": [5, 1, 3], "labels": ["five", "one", "three"]},
        disclosure={"min_effective_sample_size": 20.0},
    )


@pytest.fixture(scope="module")
def rows(study):
    return make_sites(study, {"a": 400})["a"]


@pytest.fixture(scope="module")
def verified(study, rows):
    return verify(study, rows, fit_local(study, rows))


@pytest.fixture(scope="module")
def states():
    return np.random.default_rng(0).uniform([-1, 0, 0, 0], [1, 10, 1, 1], (60, 4))


def test_it_advises_where_the_advantage_stands_out_and_is_worth_its_weight(verified, states):
    policy, features = verified.policy, verified.policy.features
    for step in range(3):
        psi = features.psi(states.T)
        care = floored(verified.care.chances(states.T, psi, step))
        np.testing.assert_allclose(care.sum(axis=0), 1.0)
        best = policy.lower_bound(states, step).argmax(axis=1)
        expected = []
        for i, chosen in enumerate(best):
            phi = np.stack([features.phi(states[[i]].T, np.array([a]))[0] for a in range(3)])
            delta = phi[chosen] - care[:, i] @ phi
            advantage = delta @ policy.theta[step]
            error = verified.noise[step] * np.sqrt(delta @ np.linalg.solve(policy.precision[step], delta))
            b = care[chosen, i]
            worth = advantage * b / (1 - b)
            expected.append(advantage / error > 1 and b >= 0.05 and worth >= verified.threshold)
        np.testing.assert_array_equal(verified.advises(states, step), expected)


def test_where_it_abstains_the_given_action_stands(verified, states):
    advised, given = verified.advises(states, 0), np.resize([1, 3, 5], 60)
    assert 0 < advised.sum() < 60, "a part that says all or nothing shows nothing"
    acts = verified.act(states, 0, given)
    np.testing.assert_array_equal(acts[~advised], given[~advised])
    np.testing.assert_array_equal(acts[advised], verified.policy.act(states, 0)[advised])
    np.testing.assert_array_equal(verified.act(states[advised], 0), verified.policy.act(states[advised], 0))
    with pytest.raises(Abstains, match=rf"says nothing for {np.sum(~advised)} of 60 states"):
        verified.act(states, 0)
    with pytest.raises(InvalidStates, match="one for each of 60 states"):
        verified.act(states, 0, given=[1])
    with pytest.raises(InvalidStates, match="codes of the study"):
        verified.act(states, 0, given=np.full(60, 2))
    with pytest.raises(InvalidStates, match="Step 3 does not exist"):
        verified.act(states, 3, given)


def test_it_says_why(verified, states):
    advised = verified.advises(states, 0)
    yes, no = verified.explain(states[advised][0], 0), verified.explain(states[~advised][0], 0)
    assert (yes.advised, no.advised) == (True, False)
    assert yes.explanation.chosen.action == verified.policy.act(states[advised], 0)[0]
    assert yes.z > 1
    assert yes.chance >= 0.05
    assert "standard errors" in yes.reason
    nothing = replace(verified, threshold=np.inf).explain(states[0], 0)
    assert nothing.reason == "The data of this site can verify no part of this policy."
    never = replace(verified, least_chance=0.999).explain(states[0], 0)
    assert never.reason.endswith("of such patients: too few to compare with.")
    unclear = replace(verified, least_z=100.0).explain(states[0], 0)
    assert unclear.reason.endswith("and advice needs more than 100.")


def test_its_file_gives_back_the_part_and_the_whole(verified, states, tmp_path):
    verified.save(tmp_path / "a.policy")
    again, full = VerifiedPolicy.load(tmp_path / "a.policy"), Policy.load(tmp_path / "a.policy")
    np.testing.assert_array_equal(again.advises(states, 1), verified.advises(states, 1))
    np.testing.assert_array_equal(full.lower_bound(states, 1), verified.policy.lower_bound(states, 1))
    assert (tmp_path / "a.policy").stat().st_mode & 0o077 == 0
    silent = replace(verified, threshold=np.inf)
    silent.save(tmp_path / "silent.policy")
    assert not VerifiedPolicy.load(tmp_path / "silent.policy").speaks
    verified.policy.save(tmp_path / "full.policy")
    assert not VerifiedPolicy.is_in(tmp_path / "full.policy")
    with pytest.raises(UnreadableFile, match="without a verified part"):
        VerifiedPolicy.load(tmp_path / "full.policy")
    splits, leaves = np.array([[4, 0.5, 1, 2], [0, 0, 1, 1], [0, 0, 2, 2]]), np.full((3, 3), 1 / 3)
    tree = replace(verified, care=TreeCare(splits, leaves))
    tree.save(tmp_path / "tree.policy")
    np.testing.assert_array_equal(
        VerifiedPolicy.load(tmp_path / "tree.policy").advises(states, 1), tree.advises(states, 1)
    )
    nowhere = np.array([[4, 0.5, 1, 9], [0, 0, 1, 1], [0, 0, 2, 2]])
    for care in (
        LogisticCare(np.zeros((1, 3, 5))), LogisticCare(np.full((3, 3, 6), np.nan)), TreeCare(nowhere, leaves),
        TreeCare(splits, leaves[:, :2]), TreeCare(splits[:, :3], leaves), TreeCare(splits + 5, leaves),
        TreeCare(np.array([[0, 0.5, 1, 1], [0, 0.5, 0, 0], [0, 0, 2, 2]]), leaves),  # a circle
        TreeCare(splits, np.array([[2.0, -1.0, 0.0]] * 3)), LogisticCare(np.full((3, 3, 5), 1e308)),
    ):  # fmt: skip
        replace(verified, care=care).save(tmp_path / "bad.policy")
        with pytest.raises(UnreadableFile, match="not a sound policy"):
            VerifiedPolicy.load(tmp_path / "bad.policy")


def test_the_threshold_leaves_weights_that_are_worth_enough(study, rows, verified):
    arrays = step_arrays(rows)
    weights, ever = np.ones((3, arrays.n)), np.zeros(arrays.n, bool)
    product = np.ones(arrays.n)
    for h, (states, actions) in enumerate(zip(arrays.states, arrays.actions, strict=True)):
        contrast = verified.contrast(states, h)
        speaks = verified.speaks_at(contrast)
        product[: len(actions)] *= np.where(speaks, (actions == contrast.best) / contrast.chance, 1.0)
        ever[: len(actions)] |= speaks
        weights[h] = product
    assert effective_sample_size(weights).min() >= 0.1 * arrays.n
    assert effective_sample_size(weights[:, ever]).min() >= 20
    strict = study.model_copy(update={"evaluation": study.evaluation.model_copy(update={"min_share": 0.9})})
    fewer = verify(strict, rows, fit_local(study, rows))
    assert fewer.threshold > verified.threshold


def test_errors_that_are_not_computed_decide_nothing(rows, verified):
    first = step_arrays(rows).states[0]
    stricter = replace(verified, threshold=float(np.median(verified.contrast(first, 0).worth)))
    for h, states in enumerate(step_arrays(rows).states):
        some, every = stricter.contrast(states, h), stricter.contrast(states, h, everywhere=True)
        assert np.isfinite(every.error).all()
        known = np.isfinite(some.error)
        assert 0 < known.sum() < len(known)
        np.testing.assert_allclose(some.error[known], every.error[known], rtol=1e-12)
        assert (stricter.speaks_at(some) == stricter.speaks_at(every)).all()
        assert 0 < stricter.speaks_at(some).sum() <= known.sum()


def test_a_site_without_enough_weight_verifies_nothing(study, rows):
    asks = {"min_effective_sample_size": 399.0}
    much = study.model_copy(update={"disclosure": study.disclosure.model_copy(update=asks)})
    silent = verify(much, rows, fit_local(study, rows))
    assert not silent.speaks
    assert not silent.advises(np.zeros((5, 4)), 0).any()
