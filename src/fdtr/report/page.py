"""Building blocks of a page: markup that escapes by default, numbers for people, tables, and the frame."""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape

_NO_VALUE = "–"
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class Html(str):
    """Markup that is put on a page as it stands. Any other text is escaped."""

    __slots__ = ()


def tag(name: str, *children: str, **attributes: str | float) -> Html:
    """An element. In attribute names `_` stands for `-`; one at the end is dropped, as in `class_`.

    >>> tag("p", "2 < 3 ", tag("b", "always"), class_="note")
    '<p class="note">2 &lt; 3 <b>always</b></p>'
    """
    opening = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_escaped(str(value))}"' for key, value in attributes.items()
    )
    return Html(f"<{name}{opening}>{markup(*children)}</{name}>")


def markup(*parts: str) -> Html:
    """`parts` one after the other, all but Html escaped."""
    return Html("".join(part if isinstance(part, Html) else _escaped(part) for part in parts))


def _escaped(text: str) -> str:
    return escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", text))


def paragraph(*parts: str) -> Html:
    """A paragraph."""
    return tag("p", *parts)


def bullets(items: Iterable[str]) -> Html:
    """A list."""
    return tag("ul", *(tag("li", item) for item in items))


def number(value: float, decimals: int | None = None) -> str:
    """A number for people: three significant digits, or exactly `decimals` places.

    >>> number(1234.5), number(0.012345), number(-2.0), number(-2.0, decimals=2), number(float("nan"))
    ('1,234', '0.0123', '−2', '−2.00', '–')
    """
    if not math.isfinite(value):
        return _NO_VALUE
    if value != 0 and abs(value) < 1e-5 and decimals is None:
        return f"{value:.2e}".replace("-", "−")
    text = f"{value:,.{places([value]) if decimals is None else decimals}f}"
    if decimals is None and "." in text:
        text = text.rstrip("0").rstrip(".")
    return text.lstrip("-") if float(text.replace(",", "")) == 0 else text.replace("-", "−")


def places(values: Iterable[float]) -> int:
    """Decimal places that show the largest of `values` with three significant digits, and at most six.

    >>> places([3.14159, -42.0]), places([0.0])
    (1, 0)
    """
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    return min(max(2 - math.floor(math.log10(largest)), 0), 6) if largest > 0 else 0


def percent(share: float) -> str:
    """A share between 0 and 1, in whole per cent; what is not quite 0 or 100% does not become it.

    >>> percent(0.256), percent(0.001), percent(0.9999), percent(1.0)
    ('26%', '<1%', '>99%', '100%')
    """
    if not math.isfinite(share):
        return _NO_VALUE
    if 0 < share < 0.005:
        return "<1%"
    return ">99%" if 0.995 <= share < 1 else f"{share:.0%}"


def p_value(p: float) -> str:
    """A p-value.

    >>> p_value(0.00002), p_value(0.0312), p_value(0.5), p_value(float("nan"))
    ('<0.001', '0.031', '0.50', '–')
    """
    if not math.isfinite(p):
        return _NO_VALUE
    return "<0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def counted(n: int, noun: str) -> str:
    """A count with its noun.

    >>> counted(1, "step"), counted(2840, "patient")
    ('1 step', '2,840 patients')
    """
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def enumerated(words: Sequence[str]) -> str:
    """Words as a person lists them.

    >>> enumerated(["a"]), enumerated(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else "".join(words)


def step_titles(steps: Iterable[int]) -> list[str]:
    """Column headings for steps."""
    return [f"Step {step}" for step in steps]


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]], text: Collection[int] = ()) -> Html:
    """A table; a row's first cell is its heading. `text` are the columns that hold words and align left."""
    return _frame(caption, columns, {0, *text}, tag("tbody", *(_row(row, {0, *text}) for row in rows)))


def grouped_table(caption: str, columns: Sequence[str], groups: Mapping[str, Sequence[Sequence[str]]]) -> Html:
    """A table in groups of rows, each under a heading across it; a row's first cell is its own heading."""
    bodies = []
    for heading, rows in groups.items():
        across = tag("tr", tag("th", heading, scope="rowgroup", colspan=len(columns)))
        bodies.append(tag("tbody", across, *(_row(row, {0}) for row in rows)))
    return _frame(caption, columns, {0}, *bodies)


def _row(cells: Sequence[str], words: Collection[int]) -> Html:
    rest = (tag("td", cell, **_alignment(j, words)) for j, cell in enumerate(cells[1:], start=1))
    return tag("tr", tag("th", cells[0], scope="row"), *rest)


def _alignment(column: int, words: Collection[int]) -> dict[str, str]:
    return {"class_": "words"} if column in words else {}


def _frame(caption: str, columns: Sequence[str], words: Collection[int], *bodies: Html) -> Html:
    head = (tag("th", title, scope="col", **_alignment(j, words)) for j, title in enumerate(columns))
    whole = tag("table", tag("caption", caption), tag("thead", tag("tr", *head)), *bodies)
    return tag("div", whole, class_="scroll", role="region", aria_label=caption, tabindex=0)


def figure(drawing: Html, *caption: str) -> Html:
    """A drawing with the words below it."""
    return tag("figure", drawing, tag("figcaption", *caption))


