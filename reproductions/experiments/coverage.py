"""Coverage: how often the intervals of evaluation hold the truth, on worlds where it is known.

`measure_coverage`: the policy is fitted once, to a sample of its own, and then held fixed. Every run draws fresh
patients as clinicians treat them, estimates the policy's value by every method, and asks whether the interval holds
V^π, which is simulated.

`measure_refitted`: policies are fitted to the site's own patients, fold by fold, as `fdtr site evaluate` and `fdtr run`
do. The truth of a method is then the mean over folds of V^π of the policy that its patients were treated by, and it
differs from run to run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from experiments.intervals import Interval, share
from experiments.replications import Progress, ignore_progress, replicate, seeds_of
from fdtr import Policy, Study, Trajectories, combine, fit_local, read_trajectories
from fdtr.evaluation import (
    Estimate,
    Estimator,
    Evaluator,
    IntervalKind,
    IntervalOptions,
    PolicyLike,
    Propensities,
    known_propensities,
)
from fdtr.simulation import Value, World, WorldSpec, make_world
from fdtr.site import evaluate_site

Array = NDArray[np.float64]

EXPERIMENT = 52
VALID = WorldSpec(n_sites=1, n_shared=2, n_specific=2, n_actions=3, horizon=3, behaviour="softmax")
"""A valid linear MDP whose clinicians lean towards what helps next: Q is linear, propensities are logistic."""

METHODS: tuple[Estimator, ...] = ("pdis", "wis", "fqe", "dr", "wdr")
LEARNING: dict[str, float | str] = {"pessimism": 0.0005, "ridge": 0.01, "sharing": 0.0, "share": "value"}
N_FOLDS = 5


@dataclass(frozen=True)
class Setting:
    """A setting of the experiment: a world's `spec`, `n` patients a run, and the `interval` at `level`.

    `known` gives estimators the true propensities, as a trial would. The policy is fitted to `n_train` patients, and
    its true value comes from `fresh` simulated ones. `draws` are those of the bootstrap.
    """

    spec: WorldSpec = VALID
    n: int = 1000
    interval: IntervalKind = "influence"
    level: float = 0.95
    methods: tuple[Estimator, ...] = METHODS
    known: bool = False
    n_train: int = 500
    fresh: int = 1_000_000
    draws: int = 1000


@dataclass(frozen=True)
class Run:
    """One run: the `setting`, the fixed `policy`, and the seeds of the world and of this run's patients."""

    setting: Setting
    policy: Policy
    of_world: np.random.SeedSequence
    of_patients: np.random.SeedSequence


@dataclass(frozen=True)
class Row:
    """One method over all runs, beside the `truth`, whose own Monte-Carlo error is `truth_error`.

    `bias` is the mean of estimate less truth with its Monte-Carlo error `bias_error`, `deviation` the standard
    deviation of that, `standard_error` the mean of those that were stated, and `believable` how often the diagnostics
    was good.
    """

    method: Estimator
    truth: float
    truth_error: float
    bias: float
    bias_error: float
    deviation: float
    standard_error: float
    coverage: Interval
    believable: float


def measure_coverage(
    setting: Setting, runs: int, seed: int = 0, processes: int | None = None, progress: Progress = ignore_progress
) -> list[Row]:
    """A row for each method, from `runs` independent runs."""
    of_world, of_training, of_truth = seeds_of(seed, EXPERIMENT).spawn(3)
    world = make_world(setting.spec, np.random.default_rng(of_world))
    policy = fit_policy(world, setting.n_train, np.random.default_rng(of_training))
    truth = world.value(0, policy.act, setting.fresh, np.random.default_rng(of_truth))
    jobs = [Run(setting, policy, of_world, seeds_of(seed, EXPERIMENT, r)) for r in range(runs)]
    return _rows(setting, truth, replicate(one_run, jobs, "coverage", processes, progress))


def fit_policy(world: World, n: int, rng: np.random.Generator) -> Policy:
    """LDTR of the first site on patients that no run sees."""
    study = Study.model_validate(world.study(**LEARNING))
    return fit_local(study, _draw(world, study, n, rng)).policy


def one_run(run: Run) -> list[Estimate]:
    """Estimates by every method of the setting."""
    setting = run.setting
    world = make_world(setting.spec, np.random.default_rng(run.of_world))
    of_patients, of_draws = (np.random.default_rng(s) for s in run.of_patients.spawn(2))
    study = Study.model_validate(world.study(**LEARNING))
    rows = _draw(world, study, setting.n, of_patients)
    propensities = _true_propensities(world, rows) if setting.known else None
    folds = np.arange(setting.n) % N_FOLDS
    patients = Evaluator(rows, study.feature_map, folds, propensities=propensities)
    interval = IntervalOptions(setting.interval, setting.level, setting.draws, of_draws)
    return [patients.value(run.policy, method, interval) for method in setting.methods]


def _draw(world: World, study: Study, n: int, rng: np.random.Generator) -> Trajectories:
    """`n` patients of the first site."""
    table = world.table([n, *(0 for _ in world.sites[1:])], rng)
    return read_trajectories(pa.table(table), study)


