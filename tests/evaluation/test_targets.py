"""Targets give chances."""

from types import SimpleNamespace

import numpy as np
import pytest

from fdtr.evaluation import Behaviour, Constant, Softened
from fdtr.evaluation.targets import Deterministic, as_target
from fdtr.learners.baselines import MajorityVote
from fdtr.site.fitting import fit_local
from random_tables import make_sites, make_study

pytestmark = pytest.mark.quick

STATES = np.array([[0.1, -0.9, 0.4], [2.0, 9.0, 5.0], [0.5, 0.1, 0.9], [0.2, 0.3, 0.4]])
USUAL = np.array([[0.2, 0.5, 0.1], [0.3, 0.4, 0.1], [0.5, 0.1, 0.8]])


def test_a_policy_does_what_it_says():
    study = make_study()
    rows = make_sites(study, {"a": 60})["a"]
    policy = fit_local(study, rows).policy
    for acting in (policy, MajorityVote("vote", [policy])):
        chances = as_target(acting, study.feature_map.levels).chances(STATES, 1, USUAL)
        assert chances.sum(axis=0).tolist() == [1, 1, 1]
        assert study.feature_map.levels[chances.argmax(axis=0)].tolist() == policy.act(STATES.T, 1).tolist()


def test_levels_need_not_be_sorted():
    backwards = Deterministic(lambda states, step: np.full(len(states), 7.0), np.array([10.0, 7.0, 0.0]))
    assert backwards.chances(STATES, 0, USUAL)[1].tolist() == [1, 1, 1]


def test_an_unknown_code_is_refused():
    stray = SimpleNamespace(act=lambda states, step: np.full(len(states), 9))
    with pytest.raises(ValueError, match="none of the action levels"):
        as_target(stray, np.array([0, 1, 2])).chances(STATES, 0, USUAL)
    with pytest.raises(TypeError, match="A policy or a target is evaluated, not int"):
        as_target(3, np.array([0, 1, 2]))


def test_constant_behaviour_and_softened():
    assert Constant(2).chances(STATES, 0, USUAL)[2].tolist() == [1, 1, 1]
    assert Behaviour().chances(STATES, 0, USUAL) is USUAL
    soft = Softened(Constant(0), 0.25).chances(STATES, 0, USUAL)
    np.testing.assert_allclose(soft, 0.75 * Constant(0).chances(STATES, 0, USUAL) + 0.25 * USUAL)
    np.testing.assert_allclose(soft.sum(axis=0), 1.0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        Softened(Constant(0), 1.5)