def section(title: str, *content: Html) -> Html:
    """A section under a second-level heading, with an id made of it."""
    return tag("section", tag("h2", title), *content, id=anchor(title))


def contents(titles: Iterable[str]) -> Html:
    """Links to sections."""
    links = (tag("li", tag("a", title, href=f"#{anchor(title)}")) for title in titles)
    return tag("nav", tag("ul", *links), aria_label="Sections")


def anchor(title: str) -> str:
    """The id of a section.

    >>> anchor("Do the transitions fit the model?")
    'do-the-transitions-fit-the-model'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def document(title: str, header: Html, main: Html, footer: Html) -> str:
    """A whole page. Its policy lets a browser fetch nothing and run nothing."""
    parts = (tag("header", header), tag("main", main), tag("footer", footer))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"{tag('title', title)}\n<style>\n{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

_STYLE = """\
:root { color-scheme: light dark; --ground: #fdfdfb; --ink: #1c2226; --quiet: #586269; --line: #d5d9d8;
  --band: #f3f4f1; --accent: #14597a; }
@media (prefers-color-scheme: dark) { :root { --ground: #15191c; --ink: #e4e7e6; --quiet: #a2abaf;
  --line: #363d41; --band: #1d2226; --accent: #86c5e4; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 70rem; padding: 2rem clamp(1rem, 4vw, 3rem) 3rem; background: var(--ground);
  color: var(--ink); font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", "Noto Sans", sans-serif;
  overflow-wrap: break-word; }
h1 { font-size: clamp(1.6rem, 4vw, 2.2rem); line-height: 1.2; margin: 0 0 .6rem; font-weight: 600; }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 0 0 .8rem; font-weight: 600; }
h3 { font-size: 1rem; margin: 0; font-weight: 600; }
p, li { max-width: 44rem; }
p { margin: 0 0 .9rem; }
ul { margin: 0 0 .9rem; padding-left: 1.2rem; }
a { color: var(--accent); }
section { border-top: 1px solid var(--line); padding-top: 1.6rem; margin-top: 2.2rem; }
.lead { font-size: 1.1rem; }
.notice { border-left: .25rem solid var(--accent); background: var(--band); padding: .5rem .9rem; font-weight: 600; }
.quiet, figcaption, footer { color: var(--quiet); font-size: .9rem; }
nav ul { list-style: none; padding: 0; margin: 1.2rem 0 0; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem;
  font-size: .9rem; }
.scroll { overflow-x: auto; margin: 0 0 1.4rem; }
table { border-collapse: collapse; font-size: .9rem; line-height: 1.4; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: 0 0 .4rem; max-width: calc(100vw - 2rem); }
th, td { padding: .28rem .9rem .28rem 0; text-align: right; vertical-align: baseline; }
th { font-weight: 400; }
thead th { color: var(--quiet); border-bottom: 1px solid var(--ink); vertical-align: bottom; }
th[scope=row], th[scope=rowgroup], .words { text-align: left; }
tbody th[scope] { min-width: 7rem; }
th[scope=rowgroup] { font-weight: 600; padding-top: .6rem; }
td { white-space: nowrap; }
td.words { white-space: normal; min-width: 10rem; }
tbody tr:last-child > * { border-bottom: 1px solid var(--line); }
td ul { margin: 0; padding-left: 1.1rem; }
figure { margin: 0 0 1.6rem; max-width: 46rem; }
figcaption { margin-top: .4rem; max-width: 44rem; }
.multiples { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: 1.2rem 2rem;
  margin: 0 0 1.4rem; }
.multiples figure { margin: 0; }
.multiples p { margin: 0 0 .4rem; }
.legend { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .2rem 1.4rem; font-size: .9rem; }
svg { display: block; width: 100%; overflow: visible; font-size: .8rem; }
.legend svg { display: inline-block; width: 1rem; height: .8rem; margin-right: .4rem; vertical-align: -.05rem; }
svg text { fill: var(--ink); stroke: var(--ground); stroke-width: 4;
  stroke-linejoin: round; paint-order: stroke; }
svg .tick { fill: var(--quiet); }
svg .strong { font-weight: 600; }
svg .grid { stroke: var(--line); }
svg .axis { stroke: var(--quiet); }
svg .mark { stroke: var(--accent); stroke-width: 2; }
svg .full { fill: var(--accent); }
svg .hollow { fill: var(--ground); }
svg .leader { stroke: var(--quiet); stroke-width: .7; }
svg .share { fill: var(--accent); stroke: var(--ink); stroke-width: .6; }
code { font-size: .9em; overflow-wrap: anywhere; }
footer { border-top: 1px solid var(--line); margin-top: 2.4rem; padding-top: 1.2rem; }
@media print {
  :root { color-scheme: light; --ground: #fff; --ink: #000; --quiet: #333; --line: #bbb;
    --band: #fff; --accent: #14597a; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  nav { display: none; }
  .scroll { overflow: visible; }
  table { font-size: 8pt; }
  td { white-space: normal; }
  figure, tr, tbody:not(:only-of-type), h2 { break-inside: avoid; }
  h2, caption, thead { break-after: avoid; }
}
"""
