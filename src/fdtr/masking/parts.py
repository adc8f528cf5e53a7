"""What is posted in a round of the secure sum, and the bytes that are signed with it.

Signatures come in from outside: `Sign` makes this site's, `Verify` says whether a site of the roster made one.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fdtr.errors import MalformedPart, TooFewSurvivors
from fdtr.masking.streams import KEY_BYTES, prefixed

Words = NDArray[np.uint64]
Sign = Callable[[bytes], bytes]
Verify = Callable[[str, bytes, bytes], bool]
"""(site, content, signature) → whether the site signed the content."""

FEWEST_HONEST = 3
"""A sum over two sites gives each the other; the hub and its accomplices must face at least three."""

_PROTOCOL = b"fdtr secure sum 1"


@dataclass(frozen=True)
class Round:
    """What all parties of a round agree on beforehand.

    `context` is ctx, 32 bytes that bind study, roster and round; `sites` the whole roster; `length` the numbers in a
    message. `min_sites` is the study's; of the survivors `colluding` may work with the hub, and at least three more
    are needed.
    """

    context: bytes
    sites: tuple[str, ...]
    length: int
    min_sites: int = FEWEST_HONEST
    colluding: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "sites", tuple(sorted(self.sites)))
        if len(self.context) != hashlib.sha256().digest_size:
            raise MalformedPart("The context of a round is a SHA-256 hash, 32 bytes; this one is not.")
        if len(set(self.sites)) != len(self.sites):
            raise MalformedPart("The roster names a site twice. Give every site one name.")
        if self.colluding < 0:
            raise MalformedPart("The number of colluding sites cannot be negative.")
        if len(self.sites) < self.fewest:
            raise TooFewSurvivors(
                f"The roster has {len(self.sites)} sites; a secure sum here needs {self.fewest}. Add sites to the "
                "roster, or share without a secure sum."
            )

    @property
    def fewest(self) -> int:
        """Survivors without whom nothing is opened."""
        return max(self.min_sites, FEWEST_HONEST + self.colluding)

    def statement(self, phase: str, *parts: bytes) -> bytes:
        """The bytes to sign in a phase: protocol, phase, ctx and the parts, each with its length."""
        return b"".join(map(prefixed, (_PROTOCOL, phase.encode(), self.context, *parts)))

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {**vars(self), "context": self.context.hex(), "sites": list(self.sites)}

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Self:
        """The reverse."""
        return cls(**{**given, "context": bytes.fromhex(given["context"]), "sites": tuple(given["sites"])})


@dataclass(frozen=True)
class Announcement:
    """Step 1: a site's X25519 public key for this round."""

    site: str
    public_key: bytes
    signature: bytes = b""

    def content(self, of: Round) -> bytes:
        """What the site signs."""
        return of.statement("announcement", self.site.encode(), self.public_key)

    def to_json(self) -> str:
        """As text, for whoever carries it."""
        return json.dumps({"site": self.site, "public_key": self.public_key.hex(), "signature": self.signature.hex()})

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The reverse; raises MalformedPart."""
        given = parse(text, "site", "public_key", "signature")
        return cls(name(given["site"]), key(given["public_key"]), raw(given["signature"]))


@dataclass(frozen=True, eq=False)
class MaskedMessage:
    """Step 3: q + PRG(b_i) ± Σ PRG(k_ij) modulo 2⁶⁴, `vector` (length,)."""

    site: str
    vector: Words
    signature: bytes = b""

    def content(self, of: Round) -> bytes:
        """What the site signs."""
        payload = hashlib.sha256(self.vector.astype("<u8").tobytes()).digest()
        return of.statement("masked", self.site.encode(), payload)

    def digest(self, of: Round) -> str:
        """What the list of survivors, and later the total, remembers of it."""
        return hashlib.sha256(self.content(of)).hexdigest()


@dataclass(frozen=True)
class SurvivorList:
    """Step 4: the sites whose masked messages came in, with the digest of each; `members` is sorted by site."""

    members: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", tuple(sorted(self.members)))
        if len(set(self.sites)) != len(self.sites):
            raise MalformedPart("The list of survivors names a site twice. Ask the hub for a new one.")

    @property
    def sites(self) -> tuple[str, ...]:
        """U."""
        return tuple(site for site, _ in self.members)

    def dropped(self, of: Round) -> tuple[str, ...]:
        """The sites of the roster that are not in it."""
        return tuple(site for site in of.sites if site not in self.sites)

    def digest(self, of: Round) -> str:
        """SHA-256 of round and members: what every survivor signs."""
        parts = (part.encode() for member in self.members for part in member)
        return hashlib.sha256(of.statement("survivors", *parts)).hexdigest()

    def to_json(self) -> str:
        """As text, for whoever carries it."""
        return json.dumps({"members": [list(member) for member in self.members]})

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The reverse; raises MalformedPart."""
        return cls(pairs(parse(text, "members")["members"]))


