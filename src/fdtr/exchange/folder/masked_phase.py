"""A masked phase of a round, of counts or of sums: numbers are posted, listed, signed for and opened."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from fdtr.errors import NoStudyFolder
from fdtr.exchange.folder.round_files import masked_length
from fdtr.exchange.folder_layout import SUM_PHASE, PhaseNames, sites_of
from fdtr.masking import Announcement, Confirmation, MaskedMessage, Opening, SurvivorList, unmask
from fdtr.masking import Round as MaskedRound
from fdtr.signing import Round, is_signed
from fdtr.study import Study


@dataclass(frozen=True)
class MaskedPhase:
    """One masked phase of a round among `senders`, of counts or of sums: what everybody posted of it, verified."""

    study: Study
    within: Round
    senders: tuple[str, ...]
    names: PhaseNames
    keys: dict[str, Announcement]
    masked: dict[str, MaskedMessage]
    confirmed: dict[str, Confirmation]
    opened: dict[str, Opening]
    survivors: SurvivorList | None

    @cached_property
    def round(self) -> MaskedRound:
        """The round in which the masks of this phase are agreed."""
        return masked_round(self.study, self.within, self.senders, self.names)

    @property
    def parts(self) -> dict[str, Mapping[str, object]]:
        """What the sites posted, by the name of the part."""
        names = self.names
        return {names.masked: self.masked, names.confirmed: self.confirmed, names.opened: self.opened}

    @cached_property
    def dissenters(self) -> list[str]:
        """Sites that signed another list of survivors than the hub's."""
        if self.survivors is None:
            return []
        expected = self.survivors.digest(self.round)
        return [site for site, signed in self.confirmed.items() if signed.list_digest != expected]

    @property
    def is_open(self) -> bool:
        """Whether every survivor opened its masks, so that everybody can compute the total."""
        return self.survivors is not None and all(site in self.opened for site in self.survivors.sites)

    def verify(self, site: str, content: bytes, signature: bytes) -> bool:
        """Whether a site of the roster signed the content."""
        public = self.study.roster.get(site)
        return public is not None and is_signed(public, content, signature.hex())

    def open_total(self, survivors: SurvivorList | None = None) -> tuple[SurvivorList, NDArray[np.uint64]]:
        """The survivors, by default those of the hub's list, and the sum of their numbers.

        Anybody can compute it from what is posted.
        """
        survivors = survivors or self.survivors
        if survivors is None:
            raise NoStudyFolder(f"Round {self.within.name} has no list of survivors yet.")
        numbers = unmask(self.round, survivors, self.masked.values(), self.opened.values(), self.verify)
        return survivors, numbers


def masked_round(
    study: Study, within: Round, senders: tuple[str, ...] | None = None, names: PhaseNames = SUM_PHASE
) -> MaskedRound:
    """A masked phase among `senders`, by default the whole roster, with as many survivors as rule SITES asks for.

    Counts have a context of their own, so that their masks are others than those of sums.
    """
    context = bytes.fromhex(within.context)
    context = context if names == SUM_PHASE else sha256(names.masked.encode() + context).digest()
    sites = sites_of(study.roster) if senders is None else senders
    length = masked_length(names.masked, study)
    return MaskedRound(context, sites, length, study.required_sites, study.disclosure.colluding)
