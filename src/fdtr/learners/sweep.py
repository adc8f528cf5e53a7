"""One pass over a step's patients: chunks in, sums out."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.gram import assemble_gram, assemble_moment, grams_by_action
from fdtr.algebra.threads import for_chunks, rows_in_cache
from fdtr.features import FeatureMap
from fdtr.trajectories import Chunk, Step

Array = NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class StepStatistics:
    """The sums of one step that every learner works from.

    `gram` (d, d) is ΦᵀΦ; `reward_moment` (d,) is Φᵀr and `value_moment` (d,) is ΦᵀV_{h+1}; `reward_square`,
    `value_square` and `target_square` are rᵀr, VᵀV and YᵀY; `action_counts` (A,) the patients by action. No repr: it
    would print these sums.
    """

    gram: Array
    reward_moment: Array
    value_moment: Array
    reward_square: float
    value_square: float
    target_square: float
    action_counts: NDArray[np.int64]

    @property
    def n(self) -> int:
        """Patients present at this step."""
        return int(self.action_counts.sum())

    @property
    def moment(self) -> Array:
        """ΦᵀY with Y = r + V_{h+1}."""
        return self.reward_moment + self.value_moment


class NextValue(Protocol):
    """Gives V_{h+1} as a function of the state basis."""

    def values(self, psi: Array, out: Array | None = None) -> Array:
        """V(x), (n,), of the columns of `psi` (m, n), written into `out` where given."""
        ...


def sweep(step: Step, features: FeatureMap, following: NextValue | None) -> StepStatistics:
    """All sums of a step, in one pass. `following` gives V_{h+1}; None at the last step, where V is 0."""
    m, n_actions = features.n_functions, features.n_actions

    def sums(chunk: Chunk) -> tuple[Array, NDArray[np.int64]]:
        rows = np.empty((m + 2, len(chunk.rewards)))
        features.psi(chunk.states, out=rows[:m])
        rows[m] = chunk.rewards
        future_values(chunk, features, following, out=rows[m + 1])
        counts = np.bincount(chunk.actions, minlength=n_actions)
        return grams_by_action(rows, chunk.actions, counts), counts

    grams, counts = np.zeros((n_actions, m + 2, m + 2)), np.zeros(n_actions, dtype=np.int64)

    def add(part: tuple[Array, NDArray[np.int64]]) -> None:
        np.add(grams, part[0], out=grams)
        np.add(counts, part[1], out=counts)

    for_chunks(sums, add, step.chunks(rows_in_cache(m + 2)))
    squares = grams[:, m:, m:].sum(axis=0)
    return StepStatistics(
        gram=assemble_gram(features.embeddings, grams[:, :m, :m]),
        reward_moment=assemble_moment(features.embeddings, grams[:, :m, m]),
        value_moment=assemble_moment(features.embeddings, grams[:, :m, m + 1]),
        reward_square=float(squares[0, 0]),
        value_square=float(squares[1, 1]),
        target_square=float(squares.sum()),
        action_counts=counts,
    )


def future_values(chunk: Chunk, features: FeatureMap, following: NextValue | None, out: Array) -> Array:
    """V_{h+1}(x') of patients who go on, what their end is worth for those who do not, written into `out` (n,)."""
    n_next = chunk.next_states.shape[1]
    out[n_next:] = chunk.ended_value
    if following is None:
        out[:n_next] = 0.0
    elif n_next:
        following.values(features.psi(chunk.next_states), out=out[:n_next])
    return out
