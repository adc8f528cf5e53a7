"""Linear fitted-Q evaluation: the value of a given policy, by regression from the last step to the first.

    θ_h = (Λ_h + λI)⁻¹ Φᵀ(r + Q_{h+1}(x', π)),   Q_h(x, a) = φ(x, a)ᵀθ_h,   V̂ = mean of Q_0(x, π)

It needs no propensities, and is as good as the linear model. Written out, V̂ is a weighted sum of rewards,

    V̂ = (1/n) Σ_h Σ_i κ_{h,i} r_{h,i},   κ_{h,i} = ν_hᵀ Σ_h⁻¹ φ_{h,i},   Σ_h = Λ_h + λI
    ν_0 = Σ_i φ(x_{0,i}, π),   ν_{h+1}ᵀ = ν_hᵀ Σ_h⁻¹ C_h

so that κ are the importance weights that the linear model implies, and its derivative in a patient's weight is

    ψ_i = Q_0(x_i, π) − V̂ + Σ_h κ_{h,i} (r_{h,i} + Q_{h+1}(x_{h+1,i}, π) − Q_h(x_{h,i}, a_{h,i})).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.pessimism import LowerBound, argmax_first
from fdtr.algebra.ridge import factor, solve
from fdtr.algebra.threads import one_blas_thread
from fdtr.evaluation.paths import ByStep, Paths
from fdtr.evaluation.regression import RIDGE, Onward, Outcomes, mixed_features, solve_backward, taken_features
from fdtr.evaluation.statistic import Statistic, mean_of
from fdtr.features import FeatureMap
from fdtr.learners.sweep import sweep_each
from fdtr.trajectories import Trajectories

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class FittedQ:
    """`value` V̂; `theta` (H, d); `influence` ψ (n,), centred (λ moves its mean from 0).

    `effective_sample_size` (H,) is (Σ_i κ_{h,i})² / ν_hᵀΣ_h⁻¹ν_h, and Σκ² ≤ ν_hᵀΣ_h⁻¹ν_h: Kish's number for the weights
    κ, but for what the target asks in directions in which there are no data. There ν_hᵀΣ_h⁻¹ν_h is of the order of
    1/λ, and extrapolation shows.
    """

    value: float
    theta: Array
    influence: Array
    effective_sample_size: Array

    @property
    def statistic(self) -> Statistic:
        """V̂ to first order as an average over patients: V̂ + ψ_i."""
        return mean_of(self.value + self.influence)


def fit_q(
    paths: Paths,
    psi: ByStep,
    embeddings: Array,
    chances: ByStep,
    outcomes: Outcomes,
    onward: Onward,
    ridge: float = RIDGE,
) -> FittedQ:
    """V̂ of the target that takes actions with `chances` (A, n_h), and its influence function.

    `psi` holds ψ(x) of every step, `outcomes` and `onward` the sums over the same patients, of all folds.
    """
    gram, moment = outcomes.gram.sum(axis=0), outcomes.moment.sum(axis=0)
    cross, start = onward.cross.sum(axis=0), onward.start.sum(axis=0)
    theta = solve_backward(gram, moment, cross, ridge)
    values = values_of(theta, psi, embeddings, chances)
    influence = values[0].copy()
    size, nu = np.zeros(paths.horizon), start
    for h, actions in enumerate(paths.actions):
        count, going_on = len(actions), paths.counts[h + 1] if h + 1 < paths.horizon else 0
        direction = solve(factor(gram[h] + ridge * np.eye(len(nu))), nu)
        phi = taken_features(embeddings, psi[h], actions)
        kappa = direction @ phi
        surprise = paths.rewards[h, :count] - theta[h] @ phi
        surprise[:going_on] += values[h + 1][:going_on] if going_on else 0.0
        influence[:count] += kappa * surprise
        spread = float(nu @ direction)
        size[h] = kappa.sum() ** 2 / spread if spread > 0 else 0.0
        nu = direction @ cross[h]
    value = float(start @ theta[0]) / paths.n
    return FittedQ(value, theta, influence - influence.mean(), size)


def values_of(theta: Array, psi: ByStep, embeddings: Array, chances: ByStep) -> ByStep:
    """Q_h(x, π), (n_h,), of every step."""
    return tuple(
        coefficients @ mixed_features(embeddings, functions, chance)
        for coefficients, functions, chance in zip(theta, psi, chances, strict=True)
    )


@dataclass(frozen=True, eq=False, repr=False)
class Followed:
    """Q(x, π(x)) of one step: `rule` decides, `coefficients` (A, m) stack B_aᵀθ; ties go as in `order`."""

    rule: LowerBound
    coefficients: Array
    order: NDArray[np.intp]

    def values(self, psi: Array, out: Array | None = None) -> Array:
        """The value of doing what the rule says, (n,)."""
        choice = argmax_first(self.rule.bounds(psi), self.order)
        estimates = np.dot(self.coefficients, psi)
        found: Array = np.take_along_axis(estimates, choice[None], axis=0)[0]
        if out is None:
            return found
        out[...] = found
        return out


def fitted_q_values(
    rows: Trajectories, features: FeatureMap, policies: Sequence[Sequence[LowerBound]], ridge: float = RIDGE
) -> Array:
    """Mean value over the patients of `rows` of acting by each of `policies` (a rule a step), on the mapped scale.

    `ridge` is λ, small beside the Grams. The policies share every pass over the data: what tuning asks for.
    """
    order = np.argsort(features.levels, kind="stable")
    followings: list[Followed | None] = [None for _ in policies]
    with one_blas_thread():
        for h in reversed(range(rows.horizon)):
            sums = sweep_each(rows.step(h), features, followings)
            lower = factor(sums[0].gram + ridge * np.eye(features.n_features))
            thetas = solve(lower, np.column_stack([step.moment for step in sums])).T
            followings = [
                Followed(rules[h], theta @ features.embeddings, order)
                for rules, theta in zip(policies, thetas, strict=True)
            ]
    values = np.zeros(len(policies))
    for chunk in rows.step(0).chunks():
        psi = features.psi(chunk.states)
        values += [following.values(psi).sum() for following in followings if following is not None]
    return values / rows.step(0).n
