"""Screening: passes over a step's chunks that show that no row has to be looked at by itself.

In a large site the rules for rows hold by far for almost everybody. So the most that any row can tell is bounded by
sums and maxima over all rows, and only rows with much leverage are kept, of which there are few, as leverages add up to
the rank. How many patients stand out by an outcome is counted among those farthest out.

Where a bound does not show that rule LEVERAGE holds, the rows of a few people are looked at in memory, who might tell
much at some step (`suspects`); bounds are then those of all others, and sums still those of all. Where a few outcomes
have to be counted or moved, every row of the step is in memory. What is sent is the same in all three cases.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.threads import for_chunks
from fdtr.disclosure.cells import cut
from fdtr.disclosure.patient_evidence import (
    NO_VARIANCE,
    NOTHING_LEFT,
    EvidenceSums,
    explained_maps,
    fitted_maps,
    leverage_roots,
    mean_weight,
    relative_variance,
    shown_columns,
)
from fdtr.disclosure.rules import Rules, outcomes_for
from fdtr.disclosure.step_scan import Largest, OutcomeEnds
from fdtr.disclosure.weighted_step import StepPlan
from fdtr.learners.accumulate import WeightedPart

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

LEVERAGE_FACTOR = 1.4
ALIKE_COSINE, ALIKE_SHARE = 0.95, 0.5
"""A row is hidden by others that point almost where it does, and at least half as far."""

STANDS_OUT = 0.25
"""A patient stands out whose outcome differs by this share of the largest difference within a block."""

FEWEST = 2000
"""Steps of fewer patients are not screened: looking at all their rows takes less time, and bounds often fail there."""

_FAR = 0.1
"""Rows are kept whose leverage exceeds this share of what one row may have, or that hide others in rule LEVERAGE."""

_PIECES = 32  # of the range in which the most common value or the median may be
_ROUNDING = 1e-9


@dataclass(eq=False, repr=False)
class Survey:
    """What rows of a step show, by block: the largest `leverage`, sums of squared columns, and of residuals of r and Y.

    `sums` are over the columns that the block shows and, in the last two places, the residuals. `far` holds the rows
    with much leverage. Where the rows of some people are at hand, the largest of anything is that of all others.
    """

    leverage: dict[int | None, float] = field(default_factory=dict)
    sums: dict[int | None, EvidenceSums] = field(default_factory=dict)
    far: dict[int | None, "FarRows"] = field(default_factory=dict)

    def add(self, block: int | None, leverage: float, sums: EvidenceSums, far: "FarRows") -> None:
        """Take further rows of a block into account."""
        if block not in self.leverage:
            self.leverage[block], self.sums[block], self.far[block] = leverage, sums, far
            return
        self.leverage[block] = max(self.leverage[block], leverage)
        self.sums[block] += sums
        if len(far.places):
            self.far[block] = self.far[block].joined(far)

    @property
    def residuals(self) -> EvidenceSums:
        """The sums of residuals of r and Y over all blocks."""
        first, *others = self.sums.values()
        return sum((sums.some(slice(-2, None)) for sums in others), first.some(slice(-2, None)))


@dataclass(frozen=True, eq=False, repr=False)
class FarRows:
    """Rows with much leverage: `places` in the step, `leverage`, (c,), R_a ψ (r, c), and which are not at hand."""

    places: NDArray[np.intp]
    leverage: Array
    images: Array
    outside: NDArray[np.bool_]

    def joined(self, other: "FarRows") -> "FarRows":
        """These rows and others."""
        return FarRows(
            np.concatenate([self.places, other.places]),
            np.concatenate([self.leverage, other.leverage]),
            np.concatenate([self.images, other.images], axis=1),
            np.concatenate([self.outside, other.outside]),
        )

    def hidden(self, rules: Rules, places: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which of these rows, at some `places` of the step, are among others alike."""
        order = np.argsort(self.places)
        return hidden_among(
            rules, order[np.searchsorted(self.places, places, sorter=order)], self.leverage, self.images
        )


