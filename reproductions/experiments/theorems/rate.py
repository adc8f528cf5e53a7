"""Theorem 3 and Corollary 1: ‖θ̂⁰ − θ⁰‖ falls as N^-½, whether sites or patients are added, and LDTR stays √K behind."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from experiments.findings import Figure, Finding, Table
from experiments.intervals import Interval, bootstrap, slope
from experiments.replications import Progress, anew, replicate, seeds_of
from experiments.theorems.fitting import Patients, fit_together, read_patients, settings
from fdtr.learners import Fit
from fdtr.simulation import WorldSpec, make_world

if TYPE_CHECKING:
    import altair

Array = NDArray[np.float64]

EXPERIMENT = 44
RUNS = 300
SPEC = WorldSpec(n_shared=5, n_specific=5, n_actions=2, horizon=5)
RIDGE = 1e-6
LOWEST, HIGHEST = -0.56, -0.44
"""Where a slope has to lie."""

NEAR = 0.15
"""How far RMSE(LDTR)/RMSE(FDTR) may be from √K, relatively."""

MEAN, OWN, LOCAL = "FDTR, mean over sites", "FDTR, a site's own", "LDTR, a site's own"
ESTIMATORS = (MEAN, OWN, LOCAL)
"""θ̂⁰_h = K⁻¹ Σ_k θ̂⁰_{h,k} and θ̂⁰_{h,k} of Corollary 1, and θ̃⁰_{h,k} of the remark after it."""

SITES_GROW, PATIENTS_GROW = "K grows", "n grows"

START = 200
"""From ten patients a feature on, few enough degrees of freedom are spent to see the rate; 100 is shown beside it."""

FULL = tuple((k, START) for k in (2, 4, 8, 16, 32)), tuple((5, n) for n in (100, 200, 400, 800, 1600, 3200))
QUICK = ((2, 200), (4, 200)), ((2, 100), (2, 200), (2, 400))
"""Designs (K, n) of each way of growing."""


@dataclass(frozen=True, eq=False)
class Trial:
    """One replication: the designs (K, n) of each way of growing, and its seeds."""

    spec: WorldSpec
    sites_grow: tuple[tuple[int, int], ...]
    patients_grow: tuple[tuple[int, int], ...]
    seeds: np.random.SeedSequence

    @property
    def ways(self) -> dict[str, tuple[tuple[int, int], ...]]:
        """The designs of each way of growing, by its name."""
        return {SITES_GROW: self.sites_grow, PATIENTS_GROW: self.patients_grow}


@dataclass(frozen=True)
class ErrorRow:
    """Root mean square of ‖θ̂⁰_h − θ⁰_h‖ over replications, with its 95% interval.

    `ratio` is RMSE(LDTR) over it, with an interval, and `of_root` that ratio over √K.
    """

    grows: str
    step: str
    estimator: str
    n_sites: int
    n: int
    n_total: int
    rmse: float
    low: float
    high: float
    ratio: float
    ratio_low: float
    ratio_high: float
    of_root: float


@dataclass(frozen=True)
class SlopeRow:
    """Slope of log RMSE against log N from the smallest n given on, with its 95% interval."""

    grows: str
    step: str
    estimator: str
    from_n: int
    slope: float
    low: float
    high: float
    within: bool


def run(seed: int, quick: bool, processes: int | None, progress: Progress) -> Finding:
    """Fit nested sites and nested patients of fresh worlds, many times."""
    sites_grow, patients_grow = QUICK if quick else FULL
    jobs = [Trial(SPEC, sites_grow, patients_grow, seeds_of(seed, EXPERIMENT, r)) for r in range(3 if quick else RUNS)]
    results = replicate(squared_errors, jobs, "rate of the shared coefficients", processes, progress)
    rng = np.random.default_rng(seeds_of(seed, EXPERIMENT))
    errors: list[ErrorRow] = []
    slopes: list[SlopeRow] = []
    for way, designs in jobs[0].ways.items():
        squares = np.stack([result[way] for result in results])
        errors += error_rows(way, designs, squares, rng)
        slopes += slope_rows(way, designs, squares, rng)
    return Finding(
        title="The rate of the shared coefficients (Theorem 3, Corollary 1)",
        shows=[_setup(jobs), *_slope_sentences(slopes), *_ratio_sentences(errors)],
        tables=[Table("rate-errors", errors), Table("rate-slopes", slopes)],
        figures=[Figure("rate", "Error of the shared coefficients against N", partial(_draw, errors))],
    )


def squared_errors(trial: Trial) -> dict[str, Array]:
    """‖θ̂⁰ − θ⁰‖² for each way of growing, (designs, estimators, 2): at the first and at the last step.

    Sites and patients are nested: a larger design adds to those of a smaller one, in a world of its own for each way.
    """
    errors = {}
    for (way, designs), seeds in zip(trial.ways.items(), anew(trial.seeds).spawn(2), strict=True):
        of_world, of_table = (np.random.default_rng(s) for s in seeds.spawn(2))
        most_sites, most = (max(design[i] for design in designs) for i in (0, 1))
        shape = {**vars(trial.spec), "n_sites": most_sites}
        world = make_world(WorldSpec(**shape), of_world)
        everybody = read_patients(world.study(), world.table(most, of_table))
        truth = world.theta_shared_scaled
        errors[way] = np.array([_errors(_part(everybody, k, n), truth) for k, n in designs])
    return errors


def _part(everybody: Patients, n_sites: int, n: int) -> Patients:
    """The first `n` patients of each of the first sites."""
    sites = everybody.sites[:n_sites]
    return Patients(everybody.study, tuple(s.select(np.arange(s.n_patients) < n) for s in sites))


def _errors(patients: Patients, truth: Array) -> Array:
    """Squared errors of the three estimators at the first and the last step, (3, 2)."""
    fitted = fit_together(patients, settings(0.0, RIDGE))
    together, alone = (_off(fits, truth) for fits in (fitted.federated, fitted.local))
    average = (together.mean(axis=0) ** 2).sum(axis=-1)
    return np.stack([average, *((off**2).sum(axis=-1).mean(axis=0) for off in (together, alone))])


def _off(fits: Sequence[Fit], truth: Array) -> Array:
    """θ̂⁰ − θ⁰ of every site at the first and the last step, (K, 2, d0)."""
    ends = [0, -1]
    return np.stack([fit.theta[ends, : truth.shape[1]] - truth[ends] for fit in fits])


def error_rows(
    way: str, designs: Sequence[tuple[int, int]], squares: Array, rng: np.random.Generator
) -> list[ErrorRow]:
    """A row for each design, estimator and step; `squares` (R, designs, estimators, 2)."""
    rows = []
    for step, place in (("first", 0), ("last", -1)):
        for which, estimator in enumerate(ESTIMATORS):
            for number, (k, n) in enumerate(designs):
                at = squares[:, number, :, place]
                rmse = bootstrap(at[:, [which]], _root, rng)
                ratio = bootstrap(at[:, [which, -1]], _ratio, rng)
                rows.append(
                    ErrorRow(way, step, estimator, k, n, k * n, *rmse.ends, *ratio.ends, ratio.estimate / np.sqrt(k))
                )
    return rows


def slope_rows(
    way: str, designs: Sequence[tuple[int, int]], squares: Array, rng: np.random.Generator
) -> list[SlopeRow]:
    """A row for each step, estimator and smallest n; `squares` (R, designs, estimators, 2)."""
    rows = []
    starts = sorted({max(START, designs[0][1]), designs[0][1]}, reverse=True)
    for step, place in (("first", 0), ("last", -1)):
        for which, estimator in enumerate(ESTIMATORS[:2]):
            for start in starts:
                used = [number for number, (_, n) in enumerate(designs) if n >= start]
                sizes = np.array([designs[number][0] * designs[number][1] for number in used])
                interval = bootstrap(squares[:, used, which, place], partial(_slope_of_squares, sizes), rng)
                rows.append(SlopeRow(way, step, estimator, start, *interval.ends, interval.within(LOWEST, HIGHEST)))
    return rows


def _root(squares: Array) -> float:
    return float(np.sqrt(squares[0]))


def _ratio(squares: Array) -> float:
    return float(np.sqrt(squares[1] / squares[0]))


def _slope_of_squares(sizes: NDArray[np.intp], squares: Array) -> float:
    return slope(sizes, np.sqrt(squares))


def _setup(jobs: Sequence[Trial]) -> str:
    sites_grow, patients_grow = jobs[0].sites_grow, jobs[0].patients_grow
    return (
        f"{len(jobs)} replications, each in fresh valid worlds with d0 = d1 = 10, |A| = 2 and H = 5; λ = {RIDGE:g}, "
        f"c = 0, w = 1. K grows from {sites_grow[0][0]} to {sites_grow[-1][0]} with n = {sites_grow[0][1]}; n grows "
        f"from {patients_grow[0][1]} to {patients_grow[-1][1]} with K = {patients_grow[0][0]}."
    )


def _slope_sentences(rows: Sequence[SlopeRow]) -> list[str]:
    """Of the mean over sites, with a site's own beside it."""
    own = {(row.grows, row.step, row.from_n): row for row in rows if row.estimator == OWN}
    sentences = []
    for row in rows:
        if row.estimator == MEAN:
            beside = own[row.grows, row.step, row.from_n]
            sentences.append(
                f"{row.grows}, {row.step} step, n ≥ {row.from_n}: log-log slope of the RMSE of θ̂⁰ against N "
                f"{Interval(row.slope, row.low, row.high).shown()} (a site's own θ̂⁰: {beside.slope:.3f}), to be within "
                f"[{LOWEST:g}, {HIGHEST:g}]. {'Holds' if row.within and beside.within else 'Fails'}."
            )
    return sentences


