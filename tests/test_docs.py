"""The pages a person reads: every relative link leads somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("reproductions/*.md")])

CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(\s*<?([^)>\s]+)|<(?:img|a)\s[^>]*?(?:src|href)=\"([^\"]+)\"")
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)


def links(page: Path) -> list[str]:
    """The relative targets on a page, code left out."""
    found = LINK.findall(CODE.sub("", page.read_text(encoding="utf-8")))
    targets = [inline or html for inline, html in found]
    return [target for target in targets if not re.match(r"[a-z][a-z0-9+.-]*:", target)]


def anchors(page: Path) -> set[str]:
    """The fragments a page answers to, named as code hosts name them: "Two words!" is `two-words`."""
    text = re.sub(r"^(```|~~~).*?^\1", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = (re.sub(r"[^\w\- ]", "", title.lower()) for title in HEADING.findall(text))
    return {title.strip().replace(" ", "-") for title in titles}


def test_every_test_named_in_the_threat_model_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)((?:::\w+)*)`", (ROOT / "SECURITY.md").read_text(encoding="utf-8"))
    assert len(named) > 20
    for path, parts in named:
        source = (ROOT / path).read_text(encoding="utf-8")
        for name in parts.split("::")[1:]:
            assert re.search(rf"^ *(?:def|class) {name}\b", source, re.MULTILINE), f"{path}: {name}"


def test_every_file_and_function_on_the_map_exists() -> None:
    named = re.findall(r"`([\w/]+\.(?:py|pyi))(?::([\w.]+))?`", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert len(named) > 60
    for path, name in named:
        [file] = [file for file in (ROOT / path, ROOT / "src/fdtr" / path) if file.is_file()] or [None]
        assert file, path
        source = file.read_text(encoding="utf-8")
        for part in name.split(".") if name else []:
            assert re.search(rf"^ *(?:def|class) {part}\b", source, re.MULTILINE), f"{path}: {part}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_in_the_source_that_a_page_names_exists(page: Path) -> None:
    folders = "src|tests|docs|scripts|benchmarks|reproductions|examples|packaging"
    named = re.findall(rf"`((?:{folders})/[a-z0-9_./-]+)[`:]", page.read_text(encoding="utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    broken = []
    for link in links(page):
        path, _, fragment = link.partition("#")
        target = page.parent / path if path else page
        known = target.exists() and (not fragment or target.suffix != ".md" or fragment in anchors(target))
        if not known:
            broken.append(link)
    assert not broken
