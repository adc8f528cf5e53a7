"""Rule NONZERO for outcomes: how many patients stand out by what is theirs, at a step and over all steps.

Whoever knows all covariates subtracts from s_r what the same value of everybody, or a function of covariates, would
add. What is left of the reward is e, and s_r shows whose e is large if few patients have a large one. These are counted
whose |e| is at least a quarter of the largest. With two values they are the patients with the rarer one; small
differences among all others hide nobody. The fewest of three counts is taken: e beside the most common value (the
median, if most have another), beside what the site's own features explain of r, and beside what all features explain.
Y tells of V in the same way, which shows who had an early end where V is the same for all others.

In real data one or two patients often have an outcome far from all others. Then outcomes are limited: an e beyond a
level is moved to it, so that r + 2 patients stand out in full, Σ e²/max e² ≥ r + 2. All rows stay, with the weights
that they had: if a weight depended on an outcome, S would show whose it is to somebody who knows all covariates.
Functions are taken out instead where too many outcomes would be moved, or one by almost all of its difference, as
where few patients have the rarer of two values.

If the same patients stand out at all steps, as with a lasting condition, each step adds r numbers about them. So those
who stand out at an action at any step have to be two more than the numbers of all steps together.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fdtr.disclosure.limited_outcomes import LEAST_LEFT, OF_OUTCOME, most_moved, place
from fdtr.disclosure.patient_evidence import explained_maps, image
from fdtr.disclosure.rules import STAND_OUT, counted, outcomes_for
from fdtr.disclosure.screening import STANDS_OUT
from fdtr.disclosure.weighted_step import StepPlan
from fdtr.learners.accumulate import WeightedProducts

Array = NDArray[np.float64]

_LIMITING_STEPS = 20
_MARGIN = 1.05  # of those who stand out in full: what features explain changes as outcomes are limited
_COUNTS = len(OF_OUTCOME)
_ROUNDING = 1e-9


def count_standing_out(plans: Sequence[StepPlan]) -> None:
    """Let `outcomes` of every step count patients who stand out; fewer where they are the same at many steps.

    A secure sum judges steps one by one. If patients who stand out at some step are fewer than they would be if all
    steps had others, by a share of q, then q of a step's patients count.
    """
    for plan in plans:
        if plan.screened and plan.least is not None:
            plan.outcomes = np.where(plan.least > 0, plan.least, np.iinfo(np.int64).max).min(axis=0)
            plan.outcomes[~plan.least.any(axis=0)] = 0
            continue
        for group in np.unique(plan.groups):
            rows = np.flatnonzero(plan.groups[plan.actions] == group)
            times = np.unique(plan.outcomes_sent[0, rows], return_counts=True)[1]
            counts = [int(times.sum() - times.max(initial=0)), *_marked(plan, rows)]
            plan.outcomes[group] = min((count for count in counts if count), default=0)
    if plans and not plans[0].rules.alone:
        for group in np.unique(plans[0].groups):
            share = _share_of_others(plans, int(group))
            for plan in plans:
                plan.outcomes[group] = np.ceil(plan.outcomes[group] * share - _ROUNDING)


def limit_outcomes(plans: Sequence[StepPlan]) -> None:
    """Move few outcomes that are far out nearer to the others, in groups where enough patients stand out then."""
    limited = [_limit_step(plan) for plan in plans]
    if any(limited):
        count_standing_out(plans)


def _limit_step(plan: StepPlan) -> bool:
    limited = False
    if plan.screened:  # enough stand out, whatever the rank
        return limited
    by_group = plan.groups_kept
    if plan.blocks == [None] and not plan.rules.alone:  # one block, and outcomes that are counted by action
        by_group = [(action, None) for action in plan.kept_actions]
    for group, block in by_group:
        rank = _rank(plan, block)
        rows = np.flatnonzero(plan.groups[plan.actions] == group) if rank else np.zeros(0, np.intp)
        few = _fewest(plan, group, rows)
        if rank and few < outcomes_for(rank):
            moved = _limit(plan, rows, outcomes_for(rank))
            if moved:
                where = plan.at(group if len(plan.cells.n) > 1 else None)
                _note_few(plan, max(few, 1), rank, where)
                what = f"part of the largest outcomes of {counted(moved)}{where}"
                plan.repairs.setdefault("NONZERO", []).append(what)
                limited = True
    return limited


def _fewest(plan: StepPlan, group: int, rows: NDArray[np.intp]) -> int:
    """How many patients of a group, whose rows are `rows`, stand out in full, by the measure with the fewest."""
    counts = np.minimum(_marked(plan, rows), np.floor(plan.in_full[:, group] + _ROUNDING))
    return int(counts[counts > 0].min(initial=len(rows)))


def _marked(plan: StepPlan, rows: NDArray[np.intp]) -> list[int]:
    """How many of `rows` stand out, by measure."""
    return [int(count) for count in np.take(standing_out(plan), rows, axis=1).sum(axis=1)]


def _limit(plan: StepPlan, rows: NDArray[np.intp], needed: int) -> int:
    """Limit outcomes until `needed` patients of a group stand out in full by every measure; how many were moved.

    If that would take more than is allowed, all outcomes stay as they are.
    """
    before, largest, short = plan.outcomes_sent, np.zeros(_COUNTS), True
    for _ in range(_LIMITING_STEPS):
        left = np.take(_left(plan, plan.products, plan.kept_actions), rows, axis=1)
        sizes = np.sort(np.abs(left), axis=1)
        largest = np.maximum(largest, sizes[:, -1])
        in_full = np.minimum(_in_full(sizes), np.sum(sizes >= STANDS_OUT * sizes[:, -1:], axis=1))
        few = np.flatnonzero((sizes[:, -1] > _ROUNDING) & (in_full < needed))
        short = len(few) > 0
        level = _level(sizes[few[0]], needed) if short else 0.0
        if not short or level < LEAST_LEFT * largest[few[0]]:
            break
        _move(plan, OF_OUTCOME[few[0]], rows, left[few[0]], level)
    moved = int(np.sum((plan.outcomes_sent != before).any(axis=0)))
    if short or moved > most_moved(len(rows)):
        plan.send_outcomes(before)
        return 0
    return moved


def _in_full(sizes: Array) -> Array:
    """How many patients stand out in full, Σ e²/max e², by each measure, (5,); `sizes` (5, n) are |e|."""
    largest = sizes.max(axis=1, initial=0.0, keepdims=True)
    shares = sizes / np.where(largest > _ROUNDING, largest, np.inf)
    return np.asarray(np.einsum("kn,kn->k", shares, shares))


def _level(sizes: Array, needed: int) -> float:
    """The largest L with which `needed` patients stand out, in full too, if no |e| exceeds L; `sizes` are sorted |e|.

    With the j largest at L it is j + Σ of the other e²/L² in full.
    """
    if len(sizes) <= needed:
        return 0.0
    at_level, wanted = np.arange(needed + 1), _MARGIN * needed
    others = np.cumsum(sizes**2)[len(sizes) - 1 - at_level]
    levels = np.sqrt(others / (wanted - at_level))
    fits = levels >= sizes[len(sizes) - 1 - at_level]
    return min(float(levels[fits.argmax()] if fits.any() else 0.0), float(sizes[-needed]) / STANDS_OUT)


def _move(plan: StepPlan, outcome: int, rows: NDArray[np.intp], left: Array, level: float) -> None:
    """Move outcomes of `rows` so that no more than `level` is left of them; they stay within their range."""
    outcomes = plan.outcomes_sent.copy()
    values = outcomes[outcome, rows]
    nearer = np.clip(values - left + np.clip(left, -level, level), values.min(), values.max())
    outcomes[outcome, rows] = np.where(np.abs(left) > level, nearer, values)
    place(plan, outcomes)


def repair_outcomes(plan: StepPlan) -> None:
    """Take functions out of blocks of a step where few patients stand out by an outcome."""
    for group, block in plan.groups_kept:
        where = plan.at(group if plan.design.by_action or plan.design.separable else None)
        _repair_outcomes(plan, int(plan.outcomes[group]), block, where)
    if plan.design.partly:
        _repair_outcomes(plan, int(plan.outcomes[plan.kept_actions].sum()), None, "")


def _repair_outcomes(plan: StepPlan, count: int, block: int | None, where: str) -> None:
    rank = _rank(plan, block)
    if rank and 0 < count < outcomes_for(rank):
        _note_few(plan, count, rank, where)
    while rank and 0 < count < outcomes_for(rank):
        plan.take_out_last(block, "NONZERO")
        rank = _rank(plan, block)


def _note_few(plan: StepPlan, count: int, rank: int, where: str) -> None:
    needed = outcomes_for(rank)
    measured = f"{counted(count)} who {STAND_OUT} an outcome{where}, for {rank} independent features"
    plan.note("NONZERO", measured, f"none or at least {needed}", needed / count)


def _rank(plan: StepPlan, block: int | None) -> int:
    """The directions that are left in a block; with None at the whole step."""
    return plan.rank(block) if block is not None else plan.rank_left()


def repair_lasting_outcomes(plans: Sequence[StepPlan]) -> None:
    """Take functions out of blocks until enough patients stand out for all that the steps tell of them together.

    Each of the five measures is judged by the blocks in which it finds anybody: others tell nothing of these patients.
    """
    actions = sorted({action for plan in plans for action in plan.kept_actions}) if plans else []
    by_action = bool(plans) and any(plan.design.by_action for plan in plans)
    for chosen in [[action] for action in actions] * by_action + [actions]:
        for measure in range(_COUNTS):
            while _too_few_over_steps(plans, chosen, measure):
                pass


def _too_few_over_steps(plans: Sequence[StepPlan], chosen: Sequence[int], measure: int) -> bool:
    """Whether too few patients stand out by a measure; a function is taken out of the last block that tells most."""
    told: list[tuple[int, int, StepPlan, int | None]] = []
    for plan, block in _places(plans, chosen):
        marked = _count_marked(plan, measure, block)
        rank = _rank_beside_blocks(plan, block) if marked else 0
        if rank:
            told.append((rank, marked, plan, block))
    required = outcomes_for(sum(rank for rank, *_ in told))
    if not told or max(marked for _, marked, *_ in told) >= required:
        return False
    united = np.zeros(max(plan.step.n for plan in plans), bool)
    for _, _, plan, block in told:
        united[: plan.step.n] |= standing_out(plan)[measure] & plan.rows_of(block)
    count = int(united.sum())
    if count >= required:
        return False
    _, _, plan, block = max(reversed(told), key=_first)
    measured = f"{counted(count)} {STAND_OUT} their outcomes{plan.at(block)} at any of {len(told)} steps"
    plan.note("NONZERO", measured, f"none or at least {required}", required / count)
    return plan.take_out_last(block, "NONZERO") or plan.take_out_last(None, "NONZERO")


def _count_marked(plan: StepPlan, measure: int, block: int | None) -> int:
    """How many patients of a block stand out by a measure; in a screened step at least so many, 0 only of nobody."""
    if plan.screened and plan.least is not None:
        return int(plan.least[1 + measure, plan.groups_in(block)].sum())
    return int(np.count_nonzero(standing_out(plan)[measure] & plan.rows_of(block)))


def _places(plans: Sequence[StepPlan], chosen: Sequence[int]) -> list[tuple[StepPlan, int | None]]:
    """Blocks of some actions; with several of them also None for effects that are the same at every action."""
    places: list[tuple[StepPlan, int | None]] = []
    for plan in plans:
        main: list[int | None] = [None] * bool(plan.blocks and plan.design.partly and len(chosen) > 1)
        places += [(plan, block) for block in plan.blocks if block is None or block in chosen]
        places += [(plan, block) for block in main]
    return places


def _rank_beside_blocks(plan: StepPlan, block: int | None) -> int:
    """The directions that are left in a block; with None those of the step that no block of an action has."""
    if block is not None:
        return plan.rank(block)
    return max(plan.rank_left() - sum(plan.rank(b) for b in plan.blocks if b is not None), 0)


def _first(place: tuple[int, int, StepPlan, int | None]) -> int:
    return place[0]


def _share_of_others(plans: Sequence[StepPlan], group: int) -> float:
    """Patients of a group who stand out at some step, beside how many these were if steps had nothing in common."""
    n = max(plan.step.n for plan in plans)
    united, hidden = np.zeros((_COUNTS, n), bool), np.ones((_COUNTS, n))
    for plan in plans:
        rows = plan.groups[plan.actions] == group
        marked = standing_out(plan) & rows
        united[:, : plan.step.n] |= marked
        hidden[:, : plan.step.n] *= 1 - np.outer(marked.sum(axis=1) / max(int(rows.sum()), 1), rows)
    expected = (1 - hidden).sum(axis=1)
    shares = united.sum(axis=1)[expected > 0] / expected[expected > 0]
    return float(min(1.0, shares.min(initial=1.0)))


def standing_out(plan: StepPlan) -> NDArray[np.bool_]:
    """Who stands out in a group, (5, n): by r and V beside the usual value and own features, by r beside all."""
    plan.look_closer()
    known = plan.standing_out
    if known is None:
        known = plan.standing_out = _mark(plan)
    return known


def _mark(plan: StepPlan) -> NDArray[np.bool_]:
    members = plan.groups[plan.actions]
    if plan.differences is None:  # of outcomes as measured, before anything was taken out
        plan.differences = np.abs(_left(plan, plan.scan.products, plan.design.used))
        left = plan.differences
    else:
        left = np.abs(_left(plan, plan.products, plan.kept_actions))
    marked = np.zeros(left.shape, bool)
    plan.in_full = np.zeros((_COUNTS, len(plan.outcomes)))
    for group in np.flatnonzero(np.bincount(members)):
        rows = np.flatnonzero(members == group)
        there = np.take(left, rows, axis=1)
        plan.in_full[:, group] = _in_full(there)
        largest = there.max(axis=1, keepdims=True)
        marked[:, rows] = (there >= STANDS_OUT * largest) & (largest > _ROUNDING)
    return marked


def _left(plan: StepPlan, products: WeightedProducts, actions: Sequence[int]) -> Array:
    """What is left of the outcomes of all rows by each measure, (5, n); features explain as much as in `products`."""
    outcomes, members = plan.outcomes_sent, plan.groups[plan.actions]
    usual = np.zeros(outcomes.shape)
    by_group = [np.flatnonzero(members == group) for group in np.flatnonzero(np.bincount(members))]
    for rows in by_group:
        usual[:, rows] = np.array([_usual(values) for values in np.take(outcomes, rows, axis=1)])[:, None]
    fitted = image(plan, explained_maps(plan, products, actions))
    return np.vstack([outcomes - usual, outcomes - fitted[:2], outcomes[:1] - fitted[2:3]])


def _usual(values: Array) -> float:
    """The most common value if half of all have it, otherwise the median."""
    n = len(values)
    middle = np.partition(values, ((n - 1) // 2, n // 2))[[(n - 1) // 2, n // 2]]
    common = next((value for value in middle if 2 * np.count_nonzero(values == value) >= n), middle.mean())
    return float(common)
