"""Rule LEVERAGE: nobody is so far out that the sums show them. Their rows, or outcomes, count less until it holds.

The leverage of a row in its block is h = w φ̃ᵀS⁺φ̃, where φ̃ is what the site's own features leave of the shared ones. It
may be 1.4/√n_a, or `max_leverage` where enough rows point where it does, and half as far or farther.

Over the steps of a patient, evidence adds up. Against the spread of S over random patients, one row of leverage h
moves S by n_a h²/2 (squared, in standard deviations), or by more in a column of few values; outcomes tell of the row as
well (`patient_evidence`). The sum over a patient's rows and outcomes may be what rule NUMBERS allows to be told of a
typical patient. Of rows among enough others alike n_a h²/2 counts 1/`min_cell` at most.

Weights are held first, and depend on no outcome, because S would show whose it is: rows may tell all but a tenth of
what is allowed. Outcomes may tell the rest. They are moved nearer to what covariates explain, within the bounds of
`limited_outcomes`. Where that does not suffice, the last function goes out of the block that tells most of these
patients, and weights and outcomes begin anew. σ̂² tells the same with fewer functions: it is what these tell alone that
decides, as long as it is for some patient as much as is told too much, and all that a block tells otherwise.

In a secure sum a row's leverage in its site's own sums is at least that in the total, and is held before counts are
opened. Evidence is held afterwards: beside N patients of all sites in a block it is n_a/N of that in the site's own
sums, and more where the site's columns vary more than the others' (`relative_spread`). What outcomes tell is held
before as well, because afterwards no function can be taken out. Others are supposed to be alike then: two thirds of
those who are known to take part, and for moving outcomes as few as may be. Moving costs little, and lets more patients
stand out, for which NONZERO asks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray

from fdtr.disclosure.limited_outcomes import move_to_fitted
from fdtr.disclosure.rare_outcomes import standing_out
from fdtr.disclosure.rules import counted, membership
from fdtr.disclosure.screening import (
    LEVERAGE_FACTOR,
    is_far_from_nobody,
    leverage_cap,
    most_of_outcomes,
    most_of_rows,
    surveyed,
    suspects,
)
from fdtr.disclosure.told_by_patients import (
    added,
    hidden_by_others,
    largest_of,
    leverage_of,
    of_outcomes,
    over_steps,
    told_by_outcomes,
    told_by_rows,
)
from fdtr.disclosure.weighted_step import StepPlan

Array = NDArray[np.float64]

MOST_SHRUNK = 0.2
"""Share of a block's patients whose weights may be made smaller; if more are far out, a function is taken out."""

MOST_SHRUNK_TOGETHER = 0.5
"""The same in a secure sum, where a function that few sites send is lost to all, and for evidence over all steps, for
which most weights become smaller by little."""

_FOR_OUTCOMES = 0.1
"""Rows may tell of a patient what NUMBERS allows less this share, which is left to the patient's outcomes."""

_IN_PART = " in part, whose rows count less"
_OF_OUTCOMES = "part of the outcomes of "
_SHRINKING_STEPS = 60
_MOVING_STEPS = 30
_MUCH = 0.5  # outcomes are moved at the steps where they tell this share of what the patient's tell at most, or more
_LEAST_WEIGHT = 1e-6  # a row that would count less than this share of its weight does not count at all
_ROUNDING = 1e-9
_LITTLE = 0.05  # of what all steps may tell: those who tell less at every step are not looked at
_MOST_PEOPLE = 0.25  # of all patients; if more had to be looked at, all are
_MARGIN = 1e-3  # weights are made smaller by this more than needed: other rows' leverage grows a little


def repair_leverage(
    plans: Sequence[StepPlan],
    largest: float,
    most_shrunk: float = MOST_SHRUNK,
    *,
    rows_later: bool = False,
) -> float:
    """Let rows that are far out count less, at one step or over all; nobody's evidence exceeds `largest` then.

    If these are more than a share `most_shrunk` of the patients, functions are taken out instead; never if it is 1.
    `shown` of a plan says how much of a row's evidence a secure sum shows. With `rows_later` the evidence of rows over
    all steps is not held to `largest`. Returns the most evidence of one patient where outcomes tell more than they may,
    which happens only where no function may be taken out, and 0 otherwise.
    """
    for plan in plans:
        if not plan.screened:
            _begin(plan)
    of_rows = inf if rows_later else (1.0 - _FOR_OUTCOMES) * largest
    try:
        told = _hold(plans, of_rows, largest, most_shrunk)
    except _OthersTellMuch:
        _look_at_everybody(plans)
        told = _hold(plans, of_rows, largest, most_shrunk)
    for plan in plans:
        _record(plan)
        plan.largest_leverage = _largest_leverage(plan) if plan.blocks else 0.0
    return told.most if told else 0.0


