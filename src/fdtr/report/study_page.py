"""The report of a study whose sites are all in one table: what was learnt, from what, and what to doubt."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fdtr.policy import ActionValue, Explanation
from fdtr.report import charts, footing
from fdtr.report.page import (
    Html,
    bullets,
    contents,
    counted,
    document,
    enumerated,
    figure,
    grouped_table,
    markup,
    number,
    paragraph,
    percent,
    places,
    section,
    step_titles,
    table,
    tag,
)
from fdtr.site import SiteCheck
from fdtr.study import Study

Array = NDArray[np.float64]

FDTR = "FDTR"
CLINICIANS = "Clinicians"
_FIGURE_SPACE = "\N{FIGURE SPACE}"

CITATION = (
    "Zhou D, Zhang Y, Sonabend-W A, Wang Z, Lu J, Cai T. Federated Offline Reinforcement Learning. "
    "Journal of the American Statistical Association 119(548), 3152–3163, 2024. "
    "doi:10.1080/01621459.2024.2310287"
)


class PracticeOf(Protocol):
    """A site's rule beside what was done: shares `recommended` and `given` (H, A), and their `agreement`."""

    @property
    def recommended(self) -> Array:
        """Shares of patients by step and action, as the rule would have it."""

    @property
    def given(self) -> Array:
        """Shares of patients by step and action, as it was."""

    @property
    def agreement(self) -> float:
        """Share of decisions in which both are the same."""


@dataclass(frozen=True)
class MethodValue:
    """What a method's rules are worth: the mean sum of mapped rewards, in [0, H], and by site.

    `low` and `high` are the ends of an interval. The row what was done without any rule is called CLINICIANS.
    """

    method: str
    value: float
    low: float
    high: float
    by_site: Mapping[str, float]


@dataclass(frozen=True)
class Example:
    """One made-up patient: a `state` in raw units at a `step`, and what each site's policy says of it."""

    state: Mapping[str, float]
    step: int
    by_site: Mapping[str, Explanation]


@dataclass(frozen=True, eq=False)
class StudyView:
    """Everything the page shows, nothing of it about one patient of the data.

    `shared_coefficients` is (H, d0). `values` are there only where the truth is known, and `values_note` says
    how they were made; the patient of `example` must not be one of the data's.
    """

    study: Study
    version: str
    checks: Mapping[str, SiteCheck]
    practice: Mapping[str, PracticeOf]
    shared_names: tuple[str, ...]
    shared_coefficients: Array
    values: tuple[MethodValue, ...] = ()
    values_note: str = ""
    example: Example | None = None


def render(view: StudyView) -> str:
    """The report as one HTML file."""
    study = view.study
    made = {title: build(view) for title, build in _SECTIONS.items()}
    shown = {title: parts for title, parts in made.items() if parts}
    patients = sum(found.n_patients for found in view.checks.values())
    lead = (
        f"Treatment rules for {counted(study.horizon, 'step')}, learnt from {counted(patients, 'patient')} of "
        f"{counted(len(view.checks), 'hospital')}. All rows lay in one table; each hospital's message was "
        "computed as it would be sent."
    )
    notice = "For use at home; not checked for disclosure: small counts are shown as they are."
    header = markup(
        tag("h1", study.name),
        tag("p", lead, class_="lead"),
        tag("p", notice, class_="notice"),
        contents(shown),
    )
    main = markup(*(section(title, *parts) for title, parts in shown.items()))
    return document(f"{study.name}: fdtr report", header, main, _footer())


def _in_short(view: StudyView) -> list[Html]:
    points = _value_sentences(view) if view.values else ["What the rules are worth is not estimated here."]
    shares = {site: practice.agreement for site, practice in view.practice.items()}
    if shares:
        rows = {site: view.checks[site].n_rows for site in shares}
        overall = sum(shares[site] * rows[site] for site in shares) / max(sum(rows.values()), 1)
        (least, low), *_, (most, high) = sorted([*shares.items()] * 2, key=lambda item: item[1])
        between = f", from {percent(low)} at {least} to {percent(high)} at {most}" if len(shares) > 1 else ""
        points.append(f"The rules would have chosen what was given in {percent(overall)} of decisions{between}.")
    passing = sum(all(verdict.holds for verdict in found.verdicts) for found in view.checks.values())
    points.append(f"Disclosure would let {passing} of {counted(len(view.checks), 'hospital')} send sums.")
    return [bullets(points)]