def leverage_cap(plan: StepPlan, block: int | None) -> float:
    """The leverage that one row of a block may have, unless others alike hide it."""
    return min(plan.rules.max_leverage, LEVERAGE_FACTOR / sqrt(plan.patients(block)))


def _kept_from(plan: StepPlan, block: int | None) -> float:
    """The leverage from which rows are kept: all who may be hidden, and all who may hide them."""
    least = sqrt(1 / (plan.patients(block) * plan.rules.min_cell))
    return min(_FAR * leverage_cap(plan, block), ALIKE_SHARE * least)


def hidden_among(rules: Rules, suspects: NDArray[np.intp], leverage: Array, images: Array) -> NDArray[np.bool_]:
    """Which `suspects` (places) are among enough others that point where they do, and half as far.

    `leverage` (n,) and `images` R_a ψ (r, n) are those of the rows of a block with half as much as a suspect, or more.
    """
    hidden = np.zeros(len(suspects), bool)
    lengths = np.sqrt(np.maximum(np.einsum("rn,rn->n", images, images), np.finfo(float).tiny))
    directions = images / lengths
    for position in np.flatnonzero(leverage[suspects] <= rules.max_leverage * (1 + _ROUNDING)):
        suspect = suspects[position]
        alike = np.abs(directions[:, suspect] @ directions) >= ALIKE_COSINE
        hidden[position] = np.sum(alike & (leverage >= ALIKE_SHARE * leverage[suspect])) >= rules.min_cell
    return hidden


def screen(plan: StepPlan) -> None:
    """Let a step be `screened` if its outcomes show that nobody's has to be looked at."""
    if not plan.rules.alone or plan.step.n < FEWEST:
        return
    ends, plan.screened = plan.scan.ends, True
    tally = _Tally(Largest(3 * len(ends.n), ends.largest.shape[2]), np.zeros((3, len(ends.n))))
    plan.remembered["survey"] = _survey(plan, tally)
    least = np.vstack([_unusual(ends), *(_beside_usual(ends, outcome) for outcome in (0, 1)), *_beside_fitted(tally)])
    counting = np.array([_counts(plan, group) for group in range(len(ends.n))])
    needed = np.array([_most_needed(plan, group) for group in range(len(ends.n))])
    plan.least = least * counting
    if (counting & (least != 0) & (least < needed)).any():
        plan.look_closer()


def _counts(plan: StepPlan, group: int) -> bool:
    """Whether a group has patients, and is not left out in any case because it has so few."""
    n, apart = int(plan.cells.n[group]), plan.design.by_action or plan.design.separable
    return n >= (plan.rules.min_action if apart else 1)


def _most_needed(plan: StepPlan, group: int) -> int:
    """The most patients who have to stand out in a group, whatever is taken out."""
    design = plan.design
    alone = design.by_action and not design.partly
    return outcomes_for(len(design.within(group)) if alone else plan.features.n_shared)


def surveyed(plan: StepPlan) -> Survey:
    """The survey of a step of which not all rows are at hand, of what is left now."""
    if "survey" not in plan.remembered:
        plan.remembered["survey"] = _survey(plan, None)
    known: Survey = plan.remembered["survey"]
    return known


# What stands out.


@dataclass(frozen=True, eq=False, repr=False)
class _Tally:
    """Sizes |e| of what own features leave of r and V and all features of r: the `largest`, and Σ e² (3, G)."""

    largest: Largest
    squares: Array

    def sizes(self, group: int, rows: "_Rows", own: Array) -> list[tuple[int, int, Array, float]]:
        """Of rows of one action and measure by measure: those that may be among the largest, and Σ e²."""
        left = np.abs(rows.outcomes - np.dot(own, rows.psi))
        found = []
        for measure, sizes in enumerate((*left, np.sqrt(rows.squares[-2]))):
            series = measure * self.squares.shape[1] + group
            found.append((measure, group, self.largest.among(series, sizes), float(sizes @ sizes)))
        return found

    def add(self, found: list[tuple[int, int, Array, float]]) -> None:
        """Take further rows into account."""
        for measure, group, sizes, squares in found:
            self.largest.add(measure * self.squares.shape[1] + group, sizes)
            self.squares[measure, group] += squares


