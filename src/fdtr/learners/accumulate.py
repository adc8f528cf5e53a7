"""Accumulate the sums of one step in one pass over its patients: chunks in, sums out."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.namespaces import Runs, count_groups, empty, namespace_of, sum_groups
from fdtr.algebra.normal_equations import assemble_gram, assemble_moment, grams_by_action
from fdtr.algebra.threads import for_chunks, rows_in_cache
from fdtr.features import FeatureMap
from fdtr.learners.finished_steps import once
from fdtr.trajectories import Chunk, Step

Array = NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class StepStatistics:
    """The sums of one step that every learner uses: Λ and ΦᵀY of the paper's (7), and what else derives from the rows.

    `gram` (d, d) is ΦᵀΦ; `reward_moment` (d,) is Φᵀr and `value_moment` (d,) is ΦᵀV_{h+1}; `reward_square`,
    `value_square` and `target_square` are rᵀr, VᵀV and YᵀY; `target_sum` is the sum of Y; `action_counts` (A,) counts
    patients by action. There is no repr because it would print these sums.
    """

    gram: Array
    reward_moment: Array
    value_moment: Array
    reward_square: float
    value_square: float
    target_square: float
    target_sum: float
    action_counts: NDArray[np.int64]

    @property
    def n(self) -> int:
        """Patients present at this step."""
        return int(self.action_counts.sum())

    @property
    def target_variance(self) -> float:
        """Variance of Y about its mean; 0 for fewer than two patients."""
        if self.n < 2:
            return 0.0
        return max(self.target_square - self.target_sum**2 / self.n, 0.0) / (self.n - 1)

    def residual_square(self, theta: Array) -> float:
        """‖Y − Φθ‖² = YᵀY − 2θᵀb + θᵀΛθ."""
        return max(float(self.target_square - 2 * theta @ self.moment + theta @ self.gram @ theta), 0.0)

    @property
    def moment(self) -> Array:
        """ΦᵀY with Y = r + V_{h+1}."""
        return self.reward_moment + self.value_moment


class NextValue(Protocol):
    """V_{h+1} as a function of the state basis."""

    def values(self, psi: Array, out: Array | None = None) -> Array:
        """V(x), (n,), of the columns of `psi` (m, n), written into `out` if present."""
        ...


class _Products(NamedTuple):
    """Products of ψ, r and each V by action, (A, m + 1 + k, …); sums of r and each V, (1 + k,); patients by action."""

    grams: Array
    outcomes: Array
    counts: NDArray[np.int64]


def accumulate(step: Step, features: FeatureMap, next_value: NextValue | None) -> StepStatistics:
    """All sums of a step, in one pass. `next_value` gives V_{h+1}; None at the last step, where V is 0."""
    return accumulate_each(step, features, [next_value])[0]


def accumulate_each(step: Step, features: FeatureMap, next_values: Sequence[NextValue | None]) -> list[StepStatistics]:
    """The sums of a step for each of several V_{h+1}, in one pass. Only the sums with V differ between them."""
    (products,) = _sum_products(step, features, next_values)
    return _statistics(features, products)


def accumulate_folds(
    step: Step, features: FeatureMap, next_values: Sequence[NextValue | None], folds: NDArray[np.intp]
) -> list[list[StepStatistics]]:
    """`accumulate_each` of every fold by itself, still in one pass; `folds` (n,) of all patients, the step's first."""
    return [_statistics(features, products) for products in _sum_products(step, features, next_values, folds)]


def _statistics(features: FeatureMap, products: _Products) -> list[StepStatistics]:
    m, (grams, outcomes, counts) = features.n_functions, products
    squares = grams[:, m:, m:].sum(axis=0)
    gram = assemble_gram(features.embeddings, grams[:, :m, :m])
    reward_moment = assemble_moment(features.embeddings, grams[:, :m, m])
    return [
        StepStatistics(
            gram=gram,
            reward_moment=reward_moment,
            value_moment=assemble_moment(features.embeddings, grams[:, :m, m + v]),
            reward_square=float(squares[0, 0]),
            value_square=float(squares[v, v]),
            target_square=float(squares[0, 0] + squares[0, v] + squares[v, 0] + squares[v, v]),
            target_sum=float(outcomes[0] + outcomes[v]),
            action_counts=counts,
        )
        for v in range(1, len(outcomes))
    ]


@dataclass(frozen=True, eq=False, repr=False)
class WeightedProducts:
    """Sums of products of weighted rows, by action: of ψ, the reward and V_{h+1}, (A, m + 2, m + 2)."""

    features: FeatureMap
    by_action: Array

    def assembled(self, actions: Sequence[int]) -> tuple[Array, Array, Array, float]:
        """ΦᵀΦ, ΦᵀY, Φᵀr and rᵀr over the rows with these `actions`."""
        m, chosen = self.features.n_functions, np.zeros(len(self.by_action))
        chosen[list(actions)] = 1.0
        grams, embeddings = self.by_action * chosen[:, None, None], self.features.embeddings
        reward_moment = assemble_moment(embeddings, grams[:, :m, m])
        value_moment = assemble_moment(embeddings, grams[:, :m, m + 1])
        gram = assemble_gram(embeddings, grams[:, :m, :m])
        return gram, reward_moment + value_moment, reward_moment, float(grams[:, m, m].sum())


