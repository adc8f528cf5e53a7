"""A site's steps in a round of the secure sum, as functions from one state to the next.

Each step returns a new `SiteRound`, and what the site then posts follows from that state alone. Save the state before
posting: after a crash the same state gives the same bytes again, never other bytes under the same keys.
"""

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, PlainSerializer, StrictBool

from fdtr.errors import OtherStudy, ProtocolViolation
from fdtr.masking.mask_streams import KEY_BYTES, add_pair_mask, pair_keys, public_key, stream
from fdtr.masking.protocol_messages import (
    Announcement,
    Confirmation,
    Hex,
    JsonPart,
    KeyBytes,
    MaskedMessage,
    Name,
    Opening,
    Round,
    Sign,
    SurvivorList,
    Verify,
    require_enough,
)
from fdtr.masking.round_history import History

Words = NDArray[np.uint64]
_NO_KEYS: Mapping[str, str] = MappingProxyType({})


_StoredSurvivors = Annotated[
    SurvivorList | None,
    BeforeValidator(lambda members: members if members is None else {"members": members}),
    PlainSerializer(lambda survivors: survivors and survivors.to_values()["members"]),
]


@dataclass(frozen=True, repr=False)
class SiteRound(JsonPart):
    """A site's secrets and progress in one round. Never leaves the site.

    `private_key` is deleted once the pair keys exist; `pair_keys` are (other site, key); `self_mask` is b_i;
    `masked_digest` is the digest of the masked message; `survivors` is the one list that this site signs. `opened` says
    that its masks may be posted; of the pair keys only those shared with dropped sites are then kept.
    """

    round: Round
    site: Name
    private_key: Hex
    self_mask: Hex
    pair_keys: tuple[tuple[Name, KeyBytes], ...] = ()
    masked_digest: str = ""
    survivors: _StoredSurvivors = None
    opened: StrictBool = False  # nothing but JSON's true may open masks

    def announcement(self, sign: Sign) -> Announcement:
        """Step 1: the site's public key for this round, signed."""
        if not self.private_key:
            raise ProtocolViolation(
                f"Site {self.site!r} has announced its key for this round and masked a message with it."
            )
        bare = Announcement(self.site, public_key(self.private_key))
        return replace(bare, signature=sign(bare.content(self.round)))

    def masked(self, vector: Words, sign: Sign) -> MaskedMessage:
        """Step 3: the masked message of `vector`, which must be the vector that `mask` was called with."""
        if not self.masked_digest or self.opened or not self.self_mask:
            raise ProtocolViolation(f"Site {self.site!r} holds no masks for this round, or no longer.")
        bare = self._masked(vector)
        if bare.digest(self.round) != self.masked_digest:
            raise ProtocolViolation(
                f"Site {self.site!r} has already masked other sums in this round. A second message under the same "
                "masks would give the difference away. Nothing was written. Join a new round."
            )
        return replace(bare, signature=sign(bare.content(self.round)))

    def confirmation(self, sign: Sign) -> Confirmation:
        """Step 4: this site's signature under the list of survivors."""
        bare = Confirmation(self.site, self._signed_list().digest(self.round))
        return replace(bare, signature=sign(bare.content(self.round)))

    def opening(self, sign: Sign) -> Opening:
        """Step 5: b_i and the keys shared with dropped sites, once `allow_opening` allowed it."""
        if not self.opened or not self.self_mask:
            raise ProtocolViolation(
                f"Site {self.site!r} has not seen every survivor's signature; its masks stay closed."
            )
        bare = Opening(self.site, self.self_mask, self.pair_keys)
        return replace(bare, signature=sign(bare.content(self.round, self._signed_list())))

    def destroyed(self) -> "SiteRound":
        """The state without its secrets, for a round that has ended or was given up."""
        return replace(self, private_key=b"", self_mask=b"", pair_keys=())

    def _masked(self, vector: Words) -> MaskedMessage:
        if vector.dtype != np.uint64 or vector.shape != (self.round.length,):
            raise OtherStudy(f"A message of this round holds {self.round.length} whole numbers of 64 bits.")
        hidden = vector + stream(self.self_mask, len(vector))
        for other, shared in self.pair_keys:
            add_pair_mask(hidden, shared, self.site, other)
        return MaskedMessage(self.site, hidden)

    def _signed_list(self) -> SurvivorList:
        if self.survivors is None:
            raise ProtocolViolation(f"Site {self.site!r} has not accepted a list of survivors yet.")
        return self.survivors


def start(
    agreed: Round, site: str, history: History, entropy: Callable[[int], bytes] = secrets.token_bytes
) -> SiteRound:
    """Step 1: make fresh keys for one site and one round; `history` holds the site's earlier rounds."""
    if site not in agreed.sites:
        raise ProtocolViolation(f"Site {site!r} is not on the roster of this round: {', '.join(agreed.sites)}.")
    if history.knows(agreed.context):
        raise ProtocolViolation(
            f"Site {site!r} took part in this round before and no longer has its keys. A round is played once: join a "
            "new one."
        )
    return SiteRound(agreed, site, private_key=entropy(KEY_BYTES), self_mask=entropy(KEY_BYTES))


