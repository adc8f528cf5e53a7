"""Sentences for the faults of a study file: where, what, and the nearest key that exists."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

_TAGS = ("linear", "polynomial", "categorical", "spline", "fourier", "number", "auto", "noise units")
"""Names of a field's alternatives, which pydantic adds to the location of a fault."""


def readable(error: ValidationError, model: type[BaseModel], content: Any) -> list[str]:
    """One line for each fault; `content` is what was validated, used to name the covariate of a fault."""
    return [f"  {_place(fault['loc'], content)}{_sentence(fault, model)}" for fault in error.errors(include_url=False)]


def nearest(key: str, known: Iterable[str]) -> str:
    """End of a sentence that suggests the closest known key, or lists all keys if none is close.

    >>> nearest("horizn", ["horizon", "name"])
    '; did you mean "horizon"?'
    """
    options = list(known)
    close = difflib.get_close_matches(key, options, n=1)
    return f'; did you mean "{close[0]}"?' if close else f" (known: {', '.join(options)})"


def _place(location: tuple[int | str, ...], content: Any) -> str:
    """Where a fault is, such as `covariates[1] “sbp”.range: `; empty for the study as a whole."""
    words: list[str] = []
    for part, key in enumerate(location):
        if isinstance(key, int):
            words[-1] += f"[{key}]"
            item = content.get(location[part - 1]) if isinstance(content, Mapping) else None
            if isinstance(item, list | tuple) and isinstance(item[key], Mapping) and "name" in item[key]:
                words[-1] += f" “{item[key]['name']}”"
        elif key not in _TAGS:
            words.append(str(key))
    return ".".join(words) + ": " if words else ""


def _sentence(fault: Any, model: type[BaseModel]) -> str:
    kind, context = fault["type"], fault.get("ctx", {})
    if kind == "extra_forbidden":
        return f"unknown key{nearest(str(fault['loc'][-1]), _known_keys(model, fault['loc'][:-1]))}"
    if kind == "missing":
        return "is required"
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        return f"must be {context['expected']}"
    if kind == "union_tag_invalid":
        kinds = [tag.strip(" '") for tag in context["expected_tags"].split(",")]
        return f"unknown kind{nearest(str(context['tag']), kinds)}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return 'must be a table, such as { kind = "linear" } for a basis'
    if kind.startswith("float_") and fault["loc"][-1] == "number":
        noise = ", { noise = 0.03 }" if "pessimism" in fault["loc"] else ""
        return f'must be a number{noise} or "auto"'
    if kind in ("tuple_type", "list_type"):
        return "must be a list, in brackets"
    if kind == "union_tag_not_found":
        return 'a basis needs its kind, such as { kind = "linear" }'
    return str(fault["msg"]).replace("Input should be", "must be").replace("Value should have", "must have")


def _known_keys(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """The keys that the table at `location` may have."""
    current: list[type[BaseModel]] = [model]
    for key in location:
        if isinstance(key, int):
            continue
        annotations = [f.annotation for m in current for name, f in m.model_fields.items() if name == key]
        if annotations:
            current = [leaf for annotation in annotations for leaf in _models_in(annotation)]
        else:  # the tag of a union
            current = [m for m in current if _tag(m) == key] or current
    return [name for m in current for name in m.model_fields]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [leaf for argument in get_args(annotation) for leaf in _models_in(argument)]


def _tag(model: type[BaseModel]) -> str:
    kind = model.model_fields.get("kind")
    return str(get_args(kind.annotation)[0]) if kind is not None else ""
