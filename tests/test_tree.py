"""The tree: every folder of tests stands for a folder of the source, and no two modules share a file name."""

from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[1]
SOURCE, TESTS = ROOT / "src" / "fdtr", ROOT / "tests"
ELSEWHERE = {"reproductions": ROOT / "reproductions" / "experiments"}
"""Folders of tests whose source is not in the package."""


def test_every_folder_of_tests_has_its_folder_in_the_source():
    folders = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")}
    missing = {str(folder) for folder in folders if not ELSEWHERE.get(str(folder), SOURCE / folder).is_dir()}
    assert missing == set()


def test_no_test_stands_among_what_tests_share():
    assert list((TESTS / "support").rglob("test_*.py")) == []


def test_no_two_modules_have_the_same_file_name():
    names = Counter(path.name for path in SOURCE.rglob("*.py") if path.name not in ("__init__.py", "__main__.py"))
    assert {name for name, number in names.items() if number > 1} == set()
