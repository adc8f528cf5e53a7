"""Measure what the disclosure rules judge: one pass over each step's patients, and a second for pairs of columns."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.pessimism import LowerBound
from fdtr.algebra.schur import eliminate, leverage_map, project, whiten
from fdtr.algebra.threads import for_chunks, one_blas_thread, rows_in_cache
from fdtr.disclosure.rules import Bounds, Rules, Smallest, StepFacts
from fdtr.disclosure.two_values import BINS, FAR_OUT, middle_of
from fdtr.features import FeatureMap
from fdtr.features.bases import Categorical
from fdtr.features.mapping import Block
from fdtr.learners.accumulate import future_values
from fdtr.learners.backward import Fit
from fdtr.trajectories import Chunk, Step, Trajectories

Array = NDArray[np.float64]
Counts = NDArray[np.int64]


def measure(rows: Trajectories, features: FeatureMap, fit: Fit, rules: Rules) -> list[StepFacts]:
    """The facts of every step that `rules` will judge; `fit` is the local fit of these `rows` behind the sums."""
    with one_blas_thread():
        return [_measure_step(rows, features, fit, h, rules) for h in range(rows.horizon)]


def _measure_step(rows: Trajectories, features: FeatureMap, fit: Fit, h: int, rules: Rules) -> StepFacts:
    sums, step = fit.statistics[h], rows.step(h)
    n_shared = features.n_shared if rules.payload == "schur" else features.n_features
    # ‖L B_a ψ‖² is the leverage; the triangular factor of L B_a has no more rows than ψ.
    roots = np.asarray(np.linalg.qr(leverage_map(sums.gram, n_shared) @ features.embeddings, mode="r"))
    following = fit.bounds[h + 1] if h + 1 < rows.horizon else None
    bounds = measure_bounds(step, features, measure_outcomes(step, features, following))
    by_action = np.arange(features.n_actions)
    cells = count_cells(step, features, by_action, rules.min_cell)
    pairs = count_pairs(step, features, by_action, cells) if rules.payload == "gram" else []
    leverages = measure_leverage(step, features, roots)
    return StepFacts(
        n=sums.n,
        rank=whiten(sums.gram).rank,
        action_counts=sums.action_counts,
        n_functions=features.n_functions,
        bounds=bounds,
        leverage=float(leverages.max(initial=0.0)),
        cell=_smallest(cells.rarer, features),
        nonzero=_smallest(cells.apart, features),
        pair=min(pairs, key=lambda pair: pair.count).named(features) if pairs else None,
        absorbed=why_absorbed(sums.gram, features),
    )


def measure_outcomes(step: Step, features: FeatureMap, following: LowerBound | None) -> Array:
    """The rewards, and V of the next step or the worth of an end, (2, n); `following` gives V."""

    def outcomes(chunk: Chunk) -> Array:
        both = np.empty((2, len(chunk.rewards)))
        both[0] = chunk.rewards
        future_values(chunk, features, [following], out=both[1:])
        return both

    parts: list[Array] = [np.zeros((2, 0))]
    for_chunks(outcomes, parts.append, step.chunks(rows_in_cache(features.n_functions)))
    return np.concatenate(parts, axis=1)


def measure_bounds(step: Step, features: FeatureMap, outcomes: Array) -> Bounds:
    """The largest ‖φ‖ and the range of Y = r + V at one step, from its `outcomes` (2, n)."""

    def largest(chunk: Chunk) -> float:
        return float(features.squared_norms(features.psi(chunk.states), chunk.actions).max())

    norms: list[float] = []
    for_chunks(largest, norms.append, step.chunks(rows_in_cache(features.n_functions)))
    if not norms:
        return Bounds(0.0, 0.0, 0.0)
    targets = outcomes.sum(axis=0)
    return Bounds(float(np.sqrt(max(norms))), float(targets.min()), float(targets.max()))


def measure_leverage(step: Step, features: FeatureMap, roots: Array) -> Array:
    """‖R_a ψ‖² of every row of a step, (n,); `roots` (A, r, m) stacks R_a."""

    def squares(chunk: Chunk) -> Array:
        psi, leverage = features.psi(chunk.states), np.empty(len(chunk.actions))
        for action in np.flatnonzero(np.bincount(chunk.actions)):
            there = np.flatnonzero(chunk.actions == action)
            image = np.dot(roots[action], np.take(psi, there, axis=1))
            leverage[there] = np.einsum("rn,rn->n", image, image)
        return leverage

    parts: list[Array] = [np.zeros(0)]
    for_chunks(squares, parts.append, step.chunks(rows_in_cache(features.n_functions)))
    return np.concatenate(parts)


@dataclass(frozen=True, eq=False, repr=False)
class _ChunkCounts:
    """Counts of some rows, for each group and column of ψ, (G, m).

    `low` and `high` are a column's ends, `at_low` and `at_high` count patients at them, `nonzero` those not at zero,
    `unusual` those not at the most common value.
    """

    low: Array
    high: Array
    at_low: Counts
    at_high: Counts
    nonzero: Counts
    unusual: Counts


@dataclass(frozen=True, eq=False, repr=False)
class Cells:
    """Counts for each group of patients and column of ψ, (G, m); 0 where no rule applies. `n` (G,) are the patients.

    `rarer` counts the patients at the rarer value of a column with two values. For other columns `apart` counts those
    not at zero or those not at the most common value, whichever are fewer; it is exact if a rule refuses. `binary` says
    which columns have two values within a group, `low` and `high`.
    """

    n: Counts
    rarer: Counts
    apart: Counts
    binary: NDArray[np.bool_]
    low: Array
    high: Array


def count_cells(step: Step, features: FeatureMap, groups: NDArray[np.intp], enough: int) -> Cells:
    """Count the cells of every column; `groups` (A,) is the group of each action, `enough` what no rule refuses."""
    n_groups, m = int(groups.max()) + 1, features.n_functions
    usual = _usual(step, features, groups, enough)
    parts: list[_ChunkCounts] = []
    for_chunks(lambda c: _count_chunk(c, features, groups, usual), parts.append, step.chunks(rows_in_cache(m)))
    sizes = np.zeros(n_groups, np.int64)
    for chunk in step.chunks():
        sizes += np.bincount(groups[chunk.actions], minlength=n_groups)
    if not parts:
        none = np.zeros((n_groups, m), np.int64)
        return Cells(sizes, none, none, none.astype(bool), none.astype(float), none.astype(float))
    lows, highs = np.stack([part.low for part in parts]), np.stack([part.high for part in parts])
    low, high = lows.min(axis=0), highs.max(axis=0)
    at_low = np.where(lows == low, [part.at_low for part in parts], 0).sum(axis=0)
    at_high = np.where(highs == high, [part.at_high for part in parts], 0).sum(axis=0)
    varies = low < high
    binary = varies & (at_low + at_high == sizes[:, None])
    nonzero, unusual = (np.sum([getattr(part, name) for part in parts], axis=0) for name in ("nonzero", "unusual"))
    return Cells(
        n=sizes,
        rarer=np.where(binary, np.minimum(at_low, at_high), 0),
        apart=np.where(varies & ~binary, np.minimum(nonzero, unusual), 0),
        binary=binary,
        low=low,
        high=high,
    )


def _count_chunk(chunk: Chunk, features: FeatureMap, groups: NDArray[np.intp], usual: Array) -> _ChunkCounts:
    """`usual` (G, m) holds the most common values (`_usual`)."""
    psi, shape = features.psi(chunk.states), usual.shape
    low, high = np.full(shape, np.inf), np.full(shape, -np.inf)
    at_low, at_high, nonzero, unusual = np.zeros((4, *shape), np.int64)
    for group, block in _grouped(psi, groups[chunk.actions], len(usual)):
        low[group], high[group] = block.min(axis=1), block.max(axis=1)
        at_low[group] = np.count_nonzero(block == low[group][:, None], axis=1)
        at_high[group] = np.count_nonzero(block == high[group][:, None], axis=1)
        nonzero[group] = np.count_nonzero(block, axis=1)
        known = np.flatnonzero(~np.isnan(usual[group]))  # few columns, and none of continuous values
        unusual[group] = block.shape[1]
        unusual[group, known] = np.count_nonzero(block[known] != usual[group, known, None], axis=1)
    return _ChunkCounts(low, high, at_low, at_high, nonzero, unusual)


def _usual(step: Step, features: FeatureMap, groups: NDArray[np.intp], enough: int) -> Array:
    """The most common value of each column of ψ within a group, (G, m); NaN if `enough` patients have another.

    With k = `enough`, the first 2k−1 patients of a group suffice. If fewer than k of all patients have another value,
    then k or more of these first ones have the most common value of all.
    """
    n_groups = int(groups.max()) + 1
    usual = np.full((n_groups, features.n_functions), np.nan)
    for whole in step.chunks(max(step.n, 1)):
        members = groups[whole.actions]
        by_group = [np.flatnonzero(members == group) for group in range(n_groups)]
        first = np.concatenate([positions[: 2 * enough - 1] for positions in by_group])
        psi = features.psi(np.take(whole.states, first, axis=1))
        for group, block in _grouped(psi, members[first], n_groups):
            value, times = _most_common(block)
            usual[group] = np.where(block.shape[1] - times < enough, value, np.nan)
    return usual


def _most_common(values: Array) -> tuple[Array, Counts]:
    """The most frequent value in each row of `values` (m, n), and how often it occurs."""
    ordered, position = np.sort(values, axis=1), np.arange(values.shape[1])
    begins = np.diff(ordered, axis=1, prepend=np.nan) != 0
    times = position - np.maximum.accumulate(np.where(begins, position, 0), axis=1) + 1
    last = times.argmax(axis=1)[:, None]
    return np.take_along_axis(ordered, last, axis=1)[:, 0], np.take_along_axis(times, last, axis=1)[:, 0]


def _grouped(psi: Array, members: NDArray[np.intp], n_groups: int) -> list[tuple[int, Array]]:
    """The columns of `psi` (m, n) of each group that occurs; `members` (n,) are the groups."""
    order = np.argsort(members.astype(np.min_scalar_type(n_groups)), kind="stable")
    grouped = np.take(psi, order, axis=1)
    ends = np.cumsum(np.bincount(members, minlength=n_groups))
    starts = [0, *ends[:-1]]
    return [(g, grouped[:, start:end]) for g, (start, end) in enumerate(zip(starts, ends, strict=True)) if end > start]


def _smallest(counts: Counts, features: FeatureMap) -> Smallest | None:
    """The smallest count above 0 of (A, m), with the column and the action it belongs to."""
    if not counts.any():
        return None
    action, column = np.unravel_index(np.where(counts > 0, counts, np.iinfo(np.int64).max).argmin(), counts.shape)
    return Smallest(
        int(counts[action, column]), f'column "{label_of(features, int(column))}" {_at(features, int(action))}'
    )


@dataclass(frozen=True)
class Pair:
    """The smallest non-empty cell of the 2×2 table of two indicators within a group: its `count`.

    `first` and `second` are the rows of ψ behind the two: one, or for a reference level all of its covariate. `first`
    comes before `second` in the study. `cells` counts the four cells of the table.
    """

    count: int
    group: int
    first: tuple[int, ...]
    second: tuple[int, ...]
    cells: tuple[int, ...]

    def named(self, features: FeatureMap) -> Smallest:
        """The same, with names; groups are actions."""
        first, second = label_of(features, self.first[0]), label_of(features, self.second[0])
        return Smallest(self.count, f'columns "{first}" and "{second}" {_at(features, self.group)}')


def count_pairs(
    step: Step,
    features: FeatureMap,
    groups: NDArray[np.intp],
    cells: Cells,
    columns: Sequence[int] | None = None,
    references: bool = False,
) -> list[Pair]:
    """The smallest non-empty cell of each pair of two-valued columns, within a group; a second pass.

    `columns` are the rows of ψ to look at, all by default. With `references` the reference level of a categorical
    covariate counts as a column, and so do columns whose values are almost all near one of two, as few other values
    hide no cell; pairs of one covariate are left out.
    """
    looked = range(features.n_functions) if columns is None else columns
    categorical = _reference_blocks(features, looked) if references else []
    middle = _middles(step, features, groups, cells, looked if references else ())
    two = ~np.isnan(middle)
    indicators = [[*((j,) for j in looked if of_group[j]), *map(_functions, categorical)] for of_group in two]
    n_columns = [int(of_group[list(looked)].sum()) for of_group in two]  # the indicators after these are references
    joint = [np.zeros((len(some), len(some))) for some in indicators]  # patients at both

    def count(chunk: Chunk) -> list[tuple[int, Array]]:
        counts = []
        for group, psi in _grouped(features.psi(chunk.states), groups[chunk.actions], len(indicators)):
            some = indicators[group]
            rows = [psi[j] > middle[group, j] for (j,) in some[: n_columns[group]]]
            rows += [~psi[list(functions)].any(axis=0) for functions in some[n_columns[group] :]]
            at = np.array(rows, np.float64).reshape(len(rows), psi.shape[1])
            counts.append((group, np.dot(at, at.T)))
        return counts

    def add(counts: list[tuple[int, Array]]) -> None:
        for group, both in counts:
            joint[group] += both

    if any(len(some) > 1 for some in indicators):
        for_chunks(count, add, step.chunks(rows_in_cache(features.n_functions)))
    return _pairs_of(features, cells.n, indicators, joint, skip_own=references)


def _pairs_of(
    features: FeatureMap,
    n: Counts,
    indicators: list[list[tuple[int, ...]]],
    joint: Sequence[Array],
    skip_own: bool,
) -> list[Pair]:
    """The pairs of `indicators` of each group of `n` (G,) patients; `joint` counts patients at both.

    With `skip_own` pairs of one covariate are left out.
    """
    covariate = {row: b for b, block in enumerate(features.blocks) for row in range(block.rows.start, block.rows.stop)}
    pairs = []
    for group, some in enumerate(indicators):
        at = np.diagonal(joint[group])
        first_only = at[:, None] - joint[group]
        neither = n[group] - at[:, None] - at + joint[group]
        table = np.stack([joint[group], first_only, first_only.T, neither])
        for i, j in zip(*np.triu_indices(len(some), 1), strict=True):
            first, second = sorted((some[i], some[j]))
            order = [0, 1, 2, 3] if first == some[i] else [0, 2, 1, 3]
            filled = table[:, i, j][table[:, i, j] > 0]
            if len(filled) and not (skip_own and covariate[first[0]] == covariate[second[0]]):
                pairs.append(Pair(int(filled.min()), group, first, second, tuple(map(int, table[order, i, j]))))
    return pairs


def _middles(step: Step, features: FeatureMap, groups: NDArray[np.intp], cells: Cells, nearly: Sequence[int]) -> Array:
    """Between which values each column of ψ has two within a group, (G, m); NaN where it has not.

    Of the rows of ψ in `nearly` those count of which almost all values of all patients are near one of two.
    """
    middle = np.full(cells.low.shape, np.nan)
    middle[cells.binary] = (cells.low[cells.binary] + cells.high[cells.binary]) / 2
    several = (cells.high > cells.low) & ~cells.binary & np.isin(np.arange(features.n_functions), nearly)
    if not several.any():
        return middle
    n_groups, m = cells.low.shape
    low, width = np.zeros((n_groups, m)), np.ones((n_groups, m))
    low[several], width[several] = cells.low[several], (cells.high - cells.low)[several]
    for _ in range(2):
        times = _histograms(step, features, groups, several, low, width)
        for group, column in zip(*np.nonzero(several), strict=True):
            counts, bins = times[group, column], width[group, column] / BINS
            middle[group, column] = low[group, column] + (middle_of(counts) + 0.5) * bins
            around = counts[:-1] + counts[1:]
            few = counts.sum() - around.max() <= min(FAR_OUT, counts.sum() // 10)
            several[group, column] = few and np.isnan(middle[group, column])  # look closer, without who is far out
            if several[group, column]:
                low[group, column] += int(around.argmax()) * bins
                width[group, column] = 2 * bins
        if not several.any():
            break
    return middle


def _histograms(
    step: Step, features: FeatureMap, groups: NDArray[np.intp], columns: NDArray[np.bool_], low: Array, width: Array
) -> Counts:
    """Numbers of values in bins from `low` on, (G, m, bins), of those within `width`; of some `columns` (G, m)."""
    n_groups, m = low.shape
    times = np.zeros((n_groups, m, BINS), np.int64)

    def count(chunk: Chunk) -> list[tuple[int, Counts]]:
        counts = []
        for group, psi in _grouped(features.psi(chunk.states), groups[chunk.actions], n_groups):
            looked = np.flatnonzero(columns[group])
            share = (psi[looked] - low[group, looked, None]) / width[group, looked, None]
            inside = (share >= 0) & (share <= 1)
            places = np.where(inside, share * BINS, 0).astype(np.intp)
            bins = np.minimum(places, BINS - 1) + BINS * looked[:, None]
            counts.append((group, np.bincount(bins[inside], minlength=m * BINS).reshape(m, BINS)))
        return counts

    def add(counts: list[tuple[int, Counts]]) -> None:
        for group, part in counts:
            times[group] += part

    for_chunks(count, add, step.chunks(rows_in_cache(features.n_functions)))
    return times


def count_references(
    step: Step, features: FeatureMap, groups: NDArray[np.intp], columns: Sequence[int]
) -> dict[tuple[int, tuple[int, ...]], int]:
    """Patients at the reference level of each categorical covariate, by group and the covariate's rows of ψ.

    `columns` are the rows of ψ to look at.
    """
    n_groups, blocks = int(groups.max()) + 1, _reference_blocks(features, columns)
    counts = {(group, _functions(block)): 0 for block in blocks for group in range(n_groups)}
    for chunk in step.chunks(rows_in_cache(features.n_functions)) if counts else ():
        psi, members = features.psi(chunk.states), groups[chunk.actions]
        for block in blocks:
            present = np.bincount(members[~psi[block.rows].any(axis=0)], minlength=n_groups)
            for group, count in enumerate(present):
                counts[group, _functions(block)] += int(count)
    return counts


def _functions(block: Block) -> tuple[int, ...]:
    return tuple(range(block.rows.start, block.rows.stop))


def _reference_blocks(features: FeatureMap, columns: Sequence[int]) -> list[Block]:
    """Categorical covariates of three and more levels: of two, the column of the second level shows the first."""
    categorical = [block for block in features.blocks if isinstance(block.basis, Categorical)]
    return [block for block in categorical if block.rows.start in columns and len(_functions(block)) > 1]


def count_outcomes(step: Step, groups: NDArray[np.intp]) -> Counts:
    """Patients of each group, (G,), whose reward is not the most common one of their group."""
    apart = np.zeros(int(groups.max()) + 1, np.int64)
    for whole in step.chunks(max(step.n, 1)):
        members = groups[whole.actions]
        for group in np.flatnonzero(np.bincount(members)):
            times = np.unique(whole.rewards[members == group], return_counts=True)[1]
            apart[group] = times.sum() - times.max()
    return apart


def label_of(features: FeatureMap, function: int) -> str:
    """Name of a function of ψ."""
    return [label for block in features.blocks for label in block.labels][function]


def _at(features: FeatureMap, action: int) -> str:
    return f"at action {features.levels[action]:g}"


def why_absorbed(gram: Array, features: FeatureMap) -> str:
    """Why nothing is left of the shared features beside the site's own; empty if something is left."""
    d0, d = features.n_shared, features.n_features
    if d0 == 0 or _left(gram, d0, range(d0, d)):
        return ""
    if not np.diagonal(gram)[:d0].any():
        return "they are zero for every patient"
    own = features.own_intercepts
    if own and not _left(gram, d0, own):
        return "they are constant within the site, so that its own intercept absorbs them"
    return "they are combinations of the site's own features, which absorb them"


def _left(gram: Array, n_shared: int, own: range | list[int]) -> int:
    """Rank of S beside the features `own`."""
    columns = [*range(n_shared), *own]
    part = gram[np.ix_(columns, columns)]
    schur = eliminate(part, np.zeros((len(columns), 0)), n_shared).schur
    return project(schur, np.zeros((n_shared, 0)), part[:n_shared, :n_shared]).rank
