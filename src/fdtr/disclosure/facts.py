"""Measure what the disclosure rules judge of exact sums and Grams, in a few passes over each step's patients."""

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.pessimism import LowerBound
from fdtr.algebra.schur import eliminate, leverage_map, project, whiten
from fdtr.algebra.threads import for_chunks, one_blas_thread, rows_in_cache
from fdtr.disclosure.cells import at_action, count_cells, label_of
from fdtr.disclosure.pairs import count_pairs
from fdtr.disclosure.rules import Bounds, Rules, Smallest, StepFacts
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


def _measure_step(rows: Trajectories, features: FeatureMap, fit: Fit, h: int, rules: Rules) -> StepFacts:
    sums, step = fit.statistics[h], rows.step(h)
    n_shared = features.n_shared if rules.payload == "schur" else features.n_features
    # ‖L B_a ψ‖² is the leverage; the triangular factor of L B_a has no more rows than ψ.
    roots = np.asarray(np.linalg.qr(leverage_map(sums.gram, n_shared) @ features.embeddings, mode="r"))
    following = fit.bounds[h + 1] if h + 1 < rows.horizon else None
    bounds, leverage = _measure_rows(step, features, following, roots)
    by_action = np.arange(features.n_actions)
    cells = count_cells(step, features, by_action, rules.min_cell)
    pairs = count_pairs(step, features, by_action, cells) if rules.payload == "gram" else []
    return StepFacts(
        n=sums.n,
        rank=whiten(sums.gram).rank,
        action_counts=sums.action_counts,
        n_functions=features.n_functions,
        bounds=bounds,
        leverage=leverage,
        cell=_smallest(cells.rarer, features),
        nonzero=_smallest(cells.apart, features),
        pair=min(pairs, key=lambda pair: pair.count).named(features) if pairs else None,
        absorbed=why_absorbed(sums.gram, features),
    )


def _measure_rows(step: Step, features: FeatureMap, following: LowerBound | None, roots: Array) -> tuple[Bounds, float]:
    """The bounds of a step, and the largest leverage ‖R_a ψ‖²; `following` gives V, `roots` (A, r, m) stacks R_a."""

    def of_chunk(chunk: Chunk) -> tuple[Bounds, float]:
        psi = features.psi(chunk.states)
        norms, outcomes = features.squared_norms(psi, chunk.actions), outcomes_of(chunk, features, following)
        leverage = squared_images(psi, chunk.actions, roots)
        return Bounds.of(norms, outcomes.sum(axis=0)), float(leverage.max(initial=0.0))

    parts: list[tuple[Bounds, float]] = []
    for_chunks(of_chunk, parts.append, step.chunks(rows_in_cache(features.n_functions)))
    return Bounds.widest([bounds for bounds, _ in parts]), max((leverage for _, leverage in parts), default=0.0)


def outcomes_of(chunk: Chunk, features: FeatureMap, following: LowerBound | None) -> Array:
    """The rewards, and V of the next step or the worth of an end, (2, c); `following` gives V."""
    outcomes = np.empty((2, len(chunk.rewards)))
    outcomes[0] = chunk.rewards
    future_values(chunk, features, [following], out=outcomes[1:])
    return outcomes


def measure_leverage(step: Step, features: FeatureMap, roots: Array) -> Array:
    """‖R_a ψ‖² of every row of a step, (n,); `roots` (A, r, m) stacks R_a."""
    parts: list[Array] = [np.zeros(0)]
    for_chunks(
        lambda chunk: squared_images(features.psi(chunk.states), chunk.actions, roots),
        parts.append,
        step.chunks(rows_in_cache(features.n_functions), following=False),
    )
    return np.concatenate(parts)


def squared_images(psi: Array, actions: NDArray[np.intp], roots: Array) -> Array:
    """‖R_a ψ‖² of every column of `psi` (m, n) and its action (n,); `roots` (A, r, m) stacks R_a."""
    squares = np.empty(len(actions))
    for action in np.flatnonzero(np.bincount(actions)):
        there = np.flatnonzero(actions == action)
        image = np.dot(roots[action], np.take(psi, there, axis=1))
        squares[there] = np.einsum("rn,rn->n", image, image)
    return squares


def _smallest(counts: Counts, features: FeatureMap) -> Smallest | None:
    """The smallest count above 0 of (A, m), with the column and the action it belongs to."""
    if not counts.any():
        return None
    action, column = np.unravel_index(np.where(counts > 0, counts, np.iinfo(np.int64).max).argmin(), counts.shape)
    return Smallest(
        int(counts[action, column]), f'column "{label_of(features, int(column))}" {at_action(features, int(action))}'
    )


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
