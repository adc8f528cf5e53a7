"""The parts of a round as files. They have the envelope of messages, so the same checks hold for all that travels."""

from typing import Any

import numpy as np

from fdtr import container
from fdtr.container import Container, OpenFile
from fdtr.errors import DamagedFile, MalformedPart, WrongSite
from fdtr.exchange.envelopes import AGAIN, seal, unseal
from fdtr.exchange.folder_layout import (
    BEGUN,
    COUNT_PHASE,
    COUNTS,
    KEYS,
    MASKED,
    RECEIVES,
    SUM_PHASE,
    SUMS,
    TOTAL,
    sites_of,
)
from fdtr.exchange.wire import HEADER_BYTES, MEMBER_BYTES, open_message, open_total
from fdtr.masking import Announcements, Confirmation, FixedPoint, JsonPart, MaskedMessage, Opening, SurvivorList
from fdtr.signing import HUB, Envelope, Key, Round
from fdtr.study import Study

_SIGNATURE = "proof"
_PHASES = (COUNT_PHASE, SUM_PHASE)
_PARTS: dict[str, type[JsonPart]] = {
    KEYS: Announcements,
    **dict.fromkeys((phase.survivors for phase in _PHASES), SurvivorList),
    **dict.fromkeys((phase.confirmed for phase in _PHASES), Confirmation),
    **dict.fromkeys((phase.opened for phase in _PHASES), Opening),
}
_STATEMENTS = (BEGUN, RECEIVES)
"""Parts that hold nothing but their signed envelope."""
_NAMING_SITES = tuple(part for phase in _PHASES for part in (phase.survivors, phase.opened))


def seal_begun(within: Round, key: Key | None) -> bytes:
    """The hub's statement that a round is open."""
    return seal(BEGUN, BEGUN, HUB, {"part": {}}, {}, within, key, HEADER_BYTES)


def seal_receives(site: str, within: Round, key: Key | None) -> bytes:
    """A site's statement that it sends nothing, and only receives the total."""
    return seal(RECEIVES, RECEIVES, site, {"part": {}}, {}, within, key, HEADER_BYTES)


def seal_part(kind: str, site: str, part: JsonPart, within: Round, key: Key | None) -> bytes:
    """A key, a list, a confirmation or an opening."""
    return seal(kind, kind, site, {"part": part.to_values()}, {}, within, key, _header_bytes(kind, within))


def seal_masked(kind: str, message: MaskedMessage, within: Round, key: Key | None) -> bytes:
    """Masked sums or counts, with the signature that the list of survivors relies on."""
    header = {"part": {_SIGNATURE: message.signature.hex()}}
    return seal(kind, kind, message.site, header, {"vector": message.vector}, within, key, HEADER_BYTES)


def masked_length(part: str, study: Study) -> int:
    """How many whole numbers a masked part holds; 0 for other parts."""
    if part == COUNTS:
        return study.count_layout.length
    return scale_of(study).length if part == MASKED else 0


def scale_of(study: Study) -> FixedPoint:
    """How a study's sums become whole numbers. K is the whole roster, whoever drops out."""
    most = 10 * -(-(study.disclosure.max_patients or 1) // 10)  # messages round numbers of patients up to tens
    return FixedPoint(study.horizon, study.feature_map.n_shared, max(len(sites_of(study.roster)), 1), most)


def read_part(source: OpenFile, part: str, sender: str, study: Study, within: Round) -> Any:
    """What `sender` posted as a part of the round, checked: a summary, a total, or a part of the secure sum.

    A statement holds nothing; the answer is then the round.
    """
    if part == TOTAL:
        return open_total(source, study, within).body
    content = open_message(source, study, within).body if part == SUMS else _read(source, part, sender, study, within)
    if sender != HUB and part not in _STATEMENTS and content.site != sender:  # the others name no site inside
        holds = "is" if part == SUMS else "holds a part"
        raise WrongSite(f"{source} {holds} of {content.site!r} and lies under the name of {sender!r}.")
    return content


def _read(source: OpenFile, part: str, sender: str, study: Study, within: Round) -> Any:
    header_bytes = _header_bytes(part, within)
    length = masked_length(part, study)
    size = header_bytes + 8 * length
    words = f"this part of the round has {size:,}"
    file = container.read_exactly(source, part, size, words, header_bytes=header_bytes)

    def body(envelope: Envelope) -> Any:
        if envelope.site != sender:
            raise WrongSite(f"{source} is of {envelope.site!r} and lies under the name of {sender!r}.")
        try:
            return within if part in _STATEMENTS else _content(file, source, part, sender, length)
        except MalformedPart as error:
            raise MalformedPart(f"{source}: {error}") from None
        except (KeyError, TypeError, ValueError):
            raise MalformedPart(f"{source} does not hold what its kind has. {AGAIN}") from None

    return unseal(file, source.path, part, frozenset({"part"}), within, body).body


def _content(file: Container, source: OpenFile, part: str, sender: str, length: int) -> Any:
    values = file.header["part"]
    if length:
        vector = file.arrays.get("vector")
        if len(file.arrays) != 1 or vector is None or vector.dtype != np.uint64 or vector.shape != (length,):
            raise DamagedFile(f"{source} does not hold {length} whole numbers, and those alone. {AGAIN}")
        return MaskedMessage(sender, vector, bytes.fromhex(values[_SIGNATURE]))
    return _PARTS[part].from_values(values)


def _header_bytes(kind: str, within: Round) -> int:
    """Length of the header. Lists and openings name sites; the roster bounds their number."""
    return HEADER_BYTES + MEMBER_BYTES * (len(sites_of(within.roster)) if kind in _NAMING_SITES else 0)
