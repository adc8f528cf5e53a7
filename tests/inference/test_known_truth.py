"""Inference where the truth is known: size and power of Q, coverage of intervals and bands; the long form is
`reproductions/experiments/effects.py`."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from experiments.replications import seeds_of
from experiments.reward_draws import Observed, Setting, Trial, observe
from fdtr.inference import sidak
from fdtr.simulation.linear import WorldSpec

SPEC = WorldSpec(n_sites=4, horizon=2)
WORLDS, RUNS = 10, 40
SITES = {"noises": (1.0, 0.7, 0.4, 0.2), "sizes": (150, 200, 250, 300)}  # the smallest site is the noisiest


@cache
def observed(kind: str, deviation: float = 0.0) -> tuple[Observed, ...]:
    """400 runs in ten worlds."""
    spec = replace(SPEC, shared_kind=kind, deviation=deviation)
    setting = Setting("", spec, SITES["noises"], SITES["sizes"], WORLDS * RUNS)
    return tuple(observe(Trial(setting, RUNS, seeds_of(0, w))) for w in range(WORLDS))


def within_chance(hits: np.ndarray, expected: float) -> bool:
    """Whether a share is within 3.5 binomial standard errors of what it should be (p < 0.0005 by chance)."""
    return abs(np.mean(hits) - expected) <= 3.5 * np.sqrt(expected * (1 - expected) / hits.size)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["redrawn", "static"])
def test_q_rejects_a_common_effect_as_often_as_it_should(kind):
    assert within_chance(np.stack([one.p_values < 0.05 for one in observed(kind)]), 0.05)


def test_one_variance_for_all_sites_would_reject_far_too_often():
    assert np.mean([one.one_variance < 0.05 for one in observed("redrawn")]) > 0.15


def test_p_values_are_uniform_under_a_common_effect():
    p = np.sort(np.concatenate([one.p_values.ravel() for one in observed("redrawn")]))
    distance = np.max(np.abs(p - (np.arange(len(p)) + 0.5) / len(p)))
    assert distance < 1.95 / np.sqrt(len(p))  # Kolmogorov, p < 0.001 by chance


@pytest.mark.slow
@pytest.mark.parametrize("deviation", [0.3, 0.6])
def test_power_is_what_the_non_central_chi_square_says(deviation):
    worlds = observed("redrawn", deviation)
    rejected = np.stack([one.p_values < 0.05 for one in worlds])
    predicted = np.stack([one.predicted for one in worlds])
    error = np.sqrt(np.sum(predicted * (1 - predicted))) / predicted.size
    assert abs(rejected.mean() - predicted.mean()) < max(0.03, 3.5 * error)
    assert 0.1 < predicted.mean() < 0.95


@pytest.mark.parametrize("kind", ["redrawn", "static"])
def test_intervals_cover_at_every_step(kind):
    off = np.stack([one.off for one in observed(kind)])  # (worlds, R, H, d0)
    for step in range(SPEC.horizon):
        # Coefficients of one run are correlated: as if one in two counted.
        assert within_chance((off[:, :, step] <= sidak(1))[..., ::2], 0.95)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["redrawn", "static"])
def test_bands_hold_at_all_steps_together(kind):
    off = np.stack([one.off for one in observed(kind)])
    band = off.max(axis=2) <= sidak(SPEC.horizon)
    assert within_chance(band[..., ::2], 0.95)
    joint = off.max(axis=(2, 3)) <= sidak(off[0, 0].size)
    assert 0.95 - 3.5 * np.sqrt(0.95 * 0.05 / joint.size) <= joint.mean() <= 0.99
