"""The weighted sums of a message, judged by what they show, and repaired until every rule holds.

Every row counts with a weight in [1 − jitter, 1] that nobody else knows, so that the sums of a message are not exact,
and attacks that solve for whole numbers fail. What is left to see is judged in each block (`Design`) of n_a patients
and r independent directions, by p = r(r+5)/2 + 2 numbers that the block tells: S, s, s_r, σ̂² and u.

    N        enough patients at the step
    ACTION   n_a is at least `min_action`, 10 r and r(r+1): against solving for rows, outcomes and weights
    CELL, NONZERO, REF, PAIR   no few patients who differ in a shared column, in a reference level, in two columns, or
             in an outcome, at a step or over all steps (`rare_outcomes`)
    NUMBERS  Σ over steps of p/n_a is at most 2 Φ⁻¹(`max_membership`)²: against telling who is in the sums
    LEVERAGE one row's leverage is at most 1.4/√n_a and `max_leverage`, and over the steps of a patient Σ n_a h²/2 is at
             most what NUMBERS allows: against finding a patient who is far out

Broken rules are repaired in this order, where functions are taken out of a block as if their effects were the site's
own, the rows of a block without any are left out, and a step of which nothing is left is withheld:

1. actions with few patients, and cells: functions, or rows;
2. ACTION: functions;
3. NONZERO of outcomes: few that are far from all others are limited (`limited_outcomes`), else functions;
4. NUMBERS: functions;
5. LEVERAGE: rows count less, outcomes are limited within the same bounds, and if that does not suffice, functions.

The last function of the study goes first; of those in small pairs, the one that is in most, so that their order depends
on counts. What was repaired shows in the message as zeros, which mean "none, or too few". In a secure sum nobody reads
a site's sums, and all rules but ACTION for rare actions and LEVERAGE are judged on the total (`common_repairs`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.pessimism import LowerBound
from fdtr.algebra.schur import leverage_map, present, rank_beside
from fdtr.algebra.threads import for_chunks, one_blas_thread, thread_count
from fdtr.disclosure.blocks import describe
from fdtr.disclosure.cell_repairs import repair_cells
from fdtr.disclosure.common_repairs import CommonRepairs, judge_totals, parts_taken_out
from fdtr.disclosure.facts import outcomes_of
from fdtr.disclosure.masked_counts import CountLayout, SiteCounts
from fdtr.disclosure.message import Kept, TakenOut, WeightedSums
from fdtr.disclosure.rare_outcomes import (
    count_standing_out,
    limit_outcomes,
    repair_lasting_outcomes,
    repair_outcomes,
    standing_out,
)
from fdtr.disclosure.relative_spread import share_among_alike, spread_of, vary_as_others
from fdtr.disclosure.rule_leverage import MOST_SHRUNK_TOGETHER, repair_leverage
from fdtr.disclosure.rule_once import Draws
from fdtr.disclosure.rules import Rules, Shortfall, Verdict, grouped, largest_share, membership
from fdtr.disclosure.screening import screen
from fdtr.disclosure.step_verdicts import judge_step
from fdtr.disclosure.weighted_step import WHOLE_STEP, StepPlan
from fdtr.features import FeatureMap
from fdtr.learners.accumulate import WeightedPart, accumulate_weighted, weighted_chunk_rows, weighted_parts
from fdtr.learners.backward import Fit
from fdtr.sums import Sums, stack_steps, summarize_step
from fdtr.trajectories import Trajectories

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_ROUNDING = 1e-9
LEAST_VARIANCE = 1e-4
"""In a secure sum a site tells of a column only if the column's variance is this share of its squared range."""

BEFORE_COUNTS = 0.9
"""Before counts outcomes may tell this share of what they may later: other sites and smaller weights change it."""

MORE_BY_OUTCOMES = 0.02
"""After counts a site refuses its part only where the AUC by an outcome exceeds `max_membership` by more than this."""


def weigh(
    rows: Trajectories,
    features: FeatureMap,
    fit: Fit,
    rules: Rules,
    draws: Draws,
    common: CommonRepairs | None = None,
) -> WeightedSums:
    """The weighted sums of the local fit `fit` of `rows`, repaired; `draws` make the weights.

    Where no repair helps, a step is withheld, and its sums are zeros. In a secure sum `common` is what all sites take
    out; without it only the site's own repairs are made, and what is left is counted.
    """
    with one_blas_thread(), ExitStack() as temporary:
        plans = _planned(rows, features, fit, rules, draws, temporary)
        overall = _repair_alone(plans, rules) if rules.alone else _repair_with_others(plans, rules, common)
        steps: list[Sums] = []
        by_step: list[list[Verdict]] = []
        for_chunks(StepPlan.summarize, steps.append, plans)
        for_chunks(judge_step, by_step.append, plans)
        counting = not rules.alone and common is None
        return WeightedSums(
            sums=stack_steps(steps),
            verdicts=(*(verdict for judged in by_step for verdict in judged), *overall),
            leverage=max((plan.largest_leverage for plan in plans), default=0.0),
            kept=_kept(plans, steps, common),
            counts=_count(plans, CountLayout(features, rules, rows.horizon)) if counting else None,
        )


