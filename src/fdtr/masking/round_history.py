"""A site's record of earlier secure sums, and the check that a new one does not reveal a single site.

The difference of two sums over nearly the same sites reveals the sites in which they differ: if one site is in only one
of them, the difference is its message. This holds whatever the two studies are called, as long as the sites' numbers
are the same in both.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fdtr.errors import DifferencingRisk, MalformedPart, OtherFormat
from fdtr.masking.protocol_messages import FEWEST_HONEST, JsonPart, KeyBytes, Pairs

Survivor = tuple[str, str]
"""A site as the roster had it: its name and its public key. Either may change from round to round."""


@dataclass(frozen=True)
class PastRound:
    """One earlier round of this site.

    `study` is the fingerprint. `content` is the digest of the site's numbers, which does not depend on the study's
    name. `survivors` is sorted, and None if the site did not open its masks.
    """

    context: bytes
    study: str = ""
    content: str = ""
    survivors: tuple[Survivor, ...] | None = None


@dataclass(frozen=True)
class History:
    """A site's rounds, of all studies. Save it before posting anything of a round."""

    rounds: tuple[PastRound, ...] = ()

    def knows(self, context: bytes, opened: bool = False) -> bool:
        """Whether the site took part in this round; with `opened`, whether it opened its masks in it."""
        known = [past for past in self.rounds if past.context == context]
        return any(past.survivors is not None for past in known) if opened else bool(known)

    def begun(self, context: bytes) -> "History":
        """History with a round that the site made keys for."""
        return self if self.knows(context) else History((*self.rounds, PastRound(context)))

    def opened(self, context: bytes, study: str, content: str, survivors: Mapping[str, str]) -> "History":
        """History with a round whose masks the site opens, whether or not the total is ever computed.

        `survivors` maps each survivor to its public key.
        """
        others = tuple(past for past in self.rounds if past.context != context)
        return History((*others, PastRound(context, study, content, tuple(sorted(survivors.items())))))

    def opened_elsewhere(self, context: bytes) -> list[tuple[Survivor, ...]]:
        """The survivors of every other round that was opened."""
        return [past.survivors for past in self.rounds if past.survivors is not None and past.context != context]

    def opened_with(self, content: str) -> PastRound | None:
        """An opened round to which the site contributed these numbers, by their digest; None if there is none."""
        return next((past for past in self.rounds if past.survivors is not None and past.content == content), None)

    def alike(self, study: str, content: str) -> "History":
        """The rounds of this study or with these numbers: their sums could be subtracted from a new one."""
        return History(tuple(past for past in self.rounds if past.study == study or past.content == content))

    def require_unlike(self, context: bytes, survivors: Mapping[str, str], colluding: int = 0) -> None:
        """Refuse a round whose survivors are too similar to those of rounds opened before.

        A site with another name or another key than before may or may not be the same site. So the round is refused
        if it is too similar when sites are identified by name, by key, or by either.
        """
        rounds = [*self.opened_elsewhere(context), tuple(survivors.items())]
        for same in (_by_name, _by_key, _by_either(site for members in rounds for site in members)):
            *earlier, now = [[same(site) for site in members] for members in rounds]
            require_unlike(earlier, now, colluding)

    def to_json(self) -> str:
        """As JSON text, for the site's private folder."""
        return _Stored(
            tuple((past.context, past.study, past.content, past.survivors) for past in self.rounds)
        ).to_json()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The history from its JSON text; raises MalformedPart."""
        return cls(tuple(_past(*past) for past in _Stored.from_json(text).secure_sums))


@dataclass(frozen=True)
class _Stored(JsonPart):
    """The rounds of a history as its file has them: context, study, content, survivors.

    An earlier fdtr stored the survivors' keys without their names.
    """

    secure_sums: tuple[tuple[KeyBytes, str, str, Pairs | tuple[str, ...] | None], ...]


def _past(context: bytes, study: str, content: str, survivors: Pairs | tuple[str, ...] | None) -> PastRound:
    if survivors is None:
        return PastRound(context)
    named = tuple(survivor for survivor in survivors if not isinstance(survivor, str))
    if len(named) < len(survivors):
        raise OtherFormat("An earlier fdtr wrote the memory of secure sums, which knew sites by their keys alone.")
    if not study or not content:
        raise MalformedPart("The site's memory of earlier rounds is damaged. Restore it from a backup.")
    return PastRound(context, study, content, named)


def _by_name(site: Survivor) -> str:
    return site[0]


def _by_key(site: Survivor) -> str:
    return site[1]


def _by_either(sites: Iterable[Survivor]) -> Callable[[Survivor], str]:
    """A function that gives the same label to sites that share a name or a key, directly or through others."""
    groups: list[frozenset[str]] = []
    for called, public in sites:
        marks = frozenset({f"name {called}", f"key {public}"})
        linked = [group for group in groups if group & marks]
        groups = [*(group for group in groups if not group & marks), marks.union(*linked)]
    first = {mark: min(group) for group in groups for mark in group}
    return lambda site: first[f"name {site[0]}"]


def require_unlike(earlier: Iterable[Collection[str]], survivors: Collection[str], colluding: int = 0) -> None:
    """Refuse a round whose sum, combined with those of `earlier` rounds, would reveal a sum over too few sites.

    The same survivors again are harmless, and so is a round that differs in at least three sites more than may collude.
    Every combination of the earlier sums is considered.

    >>> require_unlike([("a", "b", "c", "d")], ("d", "c", "b", "a"))
    >>> require_unlike([("a", "b", "c", "d")], ("a", "b", "c"))
    Traceback (most recent call last):
    fdtr.errors.DifferencingRisk: ...
    """
    fewest = FEWEST_HONEST + colluding
    sets = list(dict.fromkeys(frozenset(sites) for sites in (*earlier, survivors)))
    if smallest_sum(sets, below=fewest):
        raise DifferencingRisk(
            f"With the sums opened before, this one would give away a sum over fewer than {fewest} sites. Nothing was "
            f"signed. Join with the same sites as before, under the same names and keys, or with at least {fewest} "
            "more or fewer of them."
        )


def smallest_sum(sums: Sequence[Collection[str]], below: int) -> tuple[str, ...]:
    """Fewer than `below` sites whose sum is a combination of the given sums; empty if there are none.

    Such a combination exists if leaving these sites out lowers the rank of the matrix of who is in which sum. Sites
    that are in the same sums cannot be separated.

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
