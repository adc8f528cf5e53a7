"""Secure sums that this site took part in, and the guard that the same numbers leave one way: openly or in such a sum.

Numbers that are told openly can be subtracted from a secure sum; where all other sites do so, the last one is shown. An
open message is in the ledger before it is compared with the history of secure sums. A secure sum is compared with the
ledger, and remembered, under the lock of that history. So of two processes at once, one sees the other. One file holds
the history of all studies, since a renamed study has the same sums.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from fdtr.errors import DifferencingRisk, LostState, MalformedPart, OtherFormat
from fdtr.exchange.atomic_files import locked, save
from fdtr.exchange.site_state import state_folder
from fdtr.exchange.site_state.joined_folders import JoinedFolder, RoundState, all_joined, all_masks
from fdtr.exchange.site_state.ledger import site_ledger
from fdtr.masking import History


def require_never_summed(content: str, *, recorded: bool = False) -> None:
    """Refuse to tell numbers openly, by their digest, that are in a secure sum which was opened.

    Call it before asking a person, and again with `recorded=True`, which first waits for any secure sum that is being
    opened.
    """
    with history_locked() if recorded else nullcontext(read_history()) as history:
        past = history.opened_with(content)
    if past is not None:
        raise DifferencingRisk(
            f"These very sums are part of a secure sum that was opened, of the study {past.study[:12]}…. Told openly, "
            "they could be taken from it, and show a site that stayed out. Nothing was released. Share them in secure "
            "sums alone, or wait until clearly more patients have come."
        )


def require_never_told(content: str) -> None:
    """Refuse to put numbers into a secure sum, by their digest, that left openly: the hub could subtract them.

    A refusal and not a warning, because the other sites pay: they would be hidden among one site less than the secure
    sum promises, and could not know.
    """
    masked = {joined.study.fingerprint for joined in all_joined() if joined.study.disclosure.secure_sum}
    for release in site_ledger().recorded():
        if release.content == content and not release.withdrawn and release.study not in masked:
            raise DifferencingRisk(
                f"These very sums left openly before, on {release.time[:10]} for the study {release.study[:12]}…. A "
                "secure sum would not hide them, and the others' less than it promises. Nothing was posted. Ask the "
                "hub for a roster without this site; if nobody had that message, strike it: `fdtr site withdraw "
                f"{release.message[:12]}`."
            )


def free_messages(joined: JoinedFolder, present: RoundState) -> None:
    """Strike messages of rounds that were given up: other counts make another message of the same patients.

    They were masked, and their masks were destroyed unopened, so that nobody can ever read them. A message with numbers
    that are in an opened secure sum stays.
    """
    history, releases = read_history(), site_ledger()
    for sent in joined.free_messages(present):
        if history.opened_with(sent.content) is None and releases.stands(sent.message):
            releases.withdraw(sent.message)


def read_history() -> History:
    """Every secure sum that was begun or opened here, in any study.

    Refuses a history that lacks a round of which there are masks: the patients of a forgotten sum are not protected.
    """
    _refuse_older()
    rounds = all_masks()  # read first: another process saves the history before the masks, so it holds all of these
    history = _read(_file())
    for folder, masks in rounds:
        if masks.masked_digest and not history.knows(masks.round.context, masks.opened):
            raise LostState(
                f"{_file()} no longer holds a secure sum in which this site took part; {folder} is left of it. Nothing "
                f"was posted. {_restore()}"
            )
    return history


@contextmanager
def history_locked() -> Iterator[History]:
    """The history, while no other process may change it: two studies may be at work at once."""
    with locked(_file().with_suffix(".lock"), "a secure sum of this site"):
        yield read_history()


def save_history(history: History) -> None:
    """Save the history, before anything that follows from it is posted."""
    save(_file(), history.to_json().encode())


def _file() -> Path:
    return state_folder() / "secure-sums.json"


def _studies() -> Path:
    return state_folder() / "studies"


def _read(path: Path) -> History:
    try:
        return History.from_json(path.read_bytes()) if path.exists() else History()
    except MalformedPart:
        raise MalformedPart(f"{path} is damaged. Nothing was posted. {_restore()}") from None
    except OtherFormat as error:
        raise OtherFormat(f"{path}: {error} Nothing was posted. {_begin_anew()}") from None


def _restore() -> str:
    return f"Restore its newest copy. Where there is none: {_begin_anew()}"


def _begin_anew() -> str:
    """What to do where nobody can tell any more which sums were opened."""
    return (
        "Let no more sums of patients leave who were in a secure sum before. For other patients, move "
        f"{_file().name} and {_studies()} away, and join again."
    )


def _refuse_older() -> None:
    """Refuse the histories of single studies, which lack the sites' keys and the digests of the numbers."""
    for path in sorted(_studies().glob("*/history.json")):
        raise OtherFormat(
            f"{path} remembers secure sums as an earlier fdtr did, by the names of their sites, and cannot be compared "
            f"with. Nothing was posted. {_begin_anew()}"
        )
