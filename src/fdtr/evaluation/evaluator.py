"""Evaluate policies on one site's patients. Nuisances are fitted once, for all policies and estimators.

An `Evaluator` holds the patients (`SiteData`) and, for every target that it was asked about, a `TargetEvaluation`: its
weights, Q and statistics, each computed when first needed.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.threads import one_blas_thread
from fdtr.evaluation import fitted_q, importance
from fdtr.evaluation.confounding import Confounded, Sensitivity, sensitivity
from fdtr.evaluation.diagnostics import RARE, Diagnostics, diagnose, doubt_size
from fdtr.evaluation.estimate import Caution, CautionKind, Comparison, Estimate, Estimator, name_steps
from fdtr.evaluation.fitted_q import FittedQ, HeldOutQ, OutcomeSums, QOfAll, TransitionSums
from fdtr.evaluation.importance import Weights
from fdtr.evaluation.intervals import BY_INFLUENCE, Interval, IntervalOptions, Range, Statistic, interval_of
from fdtr.evaluation.markov import MarkovCheck, check_markov
from fdtr.evaluation.propensity import Calibration, Propensities, PropensitySteps, calibrate, fit_propensities
from fdtr.evaluation.step_arrays import ByStep, Design, state_functions, step_arrays
from fdtr.evaluation.targets import Behaviour, ByFold, PolicyLike, Target, as_target
from fdtr.features import FeatureMap
from fdtr.trajectories import Trajectories

Array = NDArray[np.float64]

MUCH_RARE = 0.2
"""A caution is given where a target recommends rarely used actions to more than this share of the patients."""

FEW_CLUSTERS = 20
"""Intervals are too short with fewer clusters of equal size than this, counted as (Σ n_g)²/Σ n_g² (docs/methods.md)."""


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
        return importance.weigh(self.data.arrays, self.chances, self.data.propensities.chances, self.cap)

    @cached_property
    def in_sample_weights(self) -> Weights:
        """ρ for estimators without a normaliser: from propensities fitted to these very patients."""
        behaviour = self.data.propensities.in_sample
        return importance.weigh(self.data.arrays, self._chances_of(self.target, behaviour), behaviour, self.cap)

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
    def q(self) -> ByStep:
        """Cross-fitted Q, (A, n_h) of each step."""
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
        return diagnose(self.data.arrays, self.weights, self.chances, self.data.propensities.chances)

    def statistic(self, estimator: Estimator) -> Statistic:
        """The value by an estimator, as ratios of sums over patients."""
        arrays = self.data.arrays
        if estimator == "fqe":
            return self.fitted.statistic
        if estimator == "pdis":
            return importance.per_decision(arrays, self.in_sample_weights)
        if estimator == "wis":
            return importance.step_weighted(arrays, self.weights)
        if estimator == "dr":
            return importance.doubly_robust(arrays, self.weights, self.q, self.chances)
        if estimator == "wdr":
            return importance.weighted_doubly_robust(arrays, self.weights, self.q, self.chances)
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


@dataclass(frozen=True, eq=False, repr=False)
class Evaluator:
    """One site's patients, ready to evaluate any policy.

    `rows` are the patients of one site and `features` the study's feature map. `folds` (n,) labels the fold of each
    patient, in the order of `rows.patients`: a patient's propensities and Q are fitted to the other folds. Policies
    must not have been fitted to these patients; the caller is responsible for that. `clusters` (n,) labels patients
    that are not independent, such as readmissions. `propensities` are used if known, and otherwise fitted, with the
    models that `steps` chooses. `cap` limits the importance weights. `ridge` is λ of fitted Q.
    """

    rows: Trajectories
    features: FeatureMap
    folds: NDArray[Any]
    clusters: NDArray[Any] | None = None
    propensities: Propensities | None = None
    steps: PropensitySteps = "auto"
    cap: float | None = None
    ridge: float = fitted_q.RIDGE
    _evaluations: dict[Any, TargetEvaluation] = field(default_factory=dict, init=False)

    def value(
        self, target: Target | PolicyLike, method: Estimator = "wdr", interval: IntervalOptions = BY_INFLUENCE
    ) -> Estimate:
        """The value of a target to these patients, with its interval, doubt and cautions."""
        evaluation, horizon = self._evaluation(target), self.rows.horizon
        statistic = evaluation.statistic(method).clustered(self.data.clusters)
        limits = interval_of(statistic, Range(0.0, horizon), interval)
        reason = evaluation.doubt(method) or _range_doubt(statistic, limits, horizon)
        if evaluation.lost(method) and interval.kind != "bernstein":  # whose bound holds without any weight, too
            limits = replace(limits, low=0.0, high=float(horizon))
        cautions = evaluation.cautions(method) + _value_cautions(statistic.value, horizon) + _draw_cautions(limits)
        return Estimate(
            method=method,
            value=statistic.value,
            low=limits.low,
            high=limits.high,
            standard_error=limits.standard_error,
            level=interval.level,
            interval=interval.kind,
            effective_sample_size=evaluation.effective_sample_size(method),
            n=self.data.arrays.n,
            n_clusters=statistic.n,
            warnings=cautions,
            reason=reason,
        )

    def compare(
        self,
        first: Target | PolicyLike,
        second: Target | PolicyLike,
        method: Estimator = "wdr",
        interval: IntervalOptions = BY_INFLUENCE,
    ) -> Comparison:
        """The value of the first target minus that of the second, on the same patients."""
        horizon, single = self.rows.horizon, IntervalOptions(level=interval.level)
        evaluations = [self._evaluation(target) for target in (first, second)]
        difference = evaluations[0].statistic(method).minus(evaluations[1].statistic(method))
        statistic = difference.clustered(self.data.clusters)
        limits = interval_of(statistic, Range(-horizon, horizon), interval)
        if any(evaluation.lost(method) for evaluation in evaluations):
            limits = replace(limits, low=-float(horizon), high=float(horizon))
        return Comparison(
            method=method,
            first=self.value(first, method, single),
            second=self.value(second, method, single),
            difference=statistic.value,
            low=limits.low,
            high=limits.high,
            standard_error=limits.standard_error,
        )

    def diagnose(self, target: Target | PolicyLike) -> Diagnostics:
        """Importance weights of the target, and its overlap with clinicians."""
        return self._evaluation(target).diagnostics

    def sensitivity(self, target: Target | PolicyLike) -> Sensitivity:
        """How strong unmeasured confounding must be to reverse the target's difference from clinicians."""
        evaluation, data = self._evaluation(target), self.data
        inputs = Confounded(data.arrays, evaluation.chances, data.propensities.chances, self.cap)
        return sensitivity(inputs, doubt=evaluation.doubt("wis"))

    @cached_property
    def calibration(self) -> Calibration:
        """Predicted against observed propensities."""
        return calibrate(self.data.propensities, self.data.arrays)

    @cached_property
    def markov(self) -> MarkovCheck:
        """Whether the previous step helps to predict the reward, or the clinicians' value from the next state."""
        evaluation = self._evaluation(Behaviour())
        values = fitted_q.values_of(evaluation.fitted_to_all.theta, self.data, evaluation.chances)
        with one_blas_thread():
            return check_markov(self.data, values, self.ridge)

    @cached_property
    def data(self) -> SiteData:
        """The patients as arrays, and everything fitted to them that does not depend on a target."""
        arrays = step_arrays(self.rows)
        folds = _positions(self.folds, arrays.n, "fold")
        if folds.max(initial=0) < 1:
            raise ValueError("Cross-fitting needs patients in two folds at least.")
        clusters = None if self.clusters is None else _positions(self.clusters, arrays.n, "cluster")
        design = Design(arrays, state_functions(arrays, self.features), self.features.embeddings, folds)
        with one_blas_thread():
            return SiteData(
                **vars(design),
                clusters=clusters,
                propensities=self.propensities or fit_propensities(arrays, self.features, folds, self.steps),
                outcomes=fitted_q.sum_outcomes(design),
                cautions=_cluster_cautions(folds, clusters),
            )

    def _evaluation(self, target: Target | PolicyLike) -> TargetEvaluation:
        """Everything that belongs to a target, computed once and cached."""
        if target not in self._evaluations:
            as_chances = as_target(target, self.features.levels)
            self._evaluations[target] = TargetEvaluation(self.data, as_chances, self.cap, self.ridge)
        return self._evaluations[target]


