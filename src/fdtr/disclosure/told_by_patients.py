"""What the rows and outcomes of each patient tell at every step of a message, and over all steps together."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.threads import for_chunks
from fdtr.disclosure.facts import measure_leverage
from fdtr.disclosure.patient_evidence import column_evidence, leverage_roots, outcome_evidence
from fdtr.disclosure.screening import hidden_among, most_of_rows, surveyed
from fdtr.disclosure.weighted_step import StepPlan

Array = NDArray[np.float64]

_ROUNDING = 1e-9


def added(by_step: Sequence[Array | float]) -> Array:
    """The sum over the steps of each patient, (n,), where a number counts for everybody; of numbers alone (1,)."""
    totals = np.zeros(max((len(part) for part in by_step if isinstance(part, np.ndarray)), default=1))
    for part in by_step:
        if isinstance(part, np.ndarray):
            totals[: len(part)] += part
        else:
            totals += part
    return totals


def largest_of(by_step: Sequence[Array]) -> Array:
    """The largest over the steps of each patient, (n,)."""
    largest = np.zeros(max(map(len, by_step), default=0))
    for part in by_step:
        largest[: len(part)] = np.maximum(largest[: len(part)], part)
    return largest


def told_by_rows(plans: Sequence[StepPlan], largest: float) -> tuple[list[Array | float], Array]:
    """What rows tell at every step, and over all steps, (n,); of screened steps a bound for all rows."""

    def told(plan: StepPlan) -> Array | float:
        return most_of_rows(plan, largest) if plan.screened else of_rows(plan, largest) * plan.shown

    by_step: list[Array | float] = []
    for_chunks(told, by_step.append, plans)  # steps side by side
    return by_step, added(by_step)


def told_by_outcomes(plans: Sequence[StepPlan], shown: Sequence[Array | float]) -> list[Array]:
    """What outcomes tell at every step of a sum that shows a share of it, (2, n) each."""
    by_kind: list[Array] = []
    for_chunks(of_outcomes, by_kind.append, plans)  # steps side by side
    return [part * share for part, share in zip(by_kind, shown, strict=True)]


def over_steps(by_kind: Sequence[Array]) -> Array:
    """What outcomes tell over all steps of each patient, (n,)."""
    return np.maximum(added([part.sum(axis=0) for part in by_kind]), 0.0)


def of_rows(plan: StepPlan, largest: float) -> Array:
    """What every row tells, (n,): at least n_a h²/2, but at most 1/`min_cell`, where it matters, among others alike."""
    if not plan.blocks:
        return np.zeros(len(plan.weights))
    if ("told by rows", largest) not in plan.remembered:
        plan.remembered["told by rows", largest] = _compute_of_rows(plan, largest)
    known: Array = plan.remembered["told by rows", largest]
    return known


def _compute_of_rows(plan: StepPlan, largest: float) -> Array:
    leverage, roots = leverage_of(plan)
    evidence = np.zeros(len(leverage))
    for block in plan.blocks:
        rows = plan.rows_of(block)
        evidence[rows] = plan.patients(block) * leverage[rows] ** 2 / 2
        much = np.flatnonzero(rows & (evidence > max(largest / plan.horizon, 1 / plan.rules.min_cell) / 2))
        hidden = hidden_by_others(plan, block, much, leverage, roots)
        evidence[much[hidden]] = np.minimum(evidence[much[hidden]], 1 / plan.rules.min_cell)
    return np.maximum(evidence, column_evidence(plan, surveyed(plan).sums if plan.in_part else None))


def of_outcomes(plan: StepPlan) -> Array:
    """What the outcomes of every row tell, (2, n): in σ̂², and in s_r and s."""
    if not plan.blocks:
        return np.zeros((2, len(plan.weights)))
    if "told by outcomes" not in plan.remembered:
        plan.remembered["told by outcomes"] = outcome_evidence(
            plan, leverage_of(plan)[0], surveyed(plan).residuals if plan.in_part else None
        )
    known: Array = plan.remembered["told by outcomes"]
    return known


def leverage_of(plan: StepPlan) -> tuple[Array, Array]:
    """Leverage of every row in what is left, (n,), and R_a (A, r, m) with leverage w ‖R_a ψ‖²."""
    if "leverage" not in plan.remembered:
        roots = leverage_roots(plan)
        plan.remembered["leverage"] = plan.weights * measure_leverage(plan.at_hand, plan.features, roots), roots
    known: tuple[Array, Array] = plan.remembered["leverage"]
    return known


def hidden_by_others(
    plan: StepPlan, block: int | None, rows: NDArray[np.intp], leverage: Array, roots: Array
) -> NDArray[np.bool_]:
    """Which `rows` of a block are among enough others of it that point where they do, and half as far."""
    if not (leverage[rows] <= plan.rules.max_leverage * (1 + _ROUNDING)).any():
        return np.zeros(len(rows), bool)
    if plan.in_part:
        return surveyed(plan).far[block].hidden(plan.rules, plan.places[rows])
    members = np.flatnonzero(plan.rows_of(block))
    places = np.searchsorted(members, rows)
    return hidden_among(plan.rules, places, leverage[members], _images(plan, members, roots))


def _images(plan: StepPlan, members: NDArray[np.intp], roots: Array) -> Array:
    """R_a ψ of the rows `members`, (r, n)."""
    images, start = [np.zeros((roots.shape[1], 0))], 0
    for chunk in plan.step.chunks(following=False):
        stop = start + len(chunk.actions)
        inside = members[(members >= start) & (members < stop)] - start
        psi = plan.features.psi(np.take(chunk.states, inside, axis=1))
        images.append(np.einsum("nrm,mn->rn", roots[chunk.actions[inside]], psi))
        start = stop
    return np.hstack(images)
