"""Linear fitted-Q evaluation: the value of a fixed policy, by regression from the last step to the first.

With φ_{h,i} = φ(x_{h,i}, a_{h,i}) and φ(x, π) = Σ_a π(a | x) φ(x, a), the sums of each step are

    Λ_h = Σ_i φ_{h,i} φ_{h,i}ᵀ,   b_h = Σ_i φ_{h,i} r_{h,i},   C_h = Σ_i φ_{h,i} φ(x_{h+1,i}, π)ᵀ

where C_h runs over patients with a next step, and r includes the worth of an early end. Sums are kept by fold, so the
sums without a fold are one subtraction away. Then

    θ_h = (Λ_h + λI)⁻¹ (b_h + C_h θ_{h+1}),   Q_h(x, a) = φ(x, a)ᵀθ_h,   V̂ = mean of Q_0(x, π).

It needs no propensities, and is as good as the linear model. Written out, V̂ is a weighted sum of rewards,

    V̂ = (1/n) Σ_h Σ_i κ_{h,i} r_{h,i},   κ_{h,i} = ν_hᵀ Σ_h⁻¹ φ_{h,i},   Σ_h = Λ_h + λI
    ν_0 = Σ_i φ(x_{0,i}, π),   ν_{h+1}ᵀ = ν_hᵀ Σ_h⁻¹ C_h

so κ are the importance weights that the linear model implies. The derivative of V̂ in a patient's weight is

    ψ_i = Q_0(x_i, π) − V̂ + Σ_h κ_{h,i} (r_{h,i} + Q_{h+1}(x_{h+1,i}, π) − Q_h(x_{h,i}, a_{h,i})).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.normal_equations import factor, solve
from fdtr.algebra.pessimism import LowerBound, argmax_first
from fdtr.algebra.threads import one_blas_thread
from fdtr.evaluation.intervals import Statistic, mean_of
from fdtr.evaluation.step_arrays import ByStep, Codes, Folds, StepArrays
from fdtr.features import FeatureMap
from fdtr.learners.accumulate import accumulate_each
from fdtr.trajectories import Trajectories

Array = NDArray[np.float64]

RIDGE = 1e-3
"""λ, small beside the Grams of features that are at most 1 long."""


@dataclass(frozen=True, eq=False, repr=False)
class OutcomeSums:
    """Sums that do not depend on the target: `gram` Λ (F, H, d, d) and `moment` b (F, H, d)."""

    gram: Array
    moment: Array


@dataclass(frozen=True, eq=False, repr=False)
class TransitionSums:
    """Sums that depend on the target: `cross` C (F, H, d, d), 0 at the last step; `start` (F, d), Σ_i φ(x_{0,i}, π)."""

    cross: Array
    start: Array


def mixed_features(embeddings: Array, psi: Array, chances: Array) -> Array:
    """φ(x, π) = Σ_a π(a | x) B_a ψ(x), (d, c).

    `embeddings` (A, d, m) stacks B_a, `psi` is (m, c) and `chances` (A, c).
    """
    total = np.zeros((embeddings.shape[1], psi.shape[1]))
    for embedding, chance in zip(embeddings, chances, strict=True):
        total += embedding @ (psi * chance)
    return total


def taken_features(embeddings: Array, psi: Array, actions: Codes) -> Array:
    """φ(x, a), (d, c), of the actions (c,) that were taken."""
    phi = np.empty((embeddings.shape[1], psi.shape[1]))
    for action, embedding in enumerate(embeddings):
        taken = actions == action
        phi[:, taken] = embedding @ psi[:, taken]
    return phi


def sum_outcomes(arrays: StepArrays, psi: ByStep, embeddings: Array, folds: Folds) -> OutcomeSums:
    """Λ and b of each fold and step. `psi` holds ψ(x) of each step."""
    d, n_folds = embeddings.shape[1], int(folds.max()) + 1
    gram, moment = np.zeros((n_folds, arrays.horizon, d, d)), np.zeros((n_folds, arrays.horizon, d))
    for h, actions in enumerate(arrays.actions):
        phi = taken_features(embeddings, psi[h], actions)
        for fold in range(n_folds):
            in_fold = folds[: len(actions)] == fold
            gram[fold, h] = phi[:, in_fold] @ phi[:, in_fold].T
            moment[fold, h] = phi[:, in_fold] @ arrays.rewards[h, : len(actions)][in_fold]
    return OutcomeSums(gram, moment)


def sum_transitions(
    arrays: StepArrays, psi: ByStep, embeddings: Array, folds: Folds, chances: ByStep
) -> TransitionSums:
    """C and the start of each fold, for the target with action probabilities `chances` (A, n_h)."""
    d, n_folds = embeddings.shape[1], int(folds.max()) + 1
    cross, start = np.zeros((n_folds, arrays.horizon, d, d)), np.zeros((n_folds, d))
    first = mixed_features(embeddings, psi[0], chances[0])
    for fold in range(n_folds):
        start[fold] = first[:, folds == fold].sum(axis=1)
    for h in range(arrays.horizon - 1):
        later = mixed_features(embeddings, psi[h + 1], chances[h + 1])
        n_next = later.shape[1]
        phi = taken_features(embeddings, psi[h][:, :n_next], arrays.actions[h][:n_next])
        for fold in range(n_folds):
            in_fold = folds[:n_next] == fold
            cross[fold, h] = phi[:, in_fold] @ later[:, in_fold].T
    return TransitionSums(cross, start)


def solve_backward(gram: Array, moment: Array, cross: Array, ridge: float) -> Array:
    """θ_h = (Λ_h + λI)⁻¹ (b_h + C_h θ_{h+1}), θ_H = 0, (H, d): the coefficients of Q^π. `ridge` is λ."""
    theta, later_theta = np.zeros_like(moment), np.zeros(moment.shape[1])
    for h in reversed(range(len(theta))):
        lower = factor(gram[h] + ridge * np.eye(len(later_theta)))
        later_theta = solve(lower, moment[h] + cross[h] @ later_theta)
        theta[h] = later_theta
    return theta


@dataclass(frozen=True, eq=False, repr=False)
class FittedQ:
    """`value` V̂; `theta` (H, d); `influence` ψ (n,), centred (λ moves its mean from 0).

    `effective_sample_size` (H,) is (Σ_i κ_{h,i})² / ν_hᵀΣ_h⁻¹ν_h. Since Σκ² ≤ ν_hᵀΣ_h⁻¹ν_h, it is at most Kish's number
    for the weights κ. It is smaller where the target needs directions without data: there ν_hᵀΣ_h⁻¹ν_h is of the order
    of 1/λ, so extrapolation shows.
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
    arrays: StepArrays,
    psi: ByStep,
    embeddings: Array,
    chances: ByStep,
    outcomes: OutcomeSums,
    transitions: TransitionSums,
    ridge: float = RIDGE,
) -> FittedQ:
    """V̂ of the target with action probabilities `chances` (A, n_h), and its influence function.

    `psi` holds ψ(x) of each step; `outcomes` and `transitions` are sums over the same patients.
    """
    gram, moment = outcomes.gram.sum(axis=0), outcomes.moment.sum(axis=0)
    cross, start = transitions.cross.sum(axis=0), transitions.start.sum(axis=0)
    theta = solve_backward(gram, moment, cross, ridge)
    values = values_of(theta, psi, embeddings, chances)
    influence = values[0].copy()
    size, nu = np.zeros(arrays.horizon), start
    for h, actions in enumerate(arrays.actions):
        count, n_next = len(actions), arrays.counts[h + 1] if h + 1 < arrays.horizon else 0
        direction = solve(factor(gram[h] + ridge * np.eye(len(nu))), nu)
        phi = taken_features(embeddings, psi[h], actions)
        kappa = direction @ phi
        residual = arrays.rewards[h, :count] - theta[h] @ phi
        residual[:n_next] += values[h + 1][:n_next] if n_next else 0.0
        influence[:count] += kappa * residual
        spread = float(nu @ direction)
        size[h] = kappa.sum() ** 2 / spread if spread > 0 else 0.0
        nu = direction @ cross[h]
    value = float(start @ theta[0]) / arrays.n
    return FittedQ(value, theta, influence - influence.mean(), size)


