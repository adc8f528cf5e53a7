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

*Policies that were fitted to the same site's other folds.* A policy takes the actions that look good on its own
training patients. Q fitted to those patients agrees with it, so plain fitted Q favours the least cautious policy. In
`fit_held_out_q` the patients of fold k, whom policy π_k has not seen, correct Q:

    V̂ = (1/n) Σ_k Σ_{i in k} [ Q_0(x_{0,i}, π_k) + Σ_h κ_{h,i} δ_{h,i} ]
    δ_{h,i} = r_{h,i} + Q_{h+1}(x_{h+1,i}, π_k) − Q_h(x_{h,i}, a_{h,i})

with Q of π_k from the other folds, and κ for π_k as above, but with ν_0 the mean of φ(x_0, π_k) and κ n times as large.
Where the linear model holds, the second term removes any error of Q, whatever its cause. Λ and C contain no reward and
come from all patients: the inverse of Λ without fold k is too large by a factor of about 1/(1 − d/n), and so the
correction would be. Standard errors take κ from the other folds, so a patient's own leverage does not shrink the
patient's share. Intervals covered 94 to 95% of 500 simulated worlds (`make reproduce WHAT=evaluation`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.normal_equations import factor, solve
from fdtr.algebra.pessimism import LowerBound, argmax_first
from fdtr.algebra.threads import one_blas_thread
from fdtr.evaluation.intervals import Statistic, mean_of
from fdtr.evaluation.step_arrays import ByStep, Design
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


def sum_outcomes(design: Design) -> OutcomeSums:
    """Λ and b of each fold and step."""
    arrays, d, n_folds = design.arrays, design.n_features, design.n_folds
    gram, moment = np.zeros((n_folds, arrays.horizon, d, d)), np.zeros((n_folds, arrays.horizon, d))
    for h, count in enumerate(arrays.counts):
        phi = design.taken(h)
        for fold in range(n_folds):
            in_fold = design.folds[:count] == fold
            gram[fold, h] = phi[:, in_fold] @ phi[:, in_fold].T
            moment[fold, h] = phi[:, in_fold] @ arrays.rewards[h, :count][in_fold]
    return OutcomeSums(gram, moment)


def sum_transitions(design: Design, chances: ByStep) -> TransitionSums:
    """C and the start of each fold, for the target with action probabilities `chances` (A, n_h)."""
    horizon, d, folds = design.arrays.horizon, design.n_features, design.folds
    cross, start = np.zeros((design.n_folds, horizon, d, d)), np.zeros((design.n_folds, d))
    first = design.mixed(0, chances)
    for fold in range(design.n_folds):
        start[fold] = first[:, folds == fold].sum(axis=1)
    for h in range(horizon - 1):
        later = design.mixed(h + 1, chances)
        phi = design.taken(h, later.shape[1])
        for fold in range(design.n_folds):
            in_fold = folds[: later.shape[1]] == fold
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
    """`value` V̂; `influence` ψ (n,), centred (λ moves its mean from 0).

    `effective_sample_size` (H,) is (Σ_i κ_{h,i})² / ν_hᵀΣ_h⁻¹ν_h. Since Σκ² ≤ ν_hᵀΣ_h⁻¹ν_h, it is at most Kish's number
    for the weights κ. It is smaller where the target needs directions without data: there ν_hᵀΣ_h⁻¹ν_h is of the order
    of 1/λ, so extrapolation shows. For policies by fold, it is that of κ from the other folds. `kappa` (H, n) are the
    weights behind V̂ and `cautious_kappa` those behind ψ; `theta_by_fold` (F, H, d) are fitted without each fold.
    `by_policy` (F, n) are every patient's summands under the policy of each fold; None where there is one policy.
    """

    value: float
    influence: Array
    effective_sample_size: Array
    kappa: Array
    cautious_kappa: Array
    theta_by_fold: Array
    by_policy: Array | None

    @property
    def statistic(self) -> Statistic:
        """V̂ to first order as an average over patients: V̂ + ψ_i."""
        return replace(mean_of(self.value + self.influence), by_policy=self.by_policy)


