"""Settings as a TOML file that explains itself: each one with what it means beside it."""

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel

from fdtr.study.sections import Section

_WIDTH = 118
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def exact(number: float) -> str:
    """A number in all its digits, and no more.

    >>> exact(180.0), exact(1234.5678), exact(2_000_000.0)
    ('180', '1234.5678', '2000000')
    """
    return str(int(number)) if float(number).is_integer() and abs(number) < 1e15 else repr(float(number))


class Setting(Section):
    """A table of the settings."""

    def derived(self) -> set[str]:
        """Names of settings that follow from others, and need not stand in a file."""
        return set()


def as_toml(settings: Section) -> str:
    """Every setting with its description; one that is not set stands there as a comment."""
    return "\n".join(_table(settings, (), set())).strip() + "\n"


def _table(section: Section, path: tuple[str, ...], told: set[str]) -> Iterator[str]:
    """Lines of one table: values first, as TOML asks, then the tables within it."""
    later: list[tuple[str, Any]] = []
    for name in type(section).model_fields:
        value = getattr(section, name)
        if _is_tables(value) or _could_be_tables(section, name):
            later.append((name, value))
        else:
            yield from _line(section, name, value, told)
    for name, value in later:
        yield from _tables(section, (*path, name), value, told)


def _tables(section: Section, path: tuple[str, ...], value: Any, told: set[str]) -> Iterator[str]:
    about = type(section).model_fields[path[-1]].description
    heading = ".".join(map(_key, path))
    notes = ["", *(f"# {line}" for line in textwrap.wrap(about or "", _WIDTH))]
    if isinstance(value, Mapping):
        yield from [*notes, f"[{heading}]", *(f"{_key(key)} = {_value(one)}" for key, one in value.items())]
    elif isinstance(value, Section):
        yield from [*notes, f"[{heading}]", *_table(value, path, told)]
    elif not value:
        yield from [*notes, f"# [[{heading}]]"]  # an empty list could not be added to below
    else:
        for number, one in enumerate(value):
            yield from [*(notes if number == 0 else [""]), f"[[{heading}]]", *_table(one, path, told)]


def _is_tables(value: Any) -> bool:
    return isinstance(value, BaseModel | Mapping) or (
        isinstance(value, tuple) and bool(value) and isinstance(value[0], BaseModel)
    )


def _could_be_tables(section: Section, name: str) -> bool:
    """Whether a list of tables is empty, as it is where nobody says otherwise."""
    field = type(section).model_fields[name]
    kinds = get_args(field.annotation)
    tables = bool(kinds) and isinstance(kinds[0], type) and issubclass(kinds[0], BaseModel)
    return tables and field.default == () and getattr(section, name) == ()


def _line(section: Section, name: str, value: Any, told: set[str]) -> Iterator[str]:
    """One setting. What a field of many alike tables means is told once."""
    about = type(section).model_fields[name].description or ""
    where = f"{type(section).__name__}.{name}"
    about = "" if where in told else about
    known = not isinstance(section, Setting) or name not in section.derived()
    told.add(where)
    text = f"{name} = {_value(value)}" if value is not None and known else f"# {name} = {_value(value)}"
    if not about:
        yield text
    elif len(text) + len(about) + 4 <= _WIDTH:
        yield f"{text}  # {about}"
    else:
        yield from (*(f"# {line}" for line in textwrap.wrap(about, _WIDTH - 2)), text)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _value(value: Any) -> str:
    if value is None:
        return "…"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_value(one)}" for key, one in value.items()) + " }"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return repr(value)


def _text(text: str) -> str:
    # A JSON string is a TOML basic string, but for one character.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
