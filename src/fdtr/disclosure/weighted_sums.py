"""The weighted sums of a message, judged by what they show, and repaired until every rule holds.

Every patient's rows count with a weight in [1 − jitter, 1] that nobody else knows, so that the sums of a message are
not exact, and attacks that solve for whole numbers fail. What is left to see is judged in each block (`Design`) of n_a
patients and r independent directions, by p = r(r+5)/2 + 2 numbers that the block tells: S, s, s_r, σ̂² and u.

    N        enough patients at the step
    ACTION   n_a is at least `min_action`, and 10 for each direction: against solving for rows and outcomes
    CELL, NONZERO, REF, PAIR   no few patients who differ in a shared column, in a reference level, in two columns
    NUMBERS  Σ over steps of p/n_a is at most 2 Φ⁻¹(`max_membership`)²: against telling who is in the sums
    LEVERAGE one row's leverage is at most 1.4/√n_a and `max_leverage`: against finding a patient who is far out

A broken rule is repaired in a fixed order: take a function of a shared covariate out of a block, as if its effect were
the site's own; leave out the rows of a block; let the rows of a few patients who are far out count less; withhold the
step. The last function of the study goes first. What was repaired shows in the message as zeros, which mean "none, or
too few".
"""

from collections.abc import Sequence
from math import inf, sqrt
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.threads import one_blas_thread
from fdtr.disclosure.message import Kept, WeightedSums
from fdtr.disclosure.rule_leverage import repair_leverage
from fdtr.disclosure.rules import Rules, Verdict
from fdtr.disclosure.weighted_step import StepPlan, listed
from fdtr.features import FeatureMap
from fdtr.learners.accumulate import accumulate_weighted
from fdtr.learners.backward import Fit
from fdtr.summary import Sums, stack_steps, summarize_step
from fdtr.trajectories import Trajectories

Array = NDArray[np.float64]

_ROUNDING = 1e-9


def weigh(rows: Trajectories, features: FeatureMap, fit: Fit, rules: Rules, draws: Array) -> WeightedSums:
    """The weighted sums of the local fit `fit` of `rows`, repaired; `draws` (n,) in [0, 1) make the patients' weights.

    Where no repair helps, a step is withheld, and its sums are zeros.
    """
    with one_blas_thread():
        plans = [StepPlan.of(rows, features, fit, h, rules, 1.0 - rules.jitter * draws) for h in range(rows.horizon)]
        for plan in plans:
            plan.require_patients()
            plan.leave_out_rare_actions()
            plan.repair_cells()
            plan.repair_directions()
            plan.leave_out_emptied("ACTION")
        numbers = _repair_numbers(plans, rules)
        for plan in plans:
            plan.leave_out_emptied("NUMBERS")
            repair_leverage(plan)
        steps = [plan.summarize() for plan in plans]
    return WeightedSums(
        sums=stack_steps(steps),
        verdicts=(*(verdict for plan in plans for verdict in plan.verdicts()), numbers),
        leverage=max((plan.largest_leverage for plan in plans), default=0.0),
        kept=Kept(
            rank=tuple(plan.rank_sent(step) for plan, step in zip(plans, steps, strict=True)),
            possible_rank=tuple(plan.possible_rank for plan in plans),
            efficiency=tuple(plan.efficiency(step) for plan, step in zip(plans, steps, strict=True)),
        ),
    )


def weigh_alone(rows: Trajectories, features: FeatureMap, fit: Fit, rules: Rules, draws: Array) -> Sums:
    """Weighted sums without repairs, with true counts of patients."""
    weights, d0, everybody = 1.0 - rules.jitter * draws, features.n_shared, range(features.n_actions)
    following = [*fit.bounds[1:], None]
    with one_blas_thread():
        products = [
            accumulate_weighted(rows.step(h), features, following[h], weights[: rows.step(h).n])
            for h in range(rows.horizon)
        ]
    counts = [rows.step(h).n for h in range(rows.horizon)]
    pairs = zip(products, counts, strict=True)
    return stack_steps([summarize_step(*products.assembled(everybody), n, d0) for products, n in pairs])


def membership(share: float) -> float:
    """AUC with which a patient whose trajectory is known is told to be in the sums; `share` is Σ p/n_a.

    >>> round(membership(1.4166), 2)
    0.8
    """
    return NormalDist().cdf(sqrt(max(share, 0.0) / 2))


def largest_share(max_membership: float) -> float:
    """The largest Σ p/n_a of a patient under rule NUMBERS: 2 Φ⁻¹(AUC)²."""
    return 2 * NormalDist().inv_cdf(max_membership) ** 2 if max_membership < 1 else inf


def _repair_numbers(plans: Sequence[StepPlan], rules: Rules) -> Verdict:
    """Take functions out of blocks until NUMBERS holds for every patient; the verdict on what was before.

    Of the blocks with patients for whom it does not hold, the one that tells most for each patient goes first.
    """
    limit = largest_share(rules.max_membership) * (1 + _ROUNDING)
    totals = _told(plans)
    worst = membership(float(totals.max(initial=0.0)))
    while (totals > limit).any():
        plan, action = _tells_most(plans, totals > limit)
        block = action if plan.design.by_action else None
        if not plan.take_out_last(block, "NUMBERS") and not plan.take_out_last(None, "NUMBERS"):
            plan.leave_out(action, "NUMBERS")
        totals = _told(plans)
    out = [f"{what} at step {plan.number}" for plan in plans for what in plan.repairs.get("NUMBERS", [])]
    measured = f"an AUC of {worst:.2f} for telling whether a patient with a known trajectory is in the sums"
    otherwise: Literal["repair", "refuse"] = "repair" if rules.alone else "refuse"
    advice = f"Taken out of the sums: {listed(out)}." if out and rules.alone else ""
    return Verdict("NUMBERS", None, not out, measured, f"at most {rules.max_membership:.2f}", otherwise, advice)


def _told(plans: Sequence[StepPlan]) -> Array:
    """Σ over steps of p/n_a, for each patient, (n,)."""
    totals = np.zeros(max((plan.step.n for plan in plans), default=0))
    for plan in plans:
        totals[: plan.step.n] += plan.shares[plan.actions]
    return totals


def _tells_most(plans: Sequence[StepPlan], over: NDArray[np.bool_]) -> tuple[StepPlan, int]:
    """The step and action with the largest p/n_a, among those of the patients `over`; the earlier one of two."""
    most, chosen = 0.0, None
    for plan in plans:
        for action in np.unique(plan.actions[over[: plan.step.n]]):
            if plan.shares[action] > most:
                most, chosen = float(plan.shares[action]), (plan, int(action))
    if chosen is None:
        raise ValueError("Patients are told apart although nothing is told of them.")
    return chosen
