"""What lies in a study's folder, as far as it can be believed."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

from fdtr.container import OpenFile
from fdtr.errors import MissingFile, NoStudyFolder, OtherTotal, UnreadableFile
from fdtr.exchange.folder import parts
from fdtr.exchange.folder.layout import ROUNDS, STUDY, SUFFIX, SUMS, TOTAL, file_name, round_folder
from fdtr.exchange.folder.reader import Reader
from fdtr.exchange.wire import open_message, open_total
from fdtr.hub import combine_messages
from fdtr.masking import (
    Announcement,
    Confirmation,
    FixedPoint,
    MaskedMessage,
    Opening,
    SurvivorList,
    masked_total,
    unmask,
)
from fdtr.masking import Round as MaskedRound
from fdtr.signing import HUB, Round, is_signed, numbered_round
from fdtr.study import Study, read_study_bytes
from fdtr.summary import SiteSummary, Total

MOST_ROUNDS = 9999
"""Each is looked for, from the first on: more than anybody needs, and few enough to look."""
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")

Part = TypeVar("Part")


@dataclass(frozen=True)
class Board:
    """One round of a study's folder: what everybody posted, verified. What fails is in `faults`, and counts as absent.

    `number` is the round's; without a roster whoever posted sums is a site.
    """

    folder: Path
    study: Study
    number: int
    sums: dict[str, SiteSummary]
    keys: dict[str, Announcement]
    masked: dict[str, MaskedMessage]
    confirmed: dict[str, Confirmation]
    opened: dict[str, Opening]
    survivors: SurvivorList | None
    total: Total | None
    faults: tuple[str, ...]

    @property
    def within(self) -> Round:
        """The round that everything here must be of."""
        return numbered_round(self.study.fingerprint, self.study.roster, self.number)

    @property
    def sites(self) -> tuple[str, ...]:
        """Who takes part."""
        return parts.sites_of(self.study.roster) or tuple(sorted(self.sums))

    @property
    def is_masked(self) -> bool:
        """Whether the study asks for a secure sum."""
        return self.study.disclosure.secure_sum

    @property
    def scale(self) -> FixedPoint:
        """How sums become whole numbers in this round."""
        return scale_of(self.study)

    @property
    def agreed(self) -> MaskedRound:
        """The round as the secure sum knows it."""
        return masked_round(self.study, self.within)

    def path(self, part: str, site: str) -> Path:
        """Where a site posts a part."""
        return round_folder(self.folder, self.number) / part / file_name(site)

    def hub_path(self, part: str) -> Path:
        """Where the hub does."""
        return round_folder(self.folder, self.number) / HUB / f"{part}{SUFFIX}"

    def verify(self, site: str, content: bytes, signature: bytes) -> bool:
        """Whether a site of the roster signed the content."""
        public = self.study.roster.get(site)
        return public is not None and is_signed(public, content, signature.hex())

    def lacking(self, given: Mapping[str, object], among: tuple[str, ...] | None = None) -> list[str]:
        """The sites without such a part."""
        return [site for site in (self.sites if among is None else among) if site not in given]

    @cached_property
    def dissenters(self) -> list[str]:
        """Sites that signed another list of survivors than the one that lies here."""
        if self.survivors is None:
            return []
        expected = self.survivors.digest(self.agreed)
        return [site for site, one in self.confirmed.items() if one.list_digest != expected]

    def add_up(self, members: tuple[str, ...]) -> Total:
        """The total of `members`, from what lies here; anybody can."""
        if not self.is_masked:
            return combine_messages(self.study, [self.sums[site] for site in members])
        if self.survivors is None:
            raise NoStudyFolder(f"Round {self.number} has no list of survivors yet.")
        numbers = unmask(self.agreed, self.survivors, self.masked.values(), self.opened.values(), self.verify)
        return masked_total(self.survivors, numbers, self.scale, self.study.fingerprint)

    def checked_total(self) -> Total:
        """The hub's total, once it is found to be the sum of what lies here."""
        posted = self.total
        if posted is None:
            raise NoStudyFolder(f"Round {self.number} has no total yet.")
        gone = [site for site in posted.sites if site not in self.sums] if not self.is_masked else []
        if gone and HUB in self.study.roster:
            return posted  # the hub's signature is what is left to go by
        if gone:
            raise OtherTotal(
                f"The message of {gone[0]!r} is no longer in the folder, and the hub signs nothing: whether the total "
                "is the sum of the sites' messages cannot be told. Nothing was fitted. Restore the message."
            )
        own = self.add_up(posted.sites)
        if own != posted:
            raise OtherTotal(
                f"{self.hub_path(TOTAL)} is not the sum of the sites' messages in this folder. Do not use it, and ask "
                "the hub; nothing was fitted."
            )
        return own


def scale_of(study: Study) -> FixedPoint:
    """How a study's sums become whole numbers; K is the whole roster, whoever drops out."""
    most = study.disclosure.max_patients or 1
    return FixedPoint(study.horizon, study.feature_map.n_shared, max(len(parts.sites_of(study.roster)), 1), most)


