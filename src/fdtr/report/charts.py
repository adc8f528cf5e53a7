"""The charts of a report, in Altair: series differ in shape or shade, never in colour alone.

A chart without rows has nothing to draw.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from fdtr.comparisons import Evidence
from fdtr.evaluation.diagnostics import FEWEST, LEAST_SHARE
from fdtr.report.record import MODEL, ROBUST, Assessment, MeanOverSites, Record, Trust

Row = Mapping[str, Any]
Drawing = alt.Chart | alt.LayerChart | alt.FacetChart | alt.HConcatChart

INK, ACCENT, QUIET = "#1c2226", "#14597a", "#6b757b"
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
COLOURS = ("#14597a", "#b34700", "#00664b", "#7a2da0", "#8a6d00", "#333f48", "#a3195b", "#4d7c0f")
SHADES = ("#ffffff", "#0b3a52")
ESTIMATORS = {ROBUST: "Doubly robust", MODEL: "Linear model alone"}
GIVEN, WITH_PART, RECOMMENDED = "given", "verified part + clinicians", "full policy"
_KINDS = (GIVEN, WITH_PART, RECOMMENDED)
_WIDTH, _PANEL, _TICK = 250, 125, 31
"""Widths of a chart, of one panel of several, and between numbers on an axis, in pixels of the still picture."""
_OVER = " over "
_TWO_LINES = f"[split(datum.label, '{_OVER}')[0], 'over ' + split(datum.label, '{_OVER}')[1]]"
_SAMPLE_SIZES = [0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000]
_TOOLTIPS = {
    "estimator": "estimated by",
    "low": "low end",
    "high": "high end",
    "estimate": "effect",
    "worth": "patients",
    "kind": "column",
    "over": "compared with",
    "same": "the same",
}
"""Names of fields in tooltips, where they differ from the field."""

CONFIG: alt.theme.ConfigKwds = {
    "aria": False,  # the picture as a whole is described, and its parts would only repeat numbers without names
    "font": "system-ui, sans-serif",
    "background": "white",
    "padding": {"left": 12, "top": 5, "right": 5, "bottom": 5},
    "view": {"stroke": None},
    "mark": {"aria": False},
    "axis": {
        "aria": False,
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "labelLimit": 150,
    },
    "axisX": {"labelOverlap": True},
    "legend": {
        "aria": False,
        "orient": "bottom",
        "labelFontSize": 11,
        "titleFontSize": 11,
        "columns": 3,
        "labelLimit": 140,
    },
    "header": {"labelFontSize": 11, "titleFontSize": 11},
}


@dataclass(frozen=True, eq=False)
class Chart:
    """A chart: the `name` of its files, a `title`, the Altair `drawing`, and the `rows` it is drawn from.

    `description` says in words what is to be seen, where the caption beside it does not.
    """

    name: str
    title: str
    drawing: Drawing
    rows: Sequence[Row]
    description: str = ""


def true_values(record: Record) -> Chart:
    """What each method is worth where the truth is known."""
    rows = [
        {"method": known.method, "value": known.value, "low": known.low, "high": known.high}
        for known in record.known_values
    ]
    drawing = _dots(rows, "True value")
    return Chart("true-values", "True value of each method, by simulation", drawing, rows, _in_words(rows))


def gains(means: Sequence[MeanOverSites]) -> Chart:
    """What a method gains over another, plain mean over sites, by verdict."""
    rows = [_mean_row(mean) for mean in means if mean.over]
    drawing = _dots(rows, "Gain, mean over sites", "gain")
    return Chart("gains", "Gains, mean over sites", drawing, rows, _in_words(rows))


def gains_by_site(assessments: Sequence[Assessment]) -> Chart:
    """What a method gains over another at each site, by verdict; what is not estimable is left out."""
    rows = [_site_row(part) for part in assessments if part.over and part.verdict != Evidence.NONE]
    return _at_each_site("gains-by-site", "Gains", rows, "Gain", "gain")


def values(means: Sequence[MeanOverSites]) -> Chart:
    """What each method is worth, plain mean over sites, by verdict."""
    rows = [_mean_row(mean) for mean in means if not mean.over]
    drawing = _dots(rows, "Value, mean over sites")
    return Chart("values", "Value of each method, mean over sites", drawing, rows, _in_words(rows))


def values_by_site(assessments: Sequence[Assessment]) -> Chart:
    """What each method is worth at each site, by verdict; what is not estimable is left out."""
    rows = [_site_row(part) for part in assessments if not part.over and part.verdict != Evidence.NONE]
    return _at_each_site("values-by-site", "Value of each method", rows, "Value", "method")


def _at_each_site(name: str, title: str, rows: Sequence[Row], across: str, label: str) -> Chart:
    """A panel for each site, or one chart where there is one site."""
    if len(_distinct(rows, "site")) < 2:
        return Chart(name, title, _dots(rows, across, label), rows, _in_words(rows))
    panels = _panel_for_each_site(_dots(rows, across, label, _PANEL))
    return Chart(name, f"{title} at each site", panels, rows, _in_words(rows))


def _mean_row(mean: MeanOverSites) -> Row:
    names = _named(mean) if mean.over else {"method": mean.label}
    return {**names, **mean.plain.model_dump(), "verdict": str(mean.verdict)}


def _site_row(assessed: Assessment) -> Row:
    return {
        "site": assessed.site,
        **_named(assessed),
        "value": assessed.value,
        "low": assessed.low,
        "high": assessed.high,
        "verdict": str(assessed.verdict),
    }


def _named(number: Assessment | MeanOverSites) -> dict[str, str]:
    """The method, and for a gain what it is compared with, and both as a label in two lines."""
    names = {"method": number.method}
    return {**names, "over": number.over, "gain": f"{number.method}{_OVER}{number.over}"} if number.over else names


def _dots(rows: Sequence[Row], across: str, label: str = "method", width: int = _WIDTH) -> Drawing:
    """A dot and its interval for each `label`; hollow and dashed where model-based."""
    is_gain = label == "gain"
    details = [name for name in ("site", "method", "over", "verdict") if any(name in row for row in rows)]
    axis = alt.Axis(labelLimit=230, labelExpr=_TWO_LINES) if is_gain else alt.Axis(labelLimit=230)
    base = alt.Chart().encode(
        y=alt.Y(f"{label}:N", sort=_distinct(rows, label), title=None, axis=axis),
        tooltip=[*_tips(details), *_tips(["value", "low", "high"], ".3f")],
    )
    lines, points = _marks(base, across, alt.datum.verdict != str(Evidence.MODEL), width // _TICK)
    zero = [alt.Chart().mark_rule(color=QUIET).encode(x=alt.datum(0.0))] if is_gain else []
    return alt.layer(*zero, lines, points, data=_data(rows)).properties(
        width=width, height=alt.Step(34 if is_gain else 20)
    )


def intervals(rows: Sequence[Row], across: str) -> Drawing:
    """A dot and its interval for each `method` and `estimator`; hollow and dashed where not `believable`."""
    estimators, methods = _distinct(rows, "estimator"), _distinct(rows, "method")
    several = len(estimators) > 1
    shapes = alt.Scale(domain=estimators, range=list(SHAPES[: len(estimators)]))
    where = ["method", "estimator", *(["site"] if any("site" in row for row in rows) else [])]
    base = alt.Chart().encode(
        y=alt.Y("method:N", sort=methods, title=None),
        yOffset=alt.YOffset("estimator:N", sort=estimators) if several else alt.Undefined,
        tooltip=[*_tips(where), *_tips(["value", "low", "high"], ".3f")],
    )
    lines, points = _marks(base, across, alt.datum.believable == True, _WIDTH // _TICK)  # noqa: E712 - an expression for the page
    points = points.encode(
        shape=alt.Shape("estimator:N", scale=shapes, title=None, legend=alt.Legend() if several else None)
    )
    return alt.layer(lines, points, data=_data(rows)).properties(width=_WIDTH, height=alt.Step(14 if several else 20))


def _marks(base: alt.Chart, across: str, test: Any, ticks: int) -> tuple[alt.Chart, alt.Chart]:
    """Intervals and their values: solid where `test` holds, hollow and dashed elsewhere."""

    def either(solid: Any, hollow: Any) -> Any:
        return alt.when(test).then(alt.value(solid)).otherwise(alt.value(hollow))

    lines = base.mark_rule(strokeWidth=1.5).encode(
        alt.X("low:Q", title=across, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=ticks)),
        x2="high:Q",
        color=either(ACCENT, QUIET),
        strokeDash=either([1, 0], [3, 3]),
    )
    points = base.mark_point(size=55, strokeWidth=1.5, opacity=1).encode(
        alt.X("value:Q"), stroke=either(ACCENT, QUIET), fill=either(ACCENT, "white")
    )
    return lines, points


def shared_effects(record: Record) -> Chart:
    """Each shared effect across steps: intervals as lines, the simultaneous band as an area."""
    rows = [e.model_dump(exclude={"identified", "raw"}) for e in record.shared_effects if e.identified]
    tooltip = [*_tips(["feature", "step"]), *_tips(["estimate", "low", "high"], ".3f")]
    base = alt.Chart().encode(
        x=alt.X("step:Q", title=None, axis=alt.Axis(tickMinStep=1, format="d", grid=False, tickCount=4)),
        tooltip=tooltip,
    )
    zero = alt.Chart().mark_rule(color=QUIET).encode(y=alt.datum(0.0))
    band = base.mark_area(color=ACCENT, opacity=0.18).encode(
        y=alt.Y("band_low:Q", title=None, axis=alt.Axis(tickCount=4)), y2="band_high:Q"
    )
    lines = base.mark_rule(color=ACCENT, strokeWidth=1.5).encode(y="low:Q", y2="high:Q")
    path = base.mark_line(color=ACCENT, strokeWidth=1).encode(y="estimate:Q")
    dots = base.mark_point(color=ACCENT, filled=True, size=35, opacity=1).encode(y="estimate:Q")
    layered = alt.layer(band, zero, path, lines, dots, data=_data(rows)).properties(width=100, height=80)
    facet = alt.Facet("feature:N", sort=_distinct(rows, "feature"), title=None)
    faceted = layered.facet(facet=facet, columns=3).resolve_scale(y="independent")
    faceted = faceted.properties(bounds="flush", spacing={"row": 34, "column": 46})
    return Chart("shared-effects", "Shared effects on the reward by step", faceted, rows)


def gain_from_sharing(record: Record) -> Chart:
    """How many patients sharing is worth, by feature and site."""
    rows = [{"feature": g.feature, "site": g.site, "worth": g.worth} for g in record.gains if g.worth > 0]
    scale = alt.Scale(type="log", nice=False, padding=12)
    points = alt.Chart(_data(rows)).mark_point(size=45, filled=True, opacity=1)
    chart = points.encode(
        alt.X("worth:Q", title="Patients", scale=scale, axis=alt.Axis(labelOverlap="greedy")),
        alt.Y("feature:N", sort=_distinct(rows, "feature"), title=None),
        tooltip=[*_tips(["feature", "site"]), *_tips(["worth"], ",.0f")],
        **_series("site", rows),
    ).properties(width=_WIDTH, height=alt.Step(18))
    return Chart("gain-from-sharing", "Patients that sharing is worth", chart, rows)


def actions(record: Record) -> Chart:
    """Shares of actions given, under the verified part, and under the full policy: three columns a step, by site."""
    labels = list(record.load_study().actions.labels)
    rows = [
        {"site": name, "step": step, "kind": kind, "action": label, "place": a, "share": shares[a]}
        for name, site in record.sites.items()
        for kind, by_step in zip(_KINDS, (site.given, site.with_part, site.recommended), strict=True)
        for step, shares in enumerate(by_step)
        for a, label in enumerate(labels)
    ]
    bars = alt.Chart(_data(rows)).mark_bar(stroke=INK, strokeWidth=0.5)
    chart = bars.encode(
        alt.X("step:O", title=None, axis=alt.Axis(labelAngle=0)),
        alt.Y("share:Q", title="Share of patients", axis=alt.Axis(format="%", tickCount=3)),
        xOffset=alt.XOffset("kind:N", sort=list(_KINDS)),
        fill=alt.Fill("action:N", sort=labels, title=None, scale=_shades(labels)),
        order=alt.Order("place:Q"),
        tooltip=[*_tips(["site", "step", "kind", "action"]), *_tips(["share"], ".0%")],
    ).properties(width=160, height=90)
    return Chart(
        "actions",
        "Actions given, and recommended by the verified part and by the full policy",
        _panel_for_each_site(chart),
        rows,
    )


def settings(record: Record) -> Chart:
    """Decisions that stay the same with another pessimism or w, a line for each site."""
    rows = [
        {"site": name, "setting": variation.setting, "value": variation.value, "same": variation.same}
        for name, site in record.sites.items()
        for variation in site.variations
    ]
    panels = []
    for setting, title in (("pessimism", "pessimism, times"), ("w", "w")):
        base = alt.Chart(_data([row for row in rows if row["setting"] == setting])).encode(
            alt.X("value:O", title=title, axis=alt.Axis(labelAngle=-45, labelOverlap=False)),
            alt.Y("same:Q", title="Decisions that stay", axis=alt.Axis(format="%", tickCount=4)),
            tooltip=[*_tips(["site", "setting", "value"]), *_tips(["same"], ".0%")],
        )
        panels.append(_line_with_marks(base, rows).properties(width=125, height=130))
    return Chart("settings", "Decisions that stay the same with other settings", alt.hconcat(*panels), rows)


def effective_sample_size(trusts: Mapping[str, Trust]) -> Chart:
    """How many equal patients FDTR's weights are worth, by step; below the dashed line no value is verified."""
    y = alt.Y(
        "value:Q",
        title="Effective sample size",
        scale=alt.Scale(type="symlog"),
        axis=alt.Axis(values=_SAMPLE_SIZES),
    )
    least = max(FEWEST, LEAST_SHARE * max((trust.present[0] for trust in trusts.values()), default=0))
    title = "Effective sample size of FDTR by step"
    return _by_step("effective-sample-size", title, trusts, lambda trust: trust.effective_sample_size, y, least)


