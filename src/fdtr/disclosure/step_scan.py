"""The first pass over a step's rows: weighted sums, cells, and the outcomes that lie farthest out.

What later passes need again of every row, its weight, V of the next step and its action, is parked, so that secret
weights are drawn once and no array of all rows is needed.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.pessimism import LowerBound
from fdtr.algebra.threads import for_chunks
from fdtr.container.temporary import Column
from fdtr.disclosure.cells import (
    CellCounts,
    Cells,
    References,
    cut,
    reference_blocks,
    reference_counts,
    references_of,
    usual_values,
)
from fdtr.disclosure.rules import Bounds
from fdtr.features import FeatureMap
from fdtr.learners.accumulate import WeightedPart, WeightedProducts, future_values, weighted_parts
from fdtr.trajectories import Step

Array = NDArray[np.float64]
Counts = NDArray[np.int64]


class Largest:
    """The `count` largest of numbers that come in parts, for each of several series: `values` (k, count).

    The first of them is the smallest; places that are not filled yet hold −inf.
    """

    def __init__(self, n_series: int, count: int) -> None:
        self.values = np.full((n_series, count), -np.inf)

    def among(self, series: int, numbers: Array) -> Array:
        """Those of some numbers that may be among the largest."""
        least = self.values[series, 0]
        return numbers[numbers > least] if numbers.max(initial=-np.inf) > least else numbers[:0]

    def add(self, series: int, numbers: Array) -> None:
        """Take further numbers into account."""
        if len(numbers):
            count = self.values.shape[1]
            self.values[series] = np.partition(np.concatenate([self.values[series], numbers]), -count)[-count:]


@dataclass(frozen=True, eq=False, repr=False)
class OutcomeEnds:
    """Outcomes of the patients of each group: n (G,), and for r and V the `count` largest and smallest, (2, G, count).

    `sums` and `squares` (2, G) are Σ r and Σ r², and the same of V.
    """

    n: Counts
    largest: Array
    smallest: Array
    sums: Array
    squares: Array

    def apart(self, outcome: int, group: int) -> tuple[Array, Array]:
        """Largest and smallest values of r (0) or V (1) in a group, so few that no patient is among both."""
        few = min(self.largest.shape[2], int(self.n[group]) // 2)
        return np.sort(self.largest[outcome, group])[-few:], np.sort(self.smallest[outcome, group])[:few]


@dataclass(frozen=True, eq=False, repr=False)
class Parked:
    """Columns of all rows of a step, in order: `weights`, `values` V, and `actions`."""

    weights: Column
    values: Column
    actions: Column

    @classmethod
    def empty(cls, n_actions: int) -> "Parked":
        """Columns of no rows yet."""
        return cls(Column(np.float64), Column(np.float64), Column(np.min_scalar_type(n_actions)))

    def close(self) -> None:
        """Give memory and files back."""
        for column in (self.weights, self.values, self.actions):
            column.close()


@dataclass(frozen=True, eq=False, repr=False)
class StepScan:
    """What the first pass finds of a step: its cells, its weighted sums, `bounds`, outcomes, and what is parked."""

    cells: Cells
    references: References
    products: WeightedProducts
    bounds: Bounds
    ends: OutcomeEnds
    parked: Parked


@dataclass(frozen=True, eq=False, repr=False)
class _Part:
    """What one chunk adds; `ends` are those of r, V, −r and −V, `sums` (2, 2, G) Σ and Σ of squares by outcome."""

    cells: CellCounts
    references: Counts
    products: Array
    bounds: Bounds
    ends: list[tuple[int, Array]]
    sums: Array
    values: Array
    columns: WeightedPart


def scan_step(
    step: Step,
    features: FeatureMap,
    following: LowerBound | None,
    weights: Callable[[slice], Array],
    groups: NDArray[np.intp],
    action_counts: Counts,
    functions: tuple[int, ...],
    min_cell: int,
    farthest: int,
) -> StepScan:
    """One pass over a step; `following` gives V, and `weights` those of some rows.

    `groups` (A,), in order, are the groups of the actions, `action_counts` (A,) their patients, `functions` the shared
    rows of ψ, and `farthest` how many outcomes at each end are kept.
    """
    sizes = _by_group(action_counts, groups)
    usual = usual_values(step, features, groups, min_cell, sizes)
    scan = _Scan(features, following, groups, usual, functions, farthest)
    try:
        for_chunks(scan.look_at, scan.add, weighted_parts(step, features, weights))
    except BaseException:
        scan.parked.close()
        raise
    return scan.result(sizes)


class _Scan:
    """Totals over the chunks of one step."""

    def __init__(
        self,
        features: FeatureMap,
        following: LowerBound | None,
        groups: NDArray[np.intp],
        usual: Array,
        functions: tuple[int, ...],
        farthest: int,
    ) -> None:
        self._features, self._following, self._groups, self._usual = features, following, groups, usual
        self._n_groups, width = len(usual), features.n_functions + 2
        self._blocks = reference_blocks(features, functions)
        # The columns of B_a are orthogonal: ‖φ‖² is a sum over ψ².
        self._lengths = np.einsum("adm,adm->am", features.embeddings, features.embeddings)
        self._extremes = Largest(4 * self._n_groups, farthest)
        self._cells = CellCounts.of_nobody((self._n_groups, features.n_functions))
        self._references = np.zeros((len(self._blocks), self._n_groups), np.int64)
        self._products = np.zeros((features.n_actions, width, width))
        self._sums = np.zeros((2, 2, self._n_groups))
        self._bounds: list[Bounds] = []
        self.parked = Parked.empty(features.n_actions)

    def look_at(self, part: WeightedPart) -> _Part:
        """What one chunk adds."""
        chunk, m, n_actions = part.chunk, self._features.n_functions, self._features.n_actions
        rows, counts = np.empty((m + 2, len(chunk.actions))), np.bincount(chunk.actions, minlength=n_actions)
        self._features.psi(chunk.states, out=rows[:m])
        rows[m] = chunk.rewards
        future_values(chunk, self._features, [self._following], out=rows[m + 1 :])
        values, order = (
            rows[m + 1].copy(),
            np.argsort(chunk.actions.astype(np.min_scalar_type(n_actions)), kind="stable"),
        )
        rows = np.take(rows, order, axis=1)
        by_action, by_group = cut(rows, counts), cut(rows, _by_group(counts, self._groups))
        norms = np.concatenate([np.dot(self._lengths[action], block[:m] ** 2) for action, block in by_action])
        bounds, psi = Bounds.of(norms, rows[m] + rows[m + 1]), [(group, block[:m]) for group, block in by_group]
        cells = CellCounts.of(psi, self._usual)
        references = reference_counts(psi, self._blocks, self._n_groups)
        ends, sums = self._outcomes([(group, block[m:]) for group, block in by_group])
        rows *= np.sqrt(part.weights)[order]
        products = np.zeros_like(self._products)
        for action, block in by_action:
            np.dot(block, block.T, out=products[action])
        return _Part(cells, references, products, bounds, ends, sums, values, part)

    def _outcomes(self, by_group: list[tuple[int, Array]]) -> tuple[list[tuple[int, Array]], Array]:
        ends: list[tuple[int, Array]] = []
        sums = np.zeros_like(self._sums)
        for group, outcomes in by_group:
            sums[0, :, group], sums[1, :, group] = outcomes.sum(axis=1), np.einsum("kn,kn->k", outcomes, outcomes)
            for k, numbers in enumerate((*outcomes, *-outcomes)):
                series = k * self._n_groups + group
                ends.append((series, self._extremes.among(series, numbers)))
        return ends, sums

    def add(self, part: _Part) -> None:
        """Take what a chunk adds into account."""
        self._cells += part.cells
        self._references += part.references
        self._products += part.products
        self._sums += part.sums
        self._bounds = [Bounds.widest([*self._bounds, part.bounds])]
        for series, numbers in part.ends:
            self._extremes.add(series, numbers)
        self.parked.weights.append(part.columns.weights)
        self.parked.values.append(part.values)
        self.parked.actions.append(part.columns.chunk.actions)

    def result(self, sizes: Counts) -> StepScan:
        """What was found, in groups of these `sizes` (G,)."""
        high, low = self._extremes.values.reshape(2, 2, self._n_groups, -1)
        return StepScan(
            cells=Cells.of(self._cells, sizes),
            references=references_of(self._blocks, self._references),
            products=WeightedProducts(self._features, self._products),
            bounds=Bounds.widest(self._bounds),
            ends=OutcomeEnds(sizes, high, -low, self._sums[0], self._sums[1]),
            parked=self.parked,
        )


def _by_group(counts: Counts, groups: NDArray[np.intp]) -> Counts:
    """`counts` (A,) by group, (G,)."""
    return np.bincount(groups, weights=counts).astype(np.int64)
