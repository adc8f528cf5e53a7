"""Messages, totals and values as files."""

from pathlib import Path
from typing import Any

import numpy as np

from fdtr import __version__, container
from fdtr.disclosure import Message, MethodValue, SiteValues, ValueMessage
from fdtr.errors import UnreadableFile
from fdtr.summary import SiteSummary, Sums, Total

_MESSAGE, _TOTAL, _VALUES = "message", "total", "valuation"


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


def write_values(message: ValueMessage, path: str | Path) -> None:
    """Write what a site tells of its methods. Takes only what `disclosure.release_values` made."""
    told = message.values
    header = {
        "site": told.site,
        "fingerprint": told.fingerprint,
        "version": __version__,
        "n": told.n,
        "methods": [one.method for one in told.values],
        "estimators": [one.estimator for one in told.values],
    }
    arrays = {
        "value": np.array([one.value for one in told.values]),
        "standard_error": np.array([one.standard_error for one in told.values]),
    }
    container.write(path, _VALUES, header, arrays)


def read_values(path: str | Path) -> SiteValues:
    """Read what a site tells of its methods."""
    file = container.read(path, _VALUES)
    site, fingerprint = (_text(path, file.header, key) for key in ("site", "fingerprint"))
    values = _method_values(file)
    n = file.header.get("n")
    if values is None or not isinstance(n, int) or n < 1:
        raise UnreadableFile(f"{path} holds no values that can be read. Ask its sender for it again.")
    return SiteValues(site, fingerprint, n, values)


def _method_values(file: container.Container) -> tuple[MethodValue, ...] | None:
    """One for each method and estimator; None where names and numbers do not fit together."""
    names = [file.header.get(key) for key in ("methods", "estimators")]
    arrays = [file.arrays.get(key) for key in ("value", "standard_error")]
    if not all(isinstance(part, list) and all(isinstance(name, str) for name in part) for part in names):
        return None
    if any(array is None or array.ndim != 1 or not np.isfinite(array).all() for array in arrays):
        return None
    columns = [*names, *(array.tolist() for array in arrays if array is not None)]
    if len({len(column) for column in columns if column is not None}) != 1:
        return None
    found = tuple(MethodValue(*row) for row in zip(*columns, strict=True))
    distinct = len({(one.method, one.estimator) for one in found}) == len(found)
    return found if distinct and all(one.standard_error > 0 for one in found) else None


def _text(path: str | Path, header: dict[str, Any], key: str) -> str:
    value = header.get(key)
    if not isinstance(value, str) or not value:
        raise UnreadableFile(f"{path} has no {key} in its header. Ask its sender for it again.")
    return value