def overlap(trusts: Mapping[str, Trust]) -> Chart:
    """Share of patients to whom FDTR recommends what clinicians rarely do, by step."""
    y = alt.Y("value:Q", title="Share of recommended actions", axis=alt.Axis(format="%"))
    title = "Recommended actions that clinicians rarely take"
    return _by_step("overlap", title, trusts, lambda trust: trust.rare_share, y)


def _by_step(
    name: str,
    title: str,
    trusts: Mapping[str, Trust],
    read: Callable[[Trust], list[float]],
    y: alt.Y,
    floor: float | None = None,
) -> Chart:
    """A line for each valued site across steps; a dashed line at `floor`."""
    rows = [
        {"site": site, "step": step, "value": value}
        for site, trust in trusts.items()
        for step, value in enumerate(read(trust))
        if not math.isnan(value)
    ]
    base = alt.Chart(_data(rows)).encode(
        alt.X("step:O", title="Step", axis=alt.Axis(labelAngle=0)),
        y,
        tooltip=[*_tips(["site", "step"]), *_tips(["value"], ".3~g")],
    )
    lines = _line_with_marks(base, rows)
    if floor is not None:
        lines += alt.Chart(_data([{"at": floor}])).mark_rule(strokeDash=[5, 4], color=INK).encode(y="at:Q")
    return Chart(name, title, lines.properties(width=_WIDTH, height=150), rows)


