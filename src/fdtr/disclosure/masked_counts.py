"""Counts of a site's patients that are masked and added up before a secure sum.

Before sums are masked, the sites open a masked total of counts, each rounded down to fives and capped at a number that
follows from the study. For every count the total also tells the largest part of one site: a site adds a random number
at each level that it reaches, so that everybody learns whether anybody did. `common_repairs` says what follows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import ceil

import numpy as np
from numpy.typing import NDArray

from fdtr import container
from fdtr.disclosure.blocks import Design, Unit
from fdtr.disclosure.rules import Rules, largest_share, numbers_told, outcomes_for, patients_for
from fdtr.disclosure.variance_moments import MOMENTS, MOST_VARIANCE
from fdtr.errors import ProtocolViolation
from fdtr.features import FeatureMap

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Words = NDArray[np.uint64]

ROUNDED_TO = 5
_KINDS = ("patients", "cells", "references", "pairs", "outcomes")


@dataclass(frozen=True, eq=False)
class SiteCounts:
    """What one site has left after its own repairs, by step and action.

    Rows that count less than half of the least weight are not counted. `patients` (H, A); `sends` (H, A, F) says which
    shared functions its sums tell of; `cells` (H, A, F) counts patients in the rarer of two values, or apart from zero
    or the most common value; `references` (H, A, R) those at reference levels; `pairs` (H, A, P, 4) those in the cells
    of two indicators that have two values each; `outcomes` (H, A) those who stand out by their reward or by V.
    `spread` (H, A, F, 3) are moments of the variance of each function, where enough patients make it
    (`variance_moments`); where a function is told of all actions together, they stand at the first one. `variances`
    (H, A, F) are the variances, of which the site tells no more than `spread`.
    """

    patients: Counts
    sends: NDArray[np.bool_]
    cells: Counts
    references: Counts
    pairs: Counts
    outcomes: Counts
    variances: Counts
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
        return sizes["patients"] + (1 + MOMENTS) * sizes["cells"] + counts

    def patients_counted(self, counts: SiteCounts, step: int, unit: Unit) -> int:
        """A site's patients of a unit, in fives and up to the cap."""
        return int(_down(np.minimum(counts.patients[step, actions_of(unit)], self.most_patients)).sum())

    def column(self, unit: Unit) -> int:
        """Where a function stands among those that are counted."""
        return self.functions.index(unit.functions[0])

    def spread_at(self, unit: Unit) -> tuple[int, int]:
        """Where the variance of a function stands: an action and a column."""
        return actions_of(unit).start or 0, self.column(unit)

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
        spread = pieces.take((*shapes["cells"], MOMENTS)).astype(np.int64)
        wrong = [bool((array < 0).any() or (array > n_sites).any()) for array in (contribute, send)]
        wrong += [
            bool((totals[kind] < largest[kind]).any() or (totals[kind] > n_sites * largest[kind]).any())
            for kind in _KINDS
        ]
        wrong += [bool((part < 0).any() or (part > n_sites * most).any()) for part, most in self._most_spread(spread)]
        for unit in self.design.units:  # only patients who are counted tell a variance
            place, everybody = self.spread_at(unit), totals["patients"][:, actions_of(unit)].sum(axis=1)
            wrong.append(bool((spread[:, place[0], place[1], 0] > everybody).any()))
        if any(wrong):
            raise ProtocolViolation(
                f"The totals of counts are not those that {n_sites} sites can have: a message, a mask or an opening is "
                "wrong. Nothing was masked. Start a new round."
            )
        return TotalCounts(contribute, send, totals, largest, present, spread)

    def _most_spread(self, spread: Counts) -> list[tuple[Counts, int]]:
        """Each moment, and the most that one site can tell of it."""
        patients = self.most_patients * self.features.n_actions
        return [(spread[..., k], patients * MOST_VARIANCE**k) for k in range(MOMENTS)]


def actions_of(unit: Unit) -> slice:
    """The actions of a unit: one, or all."""
    return slice(None) if unit.action is None else slice(unit.action, unit.action + 1)


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


def in_fives(count: int) -> int:
    """A count rounded down to a multiple of five.

    >>> in_fives(14)
    10
    """
    return count // ROUNDED_TO * ROUNDED_TO


def _half(needed: int) -> int:
    """What each of two sites needs so that they have `needed` patients together, in fives."""
    return at_least(-(-needed // 2))
