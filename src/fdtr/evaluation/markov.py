"""The Markov check: whether the previous step helps to predict, beside the state and the action.

Fitted-Q and doubly robust evaluation, like the learners, assume that the state holds all that matters of the past. Then
the covariates and the action of the previous step, z, add nothing to a regression of an outcome y on φ(x_h, a_h). The
test is a score test. At each step e and z̃ are what the regression leaves of y and z, each z̃ and e with variance one;

    U = Σ_i u_i,   u_i = Σ_h z̃_ih e_ih,   Q = ‖U‖².

Sums over steps come before squares, since what is not seen acts alike at most of them. Without an effect of the past, Q
is a sum of squares with weights that are the eigenvalues of C = Σ_i u_i u_iᵀ. Its p-value is that of a χ² with the same
mean and variance (Satterthwaite). In C, residuals are divided by √(1 − leverage): a regression with many features makes
them too small. Where there are patients enough, the regression has the products of two covariates too, so that a
reward that is not linear in the state is not taken for one that depends on the past.

How much the past improves predictions is told beside it, from regressions that are judged on held-out folds.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc

from fdtr.algebra.normal_equations import factor, solve
from fdtr.evaluation.fitted_q import RIDGE
from fdtr.evaluation.intervals import sums_over
from fdtr.evaluation.step_arrays import ByStep, Codes, Design, Folds

Array = NDArray[np.float64]

CRITICAL = 0.01
"""A p-value below this is clear."""

FEATURES_PER_PATIENT = 0.2
"""Products of two covariates are features, too, where there are at most so many features for each patient."""

PAST_RIDGE = 100.0
"""Ridge of the previous step's columns, which are standardised."""

_CONSTANT = 1e-9


@dataclass(frozen=True)
class PredictionGain:
    """What the previous step adds to the prediction of an `outcome`, over all steps but the first.

    `r_squared` is that of the state and the action alone; `gain` is its increase with the previous step, with the
    `standard_error` over patients, all of held-out predictions. `p_value` is that of the score test. NaN where the
    outcome does not vary.
    """

    outcome: str
    r_squared: float
    gain: float
    standard_error: float
    p_value: float

    @property
    def clear(self) -> bool:
        """Whether the past matters more than by chance: the state does not hold all that matters."""
        return bool(self.p_value < CRITICAL)


@dataclass(frozen=True)
class MarkovCheck:
    """The gains in predicting the `reward` of a step, and the `value` of the next state."""

    reward: PredictionGain
    value: PredictionGain

    @property
    def clear(self) -> bool:
        """Whether the past clearly matters for one of them."""
        return self.reward.clear or self.value.clear


def check_markov(
    design: Design,
    values: ByStep,
    richer: ByStep | None = None,
    clusters: NDArray[np.intp] | None = None,
    ridge: float = RIDGE,
) -> MarkovCheck:
    """Ask whether the previous step helps to predict.

    `values` (n_h,) of each step is a value of the state, such as the clinicians' value from there on; the second
    outcome is that value at the next state. Patients who leave early have no next state: their last rows count for the
    reward alone, which includes the worth of the steps they miss. `richer` are the products of two covariates
    (`richer_q.products`), and `clusters` (n,) positions of patients who are not independent.
    """
    arrays, folds = design.arrays, design.folds
    n_previous = len(design.psi[0]) + len(design.embeddings)
    sums = {name: _Sums.of(n_previous, arrays.n) for name in ("reward", "value")}
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
            if not present:
                continue
            ridges = np.full(len(now), ridge), np.full(len(previous), PAST_RIDGE)
            without = _held_out_errors(now[:, :present], outcome, folds[:present], ridges[0])
            both = np.vstack([now, previous])[:, :present]
            with_past = _held_out_errors(both, outcome, folds[:present], np.concatenate(ridges))
            features = now[:, :present]
            if richer is not None and len(now) + len(richer[h]) <= FEATURES_PER_PATIENT * present:
                features = np.vstack([features, richer[h][:, :present]])
            sums[name].add(outcome, without, with_past, _scores(features, previous[:, :present], outcome))
    n = arrays.counts[1] if arrays.horizon > 1 else 0
    return MarkovCheck(*(sums[name].gain(name, n, clusters) for name in ("reward", "value")))


