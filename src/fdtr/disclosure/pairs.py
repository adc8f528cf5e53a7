"""Small cells of two columns: the four cells of two indicators within a group, counted chunk by chunk."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.threads import for_chunks, rows_in_cache
from fdtr.disclosure.cells import Cells, at_action, by_group, functions_of, label_of, reference_blocks
from fdtr.disclosure.rules import Smallest
from fdtr.disclosure.two_values import BINS, FAR_OUT, middle_of
from fdtr.features import FeatureMap
from fdtr.trajectories import Chunk, Step

Array = NDArray[np.float64]
Counts = NDArray[np.int64]


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
        return Smallest(self.count, f'columns "{first}" and "{second}" {at_action(features, self.group)}')


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
    categorical = reference_blocks(features, looked) if references else []
    middle = _middles(step, features, groups, cells, looked if references else ())
    two = ~np.isnan(middle)
    indicators = [[*((j,) for j in looked if of_group[j]), *map(functions_of, categorical)] for of_group in two]
    n_columns = [int(of_group[list(looked)].sum()) for of_group in two]  # the indicators after these are references
    joint = [np.zeros((len(some), len(some))) for some in indicators]  # patients at both

    def count(chunk: Chunk) -> list[tuple[int, Array]]:
        counts = []
        for group, psi in by_group(features.psi(chunk.states), groups[chunk.actions], len(indicators)):
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
        for_chunks(count, add, step.chunks(rows_in_cache(features.n_functions), following=False))
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
        for group, psi in by_group(features.psi(chunk.states), groups[chunk.actions], n_groups):
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

    for_chunks(count, add, step.chunks(rows_in_cache(features.n_functions), following=False))
    return times
