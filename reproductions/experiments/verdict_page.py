"""What the experiment on verdicts shows: a sentence for each question, cells that miss by name, and a figure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from experiments.comparison import Case, Purpose
from experiments.findings import Figure, Finding, Table
from experiments.intervals import Interval
from experiments.verdict_cells import POOLED, Cell, as_rows, cells_of
from experiments.verdicts import METHODS, Record, cases

if TYPE_CHECKING:
    import altair

LEAST, NOMINAL = 0.93, 0.95
"""A 95% interval should cover this; it covers more than it says where the lower limit is above the second."""

MOST_WRONG = 0.025
"""Share of site-runs in which "better than clinicians" may be said wrongly."""

LEAST_KEPT, ENOUGH = 0.2, 600
"""The verified part should keep so much of the true gain from so many patients on."""

FEW = 100
"""Verified gains in a cell; fewer show little."""


@dataclass(frozen=True)
class Question:
    """A question to every cell: `about` what, the `column` that answers, what is `asked`, and what `misses` that.

    It is put to those cells only that it `applies` to and that have an answer.
    """

    about: str
    column: str
    asked: str
    misses: Callable[[Interval], bool]
    applies: Callable[[Cell], bool] = lambda _cell: True

    def answer(self, cell: Cell) -> Interval:
        """The share or the ratio that is judged."""
        answer: Interval = getattr(cell, self.column)
        return answer

    def put_to(self, cells: Sequence[Cell]) -> list[Cell]:
        """The cells that have an answer."""
        return [cell for cell in cells if self.applies(cell) and np.isfinite(self.answer(cell).estimate)]

    def missed_by(self, cell: Cell) -> bool:
        """Whether a cell has an answer, and misses what is asked."""
        return bool(self.put_to([cell])) and self.misses(self.answer(cell))


def _covers(about: str, column: str) -> Question:
    asked = f"not below {LEAST:.0%} by the upper limit"
    return Question(f"coverage of {about}", column, asked, lambda covered: covered.high < LEAST)


def _rarely(about: str, column: str) -> Question:
    asked = f"not above {MOST_WRONG:.1%} of site-runs by the lower limit"
    return Question(
        f"wrong claims that {about}, in useless and harmful worlds",
        column,
        asked,
        lambda wrong: wrong.low > MOST_WRONG,
        lambda cell: cell.nothing_to_gain,
    )


VERIFIED_GAINS = _covers("verified gains", "gain_covered")
COVERAGE = (
    VERIFIED_GAINS,
    _covers("model-based full values where T rejects the linear model", "rejected_covered"),
    _covers("model-based full values where T does not reject", "accepted_covered"),
    _covers("verified full values", "full_verified_covered"),
    _covers("model-based full gains", "model_gain_covered"),
    *(_covers(f"verified gains pooled over {k} sites", f"pooled_gain_{k}") for k in POOLED),
    *(_covers(f"model-based full values pooled over {k} sites", f"pooled_model_{k}") for k in POOLED),
)
WRONG = (
    _rarely("a verified part is better than clinicians", "wrong_verified"),
    _rarely("a full policy is better than clinicians, verified", "wrong_full_verified"),
    _rarely("a full policy is better than clinicians, model-based", "wrong_model"),
)
KEPT = Question(
    f"true gain kept by the verified part, n ≥ {ENOUGH}",
    "kept",
    f"at least {LEAST_KEPT:.0%} of the full policy's, where that is shown to be positive",
    lambda kept: kept.estimate < LEAST_KEPT,
    lambda cell: cell.n >= ENOUGH,
)
QUESTIONS = (*COVERAGE, *WRONG, KEPT)


def find(
    by_case: Sequence[tuple[Case, Sequence[Mapping[str, Sequence[Record]]]]], recorded: Sequence[Cell] = ()
) -> Finding:
    """What is said of policies fitted to a site's own patients, against what is true.

    `recorded` are cells of earlier runs: those of other worlds stay.
    """
    worlds = [case.called for case, _ in by_case]
    cells = [*(cell for cell in recorded if cell.world not in worlds), *cells_of(by_case)]
    names = [case.called for case in cases()]
    cells.sort(key=lambda cell: names.index(cell.world) if cell.world in names else len(names))
    misses = ["; ".join(question.about for question in QUESTIONS if question.missed_by(cell)) for cell in cells]
    return Finding(
        title="Verdicts on policies that are fitted to a site's own patients",
        shows=[*_setup(cells), *_how_much(cells), *_answers(cells), *_compared(cells), *_missed(cells)],
        tables=[Table("verdicts", as_rows(cells, misses=misses))],
        figures=[
            Figure("verdicts", "How often 95% intervals of verified gains hold the true gain", partial(_draw, cells))
        ],
    )


def _setup(cells: Sequence[Cell]) -> list[str]:
    worlds = [
        f"{purpose}: {'; '.join(dict.fromkeys(cell.world for cell in cells if cell.purpose == purpose))}"
        for purpose in get_args(Purpose)
        if any(cell.purpose == purpose for cell in cells)
    ]
    replications, sites = (_span([getattr(cell, name) for cell in cells]) for name in ("replications", "sites"))
    return [
        f"Worlds for {'. For '.join(worlds)}.",
        (
            f"{len(cells)} cells (world × n × method), each of {replications} replications and {sites} site-runs. "
            "Policies are fitted fold by fold; truths are exact, or from fresh patients. Intervals are 95%, clustered "
            f"by replication. A cell misses {LEAST:.0%} coverage, or at most {MOST_WRONG:.1%} wrong claims, if its "
            "whole interval does."
        ),
    ]


def _span(numbers: Sequence[int]) -> str:
    """The numbers, or from which to which.

    >>> _span([200, 200]), _span([200, 1000])
    ('200', '200 to 1,000')
    """
    ends = sorted({min(numbers), max(numbers)})
    return " to ".join(f"{number:,}" for number in ends)


def _how_much(cells: Sequence[Cell]) -> list[str]:
    """Means over cells by size: what is verified, how wide it is, what it keeps, and what is advised."""

    def share(column: str) -> str:
        return _by_size(cells, column, lambda x: f"{x:.1%}")

    def width(column: str) -> str:
        return _by_size(cells, column, lambda x: f"{x:.3f}")

    ns = " / ".join(str(n) for n in _sizes(cells))
    few = sum(cell.gain_covered.cases < FEW for cell in cells)
    return [
        (
            f"Means over cells, n = {ns}. Sites with a verified gain: {share('verified')}; in {few} cells there are "
            f"fewer than {FEW} such site-runs. Values of full policies: verified {share('full_verified')}, model-based "
            f"{share('model_based')}, of which T rejects the linear model in {share('rejected')}, not estimable "
            f"{share('not_estimable')}."
        ),
        (
            f"Verified parts, n = {ns}: they advise in {share('acts_in')} of decisions and keep {share('kept')} of the "
            f"full policy's true gain, where that is positive. Bias of their gains: {width('gain_bias')}; standard "
            f"deviation of errors over mean standard error: {width('gain_sd_over_se')}."
        ),
        (
            f"Widths, n = {ns}: verified gains {width('gain_width')}; model-based values where T rejects "
            f"{width('rejected_width')}, where not {width('accepted_width')}. Where T rejects, the linear model's own "
            f"interval covers {share('rejected_linear')}."
        ),
        (
            f"Decisions advised otherwise than treated, n = {ns}: full policies {share('otherwise')}, verified parts "
            f"{share('verified_otherwise')}. Harmful ones, where that is known: {share('harmful')} and "
            f"{share('verified_harmful')}."
        ),
    ]


def _sizes(cells: Sequence[Cell]) -> list[int]:
    return sorted({cell.n for cell in cells})


def _by_size(cells: Sequence[Cell], column: str, shown: Callable[[float], str]) -> str:
    """The mean of a column over cells that have it, for each size."""
    means = []
    for n in _sizes(cells):
        values = [_number(getattr(cell, column)) for cell in cells if cell.n == n]
        finite = [value for value in values if np.isfinite(value)]
        means.append(shown(float(np.mean(finite))) if finite else "–")
    return " / ".join(means)


def _number(value: Any) -> float:
    return value.estimate if isinstance(value, Interval) else float(value)


def _compared(cells: Sequence[Cell]) -> list[str]:
    """Coverage of the linear model's own paired gain where that model holds."""
    valid = [cell for cell in cells if cell.world.startswith("valid")]
    if not valid:
        return []
    shares = [cell.compared_covered.estimate for cell in valid]
    spreads = [cell.compared_sd_over_se for cell in valid]
    sentence = (
        "The linear model's own paired gain of a full policy over clinicians (`Evaluator.compare`), where that model "
        f"holds: its 95% interval covers {min(shares):.1%} to {max(shares):.1%} in {len(valid)} cells. The standard "
        f"deviation of errors over their mean standard error is {min(spreads):.2f} to {max(spreads):.2f}."
    )
    return [sentence]


