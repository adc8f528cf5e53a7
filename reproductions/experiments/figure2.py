"""The paper's Figure 2: what each method's policies are worth, by the number of patients at a site.

Its three panels (d, |A|, H, K), on a valid linear MDP and on the authors' kind of generator, with what clinicians, the
best constant action of each site and the optimum reach on the same axes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from experiments.authors_world import FIGURE_2
from experiments.comparison import BASELINES, FDTR_AUTO, METHODS, PAPERS, Outcome, Spec, Trial, linear_of, run_trial
from experiments.findings import Figure, Finding, Table
from experiments.intervals import holm, mean, p_below
from experiments.replications import Progress, ignore_progress, replicate, seeds_of

if TYPE_CHECKING:
    import altair

SIZES = (50, 100, 200, 500, 1000)
ENOUGH = 200
"""From this many patients a site the method is expected to be ahead."""

WORLDS: dict[str, str] = {
    "valid": "a valid linear MDP",
    "authors": "the authors' kind of generator",
    "authors-intercept": "the authors' kind of generator, with an intercept",
}
EXPERIMENTS = {"valid": 0, "authors": 1, "authors-intercept": 4}
"""Tell their seeds from those of other experiments."""

INTERVALS = (
    "Intervals are 95% over replications: of paired differences, and in the figure of values of the distance to the "
    "optimum of the same world."
)
REMARKS = {
    "valid": "The model holds exactly. Worlds are drawn anew in every replication.",
    "authors": (
        "Next states are not linear in φ1, and the highest dose is best for everybody. The paper's φ has no intercept: "
        "the constant by which rewards are mapped onto [0, 1] lies outside its span. With one, see the page beside."
    ),
    "authors-intercept": (
        "Next states are not linear in φ1, and the highest dose is best for everybody. An intercept in φ1, which the "
        "paper's φ lacks, takes up the constant by which rewards are mapped onto [0, 1]."
    ),
}


@dataclass(frozen=True)
class Plan:
    """What to run: which of WORLDS, which panels, the numbers of patients, and how often."""

    world: str = "valid"
    panels: tuple[str, ...] = tuple(FIGURE_2)
    sizes: tuple[int, ...] = SIZES
    replications: int = 20
    fresh: int = 1000
    seed: int = 0

    @classmethod
    def quick(cls, world: str = "valid", seed: int = 0) -> "Plan":
        """Seconds instead of minutes: enough to see that everything runs, and for nothing else."""
        return cls(world, panels=("(20,2,5,5)",), sizes=(50, 200), replications=2, fresh=200, seed=seed)


@dataclass(frozen=True)
class ValueRow:
    """What a method reaches in one cell, the mean over sites and replications.

    The 95% interval is that of the distance to the optimum of the same world: worlds are drawn anew each time, and
    differ more than methods do. `share` is (value − behaviour)/(optimum − behaviour), in means.
    """

    panel: str
    n: int
    method: str
    value: float
    low: float
    high: float
    share: float
    replications: int


@dataclass(frozen=True)
class DifferenceRow:
    """FDTR (auto) less another method on the same replications.

    `holm` is the adjusted p-value of being below 0, among all cells with enough patients.
    """

    panel: str
    n: int
    against: str
    difference: float
    low: float
    high: float
    holm: float | None


def run_figure2(plan: Plan, processes: int | None = None, progress: Progress = ignore_progress) -> Finding:
    """Run every panel and say what came of it."""
    trials = [
        Trial(_spec(plan.world, panel), plan.sizes, seeds_of(plan.seed, *_key(plan.world, panel), r), plan.fresh)
        for panel in plan.panels
        for r in range(plan.replications)
    ]
    outcomes = replicate(run_trial, trials, f"Figure 2, {plan.world}", processes, progress)
    by_panel = {
        panel: outcomes[place * plan.replications :][: plan.replications] for place, panel in enumerate(plan.panels)
    }
    values = [row for panel, of_panel in by_panel.items() for row in value_rows(panel, plan.sizes, of_panel)]
    return describe(plan.world, values, difference_rows(by_panel, plan.sizes))


def describe(world: str, values: Sequence[ValueRow], differences: Sequence[DifferenceRow]) -> Finding:
    """What the rows of one world show."""
    name, where = f"figure2-{world}", WORLDS[world]
    return Finding(
        title=f"Figure 2 on {where}",
        shows=[REMARKS[world], *_ahead(differences), _reached(values), INTERVALS],
        tables=[Table(name, values), Table(f"{name}-differences", differences)],
        figures=[
            Figure(name, f"Value of each method's policies on {where}", partial(_draw_values, values)),
            Figure(
                f"{name}-differences",
                f"FDTR (auto) less each method on {where}",
                partial(_draw_differences, differences),
            ),
        ],
    )


def _spec(world: str, panel: str) -> Spec:
    if world == "valid":
        return linear_of(panel)
    return replace(FIGURE_2[panel], intercept="specific" if world == "authors-intercept" else "none")


def _key(world: str, panel: str) -> tuple[int, int]:
    """Tells the seeds of one panel and world from all others."""
    return EXPERIMENTS[world], list(FIGURE_2).index(panel)


def value_rows(panel: str, sizes: Sequence[int], outcomes: Sequence[Outcome]) -> list[ValueRow]:
    """Rows of one panel: the value of every method and reference at every size."""
    known = [o.references for o in outcomes]
    flat = {
        "behaviour": np.array([r.behaviour for r in known]),
        "best constant action": np.array([r.constant for r in known]),
        "optimum": np.array([r.optimum for r in known]),
    }
    low, high = float(flat["behaviour"].mean()), float(flat["optimum"].mean())
    rows = []
    for n in sizes:
        reached = {method: np.array([o.methods[n][method] for o in outcomes]) for method in METHODS} | flat
        for method, sample in reached.items():
            short = mean(sample - flat["optimum"])
            share = (float(sample.mean()) - low) / (high - low)
            value, least, most = (high + end for end in short.ends)
            rows.append(ValueRow(panel, n, method, value, least, most, share, len(outcomes)))
    return rows


def difference_rows(by_panel: Mapping[str, Sequence[Outcome]], sizes: Sequence[int]) -> list[DifferenceRow]:
    """FDTR (auto) against every baseline; Holm's adjustment over all cells with n ≥ ENOUGH."""
    cells = [(panel, n, method) for panel in by_panel for n in sizes for method in BASELINES]
    gains = [[o.methods[n][FDTR_AUTO] - o.methods[n][method] for o in by_panel[panel]] for panel, n, method in cells]
    judged = [place for place, (_, n, _) in enumerate(cells) if n >= ENOUGH]
    adjusted = dict(zip(judged, holm([p_below(gains[place]) for place in judged]), strict=True))
    return [
        DifferenceRow(*cell, *mean(gain).ends, adjusted.get(place))
        for place, (cell, gain) in enumerate(zip(cells, gains, strict=True))
    ]


