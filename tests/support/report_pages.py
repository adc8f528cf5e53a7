"""Read a page of the report as tests need it: elements, words, and tables by caption."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from markupsafe import escape


class Page(HTMLParser):
    """Checks that elements close in order, and keeps text by element."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: dict[str, list[str]] = {}
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, name: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((name, dict(attrs)))
        if name != "meta":
            self.open.append(name)

    def handle_startendtag(self, name: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((name, dict(attrs)))

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.setdefault(self.open[-1], []).append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(word for words in self.words.values() for word in words))

    def of(self, name: str) -> list[dict[str, str | None]]:
        return [attrs for found, attrs in self.elements if found == name]


def cells(html: str, caption: str) -> list[list[str]]:
    """The rows of a table below its head, as markup."""
    found = re.search(rf"<caption[^>]*>{re.escape(str(escape(caption)))}</caption>(.*?)</table>", html, flags=re.DOTALL)
    assert found, caption
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", found[1].split("</thead>")[1], flags=re.DOTALL)
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, flags=re.DOTALL) for row in rows]


def plain(html: str) -> str:
    """The page with its lines joined, as a browser joins them."""
    return re.sub(r"\s+", " ", html)


def told(cell: str) -> str:
    """The words of a cell, without its markup, with an ASCII minus."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", cell)).replace("−", "-").strip()