def _answers(cells: Sequence[Cell]) -> list[str]:
    return [_answer(question, cells) for question in QUESTIONS if question.put_to(cells)]


def _answer(question: Question, cells: Sequence[Cell]) -> str:
    """In how many cells it is as asked, and over what range."""
    parts = []
    for purpose in get_args(Purpose):
        judged = question.put_to([cell for cell in cells if cell.purpose == purpose])
        if judged:
            held = sum(not question.missed_by(cell) for cell in judged)
            parts.append(f"{held} of {len(judged)} cells for {purpose}")
    answers = [question.answer(cell) for cell in question.put_to(cells)]
    numbers = [answer.estimate for answer in answers]
    spread = f"{min(numbers):.1%} to {max(numbers):.1%}, median {np.median(numbers):.1%}"
    about = f"{question.about[0].upper()}{question.about[1:]} (asked: {question.asked})"
    return f"{about}: holds in {' and '.join(parts)}. It is {spread}{_beyond(question, cells, answers)}."


def _beyond(question: Question, cells: Sequence[Cell], answers: Sequence[Interval]) -> str:
    """What else the answers show: intervals that are too wide, cells without any, and wrong claims elsewhere."""
    if question in WRONG:
        elsewhere = [question.answer(cell).estimate for cell in cells if not cell.nothing_to_gain]
        return f"; in other worlds at most {max(elsewhere):.1%}" if elsewhere else ""
    if question not in COVERAGE:
        return ""
    above = sum(answer.low > NOMINAL for answer in answers)
    without = len(cells) - len(answers)
    beyond = f", and above {NOMINAL:.0%} by the lower limit in {above} cells"
    return beyond + (f"; {without} cells have no such interval" if without else "")


