"""What a site was asked, what it checked and what it sent: one line each, chained so that no line can be changed."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Verified:
    """A log whose chain holds: its number of `lines`, its `head`, and how many lines a crash tore."""

    lines: int
    head: str
    torn: int


@dataclass(frozen=True)
class Audit:
    """The log at `path`."""

    path: Path

    def append(self, event: Mapping[str, Any]) -> str:
        """Write one line, on disk before this returns; gives the new head."""
        raise NotImplementedError


def verify(path: Path) -> Verified:
    """Check a whole log; raises BrokenChain at the first line that was changed, removed or moved."""
    raise NotImplementedError