class _OthersTellMuch(Exception):
    """Rows that are not at hand might have to be changed."""


def _hold(plans: Sequence[StepPlan], of_rows: float, largest: float, most_shrunk: float) -> "_Told | None":
    """Hold the rule for rows and for outcomes; may begin anywhere on the way."""
    _hold_rows(plans, of_rows, most_shrunk)
    while (told := _hold_outcomes(plans, largest)) and most_shrunk < 1:
        _take_out_of(plans[told.number], told.block)
        _hold_rows(plans, of_rows, most_shrunk)
    return told


def _begin(plan: StepPlan) -> None:
    """Remember weights and outcomes before any is changed."""
    plan.weights[~np.isin(plan.actions, plan.kept_actions)] = 0.0
    plan.before = plan.weights.copy(), plan.outcomes_sent


def _look_at_people(plans: Sequence[StepPlan], largest: float) -> None:
    """Have the rows of people at hand who might tell much at some screened step, or of everybody if these are many.

    All patients of steps whose rows are at hand already are among them.
    """
    n, first = max(plan.step.n for plan in plans), max([0, *(plan.step.n for plan in plans if not plan.screened)])
    much = (_LITTLE if largest == inf else _LITTLE * largest) / len(plans)
    found = [suspects(plan, much, _FOR_OUTCOMES * much) for plan in plans if plan.screened]
    people = np.union1d(np.arange(first), np.concatenate(found)).astype(np.intp)
    for plan in plans:
        if plan.screened:
            plan.look_closer(people if len(people) <= _MOST_PEOPLE * n else None)
            _begin(plan)


def _look_at_everybody(plans: Sequence[StepPlan]) -> None:
    for plan in plans:
        screened = plan.screened
        plan.look_closer()
        if screened:
            _begin(plan)
        for weights in (plan.weights, plan.before[0]):  # also of rows that were not at hand when the rest began
            weights[~plan.rows_of(None)] = 0.0


def _largest_leverage(plan: StepPlan) -> float:
    others = max(surveyed(plan).leverage.values()) if plan.screened or plan.in_part else 0.0
    return others if plan.screened else max(others, float(leverage_of(plan)[0].max(initial=0.0)))


@dataclass(frozen=True)
class _Told:
    """The step and block that tell most of some patients, and the most evidence of one of these patients."""

    number: int
    block: int | None
    most: float


def _record(plan: StepPlan) -> None:
    """Say whose rows count less than before, and of whose outcomes less is sent."""
    if plan.withheld:
        return
    words, moved = plan.repairs.pop("LEVERAGE", []), 0
    if not plan.screened:
        moved = int(((plan.outcomes_sent != plan.before[1]).any(axis=0) & plan.rows_of(None)).sum())
    if not plan.screened and (plan.weights < plan.before[0] * (1 - _ROUNDING)).any():
        less = f"{counted(int(plan.lighter.sum()))}{_IN_PART}"
        words = [*(what for what in words if not what.endswith(_IN_PART)), less]
    if moved:
        words = [*(what for what in words if not what.startswith(_OF_OUTCOMES)), f"{_OF_OUTCOMES}{counted(moved)}"]
    if words:
        plan.repairs["LEVERAGE"] = words  # of all passes together


def _hold_rows(plans: Sequence[StepPlan], largest: float, most_shrunk: float) -> None:
    """Hold the rule for rows at every step, and for their evidence over all steps; it depends on no outcome."""
    for _ in range(_SHRINKING_STEPS):
        for plan in plans:
            _repair_step(plans, plan, largest, most_shrunk)
        if largest == inf or not _shrink_over_steps(plans, largest, most_shrunk):
            return
    over = told_by_rows(plans, largest)[1] > largest * (1 + _ROUNDING)
    for plan in plans:  # weights that do not settle
        plan.weights[over[: len(plan.weights)]] = 0.0
        plan.forget("products", "schur", "shares")