def _true_propensities(world: World, rows: Trajectories) -> Propensities:
    states = [next(rows.step(h).chunks(rows.n_patients)).states for h in range(rows.horizon)]
    return known_propensities(tuple(world.behaviour_chances(0, x.T, h).T for h, x in enumerate(states)))


def _rows(setting: Setting, truth: Value, results: Sequence[Sequence[Estimate]]) -> list[Row]:
    truths = np.full(len(results), truth.mean)
    by_method = zip(setting.methods, zip(*results, strict=True), strict=True)
    return [row_of(method, estimates, truths, truth.standard_error) for method, estimates in by_method]


def row_of(method: Estimator, estimates: Sequence[Estimate], truths: Array, truth_error: float) -> Row:
    """One method: its `estimates` and the truth of every run, which is known up to `truth_error`."""
    errors = _each(estimates, "value") - truths
    covered = (_each(estimates, "low") <= truths) & (truths <= _each(estimates, "high"))
    deviation = float(errors.std(ddof=1))
    return Row(
        method=method,
        truth=float(truths.mean()),
        truth_error=truth_error,
        bias=float(errors.mean()),
        bias_error=float(np.hypot(deviation / np.sqrt(len(errors)), truth_error)),
        deviation=deviation,
        standard_error=float(_each(estimates, "standard_error").mean()),
        coverage=share(covered),
        believable=float(np.mean([estimate.believable for estimate in estimates])),
    )


def _each(estimates: Sequence[Estimate], name: str) -> Array:
    return np.array([getattr(estimate, name) for estimate in estimates])


_REFITTED = 1
"""Tells the seeds of refitted policies from those of fixed ones."""

SMALL = replace(VALID, n_sites=3, n_specific=4, horizon=4)
"""Hospitals whose policies are far from sure: 12 features for 300 patients."""

POLICIES = ("FDTR", "LDTR", "Q-learn (H)")


@dataclass(frozen=True)
class Refitting:
    """A setting with refitted policies: a world's `spec`, `n` patients a site, `fresh` ones for V^π of each policy."""

    spec: WorldSpec = SMALL
    n: int = 300
    fresh: int = 10_000
    estimators: tuple[Estimator, ...] = ("fqe", "wdr")


@dataclass(frozen=True)
class RefittedRun:
    """One run: a fresh world and its patients come from `seeds`."""

    setting: Refitting
    seeds: np.random.SeedSequence


@dataclass(frozen=True)
class RefittedEstimate:
    """An estimate for one method, and what the policies behind it are worth."""

    method: str
    estimate: Estimate
    truth: float
    truth_error: float


def measure_refitted(
    setting: Refitting, runs: int, seed: int = 0, processes: int | None = None, progress: Progress = ignore_progress
) -> dict[str, list[Row]]:
    """Rows by method, one for each estimator."""
    jobs = [RefittedRun(setting, seeds_of(seed, EXPERIMENT, _REFITTED, r)) for r in range(runs)]
    results = replicate(refitted_run, jobs, "refitted policies", processes, progress)
    return {
        method: [row_of(estimator, *_arrays(results, method, estimator)) for estimator in setting.estimators]
        for method in POLICIES
    }


def refitted_run(run: RefittedRun) -> list[RefittedEstimate]:
    """The first site's methods, each by every estimator, beside the truth."""
    of_world, of_patients, of_truth = run.seeds.spawn(3)
    setting = run.setting
    world = make_world(setting.spec, np.random.default_rng(of_world))
    study = Study.model_validate(world.study())
    table = world.table([setting.n for _ in world.sites], np.random.default_rng(of_patients))
    sites = read_trajectories(pa.table(table), study).by_site()
    alone = {site: fit_local(study, rows).summary for site, rows in sites.items()}
    first, rows = next(iter(sites.items()))
    evaluation = evaluate_site(study, rows, combine(alone.values()), alone[first])
    shares = np.bincount(evaluation.folds) / rows.n_patients
    results = []
    for method in POLICIES:
        truth, error = _truth(world, evaluation.policies[method], shares, setting.fresh, of_truth)
        results += [
            RefittedEstimate(method, evaluation.value(method, estimator), truth, error)
            for estimator in setting.estimators
        ]
    return results


def _truth(
    world: World, policies: Sequence[PolicyLike], shares: Array, fresh: int, seeds: np.random.SeedSequence
) -> tuple[float, float]:
    """V^π of the first site, weighted by how many patients each policy treats; the same luck for all of them."""
    values = [world.value(0, policy.act, fresh, np.random.default_rng(seeds)) for policy in policies]
    return float(shares @ [value.mean for value in values]), max(value.standard_error for value in values)


def _arrays(
    results: Sequence[Sequence[RefittedEstimate]], method: str, estimator: Estimator
) -> tuple[list[Estimate], Array, float]:
    chosen = [s for run in results for s in run if s.method == method and s.estimate.method == estimator]
    truths = np.array([s.truth for s in chosen])
    return [s.estimate for s in chosen], truths, 0.0  # its error differs from run to run: the deviation has it