@dataclass(frozen=True)
class Confirmation:
    """Step 4: a survivor's signature under the list that it was shown, `list_digest`."""

    site: str
    list_digest: str
    signature: bytes = b""

    def content(self, of: Round) -> bytes:
        """What the survivor signs: the same bytes for all who were shown the same list."""
        return of.statement("confirmation", self.list_digest.encode())

    def to_json(self) -> str:
        """As text, for whoever carries it."""
        return json.dumps({**vars(self), "signature": self.signature.hex()})

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The reverse; raises MalformedPart."""
        given = parse(text, "site", "list_digest", "signature")
        return cls(name(given["site"]), name(given["list_digest"]), raw(given["signature"]))


@dataclass(frozen=True, repr=False)
class Opening:
    """Step 5: a survivor's own mask b_i, and the keys it shared with each dropped site, sorted by site."""

    site: str
    self_mask: bytes
    pair_keys: tuple[tuple[str, bytes], ...]
    signature: bytes = b""

    def content(self, of: Round, survivors: SurvivorList) -> bytes:
        """What the survivor signs."""
        shared = (part for other, shared_key in self.pair_keys for part in (other.encode(), shared_key))
        return of.statement("opening", survivors.digest(of).encode(), self.site.encode(), self.self_mask, *shared)

    def to_json(self) -> str:
        """As text, for whoever carries it."""
        shared = [[other, shared_key.hex()] for other, shared_key in self.pair_keys]
        return json.dumps(
            {
                "site": self.site,
                "self_mask": self.self_mask.hex(),
                "pair_keys": shared,
                "signature": self.signature.hex(),
            }
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The reverse; raises MalformedPart."""
        given = parse(text, "site", "self_mask", "pair_keys", "signature")
        shared = tuple((other, key(digits)) for other, digits in pairs(given["pair_keys"]))
        return cls(name(given["site"]), key(given["self_mask"]), shared, raw(given["signature"]))


def parse(text: str | bytes, *expected: str) -> dict[str, Any]:
    """A JSON object with exactly these keys."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict) or set(given) != set(expected):
        raise MalformedPart(
            f"A part of the secure sum should hold {', '.join(expected)} and cannot be read. Ask its sender again."
        )
    return given


def name(value: Any) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value:
        raise MalformedPart("A part of the secure sum lacks a name. Ask its sender for it again.")
    return value


def raw(value: Any) -> bytes:
    """Bytes from hexadecimal digits."""
    try:
        return bytes.fromhex(name(value)) if value != "" else b""
    except ValueError:
        raise MalformedPart("A part of the secure sum holds no hexadecimal digits. Ask its sender again.") from None


def key(value: Any) -> bytes:
    """A key of 32 bytes."""
    found = raw(value)
    if len(found) != KEY_BYTES:
        raise MalformedPart(f"A key of the secure sum has {KEY_BYTES} bytes; this one has {len(found)}.")
    return found


def pairs(value: Any) -> tuple[tuple[str, str], ...]:
    """A list of pairs of texts."""
    if not isinstance(value, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        raise MalformedPart("A part of the secure sum lacks its list of sites. Ask its sender for it again.")
    return tuple((name(first), name(second)) for first, second in value)