def _unusual(ends: OutcomeEnds) -> Counts:
    """Patients of each group, (G,), whose reward is not the most common one; or fewer, but more than `largest` holds.

    If these are few, they are all at the ends.
    """
    counts = np.zeros(len(ends.n), np.int64)
    for group in np.flatnonzero(ends.n > 1):
        times = np.unique(np.concatenate(ends.apart(0, int(group))), return_counts=True)[1]
        counts[group] = times.sum() - times.max()
    return counts


def _beside_usual(ends: OutcomeEnds, outcome: int) -> Counts:
    """How many patients of each group stand out beside the most common value or the median, (G,), at least.

    Both are medians, so that they are nearer to the mean than a standard deviation. −1 where nothing can be said.
    """
    counts = np.zeros(len(ends.n), np.int64)
    for group in np.flatnonzero(ends.n > 1):
        high, low = ends.apart(outcome, int(group))
        if high.max() > low.min():
            counts[group] = _least_beside(high, low, ends, outcome, int(group))
    return counts


def _least_beside(high: Array, low: Array, ends: OutcomeEnds, outcome: int, group: int) -> int:
    most, least, n = float(high.max()), float(low.min()), int(ends.n[group])
    if most - least <= 4 * NOTHING_LEFT:
        return -1
    mean, squares = ends.sums[outcome, group] / n, float(ends.squares[outcome, group])
    around = max(squares - n * mean**2, 0.0) + _ROUNDING * squares
    reach = sqrt(around / n)
    pieces = np.linspace(max(least, mean - reach), min(most, mean + reach), _PIECES + 1)
    counts = []
    for start, stop in pairwise(pieces.tolist()):
        farthest = max(most - start, stop - least)
        level = STANDS_OUT * (1 + _ROUNDING) * np.array([max(most - u, u - least) for u in (stop, start)])
        marked = int(np.sum(high - stop >= level[0]) + np.sum(start - low >= level[1]))
        beside = max(start - mean, mean - stop, 0.0)
        in_full = max(squares - n * mean**2 - _ROUNDING * squares, 0.0) + n * beside**2
        counts.append(min(marked, int(in_full / farthest**2)))
    return min(counts) or -1


def _beside_fitted(tally: _Tally) -> Counts:
    """How many patients of each group stand out beside what features explain, (3, G), at least; −1: nothing known."""
    sizes = tally.largest.values.reshape(*tally.squares.shape, -1)
    largest = sizes.max(axis=2)
    level = STANDS_OUT * (1 + _ROUNDING) * largest
    marked = np.sum(sizes >= level[:, :, None], axis=2)
    shares = tally.squares / np.maximum(largest, NOTHING_LEFT / 2) ** 2
    counts: Counts = np.minimum(marked, (shares * (1 - _ROUNDING)).astype(np.int64))
    counts[largest <= NOTHING_LEFT / 2] = 0
    counts[(largest > NOTHING_LEFT / 2) & (largest < 2 * NOTHING_LEFT)] = -1
    return counts


# What rows tell.


