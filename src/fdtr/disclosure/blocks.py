"""What a message of sums tells apart: its blocks, and the directions of the shared features that can be taken out.

With p(a) ⊗ ψ(x) and as many action terms as actions in use, S of a step is one S_a for each action: everybody can
compute S_a from it. A *block* is then one action of a step, and otherwise the whole step. With fewer action terms the
Gram Σ_a p(a)p(a)ᵀ ⊗ G_a may still give every G_a away: if the matrices p(a)p(a)ᵀ are independent, the step is
`separable`, and small groups are looked for within each action although nothing can be taken out of one action alone.

A `Unit` is one function of the shared covariates in one block, or the reference level of a categorical covariate;
taking it out of S treats its effect as the site's own.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.schur import RANK_TOLERANCE, column_scale, present, whiten
from fdtr.features import FeatureMap
from fdtr.features.bases import Categorical
from fdtr.sums import Removed, Sums

Array = NDArray[np.float64]

_TOLERANCE = 1e-9
_ALONE = 1e-6
"""Sites tell a direction alone if all others hold no more than this share of its information."""
_MOST_DIRECTIONS = 1000


@dataclass(frozen=True, eq=False)
class Unit:
    """One shared function of ψ, by its row in `functions`, at the position `action` of the actions; None: at all.

    With several `functions` it is the reference level of their covariate. `directions` (d0, k) is V with
    Vᵀφ0 = 1{A = a} ψ_j, or, at all actions, the features of the function.
    """

    action: int | None
    functions: tuple[int, ...]
    directions: Array


@dataclass(frozen=True, eq=False)
class Design:
    """How the sums of one step fall into blocks, where the actions `used` (positions) occur."""

    features: FeatureMap
    used: tuple[int, ...]

    @cached_property
    def functions(self) -> tuple[int, ...]:
        """Rows of ψ that are shared, in the order of the study."""
        blocks = [block for block in self.features.blocks if block.shared]
        return tuple(row for block in blocks for row in range(block.rows.start, block.rows.stop))

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """All that can be taken out of S, function by function."""
        return tuple(unit for function in self.functions for unit in self._units(function))

    @cached_property
    def references(self) -> tuple[Unit, ...]:
        """The reference levels of shared categorical covariates: 1 less the indicators of all other levels."""
        shared = [block for block in self.features.blocks if block.shared]
        intercepts = [block.rows.start for block in shared if block.basis is None]
        references = []
        for block in shared:
            functions = tuple(range(block.rows.start, block.rows.stop))
            for action in sorted({unit.action for unit in self.units if unit.functions[0] in functions}, key=str):
                if isinstance(block.basis, Categorical) and len(functions) > 1:  # of two levels a column shows both
                    others = sum(self._direction(action, j) for j in functions)
                    constant = sum((self._direction(action, j) for j in intercepts), np.zeros_like(others))
                    references.append(Unit(action, functions, constant - others))
        return tuple(references)

    def _direction(self, action: int | None, function: int) -> Array:
        """V of a function at an action; at all actions where it, or the other function, cannot be told by action."""
        same = [unit for unit in self.units if unit.functions == (function,)]
        return next((unit.directions for unit in same if unit.action == action), same[0].directions)

    @cached_property
    def by_action(self) -> bool:
        """Whether the sums of a step can be told apart by action."""
        return any(unit.action is not None for unit in self.units)

    @cached_property
    def separable(self) -> bool:
        """Whether Grams of single actions follow from a step's Gram, although it is one block."""
        if self.by_action or not self.functions or not self.used:
            return False
        terms = self.features.embeddings[list(self.used), : self.features.n_shared, self.functions[0]]
        squares = np.stack([np.outer(p, p).ravel() for p in terms])
        return bool(np.linalg.matrix_rank(squares, tol=_TOLERANCE) == len(self.used))

    @cached_property
    def partly(self) -> bool:
        """Whether some sums are those of one action and others of all: an effect is the same at every action."""
        own_main = any(not block.shared and not block.interacts for block in self.features.blocks)
        return self.by_action and (own_main or any(unit.action is None for unit in self.units))

    def within(self, action: int | None) -> tuple[Unit, ...]:
        """The units of one block; with None those of the whole step."""
        return self.units if action is None else tuple(unit for unit in self.units if unit.action == action)

    def _units(self, function: int) -> list[Unit]:
        shared = self.features.embeddings[:, : self.features.n_shared, function]  # (A, d0): p(a) at its features
        positions = np.flatnonzero(shared.any(axis=0))
        terms = shared[list(self.used)][:, positions]
        n_shared = self.features.n_shared
        if self.used and np.linalg.matrix_rank(terms, tol=_TOLERANCE) == len(self.used):
            # (terms, used): each column is 1 at one action and 0 at the others.
            solved: Array = np.linalg.pinv(terms).astype(np.float64)
            solved[np.abs(solved) < _TOLERANCE * np.abs(solved).max()] = 0.0
            return [
                Unit(action, (function,), _placed(solved[:, i : i + 1], positions, n_shared))
                for i, action in enumerate(self.used)
            ]
        return [Unit(None, (function,), _placed(np.eye(len(positions)), positions, n_shared))]


