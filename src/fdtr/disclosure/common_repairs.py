"""Rules for a secure sum, judged on totals of counts: what all sites take out of their sums alike.

Nobody sees the sums of one site, so the rules have to hold for the total less any one site's part. With T the total of
a count, M the largest part of one site (`masked_counts`) and t the sites that may collude (`colluding`), at least

    T − (1 + t) M

patients are those of the sites whom nobody can subtract. N, ACTION, NUMBERS, CELL, NONZERO, REF and PAIR are judged by
this number, and SITES by how many sites contribute to each column of each block, and by whether one of them holds
almost all that varies in it. Where a rule fails, every site takes the same out: a function out of a block, the rows of
a block, or a step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from fdtr.disclosure.blocks import Design, Unit, describe, in_most
from fdtr.disclosure.masked_counts import ROUNDED_TO, CountLayout, TotalCounts, actions_of, at_least
from fdtr.disclosure.rules import (
    Rules,
    Shortfall,
    Verdict,
    largest_share,
    membership,
    numbers_told,
    outcomes_for,
    patients_for,
)
from fdtr.disclosure.variance_moments import is_one_sites, least_hidden
from fdtr.errors import RuleCode
from fdtr.features import FeatureMap

_KIND_RULES: Mapping[str, RuleCode] = {"cells": "CELL", "references": "REF", "pairs": "PAIR", "outcomes": "NONZERO"}


@dataclass(frozen=True)
class CommonPart:
    """A part of the sums that all sites take out at a step, in words, and why; `whole` for all of the step."""

    step: int
    what: str
    why: Shortfall
    whole: bool = False


@dataclass(frozen=True)
class CommonRepairs:
    """What all sites of a secure sum take out: functions (step, action or None, functions), blocks and steps.

    `why` gives the reason of each of these, in this order. `near` says whether a count is so close to the threshold of
    its rule that other weights of rows could move it across. `left` counts patients whom nobody can subtract from the
    total, by step and action; of a site at most `most` count. `largest` are the most patients of one site, `spread` the
    total of moments of variances, both as they were opened, and `subtracted` is how many sites may subtract their parts
    together.
    """

    functions: tuple[tuple[int, int | None, tuple[int, ...]], ...] = ()
    blocks: tuple[tuple[int, int], ...] = ()
    steps: tuple[int, ...] = ()
    left: tuple[tuple[int, ...], ...] = field(default=(), compare=False)
    most: int = field(default=0, compare=False)
    largest: tuple[tuple[int, ...], ...] = field(default=(), compare=False)
    spread: tuple[tuple[tuple[tuple[int, ...], ...], ...], ...] = field(default=(), compare=False)
    subtracted: int = field(default=1, compare=False)
    why: tuple[Shortfall, ...] = field(default=(), compare=False)
    near: bool = field(default=False, compare=False)


def agree(layout: CountLayout, counts: TotalCounts, fewest: int, colluding: int) -> CommonRepairs:
    """What all sites take out of their sums; `fewest` sites have to contribute to what is told."""
    steps = [_StepCounts(layout, counts, h, fewest, 1 + colluding) for h in range(layout.horizon)]
    for step in steps:
        step.close_rare_blocks()
        step.take_out_cells()
        step.take_out_uneven_variances()
        step.take_out_directions()
    _hold_numbers(steps, layout.rules)
    for step in steps:
        step.close_emptied()
    return CommonRepairs(
        functions=tuple((step.number, *place) for step in steps for place in step.absorbed),
        blocks=tuple((step.number, action) for step in steps for action in sorted(step.closed)),
        steps=tuple(step.number for step in steps if step.withheld_by),
        why=(
            *(why for step in steps for why in step.absorbed.values()),
            *(step.closed[action] for step in steps for action in sorted(step.closed)),
            *(step.withheld_by for step in steps if step.withheld_by),
        ),
        near=any(step.near for step in steps),
        left=tuple(
            tuple(max(step.left("patients", action), 0) for action in range(layout.features.n_actions))
            for step in steps
        ),
        most=layout.most_patients,
        largest=tuple(map(tuple, counts.largest["patients"].tolist())),
        spread=tuple(tuple(tuple(map(tuple, action)) for action in step) for step in counts.spread.tolist()),
        subtracted=1 + colluding,
    )


@dataclass
class _StepCounts:
    """One step of the total, and what is taken out of it, with reasons: `absorbed` are (action or None, functions).

    `near` says whether a cell is so close to its threshold that one site, rounding it otherwise, would move it across.
    """

    layout: CountLayout
    counts: TotalCounts
    number: int
    fewest: int
    subtracted: int
    absorbed: dict[tuple[int | None, tuple[int, ...]], Shortfall] = field(default_factory=dict)
    closed: dict[int, Shortfall] = field(default_factory=dict)
    withheld_by: Shortfall | None = None
    near: bool = False
    unevenness: dict[tuple[int | None, tuple[int, ...]], float] = field(default_factory=dict)

    @cached_property
    def used(self) -> tuple[int, ...]:
        """Actions of which some site sends rows."""
        return tuple(int(a) for a in np.flatnonzero(self.counts.contribute[self.number]))

    @cached_property
    def design(self) -> Design:
        """How the total of this step falls into blocks."""
        return Design(self.layout.features, self.used)

    @property
    def open(self) -> list[int]:
        """Actions whose rows count."""
        return [] if self.withheld_by else [action for action in self.used if action not in self.closed]

    def left(self, kind: str, *place: int) -> int:
        """T − (1 + t) M of a count: patients of sites whom nobody can subtract."""
        where = (self.number, *place)
        return int(self.counts.totals[kind][where] - self.subtracted * self.counts.largest[kind][where])

    def patients(self, block: int | None) -> int:
        """Patients of a block, or of the step, whom nobody can subtract."""
        return sum(max(self.left("patients", action), 0) for action in (self.open if block is None else [block]))

    @property
    def blocks(self) -> list[int | None]:
        """Blocks that are told apart."""
        return list(self.open) if self.design.by_action else [None] * bool(self.open)

    def units(self, block: int | None) -> list[Unit]:
        """Units of a block that somebody sends, and that are not taken out."""
        return [
            unit
            for unit in self.design.within(block)
            if (unit.action, unit.functions) not in self.absorbed and self._senders(unit)
        ]

    def rank(self, block: int | None) -> int:
        """The most independent directions that a block can have."""
        return sum(unit.directions.shape[1] for unit in self.units(block))

    def _senders(self, unit: Unit) -> int:
        """The fewest sites that contribute to a unit in a group of actions where any does."""
        column = self.layout.column(unit)
        counts = [int(self.counts.send[self.number, group, column].max(initial=0)) for group in self._at(unit)]
        return min((count for count in counts if count), default=0)

    def close_rare_blocks(self) -> None:
        """Close actions of too few sites or too few patients."""
        if not (self.design.by_action or self.design.separable):
            return
        needed = self.layout.rules.min_action
        if self.design.separable:
            needed = max(needed, patients_for(self._functions_left()))
        for action in self.open:
            short = self._of_few_sites(int(self.counts.contribute[self.number, action]))
            short = short or _falls_short("ACTION", self.left("patients", action), needed)
            if short:
                self.closed[action] = short

    def _of_few_sites(self, sites: int) -> Shortfall | None:
        return _falls_short("SITES", sites, self.fewest)

    def _few_outcomes(self, block: int | None) -> Shortfall | None:
        """Why too few patients whom nobody can subtract stand out by an outcome, for what a block tells."""
        rank = self.rank(block)
        groups = [[block]] if block is not None else [self.open]
        if block is None and self.design.separable:
            groups, rank = self._groups, self._functions_left()
        found = (self._shows_few("outcomes", outcomes_for(rank), group) for group in groups if rank)
        return next((short for short in found if short), None)

    def _functions_left(self) -> int:
        """Shared functions that are told of a step with one block; at most its rank."""
        return min(len(self.units(None)), self.rank(None))

    @property
    def _groups(self) -> list[list[int]]:
        """Open actions whose sums can be told apart, each by itself, or all together."""
        return [[action] for action in self.open] if self.design.by_action or self.design.separable else [self.open]

    def take_out_cells(self) -> None:
        """Take out what few sites send, and what shows few patients in a column, a reference level or a pair."""
        enough = at_least(self.layout.rules.min_cell)
        for unit in self.design.units:
            column = self.layout.column(unit)
            shown = [self._of_few_sites(self._senders(unit))]
            shown += [
                self._shows_few("cells", enough, group, column)
                for group in self._at(unit)
                if self.counts.send[self.number, group, column].any()
            ]
            self._absorb_if(unit, shown)
        for unit in self.design.references:
            position = self.layout.references.index(unit.functions)
            self._absorb_if(unit, [self._shows_few("references", enough, group, position) for group in self._at(unit)])
        for block in self.blocks:
            self._take_out_pairs(block, enough)

    def _absorb_if(self, unit: Unit, found: list[Shortfall | None]) -> None:
        """Take a unit out if it falls short of a rule, for the first one."""
        why = next((short for short in found if short), None)
        if why:
            self._absorb(unit, why)

    def _take_out_pairs(self, block: int | None, enough: int) -> None:
        groups = self._groups if block is None else [[block]]
        small = {}
        for position, pair in enumerate(self.layout.pairs):
            cells = [
                short
                for group in groups
                for cell in range(4)
                if (short := self._shows_few("pairs", enough, group, position, cell))
            ]
            if cells:
                small[pair] = max(cells, key=lambda short: short.excess)
        while left := [pair for pair in small if all(self._is_left(block, functions) for functions in pair)]:
            functions = in_most(left)
            why = max((small[pair] for pair in left if functions in pair), key=lambda short: short.excess)
            for unit in self._units_of(block, functions):
                self._absorb(unit, why)

    def _left_in(self, kind: str, group: list[int], *place: int) -> int:
        """T − (1 + t) M of a count, over the actions of a group."""
        return sum(max(self.left(kind, action, *place), 0) for action in group)

    def _shows_few(self, kind: str, enough: int, group: list[int], *place: int) -> Shortfall | None:
        """How a count of a group of actions falls short; a count of cells is looked at although it is of nobody."""
        if kind != "cells" and not any(self.counts.present[kind][(self.number, action, *place)] for action in group):
            return None
        left = self._left_in(kind, group, *place)
        self.near |= kind != "outcomes" and enough - ROUNDED_TO <= left < enough + ROUNDED_TO
        return _falls_short(_KIND_RULES[kind], left, enough)

    def _at(self, unit: Unit) -> list[list[int]]:
        """Groups of actions in which a unit shows."""
        return self._groups if unit.action is None else [[a] for a in self.open if a == unit.action]

    def _units_of(self, block: int | None, functions: tuple[int, ...]) -> list[Unit]:
        everything = (*self.design.units, *self.design.references)
        return [unit for unit in everything if unit.functions == functions and unit.action in (block, None)]

    def _is_left(self, block: int | None, functions: tuple[int, ...]) -> bool:
        out = {gone for action, gone in self.absorbed if action in (block, None)}
        return functions not in out and any((function,) not in out for function in functions)

    def _absorb(self, unit: Unit, why: Shortfall) -> None:
        self.absorbed.setdefault((unit.action, unit.functions), why)

    def take_out_uneven_variances(self) -> None:
        """Take out functions of which one site tells almost all that varies: the others hide nobody of that site."""
        for unit in self.layout.design.units:
            moments = self.counts.spread[(self.number, *self.layout.spread_at(unit))]
            kinds = (self.counts.largest, self.counts.totals)
            most, everybody = (int(kind["patients"][self.number, actions_of(unit)].sum()) for kind in kinds)
            if is_one_sites(moments, most, self.subtracted, everybody):
                for same in self.design.units:
                    if same.functions == unit.functions and (unit.action is None or same.action in (unit.action, None)):
                        self._absorb(same, Shortfall("SITES"))

    def take_out_directions(self) -> None:
        """Take functions out of blocks with few patients, or few who stand out, for what is shared."""
        for block in [*self.blocks, *([None] if self.design.partly else [])]:
            while short := self._too_many_directions(block) or self._few_outcomes(block):
                self.take_out_last(block, short)

    def _too_many_directions(self, block: int | None) -> Shortfall | None:
        return _falls_short("ACTION", self.patients(block), patients_for(self.rank(block)))

    def take_out_last(self, block: int | None, why: Shortfall) -> bool:
        """Take out the last function of a block; whether there was one."""
        units = self.units(block)
        if units:
            self._absorb(units[-1], why)
        return bool(units)

    def share(self, block: int | None) -> float:
        """p/n_a of a block, n_a being patients whom nobody can subtract, and more where sites are not alike."""
        last = self.number == self.layout.horizon - 1
        share = numbers_told(self.rank(block), last) / max(self.patients(block), 1)
        if self.design.partly:
            share += numbers_told(self.rank(None), last) / max(self.patients(None), 1)
        if self.design.separable:  # what can be told of one action, where it is more
            apart = numbers_told(self._functions_left(), last)
            share = max([share, *(apart / max(self.left("patients", action), 1) for action in self.open)])
        return share * max((self.uneven(unit) for unit in self._shown_in(block)), default=1.0)

    def _shown_in(self, block: int | None) -> list[Unit]:
        return [unit for unit in self.units(None) if block is None or unit.action in (block, None)]

    def uneven(self, unit: Unit) -> float:
        """How many times less than by sites alike a patient is hidden in a unit, where rows count least."""
        if (unit.action, unit.functions) not in self.unevenness:
            found = []
            for same in self.layout.design.units:
                if same.functions == unit.functions and (same.action is None or unit.action in (same.action, None)):
                    moments = self.counts.spread[(self.number, *self.layout.spread_at(same))]
                    most = int(self.counts.largest["patients"][self.number, actions_of(same)].sum())
                    found.append(least_hidden(moments, most, self.subtracted))
            self.unevenness[unit.action, unit.functions] = max(found, default=1.0)
        return self.unevenness[unit.action, unit.functions]

    def take_out_most_uneven(self, block: int | None, why: Shortfall) -> bool:
        """Take out the unit of a block that hides a patient least; whether sites are not alike in any."""
        unit = max(self._shown_in(block), key=self.uneven, default=None)
        if unit is None or self.uneven(unit) <= 1:
            return False
        self._absorb(unit, why)
        return True

    def close_emptied(self) -> None:
        """Close blocks of which nothing is left, and withhold a step of too few patients or sites."""
        main = self.design.partly and self.rank(None) > 0
        for action in self.open if self.design.by_action and not main else []:
            if not self.rank(action):
                self.closed[action] = self._why_nothing_is_left(action)
        contribute = self.counts.contribute[self.number][list(self.used)]
        few_sites = self._of_few_sites(int(contribute.max(initial=0)))
        least = self.layout.rules.min_patients
        few = _falls_short("N", self.patients(None), least)
        if self.used and (not self.open or few or not self.rank(None) or few_sites):
            everybody = sum(max(self.left("patients", action), 0) for action in self.used)
            why = few_sites or _falls_short("N", everybody, least)
            partly = few if self.open and self.rank(None) else None
            self.withheld_by = why or partly or self._why_nothing_is_left(None)

    def _why_nothing_is_left(self, block: int | None) -> Shortfall:
        """The rule that took the last out of a block; of a step the one that is nearest to let a block out."""
        absorbed = [why for (action, _), why in self.absorbed.items() if block is None or action in (block, None)]
        nothing = Shortfall("SITES", 0, self.fewest, self.fewest)
        if block is None and self.closed:
            return min(self.closed.values(), key=lambda short: short.excess)
        return absorbed[-1] if absorbed else nothing


def _falls_short(rule: RuleCode, left: int, needed: int) -> Shortfall | None:
    """How a count falls short of a rule; None if it holds."""
    return Shortfall(rule, max(left, 0), needed, needed / max(left, 1)) if left < needed else None


def _hold_numbers(steps: list[_StepCounts], rules: Rules) -> None:
    """Take functions out until NUMBERS holds for a patient who is in the block that tells most, at every step."""
    limit = largest_share(rules.max_membership)
    while True:
        worst = [max(((step.share(block), block) for block in step.blocks), key=_first, default=None) for step in steps]
        shares = [place[0] if place else 0.0 for place in worst]
        told = sum(shares)
        if told <= limit:
            return
        why = Shortfall("NUMBERS", membership(told), rules.max_membership, told / limit)
        number = int(np.argmax(shares))
        place, step = worst[number], steps[number]
        block = place[1] if place else None
        uneven = step.take_out_most_uneven(block, why)
        if not (uneven or step.take_out_last(block, why) or step.take_out_last(None, why)):
            step.withheld_by = why


def _first(place: tuple[float, int | None]) -> float:
    return place[0]


def parts_taken_out(features: FeatureMap, repairs: CommonRepairs) -> list[CommonPart]:
    """What all sites take out: whole steps first, then blocks of other steps, then functions of other blocks."""
    count = len(repairs.functions) + len(repairs.blocks) + len(repairs.steps)
    reasons = iter(repairs.why or (Shortfall("SITES"),) * count)  # of repairs that were saved without reasons
    functions = [
        CommonPart(step, describe(features, Unit(action, gone, np.zeros((features.n_shared, 1)))), why)
        for (step, action, gone), why in zip(repairs.functions, reasons, strict=False)
        if step not in repairs.steps and (step, action) not in repairs.blocks
    ]
    blocks = [
        CommonPart(step, f"all patients at action {features.levels[action]:g}", why)
        for (step, action), why in zip(repairs.blocks, reasons, strict=False)
        if step not in repairs.steps
    ]
    steps = [
        CommonPart(step, "the whole step", why, whole=True) for step, why in zip(repairs.steps, reasons, strict=True)
    ]
    return [*steps, *blocks, *functions]


def taken_out(features: FeatureMap, repairs: CommonRepairs) -> list[str]:
    """What all sites take out, and why, in words; the largest parts first."""
    return [
        f"{part.what.replace('the whole step', 'all')} of step {part.step} ({part.why.rule}: {part.why})"
        for part in parts_taken_out(features, repairs)
    ]


def judge_totals(features: FeatureMap, repairs: CommonRepairs) -> list[Verdict]:
    """The verdict on the totals at each step from which all sites take something out, or that all rules hold."""
    by_step: dict[int, list[CommonPart]] = {}
    for part in parts_taken_out(features, repairs):
        by_step.setdefault(part.step, []).append(part)
    verdicts = []
    for step, parts in sorted(by_step.items()):
        worst = max(parts, key=lambda part: part.why.excess)
        advice = (
            ""
            if worst.whole
            else f"All sites take out {', '.join(f'{p.what} ({p.why.rule}: {p.why})' for p in parts)}."
        )
        verdicts.append(
            Verdict(
                "SITES",
                step,
                False,
                worst.why.measured(worst.what, repairs.subtracted),
                worst.why.asked,
                "withhold" if worst.whole else "repair",
                advice,
                worst.why.excess,
            )
        )
    held = "the sums of all sites together keep every rule"
    return verdicts or [Verdict("SITES", None, True, held, "rules that hold for all sites but one", "repair")]
