"""One phase at the hub: ask those whose part is missing, and keep what can be believed."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from fdtr.errors import FdtrError, OtherKey, UnknownSender, Unsigned, UnwritableFile, WrongSignature
from fdtr.exchange.folder.board import Board
from fdtr.exchange.folder.durable import post
from fdtr.exchange.folder.parts import CONFIRMED, KEYS, MASKED, OPENED
from fdtr.exchange.remote.believing import require_sound
from fdtr.exchange.remote.jobs import Reason
from fdtr.exchange.remote.parcels import (
    Answer,
    Outcome,
    Phase,
    Posting,
    Request,
    carried_from,
    carried_to,
    require_bounded,
)
from fdtr.signing import HUB


class Lost(StrEnum):
    """No answer of a site, as the engine saw it."""

    NOT_CONNECTED = "not connected"
    NO_ANSWER = "no answer"
    UNREADABLE = "unreadable answer"


Ask = Callable[[Phase, Mapping[str, Request]], Mapping[str, Answer | Lost]]
"""The engine: sends each site its request, waits as long as the job says, and gives what came back."""


@dataclass(frozen=True)
class Gathered:
    """Who did its part in a phase, and why the others did not."""

    done: tuple[str, ...]
    absent: dict[str, Reason]


def gather(board: Board, phase: Phase, sites: Iterable[str], listed: Iterable[str], ask: Ask) -> Gathered:
    """Ask `sites` for their part, and post what they send into the hub's folder.

    Who is not `listed` is not asked.
    """
    wanted, known = list(sites), set(listed)
    contents = _contents(board, phase)
    requests = {
        site: Request(
            board.study.fingerprint,
            board.number,
            phase,
            tuple(one for one in contents if one.sender != site),
        )
        for site in wanted
        if site in known
    }
    answers = ask(phase, requests) if requests else {}
    absent: dict[str, Reason] = {}
    for site in wanted:
        reason: Reason | None = Reason.NOT_ASKED
        if site in requests:
            reason = _taken(board, phase, site, answers.get(site, Lost.NO_ANSWER))
        if reason is not None:
            absent[site] = reason
    return Gathered(tuple(site for site in wanted if site not in absent), absent)


def _contents(board: Board, phase: Phase) -> list[Posting]:
    """What everybody needs for a phase, as far as it lies here and was verified."""
    given: dict[str, Mapping[str, object]] = {
        KEYS: board.keys,
        MASKED: board.masked,
        CONFIRMED: board.confirmed,
        OPENED: board.opened,
    }
    found = []
    for part, sender in sorted(carried_to(HUB, phase, board.study)):
        path = board.hub_path(part) if sender == HUB else board.path(part, sender)
        if sender == HUB or sender in given[part]:
            found.append(Posting(part, sender, path.read_bytes()))
    return found


def _taken(board: Board, phase: Phase, site: str, found: Answer | Lost) -> Reason | None:
    """Keep a site's part; why it is missing, where it is."""
    if isinstance(found, Lost):
        late = phase in (Phase.CONFIRMED, Phase.OPENED) and found is not Lost.UNREADABLE
        return Reason.LOST_LATE if late else Reason(found.value)
    if found.site != site:
        return Reason.OTHER_SITE
    if found.outcome is not Outcome.DONE:
        return Reason(found.outcome.value)
    wanted = carried_from(site, phase)
    try:
        require_bounded(found.postings, wanted, board.study)
        if len(found.postings) != len(wanted):
            return Reason.BAD_ANSWER
        require_sound(found.postings, board.study, board.within, board.folder)
        for one in found.postings:
            post(board.path(one.part, site), one.content)
    except UnwritableFile:
        raise  # the hub's own disk
    except (WrongSignature, Unsigned, OtherKey, UnknownSender):
        return Reason.WRONG_SIGNATURE
    except FdtrError:
        return Reason.BAD_ANSWER
    return None
