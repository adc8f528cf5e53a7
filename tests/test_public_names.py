"""The front door: docs/api.md names every public name, each says what it promises, and clients use no other."""

import ast
import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/api.md").read_text(encoding="utf-8")
MODULES = re.findall(r"^### `(fdtr[\w.]*)`", PAGE, re.MULTILINE)
CLIENTS = ("examples", "reproductions")
WITHOUT_EXAMPLE = {
    "fdtr.cohort.extract_mimic_iv": "needs a MIMIC-IV database",
    "fdtr.site.to_device": "needs PyTorch",
    "fdtr.site.on_cluster": "starts processes, which import the program that starts them",
}
"""Functions whose example could not run here, and why."""


def listed(module: str) -> list[str]:
    """Names in the table under a module's heading."""
    [section] = re.findall(rf"^### `{re.escape(module)}`\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


def public() -> Iterator[tuple[str, Any]]:
    for module in MODULES:
        room = importlib.import_module(module)
        for name in listed(module):
            yield f"{module}.{name}", getattr(room, name)


def imports(source: str) -> Iterator[tuple[str, str]]:
    """Every (module, name) of fdtr that a program imports; an empty name for `import fdtr.x`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "fdtr":
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.split(".")[0] == "fdtr")


def example(documented: object) -> str:
    """What a person types in the examples of a docstring."""
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(documented) or "")
    return "".join(part.source for part in examples)


def programs() -> Iterator[tuple[str, str]]:
    """Every program that shows how fdtr is used: files, and examples on pages and in docstrings."""
    for module in MODULES:
        yield module, example(importlib.import_module(module))
    for name, value in public():
        if callable(value):
            yield name, example(value)
    for folder in CLIENTS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    for path in sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")]):
        text = path.read_text(encoding="utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        typed = re.findall(r"^ *(?:>>>|\.\.\.) (.*)$", text, re.MULTILINE)
        lines = [line for block in blocks for line in block.splitlines()] + typed
        kept = [line.strip() for line in lines if re.match(r"\s*(from fdtr|import fdtr)", line)]
        yield str(path.relative_to(ROOT)), "\n".join(kept)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_exports_what_the_page_lists(module: str) -> None:
    assert listed(module)
    assert set(listed(module)) <= set(importlib.import_module(module).__all__)


@pytest.mark.parametrize(("name", "value"), [*public()], ids=lambda value: value if isinstance(value, str) else "")
def test_every_public_function_is_typed_and_explained(name: str, value: Any) -> None:
    if not callable(value) or not getattr(value, "__module__", "").startswith("fdtr"):
        return  # a constant or a type alias
    assert (inspect.getdoc(value) or "").strip(), f"{name} has no docstring"
    if inspect.isclass(value):
        return
    for parameter in inspect.signature(value).parameters.values():
        assert parameter.annotation is not parameter.empty, f"{name}: {parameter.name} has no type"
        assert parameter.kind is not parameter.VAR_KEYWORD, f"{name} takes options that it does not name"
        any_type = parameter.annotation in (Any, "Any") and parameter.name != "source"  # a table may be of any library
        assert not any_type, f"{name}: {parameter.name} may be anything"


def functions() -> list[str]:
    """Public functions, by their full names."""
    return [name for name, value in public() if inspect.isfunction(value)]


@pytest.mark.parametrize("name", functions())
def test_every_public_function_has_an_example_that_runs(name: str) -> None:
    """In its own docstring, or in that of its module, where it may be part of a longer one; doctest runs both."""
    module, short = name.rsplit(".", 1)
    room = importlib.import_module(module)
    used = re.search(rf"\b{short}\(", example(room))
    assert (used or example(getattr(room, short))) or name in WITHOUT_EXAMPLE, f"{name} has no example"
    assert name not in WITHOUT_EXAMPLE or not used


PROGRAMS = [program for program in programs() if program[1]]


@pytest.mark.parametrize(("place", "source"), PROGRAMS, ids=lambda value: value if "\n" not in value else "")
def test_clients_import_public_names_only(place: str, source: str) -> None:
    for module, name in imports(source):
        if module == "fdtr.errors" or (module == "fdtr" and f"fdtr.{name}" in (*MODULES, "fdtr.errors")):
            continue
        assert module in MODULES, f"{place} imports {module}, which is not public"
        assert name in ("", "__version__", *listed(module)) or f"{module}.{name}" in MODULES, (
            f"{place}: {module}.{name}"
        )


@pytest.mark.parametrize(("place", "source"), PROGRAMS, ids=lambda value: value if "\n" not in value else "")
def test_clients_reach_public_names_only(place: str, source: str) -> None:
    """Names that are reached through a module: `fdtr.run`, `fdtr.site.evaluate_site`, `plots.values`."""
    aliases = {name: f"{module}.{name}" for module, name in imports(source) if f"{module}.{name}" in MODULES}
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Attribute):
            continue
        place_of = ast.unparse(node.value)
        module = aliases.get(place_of, place_of)
        if module in MODULES and f"{module}.{node.attr}" not in (*MODULES, "fdtr.errors", "fdtr.__version__"):
            assert node.attr in listed(module), f"{place}: {module}.{node.attr}"