def _kept(plans: Sequence[StepPlan], steps: Sequence[Sums], common: CommonRepairs | None) -> Kept:
    """What is left at each step, beside the S of exact sums and weights of 1 − jitter/2, and what was taken out."""
    possible_rank, efficiency = [], []
    for plan, sums in zip(plans, steps, strict=True):
        d0 = plan.features.n_shared
        possible = leverage_map(plan.gram, d0)[:, :d0]  # R (r, d0), where RᵀR is a generalised inverse of S
        information = np.trace(possible @ sums.schur[0] @ possible.T) / (1 - plan.rules.jitter / 2)
        possible_rank.append(len(possible))
        efficiency.append(float(information / len(possible)) if len(possible) else 1.0)
    return Kept(
        rank=tuple(
            rank_beside(sums.schur[0], plan.schur[1]) if plan.blocks else 0
            for plan, sums in zip(plans, steps, strict=True)
        ),
        possible_rank=tuple(possible_rank),
        efficiency=tuple(efficiency),
        taken_out=tuple(_taken_out(plans, common)),
        limited=tuple(plan.n_limited for plan in plans),
        lighter=tuple(plan.n_lighter for plan in plans),
    )


def _taken_out(plans: Sequence[StepPlan], common: CommonRepairs | None) -> Iterator[TakenOut]:
    """All that is taken out, step by step: by the site's own rules, and by all sites; of a whole step only that."""
    parts = parts_taken_out(plans[0].features, common) if common else []
    for plan in plans:
        own: set[str] = set()
        for rule, repairs in plan.repairs.items():
            left = [what for what in repairs if what == WHOLE_STEP or not plan.withheld]
            own.update(left)
            if left:
                yield TakenOut(plan.number, rule, tuple(grouped(left)))
        by_reason: dict[Shortfall, list[str]] = {}
        for part in parts:
            if part.step == plan.number and part.what not in own and (part.whole or not plan.withheld):
                by_reason.setdefault(part.why, []).append(part.what)
        for why, repairs in by_reason.items():
            yield TakenOut(plan.number, why.rule, tuple(grouped(repairs)), str(why))


def _count(plans: Sequence[StepPlan], layout: CountLayout) -> SiteCounts:
    """What a site has left after its own repairs: what it counts for the rules of a secure sum."""
    by_step = zip(*(_count_step(plan, layout) for plan in plans), strict=True)
    patients, sends, cells, references, pairs, outcomes = (np.stack(arrays) for arrays in by_step)
    none = np.zeros_like(cells)
    counts = SiteCounts(patients, sends.astype(bool), cells, references, pairs, outcomes, none, none[..., None])
    variances, spread = zip(*(spread_of(plan, layout, counts) for plan in plans), strict=True)
    return replace(counts, variances=np.stack(variances), spread=np.stack(spread))


def _count_step(plan: StepPlan, layout: CountLayout) -> tuple[Counts, ...]:
    """What a step has left, in the order of `SiteCounts`."""
    n_actions, functions = plan.features.n_actions, layout.functions
    patients, outcomes = np.zeros((2, n_actions), np.int64)
    sends, cells = np.zeros((2, n_actions, len(functions)), np.int64)
    references = np.zeros((n_actions, len(layout.references)), np.int64)
    pairs = np.zeros((n_actions, len(layout.pairs), 4), np.int64)
    schur = plan.summarize().schur[0]
    sent = {(u.action, u.functions[0]) for u in plan.design.units if present(u.directions, schur).shape[1]}
    for action in plan.kept_actions if plan.blocks else []:
        patients[action], outcomes[action] = plan.cells.n[action], plan.outcomes[action]
        for f, function in enumerate(functions):
            if (action, function) in sent or (None, function) in sent:
                sends[action, f] = 1
                cells[action, f] = plan.cells.rarer[action, function] + plan.cells.apart[action, function]
        for r, level in enumerate(layout.references):
            references[action, r] = plan.references.get((action, level), 0) * sends[action].any()
    for pair in plan.pairs:
        if patients[pair.group]:
            pairs[pair.group, layout.pairs.index((pair.first, pair.second))] = pair.cells
    light = np.bincount(plan.actions[plan.weights < (1.0 - plan.rules.jitter) / 2], minlength=n_actions)
    rest = [_less(counts, light) for counts in (cells, references, pairs, outcomes)]
    return _less(patients, light), sends, *rest