def _value_sentences(view: StudyView) -> list[str]:
    """FDTR beside the clinicians and beside the best other method, in mapped and in raw units."""
    named = {row.method: row for row in view.values}
    ours, theirs = named.get(FDTR), named.get(CLINICIANS)
    most = f"of at most {view.study.horizon}, summed over the steps"
    if ours is None:
        best = max(view.values, key=lambda row: row.value)
        return [f"{best.method} has the largest value: {_with_interval(view, best)}, {most}."]
    said = [f"For fresh simulated patients FDTR's rules are worth {_with_interval(view, ours)}, {most}."]
    if theirs is not None:
        worth = _with_interval(view, theirs)
        said.append(f"The clinicians' own choices are worth {worth}. {_gap(view, ours, theirs)}")
    others = [row for row in view.values if row.method not in (FDTR, CLINICIANS)]
    if others:
        best = max(others, key=lambda row: row.value)
        worth = _with_interval(view, best)
        said.append(f"The best of the other methods, {best.method}, is worth {worth}. {_gap(view, ours, best)}")
    return said


def _with_interval(view: StudyView, row: MethodValue) -> str:
    decimals = _value_decimals(view)
    value, low, high = (number(x, decimals) for x in (row.value, row.low, row.high))
    raw = f"; {number(_raw(view, row.value), _raw_decimals(view))} in raw reward" if _has_raw_units(view) else ""
    return f"{value} ({low} to {high}{raw})"


def _gap(view: StudyView, ours: MethodValue, other: MethodValue) -> str:
    """How far FDTR is from another row, in all and a step."""
    difference = ours.value - other.value
    if difference == 0:
        return "FDTR is worth the same."
    low, high = view.study.reward.range
    size, decimals = abs(difference), _value_decimals(view)
    raw = f" ({_small(size * (high - low), _raw_decimals(view))} in raw reward)" if _has_raw_units(view) else ""
    overlap = ours.low <= other.high and other.low <= ours.high
    return (
        f"FDTR is worth {_small(size, decimals)} {'more' if difference > 0 else 'less'}{raw}, or "
        f"{_small(size / view.study.horizon, decimals + 1)} a step; the intervals "
        f"{'overlap' if overlap else 'do not overlap'}."
    )


def _small(size: float, decimals: int) -> str:
    """A difference with `decimals` places, or more where it would read as 0."""
    return number(size, max(decimals, places([size]) - 2))


def _has_raw_units(view: StudyView) -> bool:
    return view.study.reward.range != (0.0, 1.0)


def _raw(view: StudyView, value: float) -> float:
    """A sum of H mapped rewards, in the reward's own units."""
    low, high = view.study.reward.range
    return view.study.horizon * low + value * (high - low)


def _value_decimals(view: StudyView) -> int:
    return places(x for row in view.values for x in (row.value, row.low, row.high))


def _raw_decimals(view: StudyView) -> int:
    return places(_raw(view, row.value) for row in view.values)


def _values(view: StudyView) -> list[Html]:
    if not view.values:
        return []
    practice = next((row.value for row in view.values if row.method == CLINICIANS), None)
    chart = charts.interval_chart(
        "values",
        "Value of each method, with its interval",
        "; ".join(f"{row.method} {_with_interval(view, row)}" for row in view.values),
        [charts.Interval(row.method, row.value, row.low, row.high, row.method == FDTR) for row in view.values],
        practice,
    )
    dashed = "The dashed line is the clinicians' value. " if practice is not None else ""
    axis = f"Mean sum of {counted(view.study.horizon, 'reward')}, each mapped onto [0, 1]. "
    return [figure(chart, axis, dashed, view.values_note), _value_table(view)]


def _value_table(view: StudyView) -> Html:
    decimals = _value_decimals(view)
    raw = _has_raw_units(view)
    rows = [
        [
            row.method,
            number(row.value, decimals),
            f"{number(row.low, decimals)} to {number(row.high, decimals)}",
            *([number(_raw(view, row.value), _raw_decimals(view))] if raw else []),
            *(number(row.by_site.get(site, np.nan), decimals) for site in view.checks),
        ]
        for row in view.values
    ]
    columns = ["Method", "All hospitals", "Interval", *(["In raw reward"] if raw else []), *view.checks]
    return table("Value of each method, overall and by hospital", columns, rows)


def _example(view: StudyView) -> list[Html]:
    example = view.example
    if example is None:
        return []
    patient = enumerated([f"{name} {number(value)}" for name, value in example.state.items()])
    shown = [a for found in example.by_site.values() for a in found.actions]
    decimals = places(x for a in shown for x in (a.estimate, a.penalty, a.bound))
    groups = {
        f"{site}: {found.chosen.label}": [_action_row(a, found.chosen, decimals) for a in found.actions]
        for site, found in example.by_site.items()
    }
    rounding = "Numbers are rounded, so a sum may be off in the last digit."
    return [
        paragraph(f"A made-up patient at step {example.step}: {patient}."),
        paragraph(
            "A rule takes the action with the largest bound. The bound is the estimated value of the steps from "
            "here on less a penalty, which is large where few similar patients were treated in this way."
        ),
        grouped_table(
            "Each hospital's choice, and what it rests on",
            [
                "Action",
                "Estimate",
                "−\N{NO-BREAK SPACE}Penalty",
                "=\N{NO-BREAK SPACE}Bound",
                "Shared part",
                "Own part",
            ],
            groups,
        ),
        tag("p", "The shared part and the hospital's own part add up to the estimate. ", rounding, class_="quiet"),
    ]


