"""How much a site's columns vary beside those of all other sites, and what a secure sum shows of its patients for it.

Others hide a patient by what they vary themselves. The sums of a site tell of a patient with evidence e. In the total
less the parts of those who subtract theirs, with V = n v² of the site and V' = Σ n v² of those who are left, it is

    e r/(1 + r),   r = V/V',

which is n/N of e where all vary alike, as rule NUMBERS takes it to be. If it is more, and the steps of a patient add up
to more than NUMBERS allows, all rows of the site count λ times as much at a step, and r becomes λ² r. Steps that tell
most become smaller first, and none by more than makes its patients as well hidden as others', or by more than
LEAST_SCALE, as others rely on them: what would need more is taken out by all sites (`common_repairs`).

Outcomes are no reason for it. Each of several sites would take the others' rows to count in full.
"""

from collections.abc import Sequence
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.schur import present
from fdtr.disclosure.blocks import Unit, describe
from fdtr.disclosure.common_repairs import CommonRepairs
from fdtr.disclosure.masked_counts import CountLayout, SiteCounts, actions_of, at_least, in_fives
from fdtr.disclosure.patient_evidence import image, residual_columns
from fdtr.disclosure.rules import Verdict, largest_share
from fdtr.disclosure.variance_moments import LEAST_SCALE, MOMENTS, least_left, octaves
from fdtr.disclosure.weighted_step import StepPlan

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_MAKES = 1 / 16
"""A patient makes a variance who adds this share of what the patient adds who adds most."""

_BISECTIONS = 60
_ROUNDING = 1e-9


def spread_of(plan: StepPlan, layout: CountLayout, counts: SiteCounts) -> tuple[Counts, Counts]:
    """The variance of each function at one step, (A, F), and the moments that are told, (A, F, 3)."""
    schur, few = plan.summarize().schur[0], at_least(plan.rules.min_cell)
    variances = np.zeros((plan.features.n_actions, len(layout.functions)), np.int64)
    moments = np.zeros((*variances.shape, MOMENTS), np.int64)
    units = [unit for unit in layout.design.units if plan.blocks and present(unit.directions, schur).shape[1]]
    for unit, makers in zip(units, _makers(plan, units), strict=True):
        place, columns = layout.spread_at(unit), present(unit.directions, schur)
        n = int(plan.cells.n[actions_of(unit)].sum()) if len(plan.cells.n) > 1 else int(plan.cells.n[0])
        variances[place] = octaves(float(np.trace(columns.T @ schur @ columns)) / max(n, 1))
        cells = int(counts.cells[plan.number, actions_of(unit), place[1]].sum())
        if min(cells, makers) >= few:  # a variance that fewer make would show theirs
            patients, variance = layout.patients_counted(counts, plan.number, unit), int(variances[place])
            moments[place] = [patients * variance**k for k in range(MOMENTS)] if variance else 0
    return variances, moments


def _makers(plan: StepPlan, units: Sequence[Unit]) -> list[int]:
    """How many patients make the variance of each unit, and have another value than the most common one."""
    if not units:
        return []
    squares = image(plan, residual_columns(plan, units)) ** 2
    functions = sorted({unit.functions[0] for unit in units})
    psi = np.concatenate([plan.features.psi(chunk.states)[functions] for chunk in plan.step.chunks()], axis=1)
    heavy = plan.weights >= (1.0 - plan.rules.jitter) / 2
    ends = np.cumsum([unit.directions.shape[1] for unit in units])
    makers = []
    for unit, end in zip(units, ends, strict=True):
        there = heavy & np.isin(plan.actions, np.arange(plan.features.n_actions)[actions_of(unit)])
        parts = plan.weights[there] * squares[end - unit.directions.shape[1] : end, there].sum(axis=0)
        times = np.unique(psi[functions.index(unit.functions[0]), there], return_counts=True)[1]
        most = parts.max(initial=0.0)
        makers.append(min(int(np.sum(parts >= _MAKES * most)), int(times.sum() - times.max(initial=0))))
    return makers


def strengths(
    layout: CountLayout, own: SiteCounts, common: CommonRepairs, plan: StepPlan
) -> dict[int | None, tuple[float, Unit]]:
    """r = V/V' for each block of a step, the largest of the functions that are left in it, and its function."""
    found: dict[int | None, tuple[float, Unit]] = {}
    if not common.spread or not plan.blocks:
        return found
    h, schur = plan.number, plan.summarize().schur[0]
    for unit in layout.design.units:
        place = layout.spread_at(unit)
        n, variance = int(own.patients[h, actions_of(unit)].sum()), int(own.variances[(h, *place)])
        others = np.array(common.spread[h][place[0]][place[1]]) - own.spread[(h, *place)]
        if n and variance and others[0] and present(unit.directions, schur).shape[1]:
            largest = sum(common.largest[h][actions_of(unit)])
            left = least_left(others, common.subtracted * largest)
            strength = n * float(variance) ** 2 / left if left > 0 else inf
            if strength > found.get(unit.action, (0.0, unit))[0]:
                found[unit.action] = strength, unit
    return found


