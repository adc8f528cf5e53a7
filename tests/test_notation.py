"""Every code name in the notation table exists."""

import inspect
import re
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick
TABLE = (Path(__file__).parents[1] / "docs" / "notation.md").read_text()
NAMES = re.findall(r"`(fdtr\.[\w.]+)`", TABLE)


def exists(name: str) -> bool:
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        break
    for part in parts[cut:]:
        known = {field.name for field in fields(found)} if is_dataclass(found) else set()
        if part in known or (inspect.isclass(found) and part in getattr(found, "model_fields", {})):
            return part == parts[-1]
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


def test_there_are_names():
    assert len(NAMES) > 40


@pytest.mark.parametrize("name", NAMES)
def test_a_code_name_exists(name):
    assert exists(name), name


def test_the_test_can_fail():
    assert not exists("fdtr.policy.Policy.thetta")
    assert not exists("fdtr.nowhere.x")