@dataclass(frozen=True, eq=False, repr=False)
class QOfAll(FittedQ):
    """Fitted Q on all patients, with its coefficients `theta` (H, d)."""

    theta: Array


@dataclass(frozen=True, eq=False, repr=False)
class HeldOutQ(FittedQ):
    """Fitted Q of one policy a fold. `q` is Q_h(x, a), (A, n_h), of each step, each patient's from the other folds."""

    q: ByStep


def fit_q(
    design: Design, chances: ByStep, outcomes: OutcomeSums, transitions: TransitionSums, ridge: float = RIDGE
) -> QOfAll:
    """V̂ of the target with action probabilities `chances` (A, n_h), and its influence function.

    `outcomes` and `transitions` are sums over the same patients.
    """
    arrays, gram, cross = design.arrays, outcomes.gram.sum(axis=0), transitions.cross.sum(axis=0)
    theta = solve_backward(gram, outcomes.moment.sum(axis=0), cross, ridge)
    values = values_of(theta, design, chances)
    # φ of one step at a time: that of all steps is as large as the table times d.
    predicted = tuple(coefficients @ design.taken(h) for h, coefficients in enumerate(theta))
    residuals = arrays.residuals(values, predicted)
    size, kappa = np.zeros(arrays.horizon), np.zeros_like(arrays.rewards)
    start = nu = transitions.start.sum(axis=0)
    for h, count in enumerate(arrays.counts):
        direction = solve(factor(gram[h] + ridge * np.eye(len(nu))), nu)
        kappa[h, :count] = direction @ design.taken(h)
        spread = float(nu @ direction)
        size[h] = kappa[h].sum() ** 2 / spread if spread > 0 else 0.0
        nu = direction @ cross[h]
    influence = values[0] + (kappa * residuals).sum(axis=0)
    by_fold = theta_without_folds(outcomes, transitions, ridge)
    value = float(start @ theta[0]) / arrays.n
    return QOfAll(value, influence - influence.mean(), size, kappa, kappa, by_fold, None, theta)


def values_of(theta: Array, design: Design, chances: ByStep) -> ByStep:
    """Q_h(x, π), (n_h,), of each step."""
    return tuple(coefficients @ design.mixed(h, chances) for h, coefficients in enumerate(theta))


def _predicted(theta: Array, phi: Sequence[Array]) -> ByStep:
    """⟨φ, θ_h⟩ of each step, (n_h,): Q of the actions taken, or of the target's, whichever `phi` (d, n_h) are of."""
    return tuple(coefficients @ features for coefficients, features in zip(theta, phi, strict=True))


def cross_fitted_q(design: Design, outcomes: OutcomeSums, transitions: TransitionSums, ridge: float = RIDGE) -> ByStep:
    """Q_h(x, a) of every action, (A, n_h) of each step, each patient's fitted to the other folds.

    It is truncated to the range of the true Q. Doubly robust evaluation accepts any Q, and a wild one only adds noise.
    """
    q = _no_q(design)
    for fold, theta in enumerate(theta_without_folds(outcomes, transitions, ridge)):
        _fill_q(q, design, fold, theta)
    return truncated(q)


def theta_without_folds(outcomes: OutcomeSums, transitions: TransitionSums, ridge: float) -> Array:
    """θ fitted without each fold, (F, H, d)."""
    without_fold = [array.sum(axis=0) - array for array in (outcomes.gram, outcomes.moment, transitions.cross)]
    return np.stack([solve_backward(g, b, c, ridge) for g, b, c in zip(*without_fold, strict=True)])


def _no_q(design: Design) -> ByStep:
    return tuple(np.empty((len(design.embeddings), count)) for count in design.arrays.counts)


def _fill_q(q: ByStep, design: Design, fold: int, theta: Array) -> None:
    """Write Q_h(x, a) of the fold's patients into `q`."""
    for estimates, functions, coefficients in zip(q, design.psi, theta, strict=True):
        in_fold = design.folds[: functions.shape[1]] == fold
        estimates[:, in_fold] = (coefficients @ design.embeddings) @ functions[:, in_fold]


