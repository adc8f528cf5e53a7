"""Is it ever worse than going alone? FDTR (auto) against LDTR (auto) and Q-learn (H) where assumptions break."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, get_args

import numpy as np

from experiments.comparison import FDTR_AUTO, LDTR_AUTO, Q_LEARN_H, Case, Plan, Purpose, Size
from experiments.findings import Figure, Finding, Table
from experiments.intervals import mean
from experiments.tuning import ENOUGH, Outcome, size_name

if TYPE_CHECKING:
    import altair

RIVALS = (LDTR_AUTO, Q_LEARN_H)
ALLOWED_LOSS = 0.02
"""Of (optimum − behaviour): the lower limit of a difference may lie so far below 0."""


@dataclass(frozen=True)
class Row:
    """FDTR (auto) less a rival, in percent of (optimum − behaviour), with a 95% interval; `reached` by FDTR (auto)."""

    purpose: str
    world: str
    shape: str
    n: str
    against: str
    difference: float
    low: float
    high: float
    reached: float
    span: float
    holds: bool


def find(plan: Plan, by_case: Sequence[tuple[Case, Sequence[Outcome]]]) -> Finding:
    """List where the lower limit lies further below 0 than allowed, from 200 patients a site on."""
    sizes = {case.number: [n for n in case.sizes or plan.sizes if np.max(n) >= ENOUGH] for case, _ in by_case}
    rows = [row for case, own in by_case for row in rows_of(case, sizes[case.number] or plan.sizes, own)]
    return Finding(
        title="Never much worse than going alone",
        shows=_describe(rows),
        tables=[Table("worlds", rows)],
        figures=[Figure("worlds", "FDTR (auto) less a rival, % of (optimum − behaviour)", partial(_draw, rows))],
    )


def rows_of(case: Case, sizes: Sequence[Size], outcomes: Sequence[Outcome]) -> list[Row]:
    """Rows of one case: FDTR (auto) less each rival, at every size."""
    span, behaviour = (float(np.mean(x)) for x in zip(*((o.span, o.behaviour) for o in outcomes), strict=True))
    rows = []
    for n in sizes:
        auto = np.array([o.mean_of(n, FDTR_AUTO) for o in outcomes])
        for rival in RIVALS:
            gain = mean(100 * (auto - [o.mean_of(n, rival) for o in outcomes]) / span)
            holds = bool(gain.low >= -100 * ALLOWED_LOSS)
            reached = float(auto.mean() - behaviour) / span
            rows.append(
                Row(case.purpose, case.called, case.shape, size_name(n), rival, *gain.ends, reached, span, holds)
            )
    return rows


def _describe(rows: Sequence[Row]) -> list[str]:
    sentences = []
    for purpose in get_args(Purpose):
        of_purpose = [row for row in rows if row.purpose == purpose]
        if not of_purpose:
            continue
        holding, above = sum(row.holds for row in of_purpose), sum(row.low > 0 for row in of_purpose)
        least = min(of_purpose, key=lambda row: row.low)
        sentences.append(
            f"Worlds for {purpose}, {len(of_purpose)} cells (world × n × rival): the lower limit of the difference is "
            f"at least −{ALLOWED_LOSS:.0%} of (optimum − behaviour) in {holding}, and above 0 in {above}. The least is "
            f"{_cell(least)}."
        )
        sentences += [f"Missed: {_cell(row)}." for row in of_purpose if not row.holds]
    return sentences


def _cell(row: Row) -> str:
    return (
        f"{row.difference:+.2f}% ({row.low:+.2f}% to {row.high:+.2f}%; against {row.against}, {row.world}, "
        f"{row.shape}, n = {row.n})"
    )


def _draw(rows: Sequence[Row]) -> "altair.TopLevelMixin":
    from experiments import charts

    return charts.differences_by_world(rows, RIVALS, -100 * ALLOWED_LOSS)
