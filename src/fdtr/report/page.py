"""Building blocks of a page: markup that escapes by default, numbers for people, tables, and the frame."""

import json
import math
import re
from base64 import b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

from fdtr.report.texts import say

_NO_VALUE = "–"
_LONG = 40
_ENDING = re.compile("</(?=script)", re.IGNORECASE)
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


def struck(*parts: str) -> Html:
    """Something that is not to be believed, for the eye and for a screen reader."""
    return tag("s", *parts, aria_label=f"{''.join(parts)}, {say('values.struck')}", role="deletion")


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


def enumerated(words: Sequence[str]) -> str:
    """Words as a person lists them.

    >>> enumerated(["a"]), enumerated(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return say("page.list-end", first=", ".join(words[:-1]), last=words[-1]) if len(words) > 1 else "".join(words)


def step_titles(steps: Iterable[int]) -> list[str]:
    """Column headings for steps."""
    return [say("page.step", step=step) for step in steps]


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]], text: Collection[int] = ()) -> Html:
    """A table; a row's first cell is its heading. `text` are the columns that hold words and align left."""
    return _frame(caption, columns, {0, *text}, tag("tbody", *(_row(row, {0, *text}) for row in rows)))


def grouped_table(
    caption: str, columns: Sequence[str], groups: Mapping[str, Sequence[Sequence[str]]], text: Collection[int] = ()
) -> Html:
    """A table in groups of rows, each under a heading across it; a row's first cell is its own heading."""
    bodies, words = [], {0, *text}
    for heading, rows in groups.items():
        across = tag("tr", tag("th", heading, scope="rowgroup", colspan=len(columns)))
        bodies.append(tag("tbody", across, *(_row(row, words) for row in rows)))
    return _frame(caption, columns, words, *bodies)


def _row(cells: Sequence[str], words: Collection[int]) -> Html:
    rest = (tag("td", cell, **_alignment(j, words, cell)) for j, cell in enumerate(cells[1:], start=1))
    return tag("tr", tag("th", cells[0], scope="row"), *rest)


def _alignment(column: int, words: Collection[int], cell: str = "") -> dict[str, str]:
    if column not in words:
        return {}
    return {"class_": "words long" if len(cell) > _LONG else "words"}


def _frame(caption: str, columns: Sequence[str], words: Collection[int], *bodies: Html) -> Html:
    head = (tag("th", title, scope="col", **_alignment(j, words)) for j, title in enumerate(columns))
    whole = tag("table", tag("caption", caption), tag("thead", tag("tr", *head)), *bodies)
    return tag("div", whole, class_="scroll", role="region", aria_label=caption, tabindex=0)


def folded(summary: str, *content: Html) -> Html:
    """Content that opens on request; a printed page has it open."""
    return tag("details", tag("summary", summary), *content)


def section(name: str, title: str, *content: Html) -> Html:
    """A section under a second-level heading; `name` is its id."""
    return tag("section", tag("h2", title), *content, id=name)


def contents(titles: Mapping[str, str]) -> Html:
    """Links to sections, by their ids."""
    links = (tag("li", tag("a", title, href=f"#{name}")) for name, title in titles.items())
    return tag("nav", tag("ul", *links), aria_label=say("page.contents"))


def script(text: str) -> Html:
    """A script; nothing in it can end its element."""
    harmless = _ENDING.sub(r"<\\/", text)
    return Html(f"<script>{harmless}</script>")


def embedded(value: Any) -> Html:
    """Plain values for a script to read; "<" is written as JSON can, so that nothing ends the element."""
    text = json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")
    return Html(f'<script type="application/json">{text}</script>')


def document(title: str, header: Html, main: Html, footer: Html, scripts: Sequence[str]) -> str:
    """A whole page. Its policy lets a browser fetch nothing and run nothing but `scripts`."""
    skip = tag("a", say("page.skip"), href="#report", class_="skip")
    parts = (skip, tag("header", header), tag("main", main, id="report"), tag("footer", footer))
    made = [script(text) for text in scripts]
    return (
        f'<!DOCTYPE html>\n<html lang="{say("page.language")}">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(made)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"{tag('title', title)}\n<style>\n{resource('page.css')}</style>\n</head>\n<body>\n"
        + "\n".join([*parts, *made])
        + "\n</body>\n</html>\n"
    )


def resource(name: str) -> str:
    """A file beside this module."""
    return files("fdtr.report").joinpath(name).read_text(encoding="utf-8")


def _policy(scripts: Sequence[Html]) -> str:
    """Charts evaluate their own expressions, so 'unsafe-eval' has to be; nothing can be fetched or sent."""
    if not scripts:
        return "default-src 'none'; style-src 'unsafe-inline'"
    texts = (made.removeprefix("<script>").removesuffix("</script>") for made in scripts)
    hashes = (b64encode(sha256(text.encode()).digest()).decode() for text in texts)
    allowed = " ".join(f"'sha256-{found}'" for found in hashes)
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'unsafe-eval' {allowed}"