def mask(state: SiteRound, announcements: Iterable[Announcement], vector: Words, verify: Verify) -> SiteRound:
    """Steps 2 and 3: agree on a key with every site of the roster, and bind the masks to this message alone."""
    if state.masked_digest:
        state.masked(vector, lambda _: b"")  # refuses another message; the same one keeps its masks
        return state
    if not state.private_key:
        raise ProtocolViolation(f"Site {state.site!r} gave this round up. Join a new one.")
    public = _verified(state, announcements, verify)
    others = {other: public[other] for other in state.round.sites if other != state.site}
    try:
        shared = tuple(pair_keys(state.private_key, state.site, others, state.round.context).items())
    except ValueError:
        raise ProtocolViolation(
            "A site announced a key that would make its secrets known to all. Find out which; start a new round."
        ) from None
    keyed = replace(state, private_key=b"", pair_keys=shared)
    return replace(keyed, masked_digest=keyed._masked(vector).digest(state.round))


def accept_survivors(
    state: SiteRound, survivors: SurvivorList, history: History, keys: Mapping[str, str] = _NO_KEYS
) -> SiteRound:
    """Step 4: accept the hub's list of survivors; a site signs only one list in a round.

    `keys` are the sites' public keys on the roster: `history` may know a site's key under another name.
    """
    if not state.masked_digest or not state.self_mask:
        raise ProtocolViolation(f"Site {state.site!r} has no masked message in this round.")
    if state.survivors is not None and state.survivors != survivors:
        raise ProtocolViolation(
            f"Site {state.site!r} has signed another list of survivors in this round. One that signs two lets the hub "
            "unmask a site. Give the round up and join a new one; ask the hub why the list changed."
        )
    strangers = sorted(set(survivors.sites) - set(state.round.sites))
    if strangers:
        raise ProtocolViolation(
            f"The list of survivors names {strangers[0]!r}, who is not on the roster. Do not sign it."
        )
    if dict(survivors.members).get(state.site) != state.masked_digest:
        raise ProtocolViolation(
            f"The list of survivors lacks site {state.site!r} or names a message that it did not send. Nothing was "
            "signed, and its masks stay closed. Wait for a new round."
        )
    require_enough(state.round, survivors)
    _require_unlike(state, survivors, history, keys)
    return replace(state, survivors=survivors)


def allow_opening(
    state: SiteRound,
    confirmations: Iterable[Confirmation],
    history: History,
    verify: Verify,
    keys: Mapping[str, str] = _NO_KEYS,
) -> SiteRound:
    """Step 5: allow the opening once every survivor has signed the list that this site signed.

    `history` is checked again, because another round may have been opened since the list was signed.
    """
    survivors = state._signed_list()
    if state.opened:
        return state
    if not state.self_mask:
        raise ProtocolViolation(f"Site {state.site!r} gave this round up; its masks are gone. Join a new one.")
    _require_unlike(state, survivors, history, keys)
    require_signatures(state.round, survivors, confirmations, verify)
    dropped = survivors.dropped(state.round)
    return replace(state, opened=True, pair_keys=tuple(pair for pair in state.pair_keys if pair[0] in dropped))


def _require_unlike(state: SiteRound, survivors: SurvivorList, history: History, keys: Mapping[str, str]) -> None:
    known = {site: keys.get(site, site) for site in survivors.sites}
    history.require_unlike(state.round.context, known, state.round.colluding)


def require_signatures(
    agreed: Round, survivors: SurvivorList, confirmations: Iterable[Confirmation], verify: Verify
) -> None:
    """Refuse unless every survivor signed this list, and nobody on the roster signed another one."""
    expected, signed = survivors.digest(agreed), set()
    for confirmation in confirmations:
        site, signature = confirmation.site, confirmation.signature
        if site not in agreed.sites or not verify(site, confirmation.content(agreed), signature):
            continue
        if confirmation.list_digest != expected:
            raise ProtocolViolation(
                f"Site {site!r} signed another list of survivors than this site. The hub showed different lists, "
                "which is how it could unmask one site. No mask was opened. Give the round up; ask the hub."
            )
        signed.add(site)
    missing = [site for site in survivors.sites if site not in signed]
    if missing:
        raise ProtocolViolation(
            f"{', '.join(map(repr, missing))} has not signed the list of survivors, or not with the key of the roster. "
            "No mask was opened. Wait for the signature; if it does not come, start a new round."
        )


def _verified(state: SiteRound, announcements: Iterable[Announcement], verify: Verify) -> dict[str, bytes]:
    """The announced public key of every site on the roster, with signatures checked."""
    public_keys: dict[str, bytes] = {}
    for announcement in announcements:
        site, announced = announcement.site, announcement.public_key
        if site not in state.round.sites:
            raise ProtocolViolation(f"{site!r} announced a key and is not on the roster. Leave it out.")
        if public_keys.get(site, announced) != announced:
            raise ProtocolViolation(f"Site {site!r} announced two keys for one round. Start a new round.")
        if not verify(site, announcement.content(state.round), announcement.signature):
            raise ProtocolViolation(
                f"The key that {site!r} announced is not signed with its key of the roster, for this round. "
                "Nothing was masked. Call the site and compare fingerprints."
            )
        public_keys[site] = announced
    missing = [site for site in state.round.sites if site not in public_keys]
    if missing:
        raise ProtocolViolation(
            f"No key yet from {', '.join(map(repr, missing))}. Every site of the roster announces one before any masks "
            "its message: wait, or agree on a roster without it."
        )
    if public_keys[state.site] != public_key(state.private_key):
        raise ProtocolViolation(
            f"The key announced for {state.site!r} is not the one this site made. Start a new round."
        )
    if len(set(public_keys.values())) != len(public_keys):
        raise ProtocolViolation("Two sites announced the same key. Find out which; start a new round.")
    return public_keys
