"""The flow of a cohort: how many stays each rule removed, as a table and as a drawing."""

from dataclasses import dataclass, replace
from typing import Self
from xml.sax.saxutils import escape

_WIDTH, _BOX, _GAP, _SIDE = 640, 44, 34, 330


@dataclass(frozen=True)
class Removal:
    """A rule that stays must meet, how many did not, and how many were left."""

    rule: str
    removed: int
    left: int


@dataclass(frozen=True)
class Flow:
    """From `found` stays (`what` they are) to a cohort, rule by rule.

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
        """With one more rule, which `left` stays met."""
        return replace(self, removals=(*self.removals, Removal(rule, self.left - left, left)))

    def as_rows(self) -> list[dict[str, object]]:
        """A row for the start and one for each rule."""
        first: list[dict[str, object]] = [{"rule": self.what, "removed": 0, "left": self.found}]
        return first + [{"rule": r.rule, "removed": r.removed, "left": r.left} for r in self.removals]

    def as_svg(self) -> str:
        """Boxes from top to bottom; what each rule removed stands beside."""
        height = _GAP + (_BOX + _GAP) * (len(self.removals) + 1)
        size = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="system-ui" font-size="13">',
            f"<title>{escape(f'{self.found:,} {self.what}, {self.left:,} in the cohort')}</title>",
            f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
            *_box(_GAP / 2, self.what, f"{self.found:,}"),
        ]
        for number, removal in enumerate(self.removals, 1):
            top = _GAP / 2 + number * (_BOX + _GAP)
            parts += [
                f'<line x1="160" x2="160" y1="{top - _GAP}" y2="{top}" stroke="#444"/>',
                f'<text x="{_SIDE + 12}" y="{top - _GAP / 2 + 4}" fill="#444">− {removal.removed:,}</text>',
                *_box(top, removal.rule, f"{removal.left:,}"),
            ]
        return "\n".join([*parts, "</svg>"]) + "\n"


def _box(top: float, text: str, count: str) -> list[str]:
    return [
        f'<rect x="10" y="{top}" width="{_WIDTH - 20}" height="{_BOX}" rx="4" fill="#f4f4f4" stroke="#444"/>',
        f'<text x="22" y="{top + 27}">{escape(text)}</text>',
        f'<text x="{_WIDTH - 22}" y="{top + 27}" text-anchor="end" font-weight="600">{count}</text>',
    ]