def _positions(labels: NDArray[Any], n: int, what: str) -> NDArray[np.intp]:
    """Labels as positions 0, 1, … among the sorted labels."""
    if np.shape(labels) != (n,):
        raise ValueError(f"Each of {n} patients has one {what}; the labels have the shape {np.shape(labels)}.")
    return np.asarray(np.unique(np.asarray(labels), return_inverse=True)[1], dtype=np.intp)


def _cluster_cautions(folds: NDArray[np.intp], clusters: NDArray[np.intp] | None) -> tuple[Caution, ...]:
    if clusters is None:
        return ()
    cautions, sizes = [], np.bincount(clusters)
    if len(np.unique(clusters * (folds.max() + 1) + folds)) > len(sizes):
        why = "Some clusters lie in several folds: nuisances were fitted to relatives of the patients they are used on."
        cautions.append(Caution(CautionKind.CLUSTER_SPLIT, f"{why} Assign folds by cluster."))
    worth = float(sizes.sum() ** 2 / (sizes**2).sum())
    if worth < FEW_CLUSTERS:
        what = f"There are {len(sizes)} clusters, worth {worth:.1f} of equal size"
        cautions.append(
            Caution(CautionKind.FEW_CLUSTERS, f"{what}; below {FEW_CLUSTERS} intervals tend to be too short.")
        )
    return tuple(cautions)


def _range_doubt(statistic: Statistic, limits: Interval, horizon: int) -> str:
    """Not believable if the estimate is so far outside [0, H] that its interval was clipped to a point."""
    if 0 <= statistic.value <= horizon or limits.low < limits.high:
        return ""
    return f"The whole interval lies outside [0, {horizon}], where every value is."


def _value_cautions(value: float, horizon: int) -> tuple[Caution, ...]:
    if 0 <= value <= horizon:
        return ()
    what = f"The estimate {value:.3f} lies outside [0, {horizon}], where every value is; its interval was clipped."
    return (Caution(CautionKind.OUTSIDE_RANGE, what),)


def _draw_cautions(limits: Interval) -> tuple[Caution, ...]:
    if limits.undefined == 0:
        return ()
    what = f"In {limits.undefined:.1%} of bootstrap draws some step had no weight left; it counted as 0."
    return (Caution(CautionKind.UNDEFINED_DRAWS, what),)
