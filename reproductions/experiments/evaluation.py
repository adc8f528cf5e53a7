"""Can values be trusted? Coverage and bias of every estimator and interval on worlds whose truth is known."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from experiments.coverage import VALID, Refitting, Row, Setting, measure_coverage, measure_refitted
from experiments.findings import Figure, Finding, Table
from experiments.intervals import Interval
from experiments.replications import Progress

if TYPE_CHECKING:
    import altair

RUNS, REFITTED_RUNS = 2000, 500
LEAST, MOST = 0.93, 0.97
BIAS_OF_DEVIATION, BIAS_ERRORS = 0.1, 3
BROKEN = replace(VALID, n_actions=6, horizon=15)


@dataclass(frozen=True)
class Tried:
    """A setting by its `name`, and how often it is tried.

    `safe` methods may cover more than 97%; `broken` ones have no overlap left, and have to say so.
    """

    name: str
    setting: Setting
    runs: int = RUNS
    safe: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()


TRIED = (
    Tried("estimated propensities", Setting(), safe=("pdis",)),
    Tried("known propensities", Setting(known=True)),
    Tried("bootstrap", Setting(interval="bootstrap"), safe=("pdis",)),
    Tried("Bernstein", Setting(interval="bernstein", known=True, methods=("pdis",)), safe=("pdis",)),
    Tried("H = 15, |A| = 6", Setting(spec=BROKEN, fresh=200_000), 1000, broken=("pdis", "wis", "dr", "wdr")),
)


@dataclass(frozen=True)
class ValueRow:
    """One method in one setting: how often the 95% interval held the truth, and what the estimate is off by.

    `believable` is how often the verdict was good. `held`: coverage and bias are as they have to be, or, where there is
    no overlap, that was said.
    """

    setting: str
    method: str
    estimator: str
    runs: int
    truth: float
    covered: float
    covered_low: float
    covered_high: float
    bias: float
    bias_error: float
    deviation: float
    standard_error: float
    believable: float
    held: bool


def run_values(seed: int, quick: bool, processes: int | None, progress: Progress) -> Iterator[Finding]:
    """Policies from a separate sample first, then policies that are fitted to the site's own patients."""
    rows = []
    for tried in TRIED:
        runs = 4 if quick else tried.runs
        for row in measure_coverage(_sized(tried.setting, quick), runs, seed, processes, progress):
            rows.append(_row(tried.name, "LDTR", row, runs, _held(row, tried)))
    yield Finding(
        title="Intervals of a policy's value",
        shows=[_setup(_sized(TRIED[0].setting, quick)), *(_sentence(tried.name, rows) for tried in TRIED)],
        tables=[Table("evaluation-coverage", rows)],
        figures=[Figure("evaluation-coverage", "How often 95% intervals hold V^π", partial(_draw, rows))],
    )
    refitting, runs = (Refitting(n=60, fresh=200), 2) if quick else (Refitting(), REFITTED_RUNS)
    refitted = [
        _row("refitted by fold", method, row, runs, _covers(row, most=1.0) and _unbiased(row))
        for method, by_estimator in measure_refitted(refitting, runs, seed, processes, progress).items()
        for row in by_estimator
    ]
    yield Finding(
        title="Values of policies fitted to the site's own patients",
        shows=[_refitted_setup(refitting, runs), *(_refitted_sentence(row) for row in refitted)],
        tables=[Table("evaluation-refitted", refitted)],
        figures=[],
    )


def _sized(setting: Setting, quick: bool) -> Setting:
    return replace(setting, n=200, fresh=2000, n_train=100, draws=50) if quick else setting


def _held(row: Row, tried: Tried) -> bool:
    if row.method in tried.broken:
        return row.believable == 0
    return _covers(row, 1.0 if row.method in tried.safe else MOST) and _unbiased(row)


def _covers(row: Row, most: float) -> bool:
    return row.coverage.within(LEAST, most)


