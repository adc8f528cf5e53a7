"""What a site remembers of earlier rounds, and the rounds that it must not add to them.

Two sums over nearly the same sites give away what they do not share: where one site is in one and not in the other,
their difference is that site's message. It is so whatever the two studies are called, as long as the sites' numbers in
them are the same.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fdtr.errors import MalformedPart, OtherFormat, RoundTooAlike
from fdtr.masking.parts import FEWEST_HONEST, key, name, pairs, parse

Survivor = tuple[str, str]
"""A site as the roster had it: its name and its public key. Either may be another the next time."""


@dataclass(frozen=True)
class PastRound:
    """One round of this site: its `context`, and what it was once the site opened its masks.

    `study` is the fingerprint, `content` the digest of the numbers that the site put in, the same whatever the study is
    called. `survivors`, sorted, are None before the masks were opened.
    """

    context: bytes
    study: str = ""
    content: str = ""
    survivors: tuple[Survivor, ...] | None = None


@dataclass(frozen=True)
class History:
    """A site's rounds, of all studies. Save it before anything of a round is posted."""

    rounds: tuple[PastRound, ...] = ()

    def knows(self, context: bytes, opened: bool = False) -> bool:
        """Whether the site took part in this round, or `opened` its masks in it."""
        known = [past for past in self.rounds if past.context == context]
        return any(past.survivors is not None for past in known) if opened else bool(known)

    def begun(self, context: bytes) -> "History":
        """With a round that the site has keys for."""
        return self if self.knows(context) else History((*self.rounds, PastRound(context)))

    def opened(self, context: bytes, study: str, content: str, survivors: Mapping[str, str]) -> "History":
        """With a round whose masks the site opens; whether the sum came about does not matter.

        `survivors` has the public key of each.
        """
        others = tuple(past for past in self.rounds if past.context != context)
        return History((*others, PastRound(context, study, content, tuple(sorted(survivors.items())))))

    def opened_elsewhere(self, context: bytes) -> list[tuple[Survivor, ...]]:
        """The survivors of every other round that was opened."""
        return [past.survivors for past in self.rounds if past.survivors is not None and past.context != context]

    def opened_with(self, content: str) -> PastRound | None:
        """An opened round with these numbers of the site in it."""
        return next((past for past in self.rounds if past.survivors is not None and past.content == content), None)

    def alike(self, study: str, content: str) -> "History":
        """The rounds whose sums could be subtracted from one of this study, or with these numbers in it."""
        return History(tuple(past for past in self.rounds if past.study == study or past.content == content))

    def require_unlike(self, context: bytes, survivors: Mapping[str, str], colluding: int = 0) -> None:
        """Refuse a round of these survivors, each with its public key, that is too near to those opened before.

        Whoever has another name or another key than before may be the same site, or not. The round is refused if it is
        too near by names, by keys, or where one that shares either with another is the same.
        """
        rounds = [*self.opened_elsewhere(context), tuple(survivors.items())]
        for same in (_by_name, _by_key, _by_either(site for members in rounds for site in members)):
            *earlier, now = [[same(site) for site in members] for members in rounds]
            require_unlike(earlier, now, colluding)

    def to_json(self) -> str:
        """As text, for the site's private folder."""
        rounds = [[past.context.hex(), past.study, past.content, past.survivors] for past in self.rounds]
        return json.dumps({"secure_sums": rounds})

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The reverse; raises MalformedPart."""
        given = parse(text, "secure_sums")["secure_sums"]
        if not isinstance(given, list) or not all(isinstance(past, list) and len(past) == 4 for past in given):
            raise MalformedPart("The site's memory of earlier rounds is damaged. Restore it from a backup.")
        return cls(tuple(_past(*past) for past in given))


def _past(context: Any, study: Any, content: Any, survivors: Any) -> PastRound:
    if survivors is None:
        return PastRound(key(context))
    if isinstance(survivors, list) and any(isinstance(one, str) for one in survivors):
        raise OtherFormat("An earlier fdtr wrote the memory of secure sums, which knew sites by their keys alone.")
    return PastRound(key(context), name(study), name(content), pairs(survivors))


def _by_name(site: Survivor) -> str:
    return site[0]


def _by_key(site: Survivor) -> str:
    return site[1]


def _by_either(sites: Iterable[Survivor]) -> Callable[[Survivor], str]:
    """Tells sites apart that share neither name nor key, nor are linked by others that do."""
    groups: list[frozenset[str]] = []
    for called, public in sites:
        one = frozenset({f"name {called}", f"key {public}"})
        linked = [group for group in groups if group & one]
        groups = [*(group for group in groups if not group & one), one.union(*linked)]
    first = {mark: min(group) for group in groups for mark in group}
    return lambda site: first[f"name {site[0]}"]


def require_unlike(earlier: Iterable[Collection[str]], survivors: Collection[str], colluding: int = 0) -> None:
    """Refuse a round whose sum, with those of `earlier` rounds, would stand for too few sites.

    The same survivors again are harmless, and so is a round that differs in at least three sites, beside those that
    may collude. With several earlier rounds every combination of their sums counts: whether one stands for fewer.

    >>> require_unlike([("a", "b", "c", "d")], ("d", "c", "b", "a"))
    >>> require_unlike([("a", "b", "c", "d")], ("a", "b", "c"))
    Traceback (most recent call last):
    fdtr.errors.RoundTooAlike: ...
    """
    fewest = FEWEST_HONEST + colluding
    sets = list(dict.fromkeys(frozenset(sites) for sites in (*earlier, survivors)))
    if smallest_sum(sets, below=fewest):
        raise RoundTooAlike(
            f"With the sums opened before, this one would give away a sum over fewer than {fewest} sites. Nothing was "
            f"signed. Join with the same sites as before, under the same names and keys, or with at least {fewest} "
            "more or fewer of them."
        )


def smallest_sum(sums: Sequence[Collection[str]], below: int) -> tuple[str, ...]:
    """Sites, fewer than `below`, that some combination of the sums stands for alone; empty where there are none.

    A combination without the other sites exists where leaving these out lowers the rank of who is in which sum. Sites
    that are in the same sums come only together.

    >>> smallest_sum([("a", "b", "c", "d"), ("a", "b", "c")], below=3)
    ('d',)
    """
    alike: dict[tuple[bool, ...], list[str]] = {}
    for site in sorted({site for members in sums for site in members}):
        alike.setdefault(tuple(site in members for members in sums), []).append(site)
    patterns = np.array(list(alike), dtype=np.float64).reshape(len(alike), len(sums))
    groups = list(alike.values())
    rank = np.linalg.matrix_rank(patterns) if groups else 0
    few = [i for i, group in enumerate(groups) if len(group) < below]
    for size in range(1, min(below, len(few) + 1)):
        for chosen in combinations(few, size):
            together = [site for i in chosen for site in groups[i]]
            if len(together) < below and _rank_without(patterns, chosen) < rank:
                return tuple(sorted(together))
    return ()


def _rank_without(patterns: NDArray[np.float64], chosen: tuple[int, ...]) -> int:
    left = np.delete(patterns, chosen, axis=0)
    return int(np.linalg.matrix_rank(left)) if len(left) else 0
