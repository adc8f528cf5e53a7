"""How often intervals hold the truth where policies are fitted to the site's own patients, fold by fold.

That is what `fdtr site evaluate` and `fdtr run` do. The truth of a method is then the mean over folds of V^π of the
policy that its patients were treated by, and it differs from run to run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from fdtr.evaluation import Acting, Estimate, Method
from fdtr.pipeline.reproduce.coverage import EXPERIMENT, VALID, Array, Row, row_of
from fdtr.pipeline.reproduce.replications import replicate, seeds_of
from fdtr.progress import Progress, ignore_progress
from fdtr.simulation.linear import World, WorldSpec, make_world
from fdtr.site import evaluate_site, fit_local, read_trajectories
from fdtr.study import Study
from fdtr.summary import combine

_REFITTED = 1
SMALL = replace(VALID, n_sites=3, n_specific=4, horizon=4)
"""Hospitals whose policies are far from sure: 12 features for 300 patients."""

POLICIES = ("FDTR", "LDTR", "Q-learn (H)")


@dataclass(frozen=True)
class Refitting:
    """What is tried: a world's `spec`, `n` patients a site, and V^π of each policy from `fresh` simulated ones."""

    spec: WorldSpec = SMALL
    n: int = 300
    fresh: int = 10_000
    estimators: tuple[Method, ...] = ("fqe", "wdr")


@dataclass(frozen=True)
class Run:
    """One run: a fresh world and its patients come from `seeds`."""

    setting: Refitting
    seeds: np.random.SeedSequence


@dataclass(frozen=True)
class Seen:
    """An estimate for one method, and what the policies behind it are worth."""

    method: str
    estimate: Estimate
    truth: float
    truth_error: float


def measure_refitted(
    setting: Refitting, runs: int, seed: int = 0, processes: int | None = None, progress: Progress = ignore_progress
) -> dict[str, list[Row]]:
    """Rows by method, one for each estimator."""
    jobs = [Run(setting, seeds_of(seed, EXPERIMENT, _REFITTED, r)) for r in range(runs)]
    results = replicate(one_run, jobs, "refitted policies", processes, progress)
    return {
        method: [row_of(estimator, *_arrays(results, method, estimator)) for estimator in setting.estimators]
        for method in POLICIES
    }


def one_run(run: Run) -> list[Seen]:
    """The first site's methods, each by every estimator, beside the truth."""
    of_world, of_patients, of_truth = run.seeds.spawn(3)
    setting = run.setting
    world = make_world(setting.spec, np.random.default_rng(of_world))
    study = Study.model_validate(world.study())
    table = world.table([setting.n for _ in world.sites], np.random.default_rng(of_patients))
    sites = read_trajectories(pa.table(table), study).by_site()
    alone = {site: fit_local(study, rows).summary for site, rows in sites.items()}
    first, rows = next(iter(sites.items()))
    found = evaluate_site(study, rows, combine(alone.values()), alone[first])
    shares = np.bincount(found.evaluator.given.folds) / rows.n_patients
    seen = []
    for method in POLICIES:
        truth, error = _truth(world, found.policies[method], shares, setting.fresh, of_truth)
        seen += [Seen(method, found.value(method, e), truth, error) for e in setting.estimators]
    return seen


def _truth(
    world: World, policies: Sequence[Acting], shares: Array, fresh: int, seeds: np.random.SeedSequence
) -> tuple[float, float]:
    """V^π of the first site, weighted by how many patients each policy treats; the same luck for all of them."""
    values = [world.value(0, policy.act, fresh, np.random.default_rng(seeds)) for policy in policies]
    return float(shares @ [value.mean for value in values]), max(value.standard_error for value in values)


def _arrays(results: Sequence[Sequence[Seen]], method: str, estimator: Method) -> tuple[list[Estimate], Array, float]:
    chosen = [s for run in results for s in run if s.method == method and s.estimate.method == estimator]
    truths = np.array([s.truth for s in chosen])
    return [s.estimate for s in chosen], truths, 0.0  # its error differs from run to run: the deviation has it
