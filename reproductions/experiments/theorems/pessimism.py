"""Theorem 2 by c: whether V̂₁ ≤ V₁^π̂, whether the confidence event holds, and whether SubOpt keeps its bound.

Pessimism in units of noise, α_h = κ d σ̂_h, which the theorem does not know, is held to the same statements.
"""

import math
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

from scipy.optimize import brentq

from experiments.findings import Figure, Finding, Table
from experiments.intervals import Interval
from experiments.replications import Progress, replicate, seeds_of
from experiments.theorems.fitting import MESSAGE_PESSIMISM, settings
from experiments.theorems.judgements import (
    GOAL,
    Judgements,
    NoiseRow,
    PessimismRow,
    Row,
    bound_rows,
    event_rows,
    first_to_reach,
    noise_rows,
    pessimism_rows,
)
from experiments.theorems.truth import Cell, Trial, judge_trial
from fdtr.learners import NoiseUnits, Settings
from fdtr.simulation import WorldSpec

if TYPE_CHECKING:
    import altair

EXPERIMENT = 41

RUNS = 60
PANELS = (WorldSpec(n_shared=5, n_specific=5, n_actions=2, horizon=5), WorldSpec())
"""The shapes (20, 2, 5, 5) and (8, 6, 15, 5) of the paper's Section 5.1, as worlds that obey its model."""

RIDGES = (1.0, 0.01)
"""The theorem's λ, and one so small that it does no pessimism of its own."""

USUAL = 0.0005
"""The c beside which noise units are shown."""

GRID = (0.0, 0.0001, 0.0002, 0.0003, 0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.007, 0.01, 0.015, 0.02)
QUICK_PANELS = (WorldSpec(n_sites=2, n_shared=2, n_specific=2, n_actions=2, horizon=3),)
QUICK_GRID = (0.0, USUAL, 0.002, 0.02)

DEFAULTS = (0.03, 0.1)
"""κ of a study with defaults: the usual one, and that of sites that stay closer to usual care."""

NOISE_GRID = (0.0, 0.01, 0.03, 0.06, 0.1, 0.2, 0.3, 0.5, 1.0)
QUICK_NOISE_GRID = (0.0, *DEFAULTS)


def theory_pessimism(n_features: int) -> float:
    """The smallest c from which on the proof of Theorem 2 goes through: c²/4 = 18 (1 + 1/d) + 8 log(64 c²).

    Its last inequality asks for no more on the right than on the left; H√d ≤ α/2, the other one, is then true.

    >>> round(theory_pessimism(20), 1)
    20.0
    """
    return float(brentq(lambda c: c**2 / 4 - 18 * (1 + 1 / n_features) - 8 * math.log(64 * c**2), 4.0, 1000.0))


def run(seed: int, quick: bool, processes: int | None, progress: Progress) -> Finding:
    """Fit valid worlds with every c and κ, and hold each fit to the truth."""
    judgements = judge(seed, quick, processes, progress)
    shows = [_setup(judgements)]
    for judged in judgements:
        shows += [
            _pessimism_sentence(judged),
            _theory_sentence(judged),
            _event_sentence(judged),
            _bound_sentence(judged),
            _noise_sentence(judged),
        ]
    return Finding(
        title="Pessimism, the confidence event and the suboptimality bound (Theorem 2)",
        shows=shows,
        tables=[
            Table("theorem2-pessimism", [row for judged in judgements for row in pessimism_rows(judged)]),
            Table("theorem2-confidence", [row for judged in judgements for row in event_rows(judged)]),
            Table("theorem2-suboptimality", [row for judged in judgements for row in bound_rows(judged)]),
            Table("theorem2-noise", [row for judged in judgements for row in noise_rows(judged)]),
        ],
        figures=[
            Figure(
                "theorem2-shares", "How often the statements of Theorem 2 hold, by c", partial(_draw_shares, judgements)
            ),
            Figure(
                "theorem2-values",
                "What the fit promises, what its policy reaches, and the optimum, by c",
                partial(_draw_values, judgements),
            ),
        ],
    )


