"""Measure what the disclosure rules judge: one pass over each step's patients, and a second for pairs of columns."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.pessimism import LowerBound
from fdtr.algebra.schur import eliminate, leverage_map, project, whiten
from fdtr.algebra.threads import for_chunks, one_blas_thread, rows_in_cache
from fdtr.disclosure.rules import Rules, Smallest, StepFacts
from fdtr.features import FeatureMap
from fdtr.learners.accumulate import future_values
from fdtr.learners.backward import Fit
from fdtr.trajectories import Chunk, Step, Trajectories

Array = NDArray[np.float64]
Counts = NDArray[np.int64]


def measure(rows: Trajectories, features: FeatureMap, fit: Fit, rules: Rules) -> list[StepFacts]:
    """The facts of every step that `rules` will judge; `fit` is the local fit of these `rows` behind the sums."""
    with one_blas_thread():
        return [_measure_step(rows, features, fit, h, rules) for h in range(rows.horizon)]


@dataclass(frozen=True, eq=False, repr=False)
class _ChunkFacts:
    """Facts of some rows: extremes, and for each action and column of ψ, (A, m), its ends and counts.

    `at_low` and `at_high` count patients at the ends, `nonzero` those not at zero, `unusual` those not at the most
    common value.
    """

    norm: float
    target_low: float
    target_high: float
    leverage: float
    low: Array
    high: Array
    at_low: Counts
    at_high: Counts
    nonzero: Counts
    unusual: Counts


def _measure_step(rows: Trajectories, features: FeatureMap, fit: Fit, h: int, rules: Rules) -> StepFacts:
    sums, step, m = fit.statistics[h], rows.step(h), features.n_functions
    n_shared = features.n_shared if rules.payload == "schur" else features.n_features
    # ‖L B_a ψ‖² is the leverage; the triangular factor of L B_a has no more rows than ψ.
    roots = np.asarray(np.linalg.qr(leverage_map(sums.gram, n_shared) @ features.embeddings, mode="r"))
    following = fit.bounds[h + 1] if h + 1 < rows.horizon else None
    usual = _usual(step, features, rules.min_cell)
    parts: list[_ChunkFacts] = []
    for_chunks(
        lambda chunk: _measure_chunk(chunk, features, following, roots, usual),
        parts.append,
        step.chunks(rows_in_cache(m)),
    )
    cells = _Cells.of(parts, sums.action_counts, m)
    return StepFacts(
        n=sums.n,
        rank=whiten(sums.gram).rank,
        action_counts=sums.action_counts,
        n_functions=m,
        largest_norm=float(np.sqrt(max((part.norm for part in parts), default=0.0))),
        target_low=min((part.target_low for part in parts), default=0.0),
        target_high=max((part.target_high for part in parts), default=0.0),
        leverage=max((part.leverage for part in parts), default=0.0),
        cell=_smallest(cells.rarer, features),
        nonzero=_smallest(cells.apart, features),
        pair=_smallest_pair(step, features, cells, sums.action_counts) if rules.payload == "gram" else None,
        absorbed=_absorbed(sums.gram, features),
    )


def _measure_chunk(
    chunk: Chunk, features: FeatureMap, following: LowerBound | None, roots: Array, usual: Array
) -> _ChunkFacts:
    """`roots` (A, m, m) give the leverage; `usual` (A, m) holds the most common values (`_usual`)."""
    target = chunk.rewards + future_values(chunk, features, [following], out=np.empty((1, len(chunk.rewards))))[0]
    psi, leverage, shape = features.psi(chunk.states), 0.0, (features.n_actions, features.n_functions)
    low, high = np.full(shape, np.inf), np.full(shape, -np.inf)
    at_low, at_high, nonzero, unusual = np.zeros((4, *shape), np.int64)
    for action, block in _by_action(psi, chunk.actions, features.n_actions):
        low[action], high[action] = block.min(axis=1), block.max(axis=1)
        at_low[action] = np.count_nonzero(block == low[action][:, None], axis=1)
        at_high[action] = np.count_nonzero(block == high[action][:, None], axis=1)
        nonzero[action] = np.count_nonzero(block, axis=1)
        known = np.flatnonzero(~np.isnan(usual[action]))  # few columns, and none of continuous values
        unusual[action] = block.shape[1]
        unusual[action, known] = np.count_nonzero(block[known] != usual[action, known, None], axis=1)
        image = np.dot(roots[action], block)
        leverage = max(leverage, float(np.einsum("rn,rn->n", image, image).max()))
    norm = float(features.squared_norms(psi, chunk.actions).max())
    extremes = (norm, float(target.min()), float(target.max()), leverage)
    return _ChunkFacts(*extremes, low, high, at_low, at_high, nonzero, unusual)


def _usual(step: Step, features: FeatureMap, enough: int) -> Array:
    """The most common value of each column of ψ within an action, (A, m); NaN if `enough` patients have another.

    With k = `enough`, the first 2k−1 patients of an action suffice. If fewer than k of all patients have another value,
    then k or more of these first ones have the most common value of all.
    """
    usual = np.full((features.n_actions, features.n_functions), np.nan)
    for whole in step.chunks(max(step.n, 1)):
        by_action = [np.flatnonzero(whole.actions == action) for action in range(features.n_actions)]
        first = np.concatenate([positions[: 2 * enough - 1] for positions in by_action])
        psi = features.psi(np.take(whole.states, first, axis=1))
        for action, block in _by_action(psi, whole.actions[first], features.n_actions):
            value, times = _most_common(block)
            usual[action] = np.where(block.shape[1] - times < enough, value, np.nan)
    return usual


def _most_common(values: Array) -> tuple[Array, Counts]:
    """The most frequent value in each row of `values` (m, n), and how often it occurs."""
    ordered, position = np.sort(values, axis=1), np.arange(values.shape[1])
    begins = np.diff(ordered, axis=1, prepend=np.nan) != 0
    times = position - np.maximum.accumulate(np.where(begins, position, 0), axis=1) + 1
    last = times.argmax(axis=1)[:, None]
    return np.take_along_axis(ordered, last, axis=1)[:, 0], np.take_along_axis(times, last, axis=1)[:, 0]


def _by_action(psi: Array, actions: NDArray[np.intp], n_actions: int) -> list[tuple[int, Array]]:
    """The columns of `psi` (m, n) of each action that occurs."""
    order = np.argsort(actions, kind="stable")
    grouped = np.take(psi, order, axis=1)
    ends = np.cumsum(np.bincount(actions, minlength=n_actions))
    starts = [0, *ends[:-1]]
    return [(a, grouped[:, start:end]) for a, (start, end) in enumerate(zip(starts, ends, strict=True)) if end > start]


@dataclass(frozen=True, eq=False, repr=False)
class _Cells:
    """Counts for each action and column of ψ, (A, m); 0 where no rule applies.

    `rarer` counts the patients at the rarer value of a column with two values. For other columns `apart` counts those
    not at zero or those not at the most common value, whichever are fewer; it is exact if a rule refuses. `binary` says
    which columns have two values within an action, `high` is the larger one, and `at_high` counts the patients at it.
    """

    rarer: Counts
    apart: Counts
    binary: NDArray[np.bool_]
    high: Array
    at_high: Counts

    @classmethod
    def of(cls, parts: list[_ChunkFacts], action_counts: Counts, m: int) -> "_Cells":
        """A column has two values if every patient is at its lowest or at its highest."""
        if not parts:
            none = np.zeros((len(action_counts), m), np.int64)
            return cls(none, none, none.astype(bool), none.astype(float), none)
        lows, highs = np.stack([part.low for part in parts]), np.stack([part.high for part in parts])
        low, high = lows.min(axis=0), highs.max(axis=0)
        at_low = np.where(lows == low, [part.at_low for part in parts], 0).sum(axis=0)
        at_high = np.where(highs == high, [part.at_high for part in parts], 0).sum(axis=0)
        varies = low < high
        binary = varies & (at_low + at_high == action_counts[:, None])
        rarer = np.where(binary, np.minimum(at_low, at_high), 0)
        nonzero, unusual = (np.sum([getattr(part, name) for part in parts], axis=0) for name in ("nonzero", "unusual"))
        apart = np.where(varies & ~binary, np.minimum(nonzero, unusual), 0)
        return cls(rarer, apart, binary, high, at_high)


def _smallest(counts: Counts, features: FeatureMap) -> Smallest | None:
    """The smallest count above 0 of (A, m), with the column and the action it belongs to."""
    if not counts.any():
        return None
    action, column = np.unravel_index(np.where(counts > 0, counts, np.iinfo(np.int64).max).argmin(), counts.shape)
    return Smallest(int(counts[action, column]), f'column "{_labels(features)[column]}" {_at(features, int(action))}')


def _smallest_pair(step: Step, features: FeatureMap, cells: _Cells, action_counts: Counts) -> Smallest | None:
    """The smallest non-empty cell of the 2×2 tables of two-valued columns, within an action; a second pass."""
    by_action = [np.flatnonzero(binary) for binary in cells.binary]
    joint = [np.zeros((len(columns), len(columns))) for columns in by_action]  # patients at both high values

    def count(chunk: Chunk) -> list[tuple[int, Array]]:
        counts = []
        for action, block in _by_action(features.psi(chunk.states), chunk.actions, features.n_actions):
            columns = by_action[action]
            high = (block[columns] == cells.high[action, columns, None]).astype(np.float64)
            counts.append((action, np.dot(high, high.T)))
        return counts

    def add(counts: list[tuple[int, Array]]) -> None:
        for action, at_high in counts:
            joint[action] += at_high

    if any(len(columns) > 1 for columns in by_action):
        for_chunks(count, add, step.chunks(rows_in_cache(features.n_functions)))
    smallest: Smallest | None = None
    for action, columns in enumerate(by_action):
        high = cells.at_high[action, columns].astype(np.float64)
        first_only = high[:, None] - joint[action]
        neither = action_counts[action] - high[:, None] - high + joint[action]
        table = np.stack([joint[action], first_only, first_only.T, neither])
        for i, j in zip(*np.triu_indices(len(columns), 1), strict=True):
            filled = table[:, i, j][table[:, i, j] > 0]
            if len(filled) and (smallest is None or filled.min() < smallest.count):
                first, second = (_labels(features)[columns[k]] for k in (i, j))
                where = f'columns "{first}" and "{second}" {_at(features, action)}'
                smallest = Smallest(int(filled.min()), where)
    return smallest


def _labels(features: FeatureMap) -> list[str]:
    """Names of the functions of ψ."""
    return [label for block in features.blocks for label in block.labels]


def _at(features: FeatureMap, action: int) -> str:
    return f"at action {features.levels[action]:g}"


def _absorbed(gram: Array, features: FeatureMap) -> str:
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
