"""One target on one site's patients: weights, Q, statistics, diagnostics and cautions, each computed when needed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.threads import one_blas_thread
from fdtr.evaluation import fitted_q, importance
from fdtr.evaluation.diagnostics import NEVER, RARE, Diagnostics, diagnose, doubt_size
from fdtr.evaluation.estimate import Caution, CautionKind, Doubt, Estimator, name_steps
from fdtr.evaluation.fitted_q import FittedQ, HeldOutQ, OutcomeSums, QOfAll, TransitionSums
from fdtr.evaluation.importance import Weights
from fdtr.evaluation.intervals import Statistic, mean_of
from fdtr.evaluation.propensity import Propensities
from fdtr.evaluation.richer_q import RicherQ, fit_richer_q
from fdtr.evaluation.step_arrays import ByStep, Design
from fdtr.evaluation.targets import Behaviour, ByFold, Target, abstentions
from fdtr.evaluation.trees import unexplained

Array = NDArray[np.float64]

MUCH_RARE = 0.2
"""A caution is given where a target recommends rarely used actions to more than this share of the patients."""


@dataclass(frozen=True, eq=False, repr=False)
class SiteData(Design):
    """One site's data and everything fitted to it that does not depend on a target.

    `clusters` (n,) are positions; `richer` are the functions of richer models, (p, n_h) of each step.
    """

    clusters: NDArray[np.intp] | None
    propensities: Propensities
    outcomes: OutcomeSums
    cautions: tuple[Caution, ...]
    richer: ByStep

    @property
    def n_units(self) -> int:
        """Independent patients, or clusters of them."""
        return self.arrays.n if self.clusters is None else int(self.clusters.max()) + 1


@dataclass(frozen=True, eq=False, repr=False)
class TargetEvaluation:
    """A `target` on the patients of `data`; `cap` limits its importance weights, `ridge` is λ of its fitted Q."""

    data: SiteData
    target: Target
    cap: float | None
    ridge: float

    @property
    def is_usual(self) -> bool:
        """Whether the target is what clinicians do: the observed mean, which needs no model."""
        return isinstance(self.target, Behaviour)

    @cached_property
    def chances(self) -> ByStep:
        """Probabilities of the target's actions, (A, n_h) of each step; 1 for what was given where it abstains."""
        return self._chances_of(self.target, self.data.propensities.chances)

    def _chances_of(self, target: Target, behaviour: ByStep) -> ByStep:
        pairs = zip(self.data.arrays.states, behaviour, strict=True)
        with one_blas_thread():
            chances = [target.chances(states, h, propensities) for h, (states, propensities) in enumerate(pairs)]
        return self._given_where(self._abstentions_of(target), chances)

    def _abstentions_of(self, target: Target) -> tuple[NDArray[np.bool_], ...]:
        with one_blas_thread():
            return tuple(abstentions(target, states, h) for h, states in enumerate(self.data.arrays.states))

    @cached_property
    def abstains(self) -> tuple[NDArray[np.bool_], ...]:
        """Whose treatment the target leaves to clinicians, (n_h,) of each step."""
        return self._abstentions_of(self.target)

    def _given_where(self, abstains: Sequence[NDArray[np.bool_]], chances: Sequence[Array]) -> ByStep:
        """`chances` (A, n_h) of each step, with certainty for the action given where a target abstains."""
        given = (
            np.arange(len(table))[:, None] == a for table, a in zip(chances, self.data.arrays.actions, strict=True)
        )
        parts = zip(abstains, given, chances, strict=True)
        return tuple(np.where(left, taken, table) if left.any() else table for left, taken, table in parts)

    @cached_property
    def behaviour(self) -> ByStep:
        """The clinicians' propensities, (A, n_h) of each step; certain of what was given where the target abstains."""
        return self._given_where(self.abstains, self.data.propensities.chances)

    @cached_property
    def reached(self) -> NDArray[np.bool_] | None:
        """Whom the target has advised by each step, (H, n); None: everybody at the first step, or nobody is meant."""
        if self.is_usual or not any(left.any() for left in self.abstains):
            return None
        advised = np.zeros(self.data.arrays.rewards.shape, bool)
        for row, left in zip(advised, self.abstains, strict=True):
            row[: len(left)] = ~left
        return np.logical_or.accumulate(advised, axis=0)

    def decides_unlike(self, other: "TargetEvaluation | None") -> NDArray[np.bool_]:
        """Patients whom this target and another one do not treat alike at some step, (n,).

        What clinicians practically always do is the same as leaving it to them. Without another target, those for whom
        it decides at all: everybody but for a target that advises some patients only.
        """
        if other is None:
            return np.ones(self.data.arrays.n, bool) if self.is_usual else self.weights.advised
        unlike = np.zeros(self.data.arrays.n, bool)
        for own, others in zip(self._wanted, other._wanted, strict=True):
            unlike[: own.shape[1]] |= np.abs(own - others).max(axis=0, initial=0.0) > NEVER
        return unlike

    @cached_property
    def _wanted(self) -> ByStep:
        """Probabilities of actions, (A, n_h) of each step: the clinicians' own where it abstains."""
        pairs = zip(self.abstains, self.chances, self.data.propensities.chances, strict=True)
        return tuple(np.where(left, usual, table) for left, table, usual in pairs)

    @property
    def advised_share(self) -> float:
        """The share of all decisions in which the target advises."""
        return 1 - sum(int(left.sum()) for left in self.abstains) / max(sum(self.data.arrays.counts), 1)

    @cached_property
    def weights(self) -> Weights:
        """ρ of every patient and step."""
        return importance.weigh(self.data.arrays, self.chances, self.behaviour, self.cap, self.reached)

    def patients_behind(self, other: "TargetEvaluation | None" = None, among: NDArray[np.bool_] | None = None) -> float:
        """How many patients, or clusters, of all or `among` some (n,), its difference from another target rests on.

        The other one is what clinicians do if None.
        """
        usual, changes = self.data.propensities.chances, []
        for h, (wanted, chances) in enumerate(zip(self._wanted, usual, strict=True)):
            rho, other_rho, other_wanted = self._before(h), np.ones(wanted.shape[1]), chances
            if other is not None:
                other_rho, other_wanted = other._before(h), other._wanted[h]
            unlike = rho * wanted - other_rho * other_wanted
            change = np.divide(unlike, chances, out=np.zeros_like(unlike), where=chances > 0) - (rho - other_rho)
            changes.append(change if among is None else np.where(among[: len(rho)], change, 0.0))
        return importance.patients_behind(changes, usual, self.data.arrays.n, self.data.clusters)

    def _before(self, h: int) -> Array:
        """ρ before the decisions of step h, (n_h,)."""
        count = len(self.data.arrays.actions[h])
        return self.weights.ratios[h - 1, :count] if h and not self.is_usual else np.ones(count)

    def difference(self, other: "TargetEvaluation", estimator: Estimator | Literal["richer"]) -> Statistic:
        """The value less that of another target, paired by patient."""
        statistic = self.statistic(estimator).minus(other.statistic(estimator))
        if estimator in ("fqe", "richer"):
            return statistic
        return replace(statistic, freedom=2 * self.patients_behind(other))

    @cached_property
    def in_sample_weights(self) -> Weights:
        """ρ for estimators without a normaliser: from propensities fitted to these very patients."""
        in_sample = self.data.propensities.in_sample
        behaviour = self._given_where(self.abstains, in_sample)
        chances = self._chances_of(self.target, in_sample)
        return importance.weigh(self.data.arrays, chances, behaviour, self.cap, self.reached)

    @property
    def fitted(self) -> FittedQ:
        """Fitted Q: on all patients, or held out where each fold has its own policy."""
        return self.fitted_to_all if self.held_out is None else self.held_out

    @cached_property
    def fitted_to_all(self) -> QOfAll:
        """Fitted Q on all patients."""
        with one_blas_thread():
            return fitted_q.fit_q(self.data, self.chances, self.data.outcomes, self._transitions, self.ridge)

    @cached_property
    def held_out(self) -> HeldOutQ | None:
        """Fitted Q corrected on the patients whom a fold's policy has not seen; None where there is one policy."""
        if not isinstance(self.target, ByFold):
            return None
        data = self.data
        if not np.array_equal(self.target.folds, data.folds):
            raise ValueError("The policies' folds are not those in which these patients are evaluated.")
        by_fold = [self._chances_of(target, data.propensities.chances) for target in self.target.targets]
        with one_blas_thread():
            return fitted_q.fit_held_out_q(data, by_fold, data.outcomes, self.ridge)

    @cached_property
    def richer(self) -> RicherQ:
        """The richer model's Q of the target, and how it differs from the linear one."""
        data, target = self.data, self.target
        targets = target.targets if isinstance(target, ByFold) else [target] * data.n_folds
        by_fold = [self._chances_of(each, data.propensities.chances) for each in targets]
        with one_blas_thread():
            behaviour = data.propensities.chances
            return fit_richer_q(data, data.richer, by_fold, self.fitted, behaviour, data.clusters, self.ridge)

    @cached_property
    def unexplained(self) -> float:
        """T of what the richer model, or the linear one where it is no better, leaves of the outcomes."""
        return unexplained(self.richer, self.data.arrays, self.data.folds, self.data.clusters)

    @cached_property
    def q(self) -> ByStep:
        """Cross-fitted Q, (A, n_h) of each step: the richer model's where held-out data reject the linear one."""
        if self.richer.rejects:
            return self.richer.q
        if self.held_out is not None:
            return fitted_q.truncated(self.held_out.q)
        with one_blas_thread():
            return fitted_q.cross_fitted_q(self.data, self.data.outcomes, self._transitions, self.ridge)

    @cached_property
    def _transitions(self) -> TransitionSums:
        with one_blas_thread():
            return fitted_q.sum_transitions(self.data, self.chances)

    @cached_property
    def diagnostics(self) -> Diagnostics:
        """Weights and overlap."""
        return diagnose(self.data.arrays, self.weights, self.chances, self.behaviour)

    def statistic(self, estimator: Estimator | Literal["richer"]) -> Statistic:
        """The value by an estimator, as ratios of sums over patients; for clinicians the observed mean by every one."""
        arrays = self.data.arrays
        if self.is_usual and estimator in (*get_args(Estimator), "richer"):
            return mean_of(arrays.rewards.sum(axis=0))
        if estimator == "fqe":
            return self.fitted.statistic
        if estimator == "richer":
            return self.richer.statistic
        weights = self.in_sample_weights if estimator == "pdis" else self.weights
        if estimator == "pdis":
            value = importance.per_decision(arrays, weights)
        elif estimator == "wis":
            value = importance.step_weighted(arrays, weights)
        elif estimator == "dr":
            value = importance.doubly_robust(arrays, weights, self.q, self.chances)
        elif estimator == "wdr":
            value = importance.weighted_doubly_robust(arrays, weights, self.q, self.chances)
        else:
            raise ValueError(f"Method {estimator!r} is unknown; there are {', '.join(get_args(Estimator))}.")
        return replace(value, freedom=2 * self.patients_behind())

    def effective_sample_size(self, estimator: Estimator) -> Array:
        """Effective sample size of the weights that the estimator uses, (H,)."""
        by_model = estimator == "fqe" and not self.is_usual
        return self.fitted.effective_sample_size if by_model else self.weights.effective_sample_size

    def doubt(self, estimator: Estimator) -> Doubt:
        """That those weights carry too little information, or that clinicians do not do what the target recommends."""
        if estimator != "fqe":
            return self.diagnostics.doubt
        return doubt_size(self.effective_sample_size(estimator), self.data.arrays.n) or self.diagnostics.support_doubt

    def lost(self, estimator: Estimator) -> bool:
        """Whether all weights of some step are 0, so the estimator's interval would mean nothing."""
        return estimator != "fqe" and not self.weights.ratios.any(axis=1).all()

    def cautions(self, estimator: Estimator) -> tuple[Caution, ...]:
        """What a reader must know about the value by an estimator."""
        if self.is_usual:
            return self.data.cautions
        cautions = list(self.data.propensities.cautions) if estimator != "fqe" else []
        cautions += self.data.cautions
        cautions += self._model_cautions() if estimator == "fqe" else self._weight_cautions()
        rare_share = self.diagnostics.overlap.rare_share
        rare = np.flatnonzero(rare_share > MUCH_RARE)
        if len(rare):
            what = f"up to {rare_share[rare].max():.0%} of recommended actions have a propensity below {RARE:g}"
            sentence = f"At {name_steps(rare.tolist())} {what}: clinicians hardly do that."
            cautions.append(Caution(CautionKind.RARE_ACTIONS, sentence))
        return tuple(cautions)

    def _weight_cautions(self) -> list[Caution]:
        cautions = []
        empty = np.flatnonzero(~self.weights.ratios.any(axis=1))
        if len(empty):
            what = "no patient was treated as the target would have; the interval is all that is possible"
            cautions.append(Caution(CautionKind.NO_WEIGHT_LEFT, f"By {name_steps(empty[:1].tolist())} {what}."))
        if self.weights.clipped_share.any():
            most = self.weights.clipped_share.max()
            what = f"Weights above {self.cap:g} were cut off, for up to {most:.1%} of patients at a step"
            cautions.append(
                Caution(CautionKind.CLIPPED_WEIGHTS, f"{what}: the value is biased towards those kept whole.")
            )
        return cautions

    def _model_cautions(self) -> list[Caution]:
        if not self.diagnostics.doubt:
            return []
        what = "Importance weights are worth too little to check this value: it rests on the linear model alone"
        return [Caution(CautionKind.MODEL_ALONE, f"{what}. {self.diagnostics.doubt}")]