def judge(seed: int, quick: bool, processes: int | None, progress: Progress) -> list[Judgements]:
    """Fit and judge every world with every λ, c and κ."""
    panels, grid, noise = (QUICK_PANELS, QUICK_GRID, QUICK_NOISE_GRID) if quick else (PANELS, GRID, NOISE_GRID)
    runs, n, draws = (2, 60, 50) if quick else (RUNS, 200, 1000)
    jobs = [
        Trial(spec, 0.0, n, _learning(spec, grid, noise), draws, seeds_of(seed, EXPERIMENT, number, r))
        for number, spec in enumerate(panels)
        for r in range(runs)
    ]
    results = replicate(judge_trial, jobs, "pessimism", processes, progress)
    judgements = []
    for start in range(0, len(jobs), runs):
        spec, learning = jobs[start].spec, jobs[start].learning
        name = f"d = {_features(spec)}, |A| = {spec.n_actions}, H = {spec.horizon}"
        for ridge in RIDGES:
            cells: dict[float, Cell] = {}
            noise_cells: dict[float, Cell] = {}
            for place, learnt in enumerate(learning):
                if learnt.ridge != ridge:
                    continue
                cell = Cell([result[place] for result in results[start : start + runs]])
                if isinstance(learnt.pessimism, NoiseUnits):
                    noise_cells[learnt.pessimism.noise] = cell
                else:
                    cells[learnt.pessimism] = cell
            theory = theory_pessimism(_features(spec))
            judgements.append(Judgements(name, spec.horizon, theory, ridge, cells, noise_cells))
    return judgements


def _learning(spec: WorldSpec, grid: Sequence[float], noise: Sequence[float]) -> tuple[Settings, ...]:
    """Settings to try: every λ with every c of the grid, with c = 1, with the theory's c, and with every κ."""
    pessimisms: list[float | NoiseUnits] = [*grid, 1.0, theory_pessimism(_features(spec)), *map(NoiseUnits, noise)]
    return tuple(settings(pessimism, ridge) for ridge in RIDGES for pessimism in pessimisms)


def _features(spec: WorldSpec) -> int:
    """The number of features, d."""
    return 2 * (spec.n_shared + spec.n_specific)


def _setup(judgements: Sequence[Judgements]) -> str:
    runs, sites = judgements[0].cells[0.0].each("value").shape
    error = max(row.monte_carlo for judged in judgements for row in pessimism_rows(judged))
    return (
        f"FDTR with w = 1 and ξ = 0.99 on valid linear MDPs, {runs} runs of {sites} sites in each world; messages come "
        f"from LDTR with the same c and λ (where pessimism is in units of noise, with c = {MESSAGE_PESSIMISM:g}). V̂₁ "
        "and V₁^π̂ are means over the same fresh first states. The Monte-Carlo standard error of V₁^π̂ is "
        f"{error:.4f} at most, on average over a row."
    )


def _pessimism_sentence(judged: Judgements) -> str:
    rows = pessimism_rows(judged)
    place = first_to_reach([row.share for row in rows])
    start = f"{judged.name}: V̂₁ ≤ V₁^π̂ in {rows[0].interval.per_cent} of (run, site) at c = 0"
    if place is None:
        return f"{start}, and no c that was tried reaches 95%. Fails."
    row = rows[place]
    verdict = "above 0, so that the promise says something. Holds" if row.promised_low > 0 else "it says nothing. Fails"
    because = " (shrinking rewards ≥ 0 towards 0 is pessimism by itself)" if place == 0 else ""
    return (
        f"{start}; the smallest c that reaches 95% is {row.pessimism:g}{because}, with {row.interval.per_cent}. "
        f"There V̂₁ is {_promised(row)} beside a value of {row.value:.3f}: {verdict}."
    )


def _theory_sentence(judged: Judgements) -> str:
    rows = {row.pessimism: row for row in pessimism_rows(judged)}
    largest = max(rows[1.0].promised_largest, rows[judged.theory].promised_largest)
    event = min(row.share for row in event_rows(judged) if row.pessimism >= 1)
    outcome = "0 in every run at every site: pessimism is trivial" if largest == 0 else f"at most {largest:.3g}"
    return (
        f"{judged.name}: the proof of Theorem 2, which has λ = 1, goes through from c = {judged.theory:.1f} on. There "
        f"and at c = 1 the confidence event holds in {event:.1%} of (run, site, step), and V̂₁ is {outcome}. "
        f"{'Holds' if event == 1 else 'Fails'}."
    )


def _event_sentence(judged: Judgements) -> str:
    rows = event_rows(judged)
    place = first_to_reach([row.share for row in rows])
    if place is None:
        return f"{judged.name}: the confidence event reaches 95% of (run, site, step) at no c that was tried. Fails."
    row, values = rows[place], pessimism_rows(judged)[place]
    says = "" if values.promised_low > 0 else ", and says nothing"
    return (
        f"{judged.name}: |B̂V̂ − BV̂| ≤ Γ at every probed pair in {row.interval.per_cent} of (run, site, step) at "
        f"c = {row.pessimism:g}, the smallest that reaches 95% (at all steps of a site: {100 * row.all_steps:.1f}%; of "
        f"single pairs: {100 * row.pairs:.2f}%; at every pair there could be: {100 * row.everywhere:.1f}%). There V̂₁ "
        f"is {_promised(values)}{says}."
    )