def calibration(trusts: Mapping[str, Trust]) -> Chart:
    """Observed shares against predicted chances, by action, for every valued site."""
    rows = [
        {"site": site, "action": action, "predicted": predicted, "observed": observed, "rows": count}
        for site, trust in trusts.items()
        for action, curve in trust.calibration.items()
        for predicted, observed, count in zip(curve.predicted, curve.observed, curve.count, strict=True)
        if count
    ]
    base = alt.Chart()
    ends = alt.Scale(domain=[0, 1])
    dots = base.mark_point(filled=True, size=30, opacity=1).encode(
        alt.X("predicted:Q", title="Predicted chance", scale=ends, axis=alt.Axis(tickCount=3)),
        alt.Y("observed:Q", title="Observed share", scale=ends, axis=alt.Axis(tickCount=3)),
        tooltip=[*_tips(["site", "action", "rows"]), *_tips(["predicted", "observed"], ".2f")],
        **_series("action", rows),
    )
    line = base.mark_rule(color=QUIET, strokeWidth=0.7).encode(
        x=alt.datum(0), y=alt.datum(0), x2=alt.datum(1), y2=alt.datum(1)
    )
    layered = alt.layer(line, dots, data=_data(rows)).properties(width=140, height=140)
    return Chart("calibration", "Calibration of the propensity model", _panel_for_each_site(layered), rows)


