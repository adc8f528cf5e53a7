"""Evidence that one patient is in the sums of a step, if the patient's row and the others' distribution are known.

Every sum of a message is Σ w_j z_j over rows j. A row i moves it by w_i (z_i − z̄). Without that row, its variance over
random patients and weights is about

    Σ_{j≠i} w_j² [(z_j − z̄)² + c z_j²],  c = Var(w)/E(w)²,

and the evidence is the square of the first over the second. It is taken for the square of every shared column, for the
squared residual of the reward, and for the products of φ̃ with the residuals of r and Y. Unlike a row's leverage, it
finds a third value in a column of two values, and an outcome that few patients have.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.schur import as_own, whiten
from fdtr.disclosure.blocks import Unit, directions_of
from fdtr.disclosure.weighted_step import StepPlan

Array = NDArray[np.float64]

_ROUNDING = 1e-12
_NOTHING_LEFT = 1e-9  # of outcomes between 0 and the number of steps: rounding errors tell of nobody


def column_evidence(plan: StepPlan) -> Array:
    """The most evidence that the square of one shared column gives of each row, within its block, (n,)."""
    spread = _relative_variance(plan)
    evidence = np.zeros(len(plan.weights))
    units = [unit for unit in plan.design.units if unit not in plan.absorbed]
    maps, owners = residual_columns(plan, units), [unit.action for unit in units for _ in unit.directions.T]
    shown = {
        block: [k for k, owner in enumerate(owners) if block is None or owner in (block, None)] for block in plan.blocks
    }
    packed = np.zeros((len(maps), max(map(len, shown.values()), default=0), maps.shape[2]))
    for block, columns in shown.items():  # zeros elsewhere: a row shows only the columns of its own block
        at = slice(None) if block is None else block
        packed[at, : len(columns)] = maps[at, columns]
    squares = image(plan, packed) ** 2
    for block, columns in shown.items():
        rows = np.flatnonzero(plan.rows_of(block))
        if columns:
            by_column = _evidence_in(np.take(squares[: len(columns)], rows, axis=1), plan.weights[rows], spread)
            evidence[rows] = by_column.max(axis=0)
    return evidence


def outcome_evidence(plan: StepPlan, leverage: Array) -> Array:
    """Evidence of each row by its outcomes, (2, n): in σ̂², and what s_r and s tell beyond a typical outcome.

    With residuals e of variance σ² the latter is h (w/E(w)) (e²/σ² − 1) for each. It is below 0 for a patient with
    an outcome that is closer to the fitted one than usual: over the steps of a typical patient it adds up to 0, as rule
    NUMBERS counts what a typical outcome tells.
    """
    weights, kept = plan.weights, np.isin(plan.actions, plan.kept_actions)
    mean_weight = 1.0 - plan.rules.jitter / 2
    left = residuals(plan)
    evidence = np.zeros((2, len(weights)))
    evidence[0, kept] = _evidence_in(left[:1, kept] ** 2, weights[kept], _relative_variance(plan))[0]
    for residual in left[: 1 if plan.following is None else 2]:
        variance = float(weights[kept] @ residual[kept] ** 2 / max(weights[kept].sum(), _ROUNDING))
        if variance > _ROUNDING:
            evidence[1] += leverage * (weights / mean_weight) * (residual**2 / variance - 1.0)
    return np.where(kept, evidence, 0.0)


def _evidence_in(values: Array, weights: Array, spread: float) -> Array:
    """Evidence of each of the rows in sums Σ w z, (k, n), where `values` (k, n) are z, and `spread` is c."""
    scale = values.max(axis=1, initial=0.0, keepdims=True)
    if values.shape[1] < 2:
        return np.zeros(values.shape)
    z, squares = values / np.where(scale, scale, 1.0), weights**2
    mean = ((z @ weights)[:, None] - weights * z) / np.maximum(weights.sum() - weights, _ROUNDING)
    first = squares * z
    others = [np.maximum(part.sum(axis=-1, keepdims=True) - part, 0.0) for part in (squares, first, first * z)]
    # z is a square of residuals from an estimated mean, whose error adds about 4 z̄² to the sum of (z − z̄)².
    between = others[2] - 2 * mean * others[1] + mean**2 * (others[0] - 4 * squares.mean())
    variance = np.maximum(between, 0.0) + spread * others[2]
    return np.asarray(squares * (z - mean) ** 2 / np.maximum(variance, _ROUNDING))


def _relative_variance(plan: StepPlan) -> float:
    """c, the variance of a weight beside its squared mean."""
    jitter = plan.rules.jitter
    return jitter**2 / 12 / (1.0 - jitter / 2) ** 2


def residual_columns(plan: StepPlan, units: Sequence[Unit]) -> Array:
    """C_a (A, k, m) with C_aψ what the site's own features, and what is taken out, leave of `units`."""
    gram, d0 = plan.products.assembled(plan.kept_actions)[0], plan.features.n_shared
    extend = as_own(gram, directions_of(plan.absorbed, d0))
    extended = extend.T @ gram @ extend
    own = whiten(extended[d0:, d0:]).matrix
    residual = np.hstack([np.eye(d0), -(extended[:d0, d0:] @ own) @ own.T])
    return np.asarray(directions_of(units, d0).T @ residual @ extend.T @ plan.features.embeddings)


def image(plan: StepPlan, maps: Array) -> Array:
    """`maps` (A, k, m) of every row's action times its ψ, (k, n)."""
    images = np.zeros((maps.shape[1], len(plan.weights)))
    start = 0
    for chunk in plan.step.chunks():
        psi, stop = plan.features.psi(chunk.states), start + len(chunk.actions)
        for action in np.flatnonzero(np.bincount(chunk.actions)):
            there = np.flatnonzero(chunk.actions == action)
            images[:, start + there] = maps[action] @ np.take(psi, there, axis=1)
        start = stop
    return images


def residuals(plan: StepPlan) -> Array:
    """What all features leave of r and of Y, (2, n); 0 where they leave rounding errors alone."""
    gram, moment, reward_moment, _ = plan.products.assembled(plan.kept_actions)
    inverse = whiten(gram).matrix
    theta = inverse @ (inverse.T @ np.column_stack([reward_moment, moment]))
    fitted = image(plan, theta.T @ plan.features.embeddings)
    rewards, following = plan.outcomes_sent
    left = np.stack([rewards, rewards + following]) - fitted
    counting = left[:, plan.rows_of(None)] if plan.left_out else left
    size = np.maximum(counting.max(axis=1, initial=0.0), -counting.min(axis=1, initial=0.0))
    left[size <= _NOTHING_LEFT] = 0.0
    return left
