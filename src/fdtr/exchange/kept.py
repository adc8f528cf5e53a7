"""The copies a site keeps of its own messages: what it later subtracts from the total must be what it sent."""

import os
from pathlib import Path

from fdtr.disclosure import Ledger, Message
from fdtr.errors import UnwritableFile
from fdtr.exchange.wire import read_message, write_message
from fdtr.signing import Key, Round
from fdtr.study import Study
from fdtr.summary import SiteSummary, Total


def state_folder() -> Path:
    """Where a site keeps what is its own: `FDTR_STATE`, else the user's state folder."""
    chosen = os.environ.get("FDTR_STATE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "fdtr"


def ledger() -> Ledger:
    """What this site released before, for any study."""
    return Ledger(state_folder() / "ledger")


def keep(message: Message, within: Round | None = None, key: Key | None = None) -> Path:
    """Keep a copy under its digest, so that it is found again by what the total says went in."""
    folder = state_folder() / "sent"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UnwritableFile(
            f"No copy of the message can be kept in {folder}: {error.strerror}. Set FDTR_STATE to a folder of your own."
        ) from None
    path = folder / f"{message.summary.digest}.fdtr"
    write_message(message, path, within, key)
    return path


def find_copy(digest: str) -> Path | None:
    """The copy of a message, by its digest."""
    path = state_folder() / "sent" / f"{digest}.fdtr"
    return path if digest.isalnum() and path.exists() else None


def find_kept(total: Total, site: str, study: Study) -> SiteSummary | None:
    """The summary of `site` as it went into `total`, where a copy was kept."""
    path = find_copy(dict(total.members).get(site, ""))
    return read_message(path, study) if path else None