@dataclass(frozen=True, eq=False, repr=False)
class _Sums:
    """Sums over steps of each patient: squares about the step's mean and of both held-out errors, (n,), and scores.

    `scores` (2, n, z) are u_i, and the same of residuals that are corrected for leverage.
    """

    total: Array
    without: Array
    with_past: Array
    scores: Array

    @classmethod
    def of(cls, n_previous: int, n: int) -> "_Sums":
        total, without, with_past = np.zeros((3, n))
        return cls(total, without, with_past, np.zeros((2, n, n_previous)))

    def add(self, outcome: Array, without: Array, with_past: Array, scores: Array) -> None:
        present = len(outcome)
        self.total[:present] += (outcome - outcome.mean()) ** 2
        self.without[:present] += without**2
        self.with_past[:present] += with_past**2
        self.scores[:, :present] += scores

    def gain(self, name: str, n: int, clusters: NDArray[np.intp] | None) -> PredictionGain:
        """The gain over the `n` patients who have a second step."""
        total = float(self.total.sum())
        if total <= 1e-12 * max(n, 1) or n < 2:
            return PredictionGain(name, np.nan, np.nan, np.nan, np.nan)
        differences = (self.without - self.with_past)[:n]
        error = float(differences.std(ddof=1) * np.sqrt(n)) / total
        r_squared, gain = 1 - float(self.without.sum()) / total, float(differences.sum()) / total
        scores, corrected = self.scores if clusters is None else (sums_over(clusters, part) for part in self.scores)
        return PredictionGain(name, r_squared, gain, error, p_value_of_scores(scores, corrected))


def p_value_of_scores(scores: Array, corrected: Array) -> float:
    """The p-value of Q = ‖Σ_i u_i‖²; `scores` u_i are (n, z), and C comes from the `corrected` ones. 1 without any.

    >>> round(p_value_of_scores(np.full((4, 1), 1.0), np.full((4, 1), 1.0)), 3)  # χ² with one degree, at 4
    0.046
    """
    covariance = corrected.T @ corrected
    mean, square = float(np.trace(covariance)), float(np.sum(covariance**2))
    if mean <= 0:
        return 1.0
    statistic = float(np.sum(scores.sum(axis=0) ** 2))
    return float(chdtrc(mean**2 / square, statistic * mean / square))


def _scores(features: Array, previous: Array, outcome: Array) -> Array:
    """z̃ e of every patient, (2, c, z), with e as it is, and corrected for leverage; zeros where nothing is left."""
    basis = _orthonormal(features)
    residual = outcome - basis @ (basis.T @ outcome)
    left = previous.T - basis @ (basis.T @ previous.T)
    spread = np.linalg.norm(left, axis=0)
    left /= np.where(spread > _CONSTANT * np.sqrt(len(outcome)), spread, np.inf)
    size = float(residual.std())
    if size <= _CONSTANT * float(outcome.std()) or size == 0.0:
        return np.zeros((2, *left.shape))
    leverage = np.minimum((basis**2).sum(axis=1), 1 - _CONSTANT)
    corrected = residual / np.sqrt(1 - leverage)
    return np.stack([left * (part / size)[:, None] for part in (residual, corrected)])


def _orthonormal(features: Array) -> Array:
    """An orthonormal basis of what `features` (p, c) span over the patients, (c, rank)."""
    scale = np.linalg.norm(features, axis=1)
    columns = (features / np.where(scale > 0, scale, 1.0)[:, None]).T
    left, singular, _ = np.linalg.svd(columns, full_matrices=False)
    return np.asarray(left[:, singular > _CONSTANT * singular[0]])


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
