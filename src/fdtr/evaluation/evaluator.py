"""Evaluate policies on one site's patients. Nuisances are fitted once, for all policies and estimators.

An `Evaluator` holds the patients (`SiteData`) and a `TargetEvaluation` for every target that it was asked about.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.threads import on_one_blas_thread, one_blas_thread
from fdtr.evaluation import fitted_q
from fdtr.evaluation.assessment import Assessment, assess
from fdtr.evaluation.confounding import Confounded, Sensitivity, sensitivity
from fdtr.evaluation.diagnostics import Diagnostics
from fdtr.evaluation.estimate import Caution, CautionKind, Comparison, Estimate, Estimator
from fdtr.evaluation.intervals import BY_INFLUENCE, LEVEL, Interval, IntervalOptions, Range, Statistic, interval_of
from fdtr.evaluation.markov import MarkovCheck, check_markov
from fdtr.evaluation.propensity import (
    Calibration,
    Propensities,
    PropensitySteps,
    calibrate,
    fit_propensities,
    ways_to_fit,
)
from fdtr.evaluation.richer_q import products
from fdtr.evaluation.step_arrays import Design, state_functions, step_arrays
from fdtr.evaluation.subgroups import Group, GroupGain, gains_in_groups
from fdtr.evaluation.target_evaluation import SiteData, TargetEvaluation
from fdtr.evaluation.targets import Treatment, as_target
from fdtr.evaluation.trees import best_propensities
from fdtr.features import FeatureMap
from fdtr.trajectories import Sample, Trajectories

Array = NDArray[np.float64]

FEW_CLUSTERS = 20
"""Intervals are too short with fewer clusters of equal size than this, counted as (Σ n_g)²/Σ n_g² (docs/methods.md)."""


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

    @on_one_blas_thread
    def value(
        self,
        target: Treatment,
        method: Estimator = "wdr",
        interval: IntervalOptions = BY_INFLUENCE,
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
            value=min(max(statistic.value, 0.0), float(horizon)),
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

    @on_one_blas_thread
    def compare(
        self,
        first: Treatment,
        second: Treatment,
        method: Estimator = "wdr",
        interval: IntervalOptions = BY_INFLUENCE,
    ) -> Comparison:
        """The value of the first target minus that of the second, on the same patients."""
        horizon, single = self.rows.horizon, IntervalOptions(level=interval.level)
        evaluations = [self._evaluation(target) for target in (first, second)]
        statistic = evaluations[0].difference(evaluations[1], method).clustered(self.data.clusters)
        limits = interval_of(statistic, Range(-horizon, horizon), interval)
        if any(evaluation.lost(method) for evaluation in evaluations):
            limits = replace(limits, low=-float(horizon), high=float(horizon))
        return Comparison(
            method=method,
            first=self.value(first, method, single),
            second=self.value(second, method, single),
            difference=min(max(statistic.value, -float(horizon)), float(horizon)),
            low=limits.low,
            high=limits.high,
            standard_error=limits.standard_error,
        )

    @on_one_blas_thread
    def assess(
        self,
        target: Treatment,
        over: Treatment | None = None,
        level: float = LEVEL,
    ) -> Assessment:
        """What can be said of a target's value, or of its paired gain `over` another (`fdtr.evaluation.assessment`)."""
        base = None if over is None else self._evaluation(over)
        return assess(self._evaluation(target), base, level, lambda: self.markov.clear)

    @on_one_blas_thread
    def count_differing(self, first: Treatment, second: Treatment) -> int:
        """How many patients two targets treat differently at some step."""
        return int(self._evaluation(first).decides_unlike(self._evaluation(second)).sum())

    @on_one_blas_thread
    def gains_in(
        self, groups: Sequence[Group], target: Treatment, over: Treatment, min_patients: int, level: float = LEVEL
    ) -> list[GroupGain]:
        """The verified gain of a target `over` another in each of some groups of the patients."""
        return gains_in_groups(self._evaluation(target), self._evaluation(over), groups, min_patients, level)

    def evaluation(self, target: Treatment) -> TargetEvaluation:
        """Weights, models and diagnostics of one target."""
        return self._evaluation(target)

    @on_one_blas_thread
    def diagnose(self, target: Treatment) -> Diagnostics:
        """Importance weights of the target, and its overlap with clinicians."""
        return self._evaluation(target).diagnostics

    @on_one_blas_thread
    def sensitivity(self, target: Treatment) -> Sensitivity:
        """How strong unmeasured confounding must be to reverse the target's difference from clinicians."""
        evaluation, data = self._evaluation(target), self.data
        inputs = Confounded(data.arrays, evaluation.chances, evaluation.behaviour, self.cap)
        return sensitivity(inputs, doubt=evaluation.doubt("wis"))

    @cached_property
    def calibration(self) -> Calibration:
        """Predicted against observed propensities."""
        return calibrate(self.data.propensities, self.data.arrays)

    @cached_property
    def markov(self) -> MarkovCheck:
        """Whether the previous step helps to predict the reward, or the clinicians' value from the next state."""
        data, chances = self.data, self.data.propensities.chances
        with one_blas_thread():
            transitions = fitted_q.sum_transitions(data, chances)
            theta = fitted_q.fit_q(data, chances, data.outcomes, transitions, self.ridge).theta
            values = fitted_q.values_of(theta, data, chances)
            return check_markov(data, values, data.richer, data.clusters, self.ridge)

    @cached_property
    def data(self) -> SiteData:
        """The patients as arrays, and everything fitted to them that does not depend on a target."""
        arrays = step_arrays(self.rows)
        folds = _positions(self.folds, arrays.n, "fold")
        if folds.max(initial=0) < 1:
            raise ValueError("Cross-fitting needs patients in two folds at least.")
        clusters = None if self.clusters is None else _positions(self.clusters, arrays.n, "cluster")
        psi = state_functions(arrays, self.features)
        design, richer = Design(arrays, psi, self.features.embeddings, folds), products(psi, self.features)
        with one_blas_thread():
            propensities = self.propensities
            if propensities is None:
                ways = ways_to_fit(arrays, self.features) if self.steps == "auto" else (self.steps,)
                logistic = [fit_propensities(arrays, self.features, folds, way) for way in ways]
                propensities = best_propensities(logistic, arrays, folds) if self.steps == "auto" else logistic[0]
            return SiteData(
                **vars(design),
                clusters=clusters,
                propensities=propensities,
                outcomes=fitted_q.sum_outcomes(design),
                cautions=_cluster_cautions(folds, clusters) + _sample_cautions(self.rows.sample),
                richer=richer,
            )

    def _evaluation(self, target: Treatment) -> TargetEvaluation:
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


def _sample_cautions(sample: Sample | None) -> tuple[Caution, ...]:
    return () if sample is None else (Caution(CautionKind.SAMPLED, f"Valued on {sample}."),)


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
