"""Copies of a site's own messages: what it subtracts from the total must be exactly what it sent."""

from pathlib import Path

from fdtr import container
from fdtr.disclosure import Message
from fdtr.errors import DamagedFile, UnwritableFile
from fdtr.exchange.site_state import state_folder
from fdtr.exchange.wire import encode_message, read_message, rewrite_message
from fdtr.signing import Key, Round
from fdtr.study import Study
from fdtr.summary import SiteSummary, Total
from fdtr.sums import Sums

_ROUNDED = "rounded"


def keep(message: Message, within: Round | None = None, key: Key | None = None) -> Path:
    """Keep a copy under the digest of the message, by which a total names it."""
    path = _place(message.summary.digest)
    container.write_atomically(path, encode_message(message, within, key), mode=0o600)
    return path


def keep_rounded(sent: SiteSummary) -> Path:
    """Keep this site's part of a secure sum: `sent` is what `masking.as_sent` made of its summary.

    It is kept under the digest of the masked message, which the total names. Without differential privacy nothing else
    is kept of the message, since it can be computed again. The copy was never sent, and the hub would not read it.
    """
    if not sent.sent_as:
        raise ValueError("Only a summary that went into a secure sum is kept as it was rounded.")
    path = _place(sent.sent_as)
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
    """The summary of `site` as it went into `total`; None where no copy was kept."""
    return read_copy(dict(total.members).get(site, ""), study)


def read_copy(digest: str, study: Study) -> SiteSummary | None:
    """The summary of a message, by its digest; None where no copy was kept."""
    path = find_copy(digest)
    return None if path is None else _read_named(path, study)


def write_again(copy: Path, path: str | Path, study: Study, within: Round, key: Key | None = None) -> SiteSummary:
    """Write the message of a `copy` to `path`, for the round `within`: the same sums, sealed and signed anew."""
    _read_named(copy, study)
    return rewrite_message(copy, path, study, within, key)


def read_own(path: Path, study: Study) -> SiteSummary:
    """A copy of this site's own: a message, or its part of a secure sum."""
    if container.kind_of(path) != _ROUNDED:
        return read_message(path, study)
    # The checksum shows that it is whole; rounded sums need not satisfy what a message must.
    file = container.read(path, _ROUNDED)
    texts = [file.header.get(key) for key in ("site", "fingerprint", "sent_as")]
    site, fingerprint, sent_as = (text if isinstance(text, str) else "" for text in texts)
    return SiteSummary(site, fingerprint, Sums.unpacked(file.arrays), sent_as=sent_as, mean_weight=study.mean_weight)


def _read_named(path: Path, study: Study) -> SiteSummary:
    """A copy that holds the message after which it is named."""
    summary = read_own(path, study)
    if summary.digest != path.stem:
        raise DamagedFile(f"{path} is the copy of another message than its name says. Restore it from a copy.")
    return summary


def _place(digest: str) -> Path:
    """Where to write a copy; makes the folder."""
    path = copy_path(digest)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UnwritableFile(
            f"No copy of the message can be kept in {path.parent}: {error.strerror}. Set FDTR_STATE to a folder of "
            "your own."
        ) from None
    return path