def masked_round(study: Study, within: Round) -> MaskedRound:
    """The round as the secure sum knows it, with as many survivors as rule SITES asks for."""
    constant = sum(c.effect == "shared" and c.level == "site" for c in study.covariates)
    fewest = max(study.disclosure.min_sites, constant * (constant + 1) // 2 + 1)
    sites = parts.sites_of(study.roster)
    return MaskedRound(bytes.fromhex(within.context), sites, scale_of(study).length, fewest, study.disclosure.colluding)


def cautions(study: Study) -> tuple[str, ...]:
    """What everybody should know of a secure sum's resolution, before anything is posted."""
    caution = scale_of(study).caution if study.disclosure.secure_sum else ""
    return (caution,) if caution else ()


def read_study(folder: Path) -> Study:
    """The study of a folder."""
    path = folder / STUDY
    try:
        study = Study.parse(read_study_bytes(path, folder), path)
    except MissingFile:
        raise NoStudyFolder(
            f"{folder} is no study's folder: it has no {STUDY}. Name the folder that `fdtr hub open` made; a synced "
            "one may still be on its way."
        ) from None
    require_keys(study)
    return study


def require_keys(study: Study) -> None:
    """Refuse a secure sum without signatures, the hub's among them.

    Masks hold whoever wrote the list of survivors. But where anybody may write it, anybody chooses who is in the sum,
    and so gets sums over as few sites as the study lets there be.
    """
    if not study.disclosure.secure_sum or HUB in study.roster:
        return
    lacks = "no key of the hub" if study.roster else "no [roster]"
    raise NoStudyFolder(
        f"The study asks for a secure sum and has {lacks}: whoever can write into the folder could choose the sites "
        "that are summed. Nothing was written. Every site, and the hub, makes a key with `fdtr keys new`; add them "
        "with `fdtr roster add`."
    )


def read_board(folder: Path, study: Study | None = None) -> Board:
    """Read and verify all of the newest round that the hub opened.

    `study` is what the reader relies on, the folder's own where it is None.
    """
    study = study or read_study(folder)
    reader = Reader(folder)
    number = _newest(reader, study)
    within = numbered_round(study.fingerprint, study.roster, number)
    place, sites = round_folder(folder, number), parts.sites_of(study.roster)
    masked = study.disclosure.secure_sum
    length = scale_of(study).length if masked else 0

    def of_sites(part: str, read: Callable[[OpenFile, str], Part]) -> dict[str, Part]:
        return reader.of_sites(place / part, sites, read) if masked else {}

    def sums() -> dict[str, SiteSummary]:
        if masked:
            return {}
        if not sites:
            return reader.of_anybody(place / SUMS, lambda file: open_message(file, study, within).body)
        return reader.of_sites(place / SUMS, sites, lambda file, site: _message(file, site, study, within))

    def of_hub(part: str, read: Callable[[OpenFile], Part]) -> Part | None:
        return reader.one(place / HUB / f"{part}{SUFFIX}", read)

    return Board(
        folder=folder,
        study=study,
        number=number,
        sums=sums(),
        keys=of_sites(parts.KEYS, lambda f, s: parts.read_keys(f, s, within)),
        masked=of_sites(parts.MASKED, lambda f, s: parts.read_masked(f, s, within, length)),
        confirmed=of_sites(parts.CONFIRMED, lambda f, s: parts.read_confirmed(f, s, within)),
        opened=of_sites(parts.OPENED, lambda f, s: parts.read_opened(f, s, within)),
        survivors=of_hub(parts.SURVIVORS, lambda f: parts.read_survivors(f, within)) if masked else None,
        total=of_hub(TOTAL, lambda f: open_total(f, study, within).body),
        faults=reader.faults,
    )


def _newest(reader: Reader, study: Study) -> int:
    """The newest round that the hub opened for this study; what is wrong with rounds beyond it is noted."""
    last = last_round(reader.folder)
    _note_beyond(reader, last)
    for number in range(last, 0, -1):
        within = numbered_round(study.fingerprint, study.roster, number)
        if reader.one(begun_path(reader.folder, number), partial(parts.read_begun, within=within)) is not None:
            return number
    reason = f" {reader.faults[0]}" if reader.faults else ""
    raise NoStudyFolder(
        f"{reader.folder} has no round that the hub opened under this study and roster.{reason} The hub opens one with "
        "`fdtr hub open` or, where the roster changed, `fdtr hub new-round`."
    )


def begun_path(folder: Path, number: int) -> Path:
    """Where the hub says that a round is open."""
    return round_folder(folder, number) / HUB / f"{parts.BEGUN}{SUFFIX}"


def last_round(folder: Path) -> int:
    """How many rounds were begun, one after the other.

    They count only without a hole: one that is numbered far ahead would keep every later one from being the newest.
    """
    number = 0
    while number < MOST_ROUNDS and os.path.lexists(begun_path(folder, number + 1)):
        number += 1
    return number


def _note_beyond(reader: Reader, last: int) -> None:
    """Note rounds that do not follow on the last."""
    names = reader.names(reader.folder / ROUNDS)
    ahead = min((int(name) for name in names if _NUMBER.fullmatch(name) and int(name) > last + 1), default=0)
    if ahead:
        skipped = f"leaves out round {last + 1}, which the hub has not begun. Rounds count up one by one."
        reader.note(f"{round_folder(reader.folder, ahead)} {skipped}")


def _message(file: OpenFile, site: str, study: Study, within: Round) -> SiteSummary:
    found = open_message(file, study, within).body
    if found.site != site:
        raise UnreadableFile(f"{file} is of {found.site!r} and lies under the name of {site!r}.")
    return found
