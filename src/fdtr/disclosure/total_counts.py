"""Rules for a secure sum, judged on totals of counts: what all sites take out of their sums alike.

Nobody sees the sums of one site, so the rules have to hold for the total less any one site's part. Before sums are
masked, the sites open a masked total of counts, each rounded down to fives and capped at a number that follows from
the study. For every count the total also tells the largest part of one site, and no more about it: a site adds a random
number at each level that it reaches, so that everybody learns whether anybody did.

With T the total of a count, M the largest part and t the sites that may collude (`colluding`), at least

    T − (1 + t) M

patients are those of the sites whom nobody can subtract. N, ACTION, NUMBERS, CELL, NONZERO, REF and PAIR are judged by
this number, and SITES by how many sites contribute to each column of each block. Where a rule fails, every site takes
the same out: a function out of a block, the rows of a block, or a step.

A total also tells how much each function varies, so that a site whose patients differ more than all others' knows it
(`much_more_varied`). Each variance is rounded down to a quarter of an octave, and that of few patients counts less.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from math import ceil, floor, inf, log2

import numpy as np
from numpy.typing import NDArray

from fdtr import container
from fdtr.disclosure.blocks import Design, Unit, describe, in_most
from fdtr.disclosure.rules import Rules, largest_share, numbers_told, outcomes_for, patients_for
from fdtr.errors import ProtocolViolation
from fdtr.features import FeatureMap

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Words = NDArray[np.uint64]

ROUNDED_TO = 5
_KINDS = ("patients", "cells", "references", "pairs", "outcomes")

_VARIANCE_UNIT = 1e-5
_STEPS_IN_OCTAVE = 4
"""Variances are told in units, and rounded down to a power of two with this many steps in between."""


@dataclass(frozen=True, eq=False)
class SiteCounts:
    """What one site has left after its own repairs, by step and action.

    Rows that count less than half of the least weight are not counted. `patients` (H, A); `sends` (H, A, F) says which
    shared functions its sums tell of; `cells` (H, A, F) counts patients in the rarer of two values, or apart from zero
    or the most common value; `references` (H, A, R) those at reference levels; `pairs` (H, A, P, 4) those in the cells
    of two indicators that have two values each; `outcomes` (H, A) those whose reward is not the site's most common one.
    `spread` (H, A, F) is the variance of each function that is told, rounded, times its patients as they are counted;
    where a function is told of all actions together, it stands at the first one.
    """

    patients: Counts
    sends: NDArray[np.bool_]
    cells: Counts
    references: Counts
    pairs: Counts
    outcomes: Counts
    spread: Counts

    @property
    def digest(self) -> str:
        """Digest of all counts, by which a site knows that its table is the one that it counted."""
        return container.digest({}, {name: array.astype(np.uint64) for name, array in vars(self).items()})


@dataclass(frozen=True, eq=False)
class TotalCounts:
    """Opened totals: how many sites `contribute` (H, A) and `send` (H, A, F); for each kind of count, T and M.

    `present` says, for references, pairs and outcomes, whether any site has such a patient. `spread` is its total.
    """

    contribute: Counts
    send: Counts
    totals: Mapping[str, Counts]
    largest: Mapping[str, Counts]
    present: Mapping[str, NDArray[np.bool_]]
    spread: Counts


@dataclass(frozen=True)
class CommonRepairs:
    """What all sites of a secure sum take out: functions (step, action or None, functions), blocks and steps.

    `left` counts patients whom nobody can subtract from the total, by step and action; of a site at most `most` count.
    `counted` and `spread` are the totals of patients and of spread.
    """

    functions: tuple[tuple[int, int | None, tuple[int, ...]], ...] = ()
    blocks: tuple[tuple[int, int], ...] = ()
    steps: tuple[int, ...] = ()
    left: tuple[tuple[int, ...], ...] = field(default=(), compare=False)
    most: int = field(default=0, compare=False)
    counted: tuple[tuple[int, ...], ...] = field(default=(), compare=False)
    spread: tuple[tuple[tuple[int, ...], ...], ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class CountLayout:
    """The order of a masked vector of counts, which follows from the study: `features`, `rules`, `horizon`."""

    features: FeatureMap
    rules: Rules
    horizon: int

    @cached_property
    def design(self) -> Design:
        """The design in which every action is used."""
        return Design(self.features, tuple(range(self.features.n_actions)))

    @cached_property
    def functions(self) -> tuple[int, ...]:
        """F, the shared rows of ψ."""
        return self.design.functions

    @cached_property
    def references(self) -> tuple[tuple[int, ...], ...]:
        """R, the rows of ψ behind each reference level."""
        return tuple(dict.fromkeys(unit.functions for unit in self.design.references))

    @cached_property
    def pairs(self) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
        """P, the pairs of indicators, functions or reference levels, of two different covariates."""
        rows = [(block.rows.start, block.rows.stop) for block in self.features.blocks]
        covariate = {row: number for number, bounds in enumerate(rows) for row in range(*bounds)}
        indicators = sorted([*((function,) for function in self.functions), *self.references])
        return tuple((a, b) for a, b in combinations(indicators, 2) if covariate[a[0]] != covariate[b[0]])

    @property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        base = (self.horizon, self.features.n_actions)
        inner = (), (len(self.functions),), (len(self.references),), (len(self.pairs), 4), ()
        return {kind: (*base, *shape) for kind, shape in zip(_KINDS, inner, strict=True)}

    @cached_property
    def _levels(self) -> dict[str, tuple[int, ...]]:
        """Levels at which a total tells whether any site reaches them; the last one caps the count."""
        patients = tuple(range(ROUNDED_TO, self.most_patients + 1, ROUNDED_TO))
        cells = tuple(range(ROUNDED_TO, _half(at_least(self.rules.min_cell)) + 1, ROUNDED_TO))
        outcomes = tuple(range(ROUNDED_TO, _half(outcomes_for(self._most_functions)) + 1, ROUNDED_TO))
        few = {"references": (1, *cells), "pairs": (1, *cells), "outcomes": (1, *outcomes)}
        return {"patients": patients, "cells": cells, **few}

    @property
    def most_patients(self) -> int:
        """The cap of patients in a block: with three sites at it, two of them suffice for every rule."""
        ranks = [self._most_functions, *([self.features.n_shared] if self.design.partly else [])]
        limit = largest_share(self.rules.max_membership)
        numbers = sum(numbers_told(rank, last=False) for rank in ranks)
        needed = ceil(self.horizon * numbers / limit) if np.isfinite(limit) else 0
        return _half(max(*map(patients_for, ranks), needed, self.rules.min_patients, self.rules.min_action))

    @property
    def _most_functions(self) -> int:
        """The most independent directions that a block can have."""
        return len(self.functions) if self.design.by_action else self.features.n_shared

    @property
    def length(self) -> int:
        """How many whole numbers a vector holds."""
        shapes = self._shapes
        sizes = {kind: int(np.prod(shape)) for kind, shape in shapes.items()}
        counts = sum((1 + len(self._levels[kind])) * sizes[kind] for kind in _KINDS)
        return sizes["patients"] + 2 * sizes["cells"] + counts

    def spread_of(self, schur: Array, counts: SiteCounts, step: int, n: Counts) -> Counts:
        """What one step tells of spread, (A, F), from its S (d0, d0) and `n` (A,), the patients at each action.

        Where few patients are apart from all others, the variance is the one that as many as are counted would make.
        """
        spread, few = np.zeros((len(n), len(self.functions)), np.int64), at_least(self.rules.min_cell)
        for unit in self.design.units:
            column, place = self.functions.index(unit.functions[0]), _place(unit)
            cells = int(counts.cells[step, place, column].sum())
            variance = float(np.trace(unit.directions.T @ schur @ unit.directions)) / max(int(n[place].sum()), 1)
            rounded = _octaves(variance * (cells // ROUNDED_TO * ROUNDED_TO / cells if 0 < cells < few else 1.0))
            spread[place.start or 0, column] = self.patients_counted(counts, step, unit) * rounded
        return spread

    def patients_counted(self, counts: SiteCounts, step: int, unit: Unit) -> int:
        """A site's patients of a unit, in fives and up to the cap."""
        return int(_down(np.minimum(counts.patients[step, _place(unit)], self.most_patients)).sum())

    def encode(self, counts: SiteCounts, entropy: Callable[[int], bytes]) -> Words:
        """The vector of one site, (length,). `entropy` gives random bytes for the levels that the site reaches."""
        parts = [(counts.patients > 0).astype(np.uint64).ravel(), counts.sends.astype(np.uint64).ravel()]
        for kind in _KINDS:
            count, levels = getattr(counts, kind).ravel(), self._levels[kind]
            parts.append((_down(np.minimum(count, levels[-1]))).astype(np.uint64))
            reached = count[None, :] >= np.array(levels)[:, None]
            noise = np.frombuffer(entropy(8 * reached.size), "<u8").reshape(reached.shape).astype(np.uint64)
            parts.append(np.where(reached, np.maximum(noise, np.uint64(1)), np.uint64(0)).ravel())
        return np.concatenate([*parts, counts.spread.astype(np.uint64).ravel()])

    def decode(self, total: Words, n_sites: int) -> TotalCounts:
        """The opened totals; refuses numbers that `n_sites` sites cannot have."""
        pieces = _Pieces(total)
        shapes = self._shapes
        contribute, send = (pieces.take(shapes[kind]).astype(np.int64) for kind in ("patients", "cells"))
        totals, largest, present = {}, {}, {}
        for kind in _KINDS:
            levels, shape = np.array(self._levels[kind]), shapes[kind]
            totals[kind] = pieces.take(shape).astype(np.int64)
            reached = pieces.take((len(levels), *shape)) != 0
            rounded = _down(levels).reshape(-1, *[1] * len(shape))
            largest[kind] = np.max(np.where(reached, rounded, 0), axis=0, initial=0)
            present[kind] = reached.any(axis=0)
        spread = pieces.take(shapes["cells"]).astype(np.int64)
        wrong = [(array < 0).any() or (array > n_sites).any() for array in (contribute, send)]
        wrong += [
            (totals[kind] < largest[kind]).any() or (totals[kind] > n_sites * largest[kind]).any() for kind in _KINDS
        ]
        wrong.append((spread < 0).any() or (spread > n_sites * self._most_spread).any())
        if any(wrong):
            raise ProtocolViolation(
                f"The totals of counts are not those that {n_sites} sites can have: a message, a mask or an opening is "
                "wrong. Nothing was masked. Start a new round."
            )
        return TotalCounts(contribute, send, totals, largest, present, spread)

    @property
    def _most_spread(self) -> int:
        """The most that one site can tell of spread: functions are at most 1 long."""
        n_actions = self.features.n_actions
        return self.most_patients * n_actions * n_actions * int(1 / _VARIANCE_UNIT)


