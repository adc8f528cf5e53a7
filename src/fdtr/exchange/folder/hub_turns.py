"""The hub's turn: open a folder, list the survivors, add up, begin another round."""

import os
import shlex
from collections.abc import Collection
from pathlib import Path

from fdtr.errors import NoStudyFolder, OtherStudy, OtherSurvivors, RoundClosed, UnknownSender
from fdtr.exchange.folder.board import (
    MOST_ROUNDS,
    Board,
    begun_path,
    cautions,
    last_round,
    masked_round,
    read_board,
    read_study,
    require_keys,
)
from fdtr.exchange.folder.durable import locked, post, sweep
from fdtr.exchange.folder.home import hub_lock
from fdtr.exchange.folder.layout import STUDY, TOTAL
from fdtr.exchange.folder.parts import BEGUN, SURVIVORS, seal_begun, seal_part, sites_of
from fdtr.exchange.folder.turns import Step, Turn, names
from fdtr.exchange.wire import encode_total
from fdtr.hub import doubtful_messages
from fdtr.masking import list_survivors
from fdtr.signing import HUB, Key, check_site_name, numbered_round, require_own
from fdtr.study import Study, read_study_bytes

_WHO = "the hub"


def open_folder(folder: Path, study_file: Path, key: Key | None) -> Turn:
    """Make a study's folder with its first round. The same again does no harm."""
    content = read_study_bytes(study_file)
    study = Study.parse(content, study_file)
    study.require_shared()
    _require_playable(study, key)
    within = numbered_round(study.fingerprint, study.roster, 1)
    with locked(hub_lock(study), _WHO):
        if os.path.lexists(folder / STUDY):
            content = read_study_bytes(folder / STUDY, folder)  # its roster may have changed since
            there = Study.parse(content, folder / STUDY)
            if there.fingerprint != study.fingerprint:
                raise OtherStudy(f"{folder} holds another study already. Nothing was written. Name another folder.")
            if there.roster != study.roster:
                raise RoundClosed(
                    f"{folder} holds this study with another roster. Nothing was written. Change the roster there with "
                    "`fdtr roster`, then begin a new round with `fdtr hub new-round`."
                )
        post(folder / STUDY, content)
        made = post(begun_path(folder, 1), seal_begun(within, key))
    done = (
        f"Opened {folder} with round 1. If it is shared, give every site access to it; over the network keep it to "
        f"yourself (chmod 700 {shlex.quote(str(folder))})."
    )
    sites = names(sites_of(study.roster)) or "the sites"
    waits = f"Messages of {sites}: `fdtr site join`, then `fdtr site next`; over the network, `fdtr hub serve`."
    return Turn(1, (done,) if made else (), waits, (*_unsigned(study), *cautions(study)))


def new_round(folder: Path, key: Key | None) -> Turn:
    """Begin another round under the study and roster that lie in the folder; what was posted before counts no more."""
    study = read_study(folder)
    _require_playable(study, key)
    with locked(hub_lock(study), _WHO):
        number = last_round(folder) + 1
        if number > MOST_ROUNDS:
            raise RoundClosed(
                f"{folder} has had {MOST_ROUNDS} rounds, and there are no more numbers. Nothing was written. Open "
                "another folder with `fdtr hub open`."
            )
        empty = _untouched(folder, study)
        if empty:
            sweep(begun_path(folder, empty))  # whoever asks again may have died the first time
            return Turn(empty, (), f"All sites: round {empty} is open, and nobody posted anything in it yet.")
        within = numbered_round(study.fingerprint, study.roster, number)
        post(begun_path(folder, number), seal_begun(within, key))
    done = f"Began round {number}. Sites give round {number - 1} up, with their masks, when they next look."
    waits = (
        "All sites: `fdtr site next`; where the roster changed, `fdtr site join` first. Over the network: `fdtr hub "
        "start-round`."
    )
    return Turn(number, (done,), waits)


def take_hub_turn(folder: Path, key: Key | None, close: bool = False, without: Collection[str] = ()) -> Turn:
    """Do all that the hub can do now. `close` goes on with those who are there; `without` names who may be missing."""
    study = read_study(folder)
    require_own(key, HUB, study.roster)
    unknown = sorted(set(without) - set(sites_of(study.roster))) if study.roster else []
    if unknown:
        raise UnknownSender(f"The roster has no site {unknown[0]!r}; it has {names(sites_of(study.roster))}.")
    with locked(hub_lock(study), _WHO):
        done: list[str] = []
        notes: list[str] = []
        board = read_board(folder, study)
        for part in (BEGUN, SURVIVORS, TOTAL):
            sweep(board.hub_path(part))
        advance = _advance_masked if board.is_masked else _advance_open
        step = advance(board, key, close, without, notes)
        while step.done:
            done.append(step.done)
            board = read_board(folder, study)
            step = advance(board, key, close, without, notes)
        return Turn(board.number, tuple(done), step.waits, (*board.faults, *notes))


