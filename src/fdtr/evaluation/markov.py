"""Is the state enough? Whether the step before helps to predict what the state and the action are to predict.

Fitted-Q and doubly robust evaluation, like the learners, take the state for all that matters of the past. If it is,
covariates and the action of one step earlier add nothing to a regression on φ(x_h, a_h). Both regressions are fitted
without the fold they are judged on, so that useless columns make predictions worse, not better.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.ridge import factor, solve
from fdtr.evaluation.paths import ByStep, Paths
from fdtr.evaluation.regression import RIDGE, taken_features

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Gain:
    """What the step before adds to the prediction of an `outcome`, over all steps but the first.

    `r_squared` with the state and the action alone, and `gain` in it from the step before, with the `standard_error`
    over patients. All are of held-out predictions; NaN where the outcome does not vary.
    """

    outcome: str
    r_squared: float
    gain: float
    standard_error: float

    @property
    def clear(self) -> bool:
        """More than two standard errors: the state is not enough."""
        return bool(self.gain > 2 * self.standard_error)


@dataclass(frozen=True)
class MarkovCheck:
    """The gains in predicting the next `reward` and the `value` of what comes next."""

    reward: Gain
    value: Gain

    @property
    def doubtful(self) -> bool:
        """Whether the past matters beyond the state."""
        return self.reward.clear or self.value.clear


def check_markov(
    paths: Paths, psi: ByStep, embeddings: Array, folds: NDArray[np.intp], ahead: ByStep, ridge: float = RIDGE
) -> MarkovCheck:
    """`ahead` (n_h,) of every step is a value of the state, such as what clinicians reach from it.

    What comes next is that value at the next state. Who leaves early has no next state: those last rows count for the
    reward alone, in which the worth of the steps they miss is included.
    """
    errors = {name: _Errors(np.zeros(paths.n), np.zeros(paths.n), np.zeros(paths.n)) for name in ("reward", "value")}
    for h in range(1, paths.horizon):
        count = paths.counts[h]
        own = np.vstack([taken_features(embeddings, psi[h], paths.actions[h]), np.ones(count)])
        before = _before(psi[h - 1][:, :count], paths.actions[h - 1][:count], len(embeddings))
        going_on = paths.counts[h + 1] if h + 1 < paths.horizon else 0
        for name, outcome in (
            ("reward", paths.rewards[h, :count]),
            ("value", ahead[h + 1][:going_on] if going_on else np.zeros(0)),
        ):
            there = len(outcome)
            rows = own[:, :there], np.vstack([own, before])[:, :there]
            errors[name].add(outcome, *(_held_out_errors(x, outcome, folds[:there], ridge) for x in rows))
    n = paths.counts[1] if paths.horizon > 1 else 0
    return MarkovCheck(errors["reward"].gain("reward", n), errors["value"].gain("value", n))


@dataclass(frozen=True, eq=False, repr=False)
class _Errors:
    """Sums over steps for every patient, (n,): squares about the step's mean, and of both held-out errors."""

    total: Array
    without: Array
    with_past: Array

    def add(self, outcome: Array, without: Array, with_past: Array) -> None:
        there = len(outcome)
        if there:
            self.total[:there] += (outcome - outcome.mean()) ** 2
            self.without[:there] += without**2
            self.with_past[:there] += with_past**2

    def gain(self, name: str, n: int) -> Gain:
        """Over the `n` patients who have a second step."""
        total = float(self.total.sum())
        if total <= 1e-12 * max(n, 1) or n < 2:
            return Gain(name, np.nan, np.nan, np.nan)
        differences = (self.without - self.with_past)[:n]
        error = float(differences.std(ddof=1) * np.sqrt(n)) / total
        return Gain(name, 1 - float(self.without.sum()) / total, float(differences.sum()) / total, error)


def _before(psi: Array, actions: NDArray[np.intp], n_actions: int) -> Array:
    """ψ and indicators of the actions of the step before, (m + A, c)."""
    return np.vstack([psi, (np.arange(n_actions)[:, None] == actions).astype(np.float64)])


def _held_out_errors(columns: Array, outcome: Array, folds: NDArray[np.intp], ridge: float) -> Array:
    """y − ŷ, (c,), each from a ridge regression on the other folds. `columns` is (p, c)."""
    errors = np.zeros_like(outcome)
    for fold in np.unique(folds):
        held_out = folds == fold
        x, y = columns[:, ~held_out], outcome[~held_out]
        theta = solve(factor(x @ x.T + ridge * np.eye(len(x))), x @ y)
        errors[held_out] = outcome[held_out] - theta @ columns[:, held_out]
    return errors
