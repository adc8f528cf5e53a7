"""Rules CELL, NONZERO of columns, REF and PAIR: take out of blocks what would show few patients."""

import numpy as np
from numpy.typing import NDArray

from fdtr.disclosure.blocks import in_most
from fdtr.disclosure.cells import label_of
from fdtr.disclosure.rules import counted
from fdtr.disclosure.weighted_step import StepPlan
from fdtr.errors import RuleCode


def repair_cells(plan: StepPlan) -> None:
    """Take out what would show few patients."""
    kinds: list[tuple[RuleCode, NDArray[np.int64], str]] = [
        ("CELL", plan.cells.rarer, "in the rarer of two values of"),
        ("NONZERO", plan.cells.apart, "apart from zero or from the most common value in"),
    ]
    for group, block in plan.groups_kept:
        for rule, counts, which in kinds:
            for function in plan.design.functions:
                count = int(counts[group, function])
                if 0 < count < plan.rules.min_cell:
                    where = f'{which} column "{label_of(plan.features, function)}"{_at_group(plan, group)}'
                    _note_cell(plan, rule, count, where)
                    plan.take_out(block, (function,), rule)
        _repair_references(plan, block, group)
        _repair_pairs(plan, block, group)


def _at_group(plan: StepPlan, group: int) -> str:
    return plan.at(group if plan.design.by_action or plan.design.separable else None)


def _repair_references(plan: StepPlan, block: int | None, group: int) -> None:
    for (where, functions), count in plan.references.items():
        if where == group and 0 < count < plan.rules.min_cell:
            name = label_of(plan.features, functions[0])
            _note_cell(plan, "REF", count, f'at the reference level beside "{name}"{_at_group(plan, group)}')
            plan.take_out(block, functions, "REF")


def _repair_pairs(plan: StepPlan, block: int | None, group: int) -> None:
    small = [pair for pair in plan.pairs if pair.group == group and pair.count < plan.rules.min_cell]
    while left := [p for p in small if _is_left(plan, block, p.first) and _is_left(plan, block, p.second)]:
        rarest = min(left, key=lambda pair: pair.count)
        first, second = (label_of(plan.features, functions[0]) for functions in (rarest.first, rarest.second))
        where = f'in a cell of columns "{first}" and "{second}"{_at_group(plan, group)}'
        _note_cell(plan, "PAIR", rarest.count, where)
        plan.take_out(block, in_most([(pair.first, pair.second) for pair in left]), "PAIR")


def _is_left(plan: StepPlan, block: int | None, functions: tuple[int, ...]) -> bool:
    """Whether a function, or a reference level, shows in a block: neither is it out, nor all of its functions."""
    out = {unit.functions for unit in plan.absorbed if unit.action in (block, None)}
    return functions not in out and any((function,) not in out for function in functions)


def _note_cell(plan: StepPlan, rule: RuleCode, count: int, where: str) -> None:
    plan.note(rule, f"{counted(count)} {where}", plan.at_least_cell, plan.rules.min_cell / count)
