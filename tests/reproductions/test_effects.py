"""The experiment on shared effects: it sums up what a site would send, repeats itself, and says what it shows."""

import dataclasses
from functools import cache

import numpy as np
import pyarrow as pa
import pytest

from experiments import effects
from experiments.findings import Finding
from experiments.replications import ignore_progress, seeds_of
from experiments.reward_draws import SiteDraw, Trial, draw_site, features_of, observe
from fdtr.inference import infer_effects
from fdtr.simulation.linear import WorldSpec, make_world
from fdtr.site.fitting import fit_local
from fdtr.site.rows import read_trajectories
from fdtr.study import Study

SPEC = WorldSpec(n_sites=2, horizon=3, noise=0.5)


def test_one_run_is_what_the_site_would_send():
    world = make_world(SPEC, np.random.default_rng(0))
    study = Study.model_validate(world.study(ridge=1.0, pessimism=0.0, sharing=1.0, share="value"))
    drawn = draw_site(world, 0, 0.5, 80, 1, np.random.default_rng(1)).sums
    walk = world.sample(0, 80, np.random.default_rng(1))
    columns = {"site": np.full(240, "site-1"), "patient": np.tile(np.arange(80), 3), "step": np.repeat(range(3), 80)}
    columns |= {"action": walk.actions.ravel(), "reward": walk.rewards.ravel()}
    columns |= dict(zip(world.covariates, walk.states.reshape(240, -1).T, strict=True))
    rows = read_trajectories(pa.table(columns), study)
    sent = fit_local(study, rows).summary.sums
    for field in ("schur", "schur_reward", "information", "information_moment", "information_square", "rank", "n"):
        np.testing.assert_allclose(getattr(drawn, field), getattr(sent, field), rtol=1e-8, atol=1e-10)


def test_features_are_the_studys():
    world = make_world(SPEC, np.random.default_rng(0))
    features = Study.model_validate(world.study()).feature_map
    states, actions = world.arrive(0, 20, np.random.default_rng(1)), np.arange(20) % 6
    np.testing.assert_allclose(features_of(world, states, actions), features.phi(states.T, actions), rtol=1e-12)


def test_without_noise_a_common_effect_has_no_non_centrality():
    trial = Trial(effects.COMMON[1], 3, seeds_of(0, 0))
    assert np.allclose(observe(trial).noncentrality, 0, atol=1e-6)
    moved = Trial(effects.DEVIATING[-1], 3, seeds_of(0, 0))
    assert np.all(observe(moved).noncentrality > 1)


def test_known_moments_give_the_true_effects():
    world = make_world(SPEC, np.random.default_rng(0))
    drawn: SiteDraw = draw_site(world, 1, 0.5, 60, 2, np.random.default_rng(1))
    np.testing.assert_allclose(infer_effects(drawn.without_noise).estimates, drawn.theta, rtol=1e-6, atol=1e-8)


def test_a_trial_repeats_itself():
    trial = Trial(effects.COMMON[0], 4, seeds_of(3, 1))
    once, again = observe(trial), observe(trial)
    for field in dataclasses.fields(once):
        assert np.array_equal(getattr(once, field.name), getattr(again, field.name))


@cache
def quick_finding() -> Finding:
    return effects.run(0, True, 1, ignore_progress)


@pytest.mark.slow
def test_the_quick_form_says_what_it_shows():
    finding = quick_finding()
    assert len(finding.shows) == 1 + 7 + 1 + 4 + 1
    sizes, bands, powers = (table.rows for table in finding.tables)
    assert len(sizes) == 7 * 6
    assert len(bands) == 7
    assert len(powers) == 4 + effects.BINS
    assert all(0 <= row.rejected <= 1 and 0.7 < row.covered <= 1 for row in sizes)


@pytest.mark.slow
def test_any_number_of_processes_finds_the_same():
    assert effects.run(0, True, 2, ignore_progress).shows == quick_finding().shows


def test_the_figures_can_be_drawn():
    for figure in quick_finding().figures:
        assert figure.draw().to_dict()["facet"]