def _less(counts: Counts, light: Counts) -> Counts:
    """Counts (A, …) without the `light` rows (A,) of each action, which may be any of them."""
    less: Counts = np.maximum(counts - light.reshape(-1, *[1] * (counts.ndim - 1)), 0)
    return less


def _planned(
    rows: Trajectories, features: FeatureMap, fit: Fit, rules: Rules, draws: Draws, temporary: ExitStack
) -> list[StepPlan]:
    """The steps before any repair; their temporary files are closed with `temporary`."""

    def plan_of(h: int) -> StepPlan:
        plan = StepPlan.of(rows, features, fit, h, rules, draws)
        temporary.callback(plan.scan.parked.close)
        screen(plan)
        if not plan.screened:
            standing_out(plan)
        return plan

    plans: list[StepPlan] = []
    if rows.n_patients < thread_count() * weighted_chunk_rows(features):
        for_chunks(plan_of, plans.append, range(rows.horizon))  # steps side by side
    else:  # chunks side by side, and buffers of one step
        plans.extend(map(plan_of, range(rows.horizon)))
    count_standing_out(plans)
    return plans


def _repair_alone(plans: Sequence[StepPlan], rules: Rules) -> list[Verdict]:
    """Repair sums that the hub reads; the verdict on the message as a whole."""
    for plan in plans:
        plan.require_patients(rules.min_patients)
        plan.leave_out_rare_actions()
        repair_cells(plan)
        plan.repair_directions()
    limit_outcomes(plans)
    for plan in plans:
        repair_outcomes(plan)
    repair_lasting_outcomes(plans)
    for plan in plans:
        plan.leave_out_emptied()
    numbers = _repair_numbers(plans, rules)
    for plan in plans:
        plan.leave_out_emptied()
    repair_leverage(plans, largest_share(rules.max_membership))
    return [numbers]


def _repair_with_others(plans: Sequence[StepPlan], rules: Rules, common: CommonRepairs | None) -> list[Verdict]:
    """Repair a site's part of a secure sum: rare actions and far-out patients at the site, the rest as all sites do.

    A row's leverage in the site's own sums is at least that in the total. Once all have agreed on what is taken out,
    the site makes only weights smaller and moves outcomes within their bounds: the others rely on its counts. So
    what outcomes tell is judged before as well: functions are taken out as if the other sites that are known to take
    part were like this one, and outcomes moved as if they were as few as there may be, because moved ones let more
    patients stand out. Whoever sends nothing hides nobody: the totals then say what is left, and a site refuses its
    part where that shows too much.
    """
    for plan in plans:
        plan.require_patients(rules.min_action)
        plan.leave_out_rare_actions()
    limit_outcomes(plans)
    layout, largest = CountLayout(plans[0].features, rules, len(plans)), largest_share(rules.max_membership)
    for plan in plans:
        plan.shown = plan.shown_by_number = share_among_alike(plan, layout.most_patients, rules.sites_left)
        plan.shown_among_few = share_among_alike(plan, layout.most_patients, rules.fewest_left)
    repair_leverage(plans, BEFORE_COUNTS * largest, MOST_SHRUNK_TOGETHER, rows_later=True)
    if any(plan.limited.any() for plan in plans):
        count_standing_out(plans)
    for plan in plans:
        _take_out_constant(plan)
        plan.leave_out_emptied()
    if common is None:
        return []
    own = _count(plans, layout)
    for plan in plans:
        plan.apply(common)
    varied = vary_as_others(plans, own, common)
    told = repair_leverage(plans, largest, most_shrunk=1.0)
    return [*judge_totals(plans[0].features, common), *varied, *_judge_part(told, rules)]


def _judge_part(told: float, rules: Rules) -> list[Verdict]:
    """Refuse a part of a secure sum that would show somebody by an outcome; `told` is the most evidence."""
    if membership(told) <= rules.max_membership + MORE_BY_OUTCOMES:
        return []
    measured = (
        "this site's part of the secure sum would show patients with a rare outcome, with an AUC of up to "
        f"{membership(told):.2f}"
    )
    advice = (
        "The others rely on the counts of this round, so nothing more can be taken out. The next round can go on "
        "without this site, or it may receive only."
    )
    required, excess = (
        f"at most {rules.max_membership + MORE_BY_OUTCOMES:.2f}",
        told / largest_share(rules.max_membership),
    )
    return [Verdict("LEVERAGE", None, False, measured, required, "refuse", advice, excess)]