def _advance_open(board: Board, key: Key | None, close: bool, without: Collection[str], notes: list[str]) -> Step:
    if board.total is not None:
        board.checked_total()
        return Step()
    missing = [site for site in board.lacking(board.sums) if site not in without]
    if (missing or not board.study.roster) and not close:
        so_far = f" Here: {names(list(board.sums))}." if board.sums else ""
        if not board.study.roster:
            return Step(waits=f"Messages.{so_far} The study has no roster: say with --close when all are here.")
        return Step(waits=f"Messages of {names(missing)}.{so_far} Go on without them with --close.")
    if not board.sums:
        return Step(waits="Messages: none is there yet.")
    total = board.add_up(tuple(board.sums))
    post(board.hub_path(TOTAL), encode_total(total, board.within, key))
    notes += [doubt.sentence for doubt in doubtful_messages(list(board.sums.values()))]
    return Step(f"Added the messages of {names(total.sites)} and posted the total.")


def _advance_masked(board: Board, key: Key | None, close: bool, without: Collection[str], _notes: list[str]) -> Step:
    if board.total is not None:
        board.checked_total()
        return Step()
    survivors = board.survivors
    if survivors is None:
        return _list_survivors(board, key, close, without)
    if board.dissenters:
        raise OtherSurvivors(
            f"{names(board.dissenters)} signed another list of survivors than the one that lies here, so no site opens "
            "its masks. Somebody changed the list. Begin a new round with `fdtr hub new-round`."
        )
    lost = "If one is lost, begin a new round with `fdtr hub new-round`."
    missing = board.lacking(board.confirmed, survivors.sites)
    if missing:
        return Step(waits=f"Signatures under the list of survivors, of {names(missing)}. {lost}")
    missing = board.lacking(board.opened, survivors.sites)
    if missing:
        return Step(waits=f"Openings of {names(missing)}. {lost}")
    total = board.add_up(survivors.sites)
    post(board.hub_path(TOTAL), encode_total(total, board.within, key))
    return Step(f"Took the masks off the sum of {names(survivors.sites)} and posted the total.")


def _list_survivors(board: Board, key: Key | None, close: bool, without: Collection[str]) -> Step:
    silent = board.lacking(board.keys)
    if silent:
        return Step(
            waits=f"Keys of {names(silent)}. Nobody can mask before all are there. If one does not come, take it out "
            f"with `fdtr roster remove {board.folder / STUDY} SITE` and begin a new round with `fdtr hub new-round`."
        )
    missing = [site for site in board.lacking(board.masked) if site not in without]
    if missing and not close:
        return Step(waits=f"Masked messages of {names(missing)}. Go on without them with --close.")
    listed = list_survivors(board.agreed, board.masked.values(), board.verify)
    post(board.hub_path(SURVIVORS), seal_part(SURVIVORS, HUB, listed, board.within, key))
    dropped = listed.dropped(board.agreed)
    lacking = f", without {names(dropped)}" if dropped else ""
    return Step(f"Posted the list of survivors: {names(listed.sites)}{lacking}.")


def _require_playable(study: Study, key: Key | None) -> None:
    """Refuse a study whose rounds could not be played."""
    require_keys(study)
    require_own(key, HUB, study.roster)
    for site in sites_of(study.roster):
        check_site_name(site)
    if study.disclosure.secure_sum:
        masked_round(study, numbered_round(study.fingerprint, study.roster, 1))


def _untouched(folder: Path, study: Study) -> int:
    """The newest round, where it is of this roster and nobody posted in it: asked twice, one is begun."""
    try:
        board = read_board(folder, study)
    except NoStudyFolder:
        return 0
    return 0 if any((board.sums, board.keys, board.masked, board.survivors, board.total)) else board.number


def _unsigned(study: Study) -> tuple[str, ...]:
    if not study.roster:
        return ("unsigned: the study has no [roster], so nobody can tell who made a file. See `fdtr keys new`.",)
    if HUB not in study.roster:
        return ("the roster has no key of the hub: whoever writes into the folder can begin and close rounds for it.",)
    return ()
