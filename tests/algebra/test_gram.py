"""Per-action Grams and their assembly, against the dense feature matrix."""

import numpy as np
import pytest

from fdtr.algebra.gram import assemble_gram, assemble_moment, grams_by_action
from worlds import make_study


@pytest.mark.parametrize("n_actions", [2, 3, 300])
def test_grams_are_those_of_each_actions_rows(n_actions):
    rng = np.random.default_rng(0)
    rows, actions = rng.random((4, 500)), rng.integers(0, n_actions, 500)
    grams = grams_by_action(rows, actions, np.bincount(actions, minlength=n_actions))
    for action in range(n_actions):
        mine = rows[:, actions == action]
        np.testing.assert_allclose(grams[action], mine @ mine.T, rtol=1e-12)


@pytest.mark.parametrize("basis", ["polynomial", "categorical"])
def test_assembly_equals_the_dense_gram(basis):
    study = make_study(actions={"levels": [0, 1, 2], "basis": basis})
    features = study.feature_map
    rng = np.random.default_rng(0)
    states, actions, y = rng.random((4, 400)), rng.integers(0, 3, 400), rng.random(400)
    psi = features.psi(states)
    m = features.n_functions
    grams = grams_by_action(np.vstack([psi, y]), actions, np.bincount(actions))
    phi = features.phi(states, actions)
    gram = assemble_gram(features.embeddings, grams[:, :m, :m])
    np.testing.assert_allclose(gram, phi.T @ phi, rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(gram, gram.T)
    np.testing.assert_allclose(assemble_moment(features.embeddings, grams[:, :m, m]), phi.T @ y, rtol=1e-12)
