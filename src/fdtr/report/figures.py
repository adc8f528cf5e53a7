"""Charts on a page: a still picture, over which the page's script draws a chart that answers to the pointer."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import vl_convert

from fdtr.report.page import Html, embedded, markup, resource, tag
from fdtr.report.texts import say

CONFIG: dict[str, Any] = {
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

# The bundle's own names for Vega and Vega-Lite are empty: vega-embed is the way to them. Its menu stays off.
_LIBRARIES = "window.vegaEmbed = vegaEmbed;"


@dataclass(frozen=True, eq=False)
class Chart:
    """A chart: a file `name`, a `title`, its Vega-Lite `spec`, and the `rows` it is drawn from, for a download.

    `description` says in words what is to be seen, for those who do not see it.
    """

    name: str
    title: str
    description: str
    spec: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]


def figure(chart: Chart, caption: str = "") -> Html:
    """The chart with its title, caption and downloads."""
    spec = {**chart.spec, "config": CONFIG}
    data = {"name": chart.name, "csv": _csv(chart.rows), "spec": spec}
    buttons = [
        tag("button", say(kind), type="button", aria_label=say("chart.of", what=say(kind), title=chart.title))
        for kind in ("chart.svg", "chart.csv")
    ]
    return tag(
        "figure",
        tag("h3", chart.title),
        tag(
            "div",
            Html(vl_convert.vegalite_to_svg(spec)),
            class_="drawing",
            role="img",
            aria_label=f"{chart.title}. {chart.description}",
        ),
        *([tag("figcaption", caption)] if caption else []),
        Html(f'<div class="buttons" hidden>{markup(*buttons)}</div>'),
        embedded(data),
        class_="chart",
        id=f"chart-{chart.name}",
    )


@cache
def scripts() -> tuple[str, str]:
    """Vega and Vega-Lite, once for the page, and what draws the charts."""
    return vl_convert.javascript_bundle(snippet=_LIBRARIES), resource("page.js")


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