def _place(unit: Unit) -> slice:
    """The actions of a unit: one, or all."""
    return slice(None) if unit.action is None else slice(unit.action, unit.action + 1)


def _octaves(variance: float) -> int:
    """A variance in units, rounded down to a power of two with steps in between.

    >>> _octaves(0.02), _octaves(0.021), _octaves(0.0)
    (1722, 2048, 0)
    """
    units = variance / _VARIANCE_UNIT
    return int(2 ** (floor(_STEPS_IN_OCTAVE * log2(units)) / _STEPS_IN_OCTAVE)) if units >= 1 else 0


def much_more_varied(layout: CountLayout, own: SiteCounts, common: CommonRepairs, step: int) -> dict[int | None, float]:
    """How many times more a site's functions vary than all others', for each block of a step; at least 1.

    It is the largest ratio of variances over the functions of a block.
    """
    ratios: dict[int | None, float] = {}
    for unit in layout.design.units:
        column, place = layout.functions.index(unit.functions[0]), _place(unit)
        spread, n = int(own.spread[step, place.start or 0, column]), layout.patients_counted(own, step, unit)
        others = common.spread[step][place.start or 0][column] - spread
        n_others = sum(common.counted[step][place]) - n
        if spread:
            ratio = spread / n / (others / n_others) if others > 0 and n_others > 0 else inf
            ratios[unit.action] = max(ratios.get(unit.action, 1.0), ratio)
    return ratios


