"""One target on one site's patients: weights, Q and estimators, each computed when it is first asked for."""

from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.threads import one_blas_thread
from fdtr.evaluation.cautions import Caution, Kind, steps
from fdtr.evaluation.diagnostics import RARE, Diagnostics, Verdict, diagnose, first_doubt, judge
from fdtr.evaluation.doubly_robust import cross_fitted_q, doubly_robust, truncated, weighted_doubly_robust
from fdtr.evaluation.estimate import Method
from fdtr.evaluation.fitted_q import FittedQ, fit_q
from fdtr.evaluation.held_out_q import HeldOutQ, fit_held_out_q
from fdtr.evaluation.importance import per_decision, step_weighted
from fdtr.evaluation.paths import ByStep, Paths
from fdtr.evaluation.propensity import Propensities
from fdtr.evaluation.regression import Onward, Outcomes, sum_onward
from fdtr.evaluation.statistic import Statistic
from fdtr.evaluation.target import ByFold, Target
from fdtr.evaluation.weights import Weights, weigh

Array = NDArray[np.float64]

MUCH_RARE = 0.2
"""A target that recommends rarely used actions to more than this share of patients at a step is told so."""


@dataclass(frozen=True, eq=False, repr=False)
class Given:
    """What no target changes: `paths`; ψ of every step; B_a; `folds` and `clusters` (n,) as positions; nuisances."""

    paths: Paths
    psi: ByStep
    embeddings: Array
    folds: NDArray[np.intp]
    clusters: NDArray[np.intp] | None
    propensities: Propensities
    outcomes: Outcomes
    cautions: tuple[Caution, ...]


@dataclass(frozen=True, eq=False, repr=False)
class View:
    """A `target` and what is `given`; `cap` of its importance weights, `ridge` λ of its Q."""

    given: Given
    target: Target
    cap: float | None
    ridge: float

    @cached_property
    def chances(self) -> ByStep:
        """Chances of every action, (A, n_h) of every step."""
        return self._chances_of(self.target, self.given.propensities.chances)

    def _chances_of(self, target: Target, behaviour: ByStep) -> ByStep:
        pairs = zip(self.given.paths.states, behaviour, strict=True)
        return tuple(target.chances(states, h, usual) for h, (states, usual) in enumerate(pairs))

    @cached_property
    def weights(self) -> Weights:
        """ρ of every patient and step."""
        return weigh(self.given.paths, self.chances, self.given.propensities.chances, self.cap)

    @cached_property
    def in_sample(self) -> Weights:
        """ρ for what does not normalise it: by propensities that were fitted to these very patients."""
        behaviour = self.given.propensities.in_sample
        return weigh(self.given.paths, self._chances_of(self.target, behaviour), behaviour, self.cap)

    @property
    def fitted(self) -> FittedQ | HeldOutQ:
        """Fitted Q: of all patients, or held out where each fold has a policy that was fitted to the others."""
        return self.of_all if self.held_out is None else self.held_out

    @cached_property
    def of_all(self) -> FittedQ:
        """Fitted Q on all patients."""
        given, onward = self.given, self._onward
        with one_blas_thread():
            return fit_q(given.paths, given.psi, given.embeddings, self.chances, given.outcomes, onward, self.ridge)

    @cached_property
    def held_out(self) -> HeldOutQ | None:
        """Fitted Q corrected on the patients that a fold's policy has not seen; None where there is one policy."""
        if not isinstance(self.target, ByFold):
            return None
        given, own = self.given, self.target.folds
        if not np.array_equal(own, given.folds):
            raise ValueError("The policies' folds are not those in which these patients are evaluated.")
        by_fold = [self._chances_of(target, given.propensities.chances) for target in self.target.targets]
        with one_blas_thread():
            return fit_held_out_q(given.paths, given.psi, given.embeddings, own, by_fold, given.outcomes, self.ridge)

    @cached_property
    def q(self) -> ByStep:
        """Cross-fitted Q, (A, n_h) of every step."""
        if self.held_out is not None:
            return truncated(self.held_out.q)
        given, onward = self.given, self._onward
        with one_blas_thread():
            return cross_fitted_q(given.psi, given.embeddings, given.folds, given.outcomes, onward, self.ridge)

    @cached_property
    def diagnostics(self) -> Diagnostics:
        """Weights and overlap."""
        return diagnose(self.given.paths, self.weights, self.chances, self.given.propensities.chances)

    def statistic(self, method: Method) -> Statistic:
        """The value by a method, as patients make it up."""
        paths = self.given.paths
        if method == "fqe":
            return self.fitted.statistic
        if method == "pdis":
            return per_decision(paths, self.in_sample)
        if method == "wis":
            return step_weighted(paths, self.weights)
        if method == "dr":
            return doubly_robust(paths, self.weights, self.q, self.chances)
        if method == "wdr":
            return weighted_doubly_robust(paths, self.weights, self.q, self.chances)
        raise ValueError(f"Method {method!r} is unknown; there are {', '.join(get_args(Method))}.")

    def effective_sample_size(self, method: Method) -> Array:
        """Of the weights that the method works with, (H,)."""
        return self.fitted.effective_sample_size if method == "fqe" else self.weights.effective_sample_size

    def verdict(self, method: Method) -> Verdict:
        """Whether those weights say enough, and of patients who could have been treated so."""
        if method != "fqe":
            return self.diagnostics.verdict
        return first_doubt(judge(self.effective_sample_size(method), self.given.paths.n), self.diagnostics.support)

    def lost(self, method: Method) -> bool:
        """Whether some step has no weight left, so that the method's interval would be about nothing."""
        return method != "fqe" and not self.weights.ratios.any(axis=1).all()

    def cautions(self, method: Method) -> tuple[Caution, ...]:
        """What to know beside the value by a method."""
        told = list(self.given.propensities.cautions) if method != "fqe" else []
        told += self.given.cautions
        told += self._about_model() if method == "fqe" else self._about_weights()
        rare = np.flatnonzero(self.diagnostics.overlap.rare_share > MUCH_RARE)
        if len(rare):
            most = self.diagnostics.overlap.rare_share[rare].max()
            what = f"up to {most:.0%} of recommended actions have a propensity below {RARE:g}"
            told.append(Caution(Kind.RARE_ACTIONS, f"At {steps(rare.tolist())} {what}: clinicians hardly do that."))
        return tuple(told)

    def _about_weights(self) -> list[Caution]:
        told = []
        empty = np.flatnonzero(~self.weights.ratios.any(axis=1))
        if len(empty):
            what = "no patient was treated as the target would have; the interval is all that is possible"
            told.append(Caution(Kind.NO_WEIGHT_LEFT, f"By {steps(empty[:1].tolist())} {what}."))
        if self.weights.clipped_share.any():
            most = self.weights.clipped_share.max()
            what = f"Weights above {self.cap:g} were cut off, for up to {most:.1%} of patients at a step"
            told.append(Caution(Kind.CLIPPED_WEIGHTS, f"{what}: the value is biased towards those kept whole."))
        return told

    def _about_model(self) -> list[Caution]:
        if self.diagnostics.verdict.believable:
            return []
        what = "Importance weights are worth too little to check this value: it rests on the linear model alone"
        return [Caution(Kind.MODEL_ALONE, f"{what}. {self.diagnostics.verdict.reason}")]

    @cached_property
    def _onward(self) -> Onward:
        given, chances = self.given, self.chances
        with one_blas_thread():
            return sum_onward(given.paths, given.psi, given.embeddings, given.folds, chances)
