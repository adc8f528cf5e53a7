"""Rule LEVERAGE: nobody is so far out that the sums show them. Their rows, or outcomes, count less until it holds.

The leverage of a row in its block is h = w φ̃ᵀS⁺φ̃, where φ̃ is what the site's own features leave of the shared ones. It
may be 1.4/√n_a, or `max_leverage` where enough rows point where it does, and half as far or farther.

Over the steps of a patient, evidence adds up. Against the spread of S over random patients, one row of leverage h
moves S by n_a h²/2 (squared, in standard deviations), or by more in a column of few values; outcomes tell of the row as
well (`patient_evidence`). The sum over a patient's rows may be what rule NUMBERS allows to be told of a typical
patient. Of rows among enough others alike n_a h²/2 counts 1/`min_cell` at most.

In a secure sum a row's leverage in its site's own sums is at least that in the total, and is held before counts are
opened. Evidence is held afterwards: beside N patients of all sites in a block it is n_a/N of that in the site's own
sums, and more where the site's columns vary more than the others' (`relative_spread`).
"""

from collections.abc import Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.schur import as_own, leverage_map
from fdtr.algebra.threads import for_chunks
from fdtr.disclosure.blocks import directions_of
from fdtr.disclosure.facts import measure_leverage
from fdtr.disclosure.patient_evidence import column_evidence, move_to_fitted, outcome_evidence
from fdtr.disclosure.rules import counted, membership
from fdtr.disclosure.weighted_step import StepPlan

Array = NDArray[np.float64]

LEVERAGE_FACTOR = 1.4
ALIKE_COSINE, ALIKE_SHARE = 0.95, 0.5
"""A row is hidden by others that point almost where it does, and at least half as far."""

MOST_SHRUNK = 0.2
"""Share of a block's patients whose weights may be made smaller; if more are far out, a function is taken out."""

MOST_SHRUNK_TOGETHER = 0.5
"""The same in a secure sum, where a function that few sites send is lost to all, and for evidence over all steps, for
which most weights become smaller by little."""

_BY_OUTCOMES = 0.25
"""Outcomes are moved only as far as they tell more than this share of what a patient's rows and outcomes may tell."""

_IN_PART = " in part, whose rows count less"
_SHRINKING_STEPS = 60
_LEAST_WEIGHT = 1e-6  # a row that would count less than this share of its weight does not count at all
_ROUNDING = 1e-9
_MARGIN = 1e-3  # weights are made smaller by this more than needed: other rows' leverage grows a little


def repair_leverage(
    plans: Sequence[StepPlan],
    largest: float,
    most_shrunk: float = MOST_SHRUNK,
) -> None:
    """Let rows that are far out count less, at one step or over all; nobody's evidence exceeds `largest` then.

    If these are more than a share `most_shrunk` of the patients, functions are taken out instead; never if it is 1.
    `shown` of a plan says how much of a row's evidence a secure sum shows.
    """
    for plan in plans:
        plan.weights[~np.isin(plan.actions, plan.kept_actions)] = 0.0
    start = [plan.weights.copy() for plan in plans]
    for _ in range(_SHRINKING_STEPS):
        for number, plan in enumerate(plans):
            _repair_step(plan, start[number], most_shrunk)
        over = _shrink_over_steps(plans, start, largest, most_shrunk)
        if not over.any():
            break
    else:  # weights that do not settle
        for plan in plans:
            plan.weights[over[: len(plan.weights)]] = 0.0
            plan.forget("products", "schur", "shares")
    for plan, before in zip(plans, start, strict=True):
        if (plan.weights < before * (1 - _ROUNDING)).any() and not plan.withheld:
            less = (plan.weights < plan.drawn * (1 - _ROUNDING)) & plan.rows_of(None)
            others = [what for what in plan.repairs.get("LEVERAGE", []) if not what.endswith(_IN_PART)]
            plan.repairs["LEVERAGE"] = [*others, f"{counted(int(less.sum()))}{_IN_PART}"]  # of all passes together
        plan.largest_leverage = float(_leverage(plan)[0].max(initial=0.0)) if plan.blocks else 0.0


