"""Doubly robust evaluation: fitted Q for a start, importance weights for what it gets wrong.

    V̂ = (1/n) Σ_i V_0(x_{0,i}) + Σ_h mean_ρ( r_{h,i} + V_{h+1}(x_{h+1,i}) − Q_h(x_{h,i}, a_{h,i}) ),  V_h(x) = Q_h(x, π)

where mean_ρ is (1/n) Σ_i ρ_{i,h} (·) in DR (Jiang and Li 2016) and Σ_i ρ_{i,h} (·) / Σ_i ρ_{i,h} in WDR (Thomas and
Brunskill 2016, with their terms gathered by weight). V is 0 for those who have left. Consistent if either Q or the
propensities are right; with both cross-fitted, errors in them matter in their product alone, so that the influence
function of V̂ is that of known ones: ψ_i = the patient's term − V̂ in DR.
"""

import numpy as np
from numpy.typing import NDArray

from fdtr.evaluation.paths import ByStep, Paths, taken
from fdtr.evaluation.regression import RIDGE, Onward, Outcomes, solve_backward
from fdtr.evaluation.statistic import Statistic, mean_of
from fdtr.evaluation.weights import Weights

Array = NDArray[np.float64]


def cross_fitted_q(
    psi: ByStep,
    embeddings: Array,
    folds: NDArray[np.intp],
    outcomes: Outcomes,
    onward: Onward,
    ridge: float = RIDGE,
) -> ByStep:
    """Q_h(x, a) for every action, (A, n_h) of every step, each patient's from the other folds' patients.

    It is cut to where the true Q lies: any Q will do here, and a wild one only adds noise.
    """
    found = tuple(np.empty((len(embeddings), functions.shape[1])) for functions in psi)
    rest = [array.sum(axis=0) - array for array in (outcomes.gram, outcomes.moment, onward.cross)]
    for fold, (gram, moment, cross) in enumerate(zip(*rest, strict=True)):
        theta = solve_backward(gram, moment, cross, ridge)
        for h, functions in enumerate(psi):
            own = folds[: functions.shape[1]] == fold
            found[h][:, own] = (theta[h] @ embeddings) @ functions[:, own]
    return truncated(found)


def truncated(q: ByStep) -> ByStep:
    """Q_h cut to [0, H − h], in which the true one lies."""
    return tuple(np.clip(estimates, 0.0, len(q) - h) for h, estimates in enumerate(q))


def doubly_robust(paths: Paths, weights: Weights, q: ByStep, chances: ByStep) -> Statistic:
    """DR: `q` (A, n_h) of every step, the target's `chances` (A, n_h). With Q = 0 it is per-decision sampling."""
    start, surprise = _parts(paths, q, chances)
    return mean_of(start + (weights.ratios * surprise).sum(axis=0))


def weighted_doubly_robust(paths: Paths, weights: Weights, q: ByStep, chances: ByStep) -> Statistic:
    """WDR: weights normalised within each step. With Q = 0 it is step-weighted sampling."""
    start, surprise = _parts(paths, q, chances)
    denominators = np.vstack([np.ones(paths.n), weights.ratios])
    numerators = np.vstack([start, weights.ratios * surprise])
    return Statistic(numerators.T, denominators.T, np.ones(len(numerators)))


def _parts(paths: Paths, q: ByStep, chances: ByStep) -> tuple[Array, Array]:
    """V_0(x_0), (n,), and r + V_{h+1}(x_{h+1}) − Q_h(x_h, a_h), (H, n), 0 for those who have left."""
    values = paths.padded(tuple((c * estimates).sum(axis=0) for c, estimates in zip(chances, q, strict=True)))
    expected = paths.padded(
        tuple(taken(estimates, actions) for estimates, actions in zip(q, paths.actions, strict=True))
    )
    surprise = paths.rewards - expected
    surprise[:-1] += values[1:]
    return values[0], surprise
