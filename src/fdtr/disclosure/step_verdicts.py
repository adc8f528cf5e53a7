"""What the rules say of one step of a weighted message, as it was broken, and what was done."""

from dataclasses import replace
from typing import Literal

from fdtr.disclosure.facts import why_absorbed
from fdtr.disclosure.rules import (
    PATIENTS_PER_DIRECTION,
    Verdict,
    counted,
    grouped,
    judge_bounds,
    judge_collinear,
)
from fdtr.disclosure.weighted_step import WHOLE_STEP, StepPlan
from fdtr.errors import RuleCode


def judge_step(plan: StepPlan) -> list[Verdict]:
    """Every rule at this step: as it was broken, with what was done, or that it holds."""
    alone = plan.rules.alone  # a secure sum judges cells on the total of all sites
    cells: list[RuleCode] = ["CELL", "NONZERO", "REF", "PAIR"]
    held: dict[RuleCode, tuple[str, str]] = {
        "N": (counted(plan.step.n), f"at least {plan.rules.min_patients if alone else plan.rules.min_action}"),
        **dict.fromkeys(cells if alone else [], ("no small cell", plan.at_least_cell)),
        "ACTION": ("enough patients for what is shared", f"{PATIENTS_PER_DIRECTION} for each independent feature"),
        "LEVERAGE": (f"at most {plan.largest_leverage:.2f}", f"at most {plan.rules.max_leverage:g}"),
    }
    verdicts = [
        _repaired(plan, rule) if rule in plan.broken else Verdict(rule, plan.number, True, *words)
        for rule, words in held.items()
    ]
    verdicts += [_repaired(plan, rule) for rule in plan.broken if rule not in held]
    if plan.withheld_by and plan.withheld_by not in {"SITES", *plan.broken}:  # NUMBERS, judged over all steps
        words = "what it takes out leaves nothing of the step", "something that is left"
        verdicts.append(Verdict(plan.withheld_by, plan.number, False, *words, "withhold"))
    return [
        *verdicts,
        judge_bounds(plan.number, plan.scan.bounds, plan.step.n, plan.rules, plan.horizon - plan.number),
        judge_collinear(plan.number, why_absorbed(plan.gram, plan.features)),
    ]


def _repaired(plan: StepPlan, rule: RuleCode) -> Verdict:
    done = plan.repairs.get(rule, [])
    otherwise: Literal["withhold", "repair"] = "withhold" if WHOLE_STEP in done else "repair"
    advice = f"Taken out of the sums: {', '.join(grouped(done))}." if done and not plan.withheld else ""
    return replace(plan.broken[rule], otherwise=otherwise, advice=advice)
