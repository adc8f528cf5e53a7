"""One phase at the hub: ask the sites whose part is missing, verify what they send, and store it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from fdtr.errors import BadSignature, FdtrError, UnwritableFile
from fdtr.exchange.atomic_files import post
from fdtr.exchange.folder.round_snapshot import RoundSnapshot
from fdtr.exchange.folder_layout import CONFIRMED, KEYS, MASKED, OPENED
from fdtr.exchange.remote.jobs import Reason
from fdtr.exchange.remote.requests import (
    Answer,
    Outcome,
    Phase,
    Posting,
    Request,
    allowed_from_site,
    allowed_to_site,
    require_allowed,
    verify_postings,
)
from fdtr.signing import HUB


class DeliveryFailure(StrEnum):
    """Why the network brought no answer of a site."""

    NOT_CONNECTED = "not connected"
    NO_ANSWER = "no answer"
    UNREADABLE = "unreadable answer"


Ask = Callable[[Phase, Mapping[str, Request]], Mapping[str, Answer | DeliveryFailure]]
"""The network: sends each site its request, waits as long as the job allows, and returns what came back."""


@dataclass(frozen=True)
class Collected:
    """The sites that did their part in a phase, and the reason for each one that did not."""

    done: tuple[str, ...]
    absent: dict[str, Reason]


def collect(board: RoundSnapshot, phase: Phase, sites: Iterable[str], listed: Iterable[str], ask: Ask) -> Collected:
    """Ask `sites` for their part, and store it in the hub's folder. A site that is not `listed` is not asked."""
    wanted, connectable = list(sites), set(listed)
    postings = _postings_for(board, phase)
    requests = {
        site: Request(
            board.study.fingerprint,
            board.number,
            phase,
            tuple(posting for posting in postings if posting.sender != site),
        )
        for site in wanted
        if site in connectable
    }
    answers = ask(phase, requests) if requests else {}
    absent: dict[str, Reason] = {}
    for site in wanted:
        reason: Reason | None = Reason.NOT_ASKED
        if site in requests:
            reason = _store(board, phase, site, answers.get(site, DeliveryFailure.NO_ANSWER))
        if reason is not None:
            absent[site] = reason
    return Collected(tuple(site for site in wanted if site not in absent), absent)


def _postings_for(board: RoundSnapshot, phase: Phase) -> list[Posting]:
    """The verified postings in the hub's folder that sites need for a phase."""
    verified: dict[str, Mapping[str, object]] = {
        KEYS: board.keys,
        MASKED: board.masked,
        CONFIRMED: board.confirmed,
        OPENED: board.opened,
    }
    postings = []
    for part, sender in sorted(allowed_to_site(HUB, phase, board.study)):
        path = board.hub_path(part) if sender == HUB else board.path(part, sender)
        if sender == HUB or sender in verified[part]:
            postings.append(Posting(part, sender, path.read_bytes()))
    return postings


def _store(board: RoundSnapshot, phase: Phase, site: str, answer: Answer | DeliveryFailure) -> Reason | None:
    """Store a site's part; otherwise the reason why it is missing."""
    if isinstance(answer, DeliveryFailure):
        late = phase in (Phase.CONFIRMED, Phase.OPENED) and answer is not DeliveryFailure.UNREADABLE
        return Reason.LOST_LATE if late else Reason(answer.value)
    if answer.site != site:
        return Reason.OTHER_SITE
    if answer.outcome is not Outcome.DONE:
        return Reason(answer.outcome.value)
    allowed = allowed_from_site(site, phase)
    try:
        require_allowed(answer.postings, allowed, board.study)
        if len(answer.postings) != len(allowed):
            return Reason.BAD_ANSWER
        verify_postings(answer.postings, board.study, board.within, board.folder)
        for posting in answer.postings:
            post(board.path(posting.part, site), posting.content)
    except UnwritableFile:
        raise  # the hub's own disk
    except BadSignature:
        return Reason.WRONG_SIGNATURE
    except FdtrError:
        return Reason.BAD_ANSWER
    return None