def _repair_step(plan: StepPlan, start: Array, most_shrunk: float) -> None:
    """Hold the rule at one step; `start` are the weights before any was made smaller."""
    while not (plan.withheld or plan.remembered.get("held")):
        crowded = (_too_many_directions(plan) if most_shrunk < 1 else []) or _shrink(plan, start, most_shrunk)
        plan.remembered["held"] = not crowded
        for block in crowded:
            if most_shrunk < 1:
                _take_out_of(plan, block, start)
            else:  # weights that do not settle
                far = _leverage(plan)[0] > LEVERAGE_FACTOR / sqrt(plan.patients(block)) * (1 + _ROUNDING)
                plan.weights[far & plan.rows_of(block)] = 0.0
                plan.forget("products", "schur", "shares")


def _too_many_directions(plan: StepPlan) -> list[int | None]:
    """Blocks whose leverages, which add up to r, cannot all be `max_leverage` or less, whatever the weights."""
    crowded = []
    for block in plan.blocks:
        rank, n = plan.rank(block), plan.patients(block)
        if rank > plan.rules.max_leverage * n:
            measured = f"the leverages of {counted(n)} add up to {rank}{plan.at(block)}"
            plan.note(
                "LEVERAGE", measured, f"at most {plan.rules.max_leverage:g} each", rank / plan.rules.max_leverage / n
            )
            crowded.append(block)
    return crowded


def _take_out_of(plan: StepPlan, block: int | None, start: Array) -> None:
    """Take the last function out of a block, or out of the step; weights begin anew where its sums are told apart."""
    rows = plan.rows_of(None if plan.design.partly else block)
    if not plan.take_out_last(block, "LEVERAGE"):
        plan.take_out_last(None, "LEVERAGE")
        rows = plan.rows_of(None)
    plan.leave_out_emptied()
    plan.weights[rows] = start[rows]
    for weights in (plan.weights, start):
        weights[~np.isin(plan.actions, plan.kept_actions)] = 0.0
    plan.forget("products", "schur", "shares")


def _shrink_over_steps(
    plans: Sequence[StepPlan],
    start: Sequence[Array],
    largest: float,
    most_shrunk: float,
) -> NDArray[np.bool_]:
    """One pass over the patients whose evidence over all steps exceeds `largest`; returns who they were, (n,)."""
    by_step: list[Array] = []
    for_chunks(lambda plan: _evidence(plan, largest) * plan.shown, by_step.append, plans)  # steps side by side
    by_kind = np.zeros((2, max((len(plan.weights) for plan in plans), default=0)))
    shrunk = np.zeros(by_kind.shape[1], bool)
    for plan, part, before in zip(plans, by_step, start, strict=True):
        by_kind[:, : part.shape[1]] += part
        shrunk[: part.shape[1]] |= plan.weights < before * (1 - _ROUNDING)
    totals: Array = by_kind.sum(axis=0)
    over = totals > largest * (1 + _ROUNDING)
    if np.sum(over | shrunk) > max(1, int(max(most_shrunk, MOST_SHRUNK_TOGETHER) * len(totals))) and over.any():
        sums = {
            (number, block): float(part[:, plan.rows_of(block) & over[: part.shape[1]]].sum())
            for number, (plan, part) in enumerate(zip(plans, by_step, strict=True))
            for block in plan.blocks
        }
        number, block = max(sums, key=lambda place: sums[place])
        _note_evidence(plans[number], float(totals.max()), largest)
        _take_out_of(plans[number], block, start[number])
        return over
    for plan, part, before in zip(plans, by_step, start, strict=True):
        n = part.shape[1]
        rows = over[:n] & (part.sum(axis=0) > 0)
        if rows.any():
            _note_evidence(plan, float(totals.max()), largest)
            _tell_less(plan, rows, by_kind[:, :n], largest)
            plan.weights[plan.weights < _LEAST_WEIGHT * before] = 0.0
            plan.forget("products", "schur", "shares")
    return over


