"""Fitted-Q evaluation against regressions on the dense rows."""

import numpy as np
import pytest

import literal
from fdtr.evaluation.fitted_q import fitted_q_values
from fdtr.site import fit_local
from worlds import make_sites, make_study

pytestmark = pytest.mark.quick


def test_it_is_the_regression_of_what_the_policy_would_do():
    study = make_study(ends={"death": 0.0, "discharge": 1.0})
    rows = make_sites(study, {"a": 120}, ragged=True)["a"]
    fit = fit_local(study, rows)
    features = study.feature_map
    policy, theta = fit.policy, None
    for h in reversed(range(3)):
        dense = literal.dense(rows, features)[h]
        chunk = next(rows.step(h).chunks(10**6))
        future = np.zeros(len(dense.reward))
        k = len(dense.following)
        future[k:] = dense.ended
        if k and theta is not None:
            chosen = policy.act(chunk.next_states.T, h + 1)
            future[:k] = (features.phi(chunk.next_states, chosen) * theta).sum(axis=1)
        gram = dense.phi.T @ dense.phi + 1e-3 * np.eye(features.n_features)
        theta = np.linalg.solve(gram, dense.phi.T @ (dense.reward + future))
    start = next(rows.step(0).chunks(10**6)).states
    expected = (features.phi(start, policy.act(start.T, 0)) * theta).sum(axis=1).mean()
    assert fitted_q_values(rows, features, [fit.fit.bounds])[0] == pytest.approx(expected, rel=1e-9)
