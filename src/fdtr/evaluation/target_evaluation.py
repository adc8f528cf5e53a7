"""One target on one site's patients: weights, Q and estimators, each computed when first needed."""

from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.threads import one_blas_thread
from fdtr.evaluation.diagnostics import RARE, Diagnostics, diagnose, doubt_size
from fdtr.evaluation.estimate import Caution, CautionKind, Estimator, name_steps
from fdtr.evaluation.fitted_q import (
    FittedQ,
    HeldOutQ,
    OutcomeSums,
    QOfAll,
    TransitionSums,
    cross_fitted_q,
    fit_held_out_q,
    fit_q,
    sum_transitions,
    truncated,
)
from fdtr.evaluation.importance import (
    Weights,
    doubly_robust,
    per_decision,
    step_weighted,
    weigh,
    weighted_doubly_robust,
)
from fdtr.evaluation.intervals import Statistic
from fdtr.evaluation.propensity import Propensities
from fdtr.evaluation.step_arrays import ByStep, Design
from fdtr.evaluation.targets import ByFold, Target

Array = NDArray[np.float64]

MUCH_RARE = 0.2
"""A caution is given where a target recommends rarely used actions to more than this share of the patients."""


@dataclass(frozen=True, eq=False, repr=False)
class SiteData(Design):
    """One site's data and everything fitted to it that does not depend on a target; `clusters` (n,) are positions."""

    clusters: NDArray[np.intp] | None
    propensities: Propensities
    outcomes: OutcomeSums
    cautions: tuple[Caution, ...]


@dataclass(frozen=True, eq=False, repr=False)
class TargetEvaluation:
    """A `target` on the patients of `data`; `cap` limits its importance weights, `ridge` is λ of its fitted Q."""

    data: SiteData
    target: Target
    cap: float | None
    ridge: float

    @cached_property
    def chances(self) -> ByStep:
        """Probabilities of the target's actions, (A, n_h) of each step."""
        return self._chances_of(self.target, self.data.propensities.chances)

    def _chances_of(self, target: Target, behaviour: ByStep) -> ByStep:
        pairs = zip(self.data.arrays.states, behaviour, strict=True)
        return tuple(target.chances(states, h, propensities) for h, (states, propensities) in enumerate(pairs))

    @cached_property
    def weights(self) -> Weights:
        """ρ of every patient and step."""
        return weigh(self.data.arrays, self.chances, self.data.propensities.chances, self.cap)

    @cached_property
    def in_sample_weights(self) -> Weights:
        """ρ for estimators without a normaliser: from propensities fitted to these very patients."""
        behaviour = self.data.propensities.in_sample
        return weigh(self.data.arrays, self._chances_of(self.target, behaviour), behaviour, self.cap)

    @property
    def fitted(self) -> FittedQ:
        """Fitted Q: on all patients, or held out where each fold has its own policy."""
        return self.fitted_to_all if self.held_out is None else self.held_out

    @cached_property
    def fitted_to_all(self) -> QOfAll:
        """Fitted Q on all patients."""
        with one_blas_thread():
            return fit_q(self.data, self.chances, self.data.outcomes, self._transitions, self.ridge)

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
            return fit_held_out_q(data, by_fold, data.outcomes, self.ridge)

    @cached_property
    def q(self) -> ByStep:
        """Cross-fitted Q, (A, n_h) of each step."""
        if self.held_out is not None:
            return truncated(self.held_out.q)
        with one_blas_thread():
            return cross_fitted_q(self.data, self.data.outcomes, self._transitions, self.ridge)

    @cached_property
    def _transitions(self) -> TransitionSums:
        with one_blas_thread():
            return sum_transitions(self.data, self.chances)

    @cached_property
    def diagnostics(self) -> Diagnostics:
        """Weights and overlap."""
        return diagnose(self.data.arrays, self.weights, self.chances, self.data.propensities.chances)

    def statistic(self, estimator: Estimator) -> Statistic:
        """The value by an estimator, as ratios of sums over patients."""
        arrays = self.data.arrays
        if estimator == "fqe":
            return self.fitted.statistic
        if estimator == "pdis":
            return per_decision(arrays, self.in_sample_weights)
        if estimator == "wis":
            return step_weighted(arrays, self.weights)
        if estimator == "dr":
            return doubly_robust(arrays, self.weights, self.q, self.chances)
        if estimator == "wdr":
            return weighted_doubly_robust(arrays, self.weights, self.q, self.chances)
        raise ValueError(f"Method {estimator!r} is unknown; there are {', '.join(get_args(Estimator))}.")

    def effective_sample_size(self, estimator: Estimator) -> Array:
        """Effective sample size of the weights that the estimator uses, (H,)."""
        return self.fitted.effective_sample_size if estimator == "fqe" else self.weights.effective_sample_size

    def doubt(self, estimator: Estimator) -> str:
        """That those weights carry too little information, or that clinicians do not do what the target recommends."""
        if estimator != "fqe":
            return self.diagnostics.doubt
        return doubt_size(self.effective_sample_size(estimator), self.data.arrays.n) or self.diagnostics.support_doubt

    def lost(self, estimator: Estimator) -> bool:
        """Whether all weights of some step are 0, so the estimator's interval would mean nothing."""
        return estimator != "fqe" and not self.weights.ratios.any(axis=1).all()

    def cautions(self, estimator: Estimator) -> tuple[Caution, ...]:
        """What a reader must know about the value by an estimator."""
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
