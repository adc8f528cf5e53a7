"""Pages from templates: what they may contain, and what a browser may do with them."""

import math
import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fdtr.report import formats

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_SCRIPT_END = re.compile("</(?=script)", re.IGNORECASE)


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
        formats.number, formats.places, formats.percent, formats.p_value, formats.interval, formats.listed,
        formats.smallest, formats.largest, formats.calibration_error, grouped, distinct,
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