@dataclass
class _Pieces:
    """Takes arrays off the front of a vector."""

    vector: Words
    position: int = 0

    def take(self, shape: tuple[int, ...]) -> NDArray[np.uint64]:
        size = int(np.prod(shape))
        self.position += size
        return self.vector[self.position - size : self.position].reshape(shape)


def _down(counts: NDArray[np.int64]) -> Counts:
    return np.asarray(counts) // ROUNDED_TO * ROUNDED_TO


def at_least(needed: int) -> int:
    """The least multiple of five that shows `needed` patients.

    >>> at_least(11)
    15
    """
    return -(-needed // ROUNDED_TO) * ROUNDED_TO


def _half(needed: int) -> int:
    """What each of two sites needs so that they have `needed` patients together, in fives."""
    return at_least(-(-needed // 2))


def agree(layout: CountLayout, counts: TotalCounts, fewest: int, colluding: int) -> CommonRepairs:
    """What all sites take out of their sums; `fewest` sites have to contribute to what is told."""
    steps = [_StepCounts(layout, counts, h, fewest, 1 + colluding) for h in range(layout.horizon)]
    for step in steps:
        step.close_rare_blocks()
        step.take_out_cells()
        step.take_out_directions()
    _hold_numbers(steps, layout.rules)
    for step in steps:
        step.close_emptied()
    return CommonRepairs(
        functions=tuple((step.number, *place) for step in steps for place in step.absorbed),
        blocks=tuple((step.number, action) for step in steps for action in sorted(step.closed)),
        steps=tuple(step.number for step in steps if step.withheld),
        left=tuple(
            tuple(max(step.left("patients", action), 0) for action in range(layout.features.n_actions))
            for step in steps
        ),
        most=layout.most_patients,
        counted=tuple(map(tuple, counts.totals["patients"].tolist())),
        spread=tuple(tuple(map(tuple, step)) for step in counts.spread.tolist()),
    )


@dataclass
class _StepCounts:
    """One step of the total, and what is taken out of it: `absorbed` are (action or None, functions)."""

    layout: CountLayout
    counts: TotalCounts
    number: int
    fewest: int
    subtracted: int
    absorbed: list[tuple[int | None, tuple[int, ...]]] = field(default_factory=list)
    closed: set[int] = field(default_factory=set)
    withheld: bool = False

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
        return [] if self.withheld else [action for action in self.used if action not in self.closed]

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
        column = self.layout.functions.index(unit.functions[0])
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
            few = self.counts.contribute[self.number, action] < self.fewest
            if few or self.left("patients", action) < needed:
                self.closed.add(action)

    def _few_outcomes(self, block: int | None) -> bool:
        """Whether few patients whom nobody can subtract have another reward than most, for what a block tells."""
        rank = self.rank(block)
        groups = [[block]] if block is not None else [self.open]
        if block is None and self.design.separable:
            groups, rank = self._groups, self._functions_left()
        return bool(rank) and any(self._shows_few("outcomes", outcomes_for(rank), group) for group in groups)

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
            column = self.layout.functions.index(unit.functions[0])
            if self._senders(unit) < self.fewest or any(
                self.counts.send[self.number, group, column].any() and self._left_in("cells", group, column) < enough
                for group in self._at(unit)
            ):
                self._absorb(unit)
        for unit in self.design.references:
            position = self.layout.references.index(unit.functions)
            if any(self._shows_few("references", enough, group, position) for group in self._at(unit)):
                self._absorb(unit)
        for block in self.blocks:
            self._take_out_pairs(block, enough)

    def _take_out_pairs(self, block: int | None, enough: int) -> None:
        groups = self._groups if block is None else [[block]]
        small = [
            pair
            for position, pair in enumerate(self.layout.pairs)
            if any(self._shows_few("pairs", enough, group, position, cell) for group in groups for cell in range(4))
        ]
        while left := [pair for pair in small if all(self._is_left(block, functions) for functions in pair)]:
            for unit in self._units_of(block, in_most(left)):
                self._absorb(unit)

    def _left_in(self, kind: str, group: list[int], *place: int) -> int:
        """T − (1 + t) M of a count, over the actions of a group."""
        return sum(max(self.left(kind, action, *place), 0) for action in group)

    def _shows_few(self, kind: str, enough: int, group: list[int], *place: int) -> bool:
        present = any(self.counts.present[kind][(self.number, action, *place)] for action in group)
        return present and self._left_in(kind, group, *place) < enough

    def _at(self, unit: Unit) -> list[list[int]]:
        """Groups of actions in which a unit shows."""
        return self._groups if unit.action is None else [[a] for a in self.open if a == unit.action]

    def _units_of(self, block: int | None, functions: tuple[int, ...]) -> list[Unit]:
        everything = (*self.design.units, *self.design.references)
        return [unit for unit in everything if unit.functions == functions and unit.action in (block, None)]

    def _is_left(self, block: int | None, functions: tuple[int, ...]) -> bool:
        out = {gone for action, gone in self.absorbed if action in (block, None)}
        return functions not in out and any((function,) not in out for function in functions)

    def _absorb(self, unit: Unit) -> None:
        if (unit.action, unit.functions) not in self.absorbed:
            self.absorbed.append((unit.action, unit.functions))

    def take_out_directions(self) -> None:
        """Take functions out of blocks with few patients, or few other rewards, for what is shared."""
        for block in self.blocks:
            while self.patients(block) < patients_for(self.rank(block)) or self._few_outcomes(block):
                self.take_out_last(block)
        if self.design.partly:
            while self.patients(None) < patients_for(self.rank(None)) or self._few_outcomes(None):
                self.take_out_last(None)

    def take_out_last(self, block: int | None) -> bool:
        """Take out the last function of a block; whether there was one."""
        units = self.units(block)
        if units:
            self._absorb(units[-1])
        return bool(units)

    def share(self, block: int | None) -> float:
        """p/n_a of a block, n_a being patients whom nobody can subtract."""
        last = self.number == self.layout.horizon - 1
        share = numbers_told(self.rank(block), last) / max(self.patients(block), 1)
        if self.design.partly:
            share += numbers_told(self.rank(None), last) / max(self.patients(None), 1)
        if self.design.separable:  # what can be told of one action, where it is more
            apart = numbers_told(self._functions_left(), last)
            share = max([share, *(apart / max(self.left("patients", action), 1) for action in self.open)])
        return share

    def close_emptied(self) -> None:
        """Close blocks of which nothing is left, and withhold a step of too few patients or sites."""
        main = self.design.partly and self.rank(None) > 0
        for action in self.open if self.design.by_action and not main else []:
            if not self.rank(action):
                self.closed.add(action)
        few = self.patients(None) < self.layout.rules.min_patients
        contribute = self.counts.contribute[self.number][list(self.used)]
        sites = int(contribute.max(initial=0))
        if self.used and (not self.open or few or not self.rank(None) or sites < self.fewest):
            self.withheld = True


def _hold_numbers(steps: list[_StepCounts], rules: Rules) -> None:
    """Take functions out until NUMBERS holds for a patient who is in the block that tells most, at every step."""
    limit = largest_share(rules.max_membership)
    while True:
        worst = [max(((step.share(block), block) for block in step.blocks), key=_first, default=None) for step in steps]
        shares = [place[0] if place else 0.0 for place in worst]
        if sum(shares) <= limit:
            return
        number = int(np.argmax(shares))
        place, step = worst[number], steps[number]
        if place is None or not (step.take_out_last(place[1]) or step.take_out_last(None)):
            step.withheld = True


def _first(place: tuple[float, int | None]) -> float:
    return place[0]


def taken_out(features: FeatureMap, repairs: CommonRepairs) -> Iterator[str]:
    """What all sites take out, in words."""
    design = Design(features, tuple(range(features.n_actions)))
    for step, action, functions in repairs.functions:
        unit = Unit(action, functions, np.zeros((design.features.n_shared, 1)))
        yield f"{describe(features, unit)} at step {step}"
    for step, action in repairs.blocks:
        yield f"all patients at action {features.levels[action]:g} at step {step}"
    for step in repairs.steps:
        yield f"step {step}"
