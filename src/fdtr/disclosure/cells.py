"""Cells of a step: in each column, how many patients of a group have a rare value, counted chunk by chunk."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.threads import for_chunks, rows_in_cache
from fdtr.features import FeatureMap
from fdtr.features.bases import Categorical
from fdtr.features.mapping import Block
from fdtr.trajectories import Chunk, Step

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Parts = Sequence[tuple[int, Array]]
"""Some rows by group or by action: its position, and the columns of ψ of its patients."""

References = dict[tuple[int, tuple[int, ...]], int]


@dataclass(frozen=True, eq=False, repr=False)
class CellCounts:
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

    @classmethod
    def of_nobody(cls, shape: tuple[int, int]) -> "CellCounts":
        """Counts of no rows."""
        return cls(np.full(shape, np.inf), np.full(shape, -np.inf), *np.zeros((4, *shape), np.int64))

    @classmethod
    def of(cls, parts: Parts, usual: Array) -> "CellCounts":
        """Counts of rows by group; `usual` (G, m) holds the most common values (`usual_values`)."""
        counts = cls.of_nobody(usual.shape)
        for group, psi in parts:
            counts.low[group], counts.high[group] = psi.min(axis=1), psi.max(axis=1)
            counts.at_low[group] = np.count_nonzero(psi == counts.low[group][:, None], axis=1)
            counts.at_high[group] = np.count_nonzero(psi == counts.high[group][:, None], axis=1)
            counts.nonzero[group] = np.count_nonzero(psi, axis=1)
            known = np.flatnonzero(~np.isnan(usual[group]))  # few columns, and none of continuous values
            counts.unusual[group] = psi.shape[1]
            counts.unusual[group, known] = np.count_nonzero(psi[known] != usual[group, known, None], axis=1)
        return counts

    def __add__(self, other: "CellCounts") -> "CellCounts":
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        both = (self, other)
        return CellCounts(
            low,
            high,
            np.sum([np.where(counts.low == low, counts.at_low, 0) for counts in both], axis=0),
            np.sum([np.where(counts.high == high, counts.at_high, 0) for counts in both], axis=0),
            self.nonzero + other.nonzero,
            self.unusual + other.unusual,
        )


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

    @classmethod
    def of(cls, counts: CellCounts, n: Counts) -> "Cells":
        """The cells of groups of `n` (G,) patients."""
        varies = counts.low < counts.high
        binary = varies & (counts.at_low + counts.at_high == n[:, None])
        return cls(
            n=n,
            rarer=np.where(binary, np.minimum(counts.at_low, counts.at_high), 0),
            apart=np.where(varies & ~binary, np.minimum(counts.nonzero, counts.unusual), 0),
            binary=binary,
            low=counts.low,
            high=counts.high,
        )


def count_cells(step: Step, features: FeatureMap, groups: NDArray[np.intp], enough: int) -> Cells:
    """Count the cells of every column; `groups` (A,) is the group of each action, `enough` what no rule refuses."""
    n_groups, m = int(groups.max()) + 1, features.n_functions
    sizes = np.zeros(n_groups, np.int64)
    for chunk in step.chunks(following=False):
        sizes += np.bincount(groups[chunk.actions], minlength=n_groups)
    usual = usual_values(step, features, groups, enough, sizes)
    total = CellCounts.of_nobody((n_groups, m))

    def add(counts: CellCounts) -> None:
        nonlocal total
        total += counts

    def count(chunk: Chunk) -> CellCounts:
        return CellCounts.of(by_group(features.psi(chunk.states), groups[chunk.actions], n_groups), usual)

    for_chunks(count, add, step.chunks(rows_in_cache(m), following=False))
    return Cells.of(total, sizes)


def usual_values(step: Step, features: FeatureMap, groups: NDArray[np.intp], enough: int, sizes: Counts) -> Array:
    """The most common value of each column of ψ within a group, (G, m); NaN if `enough` patients have another.

    With k = `enough`, the first 2k−1 patients of a group suffice. If fewer than k of all patients have another value,
    then k or more of these first ones have the most common value of all. `sizes` (G,) are the patients of each group.
    """
    usual = np.full((len(sizes), features.n_functions), np.nan)
    missing: Counts = np.minimum(sizes, 2 * enough - 1)
    first: list[tuple[NDArray[np.intp], Array]] = []
    for chunk in step.chunks(rows_in_cache(features.n_functions), following=False):
        members = groups[chunk.actions]
        chosen = np.concatenate([np.flatnonzero(members == group)[:count] for group, count in enumerate(missing)])
        missing -= np.bincount(members[chosen], minlength=len(missing))
        first.append((members[chosen], features.psi(np.take(chunk.states, chosen, axis=1))))
        if not missing.any():
            break
    if first:
        members, psi = np.concatenate([part[0] for part in first]), np.concatenate([part[1] for part in first], axis=1)
        for group, block in by_group(psi, members, len(sizes)):
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


def by_group(rows: Array, members: NDArray[np.intp], n_groups: int) -> list[tuple[int, Array]]:
    """The columns of `rows` (k, n) of each group that occurs, in their order; `members` (n,) are the groups."""
    order = np.argsort(members.astype(np.min_scalar_type(n_groups)), kind="stable")
    return cut(np.take(rows, order, axis=1), np.bincount(members, minlength=n_groups))


def cut(rows: Array, sizes: Counts) -> list[tuple[int, Array]]:
    """Consecutive columns of `rows` (k, n), `sizes` (G,) of them to a part; without the empty parts."""
    ends = np.cumsum(sizes)
    starts = [0, *ends[:-1]]
    return [(g, rows[:, start:end]) for g, (start, end) in enumerate(zip(starts, ends, strict=True)) if end > start]


def reference_counts(parts: Parts, blocks: Sequence[Block], n_groups: int) -> Counts:
    """Patients at the reference level of each of some covariates, by group, (B, G)."""
    counts = np.zeros((len(blocks), n_groups), np.int64)
    for group, psi in parts:
        for b, block in enumerate(blocks):
            counts[b, group] = np.count_nonzero(~psi[block.rows].any(axis=0))
    return counts


def references_of(blocks: Sequence[Block], counts: Counts) -> References:
    """`reference_counts`, by group and the covariate's rows of ψ."""
    return {
        (group, functions_of(block)): int(count)
        for block, of_groups in zip(blocks, counts, strict=True)
        for group, count in enumerate(of_groups)
    }


def functions_of(block: Block) -> tuple[int, ...]:
    """The rows of ψ of a covariate."""
    return tuple(range(block.rows.start, block.rows.stop))


def reference_blocks(features: FeatureMap, columns: Sequence[int]) -> list[Block]:
    """Categorical covariates of three and more levels: of two, the column of the second level shows the first.

    `columns` are the rows of ψ to look at.
    """
    categorical = [block for block in features.blocks if isinstance(block.basis, Categorical)]
    return [block for block in categorical if block.rows.start in columns and len(functions_of(block)) > 1]


def label_of(features: FeatureMap, function: int) -> str:
    """Name of a function of ψ."""
    return [label for block in features.blocks for label in block.labels][function]


def at_action(features: FeatureMap, action: int) -> str:
    """Where an action is, in words."""
    return f"at action {features.levels[action]:g}"