def _panel_for_each_site(panel: Any) -> Any:
    return panel.facet(facet=alt.Facet("site:N", title=None), columns=2)


def _tips(fields: Sequence[str], format_: str | None = None) -> list[alt.Tooltip]:
    """What a tooltip shows: words, or numbers in a format."""
    kind, shown = ("Q", format_) if format_ else ("N", alt.Undefined)
    return [alt.Tooltip(f"{field}:{kind}", title=_TOOLTIPS.get(field, field), format=shown) for field in fields]


def _line_with_marks(base: alt.Chart, rows: Sequence[Row]) -> Any:
    """A line and marks for each site."""
    series = _series("site", rows)
    return alt.layer(
        base.mark_line(strokeWidth=1).encode(color=series["color"]),
        base.mark_point(filled=True, size=45, opacity=1).encode(**series),
    )


def _series(field: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Colour and shape of each value of a field, in one legend."""
    names = _distinct(rows, field)
    shapes, colours = ([styles[j % len(styles)] for j in range(len(names))] for styles in (SHAPES, COLOURS))
    return {
        "color": alt.Color(f"{field}:N", scale=alt.Scale(domain=names, range=colours), title=None),
        "shape": alt.Shape(f"{field}:N", scale=alt.Scale(domain=names, range=shapes), title=None),
    }


def _shades(labels: list[str]) -> alt.Scale:
    """From white to dark: shades survive a grey printer."""
    light, dark = ([int(end[at : at + 2], 16) for at in (1, 3, 5)] for end in SHADES)
    mixed = []
    for a in range(len(labels)):
        share = a / max(len(labels) - 1, 1)
        mixed.append("#" + "".join(f"{round(x + (y - x) * share):02x}" for x, y in zip(light, dark, strict=True)))
    return alt.Scale(domain=labels, range=mixed)


def _distinct(rows: Sequence[Row], field: str) -> list[Any]:
    return list(dict.fromkeys(row[field] for row in rows))


def _data(rows: Sequence[Row]) -> alt.InlineData:
    return alt.InlineData(values=[dict(row) for row in rows])


def _in_words(rows: Sequence[Row]) -> str:
    """Every value with its interval, for those who do not see the chart."""
    sentences = []
    for row in rows:
        name = ", ".join(str(part) for part in (row.get("gain", row["method"]), row.get("site")) if part)
        verdict = f", {row['verdict']}" if "verdict" in row else ""
        sentences.append(f"{name}: {row['value']:.2f} ({row['low']:.2f} to {row['high']:.2f}){verdict}")
    return "; ".join(sentences)