def _hold_outcomes(plans: Sequence[StepPlan], largest: float) -> _Told | None:
    """Move outcomes until nobody's tell more than rows leave to them; where most is told if that does not suffice.

    Outcomes begin anew from those before.
    """
    if largest == inf:
        return None
    for plan in plans:
        if not plan.screened and plan.outcomes_sent is not plan.before[1]:
            plan.send_outcomes(plan.before[1])
    if any(plan.screened for plan in plans):
        if _outcomes_tell_little(plans, largest):
            return None
        _look_at_people(plans, largest)
    if sum(most_of_outcomes(plan) for plan in plans if plan.in_part) > _FOR_OUTCOMES * largest:
        raise _OthersTellMuch
    of_rows = told_by_rows(plans, (1.0 - _FOR_OUTCOMES) * largest)[1]
    most = np.maximum(largest - of_rows, _FOR_OUTCOMES * largest)
    _move_outcomes(plans, most, of_rows, largest)
    by_kind = told_by_outcomes(plans, [plan.shown_by_number for plan in plans])
    totals = over_steps(by_kind)
    over = totals > most * (1 + _ROUNDING)
    if not over.any():
        return None
    of_functions = [np.maximum(part[1], 0.0) for part in by_kind]  # σ̂² tells the same with fewer functions
    suffices = over & (added(of_functions) >= totals - most)
    by_step = of_functions if suffices.any() else [part.sum(axis=0) for part in by_kind]
    return _tells_most(plans, by_step, over, float((totals + of_rows)[over].max()))


def _outcomes_tell_little(plans: Sequence[StepPlan], largest: float) -> bool:
    """Whether nobody's outcomes tell more than rows leave to them, as bounds show where steps are screened."""
    of_rows = told_by_rows(plans, (1.0 - _FOR_OUTCOMES) * largest)[1]
    by_step = [most_of_outcomes(plan) if plan.screened else of_outcomes(plan).sum(axis=0) for plan in plans]
    by_step = [np.maximum(part, 0.0) for part in by_step]  # nobody's may make up for what later patients' bounds tell
    return bool((added(by_step) <= np.maximum(largest - of_rows, _FOR_OUTCOMES * largest)).all())


def _move_outcomes(plans: Sequence[StepPlan], most: Array, of_rows: Array, largest: float) -> None:
    """Move outcomes until nobody's tell more than `most` (n,) among few sites, or none can be moved any more."""
    for _ in range(_MOVING_STEPS):
        by_kind = told_by_outcomes(plans, [plan.shown_among_few for plan in plans])
        by_step, totals = [part.sum(axis=0) for part in by_kind], over_steps(by_kind)
        over = totals > most * (1 + _ROUNDING)
        if not over.any():
            return
        worst = float((totals + of_rows)[over].max())
        share = np.sqrt(most / np.where(over, totals, most)) * (1 - _MARGIN)
        much = np.where(over, _MUCH * np.maximum(largest_of(by_step), _ROUNDING), inf)
        moved = False
        for plan, part in zip(plans, by_step, strict=True):
            n = len(part)
            if (part >= much[:n]).any():
                if plan.in_part:
                    raise _OthersTellMuch
                if plan.differences is None:
                    standing_out(plan)
                _note_evidence(plan, worst, largest)
                moved |= move_to_fitted(plan, np.where(part >= much[:n], part, 0.0), share[:n])
        if not moved:
            return


def _tells_most(plans: Sequence[StepPlan], by_step: Sequence[Array], over: NDArray[np.bool_], worst: float) -> _Told:
    """The block that tells most of the patients `over`, by what each step tells; the first one of two."""
    sums = {
        (number, block): float(part[plan.rows_of(block) & over[: len(part)]].sum())
        for number, (plan, part) in enumerate(zip(plans, by_step, strict=True))
        for block in plan.blocks
    }
    return _Told(*max(sums, key=lambda place: sums[place]), worst)