def vary_as_others(plans: Sequence[StepPlan], own: SiteCounts, common: CommonRepairs) -> list[Verdict]:
    """Let rows of a site count less whose patients differ more than others' and would be told by that; verdicts."""
    layout = CountLayout(plans[0].features, plans[0].rules, len(plans))
    by_block = [strengths(layout, own, common, plan) for plan in plans]
    alike = [own_share(plan, common) for plan in plans]
    ratios = [_of_rows(plan, blocks, share) for plan, blocks, share in zip(plans, by_block, alike, strict=True)]
    own_told = [plan.shares[plan.actions] for plan in plans]
    level = _level(own_told, alike, ratios, largest_share(plans[0].rules.max_membership))
    verdicts = []
    for plan, told, share, ratio, blocks in zip(plans, own_told, alike, ratios, by_block, strict=True):
        most = np.maximum(level, share * told)
        over = _shown(ratio) * told > most * (1 + _ROUNDING)
        if over.any():
            part = most[over] / told[over]
            plan.scale = sqrt(max(float((part / ((1.0 - part) * ratio[over])).min()), LEAST_SCALE**2))
            verdicts.append(_told_apart(plan, blocks))
        plan.shown = _shown(ratio * plan.scale**2)
        plan.shown_by_number = plan.shown_among_few = share  # whatever its scale: the others' may be as small
    return verdicts


def _of_rows(plan: StepPlan, blocks: dict[int | None, tuple[float, Unit]], alike: Array) -> Array:
    """r of each row, (n,), at least what it is where all sites vary alike."""
    together = blocks.get(None, (0.0, None))[0]
    actions = range(plan.features.n_actions)
    by_action = np.array([max(blocks.get(action, (0.0, None))[0], together) for action in actions])
    with np.errstate(divide="ignore"):
        return np.asarray(np.maximum(by_action[plan.actions], alike / (1.0 - alike)))


def _shown(ratio: Array) -> Array:
    """r/(1 + r), 1 where r is infinite."""
    return 1.0 - 1.0 / (1.0 + ratio)


def _level(told: Sequence[Array], alike: Sequence[Array], ratios: Sequence[Array], limit: float) -> float:
    """The most that a step may tell of a patient, beyond what it tells where all vary alike, so that `limit` holds."""

    def holds(level: float) -> bool:
        totals = np.zeros(max(len(part) for part in told))
        for part, share, ratio in zip(told, alike, ratios, strict=True):
            totals[: len(part)] += np.maximum(share * part, np.minimum(_shown(ratio) * part, level))
        return bool((totals <= limit).all())

    if holds(inf):
        return inf
    low, high = 0.0, limit
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _told_apart(plan: StepPlan, blocks: dict[int | None, tuple[float, Unit]]) -> Verdict:
    """What a site is told whose rows all count less at a step."""
    unit = max(blocks.values(), key=lambda block: block[0])[1]
    measured = f"{describe(plan.features, unit)} varies more than at the other sites together"
    advice = f"All rows of the step count {plan.scale:.0%} as much."
    required = "patients who are hidden by the others as well as theirs are"
    return Verdict("SITES", plan.number, False, measured, required, "warn", advice)


def own_share(plan: StepPlan, together: CommonRepairs) -> Array:
    """n_a/N of each row's block, (n,): all patients of the site, whose sums leave with all, beside those of the others.

    N counts the others up to a cap, as they do.
    """
    shares = np.ones(len(plan.weights))
    everybody = together.left[plan.number] if together.left else (0,) * plan.features.n_actions
    for block in plan.blocks:
        actions = plan.kept_actions if block is None else [block]
        patients = [plan.patients(action) for action in actions]
        others = sum(everybody[action] for action in actions) - sum(in_fives(min(n, together.most)) for n in patients)
        shares[plan.rows_of(block)] = sum(patients) / max(sum(patients) + others, sum(patients), 1)
    return shares


def share_among_alike(plan: StepPlan, most: int, n_sites: int) -> Array:
    """`own_share` of each row, (n,), if `n_sites` are left, all like this one."""
    shares = np.ones(len(plan.weights))
    for block in plan.blocks:
        patients = [plan.patients(action) for action in (plan.kept_actions if block is None else [block])]
        others = (n_sites - 1) * sum(min(n, most) for n in patients)
        shares[plan.rows_of(block)] = sum(patients) / max(sum(patients) + others, 1)
    return shares
