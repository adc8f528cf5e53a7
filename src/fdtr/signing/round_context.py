"""Rounds and envelopes: a signature binds a message to its sender, its study, its round and its part of the round."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from hashlib import sha256
from pathlib import Path

from fdtr.container import UNSIGNED, canonical_json
from fdtr.errors import BadSignature, OtherRoster, OtherRound, OtherStudy, WrongSite
from fdtr.signing.key_pairs import Key, public_bytes

HUB = "hub"
"""The hub's name in the roster; no site may have it."""
FIRST_ROUND = "1"
MOST_NAME_BYTES = 64


@lru_cache(maxsize=2**14)
def check_name(name: str, what: str = "site") -> None:
    """Refuse a name that is too long for a header, or that could be mistaken for another when printed."""
    size = len(name.encode(errors="replace"))
    plain = name.isprintable() and not {'"', "\\"} & set(name)
    if not 1 <= size <= MOST_NAME_BYTES or not plain or name != name.strip():
        raise WrongSite(
            f"The {what} {name[:MOST_NAME_BYTES]!r} cannot stand in a message: a name has at most {MOST_NAME_BYTES} "
            "bytes, no quotation marks or backslashes, and no spaces at its ends. Choose another."
        )


def check_site_name(name: str) -> None:
    """Refuse a name that `check_name` refuses, and the hub's name."""
    check_name(name)
    if name == HUB:
        raise WrongSite(f"A site may not be called {HUB!r}: that is the hub's name in the roster. Choose another.")


@dataclass(frozen=True)
class Round:
    """One round of a study: its `roster` of public keys by sender, its `name`, and the names of `earlier` rounds.

    `context` identifies the round, SHA-256(fingerprint ‖ roster hash ‖ name); every signature covers it.
    """

    fingerprint: str
    roster: Mapping[str, str] = field(default_factory=dict)
    name: str = FIRST_ROUND
    earlier: frozenset[str] = frozenset()

    @cached_property
    def context(self) -> str:
        """SHA-256 that identifies the round, in hex."""
        parts = [self.fingerprint, roster_hash(self.roster), self.name]
        return sha256(_prefixed(*(part.encode() for part in parts))).hexdigest()


def numbered_round(fingerprint: str, roster: Mapping[str, str], number: int) -> Round:
    """Round `number` of a study; rounds count from 1."""
    if number < 1:
        raise OtherRound(f"Rounds count from 1; there is no round {number}. Nothing was written. Name another round.")
    return Round(fingerprint, roster, str(number), frozenset(str(n) for n in range(1, number)))


def roster_hash(roster: Mapping[str, str]) -> str:
    """SHA-256, in hex, of the canonical JSON of a roster."""
    return _roster_hash(tuple(roster), tuple(roster.values()))


@lru_cache(maxsize=16)
def _roster_hash(names: tuple[str, ...], keys: tuple[str, ...]) -> str:
    """Cached: a round has thousands of messages, and each one needs it."""
    return sha256(canonical_json(dict(zip(names, keys, strict=True)))).hexdigest()


@dataclass(frozen=True)
class Envelope:
    """What a message states about itself: study, round and its `context`, sender, part of the round, and digest."""

    fingerprint: str
    round: str
    context: str
    site: str
    phase: str
    digest: str

    @property
    def statement(self) -> bytes:
        """The bytes that are signed: each field after its length, so no two envelopes give the same bytes."""
        parts = (self.context, self.round, self.site, self.phase, self.digest)
        return _prefixed(b"fdtr message 1", *(part.encode() for part in parts))


def _prefixed(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(8) + part for part in parts)


def require_own(key: Key | None, site: str, roster: Mapping[str, str]) -> None:
    """Refuse to sign as `site` with a key that others would reject: not on the roster, missing, or another site's."""
    if not roster or (site == HUB and HUB not in roster and key is None):
        return
    if site not in roster:
        raise BadSignature(_unknown(site, roster))
    if key is None:
        raise BadSignature(
            f"The roster has a key of {site!r}, so what it sends must be signed. Give its key with --key."
        )
    if key.public != roster[site]:
        raise BadSignature(
            f"This key is not the one that the roster has of {site!r}. Use the right one. If that is lost, replace it "
            f"in everybody's study file with `fdtr roster replace STUDY {site} {key.public}`, and begin a new round."
        )


def verify(envelope: Envelope, signature: str, expected: Round, phase: str, source: str | Path) -> bool:
    """Refuse an envelope of another study, round, phase or sender; return whether it is signed.

    `expected` is the round that the reader is in, `phase` the part of it, and `source` names the file in a refusal.
    """
    sender = "the hub" if envelope.site == HUB else f"site {envelope.site!r}"
    if envelope.fingerprint != expected.fingerprint:
        raise OtherStudy(
            f"{source}, of {sender}, belongs to another study (fingerprint {envelope.fingerprint[:12]}…, this study's "
            f"is {expected.fingerprint[:12]}…). Give every site the same study file."
        )
    if envelope.phase != phase:
        raise OtherRound(f"{source}, of {sender}, belongs to the part {envelope.phase!r} of a round, not to {phase!r}.")
    if envelope.round in expected.earlier:
        raise OtherRound(
            f"{source}, of {sender}, is of round {envelope.round}, which is over; this is round {expected.name}. Ask "
            f"for the message of this round."
        )
    if envelope.round != expected.name:
        raise OtherRound(f"{source}, of {sender}, is of round {envelope.round!r}; this is round {expected.name!r}.")
    if expected.roster and envelope.site not in expected.roster and envelope.site != HUB:
        raise BadSignature(f"{source}: {_unknown(envelope.site, expected.roster)}")
    if envelope.context != expected.context:
        raise OtherRoster(
            f"{source}, of {sender}, was made under another list of keys than this study's [roster]. Compare "
            "`fdtr roster show`, give everybody the same, and make the message again."
        )
    public = expected.roster.get(envelope.site)
    if public is None:
        if signature != UNSIGNED:
            raise BadSignature(f"{source} is signed, and the roster has no key of {sender} to check it with.")
        return False
    if signature == UNSIGNED:
        raise BadSignature(
            f"{source} is not signed, and the roster has a key of {sender}. Ask for it with a signature."
        )
    if not is_signed(public, envelope.statement, signature):
        raise BadSignature(
            f"{source} is not signed by {sender}, or was changed since. Do not use it; ask {sender} over another way."
        )
    return True


def is_signed(public: str, statement: bytes, signature: str) -> bool:
    """Whether `signature`, in hex, is a valid signature of `statement` under the public key."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public_bytes(public)).verify(bytes.fromhex(signature), statement)
    except (InvalidSignature, ValueError):
        return False
    return True


def _unknown(site: str, roster: Mapping[str, str]) -> str:
    return (
        f"the roster has no site {site!r}; it has {', '.join(sorted(roster))}. Add its key with `fdtr roster add`, or "
        "correct its name."
    )