def _unbiased(row: Row) -> bool:
    return abs(row.bias) <= max(BIAS_ERRORS * row.bias_error, BIAS_OF_DEVIATION * row.deviation)


def _row(setting: str, method: str, row: Row, runs: int, held: bool) -> ValueRow:
    return ValueRow(
        setting=setting,
        method=method,
        estimator=row.method,
        runs=runs,
        truth=row.truth,
        covered=row.coverage.estimate,
        covered_low=row.coverage.low,
        covered_high=row.coverage.high,
        bias=row.bias,
        bias_error=row.bias_error,
        deviation=row.deviation,
        standard_error=row.standard_error,
        believable=row.believable,
        held=held,
    )


def _setup(setting: Setting) -> str:
    spec = setting.spec
    return (
        f"A valid linear MDP of one site: d0 = {2 * spec.n_shared}, d1 = {2 * spec.n_specific}, |A| = "
        f"{spec.n_actions}, H = {spec.horizon}, clinicians who lean towards what helps next (propensities are "
        f"logistic). LDTR's policy comes from {setting.n_train} patients of its own; every run has "
        f"{setting.n:,} fresh ones. Coverage has to lie in 93–97% (at least 93% for pdis with estimated propensities "
        "and for Bernstein), |bias| within 3 Monte-Carlo errors or 0.1 standard deviations. pdis takes propensities as "
        "known."
    )


def _sentence(name: str, rows: Sequence[ValueRow]) -> str:
    of_setting = [row for row in rows if row.setting == name]
    coverage = "; ".join(
        f"{row.estimator} {Interval(row.covered, row.covered_low, row.covered_high).per_cent}, bias "
        f"{row.bias / row.deviation:+.2f} sd"
        for row in of_setting
    )
    missed = [row.estimator for row in of_setting if not row.held]
    verdict = f"Misses: {', '.join(missed)}." if missed else "Holds."
    tried = next(tried for tried in TRIED if tried.name == name)
    if tried.broken:
        most = max(row.believable for row in of_setting if row.estimator in tried.broken)
        verdict += f" {', '.join(tried.broken)} have no overlap left, and were believed in {most:.1%} of runs."
    return f"{name.capitalize() if name[0].islower() else name}, {of_setting[0].runs:,} runs: {coverage}. {verdict}"


def _refitted_setup(setting: Refitting, runs: int) -> str:
    spec = setting.spec
    return (
        f"{runs} fresh worlds of {spec.n_sites} sites with {setting.n} patients each, d0 = {2 * spec.n_shared}, d1 = "
        f"{2 * spec.n_specific}, |A| = {spec.n_actions}, H = {spec.horizon}: the first site's policies are fitted to "
        "four fifths of its patients, tuning included, and valued on the rest, in turn."
    )


def _refitted_sentence(row: ValueRow) -> str:
    covered = Interval(row.covered, row.covered_low, row.covered_high).per_cent
    verdict = f" {'Holds' if row.held else 'Misses'} (at least 93%)."
    return (
        f"{row.method}, {row.estimator}: covered in {covered}, bias {row.bias:+.3f} ± {1.96 * row.bias_error:.3f} "
        f"({row.bias / row.deviation:+.2f} sd), believed in {row.believable:.0%}.{verdict}"
    )


def _draw(rows: Sequence[ValueRow]) -> "altair.TopLevelMixin":
    import altair as alt

    from experiments.charts import lines

    names = list(dict.fromkeys(row.setting for row in rows))
    records: list[dict[str, Any]] = [
        {"panel": row.setting, "series": row.setting, "estimator": row.estimator}
        | {"covered": row.covered, "low": row.covered_low, "high": row.covered_high}
        for row in rows
    ]
    y = alt.Y("covered:Q", title="covered", axis=alt.Axis(format="%"), scale=alt.Scale(zero=False))
    x = alt.X("estimator:N", title=None, sort=None, axis=alt.Axis(labelAngle=0))
    return lines(records, x, y, names, panels=3, reference=0.95, joined=False)