def most_of_rows(plan: StepPlan, largest: float) -> float:
    """A bound of what any row that is not at hand tells, if all steps together may tell `largest`."""
    if not plan.blocks:
        return 0.0
    survey, most, spread = surveyed(plan), 0.0, relative_variance(plan)
    for block in plan.blocks:
        n, far = plan.patients(block), survey.far[block]
        others = min(survey.leverage[block], _kept_from(plan, block) / ALIKE_SHARE)
        evidence = n * far.leverage**2 / 2 * far.outside
        much = np.flatnonzero(evidence > max(largest / plan.horizon, 1 / plan.rules.min_cell, n * others**2) / 2)
        hidden = much[hidden_among(plan.rules, much, far.leverage, far.images)]
        evidence[hidden] = np.minimum(evidence[hidden], 1 / plan.rules.min_cell)
        columns = survey.sums[block].most(spread)[:-2]
        most = max(most, n * others**2 / 2, evidence.max(initial=0.0), columns.max(initial=0.0))
    return float(most)


def most_of_outcomes(plan: StepPlan) -> float:
    """A bound of what the outcomes of any row that is not at hand tell."""
    if not plan.blocks:
        return 0.0
    survey = surveyed(plan)
    sums = survey.residuals
    sizes, leverage = np.sqrt(sums.largest), max(survey.leverage.values())
    if ((sizes > NOTHING_LEFT / 2) & (sizes < 2 * NOTHING_LEFT)).any():
        return inf
    told = np.where(sizes > NOTHING_LEFT, sums.most(relative_variance(plan)), 0.0)[0]
    for outcome in range(1 if plan.following is None else 2):
        variance = sums.sums[outcome] / sums.weights
        if sizes[outcome] > NOTHING_LEFT and variance > NO_VARIANCE / 2:
            told += leverage / mean_weight(plan) * max(sums.largest[outcome] / variance - 1.0, 0.0) * (1 + _ROUNDING)
    return float(told)


def is_far_from_nobody(plan: StepPlan) -> bool:
    """Whether no row that is not at hand has more leverage than it may have, but those that others hide."""
    survey = surveyed(plan)
    for block in plan.blocks:
        far = survey.far[block]
        out = np.flatnonzero(far.outside & (far.leverage > leverage_cap(plan, block) * (1 + _ROUNDING)))
        if len(out) and not hidden_among(plan.rules, out, far.leverage, far.images).all():
            return False
    return True


def suspects(plan: StepPlan, much: float, much_by_outcomes: float) -> NDArray[np.intp]:
    """Places of rows of a screened step that have half of the leverage that one may have, or tell much."""
    survey, spread, maps = surveyed(plan), relative_variance(plan), _Maps.of(plan)
    found: list[NDArray[np.intp]] = [np.zeros(0, np.intp)]

    def look_at(part: WeightedPart) -> NDArray[np.intp]:
        places = [np.zeros(0, np.intp)]
        for action, rows in maps.by_action(plan, part):
            block, sums = maps.block_of[action], survey.sums[maps.block_of[action]]
            evidence = sums.some(slice(-2)).evidence(rows.squares[:-2], rows.weights, spread)
            of_rows = np.vstack([evidence, plan.patients(block) * rows.leverage**2 / 2]).max(axis=0)
            residuals = rows.squares[-2:]
            told = survey.residuals.some(slice(0, 1)).evidence(residuals[:1], rows.weights, spread)[0]
            variances = survey.residuals.sums / survey.residuals.weights
            for square, variance in zip(residuals, variances, strict=True):
                if variance > NO_VARIANCE / 2:
                    told += rows.leverage / mean_weight(plan) * np.maximum(square / variance - 1, 0.0)
            far = rows.leverage > leverage_cap(plan, block) / 2
            places.append(rows.places[far | (of_rows > much) | (told > much_by_outcomes)])
        return np.concatenate(places)

    for_chunks(look_at, found.append, plan.parts())
    return np.sort(np.concatenate(found))


@dataclass(frozen=True, eq=False, repr=False)
class _Rows:
    """Rows of one action: places, weights, ψ, outcomes, leverage, R_a ψ, and `squares` of all that is summed."""

    places: NDArray[np.intp]
    weights: Array
    psi: Array
    outcomes: Array
    leverage: Array
    images: Array
    squares: Array


