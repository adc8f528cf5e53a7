"""What a site remembers of its secure sums: one file for all studies, since a renamed one has the same sums."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fdtr.errors import Forgotten, MalformedPart, OtherFormat
from fdtr.exchange.folder.durable import locked, save
from fdtr.exchange.folder.home import all_states
from fdtr.exchange.kept import state_folder
from fdtr.masking import History

_NAME = "secure-sums"


def read_history() -> History:
    """Every round of a secure sum that was begun or opened here, in whatever study.

    Refuses a memory that lacks a round of which masks were made: whoever forgets a sum adds to it.
    """
    _refuse_older()
    states = all_states()  # before the memory, where a round is saved first: a state seen here is in what is read then
    history = _read(_file())
    for place, state in states:
        if state.masked_digest and not history.knows(state.round.context, state.opened):
            raise Forgotten(
                f"{_file()} no longer holds a secure sum in which this site took part; {place} is left of it. Nothing "
                f"was posted. {_restore()}"
            )
    return history


@contextmanager
def history_locked() -> Iterator[History]:
    """The same, while nobody else may add to it: two studies may be at work at once."""
    with locked(_file().with_suffix(".lock"), "a secure sum of this site"):
        yield read_history()


def save_history(history: History) -> None:
    """Before anything that follows from it is posted."""
    save(_file(), history.to_json().encode())


def _file() -> Path:
    return state_folder() / f"{_NAME}.json"


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
    """The way on where nobody can tell any more which sums were opened."""
    return (
        "Let no more sums of patients leave who were in a secure sum before. For other patients, move "
        f"{_file().name} and {_studies()} away, and join again."
    )


def _refuse_older() -> None:
    """Refuse to forget: the histories of single studies knew neither the sites' keys nor the numbers that went in."""
    for path in sorted(_studies().glob("*/history.json")):
        raise OtherFormat(
            f"{path} remembers secure sums as an earlier fdtr did, by the names of their sites, and cannot be compared "
            f"with. Nothing was posted. {_begin_anew()}"
        )
