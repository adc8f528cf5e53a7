"""Who is where in a study's folder, for anybody who looks."""

from collections.abc import Mapping
from dataclasses import dataclass

from fdtr.exchange.folder.board import Board
from fdtr.exchange.folder.layout import SUMS
from fdtr.exchange.folder.parts import CONFIRMED, KEYS, MASKED, OPENED
from fdtr.exchange.folder.turns import names


@dataclass(frozen=True)
class Progress:
    """The newest round: each site's parts that are there and right, what comes next, and what was ignored."""

    study: str
    fingerprint: str
    number: int
    masked: bool
    signed: bool
    sites: dict[str, dict[str, bool]]
    survivors: tuple[str, ...] | None
    total: tuple[str, ...] | None
    next: str
    faults: tuple[str, ...]


def progress_of(board: Board) -> Progress:
    """What a board shows, and whose turn it is."""
    posted: dict[str, Mapping[str, object]] = {SUMS: board.sums}
    if board.is_masked:
        posted = {KEYS: board.keys, MASKED: board.masked, CONFIRMED: board.confirmed, OPENED: board.opened}
    survivors = None if board.survivors is None else board.survivors.sites
    return Progress(
        study=board.study.name,
        fingerprint=board.study.fingerprint,
        number=board.number,
        masked=board.is_masked,
        signed=bool(board.study.roster),
        sites={site: {part: site in given for part, given in posted.items()} for site in board.sites},
        survivors=survivors,
        total=None if board.total is None else board.total.sites,
        next=_next(board),
        faults=board.faults,
    )


def _next(board: Board) -> str:
    if board.total is not None:
        return f"The total is there: {names(board.total.sites)} finish their policies with `fdtr site next`."
    if not board.is_masked:
        missing = board.lacking(board.sums)
        return f"Messages of {names(missing)}: `fdtr site next`." if missing else "The hub adds up: `fdtr hub next`."
    if board.survivors is None:
        before: list[tuple[Mapping[str, object], str]] = [(board.keys, "Keys"), (board.masked, "Masked messages")]
        for given, what in before:
            missing = board.lacking(given)
            if missing:
                return f"{what} of {names(missing)}: `fdtr site next`."
        return "The hub lists the survivors: `fdtr hub next`."
    if board.dissenters:
        return f"{names(board.dissenters)} signed another list of survivors. Begin a new round: `fdtr hub new-round`."
    after: list[tuple[Mapping[str, object], str]] = [
        (board.confirmed, "Signatures under the list of survivors"),
        (board.opened, "Openings"),
    ]
    for given, what in after:
        missing = board.lacking(given, board.survivors.sites)
        if missing:
            return f"{what} of {names(missing)}: `fdtr site next`."
    return "The hub adds up: `fdtr hub next`."
