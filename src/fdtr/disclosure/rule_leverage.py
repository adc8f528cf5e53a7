"""Rule LEVERAGE: nobody is so far out that the sums show them. Their rows count less, until the rule holds.

The leverage of a row in its block is w φ̃ᵀS⁺φ̃, where φ̃ is what the site's own features leave of the shared ones. It may
be 1.4/√n_a, or `max_leverage` where enough rows point where it does, and half as far or farther.
"""

from math import sqrt

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.schur import as_own, leverage_map
from fdtr.disclosure.blocks import directions_of
from fdtr.disclosure.facts import measure_leverage
from fdtr.disclosure.rules import counted
from fdtr.disclosure.weighted_step import IN_PART, StepPlan

Array = NDArray[np.float64]

LEVERAGE_FACTOR = 1.4
ALIKE_COSINE, ALIKE_SHARE = 0.95, 0.5
"""A row is hidden by others that point almost where it does, and at least half as far."""

MOST_SHRUNK = 0.05
"""Share of a block's patients whose weights may be made smaller; if more are far out, a function is taken out."""

_SHRINKING_STEPS = 60
_LEAST_WEIGHT = 1e-6  # a row that would count less than this share of its weight does not count at all
_ROUNDING = 1e-9


def repair_leverage(plan: StepPlan) -> None:
    """Let rows that are far out count less; where more than a few are, take a function out of their block."""
    plan.weights[~np.isin(plan.actions, plan.kept_actions)] = 0.0
    start = plan.weights.copy()
    while not plan.withheld:
        plan.forget("products", "schur", "shares")
        crowded = _shrink(plan, start)
        if not crowded:
            break
        for block in crowded:
            if not plan.take_out_last(block, "LEVERAGE"):
                plan.take_out_last(None, "LEVERAGE")
        plan.leave_out_emptied("LEVERAGE")
        start[~np.isin(plan.actions, plan.kept_actions)] = 0.0
        plan.weights = start.copy()
    shrunk = int(np.sum(plan.weights < start * (1 - _ROUNDING)))
    if shrunk and not plan.withheld:
        plan.repairs.setdefault("LEVERAGE", []).append(f"{counted(shrunk)}{IN_PART}")


def _shrink(plan: StepPlan, start: Array) -> list[int | None]:
    """Shrink weights from `start` until LEVERAGE holds; returns blocks in which too many rows would have to."""
    for _ in range(_SHRINKING_STEPS):
        leverage, roots = _leverage(plan)
        crowded, far = [], np.zeros(len(leverage), bool)
        for block in plan.blocks:
            rows = plan.rows_of(block)
            cap = min(plan.rules.max_leverage, LEVERAGE_FACTOR / sqrt(plan.patients(block)))
            out = rows & (leverage > cap * (1 + _ROUNDING))
            if not out.any():
                continue
            out[out] = ~_hidden_by_others(plan, np.flatnonzero(out), rows, leverage, roots)
            if out.any():
                worst = float(leverage[out].max())
                measured = f"one patient has a leverage of {worst:.2f}{plan.at(block)}"
                required = f"at most {cap:.2f}, or {plan.rules.max_leverage:g} among others alike"
                plan.note("LEVERAGE", measured, required, worst / cap)
                most = max(1, int(MOST_SHRUNK * plan.patients(block)))
                if np.sum(out | (rows & (plan.weights < start * (1 - _ROUNDING)))) > most:
                    crowded.append(block)
                target = cap / (1 - cap) * (1 - _ROUNDING * 1e6)
                h = np.minimum(leverage[out], 1 - 1e-12)
                plan.weights[out] *= target * (1 - h) / h
                plan.weights[plan.weights < _LEAST_WEIGHT * start] = 0.0
                far |= out
        if crowded:
            return crowded
        if not far.any():
            plan.largest_leverage = float(leverage.max(initial=0.0))
            return []
        plan.forget("products", "schur", "shares")
    return [block for block in plan.blocks if (far & plan.rows_of(block)).any()]


def _leverage(plan: StepPlan) -> tuple[Array, Array]:
    """Leverage of every row in what is left, (n,), and R_a (A, r, m) with leverage w ‖R_a ψ‖²."""
    gram = plan.products.assembled(plan.kept_actions)[0]
    extend = as_own(gram, directions_of(plan.absorbed, plan.features.n_shared))
    roots = leverage_map(extend.T @ gram @ extend, plan.features.n_shared) @ extend.T @ plan.features.embeddings
    return plan.weights * measure_leverage(plan.step, plan.features, roots), roots


def _hidden_by_others(
    plan: StepPlan, suspects: NDArray[np.intp], rows: NDArray[np.bool_], leverage: Array, roots: Array
) -> NDArray[np.bool_]:
    """Which rows are among enough others of their block that point where they do, and half as far."""
    hidden = np.zeros(len(suspects), bool)
    small = leverage[suspects] <= plan.rules.max_leverage * (1 + _ROUNDING)
    if not small.any():
        return hidden
    members = np.flatnonzero(rows)
    images = _images(plan, members, roots)
    lengths = np.sqrt(np.maximum(np.einsum("rn,rn->n", images, images), np.finfo(float).tiny))
    directions = images / lengths
    for position in np.flatnonzero(small):
        own = directions[:, np.searchsorted(members, suspects[position])]
        alike = np.abs(own @ directions) >= ALIKE_COSINE
        strong = leverage[members] >= ALIKE_SHARE * leverage[suspects[position]]
        hidden[position] = np.sum(alike & strong) >= plan.rules.min_cell
    return hidden


def _images(plan: StepPlan, members: NDArray[np.intp], roots: Array) -> Array:
    """R_a ψ of the rows `members`, (r, n)."""
    images, start = [np.zeros((roots.shape[1], 0))], 0
    for chunk in plan.step.chunks():
        stop = start + len(chunk.actions)
        inside = members[(members >= start) & (members < stop)] - start
        psi = plan.features.psi(np.take(chunk.states, inside, axis=1))
        images.append(np.einsum("nrm,mn->rn", roots[chunk.actions[inside]], psi))
        start = stop
    return np.hstack(images)
