"""Q-learning against least squares on the dense matrices, and majority votes by hand."""

import numpy as np

import paper_algorithms as paper
from fdtr.learners.baselines import MajorityVote
from fdtr.site import fit_q_learning
from random_tables import make_sites, make_study


def stage_by_stage(steps):
    """Ordinary least squares from the last stage to the first, by numpy's own solver (minimum norm)."""
    thetas, stacked, following = [], [], None
    for rows in reversed(steps):
        future = np.zeros(len(rows.reward))
        future[len(rows.following) :] = rows.ended
        if following is not None:
            future[: len(rows.following)] = (rows.following @ following).max(axis=1)
        y = rows.reward + future
        following = np.linalg.lstsq(rows.phi, y, rcond=1e-9)[0]
        thetas.append(following)
        stacked.append((rows.phi, y))
    single = np.linalg.lstsq(
        np.concatenate([phi for phi, _ in stacked]), np.concatenate([y for _, y in stacked]), rcond=1e-9
    )[0]
    return np.array(thetas[::-1]), single


def test_two_stages_equal_least_squares():
    study = make_study(horizon=2)
    rows = make_sites(study, {"a": 150})["a"]
    expected, single = stage_by_stage(paper.dense(rows, study.feature_map))
    found = fit_q_learning(study, rows)
    np.testing.assert_allclose(found["Q-learn (H)"].theta, expected, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(found["Q-learn (1)"].theta, np.tile(single, (2, 1)), rtol=1e-9, atol=1e-10)


def test_rank_deficient_least_squares_is_the_shortest():
    study = make_study(ends={"death": 0.0, "discharge": 1.0})
    rows = make_sites(study, {"a": 150}, ragged=True, duplicate=("y", "v"), actions={"a": [0, 2]})["a"]
    expected, single = stage_by_stage(paper.dense(rows, study.feature_map))
    found = fit_q_learning(study, rows)
    np.testing.assert_allclose(found["Q-learn (H)"].theta, expected, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(found["Q-learn (1)"].theta[0], single, rtol=1e-7, atol=1e-8)


class Fixed:
    """A voter that always says the same."""

    def __init__(self, policy, code):
        self.features, self.code = policy.features, code

    def act(self, states, step):
        return np.full(len(states), self.code)


def test_majority_wins_and_ties_go_to_the_smallest_code():
    study = make_study(actions={"levels": [2, 0, 1]})
    policy = fit_q_learning(study, make_sites(study, {"a": 30})["a"])["Q-learn (H)"]
    states = np.zeros((4, 4))
    vote = MajorityVote("vote", [Fixed(policy, code) for code in (2, 2, 1)])
    assert vote.act(states, 0).tolist() == [2] * 4
    vote = MajorityVote("vote", [Fixed(policy, code) for code in (2, 1)])
    assert vote.act(states, 0).tolist() == [1] * 4
