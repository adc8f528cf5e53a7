"""Charts of experiments. Series differ in shape or dash as well as in colour; imported only to draw."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast

import altair as alt

from experiments.comparison import METHODS

# fmt: off
METHOD_COLOURS = ("#00664b", "#2459a6", "#5f8fd0", "#b34700", "#e08a3c", "#7a2da0", "#46a279", "#93b7e3")
METHOD_SHAPES = (
    "circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "triangle-right", "triangle-left"
)
# fmt: on

LINE_COLOURS = ("#00664b", "#2459a6", "#b34700", "#7a2da0", "#444444")
LINE_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross")
LINE_DASHES = ([1, 0], [6, 2], [2, 2], [8, 2, 2, 2], [4, 4])

Rows = Sequence[Mapping[str, Any]]

REFERENCES = {"optimum": [1, 0], "best constant action": [4, 3], "behaviour": [1, 3]}


def beside(charts: Iterable[Any]) -> alt.HConcatChart:
    """Charts side by side, each with its own vertical axis and one legend for all."""
    return alt.hconcat(*charts)


def values_by_size(rows: Sequence[Any], methods: Sequence[str]) -> alt.HConcatChart:
    """Value by patients at a site, with intervals, a chart for each panel; references as grey lines."""
    styles = series("method:N", methods, "method")
    names, dashes = list(REFERENCES), list(REFERENCES.values())
    dash = alt.StrokeDash("method:N", scale=alt.Scale(domain=names, range=dashes), title="for comparison")
    charts = []
    for panel in dict.fromkeys(row.panel for row in rows):
        records = [vars(row) for row in rows if row.panel == panel]
        x, y = _sizes(records), alt.Y("value:Q", scale=alt.Scale(zero=False), title="value")
        lines = alt.Chart(alt.InlineData(values=[r for r in records if r["method"] in methods]))
        flat = alt.Chart(alt.InlineData(values=[r for r in records if r["method"] in REFERENCES]))
        layers = alt.layer(
            flat.mark_line(color="#444444", strokeWidth=1.5).encode(x, y, strokeDash=dash),
            lines.mark_rule().encode(x, alt.Y("low:Q"), alt.Y2("high:Q"), color=styles["color"]),
            lines.mark_line(strokeWidth=1.5).encode(x, y, color=styles["color"]),
            lines.mark_point(size=50, filled=True, opacity=1).encode(x, y, **styles),
        )
        charts.append(layers.properties(width=250, height=320, title=f"(d, |A|, H, K) = {panel}"))
    return beside(charts)


def differences_by_size(rows: Sequence[Any], rivals: Sequence[str]) -> alt.HConcatChart:
    """Paired differences with intervals by patients at a site, a chart for each panel; above 0 is ahead."""
    styles = series("against:N", rivals, "against")
    charts = []
    for panel in dict.fromkeys(row.panel for row in rows):
        records = [vars(row) for row in rows if row.panel == panel]
        base, offset = alt.Chart(alt.InlineData(values=records)), alt.XOffset("against:N", sort=list(rivals))
        x = alt.X("n:O", title="patients at a site", axis=alt.Axis(labelAngle=0))
        zero = alt.Chart(alt.InlineData(values=[{"at": 0.0}])).mark_rule().encode(alt.Y("at:Q"))
        bars = base.mark_rule().encode(
            x, alt.Y("low:Q", title="difference in value"), alt.Y2("high:Q"), xOffset=offset, color=styles["color"]
        )
        points = base.mark_point(size=45, filled=True, opacity=1)
        points = points.encode(x, alt.Y("difference:Q"), xOffset=offset, **styles)
        charts.append(
            alt.layer(zero, bars, points).properties(width=260, height=300, title=f"(d, |A|, H, K) = {panel}")
        )
    return beside(charts)


def _sizes(records: Sequence[dict[str, Any]]) -> alt.X:
    ticks = sorted({record["n"] for record in records})
    scale = alt.Scale(type="log", nice=False, padding=12)
    return alt.X("n:Q", scale=scale, title="patients at a site", axis=alt.Axis(values=ticks, grid=False))


def series(field: str, names: Sequence[str], title: str) -> dict[str, Any]:
    """Colour and shape of each of `names`, in one legend; a method looks the same in every figure."""
    domain, places = list(names), [METHODS.index(name) if name in METHODS else j for j, name in enumerate(names)]
    colour = alt.Scale(domain=domain, range=[METHOD_COLOURS[place % len(METHOD_COLOURS)] for place in places])
    shape = alt.Scale(domain=domain, range=[METHOD_SHAPES[place % len(METHOD_SHAPES)] for place in places])
    return {
        "color": alt.Color(field, scale=colour, title=title),
        "shape": alt.Shape(field, scale=shape, title=title),
    }


def differences_by_world(rows: Sequence[Any], rivals: Sequence[str], allowed: float) -> alt.HConcatChart:
    """A row for each world and shape, intervals of the difference from each rival; a dashed line at what is allowed."""
    records = [{**vars(row), "case": f"{row.world}, {row.shape}"} for row in rows]
    order = list(dict.fromkeys(record["case"] for record in records))
    sizes = list(dict.fromkeys(row.n for row in rows))
    return beside(_differences([r for r in records if r["n"] == n], order, rivals, allowed, n) for n in sizes)


def _differences(records: list[Any], order: list[str], rivals: Sequence[str], allowed: float, n: str) -> Any:
    base = alt.Chart(alt.InlineData(values=records))
    y = alt.Y("case:N", sort=order, title=None, axis=alt.Axis(labelLimit=260))
    offset = alt.YOffset("against:N", sort=list(rivals))
    styles = series("against:N", rivals, "against")
    marks = [
        alt.Chart(alt.InlineData(values=[{"at": at}])).mark_rule(strokeDash=dash).encode(alt.X("at:Q"))
        for at, dash in ((0.0, [1, 0]), (allowed, [4, 3]))
    ]
    x = alt.X("low:Q", title="difference, % of (optimum − behaviour)")
    return alt.layer(
        *marks,
        base.mark_rule().encode(x, y, x2="high:Q", yOffset=offset, color=styles["color"]),
        base.mark_point(filled=True, size=40, opacity=1).encode(alt.X("difference:Q"), y, yOffset=offset, **styles),
    ).properties(width=300, height=alt.Step(14), title=f"{n} patients at a site")


def ratios_by_world(rows: Sequence[Any], least: float) -> alt.HConcatChart:
    """What auto gains of what the best fixed setting gains: a row for each world and shape, a chart for each purpose.

    A dashed line marks `least`. Cells without a ratio are left out; an interval beyond 0 or 150% is cut there.
    """
    records = [
        {
            "case": f"{row.world}, {row.shape}",
            "purpose": row.purpose,
            "patients": row.n,
            "ratio": 100 * row.ratio,
            "low": 100 * row.ratio_low,
            "high": 100 * row.ratio_high,
        }
        for row in rows
        if math.isfinite(row.ratio)
    ]
    purposes = dict.fromkeys(record["purpose"] for record in records)
    sizes = sorted({record["patients"] for record in records}, key=lambda n: (not n.isdecimal(), int(n.split()[0])))
    lowest, highest = (end(record[name] for record in records) for end, name in ((min, "low"), (max, "high")))
    scale = alt.Scale(domain=[max(lowest, 0.0), min(highest, 150.0)], zero=False, clamp=True)
    return beside(_ratios([r for r in records if r["purpose"] == p], sizes, scale, 100 * least, p) for p in purposes)


def _ratios(records: list[Any], sizes: Sequence[str], scale: alt.Scale, least: float, title: str) -> Any:
    base = alt.Chart(alt.InlineData(values=records))
    order = list(dict.fromkeys(record["case"] for record in records))
    y = alt.Y("case:N", sort=order, title=None, axis=alt.Axis(labelLimit=300, grid=True, tickBand="extent"))
    offset = alt.YOffset("patients:N", sort=list(sizes))
    styles = series("patients:N", sizes, "patients at a site")
    mark = alt.Chart(alt.InlineData(values=[{"at": least}])).mark_rule(strokeDash=[4, 3]).encode(alt.X("at:Q"))
    x = alt.X("low:Q", scale=scale, title="% of what the best fixed setting gains")
    return alt.layer(
        mark,
        base.mark_rule().encode(x, y, x2="high:Q", yOffset=offset, color=styles["color"]),
        base.mark_point(filled=True, size=40, opacity=1).encode(alt.X("ratio:Q"), y, yOffset=offset, **styles),
    ).properties(width=300, height=alt.Step(8), title=f"worlds for {title}")


def losses_by_world(rows: Sequence[Any], limits: Mapping[str, float], lowest: float) -> alt.HConcatChart:
    """A row for each world and shape, a chart for each rival, a colour for each size: intervals of the difference.

    A dashed line marks what a method may lose against the rival; what lies beyond `lowest` is drawn there.
    """
    sizes = list(dict.fromkeys(row.n for row in sorted(rows, key=lambda row: int(row.n))))
    records = [{**vars(row), "case": f"{row.world}, {row.shape}"} for row in rows]
    return beside(_losses([r for r in records if r["against"] == a], sizes, a, -limits[a], lowest) for a in limits)


def _losses(records: list[Any], sizes: Sequence[str], against: str, allowed: float, lowest: float) -> Any:
    base = alt.Chart(alt.InlineData(values=records))
    order = list(dict.fromkeys(record["case"] for record in records))
    y = alt.Y("case:N", sort=order, title=None, axis=alt.Axis(labelLimit=260, grid=True, tickBand="extent"))
    offset, styles = alt.YOffset("n:N", sort=list(sizes)), series("n:N", sizes, "patients at a site")
    ends = max(lowest, min(record["low"] for record in records)), max(record["high"] for record in records)
    scale = alt.Scale(domain=list(ends), clamp=True, nice=True)
    x = alt.X("low:Q", scale=scale, title="difference, % of (optimum − behaviour)")
    marks = [
        alt.Chart(alt.InlineData(values=[{"at": at}])).mark_rule(strokeDash=dash).encode(alt.X("at:Q"))
        for at, dash in ((0.0, [1, 0]), (allowed, [4, 3]))
    ]
    return alt.layer(
        *marks,
        base.mark_rule().encode(x, y, x2="high:Q", yOffset=offset, color=styles["color"]),
        base.mark_point(filled=True, size=40, opacity=1).encode(
            alt.X("difference:Q", scale=scale), y, yOffset=offset, **styles
        ),
    ).properties(width=330, height=alt.Step(9), title=f"less {against}")


def lines(
    rows: Rows,
    x: alt.X,
    y: alt.Y,
    names: Sequence[str],
    panels: int = 2,
    reference: float | None = None,
    own_axis: Literal["x", "y"] | None = None,
    joined: bool = True,
) -> alt.FacetChart:
    """A line with points for each of `names`, which rows call `series`; intervals from `low` to `high`.

    Rows with the same `panel` are drawn together, `panels` in a row; `reference` is a grey line across; `own_axis`
    gives each panel its own; points that are not `joined` have no line.
    """
    colour, shape, dash = styles("series:N", names)
    base = alt.Chart().encode(x=x)
    layers: list[Any] = [
        base.mark_rule(strokeWidth=1.2).encode(alt.Y("low:Q"), alt.Y2("high:Q"), color=colour),
        base.mark_point(size=45, filled=True, opacity=1).encode(y=y, color=colour, shape=shape),
    ]
    if joined:
        layers.insert(1, base.mark_line(strokeWidth=1.6).encode(y=y, color=colour, strokeDash=dash))
    if reference is not None:
        layers.insert(0, alt.Chart().mark_rule(color="#777777").encode(y=alt.datum(reference)))
    order = list(dict.fromkeys(row["panel"] for row in rows))
    header = alt.Header(title=None, labelFontSize=12, labelFontWeight="bold", labelLimit=400)
    layered = alt.layer(*layers, data=alt.InlineData(values=[dict(row) for row in rows])).properties(
        width=330, height=230
    )
    chart = layered.facet(alt.Facet("panel:N", header=header, sort=order), columns=panels)
    if own_axis is not None:
        return cast(alt.FacetChart, chart.resolve_scale(**{own_axis: "independent"}))  # type: ignore[arg-type]
    return chart


def styles(field: str, names: Sequence[str]) -> tuple[alt.Color, alt.Shape, alt.StrokeDash]:
    """Colour, shape and dash of each of `names`; a legend below shows the first two."""
    domain, n = list(names), len(names)
    legend = alt.Legend(title=None, orient="bottom", labelLimit=400, columns=3, symbolSize=90, symbolStrokeWidth=0)
    return (
        alt.Color(field, legend=legend, scale=alt.Scale(domain=domain, range=list(LINE_COLOURS[:n]))),
        alt.Shape(field, legend=legend, scale=alt.Scale(domain=domain, range=list(LINE_SHAPES[:n]))),
        alt.StrokeDash(field, legend=None, scale=alt.Scale(domain=domain, range=list(LINE_DASHES[:n]))),
    )


def by_pessimism(order: Sequence[float]) -> alt.X:
    """c across, equally spaced: it begins at 0 and ends far away."""
    return alt.X("c:O", sort=[f"{c:g}" for c in order], title="c (not to scale)", axis=alt.Axis(labelAngle=-60))


def by_total() -> alt.X:
    """N across, on a logarithmic scale."""
    axis = alt.Axis(grid=False, format=",d", labelOverlap="greedy")
    scale = alt.Scale(type="log", nice=False, padding=12)
    return alt.X("N:Q", scale=scale, title="N, patients of all sites", axis=axis)
