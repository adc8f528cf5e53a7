"""The charts of a report, as Vega-Lite: series differ in shape or shade, never in colour alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from fdtr.report.figures import Chart
from fdtr.report.texts import say

Row = Mapping[str, Any]

INK, ACCENT, QUIET = "#1c2226", "#14597a", "#6b757b"
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
COLOURS = ("#14597a", "#b34700", "#00664b", "#7a2da0", "#8a6d00", "#333f48", "#a3195b", "#4d7c0f")
SHADES = ("#ffffff", "#0b3a52")
_WIDTH = 250


def intervals(name: str, title: str, rows: Sequence[Row], across: str) -> Chart:
    """A dot and its interval for each `method`, one for each `estimator`; hollow and dashed where not `believable`."""
    marks = _interval_marks(rows, across).properties(width=_WIDTH)
    return Chart(name, title, _told(rows), marks.to_dict(), rows)


def intervals_by_site(name: str, title: str, rows: Sequence[Row], across: str) -> Chart:
    """The same at every `site`, side by side."""
    marks = _interval_marks(rows, across).properties(width=125)
    faceted = marks.facet(facet=alt.Facet("site:N", title=None), columns=2)
    return Chart(name, title, _told(rows), faceted.to_dict(), rows)


def _interval_marks(rows: Sequence[Row], across: str) -> Any:
    estimators = list(dict.fromkeys(row["estimator"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    y = alt.Y("method:N", sort=methods, title=None)
    x = alt.X("low:Q", title=across, scale=alt.Scale(zero=False))
    offset = alt.YOffset("estimator:N", sort=estimators) if len(estimators) > 1 else alt.Undefined
    legend = alt.Legend() if len(estimators) > 1 else None
    shape = alt.Shape(
        "estimator:N",
        scale=alt.Scale(domain=estimators, range=list(SHAPES[: len(estimators)])),
        title=None,
        legend=legend,
    )
    believed = alt.datum.believable == True  # noqa: E712 - an expression for the page, not for Python
    where = ["method", "estimator", *(["site"] if "site" in rows[0] else [])]
    tooltip = [*_tips(where), *_tips(["value", "low", "high"], ".3f")]
    base = alt.Chart()
    lines = base.mark_rule(strokeWidth=1.5).encode(
        x, y, x2="high:Q", yOffset=offset, tooltip=tooltip,
        color=alt.when(believed).then(alt.value(ACCENT)).otherwise(alt.value(QUIET)),
        strokeDash=alt.when(believed).then(alt.value([1, 0])).otherwise(alt.value([3, 3])),
    )  # fmt: skip
    dots = base.mark_point(size=55, strokeWidth=1.5, opacity=1).encode(
        alt.X("value:Q"), y, yOffset=offset, shape=shape, tooltip=tooltip,
        stroke=alt.when(believed).then(alt.value(ACCENT)).otherwise(alt.value(QUIET)),
        fill=alt.when(believed).then(alt.value(ACCENT)).otherwise(alt.value("white")),
    )  # fmt: skip
    return alt.layer(lines, dots, data=_data(rows)).properties(height=alt.Step(14 if len(estimators) > 1 else 20))


def effects(rows: Sequence[Row]) -> Chart:
    """Each shared effect across steps: intervals as lines, the simultaneous band as an area."""
    features = list(dict.fromkeys(row["feature"] for row in rows))
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
    faceted = layered.facet(facet=alt.Facet("feature:N", sort=features, title=None), columns=3)
    faceted = faceted.resolve_scale(y="independent").properties(bounds="flush", spacing={"row": 34, "column": 34})
    return Chart("shared-effects", say("effects.chart"), say("effects.chart-caption"), faceted.to_dict(), rows)


def gains(rows: Sequence[Row]) -> Chart:
    """How many patients sharing is worth, by feature and site."""
    features = list(dict.fromkeys(row["feature"] for row in rows))
    scale = alt.Scale(type="log", nice=False, padding=12)
    points = alt.Chart(_data(rows)).mark_point(size=45, filled=True, opacity=1)
    chart = points.encode(
        alt.X("worth:Q", title=say("sharing.worth"), scale=scale, axis=alt.Axis(labelOverlap="greedy")),
        alt.Y("feature:N", sort=features, title=None),
        tooltip=[*_tips(["feature", "site"]), *_tips(["worth"], ",.0f")],
        **_series("site", rows),
    ).properties(width=_WIDTH, height=alt.Step(18))
    return Chart("gain-from-sharing", say("sharing.gain-chart"), say("sharing.gain-caption"), chart.to_dict(), rows)


def practice(rows: Sequence[Row], actions: Sequence[str]) -> Chart:
    """Shares of actions given and recommended, two columns a step, for every site."""
    kinds = [say("policy.given"), say("policy.recommended")]
    bars = alt.Chart(_data(rows)).mark_bar(stroke=INK, strokeWidth=0.5)
    chart = bars.encode(
        alt.X("step:O", title=None, axis=alt.Axis(labelAngle=0)),
        alt.Y("share:Q", title=say("policy.share"), axis=alt.Axis(format="%", tickCount=3)),
        xOffset=alt.XOffset("kind:N", sort=kinds),
        fill=alt.Fill("action:N", sort=list(actions), title=None, scale=_shades(actions)),
        order=alt.Order("place:Q"),
        tooltip=[*_tips(["site", "step", "kind", "action"]), *_tips(["share"], ".0%")],
    ).properties(width=140, height=90)
    faceted = chart.facet(facet=alt.Facet("site:N", title=None), columns=2)
    return Chart("actions", say("policy.chart"), say("policy.how"), faceted.to_dict(), rows)


def settings(rows: Sequence[Row]) -> Chart:
    """Decisions that stay the same with another c or w, a line for each site."""
    parts = []
    for setting in ("c", "w"):
        base = alt.Chart(_data([row for row in rows if row["setting"] == setting])).encode(
            alt.X("value:O", title=setting, axis=alt.Axis(labelAngle=-45, labelOverlap=False)),
            alt.Y("same:Q", title=say("policy.same"), axis=alt.Axis(format="%", tickCount=4)),
            tooltip=[*_tips(["site", "setting", "value"]), *_tips(["same"], ".0%")],
        )
        parts.append(_line_with_marks(base, "site", rows).properties(width=125, height=130))
    return Chart("settings", say("policy.settings-chart"), say("policy.settings-caption"),
                 alt.hconcat(*parts).to_dict(), rows)  # fmt: skip


def by_step(name: str, title: str, caption: str, rows: Sequence[Row], up: alt.Y, floor: float | None = None) -> Chart:
    """A line for each site across steps; a dashed line at `floor`."""
    base = alt.Chart(_data(rows)).encode(
        alt.X("step:O", title=say("effects.step"), axis=alt.Axis(labelAngle=0)),
        up,
        tooltip=[*_tips(["site", "step"]), *_tips(["value"], ".3~g")],
    )
    lines: Any = _line_with_marks(base, "site", rows)
    if floor is not None:
        lines += alt.Chart(_data([{"at": floor}])).mark_rule(strokeDash=[5, 4], color=INK).encode(y="at:Q")
    return Chart(name, title, caption, lines.properties(width=_WIDTH, height=150).to_dict(), rows)


def calibration(rows: Sequence[Row]) -> Chart:
    """Observed shares against predicted chances, by action, for every site."""
    base = alt.Chart()
    ends = alt.Scale(domain=[0, 1])
    dots = base.mark_point(filled=True, size=30, opacity=1).encode(
        alt.X("predicted:Q", title=say("trust.predicted"), scale=ends, axis=alt.Axis(tickCount=3)),
        alt.Y("observed:Q", title=say("trust.observed"), scale=ends, axis=alt.Axis(tickCount=3)),
        tooltip=[*_tips(["site", "action", "rows"]), *_tips(["predicted", "observed"], ".2f")],
        **_series("action", rows),
    )
    line = base.mark_rule(color=QUIET, strokeWidth=0.7).encode(
        x=alt.datum(0), y=alt.datum(0), x2=alt.datum(1), y2=alt.datum(1)
    )
    layered = alt.layer(line, dots, data=_data(rows)).properties(width=140, height=140)
    faceted = layered.facet(facet=alt.Facet("site:N", title=None), columns=2)
    return Chart(
        "calibration", say("trust.calibration-chart"), say("trust.calibration-caption"), faceted.to_dict(), rows
    )


def _tips(fields: Sequence[str], format_: str | None = None) -> list[alt.Tooltip]:
    """What a tooltip shows: words, or numbers in a format."""
    if format_ is None:
        return [alt.Tooltip(f"{field}:N", title=say(f"tip.{field}")) for field in fields]
    return [alt.Tooltip(f"{field}:Q", title=say(f"tip.{field}"), format=format_) for field in fields]


def _line_with_marks(base: Any, field: str, rows: Sequence[Row]) -> Any:
    series = _series(field, rows)
    return alt.layer(
        base.mark_line(strokeWidth=1).encode(color=series["color"]),
        base.mark_point(filled=True, size=45, opacity=1).encode(**series),
    )


def _series(field: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Colour and shape of each value of a field, in one legend."""
    names = list(dict.fromkeys(row[field] for row in rows))
    shapes, colours = ([styles[j % len(styles)] for j in range(len(names))] for styles in (SHAPES, COLOURS))
    return {
        "color": alt.Color(f"{field}:N", scale=alt.Scale(domain=names, range=colours), title=None),
        "shape": alt.Shape(f"{field}:N", scale=alt.Scale(domain=names, range=shapes), title=None),
    }


def _shades(actions: Sequence[str]) -> alt.Scale:
    """From white to dark: shades survive a grey printer."""
    light, dark = ([int(end[at : at + 2], 16) for at in (1, 3, 5)] for end in SHADES)
    mixed = []
    for a in range(len(actions)):
        share = a / max(len(actions) - 1, 1)
        mixed.append("#" + "".join(f"{round(x + (y - x) * share):02x}" for x, y in zip(light, dark, strict=True)))
    return alt.Scale(domain=list(actions), range=mixed)


def _data(rows: Sequence[Row]) -> alt.InlineData:
    return alt.InlineData(values=[dict(row) for row in rows])


def _told(rows: Sequence[Row]) -> str:
    parts = []
    for row in rows:
        where = ", ".join(str(row[key]) for key in ("method", "site", "estimator") if key in row)
        doubt = "" if row["believable"] else f", {say('values.struck')}"
        parts.append(f"{where}: {row['value']:.2f} ({row['low']:.2f}–{row['high']:.2f}){doubt}")
    return "; ".join(parts)