def _tell_less(plan: StepPlan, rows: NDArray[np.bool_], by_kind: Array, largest: float) -> None:
    """Move outcomes of `rows` nearer, and make their weights smaller; `by_kind` (2, n) is what all steps tell."""
    of_rows, of_outcomes = by_kind
    most = np.maximum(largest - of_rows, _BY_OUTCOMES * largest)
    move = rows & (of_outcomes > most)
    move_to_fitted(plan, move, np.sqrt(most / np.where(move, of_outcomes, most)) * (1 - _MARGIN))
    of_both = of_rows + np.minimum(of_outcomes, _BY_OUTCOMES * largest)
    light = rows & (of_both > largest)
    scale = np.sqrt(largest / of_both[light]) * (1 - _MARGIN)
    h = np.minimum(_leverage(plan)[0][light], 1 - 1e-12)
    plan.weights[light] *= scale * (1 - h) / (1 - scale * h)


def _note_evidence(plan: StepPlan, worst: float, largest: float) -> None:
    measured = f"over all steps one patient who is far out is found with an AUC of {membership(worst):.2f}"
    plan.note("LEVERAGE", measured, f"at most {membership(largest):.2f}", sqrt(worst / largest))


def _evidence(plan: StepPlan, largest: float) -> Array:
    """What every row tells, and what its outcomes do, (2, n): the former is at least n_a h²/2.

    Of rows among others alike n_a h²/2 is at most 1/`min_cell`, where it matters.
    """
    if not plan.blocks:
        return np.zeros((2, len(plan.weights)))
    if "evidence" not in plan.remembered:
        plan.remembered["evidence"] = _compute_evidence(plan, largest)
    known: Array = plan.remembered["evidence"]
    return known


def _compute_evidence(plan: StepPlan, largest: float) -> Array:
    leverage, roots = _leverage(plan)
    evidence = np.zeros(len(leverage))
    for block in plan.blocks:
        rows = plan.rows_of(block)
        evidence[rows] = plan.patients(block) * leverage[rows] ** 2 / 2
        much = np.flatnonzero(rows & (evidence > max(largest / plan.horizon, 1 / plan.rules.min_cell) / 2))
        hidden = _hidden_by_others(plan, much, rows, leverage, roots)
        evidence[much[hidden]] = np.minimum(evidence[much[hidden]], 1 / plan.rules.min_cell)
    return np.stack([np.maximum(evidence, column_evidence(plan)), outcome_evidence(plan, leverage)])


def _shrink(plan: StepPlan, start: Array, most_shrunk: float) -> list[int | None]:
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
                alike = f", or {plan.rules.max_leverage:g} among others alike" * (cap < plan.rules.max_leverage)
                plan.note("LEVERAGE", measured, f"at most {cap:.2f}{alike}", worst / cap)
                most = max(1, int(most_shrunk * plan.patients(block)))
                if np.sum(out | (rows & (plan.weights < start * (1 - _ROUNDING)))) > most:
                    crowded.append(block)
                target = cap / (1 - cap) * (1 - _MARGIN)
                h = np.minimum(leverage[out], 1 - 1e-12)
                plan.weights[out] *= target * (1 - h) / h
                plan.weights[plan.weights < _LEAST_WEIGHT * start] = 0.0
                far |= out
        if crowded:
            return crowded
        if not far.any():
            return []
        plan.forget("products", "schur", "shares")
    return [block for block in plan.blocks if (far & plan.rows_of(block)).any()]


def _leverage(plan: StepPlan) -> tuple[Array, Array]:
    """Leverage of every row in what is left, (n,), and R_a (A, r, m) with leverage w ‖R_a ψ‖²."""
    if "leverage" not in plan.remembered:
        gram = plan.products.assembled(plan.kept_actions)[0]
        extend = as_own(gram, directions_of(plan.absorbed, plan.features.n_shared))
        roots = leverage_map(extend.T @ gram @ extend, plan.features.n_shared) @ extend.T @ plan.features.embeddings
        plan.remembered["leverage"] = plan.weights * measure_leverage(plan.step, plan.features, roots), roots
    known: tuple[Array, Array] = plan.remembered["leverage"]
    return known


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
