"""Small charts as inline SVG; places across are per cent, so a chart narrows while its words keep their size."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fdtr.report.page import Html, number, places, tag

Array = NDArray[np.float64]

MOST_LINES = 9
_DASHES = ("none", "7 4", "2 3")
_SHAPES = ("M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0", "M-3.6,-3.6h7.2v7.2h-7.2z", "M0,-4.6L4.6,3.8H-4.6z")
_LONGEST_LABEL = 18
_LABEL_GAP = 15.0


@dataclass(frozen=True)
class Interval:
    """One row of an interval chart; `strong` rows stand out."""

    label: str
    value: float
    low: float
    high: float
    strong: bool = False


@dataclass(frozen=True)
class Scale:
    """From numbers to places: `low` is shown at `start`, `high` at `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The place of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def interval_chart(
    name: str, title: str, description: str, rows: Sequence[Interval], reference: float | None = None
) -> Html:
    """A dot and its interval for each row, with a dashed line at `reference`."""
    ticks = nice_ticks([x for row in rows for x in (row.low, row.high)])
    across = Scale(ticks[0], ticks[-1], 2.0, 98.0)
    decimals = places([row.high for row in rows] + [row.low for row in rows])
    bottom = 44.0 * len(rows) + 6
    parts = _ticks_across(ticks, across, bottom)
    if reference is not None:
        x = _percent(across(reference))
        parts.append(tag("line", x1=x, x2=x, y1=0, y2=bottom, class_="axis", stroke_dasharray="5 4"))
    for i, row in enumerate(rows):
        y, weight = 44.0 * i + 16, "strong" if row.strong else "plain"
        middle = y + 14
        value, least, most = (number(x, decimals) for x in (row.value, row.low, row.high))
        low, high = _percent(across(row.low)), _percent(across(row.high))
        parts += [
            tag("text", row.label, x="0", y=y, class_=weight),
            tag("text", f"{value} ({least} to {most})", x="100%", y=y, text_anchor="end", class_=weight),
            tag("line", x1=low, x2=high, y1=middle, y2=middle, class_="mark"),
            tag("circle", cx=_percent(across(row.value)), cy=middle, r=5,
                class_="mark " + ("full" if row.strong else "hollow")),
        ]  # fmt: skip
    return _drawing(name, title, description, bottom + 24, parts)


def line_chart(name: str, title: str, description: str, labels: Sequence[str], values: Array) -> Html:
    """One line for each label across steps; `values` is (steps, lines). Lines differ by dash and marker."""
    height = 300.0
    ticks = nice_ticks([*values.ravel().tolist(), 0.0])
    up = Scale(ticks[0], ticks[-1], height - 30, 12)
    across = Scale(0, max(len(values) - 1, 1), 11.0, 60.0)
    decimals = _tick_decimals(ticks)
    parts: list[Html] = []
    for tick in ticks:
        y, kind = round(up(tick), 1), "axis" if tick == 0 else "grid"
        parts.append(tag("line", x1="10%", x2="61%", y1=y, y2=y, class_=kind))
        words = number(tick, decimals)
        parts.append(tag("text", words, x="9%", y=y, dy=4, text_anchor="end", class_="tick"))
    for step in every_few(len(values)):
        x = _percent(across(step))
        parts.append(tag("text", str(step), x=x, y=height - 8, text_anchor="middle", class_="tick"))
    ends = [up(last) for last in values[-1]]
    for j, (label, place) in enumerate(zip(labels, spread(ends, _LABEL_GAP, 8, height - 26), strict=True)):
        parts += _line(j, label, [(across(h), up(value)) for h, value in enumerate(values[:, j])], place)
    return _drawing(name, title, description, height, parts)


def _line(j: int, label: str, points: list[tuple[float, float]], place: float) -> list[Html]:
    """A line with its markers, and its label at height `place`."""
    drawn = [
        tag("line", x1=_percent(x1), y1=round(y1, 1), x2=_percent(x2), y2=round(y2, 1), class_="mark",
            stroke_dasharray=_DASHES[(j // len(_SHAPES)) % len(_DASHES)])
        for (x1, y1), (x2, y2) in pairwise(points)
    ]  # fmt: skip
    x, y = points[-1]
    drawn.append(tag("line", x1=_percent(x + 1), y1=round(y, 1), x2="64%", y2=round(place, 1), class_="leader"))
    drawn += [_marker(j, x, y) for x, y in [*points, (65.5, place)]]
    short = label if len(label) <= _LONGEST_LABEL else label[: _LONGEST_LABEL - 1] + "…"
    drawn.append(tag("text", short, x="68%", y=round(place, 1), dy=4))
    return [tag("g", tag("title", label), *drawn, class_="line")]


def _marker(j: int, x: float, y: float) -> Html:
    """A marker: three shapes, full for the first three lines and hollow after."""
    filling = "full" if j < len(_SHAPES) else "hollow"
    shape = tag("path", d=_SHAPES[j % len(_SHAPES)], class_=f"mark {filling}")
    return tag("svg", shape, x=_percent(x), y=round(y, 1), width=1, height=1, overflow="visible")


def share_bars(name: str, title: str, description: str, given: Array, recommended: Array) -> Html:
    """Two stacked columns for each step: shares of the actions given, then recommended.

    Both are (steps, actions). The first action is at the bottom, unfilled.
    """
    height = 110.0
    steps, actions = given.shape
    slot = 100.0 / steps
    width = min(slot * 0.38, 12.0)
    parts: list[Html] = []
    for h in range(steps):
        middle = slot * (h + 0.5)
        for side, shares in ((-1, given[h]), (1, recommended[h])):
            left = middle + (-width if side < 0 else 0) + 0.25 * side
            parts += _column(left, width, shares, actions, height)
        if h in every_few(steps):
            x = _percent(middle)
            parts.append(tag("text", str(h), x=x, y=height + 15, text_anchor="middle", class_="tick"))
    return _drawing(name, title, description, height + 20, parts)


def _column(left: float, width: float, shares: Array, actions: int, height: float) -> list[Html]:
    tops = height * (1 - np.cumsum(shares))
    return [
        tag("rect", x=_percent(left), y=round(float(top), 2), width=_percent(width),
            height=round(float(share) * height, 2), class_="share", fill_opacity=shade(a, actions))
        for a, (top, share) in enumerate(zip(tops, shares, strict=True)) if share > 0
    ]  # fmt: skip


def swatch(a: int, actions: int) -> Html:
    """The shade of action `a`, for a legend."""
    box = tag("rect", x=1, y=1, width="90%", height="90%", class_="share", fill_opacity=shade(a, actions))
    return tag("svg", box, aria_hidden="true")


def shade(a: int, actions: int) -> float:
    """How dark action `a` is, from 0 for the first to 0.95 for the last: shades survive a grey printer."""
    return round(0.95 * a / max(actions - 1, 1), 3)


def nice_ticks(values: Iterable[float], most: int = 6) -> list[float]:
    """Round numbers, evenly spaced, that enclose `values`.

    >>> nice_ticks([0.13, 0.92])
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    known = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(known), max(known)
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-3):
        margin = max(abs(high), 1.0) / 2
        low, high = low - margin, high + margin
    rough = (high - low) / (most - 1)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10, 20) if unit * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


def every_few(steps: int) -> range:
    """The steps to label: all, or every second, third … where there are many."""
    return range(0, steps, max(1, math.ceil(steps / 10)))


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places near those `wanted`, in the same order, at least `gap` apart, inside [low, high] if they fit.

    >>> spread([10.0, 11.0, 40.0], gap=5.0, low=0.0, high=50.0)
    [10.0, 15.0, 40.0]
    """
    order = np.argsort(wanted, kind="stable")
    found = np.asarray(wanted, dtype=np.float64)[order]
    for i in range(len(found)):
        found[i] = max(found[i], low if i == 0 else found[i - 1] + gap)
    for i in reversed(range(len(found))):
        found[i] = min(found[i], high if i == len(found) - 1 else found[i + 1] - gap)
    placed = np.empty(len(found))
    placed[order] = found
    return [float(place) for place in placed]


def _ticks_across(ticks: Sequence[float], across: Scale, bottom: float) -> list[Html]:
    decimals = _tick_decimals(ticks)
    parts = []
    for tick in ticks:
        x = _percent(across(tick))
        parts.append(tag("line", x1=x, x2=x, y1=0, y2=bottom, class_="grid"))
        words = number(tick, decimals)
        parts.append(tag("text", words, x=x, y=bottom + 16, text_anchor="middle", class_="tick"))
    return parts


def _tick_decimals(ticks: Sequence[float]) -> int:
    """The fewest decimal places, up to nine, in which every tick is exact."""
    return next((n for n in range(9) if all(abs(round(tick, n) - tick) < 1e-10 for tick in ticks)), 9)


def _percent(place: float) -> str:
    return f"{place:.2f}%"


def _drawing(name: str, title: str, description: str, height: float, parts: Iterable[Html]) -> Html:
    """The SVG element, with a title and description for those who do not see it; `name` is unique on the page."""
    return tag(
        "svg",
        tag("title", title, id=f"{name}-title"),
        tag("desc", description, id=f"{name}-desc"),
        *parts,
        role="img",
        height=round(height),
        aria_labelledby=f"{name}-title {name}-desc",
    )
