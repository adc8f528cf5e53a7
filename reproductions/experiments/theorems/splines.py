"""Theorem 4 and Corollary 3: on a smooth world that is not linear, splines whose number grows with N.

With m = 2 covariates (the action has two levels, which the basis holds exactly) and q = 3, the proof of Theorem 4 lets
the number of features grow as d = c4·m^{m/(m+q+1)}·N^{m/(2(m+q+1))} = c4·2^{1/3}·N^{1/6} and widens the penalty by
η = c3·m·d^{−(q+1)/m} = 2·c3/d². Each covariate gets a cubic spline with equally spaced knots.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from experiments.comparison import rule_of
from experiments.findings import Figure, Finding, Table
from experiments.intervals import Interval, bootstrap, mean, share, slope
from experiments.replications import Progress, anew, replicate, seeds_of
from experiments.smooth_world import SMOOTHNESS, SmoothSpec, SmoothWorld, make_smooth_world
from experiments.theorems.fitting import fit_together, read_patients, settings
from fdtr import Study

if TYPE_CHECKING:
    import altair

Array = NDArray[np.float64]

EXPERIMENT = 45
RUNS = 40
COVARIATES = 2
"""m."""

GROWTH = 5.0
"""c4."""

RIDGE, PESSIMISM = 0.01, 0.0005
RATE = -(SMOOTHNESS + 1) / (2 * (COVARIATES + SMOOTHNESS + 1))
"""The exponent of N in Corollary 3."""


@dataclass(frozen=True)
class Basis:
    """A kind of features: `knots` is None for linear ones, a fixed number, or "grow"; `margin` is c3."""

    name: str
    knots: int | str | None
    margin: float = 0.0

    def knots_for(self, n_total: int) -> int | None:
        """Inner knots of each covariate's spline for N patients: d = 4·knots + 14 comes closest to the growth above."""
        if self.knots != "grow":
            return self.knots if isinstance(self.knots, int) else None
        ahead = COVARIATES + SMOOTHNESS + 1
        wanted = GROWTH * COVARIATES ** (COVARIATES / ahead) * n_total ** (COVARIATES / (2 * ahead))
        return max(0, int(np.rint((wanted - 14) / 4)))

    def misspecification(self, n_features: int) -> float:
        """η = c3·m·d^{−(q+1)/m}."""
        return float(self.margin * COVARIATES * n_features ** (-(SMOOTHNESS + 1) / COVARIATES))


LINEAR, FIXED = Basis("linear", None), Basis("cubic, no knots", 0)
GROWING = Basis("growing splines", "grow")
BASES = (
    LINEAR,
    FIXED,
    GROWING,
    Basis("growing splines, c3 = 0.1", "grow", 0.1),
    Basis("growing splines, c3 = 1", "grow", 1.0),
)


@dataclass(frozen=True, eq=False)
class Trial:
    """One world: numbers of patients a site, `fresh` ones to value a policy, and its seeds."""

    spec: SmoothSpec
    sizes: tuple[int, ...]
    fresh: int
    seeds: np.random.SeedSequence


@dataclass(frozen=True)
class Outcome:
    """One n and basis: by site, SubOpt over that of clinicians (`lost`), SubOpt, V̂₁ and V₁*; and d, η."""

    n: int
    basis: str
    n_features: int
    misspecification: float
    departure: float
    lost: tuple[float, ...]
    suboptimality: tuple[float, ...]
    promised: tuple[float, ...]
    optimum: tuple[float, ...]


@dataclass(frozen=True)
class SplineRow:
    """One N and basis: d, η, how far mean rewards really are from the span (`departure`), and what was reached.

    `fraction` is (value − behaviour)/(optimum − behaviour), with its 95% interval, as has SubOpt; `pessimistic` the
    share of (run, site) with V̂₁ ≤ V₁^π̂.
    """

    n: int
    n_total: int
    basis: str
    n_features: int
    misspecification: float
    departure: float
    fraction: float
    low: float
    high: float
    suboptimality: float
    suboptimality_low: float
    suboptimality_high: float
    promised: float
    pessimistic: float
    pessimistic_low: float
    pessimistic_high: float


