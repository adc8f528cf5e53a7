"""Effects on rewards whose mean stays inside [0, 1] for x0 in the unit cube, x1 on the simplex and every dose."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MARGIN = 0.05
"""Least distance of a mean reward from 0 and 1."""

MAIN = 0.5
"""Size of main effects beside that of action terms."""


@dataclass(frozen=True, eq=False)
class Effects:
    """θ⁰ `common` (H, d0), each site's θ⁰ `shared` (K, H, d0), and θᵏ `specific` (K, H, d1)."""

    common: Array
    shared: Array
    specific: Array


def draw_effects(middle: Array, steps: int, n_specific: int, deviation: float, rng: np.random.Generator) -> Effects:
    """Draw θ⁰ and θᵏ such that mean rewards stay in [MARGIN, 1 − MARGIN].

    Half of an effect's variance lasts over the steps, half is each step's own. Action terms have both signs and
    cancel at the `middle` (K, m0) of x0 and the middle of the simplex, so that no action is best for everybody. One
    factor scales a step at all sites, which keeps θ⁰ common; each site's level is its own, as constants lie in the
    span of φ1. `deviation` is in standard deviations of an effect, and lasts over the steps.
    """
    sites, m0 = middle.shape
    common = np.hstack([MAIN * _lasting(rng, (steps, m0)), _both_signs(_lasting(rng, (steps, m0)))])
    moved = deviation * rng.standard_normal((sites, 1, 2 * m0)) * np.repeat([MAIN, 1.0], m0)
    shared = common + moved
    base = MAIN * np.stack([_lasting(rng, (steps, n_specific)) for _ in range(sites)])
    effect = np.stack([_both_signs(_lasting(rng, (steps, n_specific))) for _ in range(sites)])
    effect -= np.einsum("khj,kj->kh", shared[..., m0:], middle)[..., None]
    low, high = _reward_bounds(shared, base, effect)
    room = 1 - 2 * MARGIN
    scale = (room / (high - low).max(axis=0))[:, None]
    slack = room - scale[:, 0] * (high - low)
    level = MARGIN - scale[:, 0] * low + slack * rng.random(slack.shape)
    specific = np.concatenate([scale * base + level[..., None], scale * effect], axis=-1)
    return Effects(scale * common, scale * shared, specific)


def _lasting(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Effects (H, m) with variance 1, half of it common to all steps."""
    effects: Array = (rng.standard_normal(shape[1]) + rng.standard_normal(shape)) / np.sqrt(2.0)
    return effects


def _both_signs(effects: Array) -> Array:
    """`effects` (H, m) centred over covariates and brought to variance 1; with one covariate, its sign."""
    if effects.shape[1] == 1:
        return np.sign(effects)
    centred = effects - effects.mean(axis=1, keepdims=True)
    scaled: Array = centred / centred.std(axis=1, keepdims=True)
    return scaled


def halves(theta: Array) -> tuple[Array, Array]:
    """Main effects and action terms of θ (…, 2m), (…, m) each."""
    base, effect = np.split(theta, 2, axis=-1)
    return base, effect


def by_covariate(shared: Array, own: Array) -> Array:
    """(2, m): main effects and action terms of all covariates in the order of a state."""
    return np.stack([np.concatenate(pair) for pair in zip(halves(shared), halves(own), strict=True)])


def attainable(shared: Array, own: Array) -> tuple[Array, Array]:
    """Least and largest ⟨x0, shared⟩ + ⟨x1, own⟩ over x0 in the unit cube and x1 on the simplex."""
    low = np.minimum(shared, 0.0).sum(axis=-1) + own.min(axis=-1)
    high = np.maximum(shared, 0.0).sum(axis=-1) + own.max(axis=-1)
    return low, high


def _reward_bounds(shared: Array, own_base: Array, own_effect: Array) -> tuple[Array, Array]:
    """Least and largest mean reward of each site and step, (K, H): linear in a, so at an end of the doses."""
    base, effect = halves(shared)
    ends = [attainable(base, own_base), attainable(base + effect, own_base + own_effect)]
    return np.minimum(ends[0][0], ends[1][0]), np.maximum(ends[0][1], ends[1][1])
