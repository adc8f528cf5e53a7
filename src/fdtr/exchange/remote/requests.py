"""Requests of the hub and answers of the sites: their contents, and the checks before anything is stored.

A posting is one file of a round. Both ends first compare names, number and length with what the study allows, then read
each posting with the readers of a shared folder, which check its digest, round, sender and signature.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryFile

from fdtr.container import OpenFile
from fdtr.errors import InvalidStudy, MalformedRequest
from fdtr.exchange import folder_layout
from fdtr.exchange.folder.round_files import masked_length, read_part
from fdtr.exchange.wire import HEADER_BYTES, MEMBER_BYTES, message_size, total_size
from fdtr.signing import HUB, Round
from fdtr.study import Study

_ENVELOPE_BYTES = 2**16  # what the network library adds to a message
_LABEL_BYTES = 512  # part and sender of a posting


class Phase(StrEnum):
    """What the hub asks a site for. Each phase but the last is named after the part that the site posts."""

    SUMS = folder_layout.SUMS
    KEYS = folder_layout.KEYS
    COUNTS = folder_layout.COUNTS
    COUNTS_CONFIRMED = folder_layout.COUNTS_CONFIRMED
    COUNTS_OPENED = folder_layout.COUNTS_OPENED
    MASKED = folder_layout.MASKED
    CONFIRMED = folder_layout.CONFIRMED
    OPENED = folder_layout.OPENED
    FINISH = "finish"


class Outcome(StrEnum):
    """The status of an answer. The reason for a refusal or failure stays in the site's own log."""

    DONE = "done"
    DECLINED = "declined"
    UNKNOWN_STUDY = "unknown study"
    OTHER_ROSTER = "other roster"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True)
class Posting:
    """One file of a round: its part, its sender and its bytes."""

    part: str
    sender: str
    content: bytes


@dataclass(frozen=True)
class Request:
    """What the hub asks a site, with the postings that the site needs for it."""

    fingerprint: str
    round: int
    phase: Phase
    postings: tuple[Posting, ...] = ()

    @property
    def size(self) -> int:
        """Total bytes of the postings."""
        return sum(len(posting.content) for posting in self.postings)


@dataclass(frozen=True)
class Answer:
    """A site's status, with the postings that it made for the request."""

    site: str
    outcome: Outcome
    postings: tuple[Posting, ...] = ()


def require_hub_key(study: Study) -> None:
    """Refuse a study without a hub key: over a network sites cannot check a total against each other's open sums."""
    if HUB not in study.roster:
        raise InvalidStudy(
            f"The roster of the study {study.name} has no key of the hub, and over a network a site can rely on "
            "nothing but the hub's signature. Nothing was done. Make one with `fdtr keys new`, add it with `fdtr "
            "roster add STUDY hub KEY`, and give everybody the study file."
        )


def phases_of(study: Study) -> tuple[Phase, ...]:
    """The phases of a study's round, in order."""
    if not study.disclosure.secure_sum:
        return (Phase.SUMS, Phase.FINISH)
    counts = (Phase.COUNTS, Phase.COUNTS_CONFIRMED, Phase.COUNTS_OPENED) if study.counts_first else ()
    return (Phase.KEYS, *counts, Phase.MASKED, Phase.CONFIRMED, Phase.OPENED, Phase.FINISH)


_OF_COUNTS = folder_layout.COUNT_PHASE
_MASKED_PHASES = (folder_layout.COUNT_PHASE, folder_layout.SUM_PHASE)
_FROM_HUB = {
    Phase.COUNTS_CONFIRMED: (_OF_COUNTS.survivors,),
    Phase.CONFIRMED: (folder_layout.SURVIVORS,),
    Phase.FINISH: (_OF_COUNTS.survivors, folder_layout.SURVIVORS),
}
_FROM_SITES = {
    Phase.COUNTS: (folder_layout.KEYS, folder_layout.RECEIVES),
    Phase.COUNTS_OPENED: (_OF_COUNTS.confirmed,),
    Phase.MASKED: (folder_layout.KEYS, folder_layout.RECEIVES, _OF_COUNTS.masked, _OF_COUNTS.opened),
    Phase.OPENED: (folder_layout.CONFIRMED,),
    Phase.FINISH: (folder_layout.RECEIVES, folder_layout.MASKED, folder_layout.OPENED),
}
"""What a masked phase needs; a site that only receives gets the lists at the end."""