def _bound_sentence(judged: Judgements) -> str:
    rows = bound_rows(judged)
    confident, broken = sum(row.confident for row in rows), sum(row.broken for row in rows)
    place = first_to_reach([row.share for row in rows])
    row = rows[place] if place is not None else rows[-1]
    empty = next((row for row in rows if row.empty > 0.5), None)
    vacuous = f" From c = {empty.pessimism:g} on the bound mostly exceeds H and says nothing." if empty else ""
    return (
        f"{judged.name}: SubOpt ≤ 2 Σ_h E_π*[Γ_h] in {row.interval.per_cent} of (run, site) at c = {row.pessimism:g}, "
        f"where SubOpt is {Interval(row.suboptimality, row.suboptimality_low, row.suboptimality_high).shown()}, the "
        f"bound {row.bound:.3f} and their ratio {row.ratio:.2f} on average.{vacuous} In the {confident} cases of all c "
        f"in which the confidence event held, the bound or V̂₁ ≤ V₁^π̂ was broken {broken} times. "
        f"{'Holds' if broken == 0 else 'Fails'}."
    )


def _noise_sentence(judged: Judgements) -> str:
    """V̂₁ ≤ V₁^π̂ with the default κ, beside the usual c."""
    rows = noise_rows(judged)
    [usual] = [row for row in pessimism_rows(judged) if row.pessimism == USUAL]
    [event] = [row.share for row in event_rows(judged) if row.pessimism == USUAL]
    defaults = [row for row in rows if row.noise in DEFAULTS]
    beside: list[NoiseRow | PessimismRow] = [*defaults, usual]
    shares = [f"{row.interval.per_cent} at noise = {row.noise:g}" for row in defaults]
    values = [f"{row.promised:.3f} (value {row.value:.3f})" for row in beside]
    events = [f"{at:.1%}" for at in (*(row.event for row in defaults), event)]
    place = first_to_reach([row.share for row in rows])
    smallest = "none that was tried" if place is None else f"{rows[place].noise:g}"
    return (
        f"{judged.name}, pessimism in units of noise: V̂₁ ≤ V₁^π̂ in {' and '.join(shares)}, the defaults, and in "
        f"{usual.interval.per_cent} of (run, site) at c = {USUAL:g}; the smallest noise that reaches {GOAL:.0%} is "
        f"{smallest}. In the same order V̂₁ is {', '.join(values)}, and the confidence event holds in "
        f"{', '.join(events)} of (run, site, step)."
    )


def _promised(row: PessimismRow) -> str:
    return Interval(row.promised, row.promised_low, row.promised_high).shown()


def _record(judged: Judgements, series: str, row: Row, **changed: float) -> dict[str, Any]:
    taken = {field.name: getattr(row, field.name) for field in fields(Row)}
    return {**taken, "panel": judged.name, "c": f"{row.pessimism:g}", "series": series, **changed}


def _draw_shares(judgements: Sequence[Judgements]) -> "altair.TopLevelMixin":
    import altair as alt

    from experiments.charts import by_pessimism, lines

    rows: list[dict[str, Any]] = []
    for judged in judgements:
        rows += [_record(judged, "promise ≤ value reached", row) for row in pessimism_rows(judged) if row.pessimism < 1]
        rows += [_record(judged, "confidence event, by step", row) for row in event_rows(judged) if row.pessimism < 1]
        rows += [_record(judged, "SubOpt ≤ its bound", row) for row in bound_rows(judged) if row.pessimism < 1]
    y = alt.Y("share:Q", title="share", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%"))
    names = list(dict.fromkeys(row["series"] for row in rows))
    return lines(rows, by_pessimism(list(judgements[0].cells)), y, names, reference=GOAL)


def _draw_values(judgements: Sequence[Judgements]) -> "altair.TopLevelMixin":
    import altair as alt

    from experiments.charts import by_pessimism, lines

    rows: list[dict[str, Any]] = []
    for judged in judgements:
        for row in pessimism_rows(judged):
            if row.pessimism < 1:
                rows += [
                    _record(judged, "promised", row, value=row.promised, low=row.promised_low, high=row.promised_high),
                    _record(
                        judged, "reached by the policy", row, value=row.value, low=row.value_low, high=row.value_high
                    ),
                    _record(judged, "optimum", row, value=row.best, low=row.best, high=row.best),
                ]
    y = alt.Y("value:Q", title="value, sum of rewards")
    names = list(dict.fromkeys(row["series"] for row in rows))
    return lines(rows, by_pessimism(list(judgements[0].cells)), y, names, own_axis="y")
