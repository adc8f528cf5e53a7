"""The copies a site keeps of its own messages: what it later subtracts from the total must be what it sent."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from fdtr import container
from fdtr.disclosure import Ledger, Message
from fdtr.errors import DamagedFile, UnwritableFile
from fdtr.exchange.wire import encode_message, read_message, rewrite_message
from fdtr.signing import Key, Round
from fdtr.study import Study
from fdtr.summary import SiteSummary, Sums, Total

_ROUNDED = "rounded"
_chosen: ContextVar[Path | None] = ContextVar("_chosen", default=None)


@contextmanager
def staying_in(folder: Path | None) -> Iterator[None]:
    """Keep all that is the site's own in this folder, where one is given, whatever the environment says."""
    token = _chosen.set(folder)
    try:
        yield
    finally:
        _chosen.reset(token)


def state_folder() -> Path:
    """Where a site keeps what is its own: as `staying_in` says, then `FDTR_STATE`, else the user's state folder."""
    chosen = _chosen.get() or os.environ.get("FDTR_STATE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "fdtr"


def ledger() -> Ledger:
    """What this site released before, for any study."""
    return Ledger(state_folder() / "ledger")


def keep(message: Message, within: Round | None = None, key: Key | None = None) -> Path:
    """Keep a copy under its digest, so that it is found again by what the total says went in."""
    path = _folder() / f"{message.summary.digest}.fdtr"
    container.write_atomically(path, encode_message(message, within, key), mode=0o600)
    return path


def keep_rounded(sent: SiteSummary) -> Path:
    """Keep what a secure sum has of this site's message: `sent` is what `masking.as_sent` made of it.

    A total names the masked message, so this one lies under that digest. It is all that is kept of the message where
    noise does not keep it from being made again. It was never sent, and the hub would not read it.
    """
    if not sent.sent_as:
        raise ValueError("Only a summary that went into a secure sum is kept as it was rounded.")
    path = _folder() / f"{sent.sent_as}.fdtr"
    header = {"site": sent.site, "fingerprint": sent.fingerprint, "sent_as": sent.sent_as}
    container.write(path, _ROUNDED, header, sent.sums.packed(), private=True)
    return path


def copy_path(digest: str) -> Path:
    """Where the copy of a message lies, by its digest."""
    return state_folder() / "sent" / f"{digest}.fdtr"


def find_copy(digest: str) -> Path | None:
    """The copy of a message, by its digest; None where none was kept."""
    path = copy_path(digest)
    return path if digest.isalnum() and path.exists() else None


def find_kept(total: Total, site: str, study: Study) -> SiteSummary | None:
    """The summary of `site` as it went into `total`, where a copy was kept."""
    return read_copy(dict(total.members).get(site, ""), study)


def read_copy(digest: str, study: Study) -> SiteSummary | None:
    """The summary of a message, by its digest, where a copy was kept."""
    path = find_copy(digest)
    return None if path is None else _read_copy(path, study)


def write_again(copy: Path, path: str | Path, study: Study, within: Round, key: Key | None = None) -> SiteSummary:
    """Write the message of a kept `copy` to `path`, for the round `within`: the same sums, sealed and signed anew."""
    _read_copy(copy, study)
    return rewrite_message(copy, path, study, within, key)


def _read_copy(path: Path, study: Study) -> SiteSummary:
    """A copy that holds the message after which it is named."""
    found = read_own(path, study)
    if found.digest != path.stem:
        raise DamagedFile(f"{path} is the copy of another message than its name says. Restore it from a copy.")
    return found


def read_own(path: Path, study: Study) -> SiteSummary:
    """A copy of this site's own: a message, or what a secure sum has of one."""
    if container.kind_of(path) != _ROUNDED:
        return read_message(path, study)
    # Its checksum says that it is whole; rounding left of its sums less than what a message must hold.
    file = container.read(path, _ROUNDED)
    told = [file.header.get(key) for key in ("site", "fingerprint", "sent_as")]
    site, fingerprint, sent_as = (one if isinstance(one, str) else "" for one in told)
    return SiteSummary(site, fingerprint, Sums.unpacked(file.arrays), sent_as=sent_as)


def _folder() -> Path:
    folder = state_folder() / "sent"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UnwritableFile(
            f"No copy of the message can be kept in {folder}: {error.strerror}. Set FDTR_STATE to a folder of your own."
        ) from None
    return folder
