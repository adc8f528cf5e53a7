"""Each step's sums are noised before anything is computed from them."""

import numpy as np
import pytest

from fdtr.algebra.noised import flatten, unflatten
from fdtr.learners.accumulate import accumulate
from fdtr.learners.backward import grams_of
from fdtr.learners.local import fit_local
from fdtr.learners.private_fit import Noise, fit_private
from fdtr.site import message_settings
from random_tables import make_sites, make_study

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def site():
    study = make_study()
    return study, make_sites(study, {"a": 300})["a"]


class Recorded:
    """Noise of a fixed generator that remembers what it was given and what it gave."""

    def __init__(self, scale, seed=0):
        self.rng, self.scale, self.asked, self.given = np.random.default_rng(seed), scale, [], []

    def add(self, vector):
        self.asked.append(vector)
        self.given.append(vector + self.scale * self.rng.normal(size=len(vector)))
        return self.given[-1]


def test_no_noise_gives_the_exact_sums(site):
    study, rows = site
    settings = message_settings(study)
    noised = fit_private(rows, study.feature_map, settings, Noise(0.0, lambda vector: vector))
    exact = grams_of(fit_local(rows, study.feature_map, settings))
    for name in ("gram", "moment", "reward_moment", "n"):
        np.testing.assert_allclose(getattr(noised, name), getattr(exact, name), rtol=1e-7, atol=1e-7)
    mine, theirs = (grams.sums(study.feature_map.n_shared) for grams in (noised, exact))
    np.testing.assert_allclose(mine.schur, theirs.schur, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(mine.schur_moment, theirs.schur_moment, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(mine.information, theirs.information, rtol=0.2)  # σ̂² by the ridge, over n


def test_targets_come_from_later_steps_as_noised(site):
    """Whatever the exact sums of a later step were, only what noise made of them reaches the steps before."""
    study, rows = site
    features, settings = study.feature_map, message_settings(study)
    first = Recorded(scale=3.0)
    fit_private(rows, features, settings, Noise(3.0, first.add))
    assert len(first.asked) == study.horizon
    last = accumulate(rows.step(study.horizon - 1), features, None)
    np.testing.assert_array_equal(unflatten(first.asked[0], features.n_features, 1.0).moment, last.moment)
    # replaying the last step's noised sums with no noise of its own leads to the same targets one step before
    replayed = []

    def replay(vector):
        replayed.append(vector)
        return first.given[len(replayed) - 1]

    fit_private(rows, features, settings, Noise(3.0, replay))
    np.testing.assert_array_equal(replayed[1], first.asked[1])
    # exact later sums lead to other targets
    exact = fit_local(rows, features, settings).statistics[study.horizon - 2]
    moment = unflatten(first.asked[1], features.n_features, 2.0).moment
    assert np.abs(moment - exact.moment).max() > 1e-3


def test_moments_are_divided_by_their_span(site):
    study, rows = site
    features = study.feature_map
    seen = Recorded(scale=0.0)
    fit_private(rows, features, message_settings(study), Noise(0.0, seen.add))
    for back, vector in enumerate(seen.asked):
        assert np.linalg.norm(vector) <= 2 * rows.n_patients
        sums = unflatten(vector, features.n_features, back + 1.0)
        np.testing.assert_array_equal(flatten(sums, back + 1.0), vector)


def test_sums_stay_positive_and_bounded_under_heavy_noise(site):
    """What other sites' solutions rest on: S ⪰ 0, and moments that S can explain."""
    study, rows = site
    for seed in range(5):
        noise = Recorded(scale=50.0, seed=seed)
        sums = fit_private(rows, study.feature_map, message_settings(study), Noise(50.0, noise.add)).sums(
            study.feature_map.n_shared
        )
        assert (np.linalg.eigvalsh(sums.schur) >= -1e-8).all()
        assert (np.linalg.eigvalsh(sums.information) >= -1e-8).all()
        assert np.trace(sums.schur, axis1=1, axis2=2).max() <= rows.n_patients
        assert (sums.information_square <= 1000 * rows.n_patients).all()