class WeightedPart(NamedTuple):
    """A chunk of a step, its rows' places `here` in the step, their `weights` (c,), and V (c,) where it is known."""

    chunk: Chunk
    here: slice
    weights: Array
    values: Array | None = None


def weighted_chunk_rows(features: FeatureMap) -> int:
    """Rows of a chunk whose ψ and two outcomes are weighted together."""
    return rows_in_cache(features.n_functions + 2)


def weighted_parts(
    step: Step, features: FeatureMap, weights: Callable[[slice], Array], *, following: bool = True
) -> Iterator[WeightedPart]:
    """The chunks of a step with the weights of their rows, asked for one after another."""
    start = 0
    for chunk in step.chunks(weighted_chunk_rows(features), following=following):
        here = slice(start, start + len(chunk.actions))
        start = here.stop
        yield WeightedPart(chunk, here, weights(here))


def accumulate_weighted(
    parts: Iterable[WeightedPart], features: FeatureMap, outcomes: Callable[[WeightedPart], Array]
) -> WeightedProducts:
    """Sums of a step in which each row counts with its weight; `outcomes` (2, c) of a part are the rewards and V."""
    m, width = features.n_functions, features.n_functions + 2

    def sums(part: WeightedPart) -> Array:
        chunk, rows = part.chunk, np.empty((width, len(part.weights)))
        features.psi(chunk.states, out=rows[:m])
        rows[m:] = outcomes(part)
        rows *= np.sqrt(part.weights)
        return grams_by_action(rows, chunk.actions, np.bincount(chunk.actions, minlength=features.n_actions))

    by_action = np.zeros((features.n_actions, width, width))

    def add(part: Array) -> None:
        np.add(by_action, part, out=by_action)

    for_chunks(sums, add, parts)
    return WeightedProducts(features, by_action)


def _sum_products(
    step: Step,
    features: FeatureMap,
    next_values: Sequence[NextValue | None],
    folds: NDArray[np.intp] | None = None,
) -> list[_Products]:
    """The products of each fold; of all rows together without folds."""
    n_folds = 1 if folds is None else int(folds.max(initial=0)) + 1
    work = _ProductsOfChunk(features, tuple(next_values), n_folds)
    size = rows_in_cache(work.width)
    grams, outcomes, counts = once(step, features, next_values, folds, lambda: step.sums(work, size, folds))
    by_fold = zip(np.split(grams, n_folds), outcomes, np.split(counts, n_folds), strict=True)
    return [_Products(*products) for products in by_fold]


@dataclass(frozen=True, eq=False, repr=False)
class _ProductsOfChunk:
    """The products of one chunk, those of the first fold and action first, as arrays of the chunk's library."""

    features: FeatureMap
    next_values: tuple[NextValue | None, ...]
    n_folds: int

    @property
    def width(self) -> int:
        """m + 1 + k: ψ, the reward, and each V."""
        return self.features.n_functions + 1 + len(self.next_values)

    def zeros(self) -> _Products:
        """Of no rows."""
        n_groups = self.n_folds * self.features.n_actions
        return _Products(
            np.zeros((n_groups, self.width, self.width)),
            np.zeros((self.n_folds, 1 + len(self.next_values))),
            np.zeros(n_groups, dtype=np.int64),
        )

    def __call__(self, chunk: Chunk, folds: NDArray[np.integer[Any]] | None) -> _Products:
        """`folds` (c,) of the chunk's rows; None where all rows are one fold."""
        m, n_actions = self.features.n_functions, self.features.n_actions
        xp, n = namespace_of(chunk.states), chunk.states.shape[1]
        rows = empty((self.width, n), chunk.states)
        self.features.psi(chunk.states, out=rows[:m, :])
        rows[m, :] = chunk.rewards
        future_values(chunk, self.features, self.next_values, out=rows[m + 1 :, :])
        groups: Any = chunk.actions
        if folds is None:
            outcomes = xp.sum(rows[None, m:, :], axis=2, dtype=xp.float64)
        else:
            folds = xp.astype(folds, xp.int64, copy=False)
            groups = folds * n_actions + (groups.values if isinstance(groups, Runs) else groups)
            outcomes = sum_groups(rows[m:, :], folds, self.n_folds)
        counts = count_groups(groups, self.n_folds * n_actions)
        return _Products(grams_by_action(rows, groups, counts), outcomes, counts)


def future_values(chunk: Chunk, features: FeatureMap, next_values: Sequence[NextValue | None], out: Array) -> Array:
    """Write one row of `out` for each V: V_{h+1}(x') of patients with a next step, else the worth of their end."""
    n_next = chunk.next_states.shape[1]
    out[:, n_next:] = chunk.ended_value
    out[:, :n_next] = 0.0
    if n_next and any(next_value is not None for next_value in next_values):
        psi = features.psi(chunk.next_states)
        for v, next_value in enumerate(next_values):
            if next_value is not None:
                next_value.values(psi, out=out[v, :n_next])
    return out