def values_of(theta: Array, psi: ByStep, embeddings: Array, chances: ByStep) -> ByStep:
    """Q_h(x, π), (n_h,), of each step."""
    return tuple(
        coefficients @ mixed_features(embeddings, functions, chance)
        for coefficients, functions, chance in zip(theta, psi, chances, strict=True)
    )


def cross_fitted_q(
    psi: ByStep,
    embeddings: Array,
    folds: Folds,
    outcomes: OutcomeSums,
    transitions: TransitionSums,
    ridge: float = RIDGE,
) -> ByStep:
    """Q_h(x, a) of every action, (A, n_h) of each step, each patient's fitted to the other folds.

    It is truncated to the range of the true Q. Doubly robust evaluation accepts any Q, and a wild one only adds noise.
    """
    q = tuple(np.empty((len(embeddings), functions.shape[1])) for functions in psi)
    without_fold = [array.sum(axis=0) - array for array in (outcomes.gram, outcomes.moment, transitions.cross)]
    for fold, (gram, moment, cross) in enumerate(zip(*without_fold, strict=True)):
        theta = solve_backward(gram, moment, cross, ridge)
        for h, functions in enumerate(psi):
            in_fold = folds[: functions.shape[1]] == fold
            q[h][:, in_fold] = (theta[h] @ embeddings) @ functions[:, in_fold]
    return truncated(q)