def truncated(q: ByStep) -> ByStep:
    """Q_h truncated to [0, H − h], the range of the true Q."""
    return tuple(np.clip(estimates, 0.0, len(q) - h) for h, estimates in enumerate(q))


def fit_held_out_q(design: Design, chances: Sequence[ByStep], outcomes: OutcomeSums, ridge: float = RIDGE) -> HeldOutQ:
    """V̂ of one policy a fold. `chances` holds the action probabilities (A, n_h) of each policy for all patients."""
    arrays, q = design.arrays, _no_q(design)
    phi = [design.taken(h) for h in range(arrays.horizon)]
    terms, cautious_terms, by_policy = np.empty(arrays.n), np.empty(arrays.n), np.empty((len(chances), arrays.n))
    weights, cautious_weights, thetas = np.zeros_like(arrays.rewards), np.zeros_like(arrays.rewards), []
    sums, spreads = np.zeros(arrays.horizon), np.zeros(arrays.horizon)
    for fold, policy_chances in enumerate(chances):
        in_fold = design.folds == fold
        transitions = sum_transitions(design, policy_chances)
        gram, moment, cross = (a.sum(axis=0) - a[fold] for a in (outcomes.gram, outcomes.moment, transitions.cross))
        mixed = [design.mixed(h, policy_chances) for h in range(arrays.horizon)]
        theta = solve_backward(gram, moment, cross, ridge)
        values = _predicted(theta, mixed)
        first, residuals = values[0][in_fold], arrays.residuals(values, _predicted(theta, phi))[:, in_fold]
        start, n_others = transitions.start.sum(axis=0), arrays.n - int(in_fold.sum())
        fold_phi = [features[:, in_fold[: features.shape[1]]] for features in phi]
        all_sums = outcomes.gram.sum(axis=0), transitions.cross.sum(axis=0)
        kappa, _ = _implied_weights(phi, *all_sums, start / arrays.n, arrays.n, ridge)
        others_start = (start - transitions.start[fold]) / max(n_others, 1)
        others_kappa, spread = _implied_weights(fold_phi, gram, cross, others_start, n_others, ridge)
        terms[in_fold] = first + (kappa[:, in_fold] * residuals).sum(axis=0)
        cautious_terms[in_fold] = first + (others_kappa * residuals).sum(axis=0)
        theta_of_all = solve_backward(all_sums[0], outcomes.moment.sum(axis=0), all_sums[1], ridge)
        values = _predicted(theta_of_all, mixed)
        by_policy[fold] = values[0] + (kappa * arrays.residuals(values, _predicted(theta_of_all, phi))).sum(axis=0)
        weights[:, in_fold], cautious_weights[:, in_fold] = kappa[:, in_fold], others_kappa
        thetas.append(theta)
        sums += others_kappa.sum(axis=1)
        spreads += spread
        _fill_q(q, design, fold, theta)
    size = np.where(spreads > 0, sums**2 / np.where(spreads > 0, spreads, 1.0), 0.0)
    influence = cautious_terms - cautious_terms.mean()
    by_policy -= by_policy.mean(axis=1, keepdims=True)
    return HeldOutQ(float(terms.mean()), influence, size, weights, cautious_weights, np.stack(thetas), by_policy, q)


def _implied_weights(
    phi: Sequence[Array], gram: Array, cross: Array, nu: Array, n: int, ridge: float
) -> tuple[Array, Array]:
    """κ (H, n_k) of one fold's patients with features `phi` (d, c_h), 0 once they left, and a bound (H,) of Σκ².

    `gram` and `cross` are sums over `n` patients. The bound is the larger of Σκ² and n_k n νᵀΣ⁻¹ν: directions without
    data make the second the larger one; for patients outside the sums the first may be.
    """
    count = phi[0].shape[1]
    kappa, spread = np.zeros((len(phi), count)), np.zeros(len(phi))
    for h, features in enumerate(phi):
        direction = solve(factor(gram[h] + ridge * np.eye(len(nu))), nu)
        kappa[h, : features.shape[1]] = n * (direction @ features)
        spread[h] = max(count * n * float(nu @ direction), float(np.sum(kappa[h] ** 2)))
        nu = direction @ cross[h]
    return kappa, spread


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