def allowed_to_site(site: str, phase: Phase, study: Study) -> frozenset[tuple[str, str]]:
    """Part and sender of each posting that a site may receive in a phase: never its own, never others' open sums."""
    others = [other for other in folder_layout.sites_of(study.roster) if other != site]
    masked = study.disclosure.secure_sum
    shared, listed = (_FROM_SITES.get(phase, ()), _FROM_HUB.get(phase, ())) if masked else ((), ())
    total = (folder_layout.TOTAL,) if phase is Phase.FINISH else ()
    absent = () if study.counts_first else _OF_COUNTS
    of_hub = {(part, HUB) for part in (folder_layout.BEGUN, *listed, *total) if part not in absent}
    return frozenset(of_hub | {(part, other) for part in shared for other in others if part not in absent})


def allowed_from_site(site: str, phase: Phase) -> frozenset[tuple[str, str]]:
    """Part and sender of each posting that a site may answer with: one of these, or nothing at the end."""
    if phase is Phase.FINISH:
        return frozenset()
    receives = {(folder_layout.RECEIVES, site)} if phase in (Phase.SUMS, Phase.KEYS) else set()
    return frozenset({(str(phase), site)} | receives)


def most_bytes(part: str, study: Study) -> int:
    """Largest size of a posting. The readers of each part check its exact size."""
    n_sites = len(folder_layout.sites_of(study.roster))
    named = HEADER_BYTES + MEMBER_BYTES * n_sites
    return {
        folder_layout.SUMS: message_size(study),
        folder_layout.TOTAL: total_size(study, n_sites),
        **{phase.masked: HEADER_BYTES + 8 * masked_length(phase.masked, study) for phase in _MASKED_PHASES},
        **dict.fromkeys((part for phase in _MASKED_PHASES for part in (phase.survivors, phase.opened)), named),
    }.get(part, HEADER_BYTES)


def longest_to_hub(study: Study) -> int:
    """Most bytes of one network message from a site to the hub: it carries at most one posting."""
    return max(most_bytes(phase.value, study) for phase in phases_of(study)) + _ENVELOPE_BYTES


def longest_to_site(study: Study, site: str) -> int:
    """Most bytes of one network message from the hub to a site.

    It is twice what the site's own roster needs, so that a request made for a longer roster still arrives and is
    answered with "other roster".
    """
    carried = [
        sum(most_bytes(part, study) + _LABEL_BYTES for part, _ in allowed_to_site(site, phase, study))
        for phase in phases_of(study)
    ]
    return 2 * max(carried) + _ENVELOPE_BYTES


def require_allowed(postings: Iterable[Posting], allowed: frozenset[tuple[str, str]], study: Study) -> None:
    """Refuse postings that are not in `allowed`, come twice, or are too long."""
    seen: set[tuple[str, str]] = set()
    for posting in postings:
        name = (posting.part, posting.sender)
        if name not in allowed or name in seen or len(posting.content) > most_bytes(posting.part, study):
            raise MalformedRequest(
                "A request or answer holds a posting that this phase of the round cannot have: of another sender, "
                "twice the same, or longer than the study allows. Nothing of it was written."
            )
        seen.add(name)


def verify_postings(postings: Iterable[Posting], study: Study, within: Round, place: Path) -> None:
    """Refuse a posting whose length, digest, round, part, sender or signature is wrong.

    Each posting is read from an unnamed temporary file under `place`, before it is stored under its own name.
    """
    for posting in postings:
        with TemporaryFile(dir=place) as temporary:
            temporary.write(posting.content)
            temporary.flush()
            name = Path(f"{posting.part} of {posting.sender}")
            read_part(
                OpenFile(name, temporary.fileno(), len(posting.content)), posting.part, posting.sender, study, within
            )
