"""Pages from templates: what they may contain, how they write numbers, and what a browser may do with them."""

import math
import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, Protocol

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fdtr.report.record import Curve

_NO_VALUE = "–"
_MOST_PLACES = 6
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_SCRIPT_END = re.compile("</(?=script)", re.IGNORECASE)


class Interval(Protocol):
    """Whatever has a value and its 95% interval."""

    @property
    def value(self) -> float:
        """The value itself; NaN where there is none."""

    @property
    def low(self) -> float:
        """The low end."""

    @property
    def high(self) -> float:
        """The high end."""


def render_page(template: str, scripts: Sequence[str] = (), **context: Any) -> str:
    """A page from a template. Its policy lets a browser fetch nothing and run nothing but `scripts`."""
    safe_scripts = [script_text(script) for script in scripts]
    style = Markup(resource("page.css"))  # noqa: S704 - our own file
    page = environment().get_template(template)
    return page.render(scripts=safe_scripts, policy=_policy(safe_scripts), style=style, **context)


@cache
def environment() -> Environment:
    """The templates and their filters. Everything that is put on a page is escaped; a name that is not known fails."""
    templates = Environment(
        loader=PackageLoader("fdtr.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=printable,
    )
    named = (
        number, places, percent, p_value, interval, gain, listed, smallest, largest, calibration_error, grouped,
        distinct,
    )  # fmt: skip
    templates.filters.update({function.__name__: function for function in named}, thousands="{:,}".format)
    templates.tests["finite"] = math.isfinite
    templates.globals["zip"] = zip
    return templates


def printable(value: Any) -> Any:
    """A value whose texts have no control characters: no page can hold them, and the charts' library aborts on them."""
    match value:
        case Markup():
            return value
        case str():
            return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", value)
        case dict():
            return {printable(key): printable(entry) for key, entry in value.items()}
        case list():
            return [printable(entry) for entry in value]
        case _:
            return value


def grouped(items: Iterable[Any], attribute: str) -> list[tuple[Any, list[Any]]]:
    """Items by an attribute, in the order in which its values first occur."""
    groups: dict[Any, list[Any]] = {}
    for item in items:
        groups.setdefault(getattr(item, attribute), []).append(item)
    return list(groups.items())


def distinct(items: Iterable[Any]) -> list[Any]:
    """Each item once, in the order in which they first occur."""
    return list(dict.fromkeys(items))


def script_text(text: str) -> Markup:
    """The text of a script; nothing in it can end its element."""
    return Markup(_SCRIPT_END.sub(r"<\\/", text))  # noqa: S704 - scripts are our own


def _policy(scripts: Sequence[str]) -> str:
    """Charts evaluate their own expressions, so 'unsafe-eval' has to be; nothing can be fetched or sent."""
    if not scripts:
        return "default-src 'none'; style-src 'unsafe-inline'"
    hashes = " ".join(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in scripts)
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'unsafe-eval' {hashes}"


def resource(name: str) -> str:
    """A file beside this module."""
    return files("fdtr.report").joinpath(name).read_text(encoding="utf-8")


def number(value: float, decimals: int | None = None) -> str:
    """A number with three significant digits, or with exactly `decimals` places.

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
    largest_size = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    return min(max(2 - math.floor(math.log10(largest_size)), 0), _MOST_PLACES) if largest_size > 0 else 0


def percent(share: float) -> str:
    """A share between 0 and 1 in whole per cent. A share that is not exactly 0 or 1 is never written as 0% or 100%.

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


def interval(span: Interval, decimals: int = 2) -> str:
    """A value and its 95% interval; a dash where there is no number.

    >>> from fdtr.report.record import Span
    >>> interval(Span(value=1.5, low=-0.25, high=2))
    '1.50 (−0.25 to 2.00)'
    """
    if not math.isfinite(span.value):
        return _NO_VALUE
    return f"{number(span.value, decimals)} ({number(span.low, decimals)} to {number(span.high, decimals)})"


def gain(span: Interval, decimals: int = 2) -> str:
    """A gain and its 95% interval, with its sign. An interval that excludes 0 is never written as if 0 were its end.

    >>> from fdtr.report.record import Span
    >>> gain(Span(value=1.5, low=-0.25, high=2)), gain(Span(value=-1.5, low=-2, high=-1), 1)
    ('+1.50 (−0.25 to 2.00)', '−1.5 (−2.0 to −1.0)')
    >>> gain(Span(value=0.108, low=0.004, high=0.21))
    '+0.108 (0.004 to 0.210)'
    """
    nearest = min(abs(span.low), abs(span.high))
    while span.low * span.high > 0 and round(nearest, decimals) == 0 and decimals < _MOST_PLACES:
        decimals += 1
    shown = interval(span, decimals)
    return f"+{shown}" if span.value > 0 and round(span.value, decimals) else shown


def listed(words: Iterable[object]) -> str:
    """Words as a person lists them.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    *first, last = [str(word) for word in words] or [""]
    return f"{', '.join(first)} and {last}" if first else last


def smallest(values: Sequence[float]) -> float:
    """The smallest finite value; NaN where there is none."""
    return min(filter(math.isfinite, values), default=math.nan)


def largest(values: Sequence[float]) -> float:
    """The largest finite value; NaN where there is none."""
    return max(filter(math.isfinite, values), default=math.nan)


def calibration_error(curve: Curve) -> float:
    """Mean |predicted − observed|, bins weighted by their rows."""
    bins = [(abs(p - o), n) for p, o, n in zip(curve.predicted, curve.observed, curve.count, strict=True) if n]
    return sum(gap * n for gap, n in bins) / max(sum(n for _, n in bins), 1)
