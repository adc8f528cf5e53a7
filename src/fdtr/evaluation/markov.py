"""The Markov check: whether the previous step helps to predict, beside the state and the action.

Fitted-Q and doubly robust evaluation, like the learners, assume that the state holds all that matters of the past. Then
the covariates and the action of the previous step add nothing to a regression on φ(x_h, a_h). Both regressions are
fitted without the fold they are judged on, so useless columns make predictions worse, and a past that matters a little
hardly makes them better. So the test asks whether the two go together: with e the held-out residual without the past,
and g what the past changes of the prediction,

    T = mean over patients of Σ_h e_h g_h, over its standard error.

The past has a ridge of its own, on standardised columns. T varies by more than 1 where the past does not matter, since
e has the error of its own regression; so it has to be larger than three to be clear.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.normal_equations import factor, solve
from fdtr.evaluation.fitted_q import RIDGE
from fdtr.evaluation.richer_q import t_statistic
from fdtr.evaluation.step_arrays import ByStep, Codes, Design, Folds

Array = NDArray[np.float64]

CRITICAL = 3.0
"""T beyond this is clear."""

PAST_RIDGE = 100.0
"""Ridge of the previous step's columns, which are standardised."""

_CONSTANT = 1e-9


@dataclass(frozen=True)
class PredictionGain:
    """What the previous step adds to the prediction of an `outcome`, over all steps but the first.

    `r_squared` is that of the state and the action alone; `gain` is its increase with the previous step, with the
    `standard_error` over patients; `statistic` is T. All are of held-out predictions; NaN where the outcome does not
    vary.
    """

    outcome: str
    r_squared: float
    gain: float
    standard_error: float
    statistic: float

    @property
    def clear(self) -> bool:
        """Whether T is larger than chance makes it: the state does not hold all that matters."""
        return bool(self.statistic > CRITICAL)


@dataclass(frozen=True)
class MarkovCheck:
    """The gains in predicting the `reward` of a step, and the `value` of the next state."""

    reward: PredictionGain
    value: PredictionGain

    @property
    def clear(self) -> bool:
        """Whether the past clearly matters for one of them."""
        return self.reward.clear or self.value.clear


def check_markov(design: Design, values: ByStep, ridge: float = RIDGE) -> MarkovCheck:
    """Compare held-out predictions with and without the previous step.

    `values` (n_h,) of each step is a value of the state, such as the clinicians' value from there on; the second
    outcome is that value at the next state. Patients who leave early have no next state: their last rows count for the
    reward alone, which includes the worth of the steps they miss.
    """
    arrays, folds = design.arrays, design.folds
    errors = {name: _Errors(*(np.zeros(arrays.n) for _ in range(4))) for name in ("reward", "value")}
    for h in range(1, arrays.horizon):
        count = arrays.counts[h]
        if not count:
            break
        now = np.vstack([design.taken(h), np.ones(count)])
        previous = _previous_step(design.psi[h - 1][:, :count], arrays.actions[h - 1][:count], len(design.embeddings))
        n_next = arrays.counts[h + 1] if h + 1 < arrays.horizon else 0
        for name, outcome in (
            ("reward", arrays.rewards[h, :count]),
            ("value", values[h + 1][:n_next] if n_next else np.zeros(0)),
        ):
            present = len(outcome)
            ridges = np.full(len(now), ridge), np.full(len(previous), PAST_RIDGE)
            without = _held_out_errors(now[:, :present], outcome, folds[:present], ridges[0])
            both = np.vstack([now, previous])[:, :present]
            with_past = _held_out_errors(both, outcome, folds[:present], np.concatenate(ridges))
            errors[name].add(outcome, without, with_past)
    n = arrays.counts[1] if arrays.horizon > 1 else 0
    return MarkovCheck(errors["reward"].gain("reward", n), errors["value"].gain("value", n))


@dataclass(frozen=True, eq=False, repr=False)
class _Errors:
    """Sums over steps of each patient, (n,): squares about the step's mean and of both held-out errors, and e·g."""

    total: Array
    without: Array
    with_past: Array
    agreement: Array

    def add(self, outcome: Array, without: Array, with_past: Array) -> None:
        present = len(outcome)
        if present:
            self.total[:present] += (outcome - outcome.mean()) ** 2
            self.without[:present] += without**2
            self.with_past[:present] += with_past**2
            self.agreement[:present] += without * (without - with_past)

    def gain(self, name: str, n: int) -> PredictionGain:
        """The gain over the `n` patients who have a second step."""
        total = float(self.total.sum())
        if total <= 1e-12 * max(n, 1) or n < 2:
            return PredictionGain(name, np.nan, np.nan, np.nan, np.nan)
        differences = (self.without - self.with_past)[:n]
        error = float(differences.std(ddof=1) * np.sqrt(n)) / total
        statistic = t_statistic(self.agreement[:n], None)
        r_squared, gain = 1 - float(self.without.sum()) / total, float(differences.sum()) / total
        return PredictionGain(name, r_squared, gain, error, statistic)


def _previous_step(psi: Array, actions: Codes, n_actions: int) -> Array:
    """ψ and action indicators of the previous step, standardised, (m + A, c)."""
    columns = np.vstack([psi, (np.arange(n_actions)[:, None] == actions).astype(np.float64)])
    spread = columns.std(axis=1, keepdims=True)
    return np.asarray((columns - columns.mean(axis=1, keepdims=True)) / np.where(spread > _CONSTANT, spread, np.inf))


def _held_out_errors(columns: Array, outcome: Array, folds: Folds, ridges: Array) -> Array:
    """y − ŷ, (c,), each from a regression on the other folds. `columns` is (p, c), with a ridge each (p,)."""
    errors = np.zeros_like(outcome)
    for fold in np.unique(folds):
        held_out = folds == fold
        x, y = columns[:, ~held_out], outcome[~held_out]
        theta = solve(factor(x @ x.T + np.diag(ridges)), x @ y)
        errors[held_out] = outcome[held_out] - theta @ columns[:, held_out]
    return errors