def _repair_step(plans: Sequence[StepPlan], plan: StepPlan, largest: float, most_shrunk: float) -> None:
    """Hold the rule at one step."""
    while not (plan.withheld or plan.remembered.get("held")):
        crowded = _too_many_directions(plan) if most_shrunk < 1 else []
        if not crowded and not (plan.screened and is_far_from_nobody(plan)):
            if plan.screened:
                _look_at_people(plans, largest)
            crowded = _shrink(plan, most_shrunk)
        plan.remembered["held"] = not crowded
        for block in crowded:
            if most_shrunk < 1:
                _take_out_of(plan, block)
            else:  # weights that do not settle
                far = leverage_of(plan)[0] > LEVERAGE_FACTOR / sqrt(plan.patients(block)) * (1 + _ROUNDING)
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


def _take_out_of(plan: StepPlan, block: int | None) -> None:
    """Take the last function out of a block, or out of the step; weights begin anew where its sums are told apart."""
    rows = slice(0) if plan.screened else plan.rows_of(None if plan.design.partly else block)
    if not plan.take_out_last(block, "LEVERAGE"):
        rows = slice(0) if plan.screened else plan.rows_of(None)
        if not plan.take_out_last(None, "LEVERAGE"):
            plan.withhold("LEVERAGE")
    plan.leave_out_emptied()
    plan.forget("schur", "shares")
    if not plan.screened:
        plan.weights[rows] = plan.before[0][rows]
        for weights in (plan.weights, plan.before[0]):
            weights[~np.isin(plan.actions, plan.kept_actions)] = 0.0
        plan.forget("products")


def _shrink_over_steps(plans: Sequence[StepPlan], largest: float, most_shrunk: float) -> bool:
    """One pass over the patients whose rows tell more than `largest` over all steps; whether there were any."""
    by_step, totals = told_by_rows(plans, largest)
    if sum(most_of_rows(plan, largest) for plan in plans if plan.in_part) > largest:
        raise _OthersTellMuch
    over = totals > largest * (1 + _ROUNDING)
    if not over.any():
        return False
    if any(plan.screened for plan in plans):  # the bounds do not suffice
        _look_at_people(plans, largest)
        return _shrink_over_steps(plans, largest, most_shrunk)
    told = [np.asarray(part) for part in by_step]
    shrunk, n = np.zeros(len(totals), bool), max(plan.step.n for plan in plans)
    for plan in plans:
        shrunk[: len(plan.weights)] |= plan.weights < plan.before[0] * (1 - _ROUNDING)
    worst = float(totals.max())
    if np.sum(over | shrunk) > max(1, int(max(most_shrunk, MOST_SHRUNK_TOGETHER) * n)):
        most = _tells_most(plans, told, over, worst)
        _note_evidence(plans[most.number], worst, largest)
        _take_out_of(plans[most.number], most.block)
        return True
    for plan, part in zip(plans, told, strict=True):
        light = over[: len(part)] & (part > 0)
        if light.any():
            _note_evidence(plan, worst, largest)
            scale = np.sqrt(largest / totals[: len(part)][light]) * (1 - _MARGIN)
            h = np.minimum(leverage_of(plan)[0][light], 1 - 1e-12)
            plan.weights[light] *= scale * (1 - h) / (1 - scale * h)
            plan.weights[plan.weights < _LEAST_WEIGHT * plan.before[0]] = 0.0
            plan.forget("products", "schur", "shares")
    return True


def _note_evidence(plan: StepPlan, worst: float, largest: float) -> None:
    measured = f"over all steps one patient who is far out is found with an AUC of {membership(worst):.2f}"
    plan.note("LEVERAGE", measured, f"at most {membership(largest):.2f}", sqrt(worst / largest))


def _shrink(plan: StepPlan, most_shrunk: float) -> list[int | None]:
    """Shrink weights until LEVERAGE holds; returns blocks in which too many rows would have to."""
    start = plan.before[0]
    for _ in range(_SHRINKING_STEPS):
        if plan.in_part and not is_far_from_nobody(plan):
            raise _OthersTellMuch
        leverage, roots = leverage_of(plan)
        crowded, far = [], np.zeros(len(leverage), bool)
        for block in plan.blocks:
            rows = plan.rows_of(block)
            cap = leverage_cap(plan, block)
            out = rows & (leverage > cap * (1 + _ROUNDING))
            if not out.any():
                continue
            out[out] = ~hidden_by_others(plan, block, np.flatnonzero(out), leverage, roots)
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