def _missed(cells: Sequence[Cell]) -> list[str]:
    """Every cell that misses something, by name."""
    misses = [
        f"Misses, {question.about}: {cell.called}: {question.answer(cell).per_cent}."
        for question in QUESTIONS
        for cell in cells
        if question.missed_by(cell)
    ]
    return misses or ["No cell misses anything."]


def _draw(cells: Sequence[Cell]) -> "altair.TopLevelMixin":
    import altair as alt

    purposes = [purpose for purpose in get_args(Purpose) if any(cell.purpose == purpose for cell in cells)]
    return alt.vconcat(
        *(
            alt.hconcat(*(_coverage([c for c in cells if (c.purpose, c.method) == (purpose, m)]) for m in METHODS))
            for purpose in purposes
        )
    )


def _coverage(cells: Sequence[Cell]) -> Any:
    """Coverage of verified gains, a row for each world, a colour for each size; a dashed line at what is asked."""
    import altair as alt

    from experiments.charts import series

    records = [
        {"world": cell.world, "n": str(cell.n)}
        | dict(zip(("covered", "low", "high"), cell.gain_covered.ends, strict=True))
        for cell in VERIFIED_GAINS.put_to(cells)
    ]
    worlds, sizes = list(dict.fromkeys(cell.world for cell in cells)), [str(n) for n in _sizes(cells)]
    base, scale = alt.Chart(alt.InlineData(values=records)), alt.Scale(domain=[0.7, 1.0], clamp=True)
    styles = series("n:N", sizes, "patients at a site")
    axis = alt.Axis(labelLimit=260, grid=True, tickBand="extent")
    y = alt.Y("world:N", sort=worlds, title=None, axis=axis, scale=alt.Scale(domain=worlds))
    offset = alt.YOffset("n:N", sort=sizes, scale=alt.Scale(domain=sizes))
    x = alt.X("low:Q", scale=scale, title="covered; less than 70% is drawn at 70%", axis=alt.Axis(format="%"))
    asked = alt.Chart(alt.InlineData(values=[{"at": LEAST}])).mark_rule(strokeDash=[4, 3])
    points = base.mark_point(filled=True, size=40, opacity=1, clip=True)
    return alt.layer(
        asked.encode(alt.X("at:Q", scale=scale)),
        base.mark_rule().encode(x, y, x2="high:Q", yOffset=offset, color=styles["color"]),
        points.encode(alt.X("covered:Q", scale=scale), y, yOffset=offset, **styles),
    ).properties(width=300, height=alt.Step(9), title=f"{cells[0].method}, worlds for {cells[0].purpose}")
