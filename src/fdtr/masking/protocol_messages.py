"""What the sites and the hub post in a round of the secure sum, and the bytes that are signed.

Signatures come from outside: `Sign` makes this site's signature, `Verify` checks that of a site on the roster.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, StrictInt, TypeAdapter, ValidationError

from fdtr.errors import MalformedPart, TooFewSurvivors
from fdtr.masking.mask_streams import KEY_BYTES, prefixed

Words = NDArray[np.uint64]
Sign = Callable[[bytes], bytes]
Verify = Callable[[str, bytes, bytes], bool]
"""(site, content, signature) → whether the site signed the content."""

FEWEST_HONEST = 3
"""A sum over two sites tells each the other's; besides the hub and colluding sites there must be at least three."""

_PROTOCOL = b"fdtr secure sum 1"


def _from_hex(value: Any) -> Any:
    return bytes.fromhex(value) if isinstance(value, str) else value


Name = Annotated[str, Field(min_length=1)]
Pairs = tuple[tuple[Name, Name], ...]
Hex = Annotated[bytes, BeforeValidator(_from_hex), PlainSerializer(bytes.hex)]
"""Bytes that are hexadecimal digits in JSON."""
KeyBytes = Annotated[Hex, Field(min_length=KEY_BYTES, max_length=KEY_BYTES)]


class JsonPart:
    """A dataclass that travels, or is stored, as JSON. Its annotations say what each field has to be."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    def to_values(self) -> dict[str, Any]:
        """As JSON values."""
        values: dict[str, Any] = self._adapter().dump_python(self, mode="json")
        return values

    def to_json(self) -> str:
        """As JSON text."""
        return json.dumps(self.to_values())

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The part from its JSON text; raises MalformedPart."""
        try:
            return cls.from_values(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise error if isinstance(error, MalformedPart) else _malformed(cls) from None

    @classmethod
    def from_values(cls, values: Any) -> Self:
        """The part from its JSON values; raises MalformedPart, which quotes none of them: they may be secrets."""
        if not isinstance(values, dict) or set(values) != {field.name for field in fields(cls)}:  # type: ignore[arg-type]
            raise _malformed(cls)  # a field with a default has to be there too
        try:
            part: Self = cls._adapter().validate_python(values)
        except ValidationError as error:
            faults = error.errors()
            reasons = [fault.get("ctx", {}).get("error") for fault in faults]
            stated = [reason for reason in reasons if isinstance(reason, MalformedPart)]
            raise stated[0] if stated else _malformed(cls, faults[0]["loc"][:1]) from None
        return part

    @classmethod
    @cache
    def _adapter(cls) -> TypeAdapter[Any]:
        return TypeAdapter(cls)


def _malformed(kind: type[JsonPart], field: Sequence[int | str] = ()) -> MalformedPart:
    """The refusal of a part; `field` names the one that cannot be read, if the part has all of them and no other."""
    names = ", ".join(kind.__annotations__)
    fault = f"its {field[0]} is not what the protocol asks for" if field else "it cannot be read"
    return MalformedPart(f"A part of the secure sum should hold {names}, and {fault}. Ask its sender again.")


@dataclass(frozen=True)
class Round(JsonPart):
    """What all parties of a round agree on beforehand.

    `context` is ctx, 32 bytes that bind study, roster and round; `sites` is the whole roster; `length` counts the
    numbers in a message. `min_sites` is the study's; `colluding` survivors may work with the hub, and at least three
    more are needed.
    """

    context: Hex
    sites: tuple[str, ...]
    length: StrictInt
    min_sites: StrictInt = FEWEST_HONEST
    colluding: StrictInt = 0

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


@dataclass(frozen=True)
class Announcement(JsonPart):
    """Step 1: a site's X25519 public key for this round."""

    site: Name
    public_key: KeyBytes
    signature: Hex = b""

    def content(self, of: Round) -> bytes:
        """What the site signs."""
        return of.statement("announcement", self.site.encode(), self.public_key)


@dataclass(frozen=True)
class Announcements(JsonPart):
    """A site's keys for a round: for its sums and, if totals of counts are opened first, for its counts."""

    sums: Announcement
    counts: Announcement | None = None

    @property
    def site(self) -> str:
        """The site that announces them; "" where it is two."""
        same = self.counts is None or self.counts.site == self.sums.site
        return self.sums.site if same else ""


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
class SurvivorList(JsonPart):
    """Step 4: the sites whose masked messages arrived, each with its message's digest; sorted by site."""

    members: Pairs

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


@dataclass(frozen=True)
class Confirmation(JsonPart):
    """Step 4: a survivor's signature under the list that it was shown, identified by `list_digest`."""

    site: Name
    list_digest: Name
    signature: Hex = b""

    def content(self, of: Round) -> bytes:
        """What the survivor signs: the same bytes for all who were shown the same list."""
        return of.statement("confirmation", self.list_digest.encode())


@dataclass(frozen=True, repr=False)
class Opening(JsonPart):
    """Step 5: a survivor's own mask b_i, and the key it shares with each dropped site, sorted by site."""

    site: Name
    self_mask: KeyBytes
    pair_keys: tuple[tuple[Name, KeyBytes], ...]
    signature: Hex = b""

    def content(self, of: Round, survivors: SurvivorList) -> bytes:
        """What the survivor signs."""
        shared = (part for other, shared_key in self.pair_keys for part in (other.encode(), shared_key))
        return of.statement("opening", survivors.digest(of).encode(), self.site.encode(), self.self_mask, *shared)


def require_enough(agreed: Round, survivors: SurvivorList) -> None:
    """Refuse a list of too few survivors."""
    if len(survivors.sites) < agreed.fewest:
        raise TooFewSurvivors(
            f"{len(survivors.sites)} sites are left and {agreed.fewest} are needed: a sum over fewer would stand for "
            "one of them. No mask was opened. Start a new round when the others are back."
        )
