"""Write settings as a TOML file that explains each of them in a comment."""

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
    """A number with all its digits and no trailing zeros.

    >>> exact(180.0), exact(1234.5678), exact(2_000_000.0)
    ('180', '1234.5678', '2000000')
    """
    return str(int(number)) if float(number).is_integer() and abs(number) < 1e15 else repr(float(number))


def toml_scalar(value: str | float | bool) -> str:
    """A text, number or flag in TOML, which writes them as JSON does, except for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


class Setting(Section):
    """One table of the settings file."""

    def derived(self) -> set[str]:
        """Names of fields that follow from other fields; the file shows them as comments."""
        return set()


def as_toml(settings: Section) -> str:
    """Every setting with its description. A setting without a value is written as a comment."""
    return "\n".join(_table(settings, (), set())).strip() + "\n"


def _table(section: Section, path: tuple[str, ...], explained: set[str]) -> Iterator[str]:
    """Lines of one table: values first, as TOML requires, then the tables within it.

    `explained` collects the fields whose description is printed already, because many tables repeat them.
    """
    nested: list[tuple[str, Any]] = []
    for name in type(section).model_fields:
        value = getattr(section, name)
        if _is_written_as_tables(section, name):
            nested.append((name, value))
        else:
            yield from _line(section, name, value, explained)
    for name, value in nested:
        yield from _tables(section, (*path, name), value, explained)


def _tables(section: Section, path: tuple[str, ...], value: Any, explained: set[str]) -> Iterator[str]:
    description = type(section).model_fields[path[-1]].description
    heading = ".".join(map(_key, path))
    notes = ["", *(f"# {line}" for line in textwrap.wrap(description or "", _WIDTH))]
    if isinstance(value, Mapping):
        yield from [*notes, f"[{heading}]", *(f"{_key(key)} = {_value(item)}" for key, item in value.items())]
    elif isinstance(value, Section):
        yield from [*notes, f"[{heading}]", *_table(value, path, explained)]
    elif not value:
        yield from [*notes, f"# [[{heading}]]"]  # as `name = []` the list could not be extended below
    else:
        for number, item in enumerate(value):
            yield from [*(notes if number == 0 else [""]), f"[[{heading}]]", *_table(item, path, explained)]


def _is_written_as_tables(section: Section, name: str) -> bool:
    """Whether the field is a table or a list of tables; one that was emptied is `name = []`."""
    field, value = type(section).model_fields[name], getattr(section, name)
    kind = next(iter(get_args(field.annotation)), None)
    is_list = isinstance(kind, type) and issubclass(kind, BaseModel)
    return isinstance(value, BaseModel | Mapping) or (is_list and (value != () or field.default == ()))


def _line(section: Section, name: str, value: Any, explained: set[str]) -> Iterator[str]:
    """One setting, with its description beside it or above it."""
    field = f"{type(section).__name__}.{name}"
    description = "" if field in explained else type(section).model_fields[name].description or ""
    explained.add(field)
    derived = isinstance(section, Setting) and name in section.derived()
    text = f"{'# ' if value is None or derived else ''}{name} = {_value(value)}"
    if not description:
        yield text
    elif len(text) + len(description) + 4 <= _WIDTH:
        yield f"{text}  # {description}"
    else:
        yield from (*(f"# {line}" for line in textwrap.wrap(description, _WIDTH - 2)), text)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else toml_scalar(name)


def _value(value: Any) -> str:
    if value is None:
        return "…"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return toml_scalar(value)