@dataclass(frozen=True)
class SplineSlopeRow:
    """Slope of log SubOpt against log N, with its 95% interval."""

    basis: str
    slope: float
    low: float
    high: float


def run(seed: int, quick: bool, processes: int | None, progress: Progress) -> Finding:
    """Fit every basis at every size in many worlds."""
    spec = SmoothSpec(n_sites=2, horizon=2) if quick else SmoothSpec()
    runs, sizes, fresh = (2, (60, 120), 200) if quick else (RUNS, (100, 400, 1600, 6400), 2000)
    jobs = [Trial(spec, sizes, fresh, seeds_of(seed, EXPERIMENT, r)) for r in range(runs)]
    results = replicate(try_bases, jobs, "splines", processes, progress)
    rng = np.random.default_rng(seeds_of(seed, EXPERIMENT))
    rows = [_row([result[place] for result in results], spec.n_sites) for place in range(len(results[0]))]
    slopes = [_slope(basis.name, results, sizes, spec.n_sites, rng) for basis in BASES]
    return Finding(
        title="Splines on a smooth world (Theorem 4, Corollary 3)",
        shows=_sentences(runs, spec, rows, slopes),
        tables=[Table("splines", rows), Table("splines-slopes", slopes)],
        figures=[Figure("splines", "Suboptimality of linear and spline fits against N", partial(_draw, rows))],
    )


def try_bases(trial: Trial) -> list[Outcome]:
    """Fit every basis at every size in one world."""
    of_world, of_values, *of_tables = anew(trial.seeds).spawn(2 + len(trial.sizes))
    world = make_smooth_world(trial.spec, np.random.default_rng(of_world))
    luck = of_values.spawn(trial.spec.n_sites)
    outcomes = []
    for n, seeds in zip(trial.sizes, of_tables, strict=True):
        table = world.table(n, np.random.default_rng(seeds))
        outcomes += [_try(world, basis, table, n, trial.fresh, luck) for basis in BASES]
    return outcomes


def _try(
    world: SmoothWorld,
    basis: Basis,
    table: dict[str, NDArray[np.generic]],
    n: int,
    fresh: int,
    luck: Sequence[np.random.SeedSequence],
) -> Outcome:
    patients = read_patients(world.study_with_knots(basis.knots_for(n * len(luck))), table)
    features = patients.study.feature_map
    d = features.n_features
    eta = basis.misspecification(d)
    fits = fit_together(patients, settings(PESSIMISM, RIDGE, eta)).federated
    lost, suboptimality, promised = [], [], []
    for site, (fit, seeds) in enumerate(zip(fits, luck, strict=True)):
        rules = (rule_of(fit, patients.study), None)
        losses = [world.suboptimality(site, rule, fresh, np.random.default_rng(anew(seeds))).mean for rule in rules]
        suboptimality.append(losses[0])
        lost.append(losses[0] / losses[1])
        first = world.sample(site, fresh, np.random.default_rng(anew(seeds))).states[0]
        promised.append(float(fit.bounds[0].values(features.psi(np.ascontiguousarray(first.T))).mean()))
    optimum = tuple(world.optimal(site).value for site in range(len(luck)))
    off = _departure(world, patients.study)
    return Outcome(n, basis.name, d, eta, off, tuple(lost), tuple(suboptimality), tuple(promised), optimum)


def _departure(world: SmoothWorld, study: Study) -> float:
    """How far mean rewards are from the span of the features: largest residual on a grid, mean over sites and steps."""
    line = np.linspace(0.0, 1.0, 31)
    states = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
    psi = study.feature_map.psi(np.ascontiguousarray(states.T))
    project = psi.T @ np.linalg.pinv(psi.T)
    steps_and_codes = list(product(range(world.horizon), (0, 1)))
    by_site = []
    for site in range(len(world.sites)):
        means = np.stack([world.expected_reward(site, states, np.full(len(states), a), h) for h, a in steps_and_codes])
        largest = np.abs(means - means @ project.T).max(axis=1)
        by_site.append(largest.reshape(world.horizon, 2).max(axis=1).mean())
    return float(np.mean(by_site))


