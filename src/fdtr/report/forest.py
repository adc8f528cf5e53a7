"""The picture of the first screen: one strip a row, drawn beside the numbers, with one axis for all rows.

Positions are shares of the strip's width, so that it grows with the page. A circle is the verified part, a square the
full policy; a mark is filled where the gain is verified, hollow where it rests on a model, and missing where it is not
estimable.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fdtr.comparisons import Evidence
from fdtr.report.findings import Row, Shown
from fdtr.report.pages import number

_HEIGHTS = (34, 66)
"""Where the two gains of a row lie, in percent of its height."""

_MARGIN, _SHORTEST = 0.05, 1e-9
_MOST_TICKS = 6
_SHAPES = ('<circle r="5"/>', '<rect x="-4.5" y="-4.5" width="9" height="9"/>')


@dataclass(frozen=True)
class Axis:
    """The axis of all strips, from `low` to `high`, with 0 inside; `ticks` are round numbers."""

    low: float
    high: float
    ticks: Sequence[float]

    def place(self, value: float) -> str:
        """Where a value lies, in percent of the width.

        >>> Axis(-1.0, 3.0, [0.0]).place(0.0)
        '25.00%'
        """
        return f"{100 * (value - self.low) / (self.high - self.low):.2f}%"


def make_axis(rows: Sequence[Row]) -> Axis:
    """An axis on which all intervals of `rows` and 0 have their place."""
    ends = [end for row in rows for gain in row.gains for end in (gain.low, gain.high) if math.isfinite(end)]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    if high - low < _SHORTEST:
        low, high = -1.0, 1.0
    step = _round_step((high - low) / _MOST_TICKS)
    first, last = math.ceil(low / step), math.floor(high / step)
    margin = _MARGIN * (high - low)
    return Axis(low - margin, high + margin, [n * step for n in range(first, last + 1)])


def _round_step(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def axis_strip(axis: Axis) -> Markup:
    """The axis with its numbers, for above the strips."""
    decimals = max((_places(tick) for tick in axis.ticks), default=0)
    drawn = [
        f'<text x="{axis.place(tick)}" y="80%">{number(tick, decimals)}</text>'
        f'<line x1="{axis.place(tick)}" x2="{axis.place(tick)}" y1="88%" y2="100%"/>'
        for tick in axis.ticks
    ]
    return _strip("axis", drawn)


def _places(tick: float) -> int:
    return len(f"{tick:.6f}".rstrip("0").split(".")[1])


def strip(axis: Axis, row: Row) -> Markup:
    """Both gains of a row with their intervals, and the line at 0."""
    zero = axis.place(0.0)
    drawn = [f'<line class="zero" x1="{zero}" x2="{zero}" y1="0" y2="100%"/>']
    for gain, shape, height in zip(row.gains, _SHAPES, _HEIGHTS, strict=True):
        if gain.verdict != Evidence.NONE:
            drawn.append(_mark(axis, gain, shape, height))
    return _strip("gains", drawn)


def _mark(axis: Axis, gain: Shown, shape: str, height: int) -> str:
    low, high = axis.place(gain.low), axis.place(gain.high)
    return (
        f'<g class="{gain.verdict}"><line x1="{low}" x2="{high}" y1="{height}%" y2="{height}%"/>'
        f'<svg x="{axis.place(gain.value)}" y="{height}%">{shape}</svg></g>'
    )


def key(position: int, verdict: str) -> Markup:
    """The mark of the verified part (0) or of the full policy (1), for the head of a column."""
    mark = f'<g class="{verdict}"><svg x="50%" y="50%">{_SHAPES[position]}</svg></g>'
    return _strip("key", [mark])


def _strip(kind: str, drawn: Sequence[str]) -> Markup:
    # Everything in it is a number or a word of ours; the numbers stand beside it, so a screen reader skips it.
    return Markup(f'<svg class="strip {kind}" aria-hidden="true">{"".join(drawn)}</svg>')  # noqa: S704
