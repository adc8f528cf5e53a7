"""Importance weights, and the estimators built on them: importance sampling and doubly robust evaluation.

    ρ_{i,h} = Π_{t ≤ h} π(a_t | x_t) / b(a_t | x_t)

A patient who left after step T keeps ρ_{i,T} at every later step, where rewards are 0 (the worth of missing steps was
added to the last reward). Then E ρ_h = 1 at every step, by optional stopping, and a step's normaliser runs over all
patients. Normalising over those still present would value survivors alone: a target under which the dying leave early
would look good.

*Importance sampling.* The paper (Section 5.2) compares methods by a "step-importance sampling estimator" and cites
Thomas and Brunskill (2016) and Gottesman et al. (2018): the reward of step h is weighted by the actions up to step h,
not by later ones. It gives no formula. `per_decision` is that estimator with raw weights; `step_weighted` normalises
the weights within each step, which both references recommend. Intervals take propensities as known. Where they are
estimated by maximum likelihood in a correct model, that is conservative: the estimate varies less than with known ones.

*Doubly robust evaluation* starts from fitted Q and corrects its errors by importance weights:

    V̂ = (1/n) Σ_i V_0(x_{0,i}) + Σ_h mean_ρ( r_{h,i} + V_{h+1}(x_{h+1,i}) − Q_h(x_{h,i}, a_{h,i}) ),  V_h(x) = Q_h(x, π)

where mean_ρ is (1/n) Σ_i ρ_{i,h} (·) in DR (Jiang and Li 2016) and Σ_i ρ_{i,h} (·) / Σ_i ρ_{i,h} in WDR (Thomas and
Brunskill 2016, with their terms collected by weight). V is 0 for patients who have left. The value is consistent if
either Q or the propensities are right. With both cross-fitted, their errors enter only as a product, so the influence
function of V̂ is that with known nuisances: ψ_i = the patient's term − V̂ in DR.

*Advice for some patients.* Where a target leaves the treatment to clinicians, the weight stays as it is, and V_h is Q_h
of what was done. `reached` are patients who were advised at this step or before. Whether a patient is first reached at
step h does not depend on the target, so that E[ρ_h | reached] = 1: weights are normalised among the reached, and the
terms of everybody else are a plain mean. Who is never advised contributes the sum of the own rewards, exactly.

*How many patients stand behind a value.* A decision of patient i at step h changes the weight by d = ρ_{h-1} (π/b − 1),
or the difference of two targets' weights by d = (ρπ − ρ'π')/b − (ρ − ρ'). Where a target mostly agrees with clinicians,
and does otherwise what they rarely do, nearly all of the variance comes from the few who were treated so. Their number
varies, and with it the standard error: too small just where few were, or none. With D_i = Σ_h d_{h,i},

    m = (Σ_i E D_i²)² / Σ_i E D_i⁴,   E D² = Σ_h E d_h²,   E D⁴ = Σ_h E d_h⁴ + 6 Σ_{h<h'} E d_h² E d_h'²

where E is over what clinicians might have done, a ~ b, given the states and ρ, and not over who happened to be treated
so. A squared error has about the spread of χ² with 2m degrees of freedom (Satterthwaite), and intervals use Student's
t on these.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.evaluation.intervals import Statistic, mean_of
from fdtr.evaluation.step_arrays import ByStep, StepArrays, at_actions

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Weights:
    """`ratios` (H, n) are ρ; `clipped_share` (H,) is the share of patients whose ρ was reduced to the cap.

    `reached` (H, n) says whom the target has advised by a step; None: everybody.
    """

    ratios: Array
    clipped_share: Array
    reached: NDArray[np.bool_] | None = None

    @property
    def advised(self) -> NDArray[np.bool_]:
        """Patients whom the target advises at some step, (n,)."""
        return np.ones(self.ratios.shape[1], bool) if self.reached is None else self.reached[-1]

    @property
    def effective_sample_size(self) -> Array:
        """(Σρ)²/Σρ² of each step over the patients who are advised at some step, (H,): weights of others are all 1.

        It is the number of equal weights that carry as much information; that of all patients where nobody is advised.
        """
        return effective_sample_size(self.ratios[:, self.advised] if self.advised.any() else self.ratios)

    @property
    def mean(self) -> Array:
        """Mean weight of each step over the reached, (H,): about 1 where every patient could have been treated so."""
        if self.reached is None:
            return np.asarray(self.ratios.mean(axis=1))
        count = self.reached.sum(axis=1)
        total = (self.ratios * self.reached).sum(axis=1)
        return np.where(count > 0, total / np.maximum(count, 1), 1.0)

    @property
    def mean_error(self) -> Array:
        """Standard error of `mean`, (H,); that of fewer than two weights is the mean itself."""
        counted = np.ones(self.ratios.shape, bool) if self.reached is None else self.reached
        n = counted.sum(axis=1)
        squares = np.where(counted, (self.ratios - self.mean[:, None]) ** 2, 0.0).sum(axis=1)
        return np.where(n > 1, np.sqrt(squares / np.maximum(n - 1, 1) / np.maximum(n, 1)), self.mean)

    @property
    def zero_share(self) -> Array:
        """Share of patients with weight 0, (H,)."""
        return np.asarray(np.mean(self.ratios == 0, axis=1))

    @property
    def largest_share(self) -> Array:
        """Share of the total weight that the heaviest patient has, (H,); 0 where all weights are 0."""
        total = self.ratios.sum(axis=1)
        return np.asarray(self.ratios.max(axis=1) / np.where(total > 0, total, 1.0))


def weigh(
    arrays: StepArrays,
    target: Sequence[Array],
    behaviour: Sequence[Array],
    cap: float | None = None,
    reached: NDArray[np.bool_] | None = None,
) -> Weights:
    """ρ of every patient and step. `target` and `behaviour` hold the action probabilities (A, n_h) of each step.

    `cap` limits every ρ_h; the products for later steps use the uncapped values. `reached` as in `Weights`.
    """
    ratios = np.empty_like(arrays.rewards)
    product = np.ones(arrays.n)
    for h, (actions, target_chances, propensities) in enumerate(zip(arrays.actions, target, behaviour, strict=True)):
        product[: len(actions)] *= at_actions(target_chances, actions) / at_actions(propensities, actions)
        ratios[h] = product
    if cap is None:
        return Weights(ratios, np.zeros(len(ratios)), reached)
    return Weights(np.minimum(ratios, cap), np.asarray(np.mean(ratios > cap, axis=1)), reached)


def effective_sample_size(weights: Array) -> Array:
    """Kish's (Σw)²/Σw² of each row, 0 where all weights are 0.

    >>> effective_sample_size(np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]))
    array([2., 0.])
    """
    largest = np.abs(weights).max(axis=-1, initial=0.0)
    scaled = weights / np.where(largest > 0, largest, 1.0)[..., None]  # squares of tiny weights would underflow
    squares = np.sum(scaled**2, axis=-1)
    return np.asarray(scaled.sum(axis=-1) ** 2 / np.where(squares > 0, squares, 1.0))


def patients_behind(
    changes: Sequence[Array], behaviour: Sequence[Array], n: int, clusters: NDArray[np.intp] | None = None
) -> float:
    """m, the number of independent patients, or `clusters` (n,) of them, whom a difference of weights rests on.

    It is infinite where there is no difference. `changes` d and `behaviour` b are (A, n_h) of each step, for the first
    n_h of `n` patients. Within a cluster, all patients are taken to go together.

    >>> usual = np.array([[0.5, 0.95], [0.5, 0.05]])
    >>> change = np.array([[0.0], [1.0]]) / usual - 1.0
    >>> [round(patients_behind([change[:, [k]]], [usual[:, [k]]], 1), 3) for k in (0, 1)]
    [1.0, 0.055]
    """
    largest = max((float(np.abs(d).max(initial=0.0)) for d in changes), default=0.0) or 1.0  # fourth powers overflow
    second, fourth = np.zeros(n), np.zeros(n)
    for d, usual in zip(changes, behaviour, strict=True):
        squares = (d / largest) ** 2
        of_step, present = (usual * squares).sum(axis=0), slice(0, d.shape[1])
        fourth[present] += (usual * squares**2).sum(axis=0) + 6 * second[present] * of_step
        second[present] += of_step
    if clusters is not None:
        second = np.asarray(np.bincount(clusters, np.sqrt(second)) ** 2, np.float64)
        fourth = np.asarray(np.bincount(clusters, fourth**0.25) ** 4, np.float64)
    total = float(fourth.sum())
    return float(second.sum()) ** 2 / total if total > 0 else math.inf


def per_decision(arrays: StepArrays, weights: Weights) -> Statistic:
    """V̂ = (1/n) Σ_i Σ_h ρ_{i,h} r_{i,h}. Unbiased with true propensities; ψ_i = Σ_h ρ_{i,h} r_{i,h} − V̂.

    Estimated propensities must be fitted to the same patients: no normaliser cancels the upward bias of 1/b̂.
    """
    return mean_of((weights.ratios * arrays.rewards).sum(axis=0))


def step_weighted(arrays: StepArrays, weights: Weights) -> Statistic:
    """V̂ = Σ_h V̂_h, V̂_h = Σ_i ρ_{i,h} r_{i,h} / Σ_i ρ_{i,h}, each sum over all n patients; always within [0, H].

    ψ_i = Σ_h ρ_{i,h} (r_{i,h} − V̂_h) / ρ̄_h. A step at which all weights are 0 counts as 0.
    """
    return _normalised(np.zeros(arrays.n), arrays.rewards, weights)


def doubly_robust(arrays: StepArrays, weights: Weights, q: ByStep, chances: ByStep) -> Statistic:
    """DR with `q` (A, n_h) of each step and the target's `chances` (A, n_h). With Q = 0 it equals `per_decision`."""
    start, residual = _start_and_residuals(arrays, q, chances)
    return mean_of(start + (weights.ratios * residual).sum(axis=0))