def _row(outcomes: Sequence[Outcome], n_sites: int) -> SplineRow:
    first = outcomes[0]
    fractions = 1.0 - np.array([outcome.lost for outcome in outcomes])
    suboptimality, promised, optimum = (
        np.array([getattr(outcome, name) for outcome in outcomes]) for name in ("suboptimality", "promised", "optimum")
    )
    return SplineRow(
        first.n, first.n * n_sites, first.basis, first.n_features, first.misspecification,
        float(np.mean([outcome.departure for outcome in outcomes])),
        *mean(fractions).ends, *mean(suboptimality).ends, float(promised.mean()),
        *share(promised <= optimum - suboptimality).ends,
    )  # fmt: skip


def _slope(
    basis: str, results: Sequence[Sequence[Outcome]], sizes: Sequence[int], n_sites: int, rng: np.random.Generator
) -> SplineSlopeRow:
    by_run = np.array([[np.mean(o.suboptimality) for o in result if o.basis == basis] for result in results])
    interval = bootstrap(by_run, partial(slope, [n * n_sites for n in sizes]), rng)
    return SplineSlopeRow(basis, *interval.ends)


def _sentences(runs: int, spec: SmoothSpec, rows: Sequence[SplineRow], slopes: Sequence[SplineSlopeRow]) -> list[str]:
    last = {row.basis: row for row in rows if row.n == rows[-1].n}
    growing, linear = last[GROWING.name], last[LINEAR.name]
    slope_of = {row.basis: row for row in slopes}
    ahead = growing.low > linear.high
    terms = ", ".join(f"{row.n_features} at N = {row.n_total:,}" for row in rows if row.basis == GROWING.name)
    setup = (
        f"{runs} smooth worlds of {spec.n_sites} sites, H = {spec.horizon}; FDTR with w = 1, c = {PESSIMISM:g}, "
        f"λ = {RIDGE:g}. d grows as {GROWTH:g}·2^(1/3)·N^(1/6): {terms}."
    )
    reached = (
        f"At N = {growing.n_total:,} growing splines reach {_fraction(growing)} of (optimum − behaviour), a cubic "
        f"without knots {_fraction(last[FIXED.name])}, the linear fit {_fraction(linear)}. "
        f"{'Holds' if ahead else 'Fails'}."
    )
    sentences = [setup, reached]
    for basis in BASES:
        row = slope_of[basis.name]
        sentence = f"SubOpt against N, {basis.name}: log-log slope {Interval(row.slope, row.low, row.high).shown()}"
        if basis.knots == "grow":
            verdict = "Holds" if row.high <= RATE else "Not told apart" if row.low <= RATE else "Fails"
            sentence += f"; the bound of Corollary 3, for the theory's c, falls with {RATE:.3f}. No slower: {verdict}"
        sentences.append(sentence + ".")
    for basis in BASES[2:]:
        at = last[basis.name]
        pessimistic = Interval(at.pessimistic, at.pessimistic_low, at.pessimistic_high)
        sentences.append(
            f"N = {at.n_total:,}, {basis.name}: η = {at.misspecification:.2g} in the penalty, where mean rewards "
            f"depart from the span by {at.departure:.2g}; {_fraction(at)} of (optimum − behaviour), and V̂₁ ≤ V₁^π̂ in "
            f"{pessimistic.per_cent} of (run, site), with V̂₁ = {at.promised:.3f}."
        )
    return sentences


def _fraction(row: SplineRow) -> str:
    return Interval(row.fraction, row.low, row.high).per_cent


def _draw(rows: Sequence[SplineRow]) -> "altair.TopLevelMixin":
    import altair as alt

    from experiments.charts import by_total, lines

    records = [
        {
            "panel": "SubOpt, mean over sites",
            "series": row.basis,
            "N": row.n_total,
            "suboptimality": row.suboptimality,
            "low": max(row.suboptimality_low, row.suboptimality / 3),  # a logarithmic axis has no place for 0
            "high": row.suboptimality_high,
        }
        for row in rows
    ]
    y = alt.Y("suboptimality:Q", title="optimum − value reached", scale=alt.Scale(type="log", nice=False, padding=8))
    return lines(records, by_total(), y, [basis.name for basis in BASES], panels=1)
