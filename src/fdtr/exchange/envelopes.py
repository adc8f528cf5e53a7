"""The envelope of every file between site and hub: study, round, sender, part of the round, and a signature."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from numpy.typing import NDArray

from fdtr import __version__, container
from fdtr.container import Container
from fdtr.errors import DamagedFile
from fdtr.signing import Envelope, Key, Round, check_name, require_own, verify

HEX = re.compile("[0-9a-f]{64}")
AGAIN = "Ask its sender for it again."
_VERSION = re.compile(r"[0-9A-Za-z.+!-]{1,40}")
_COMMON = frozenset({"fingerprint", "round", "context", "site", "phase", "version", "kind", "format"})

Body = TypeVar("Body")


@dataclass(frozen=True)
class Received(Generic[Body]):
    """A file that was read: its `body`, its envelope, and whether its signature was verified."""

    body: Body
    kind: str
    envelope: Envelope
    version: str
    signature: str
    verified: bool


def seal(
    kind: str,
    phase: str,
    site: str,
    header: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    within: Round,
    key: Key | None,
    header_bytes: int | None,
) -> bytes:
    """The bytes of a file, signed where a key is given. Refuses a sender whose signature nobody would accept."""
    check_name(within.name, "round")
    require_own(key, site, within.roster)
    common = {
        "fingerprint": within.fingerprint,
        "round": within.name,
        "context": within.context,
        "site": site,
        "phase": phase,
        "version": __version__,
    }
    full = {**common, **header}
    if key is None or not within.roster:
        return container.encode(kind, full, arrays, header_bytes=header_bytes)

    def sign(digest: str) -> str:
        return key.sign(Envelope(within.fingerprint, within.name, within.context, site, phase, digest).statement)

    return container.encode(kind, full, arrays, header_bytes=header_bytes, sign=sign)


def unseal(
    file: Container,
    source: str | Path,
    phase: str,
    own_fields: frozenset[str],
    expected: Round | None,
    read_body: Callable[[Envelope], Body],
) -> Received[Body]:
    """Check the envelope of a file, then read its body.

    `own_fields` are the header fields that this kind of file has beside those of every file. Without an `expected`
    round, study, round and signature are not checked: for a site's own copies, and for looking at a file.
    """
    envelope = _envelope(file, source, own_fields)
    verified = verify(envelope, file.signature, expected, phase, source) if expected is not None else False
    header = file.header
    return Received(read_body(envelope), header["kind"], envelope, header["version"], file.signature, verified)


def _envelope(file: Container, source: str | Path, own_fields: frozenset[str]) -> Envelope:
    header = file.header
    texts = [header.get(key) for key in _COMMON - {"format"}]
    if set(header) != _COMMON | own_fields or not all(isinstance(text, str) and text for text in texts):
        raise DamagedFile(f"{source} lacks a field in its header, or has one that does not belong there. {AGAIN}")
    if not (HEX.fullmatch(header["fingerprint"]) and HEX.fullmatch(header["context"])):
        raise DamagedFile(f"{source} does not say to which study and round it belongs. {AGAIN}")
    if not _VERSION.fullmatch(header["version"]):
        raise DamagedFile(f"{source} does not say which version of fdtr wrote it. {AGAIN}")
    check_name(header["site"])
    check_name(header["round"], "round")
    check_name(header["phase"], "part of a round")
    return Envelope(
        header["fingerprint"], header["round"], header["context"], header["site"], header["phase"], file.digest
    )
