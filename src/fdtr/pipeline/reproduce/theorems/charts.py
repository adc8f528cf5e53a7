"""Charts of the theorems: lines that colour, dash and shape tell apart, with intervals; imported only to draw."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import altair as alt

COLOURS = ("#00664b", "#2459a6", "#b34700", "#7a2da0", "#444444")
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross")
DASHES = ([1, 0], [6, 2], [2, 2], [8, 2, 2, 2], [4, 4])

Rows = Sequence[Mapping[str, Any]]


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
        alt.Color(field, legend=legend, scale=alt.Scale(domain=domain, range=list(COLOURS[:n]))),
        alt.Shape(field, legend=legend, scale=alt.Scale(domain=domain, range=list(SHAPES[:n]))),
        alt.StrokeDash(field, legend=None, scale=alt.Scale(domain=domain, range=list(DASHES[:n]))),
    )


def by_pessimism(order: Sequence[float]) -> alt.X:
    """c across, equally spaced: it begins at 0 and ends far away."""
    return alt.X("c:O", sort=[f"{c:g}" for c in order], title="c (not to scale)", axis=alt.Axis(labelAngle=-60))


def by_total() -> alt.X:
    """N across, on a logarithmic scale."""
    axis = alt.Axis(grid=False, format=",d", labelOverlap="greedy")
    scale = alt.Scale(type="log", nice=False, padding=12)
    return alt.X("N:Q", scale=scale, title="N, patients of all sites", axis=axis)