def weighted_doubly_robust(arrays: StepArrays, weights: Weights, q: ByStep, chances: ByStep) -> Statistic:
    """WDR: weights normalised within each step. With Q = 0 it equals `step_weighted`."""
    return _normalised(*_start_and_residuals(arrays, q, chances), weights)


def _normalised(start: Array, terms: Array, weights: Weights) -> Statistic:
    """The mean of `start` (n,), plus that of `terms` (H, n) by step: weighted with ρ among the reached, else plain."""
    reached = np.ones(terms.shape, bool) if weights.reached is None else weights.reached
    plain = start + np.where(reached, 0.0, terms).sum(axis=0)
    ones, rho = np.ones(len(plain)), np.where(reached, weights.ratios, 0.0)
    return Statistic(
        numerators=np.vstack([plain, rho * terms]).T,
        denominators=np.vstack([ones, rho]).T,
        signs=np.ones(1 + len(terms)),
        members=np.vstack([ones, reached]).T,
    )


def _start_and_residuals(arrays: StepArrays, q: ByStep, chances: ByStep) -> tuple[Array, Array]:
    """V_0(x_0), (n,), and r + V_{h+1}(x_{h+1}) − Q_h(x_h, a_h), (H, n), 0 for patients who have left."""
    values = tuple((c * estimates).sum(axis=0) for c, estimates in zip(chances, q, strict=True))
    expected = tuple(at_actions(estimates, actions) for estimates, actions in zip(q, arrays.actions, strict=True))
    return values[0], arrays.residuals(values, expected)
