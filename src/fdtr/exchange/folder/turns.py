"""What a turn did, and what its party waits for then."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Turn:
    """One call of `next`: sentences of what was done, what is waited for (empty at the end), and what to know.

    `policy` is where a site's finished policy lies.
    """

    number: int
    done: tuple[str, ...]
    waits: str
    notes: tuple[str, ...] = ()
    policy: Path | None = None


@dataclass(frozen=True)
class Step:
    """One step of a party: what was `done`, or else what it `waits` for; neither where all is done."""

    done: str = ""
    waits: str = ""


def names(sites: Sequence[str]) -> str:
    """Sites in a sentence.

    >>> names(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join([", ".join(sites[:-1]), sites[-1]] if len(sites) > 1 else list(sites))
