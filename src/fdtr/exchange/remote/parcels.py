"""What travels between hub and sites: postings of a round, carried to and fro, and one word on how it went.

Both ends check names, number and length against the study before they write a byte; whether a posting can be believed
is then for the same readers to say that read a shared folder.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from fdtr.errors import MalformedParcel
from fdtr.exchange.folder import layout, parts
from fdtr.exchange.folder.board import scale_of
from fdtr.exchange.wire import HEADER_BYTES, MEMBER_BYTES, message_size, total_size
from fdtr.signing import HUB
from fdtr.study import Study


class Phase(StrEnum):
    """What the hub asks a site for; all but the last are named for the part that the site then posts."""

    SUMS = layout.SUMS
    KEYS = parts.KEYS
    MASKED = parts.MASKED
    CONFIRMED = parts.CONFIRMED
    OPENED = parts.OPENED
    FINISH = "finish"


class Outcome(StrEnum):
    """The only words with which a site answers. Why it declined, and what failed, stays in its own log."""

    DONE = "done"
    DECLINED = "declined"
    UNKNOWN_STUDY = "unknown study"
    OTHER_ROSTER = "other roster"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True)
class Posting:
    """One file of a round: which part, whose, and its bytes."""

    part: str
    sender: str
    content: bytes


@dataclass(frozen=True)
class Request:
    """What the hub asks of a site, with the postings that it needs for it."""

    fingerprint: str
    round: int
    phase: Phase
    postings: tuple[Posting, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of its postings."""
        return sum(len(one.content) for one in self.postings)


@dataclass(frozen=True)
class Answer:
    """What a site says to that, with the postings that it made."""

    site: str
    outcome: Outcome
    postings: tuple[Posting, ...] = ()


def phases_of(study: Study) -> tuple[Phase, ...]:
    """What a study's hub asks for, in order."""
    if not study.disclosure.secure_sum:
        return (Phase.SUMS, Phase.FINISH)
    return (Phase.KEYS, Phase.MASKED, Phase.CONFIRMED, Phase.OPENED, Phase.FINISH)


_FROM_HUB = {Phase.CONFIRMED: (parts.SURVIVORS,), Phase.FINISH: (layout.TOTAL,)}
_FROM_SITES = {
    Phase.MASKED: (parts.KEYS,),
    Phase.OPENED: (parts.CONFIRMED,),
    Phase.FINISH: (parts.MASKED, parts.OPENED),
}


def carried_to(site: str, phase: Phase, study: Study) -> frozenset[tuple[str, str]]:
    """Part and sender of every posting that a site may be sent in a phase: never its own, never others' open sums."""
    others = [other for other in parts.sites_of(study.roster) if other != site]
    shared = _FROM_SITES.get(phase, ()) if study.disclosure.secure_sum else ()
    of_hub = {(part, HUB) for part in (parts.BEGUN, *_FROM_HUB.get(phase, ()))}
    return frozenset(of_hub | {(part, other) for part in shared for other in others})


def carried_from(site: str, phase: Phase) -> frozenset[tuple[str, str]]:
    """The same for what a site may answer with."""
    return frozenset() if phase is Phase.FINISH else frozenset({(str(phase), site)})


def largest(part: str, study: Study) -> int:
    """Bytes that a posting has at most; its readers know how many it must have."""
    n_sites = len(parts.sites_of(study.roster))
    named = HEADER_BYTES + MEMBER_BYTES * n_sites
    return {
        layout.SUMS: message_size(study),
        layout.TOTAL: total_size(study, n_sites),
        parts.MASKED: HEADER_BYTES + 8 * scale_of(study).length,
        parts.SURVIVORS: named,
        parts.OPENED: named,
    }.get(part, HEADER_BYTES)


def require_bounded(postings: Iterable[Posting], allowed: frozenset[tuple[str, str]], study: Study) -> None:
    """Refuse postings that this phase cannot have: strangers', twice the same, or too long."""
    seen: set[tuple[str, str]] = set()
    for one in postings:
        name = (one.part, one.sender)
        if name not in allowed or name in seen or len(one.content) > largest(one.part, study):
            raise MalformedParcel(
                "A parcel holds a posting that this part of the round cannot have: of somebody else, twice the same, "
                "or longer than the study allows. Nothing of it was written."
            )
        seen.add(name)
