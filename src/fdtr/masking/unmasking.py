"""From masked messages and openings to the total: the hub's steps, which everybody can repeat."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fdtr.errors import ProtocolViolation, WrongSite
from fdtr.masking.fixed_point import FixedPoint
from fdtr.masking.mask_streams import add_pair_mask, stream
from fdtr.masking.protocol_messages import MaskedMessage, Opening, Round, SurvivorList, Verify, require_enough
from fdtr.summary import SiteSummary, Total
from fdtr.sums import Sums

Words = NDArray[np.uint64]


def list_survivors(agreed: Round, messages: Iterable[MaskedMessage], verify: Verify) -> SurvivorList:
    """Step 4, at the hub: the sites whose valid messages arrived, with the digest of each."""
    by_site = _by_site(messages)
    for message in by_site.values():
        _require_message(agreed, message, verify)
    survivors = SurvivorList(tuple((site, message.digest(agreed)) for site, message in by_site.items()))
    require_enough(agreed, survivors)
    return survivors


def unmask(
    agreed: Round,
    survivors: SurvivorList,
    messages: Iterable[MaskedMessage],
    openings: Iterable[Opening],
    verify: Verify,
) -> Words:
    """Step 6: the sum of the survivors' numbers modulo 2⁶⁴, from public messages and openings.

    Masks between survivors cancel. What remains are the survivors' own masks and those shared with dropped sites. A
    message with the digest in the list needs no other signature: its sender opens its mask only for a list that has it.
    """
    require_enough(agreed, survivors)
    dropped = survivors.dropped(agreed)
    by_site, opened = _by_site(messages), {opening.site: opening for opening in openings}
    total = np.zeros(agreed.length, dtype=np.uint64)
    for site, digest in survivors.members:
        message, opening = by_site.get(site), opened.get(site)
        if message is None or message.digest(agreed) != digest:
            raise ProtocolViolation(
                f"The masked message of {site!r} is missing or not the one that the survivors signed for. Restore the "
                "message as it was posted, or start a new round."
            )
        _require_message(agreed, message)
        if opening is None or tuple(other for other, _ in opening.pair_keys) != dropped:
            raise ProtocolViolation(
                f"The opening of {site!r} is missing or does not cover the sites that dropped out. Wait for it; if it "
                "does not come, start a new round."
            )
        if not verify(site, opening.content(agreed, survivors), opening.signature):
            raise ProtocolViolation(
                f"The opening of {site!r} is not signed with its key of the roster, for this round and this list of "
                "survivors. It may belong to another round. Ask the site to post its opening again."
            )
        total += message.vector - stream(opening.self_mask, agreed.length)
        for other, shared in opening.pair_keys:
            add_pair_mask(total, shared, other, site)  # names swapped: subtracts what the site added
    return total


def masked_total(
    survivors: SurvivorList, numbers: Words, scale: FixedPoint, fingerprint: str, mean_weight: float = 1.0
) -> Total:
    """The unmasked numbers as a total, checked for range; its members are the masked messages it was made of."""
    sums = scale.decode(numbers, len(survivors.sites))
    return Total(fingerprint, survivors.members, sums, resolution=scale.resolution, mean_weight=mean_weight)


def as_sent(summary: SiteSummary, scale: FixedPoint, masked_digest: str) -> SiteSummary:
    """A site's summary as it is in a masked total: rounded, and identified by the digest of the masked message."""
    quantised: Sums = scale.quantised(summary.sums)
    return replace(summary, sums=quantised, sent_as=masked_digest)


def _by_site(messages: Iterable[MaskedMessage]) -> dict[str, MaskedMessage]:
    by_site: dict[str, MaskedMessage] = {}
    for message in messages:
        if message.site in by_site:
            raise WrongSite(f"Site {message.site!r} posted two masked messages. Start a new round.")
        by_site[message.site] = message
    return by_site


def _require_message(agreed: Round, message: MaskedMessage, verify: Verify | None = None) -> None:
    sound = message.vector.dtype == np.uint64 and message.vector.shape == (agreed.length,)
    if message.site not in agreed.sites or not sound:
        raise ProtocolViolation(
            f"The masked message of {message.site!r} does not fit this round: the site is not on the roster, or the "
            f"message does not hold {agreed.length} whole numbers. Leave it out."
        )
    if verify is not None and not verify(message.site, message.content(agreed), message.signature):
        raise ProtocolViolation(
            f"The masked message of {message.site!r} is not signed with its key of the roster, for this round. Leave "
            "it out, or ask the site to post it again."
        )
