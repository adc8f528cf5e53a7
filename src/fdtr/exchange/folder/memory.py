"""What a site remembers of its secure sums: one file for all studies, since a renamed one has the same sums."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fdtr.errors import MalformedPart, OtherFormat
from fdtr.exchange.folder.durable import locked, save
from fdtr.exchange.kept import state_folder
from fdtr.masking import History

_NAME = "secure-sums"


def read_history() -> History:
    """Every round of a secure sum that was begun or opened here, in whatever study."""
    _refuse_older()
    path = _file()
    try:
        return History.from_json(path.read_bytes()) if path.exists() else History()
    except MalformedPart as error:
        raise MalformedPart(f"{path}: {error}") from None
    except OtherFormat as error:
        raise OtherFormat(
            f"{path}: {error} Nothing was posted. If no total of those sums came about, move the file away; else take "
            "part in no further secure sum with the same patients."
        ) from None


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


def _refuse_older() -> None:
    """Refuse to forget: the histories of single studies knew neither the sites' keys nor the numbers that went in."""
    for path in sorted((state_folder() / "studies").glob("*/history.json")):
        raise OtherFormat(
            f"{path} remembers secure sums as an earlier fdtr did, by the names of their sites, and cannot be compared "
            "with. Nothing was posted. If no total of that study came about, delete the file; else take part in no "
            "further secure sum with the same patients."
        )
