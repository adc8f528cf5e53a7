"""The parts of a round as files. They have the envelope of messages, so the same checks hold for all that travels."""

import json
from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np

from fdtr import container
from fdtr.container import Container, OpenFile
from fdtr.errors import DamagedFile, MalformedPart, WrongSite
from fdtr.exchange.envelopes import AGAIN, seal, unseal
from fdtr.exchange.folder_layout import BEGUN, CONFIRMED, KEYS, MASKED, OPENED, SURVIVORS, sites_of
from fdtr.exchange.wire import HEADER_BYTES, MEMBER_BYTES
from fdtr.masking import Announcement, Confirmation, MaskedMessage, Opening, SurvivorList
from fdtr.signing import HUB, Envelope, Key, Round

_SIGNATURE = "proof"

Body = TypeVar("Body")


class _Text(Protocol):
    def to_json(self) -> str: ...


class _OfSite(Protocol):
    @property
    def site(self) -> str: ...


SitePart = TypeVar("SitePart", bound=_OfSite)


def seal_begun(within: Round, key: Key | None) -> bytes:
    """The hub's statement that a round is open."""
    return seal(BEGUN, BEGUN, HUB, {"part": {}}, {}, within, key, HEADER_BYTES)


def seal_part(kind: str, site: str, part: _Text, within: Round, key: Key | None) -> bytes:
    """A key, a list, a confirmation or an opening."""
    header = {"part": json.loads(part.to_json())}
    return seal(kind, kind, site, header, {}, within, key, _header_bytes(kind, within))


def seal_masked(message: MaskedMessage, within: Round, key: Key | None) -> bytes:
    """A masked message, with the signature that the list of survivors relies on."""
    header = {"part": {_SIGNATURE: message.signature.hex()}}
    return seal(MASKED, MASKED, message.site, header, {"vector": message.vector}, within, key, HEADER_BYTES)


def read_begun(source: OpenFile, within: Round) -> Round:
    """The round that the hub opened."""
    return _read(source, BEGUN, HUB, within, 0, lambda _file, _part: within)


def read_keys(source: OpenFile, site: str, within: Round) -> Announcement:
    """A site's key for the round."""
    return _read_site_part(source, KEYS, site, within, Announcement.from_json)


def read_confirmed(source: OpenFile, site: str, within: Round) -> Confirmation:
    """A site's signature under a list of survivors."""
    return _read_site_part(source, CONFIRMED, site, within, Confirmation.from_json)


def read_opened(source: OpenFile, site: str, within: Round) -> Opening:
    """What removes a site's masks from the sum."""
    return _read_site_part(source, OPENED, site, within, Opening.from_json)


def read_survivors(source: OpenFile, within: Round) -> SurvivorList:
    """The hub's list of survivors."""
    return _read(source, SURVIVORS, HUB, within, 0, lambda _, part: SurvivorList.from_json(part))


def read_masked(source: OpenFile, site: str, within: Round, length: int) -> MaskedMessage:
    """A masked message of `length` numbers."""

    def body(file: Container, part: str) -> MaskedMessage:
        vector = file.arrays.get("vector")
        if len(file.arrays) != 1 or vector is None or vector.dtype != np.uint64 or vector.shape != (length,):
            raise DamagedFile(f"{source} does not hold {length} whole numbers, and those alone. {AGAIN}")
        return MaskedMessage(site, vector, bytes.fromhex(json.loads(part)[_SIGNATURE]))

    return _read(source, MASKED, site, within, 8 * length, body)


def _header_bytes(kind: str, within: Round) -> int:
    """Length of the header. Lists and openings name sites; the roster bounds their number."""
    return HEADER_BYTES + MEMBER_BYTES * (len(sites_of(within.roster)) if kind in (SURVIVORS, OPENED) else 0)


def _read(
    source: OpenFile, kind: str, sender: str, within: Round, payload: int, read: Callable[[Container, str], Body]
) -> Body:
    header_bytes = _header_bytes(kind, within)
    size = header_bytes + payload
    file = container.read_exactly(
        source, kind, size, f"this part of the round has {size:,}", header_bytes=header_bytes
    )  # fmt: skip

    def body(envelope: Envelope) -> Body:
        if envelope.site != sender:
            raise WrongSite(f"{source} is of {envelope.site!r} and lies under the name of {sender!r}.")
        try:
            return read(file, json.dumps(file.header["part"]))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            if isinstance(error, MalformedPart):
                raise MalformedPart(f"{source}: {error}") from None
            raise MalformedPart(f"{source} does not hold what its kind has. {AGAIN}") from None

    return unseal(file, source.path, kind, frozenset({"part"}), within, body).body


def _read_site_part(
    source: OpenFile, kind: str, site: str, within: Round, parse: Callable[[str], SitePart]
) -> SitePart:
    """A part of a site, which has to name the sender of its file."""
    part = _read(source, kind, site, within, 0, lambda _file, text: parse(text))
    if part.site != site:
        raise WrongSite(f"{source} holds a part of {part.site!r} and lies under the name of {site!r}.")
    return part