def _action_row(value: ActionValue, chosen: ActionValue, decimals: int) -> list[str]:
    parts = (value.estimate, value.penalty, value.bound, value.shared, value.specific)
    label = tag("strong", f"{value.label} (chosen)") if value == chosen else value.label
    return [label, *(number(part, decimals) for part in parts)]


def _practice(view: StudyView) -> list[Html]:
    labels = view.study.actions.labels
    steps = range(view.study.horizon)
    drawn = []
    for i, (site, practice) in enumerate(view.practice.items()):
        title, described = f"Actions given and recommended at {site}", "The shares are in the table below."
        bars = charts.share_bars(f"practice-{i}", title, described, practice.given, practice.recommended)
        agreement = tag("p", f"The same in {percent(practice.agreement)} of decisions", class_="quiet")
        drawn.append(tag("figure", tag("h3", site), agreement, bars))
    groups = {
        site: [[label, *(_given_and_recommended(p, h, a) for h in steps)] for a, label in enumerate(labels)]
        for site, p in view.practice.items()
    }
    legend = (tag("li", charts.swatch(a, len(labels)), label) for a, label in enumerate(labels))
    columns = ["Action", *step_titles(steps)]
    return [
        paragraph(
            "For each step, the left column shows what was given and the right column what the rule would choose "
            "for the same patients. The first action is at the bottom, unfilled."
        ),
        tag("ul", *legend, class_="legend"),
        tag("div", *drawn, class_="multiples"),
        grouped_table("Share of patients, given → recommended", columns, groups),
    ]


def _given_and_recommended(practice: PracticeOf, step: int, action: int) -> str:
    given, recommended = (percent(float(x[step, action])) for x in (practice.given, practice.recommended))
    return f"{given} → {recommended.rjust(4, _FIGURE_SPACE)}"


def _shared(view: StudyView) -> list[Html]:
    names, values = view.shared_names, view.shared_coefficients
    if not names:
        return [paragraph("The study has no shared feature, so nothing is learnt together.")]
    unknown = footing.unidentified(view.checks)
    rows = [
        [f"{name} (not identified)" if name in unknown else name]
        + [number(x, places(values[:, j])) for x in values[:, j].tolist()]
        for j, name in enumerate(names)
    ]
    scaled = view.study.features.scale == "unit"
    return [
        paragraph(
            "The effects that all hospitals have in common (θ⁰), averaged over the hospitals' estimates. In a "
            "feature's name, a is the action; a feature without it moves the value whatever is done."
            + (" Covariates are scaled to [0, 1] and features to a norm of at most 1." if scaled else "")
        ),
        *_shared_figure(view, [j for j, name in enumerate(names) if name not in unknown]),
        table("Shared coefficients", ["Feature", *step_titles(range(len(values)))], rows),
    ]


def _shared_figure(view: StudyView, known: list[int]) -> list[Html]:
    """The chart of the features at positions `known`, or of the largest of them."""
    if not known:
        return [paragraph("No hospital identifies any of them, so none is drawn.")]
    names, values = view.shared_names, view.shared_coefficients
    by_size = sorted(known, key=lambda j: -float(np.abs(values[:, j]).max()))
    drawn = sorted(by_size[: charts.MOST_LINES])
    chart = charts.line_chart(
        "shared", "Shared coefficients by step", "The numbers are in the table below.",
        [names[j] for j in drawn], values[:, drawn],
    )  # fmt: skip
    notes = ["Across: step. Up: coefficient, in mapped reward."]
    if len(drawn) < len(known):
        notes.append(f"The {len(drawn)} largest are drawn.")
    if len(known) < len(names):
        notes.append("Effects that no hospital identifies are not drawn: their coefficients mean nothing.")
    return [figure(chart, " ".join(notes))]


_SECTIONS: dict[str, Callable[[StudyView], list[Html]]] = {
    "In short": _in_short,
    "Value of each method": _values,
    "What each hospital would do for one patient": _example,
    "What the policy does": _practice,
    "Shared effects over time": _shared,
    "The data": lambda view: footing.data(view.study, view.checks),
    "What is identified": lambda view: footing.identification(view.checks),
    "Do the transitions fit the model?": lambda view: footing.transitions(view.study, view.checks),
    "What disclosure would say": lambda view: footing.disclosure(view.study, view.checks),
    "Settings": lambda view: footing.settings(view.study, view.version),
}


def _footer() -> Html:
    return markup(
        paragraph(
            tag("strong", "Research software."),
            " Not validated for clinical use; never for decisions at the bedside.",
        ),
        paragraph(f"To cite the method: {CITATION}."),
    )
