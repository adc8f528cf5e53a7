"""Evaluate policies on one site's patients: nuisances are fitted once, for every policy and method."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.threads import one_blas_thread
from fdtr.evaluation.calibration import Calibration, calibrate
from fdtr.evaluation.cautions import Caution, Kind
from fdtr.evaluation.confounding import Sensitivity, confounded, sensitivity
from fdtr.evaluation.diagnostics import Diagnostics, Verdict, first_doubt
from fdtr.evaluation.estimate import Comparison, Estimate, IntervalKind, Method
from fdtr.evaluation.fitted_q import values_of
from fdtr.evaluation.intervals import (
    DRAWS,
    LEVEL,
    Draws,
    Interval,
    Range,
    bernstein_interval,
    bootstrap,
    bootstrap_interval,
    influence_interval,
)
from fdtr.evaluation.markov import MarkovCheck, check_markov
from fdtr.evaluation.paths import paths_of, state_functions
from fdtr.evaluation.propensity import Propensities, Steps, fit_propensities
from fdtr.evaluation.regression import RIDGE, sum_outcomes
from fdtr.evaluation.statistic import Statistic
from fdtr.evaluation.target import Acting, Behaviour, Target, as_target
from fdtr.evaluation.view import Given, View
from fdtr.features import FeatureMap
from fdtr.trajectories import Trajectories

Array = NDArray[np.float64]


@dataclass(frozen=True)
class IntervalOptions:
    """Which interval: its `kind` and `level`; for the bootstrap the number of `draws` and the generator `rng`."""

    kind: IntervalKind = "influence"
    level: float = LEVEL
    draws: int = DRAWS
    rng: np.random.Generator | None = None


BY_INFLUENCE = IntervalOptions()

FEW_CLUSTERS = 20
"""Clusters worth fewer than these, (Σ n_g)²/Σ n_g² of their sizes, make intervals too short (docs/methods.md)."""


@dataclass(frozen=True, eq=False, repr=False)
class Evaluator:
    """One site's patients, ready for any policy.

    `folds` (n,) says to which fold each patient belongs, in the order of `rows.patients`: propensities and Q of a
    patient come from the other folds. Policies must not have been fitted to these patients: that is the caller's duty.
    `clusters` (n,), where given, labels patients that are not independent, such as readmissions or a clinician's.
    `propensities`, where given, are known and are not fitted; else `steps` says whether each step has a model. `cap` is
    the most that an importance weight may be; `ridge` is λ of fitted Q.
    """

    rows: Trajectories
    features: FeatureMap
    folds: NDArray[Any]
    clusters: NDArray[Any] | None = None
    propensities: Propensities | None = None
    steps: Steps = "auto"
    cap: float | None = None
    ridge: float = RIDGE
    _views: dict[Any, View] = field(default_factory=dict, init=False)

    def value(
        self, target: Target | Acting, method: Method = "wdr", interval: IntervalOptions = BY_INFLUENCE
    ) -> Estimate:
        """What the target is worth to these patients."""
        view = self._view(target)
        statistic = view.statistic(method).clustered(self.given.clusters)
        found, drawn = _interval(statistic, Range(0.0, self.rows.horizon), interval)
        size, cautions = view.effective_sample_size(method), view.cautions(method)
        verdict = first_doubt(view.verdict(method), _possible(statistic, found, self.rows.horizon))
        if view.lost(method) and interval.kind != "bernstein":  # which holds without any weight, too
            found = Interval(0.0, float(self.rows.horizon), found.standard_error)
        return Estimate(
            method=method,
            value=statistic.value,
            low=found.low,
            high=found.high,
            standard_error=found.standard_error,
            level=interval.level,
            interval=interval.kind,
            effective_sample_size=size,
            n=self.given.paths.n,
            n_clusters=statistic.n,
            warnings=cautions + _about_value(statistic.value, self.rows.horizon) + _about_draws(drawn),
            believable=verdict.believable,
            reason=verdict.reason,
        )

    def compare(
        self,
        first: Target | Acting,
        second: Target | Acting,
        method: Method = "wdr",
        interval: IntervalOptions = BY_INFLUENCE,
    ) -> Comparison:
        """How much more the first is worth than the second, on the same patients."""
        horizon, asked = self.rows.horizon, IntervalOptions(level=interval.level)
        views = [self._view(target) for target in (first, second)]
        statistic = views[0].statistic(method).minus(views[1].statistic(method)).clustered(self.given.clusters)
        found, _ = _interval(statistic, Range(-horizon, horizon), interval)
        if any(view.lost(method) for view in views):
            found = Interval(-float(horizon), float(horizon), found.standard_error)
        return Comparison(
            method=method,
            first=self.value(first, method, asked),
            second=self.value(second, method, asked),
            difference=statistic.value,
            low=found.low,
            high=found.high,
            standard_error=found.standard_error,
        )

    def diagnose(self, target: Target | Acting) -> Diagnostics:
        """Importance weights and overlap of the target with what clinicians do."""
        return self._view(target).diagnostics

    def sensitivity(self, target: Target | Acting) -> Sensitivity:
        """How strong unmeasured confounding would have to be to turn its difference from what clinicians reach."""
        view = self._view(target)
        of = confounded(self.given.paths, view.chances, self.given.propensities.chances, self.cap)
        return sensitivity(of, doubt=view.verdict("wis").reason)

    @cached_property
    def calibration(self) -> Calibration:
        """Predicted against observed propensities."""
        return calibrate(self.given.propensities, self.given.paths)

    @cached_property
    def markov(self) -> MarkovCheck:
        """Whether the step before helps to predict the reward, or what clinicians reach from the next state."""
        given, view = self.given, self._view(Behaviour())
        ahead = values_of(view.of_all.theta, given.psi, given.embeddings, view.chances)
        with one_blas_thread():
            return check_markov(given.paths, given.psi, given.embeddings, given.folds, ahead, self.ridge)

    @cached_property
    def given(self) -> Given:
        """Everything that no target changes."""
        paths = paths_of(self.rows)
        folds = _positions(self.folds, paths.n, "fold")
        if folds.max(initial=0) < 1:
            raise ValueError("Cross-fitting needs patients in two folds at least.")
        clusters = None if self.clusters is None else _positions(self.clusters, paths.n, "cluster")
        psi = state_functions(paths, self.features)
        with one_blas_thread():
            return Given(
                paths=paths,
                psi=psi,
                embeddings=self.features.embeddings,
                folds=folds,
                clusters=clusters,
                propensities=self.propensities or fit_propensities(paths, self.features, folds, self.steps),
                outcomes=sum_outcomes(paths, psi, self.features.embeddings, folds),
                cautions=_about_clusters(folds, clusters),
            )

    def _view(self, target: Target | Acting) -> View:
        """What belongs to a target, made once and kept with it."""
        if target not in self._views:
            self._views[target] = View(self.given, as_target(target, self.features.levels), self.cap, self.ridge)
        return self._views[target]


def evaluate(
    rows: Trajectories,
    features: FeatureMap,
    target: Target | Acting,
    method: Method,
    folds: NDArray[Any],
    interval: IntervalOptions = BY_INFLUENCE,
    **options: Any,
) -> Estimate:
    """One policy by one method; `options` are those of `Evaluator`."""
    return Evaluator(rows, features, folds, **options).value(target, method, interval)


def estimate_all(
    evaluator: Evaluator,
    targets: Mapping[str, Target | Acting],
    methods: Sequence[Method],
    interval: IntervalOptions = BY_INFLUENCE,
) -> dict[str, dict[Method, Estimate]]:
    """Every target by every method, by their names."""
    return {
        name: {method: evaluator.value(target, method, interval) for method in methods}
        for name, target in targets.items()
    }


def _interval(statistic: Statistic, feasible: Range, asked: IntervalOptions) -> tuple[Interval, Draws | None]:
    if asked.kind == "bernstein":
        return bernstein_interval(statistic, feasible, asked.level), None
    if asked.kind == "influence":
        return influence_interval(statistic, feasible, asked.level), None
    if asked.rng is None:
        raise ValueError(
            "The bootstrap draws at random: give it a generator, IntervalOptions(rng=np.random.default_rng(seed))."
        )
    drawn = bootstrap(statistic, asked.rng, asked.draws)
    return bootstrap_interval(drawn, feasible, asked.level), drawn


def _positions(labels: NDArray[Any], n: int, what: str) -> NDArray[np.intp]:
    """Labels as positions 0, 1, … among the sorted labels."""
    if np.shape(labels) != (n,):
        raise ValueError(f"Each of {n} patients has one {what}; the labels have the shape {np.shape(labels)}.")
    return np.asarray(np.unique(np.asarray(labels), return_inverse=True)[1], dtype=np.intp)


def _about_clusters(folds: NDArray[np.intp], clusters: NDArray[np.intp] | None) -> tuple[Caution, ...]:
    if clusters is None:
        return ()
    told, sizes = [], np.bincount(clusters)
    if len(np.unique(clusters * (folds.max() + 1) + folds)) > len(sizes):
        why = "Some clusters lie in several folds: nuisances were fitted to relatives of the patients they are used on."
        told.append(Caution(Kind.CLUSTER_SPLIT, f"{why} Assign folds by cluster."))
    worth = float(sizes.sum() ** 2 / (sizes**2).sum())
    if worth < FEW_CLUSTERS:
        what = f"There are {len(sizes)} clusters, worth {worth:.1f} of equal size"
        told.append(Caution(Kind.FEW_CLUSTERS, f"{what}; below {FEW_CLUSTERS} intervals tend to be too short."))
    return tuple(told)


def _possible(statistic: Statistic, found: Interval, horizon: int) -> Verdict:
    """An estimate so far outside that its interval was cut to a point says that something is wrong."""
    if 0 <= statistic.value <= horizon or found.low < found.high:
        return Verdict(believable=True)
    return Verdict(False, f"The whole interval lies outside [0, {horizon}], where every value is.")


def _about_value(value: float, horizon: int) -> tuple[Caution, ...]:
    if 0 <= value <= horizon:
        return ()
    what = f"The estimate {value:.3f} lies outside [0, {horizon}], where every value is; its interval was clipped."
    return (Caution(Kind.OUTSIDE_RANGE, what),)


def _about_draws(drawn: Draws | None) -> tuple[Caution, ...]:
    if drawn is None or drawn.undefined == 0:
        return ()
    what = f"In {drawn.undefined:.1%} of bootstrap draws some step had no weight left; it counted as 0."
    return (Caution(Kind.UNDEFINED_DRAWS, what),)
