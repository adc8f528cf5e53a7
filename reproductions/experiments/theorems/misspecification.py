"""Pessimism where the model is wrong by a known amount, with and without η in the penalty (Section 4.1, S8)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from experiments.findings import Figure, Finding, Table
from experiments.intervals import Interval, mean, share
from experiments.replications import Progress, replicate, seeds_of
from experiments.theorems.fitting import settings
from experiments.theorems.judgements import GOAL, first_to_reach
from experiments.theorems.pessimism import PANELS, QUICK_PANELS
from experiments.theorems.truth import Cell, Trial, judge_trial
from fdtr.learners import Settings

if TYPE_CHECKING:
    import altair

EXPERIMENT = 42
RUNS = 30
RIDGE = 0.01
DEPARTURES = (0.0, 0.005, 0.05)
"""How far mean rewards depart from linear ones; 0 is the valid world."""

GRID = (0.0, 0.0002, 0.0005, 0.001, 0.002, 0.003, 0.004, 0.005)


@dataclass(frozen=True)
class MisspecifiedRow:
    """One departure, with and without η, and one c.

    `share` of (run, site) with V̂₁ ≤ V₁^π̂, `event` of (run, site, step) in which the confidence event holds at every
    probed pair, and the mean V̂₁ (`promised`), all with 95% intervals; `value` is the mean of V₁^π̂.
    """

    n: int
    departure: float
    misspecification: float
    pessimism: float
    share: float
    low: float
    high: float
    event: float
    event_low: float
    event_high: float
    promised: float
    promised_low: float
    promised_high: float
    promised_largest: float
    value: float

    @property
    def kind(self) -> str:
        """Departure and penalty in words, as the legend has them."""
        if self.departure == 0:
            return "valid"
        return f"off by {self.departure:g}, " + ("η in the penalty" if self.misspecification else "penalty without η")


Rows = Sequence[MisspecifiedRow]


def run(seed: int, quick: bool, processes: int | None, progress: Progress) -> Finding:
    """Fit worlds that differ only in their departure, with and without η in the penalty."""
    spec, grid = (QUICK_PANELS[0], (0.0, 0.005)) if quick else (PANELS[0], GRID)
    runs, draws, sizes = (2, 50, (60,)) if quick else (RUNS, 500, (200, 3200))
    jobs = [
        Trial(spec, departure, n, _learning(departure, grid), draws, seeds_of(seed, EXPERIMENT, n, r))
        for n in sizes
        for departure in DEPARTURES
        for r in range(runs)
    ]
    results = replicate(judge_trial, jobs, "pessimism under misspecification", processes, progress)
    rows: list[MisspecifiedRow] = []
    for start in range(0, len(jobs), runs):
        trial, of_cell = jobs[start], results[start : start + runs]
        for place, (eta, c) in enumerate(_tried(trial.departure, grid)):
            rows.append(_row(trial.n, trial.departure, eta, c, Cell([result[place] for result in of_cell])))
    return Finding(
        title="Pessimism under misspecification, with and without η (Section 4.1 and S8)",
        shows=[_setup(runs, spec.n_sites), *(sentence for n in sizes for sentence in _sentences(_groups(rows, n)))],
        tables=[Table("misspecification", rows)],
        figures=[
            Figure(
                "misspecification",
                "How often a promise is kept and the confidence event holds, by c",
                partial(_draw, rows),
            ),
        ],
    )


def _tried(departure: float, grid: Sequence[float]) -> list[tuple[float, float]]:
    """(η, c) to try: every c without η and, in a world that departs, with it."""
    return [(eta, c) for eta in dict.fromkeys((0.0, departure)) for c in grid]


def _learning(departure: float, grid: Sequence[float]) -> tuple[Settings, ...]:
    return tuple(settings(c, RIDGE, eta) for eta, c in _tried(departure, grid))


def _row(n: int, departure: float, eta: float, c: float, cell: Cell) -> MisspecifiedRow:
    promised = cell.each("promised")
    return MisspecifiedRow(
        n, departure, eta, c, *share(cell.each("pessimistic")).ends, *share(cell.each("inside") == 1.0).ends,
        *mean(promised).ends, float(promised.max()), float(cell.each("value").mean()),
    )  # fmt: skip


def _groups(rows: Rows, n: int) -> dict[tuple[float, float], list[MisspecifiedRow]]:
    """The rows of one n by (departure, η), each in the order of c."""
    groups: dict[tuple[float, float], list[MisspecifiedRow]] = {}
    for row in rows:
        if row.n == n:
            groups.setdefault((row.departure, row.misspecification), []).append(row)
    return groups


def _setup(runs: int, sites: int) -> str:
    return (
        f"Mean rewards of {runs} worlds of {sites} sites depart from linear ones by up to η, against a greedy policy; "
        f"transitions obey (1). λ = {RIDGE:g}; η enters as Γ̄ = (α + √N (H+1) η) √(φᵀΣ⁻¹φ) + (H+1) η."
    )


def _sentences(groups: Mapping[tuple[float, float], Rows]) -> list[str]:
    valid = groups[0.0, 0.0]
    n, place = valid[0].n, first_to_reach([row.event for row in valid])
    sentences = []
    for departure in [d for d in DEPARTURES if d > 0]:
        without, with_eta = groups[departure, 0.0], groups[departure, departure]
        at = place if place is not None else len(valid) - 1
        sentences.append(
            f"n = {n}, departure {departure:g}, without η: V̂₁ ≤ V₁^π̂ reaches 95% of (run, site) at "
            f"{_smallest(without)} (valid world: {_smallest(valid)}). At c = {valid[at].pessimism:g}, where the "
            f"confidence event holds in {_event(valid[at])} of (run, site, step) of the valid world, it holds in "
            f"{_event(without[at])} here."
        )
        first = with_eta[0]
        promised = Interval(first.promised, first.promised_low, first.promised_high)
        says = "nothing is promised any more" if first.promised_largest == 0 else f"V̂₁ is {promised.shown()} there"
        least = min(row.share for row in with_eta)
        verdict = "Fails" if least < GOAL else "Holds trivially" if first.promised_largest == 0 else "Holds"
        sentences.append(
            f"n = {n}, departure {departure:g}, with η: already at c = 0 V̂₁ ≤ V₁^π̂ in "
            f"{Interval(first.share, first.low, first.high).per_cent} of (run, site), and the confidence event holds "
            f"in {_event(first)} of (run, site, step); {says}, beside a value of {first.value:.3f}. "
            f"V̂₁ ≤ V₁^π̂: {verdict}."
        )
    return sentences


def _event(row: MisspecifiedRow) -> str:
    return Interval(row.event, row.event_low, row.event_high).per_cent


def _smallest(rows: Rows) -> str:
    place = first_to_reach([row.share for row in rows])
    return "no c that was tried" if place is None else f"c = {rows[place].pessimism:g}"


def _draw(rows: Rows) -> "altair.TopLevelMixin":
    import altair as alt

    from experiments.charts import by_pessimism, lines

    records: list[dict[str, Any]] = []
    for row in rows:
        place = {"series": row.kind, "c": f"{row.pessimism:g}"}
        pessimism = {
            "panel": f"promise ≤ value reached, n = {row.n}",
            "share": row.share,
            "low": row.low,
            "high": row.high,
        }
        event = {"panel": f"confidence event by step, n = {row.n}", "share": row.event}
        records += [place | pessimism, place | event | {"low": row.event_low, "high": row.event_high}]
    y = alt.Y("share:Q", title="share", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%"))
    order = list(dict.fromkeys(row.pessimism for row in rows))
    names = list(dict.fromkeys(row.kind for row in rows))
    return lines(records, by_pessimism(order), y, names, reference=GOAL)