def _placed(values: Array, positions: NDArray[np.intp], n_shared: int) -> Array:
    """`values` (t, k) in the rows `positions` of a matrix (d0, k) of zeros."""
    directions = np.zeros((n_shared, values.shape[1]))
    directions[positions] = values
    return directions


def directions_of(units: Sequence[Unit], n_shared: int) -> Array:
    """The directions of several units side by side, (d0, k)."""
    return np.hstack([np.zeros((n_shared, 0)), *(unit.directions for unit in units)])


def in_most(pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> tuple[int, ...]:
    """The column that is in most of the `pairs`; of two that are in as many, the later one of the study.

    Taken out again and again, it leaves no pair, and few columns go.

    >>> in_most([((0,), (1,)), ((0,), (2,)), ((3,), (4,))])
    (0,)
    """
    times = Counter(column for pair in pairs for column in pair)
    return max(times, key=lambda column: (times[column], column))


def all_units(features: FeatureMap) -> tuple[Unit, ...]:
    """What the hub can tell apart: units where every action is in use, and the reference levels."""
    design = Design(features, tuple(range(features.n_actions)))
    return (*design.units, *design.references)


class SenderGroups:
    """Whether a shared column might be told by fewer than `needed` sites, from one pass over their messages.

    The sites are dealt out to `needed` groups, and S is added up by group. Fewer sites than that miss a group. If every
    group alone knows of every direction, no such few sites tell one alone, and `too_few_senders` finds nothing.
    """

    def __init__(self, needed: int) -> None:
        self._needed = needed
        self._groups: list[Array] = []
        self._count = 0

    def add(self, sums: Sums) -> None:
        """Add the S of another site to its group."""
        if self._count < self._needed:
            self._groups.append(sums.schur.copy())
        else:
            self._groups[self._count % self._needed] += sums.schur
        self._count += 1

    def all_know(self) -> bool:
        """Whether every group knows of every direction."""
        for group_schurs in zip(*self._groups, strict=True):
            whitener = whiten(np.sum(group_schurs, axis=0)).matrix
            parts = [whitener.T @ schur @ whitener for schur in group_schurs]
            if any(len(part) and np.linalg.eigvalsh(part)[0] <= 2 * _ALONE for part in parts):
                return False
        return len(self._groups) == self._needed


def too_few_senders(features: FeatureMap, messages: Sequence[Sums], needed: int) -> tuple[Removed, ...]:
    """Directions that fewer than `needed` sites sent at a step: a total would show those few by themselves.

    These are directions of single columns, and of combinations: where two columns are equal at all sites but one, the
    difference is that site's alone. Eliminating one may leave nothing of another at a site, so that all are looked at
    again. `messages` are gone through several times, and none is kept.
    """
    out = {step: np.zeros((features.n_shared, 0)) for step in range(messages[0].horizon)}
    steps = list(out)
    while steps:
        found = _told_by_few(messages, {step: out[step] for step in steps}, needed)
        steps = [step for step, few in found.items() if few.shape[1]]
        for step in steps:
            few = _spanned(np.hstack([out[step], found[step]]))
            out[step] = few if out[step].shape[1] < features.n_shared else np.eye(features.n_shared)
    return tuple(_gone(step, directions) for step, directions in out.items() if directions.shape[1])


def _gone(step: int, directions: Array) -> Removed:
    return Removed(step, (), tuple(map(tuple, directions.tolist())))


def _spanned(directions: Array) -> Array:
    """Directions (d0, k), or fewer that span the same where there are very many."""
    if directions.shape[1] <= _MOST_DIRECTIONS:
        return directions
    lengths = np.linalg.norm(directions, axis=0)
    basis, spread, _ = np.linalg.svd(directions / lengths, full_matrices=False)
    return np.asarray(basis[:, spread > _ALONE * spread[0]])


def _told_by_few(messages: Sequence[Sums], out: dict[int, Array], needed: int) -> dict[int, Array]:
    """Directions V (d0, k) in which fewer than `needed` of the S_j, and at least one, are not zero, for each step.

    `out` are those that every message is without, by step. With W such that Wᵀ(Σ_j S_j)W = I and B_j = WᵀS_jW, a set F
    of sites tells a direction alone where Σ_{j∈F} B_j has the eigenvalue 1. The largest eigenvalues of the B_j say
    which sets need to be looked at.
    """

    def schur(message: Sums, step: int) -> Array:
        if not out[step].shape[1]:
            return np.asarray(message.schur[step])
        return np.asarray(message.at(step).without_directions([_gone(0, out[step])]).schur[0])

    sums = {step: np.zeros_like(messages[0].schur[step]) for step in out}
    for message in messages:
        for step, total in sums.items():
            total += schur(message, step)
    whiteners = {step: whiten(total).matrix for step, total in sums.items()}
    largest = {step: np.zeros(len(messages)) for step in out}
    for j, message in enumerate(messages):
        for step, whitener in whiteners.items():
            if whitener.shape[1]:
                largest[step][j] = np.linalg.eigvalsh(whitener.T @ schur(message, step) @ whitener)[-1]

    @lru_cache(maxsize=256)
    def part(step: int, j: int) -> Array:
        return np.asarray(whiteners[step].T @ schur(messages[j], step) @ whiteners[step])

    return {step: _directions(largest[step], whiteners[step], partial(part, step), needed) for step in out}


def _directions(largest: Array, whitener: Array, part: Callable[[int], Array], needed: int) -> Array:
    """The directions of one step that a set of fewer than `needed` sites tells alone; `part` gives B_j of a site."""
    alone = 1.0 - _ALONE
    directions = [np.zeros((len(whitener), 0))]
    candidates = np.flatnonzero(largest >= alone - np.sort(largest)[::-1][: needed - 2].sum())
    heaviest_first = candidates[np.argsort(-largest[candidates])].tolist()
    for few in sorted(_sets_of(heaviest_first, largest, min(needed - 1, len(candidates)), alone - _ALONE)):
        if largest[list(few)].sum() >= alone:
            values, vectors = np.linalg.eigh(np.sum([part(j) for j in few], axis=0))
            directions.append(whitener @ vectors[:, values >= alone])
    return np.hstack(directions)


def _sets_of(order: Sequence[int], weights: Array, size: int, least: float) -> Iterator[tuple[int, ...]]:
    """Every set of `size` of the members `order`, heaviest first, whose weights add up to at least `least`."""
    if size < 1:
        return
    for place, member in enumerate(order):
        if size * weights[member] < least or len(order) - place < size:  # those that follow are not heavier
            return
        if size == 1:
            yield (member,)
            continue
        for rest in _sets_of(order[place + 1 :], weights, size - 1, least - weights[member]):
            yield tuple(sorted((member, *rest)))


def absent(features: FeatureMap, total: Sums) -> tuple[Removed, ...]:
    """Directions of which a total tells nothing at a step: nobody sent them, or too few did, and they were eliminated.

    Eliminating these from a message that is in the total leaves its part of it.
    """
    units, removed = all_units(features), []
    for step, schur in enumerate(total.schur):
        scale = column_scale(schur)
        values, vectors = np.linalg.eigh(schur * np.outer(scale, scale))
        nothing = scale[:, None] * vectors[:, values < RANK_TOLERANCE]
        if nothing.shape[1]:
            names = [describe(features, unit) for unit in units if not _is_in(schur, unit)]
            out = directions_of([unit for unit in units if not _is_in(schur, unit)], features.n_shared)
            if np.linalg.matrix_rank(out) < nothing.shape[1]:
                names.append("combinations of columns")
            removed.append(Removed(step, tuple(names), tuple(map(tuple, nothing.tolist()))))
    return tuple(removed)


def is_uneven(features: FeatureMap, schur: Array, used: Sequence[Collection[int]] | None = None) -> bool:
    """Whether S (H, d0, d0) tells of a function at some actions of a step, and at others not.

    `used` are the actions that count at each step, (H,); all by default.
    """
    by_function: dict[tuple[int, ...], list[Unit]] = {}
    for unit in all_units(features):
        by_function.setdefault(unit.functions, []).append(unit)
    for h, step in enumerate(schur):
        for units in by_function.values():
            counting = [unit for unit in units if used is None or unit.action is None or unit.action in used[h]]
            if len({_is_in(step, unit) for unit in counting}) > 1:
                return True
    return False


def _is_in(schur: Array, unit: Unit) -> bool:
    """Whether S (d0, d0) tells something of a unit."""
    return bool(present(unit.directions, schur).shape[1])


def describe(features: FeatureMap, unit: Unit) -> str:
    """A unit in words: the column, and the action where it is one action's.

    >>> from fdtr.features.mapping import build_features
    >>> linear = {"range": (0, 1), "effect": "shared", "interacts": True, "basis": {"kind": "linear"}}
    >>> actions = {"levels": [0, 1], "basis": "categorical", "scale": "unit", "degree": 1}
    >>> features = build_features(actions, [{"name": "age", **linear}], {"intercept": "specific", "scale": "unit"})
    >>> [describe(features, unit) for unit in Design(features, (0, 1)).units]
    ['age at action 0', 'age at action 1']
    """
    label = [name for block in features.blocks for name in block.labels][unit.functions[0]]
    label = f"the reference level beside {label}" if len(unit.functions) > 1 else label
    return label if unit.action is None else f"{label} at action {features.levels[unit.action]:g}"