def _take_out_constant(plan: StepPlan) -> None:
    """Take out functions that hardly vary at a site: it would count as one that tells of them."""
    schur = plan.summarize().schur[0]
    for unit in plan.design.units:
        n = plan.patients(unit.action) if unit.action in (None, *plan.kept_actions) else 0
        variance = float(np.max(np.diagonal(unit.directions.T @ schur @ unit.directions), initial=0.0))
        if n and unit not in plan.absorbed and 0 < variance < min(LEAST_VARIANCE * n, 1.0):
            name = describe(plan.features, unit)
            plan.note("SITES", f"{name} hardly varies", f"a variance of {LEAST_VARIANCE:g} of its range", 1.0)
            plan.take_out(unit.action, unit.functions, "SITES")


def weigh_alone(rows: Trajectories, features: FeatureMap, fit: Fit, rules: Rules, draws: Draws) -> Sums:
    """Weighted sums without repairs, with true counts of patients."""
    d0, everybody = features.n_shared, range(features.n_actions)
    steps, following = [rows.step(h) for h in range(rows.horizon)], [*fit.bounds[1:], None]
    with one_blas_thread():
        products = []
        for h, (step, value) in enumerate(zip(steps, following, strict=True)):
            parts = weighted_parts(step, features, _weights_of(draws, h, rules))
            products.append(accumulate_weighted(parts, features, _outcomes_of(features, value)))
    pairs = zip(products, steps, strict=True)
    return stack_steps([summarize_step(*sums.assembled(everybody), step.n, d0) for sums, step in pairs])


def _weights_of(draws: Draws, h: int, rules: Rules) -> Callable[[slice], Array]:
    return lambda here: 1.0 - rules.jitter * draws.at(h, here)


def _outcomes_of(features: FeatureMap, following: LowerBound | None) -> Callable[[WeightedPart], Array]:
    return lambda part: outcomes_of(part.chunk, features, following)


def _repair_numbers(plans: Sequence[StepPlan], rules: Rules) -> Verdict:
    """Take functions out of blocks until NUMBERS holds for every patient; the verdict on what was before.

    Of the blocks with patients for whom it does not hold, the one that tells most for each patient goes first.
    """
    limit = largest_share(rules.max_membership) * (1 + _ROUNDING)
    most, over = _told(plans, limit)
    told = most
    while told > limit:
        plan, action = _tells_most(plans, over)
        block = action if plan.design.by_action else None
        if not plan.take_out_last(block, "NUMBERS") and not plan.take_out_last(None, "NUMBERS"):
            plan.leave_out(action, "NUMBERS")
        told, over = _told(plans, limit)
    taken = [(plan.number, grouped(plan.repairs["NUMBERS"])) for plan in plans if "NUMBERS" in plan.repairs]
    out = [f"{', '.join(what)} at step {step}" for step, what in taken]
    measured = f"an AUC of {membership(most):.2f} for telling whether a patient with a known trajectory is in the sums"
    advice = f"Taken out of the sums: {'; '.join(out)}." if out else ""
    required = f"at most {rules.max_membership:.2f}"
    return Verdict("NUMBERS", None, not out, measured, required, "repair", advice, excess=most / limit)


def _told(plans: Sequence[StepPlan], limit: float) -> tuple[float, list[set[int]]]:
    """The most Σ over steps of p/n_a of a patient, and the actions, by step, of those for whom it exceeds `limit`."""
    most, over = 0.0, [set[int]() for _ in plans]
    size = weighted_chunk_rows(plans[0].features) if plans else 1
    for start in range(0, max((plan.step.n for plan in plans), default=0), size):
        actions = [plan.actions_of(slice(start, start + size)) for plan in plans]
        totals = np.zeros(max(map(len, actions)))
        for plan, chosen in zip(plans, actions, strict=True):
            totals[: len(chosen)] += plan.shares[chosen]
        most = max(most, float(totals.max()))
        for chosen, by_step in zip(actions, over, strict=True):
            by_step.update(np.unique(chosen[totals[: len(chosen)] > limit]).tolist())
    return most, over


def _tells_most(plans: Sequence[StepPlan], over: Sequence[set[int]]) -> tuple[StepPlan, int]:
    """The step and action with the largest p/n_a, among the actions `over` by step; the earlier one of two."""
    most, chosen = 0.0, None
    for plan, actions in zip(plans, over, strict=True):
        for action in sorted(actions):
            if plan.shares[action] > most:
                most, chosen = float(plan.shares[action]), (plan, action)
    if chosen is None:
        raise ValueError("Patients are told apart although nothing is told of them.")
    return chosen