@dataclass(frozen=True, eq=False, repr=False)
class _Maps:
    """Maps of ψ to what the rows of a step show: leverage, columns and fitted outcomes; the block of each action."""

    roots: Array
    columns: Array
    fitted: Array
    block_of: dict[int, int | None]

    @classmethod
    def of(cls, plan: StepPlan) -> "_Maps":
        block_of = {action: action if plan.design.by_action else None for action in plan.kept_actions}
        return cls(leverage_roots(plan), shown_columns(plan)[0], fitted_maps(plan), block_of)

    def by_action(self, plan: StepPlan, part: WeightedPart) -> Iterator[tuple[int, _Rows]]:
        """What the rows of a chunk show, action by action, of those that count."""
        (chunk, here, weights, values), m, n_actions = part, plan.features.n_functions, plan.features.n_actions
        rows = np.empty((m + 3, len(weights)))
        plan.features.psi(chunk.states, out=rows[:m])
        rows[m], rows[m + 1], rows[m + 2] = chunk.rewards, values, weights
        order = np.argsort(chunk.actions.astype(np.min_scalar_type(n_actions)), kind="stable")
        sizes, rows = np.bincount(chunk.actions, minlength=n_actions), np.take(rows, order, axis=1)
        starts = np.cumsum(sizes) - sizes
        for action, block in cut(rows, sizes):
            if action not in self.block_of:
                continue
            psi, outcomes, weight = block[:m], block[m : m + 2], block[m + 2]
            images = np.dot(self.roots[action], psi)
            left = np.stack([outcomes[0], outcomes[0] + outcomes[1]]) - np.dot(self.fitted[action], psi)
            shown = np.concatenate([np.dot(self.columns[action], psi), left])
            yield (
                action,
                _Rows(
                    places=here.start + order[starts[action] : starts[action] + sizes[action]],
                    weights=weight,
                    psi=psi,
                    outcomes=outcomes,
                    leverage=weight * np.einsum("rn,rn->n", images, images),
                    images=images,
                    squares=np.square(shown, out=shown),
                ),
            )


def _survey(plan: StepPlan, tally: _Tally | None) -> Survey:
    """A pass over the rows that count; a `tally` of outcomes is filled in the same pass."""
    maps, survey = _Maps.of(plan), Survey()
    own = explained_maps(plan, plan.scan.products, plan.design.used)[:, :2] if tally else None
    far = {block: _kept_from(plan, block) for block in plan.blocks}

    def look_at(part: WeightedPart) -> list[_Found]:
        found = []
        for action, rows in maps.by_action(plan, part):
            block = maps.block_of[action]
            outside = ~np.isin(rows.places, plan.places_in(part.here)) if plan.in_part else None
            out = np.flatnonzero(rows.leverage > far[block])
            found.append(
                _Found(
                    action,
                    float((rows.leverage if outside is None else rows.leverage[outside]).max(initial=0.0)),
                    EvidenceSums.of(rows.squares, rows.weights, outside),
                    FarRows(
                        rows.places[out],
                        rows.leverage[out],
                        np.take(rows.images, out, axis=1),
                        np.ones(len(out), bool) if outside is None else outside[out],
                    ),
                    [] if tally is None or own is None else tally.sizes(plan.groups[action], rows, own[action]),
                )
            )
        return found

    def add(found: list[_Found]) -> None:
        for part in found:
            survey.add(maps.block_of[part.action], part.leverage, part.sums, part.far)
            if tally is not None:
                tally.add(part.sizes)

    for_chunks(look_at, add, plan.parts())
    return survey


@dataclass(frozen=True, eq=False, repr=False)
class _Found:
    """What the rows of one action in one chunk show."""

    action: int
    leverage: float
    sums: EvidenceSums
    far: FarRows
    sizes: list[tuple[int, int, Array, float]]
