"""Messages and totals as files."""

from pathlib import Path
from typing import Any

from fdtr import __version__, container
from fdtr.disclosure import Message
from fdtr.errors import UnreadableFile
from fdtr.summary import SiteSummary, Sums, Total

_MESSAGE, _TOTAL = "message", "total"


def write_message(message: Message, path: str | Path) -> None:
    """Write what a site sends. Takes only what `disclosure.release` made."""
    summary = message.summary
    header = {"site": summary.site, "fingerprint": summary.fingerprint, "version": __version__}
    container.write(path, _MESSAGE, header, summary.sums.packed())


def read_message(path: str | Path) -> SiteSummary:
    """Read a site's message."""
    file = container.read(path, _MESSAGE)
    site, fingerprint = (_text(path, file.header, key) for key in ("site", "fingerprint"))
    return SiteSummary(site, fingerprint, Sums.unpacked(file.arrays))


def write_total(total: Total, path: str | Path) -> None:
    """Write what the hub sends back: the sums over all sites, and who is in them."""
    header = {
        "members": [list(member) for member in total.members],
        "fingerprint": total.fingerprint,
        "version": __version__,
    }
    container.write(path, _TOTAL, header, total.sums.packed())


def read_total(path: str | Path) -> Total:
    """Read the hub's answer."""
    file = container.read(path, _TOTAL)
    members = file.header.get("members")
    if not isinstance(members, list) or not all(isinstance(m, list) and len(m) == 2 for m in members):
        raise UnreadableFile(f"{path} does not say which sites are in it. Ask the hub for it again.")
    fingerprint = _text(path, file.header, "fingerprint")
    return Total(fingerprint, tuple((str(site), str(digest)) for site, digest in members), Sums.unpacked(file.arrays))


def _text(path: str | Path, header: dict[str, Any], key: str) -> str:
    value = header.get(key)
    if not isinstance(value, str) or not value:
        raise UnreadableFile(f"{path} has no {key} in its header. Ask its sender for it again.")
    return value