def _ahead(rows: Sequence[DifferenceRow]) -> list[str]:
    sentences = []
    for small in (False, True):
        cells = [row for row in rows if (row.n < ENOUGH) is small]
        if not cells:
            continue
        above, below = sum(row.low > 0 for row in cells), sum(row.high < 0 for row in cells)
        least, most = min(cells, key=lambda row: row.difference), max(cells, key=lambda row: row.difference)
        after_holm = (
            "" if small else f" (after Holm in {sum(row.holm is not None and row.holm < 0.05 for row in cells)})"
        )
        sentences.append(
            f"n {'<' if small else '≥'} {ENOUGH}, {len(cells)} cells (panel × n × baseline): FDTR (auto) is ahead with "
            f"the interval above 0 in {above} ({above / len(cells):.0%}), and with it below 0 in {below}{after_holm}. "
            f"Smallest difference {_cell(least)}, largest {_cell(most)}."
        )
    return sentences


def _reached(rows: Sequence[ValueRow]) -> str:
    largest = max(row.n for row in rows)
    parts = [
        f"{row.panel}: {row.method} {row.share:.0%}"
        for row in rows
        if row.n == largest and row.method in (FDTR_AUTO, PAPERS[0], "best constant action")
    ]
    return f"Reached of (optimum − behaviour) at n = {largest}: {'; '.join(parts)}."


def _cell(row: DifferenceRow) -> str:
    return f"{row.difference:+.4f} ({row.low:+.4f} to {row.high:+.4f}; against {row.against}, {row.panel}, n = {row.n})"


def _draw_values(rows: Sequence[ValueRow]) -> "altair.TopLevelMixin":
    from experiments import charts

    return charts.values_by_size(rows, METHODS)


def _draw_differences(rows: Sequence[DifferenceRow]) -> "altair.TopLevelMixin":
    from experiments import charts

    return charts.differences_by_size(rows, BASELINES)
