"""Flow of a cohort: apply its rules, count the stays that each rule removes, and draw the diagram."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Self
from xml.sax.saxutils import escape

from fdtr.cohort.databases import Database

_WIDTH, _MARGIN, _GAP, _LINE = 720, 16, 14, 19
_MIDDLE, _SIDE = (16, 260), (346, 358)
_CENTRE = _MIDDLE[0] + _MIDDLE[1] / 2
_FONT = 'font-family="system-ui, sans-serif" font-size="14"'
_TIP = 'id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto"'
_BOLD = ' font-weight="600"'
_LETTERS = 46
"""Letters that fit into a line of a box at the side."""


@dataclass(frozen=True)
class Removal:
    """A rule that stays must meet, how many stays it removed, and how many were left."""

    rule: str
    removed: int
    left: int


@dataclass(frozen=True)
class Flow:
    """From `found` stays to a cohort, rule by rule; `what` names the stays.

    >>> Flow("ICU stays", 10).then("adults", left=8).left
    8
    """

    what: str
    found: int
    removals: tuple[Removal, ...] = ()

    @property
    def left(self) -> int:
        """Stays that met every rule so far."""
        return self.removals[-1].left if self.removals else self.found

    def then(self, rule: str, *, left: int) -> Self:
        """The flow with one more rule, which `left` stays met."""
        return replace(self, removals=(*self.removals, Removal(rule, self.left - left, left)))

    def as_rows(self) -> list[dict[str, object]]:
        """A row for the start and one for each rule."""
        first: list[dict[str, object]] = [{"rule": self.what, "removed": 0, "left": self.found}]
        return first + [{"rule": r.rule, "removed": r.removed, "left": r.left} for r in self.removals]

    def as_svg(self) -> str:
        """A CONSORT diagram: stays that are left in the middle, removed stays and the rule at the side."""
        parts, top = _box(_MIDDLE, _MARGIN, [self.what, f"n = {self.found:,}"]), _MARGIN + _height(2)
        for number, removal in enumerate(self.removals, 1):
            why = wrap(f"does not meet: {removal.rule}", _LETTERS) or [""]
            side = [f"Removed: n = {removal.removed:,}", *why]
            aside, below = top + _GAP, top + 2 * _GAP + _height(len(side))
            turn = aside + _height(len(side)) / 2
            parts += _arrow(_CENTRE, top, _CENTRE, below) + _arrow(_CENTRE, turn, _SIDE[0], turn)
            parts += _box(_SIDE, aside, side, first=True)
            last = number == len(self.removals)
            parts += _box(_MIDDLE, below, ["In the table" if last else "Left", f"n = {removal.left:,}"])
            top = below + _height(2)
        height = top + _MARGIN
        size = f'width="{_WIDTH}" height="{height:g}" viewBox="0 0 {_WIDTH} {height:g}"'
        head = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" {_FONT}>',
            f"<title>{escape(f'{self.found:,} {self.what}, {self.left:,} in the table')}</title>",
            f"<defs><marker {_TIP}><path d='M0 0L8 4L0 8z' fill='#444'/></marker></defs>",
            f'<rect width="{_WIDTH}" height="{height:g}" fill="white"/>',
        ]
        return "\n".join([*head, *parts, "</svg>"]) + "\n"


def keep_cohort(db: Database, stays: str, what: str, rules: Sequence[tuple[str, str]]) -> Flow:
    """Make the relation `cohort` from the relation `stays` by `rules`, each a text and a condition in SQL."""
    passed = [" AND ".join(f"({condition})" for _, condition in rules[: number + 1]) for number in range(len(rules))]
    left = ", ".join(f"count(CASE WHEN {conditions} THEN 1 END)" for conditions in passed)
    total, *counts = (int(column[0].as_py()) for column in db.arrow(f"SELECT count(*), {left} FROM {stays}").columns)
    db.make("cohort", f"SELECT * FROM {stays} WHERE {passed[-1]}")
    flow = Flow(what, total)
    for (rule, _), count in zip(rules, counts, strict=True):
        flow = flow.then(rule, left=count)
    return flow


def _height(lines: int) -> float:
    return _LINE * lines + 16


def _box(place: tuple[int, int], top: float, lines: Sequence[str], *, first: bool = False) -> list[str]:
    """A box with centred text. The bold line is the first if `first`, else the last."""
    left, width = place
    bold = 0 if first else len(lines) - 1
    texts = [
        f'<text x="{left + width / 2:g}" y="{top + 22 + _LINE * number:g}" text-anchor="middle"'
        f"{_BOLD if number == bold else ''}>{escape(line)}</text>"
        for number, line in enumerate(lines)
    ]
    size = f'width="{width}" height="{_height(len(lines)):g}"'
    return [f'<rect x="{left}" y="{top:g}" {size} rx="3" fill="#f6f6f6" stroke="#444"/>', *texts]


def _arrow(x1: float, y1: float, x2: float, y2: float) -> list[str]:
    ends = f'x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"'
    return [f'<line {ends} stroke="#444" marker-end="url(#tip)"/>']
