"""What the sites and the hub post in a round of the secure sum, and the bytes that are signed.

Signatures come from outside: `Sign` makes this site's signature, `Verify` checks that of a site on the roster.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fdtr.errors import MalformedPart, TooFewSurvivors
from fdtr.masking.mask_streams import KEY_BYTES, prefixed

Words = NDArray[np.uint64]
Sign = Callable[[bytes], bytes]
Verify = Callable[[str, bytes, bytes], bool]
"""(site, content, signature) → whether the site signed the content."""

FEWEST_HONEST = 3
"""A sum over two sites tells each the other's; besides the hub and colluding sites there must be at least three."""

_PROTOCOL = b"fdtr secure sum 1"


@dataclass(frozen=True)
class Round:
    """What all parties of a round agree on beforehand.

    `context` is ctx, 32 bytes that bind study, roster and round; `sites` is the whole roster; `length` counts the
    numbers in a message. `min_sites` is the study's; `colluding` survivors may work with the hub, and at least three
    more are needed.
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
        """Fewest survivors for which masks are opened."""
        return max(self.min_sites, FEWEST_HONEST + self.colluding)

    def statement(self, phase: str, *parts: bytes) -> bytes:
        """The bytes to sign in a phase: protocol, phase, ctx and the parts, each after its length."""
        return b"".join(map(prefixed, (_PROTOCOL, phase.encode(), self.context, *parts)))

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {**vars(self), "context": self.context.hex(), "sites": list(self.sites)}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """The round from its JSON values."""
        return cls(**{**fields, "context": bytes.fromhex(fields["context"]), "sites": tuple(fields["sites"])})


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
        """As JSON text."""
        return json.dumps({"site": self.site, "public_key": self.public_key.hex(), "signature": self.signature.hex()})

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read from JSON text; raises MalformedPart."""
        fields = parse_object(text, "site", "public_key", "signature")
        return cls(text_field(fields["site"]), key_field(fields["public_key"]), hex_field(fields["signature"]))


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
        """Digest that identifies this message in the list of survivors and in the total."""
        return hashlib.sha256(self.content(of)).hexdigest()


@dataclass(frozen=True)
class SurvivorList:
    """Step 4: the sites whose masked messages arrived, each with its message's digest; sorted by site."""

    members: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", tuple(sorted(self.members)))
        if len(set(self.sites)) != len(self.sites):
            raise MalformedPart("The list of survivors names a site twice. Ask the hub for a new one.")

    @property
    def sites(self) -> tuple[str, ...]:
        """U, the names of the survivors."""
        return tuple(site for site, _ in self.members)

    def dropped(self, of: Round) -> tuple[str, ...]:
        """The sites of the roster that are not in the list."""
        return tuple(site for site in of.sites if site not in self.sites)

    def digest(self, of: Round) -> str:
        """SHA-256 of round and members: what every survivor signs."""
        parts = (part.encode() for member in self.members for part in member)
        return hashlib.sha256(of.statement("survivors", *parts)).hexdigest()

    def to_json(self) -> str:
        """As JSON text."""
        return json.dumps({"members": [list(member) for member in self.members]})

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read from JSON text; raises MalformedPart."""
        return cls(pairs_field(parse_object(text, "members")["members"]))


@dataclass(frozen=True)
class Confirmation:
    """Step 4: a survivor's signature under the list that it was shown, identified by `list_digest`."""

    site: str
    list_digest: str
    signature: bytes = b""

    def content(self, of: Round) -> bytes:
        """What the survivor signs: the same bytes for all who were shown the same list."""
        return of.statement("confirmation", self.list_digest.encode())

    def to_json(self) -> str:
        """As JSON text."""
        return json.dumps({**vars(self), "signature": self.signature.hex()})

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read from JSON text; raises MalformedPart."""
        fields = parse_object(text, "site", "list_digest", "signature")
        return cls(text_field(fields["site"]), text_field(fields["list_digest"]), hex_field(fields["signature"]))


@dataclass(frozen=True, repr=False)
class Opening:
    """Step 5: a survivor's own mask b_i, and the key it shares with each dropped site, sorted by site."""

    site: str
    self_mask: bytes
    pair_keys: tuple[tuple[str, bytes], ...]
    signature: bytes = b""

    def content(self, of: Round, survivors: SurvivorList) -> bytes:
        """What the survivor signs."""
        shared = (part for other, shared_key in self.pair_keys for part in (other.encode(), shared_key))
        return of.statement("opening", survivors.digest(of).encode(), self.site.encode(), self.self_mask, *shared)

    def to_json(self) -> str:
        """As JSON text."""
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
        """Read from JSON text; raises MalformedPart."""
        fields = parse_object(text, "site", "self_mask", "pair_keys", "signature")
        shared = tuple((other, key_field(digits)) for other, digits in pairs_field(fields["pair_keys"]))
        return cls(text_field(fields["site"]), key_field(fields["self_mask"]), shared, hex_field(fields["signature"]))


def require_enough(agreed: Round, survivors: SurvivorList) -> None:
    """Refuse a list of too few survivors."""
    if len(survivors.sites) < agreed.fewest:
        raise TooFewSurvivors(
            f"{len(survivors.sites)} sites are left and {agreed.fewest} are needed: a sum over fewer would stand for "
            "one of them. No mask was opened. Start a new round when the others are back."
        )


def parse_object(text: str | bytes, *expected: str) -> dict[str, Any]:
    """Parse a JSON object that must have exactly the `expected` keys."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or set(fields) != set(expected):
        raise MalformedPart(
            f"A part of the secure sum should hold {', '.join(expected)} and cannot be read. Ask its sender again."
        )
    return fields


def text_field(value: Any) -> str:
    """A non-empty text; raises MalformedPart."""
    if not isinstance(value, str) or not value:
        raise MalformedPart("A part of the secure sum lacks a name. Ask its sender for it again.")
    return value


def hex_field(value: Any) -> bytes:
    """Bytes from hexadecimal digits; raises MalformedPart."""
    try:
        return bytes.fromhex(text_field(value)) if value != "" else b""
    except ValueError:
        raise MalformedPart("A part of the secure sum holds no hexadecimal digits. Ask its sender again.") from None


def key_field(value: Any) -> bytes:
    """A key of 32 bytes from hexadecimal digits; raises MalformedPart."""
    content = hex_field(value)
    if len(content) != KEY_BYTES:
        raise MalformedPart(f"A key of the secure sum has {KEY_BYTES} bytes; this one has {len(content)}.")
    return content


def pairs_field(value: Any) -> tuple[tuple[str, str], ...]:
    """A list of pairs of non-empty texts; raises MalformedPart."""
    if not isinstance(value, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        raise MalformedPart("A part of the secure sum lacks its list of sites. Ask its sender for it again.")
    return tuple((text_field(first), text_field(second)) for first, second in value)