def _ratio_sentences(rows: Sequence[ErrorRow]) -> list[str]:
    """RMSE(LDTR)/RMSE(FDTR) beside √K, over all designs of a way and step."""
    sentences = []
    for way, step in dict.fromkeys((row.grows, row.step) for row in rows):
        chosen = [row for row in rows if (row.grows, row.step, row.estimator) == (way, step, MEAN)]
        worst = max(chosen, key=lambda row: abs(row.of_root - 1.0))
        root = np.sqrt(worst.n_sites)
        interval = Interval(worst.of_root, worst.ratio_low / root, worst.ratio_high / root)
        sentences.append(
            f"{way}, {step} step: RMSE(LDTR)/RMSE(FDTR) is {min(r.of_root for r in chosen):.3f} to "
            f"{max(r.of_root for r in chosen):.3f} times √K; furthest from it at K = {worst.n_sites}, n = {worst.n} "
            f"with {interval.shown()}, to be within 15%. {'Holds' if abs(worst.of_root - 1) <= NEAR else 'Fails'}."
        )
    return sentences


def _draw(rows: Sequence[ErrorRow]) -> "altair.TopLevelMixin":
    import altair as alt

    from experiments.charts import by_total, lines

    names = (MEAN, LOCAL, "N^-½ through the first point")
    records: list[dict[str, Any]] = []
    for row in rows:
        panel = {"panel": f"{row.grows}, {row.step} step", "N": row.n_total}
        if row.estimator in names:
            records.append(panel | {"series": row.estimator, "rmse": row.rmse, "low": row.low, "high": row.high})
        if row.estimator == MEAN:
            first = next(r for r in rows if (r.grows, r.step, r.estimator) == (row.grows, row.step, MEAN))
            level = first.rmse * np.sqrt(first.n_total / row.n_total)
            records.append(panel | dict.fromkeys(("rmse", "low", "high"), level) | {"series": names[2]})
    y = alt.Y("rmse:Q", title="RMSE of the shared coefficients", scale=alt.Scale(type="log", nice=False, padding=8))
    return lines(records, by_total(), y, names, own_axis="x")