def truncated(q: ByStep) -> ByStep:
    """Q_h truncated to [0, H − h], the range of the true Q."""
    return tuple(np.clip(estimates, 0.0, len(q) - h) for h, estimates in enumerate(q))


@dataclass(frozen=True, eq=False, repr=False)
class _PolicyQ:
    """Q(x, π(x)) of one step: `rule` decides, `coefficients` (A, m) stack B_aᵀθ; `order` breaks ties."""

    rule: LowerBound
    coefficients: Array
    order: NDArray[np.intp]

    def values(self, psi: Array, out: Array | None = None) -> Array:
        """The value of the action that the rule recommends, (n,)."""
        choice = argmax_first(self.rule.bounds(psi), self.order)
        estimates = np.dot(self.coefficients, psi)
        values: Array = np.take_along_axis(estimates, choice[None], axis=0)[0]
        if out is None:
            return values
        out[...] = values
        return out


def fitted_q_values(
    rows: Trajectories, features: FeatureMap, policies: Sequence[Sequence[LowerBound]], ridge: float = RIDGE
) -> Array:
    """Mean value over the patients of `rows` under each of `policies` (one rule a step), on the mapped scale.

    `ridge` is λ, small beside the Grams. Tuning compares many policies, so they share every pass over the data.
    """
    order = np.argsort(features.levels, kind="stable")
    next_values: list[_PolicyQ | None] = [None for _ in policies]
    with one_blas_thread():
        for h in reversed(range(rows.horizon)):
            sums = accumulate_each(rows.step(h), features, next_values)
            lower = factor(sums[0].gram + ridge * np.eye(features.n_features))
            thetas = solve(lower, np.column_stack([step.moment for step in sums])).T
            next_values = [
                _PolicyQ(rules[h], theta @ features.embeddings, order)
                for rules, theta in zip(policies, thetas, strict=True)
            ]
    values = np.zeros(len(policies))
    for chunk in rows.step(0).chunks():
        psi = features.psi(chunk.states)
        values += [policy_q.values(psi).sum() for policy_q in next_values if policy_q is not None]
    return values / rows.step(0).n
