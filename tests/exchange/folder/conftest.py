"""What the tests of crashes and of failing disks share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from numpy.random import default_rng

from fdtr.exchange.folder import site_session, site_steps
from fdtr.learners.private_fit import Noise
from fdtr.masking import start
from fdtr.site import fitting
from secure_sum import entropy

_MEMORY = Path("/dev/shm")


@pytest.fixture
def repeatable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are read once, and nobody waits for the disk, which survives a process; the same keys are drawn again."""
    seen: dict[str, Any] = {}
    read = site_session.read_trajectories

    def once(path: Path, *arguments: Any) -> Any:
        if str(path) not in seen:
            seen[str(path)] = read(path, *arguments)
        return seen[str(path)]

    monkeypatch.setattr(site_session, "read_trajectories", once)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(
        fitting, "noise_of", lambda _: Noise(2.0, lambda sums: sums + 2.0 * default_rng(0).normal(size=len(sums)))
    )
    monkeypatch.setattr(site_steps, "token_bytes", lambda size: bytes([1]) * size)
    monkeypatch.setattr(
        site_steps, "start", lambda agreed, site, history: start(agreed, site, history, entropy(site, agreed.context))
    )


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A place for thousands of small files: in memory where there is such a file system."""
    if not os.access(_MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=_MEMORY) as place:
        yield Path(place)
