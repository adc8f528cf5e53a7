"""A snapshot of the newest round in a study's folder: all that passes every check."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from fdtr.container import OpenFile, opened, opened_folder
from fdtr.disclosure.common_repairs import CommonRepairs, taken_out
from fdtr.disclosure.rules import listed
from fdtr.errors import (
    ChangedSummary,
    DisclosureError,
    FdtrError,
    MissingFile,
    NoStudyFolder,
    ProtocolViolation,
    UnreadableFile,
)
from fdtr.exchange.folder.masked_phase import MaskedPhase
from fdtr.exchange.folder.round_files import read_part, scale_of
from fdtr.exchange.folder_layout import (
    BEGUN,
    COUNT_PHASE,
    KEYS,
    RECEIVES,
    ROUNDS,
    STUDY,
    SUM_PHASE,
    SUMS,
    TOTAL,
    PhaseNames,
    begun_path,
    file_name,
    last_round,
    part_path,
    round_folder,
    sites_of,
)
from fdtr.exchange.wire import MOST_SITES, open_message
from fdtr.hub import combine_messages
from fdtr.masking import (
    Announcement,
    Announcements,
    FixedPoint,
    SurvivorList,
    masked_total,
)
from fdtr.signing import HUB, Round, numbered_round
from fdtr.study import Study, read_study_bytes
from fdtr.summary import SiteSummary, Total

_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
_MOST_COUNTED = 20_000
_MOST_NAMED = 20

Part = TypeVar("Part")


@dataclass
class PostedFiles:
    """Reads the files in a study's `folder`, follows no link in it, and notes what fails a check.

    Where the sites are known, their files are opened by name. So strangers' files, however many, hide none of them.
    """

    folder: Path
    _faults: list[str] = field(default_factory=list)
    _unnamed: int = 0

    def read_one(self, path: Path, read: Callable[[OpenFile], Part]) -> Part | None:
        """What a file holds; None where it is absent or fails a check."""
        try:
            with opened(path, beneath=self.folder) as file:
                return read(file)
        except MissingFile:
            return None
        except FdtrError as error:
            self.note(str(error))
            return None

    def of_sites(self, place: Path, sites: Iterable[str], read: Callable[[OpenFile, str], Part]) -> dict[str, Part]:
        """What each of the sites posted in a folder."""
        ordered = sorted(sites)

        def read_site(site: str) -> Part | None:
            return self.read_one(place / file_name(site), lambda file: read(file, site))

        parts = {site: read_site(site) for site in ordered}
        self._note_strangers(place, set(map(file_name, ordered)))
        return {site: part for site, part in parts.items() if part is not None}

    def of_anybody(self, place: Path, read: Callable[[OpenFile], SiteSummary]) -> dict[str, SiteSummary]:
        """Messages of any site, where the study has no roster; each has to lie under its own site's name."""
        messages: dict[str, SiteSummary] = {}
        for name in self.names(place):
            message = self.read_one(place / name, read)
            if message is None:
                continue
            if name != file_name(message.site):
                self.note(f"{place / name} is of {message.site!r} and lies under another name.")
                continue
            messages[message.site] = message
            if len(messages) > MOST_SITES:
                raise UnreadableFile(
                    f"{place} holds messages of more than {MOST_SITES:,} sites, and the study has no [roster] that "
                    "says whose count. Nothing was done. Write one with `fdtr roster add`, in another folder."
                )
        return dict(sorted(messages.items()))

    def names(self, place: Path) -> Iterator[str]:
        """Names of the files in a folder, one by one. Half-written files begin with a dot and are skipped."""
        try:
            with opened_folder(place, self.folder) as descriptor, os.scandir(descriptor) as entries:
                for entry in entries:
                    if not entry.name.startswith("."):
                        yield entry.name
        except FileNotFoundError:
            return
        except OSError as error:
            self.note(f"{place} could not be listed: {error.strerror}.")
        except FdtrError as error:
            self.note(str(error))

    def note(self, fault: str) -> None:
        """Remember a fault once, without control characters: a stranger's file name must not steer a terminal."""
        sentence = "Ignored: " + "".join(c if c.isprintable() else "?" for c in fault)
        if sentence in self._faults:
            return
        if len(self._faults) < _MOST_NAMED:
            self._faults.append(sentence)
        else:
            self._unnamed += 1

    @property
    def faults(self) -> tuple[str, ...]:
        """All faults; beyond a few, their number."""
        rest = (f"Ignored: at least {self._unnamed:,} more.",) if self._unnamed else ()
        return (*self._faults, *rest)

    def _note_strangers(self, place: Path, expected: set[str]) -> None:
        strangers = (name for name in self.names(place) if name not in expected)
        for name in sorted(islice(strangers, _MOST_COUNTED)):
            self.note(f"{place / name} is under no name of this study's sites.")


@dataclass(frozen=True)
class RoundSnapshot:
    """Round `number` of a study's folder: what everybody posted, verified. What fails is in `faults`, and left out.

    `receivers` send nothing and receive the total. `counting` is None where no counts are opened before the sums.
    """

    folder: Path
    study: Study
    number: int
    sums: dict[str, SiteSummary]
    receivers: tuple[str, ...]
    keys: dict[str, Announcements]
    counting: MaskedPhase | None
    summing: MaskedPhase
    total: Total | None
    faults: tuple[str, ...]

    @property
    def within(self) -> Round:
        """The round to which everything in this snapshot belongs."""
        return numbered_round(self.study.fingerprint, self.study.roster, self.number)

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that send sums; without a roster, those that posted them."""
        return _senders(self.study, self.receivers) or tuple(sorted(self.sums))

    @property
    def is_masked(self) -> bool:
        """Whether the study asks for a secure sum."""
        return self.study.disclosure.secure_sum

    @property
    def expected(self) -> tuple[str, ...]:
        """The sites whose masked numbers are awaited next: once counts are listed, the sites of that list."""
        counted = self.counting.survivors if self.counting is not None else None
        return self.sites if counted is None else counted.sites

    @property
    def scale(self) -> FixedPoint:
        """How sums become whole numbers in this round."""
        return scale_of(self.study)

    @property
    def phases(self) -> tuple[MaskedPhase, ...]:
        """The masked phases of a round, in order."""
        return (self.summing,) if self.counting is None else (self.counting, self.summing)

    @property
    def secure_sum_parts(self) -> dict[str, Mapping[str, object]]:
        """What the sites posted of each part of a secure sum."""
        parts: dict[str, Mapping[str, object]] = {KEYS: self.keys}
        for phase in self.phases:
            parts |= phase.parts
        return parts

    @cached_property
    def common(self) -> CommonRepairs | None:
        """What all sites take out of their sums, by the hub's list; None until all counts are open."""
        return self.common_of(None) if self.counting is not None and self.counting.is_open else None

    def common_of(self, signed: SurvivorList | None) -> CommonRepairs:
        """What all sites take out of their sums, by the list of counted sites that a site `signed`; None: the hub's.

        Refuses if counts or openings are missing, and if nothing would be left.
        """
        if self.counting is None:
            raise ValueError("No counts are opened in this study.")
        survivors, numbers = self.counting.open_total(signed)
        common = self.study.common_repairs(numbers, len(survivors.sites))
        if len(common.steps) == self.study.horizon:
            raise DisclosureError(
                "SITES",
                f"The counts of {len(survivors.sites)} sites together are too few for every rule at every step: their "
                "sums would leave nothing, and none was posted. Counted without any one site: "
                f"{listed(taken_out(self.study.feature_map, common))}. Wait for more sites or patients, or share less "
                "in the study: `fdtr check --suggest` tries what would help.",
            )
        return common

    def path(self, part: str, sender: str) -> Path:
        """Where a site or the hub posts a part."""
        return part_path(self.folder, self.number, part, sender)

    def lacking(self, parts: Mapping[str, object], among: tuple[str, ...] | None = None) -> list[str]:
        """The sites, of all or `among` some, that are not in `parts`."""
        return [site for site in (self.sites if among is None else among) if site not in parts]

    def add_up(self, members: tuple[str, ...]) -> Total:
        """The total of `members`. Anybody can compute it from what is posted."""
        if not self.is_masked:
            return combine_messages(self.study, [self.sums[site] for site in members])
        survivors, numbers = self.summing.open_total()
        self.require_counted(survivors)
        return masked_total(survivors, numbers, self.scale, self.study.fingerprint, self.study.mean_weight)

    def require_counted(self, survivors: SurvivorList, signed: SurvivorList | None = None) -> None:
        """Refuse a list of sites whose sums are added that is not the one on whose counts the rules were judged.

        `signed` is the list of counted sites that a site signed; without it the hub's is compared.
        """
        if self.counting is None:
            return
        counted = signed or self.counting.survivors
        if counted is None or counted.sites != survivors.sites:
            raise ProtocolViolation(
                f"Round {self.number} would add the sums of other sites than those whose counts were opened, and the "
                "rules were judged on these. Nothing was signed. Begin a new round: `fdtr hub new-round`."
            )

    def checked_total(self) -> Total:
        """The hub's total; refuses one that is not the sum of what the sites posted."""
        posted = self.total
        if posted is None:
            raise NoStudyFolder(f"Round {self.number} has no total yet.")
        gone = [site for site in posted.sites if site not in self.sums] if not self.is_masked else []
        if gone and HUB in self.study.roster:
            return posted  # only the hub's signature is left to check it by
        if gone:
            raise ChangedSummary(
                f"The message of {gone[0]!r} is no longer in the folder, and the hub signs nothing: whether the total "
                "is the sum of the sites' messages cannot be told. Nothing was fitted. Restore the message."
            )
        computed = self.add_up(posted.sites)
        if computed != posted:
            raise ChangedSummary(
                f"{self.path(TOTAL, HUB)} is not the sum of the sites' messages in this folder. Do not use it, and ask "
                "the hub; nothing was fitted."
            )
        return computed


def _senders(study: Study, receivers: Iterable[str]) -> tuple[str, ...]:
    return tuple(site for site in sites_of(study.roster) if site not in receivers)


def cautions(study: Study) -> tuple[str, ...]:
    """What everybody should know about a secure sum's resolution, before anything is posted."""
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


def read_round(folder: str | Path, study: Study | None = None) -> RoundSnapshot:
    """Read and verify all of the newest round that the hub opened.

    `study` is the study that the reader accepted; None takes the one in the folder.
    """
    folder = Path(folder)
    study = study or read_study(folder)
    files = PostedFiles(folder)
    number = _newest(files, study)
    within = numbered_round(study.fingerprint, study.roster, number)
    place, sites = round_folder(folder, number), sites_of(study.roster)
    masked = study.disclosure.secure_sum

    def of_sites(part: str) -> dict[str, Any]:
        if masked == (part == SUMS):  # sums are posted in open rounds alone, all else in masked ones
            return {}
        if part == SUMS and not sites:
            return files.of_anybody(place / SUMS, lambda file: open_message(file, study, within).body)
        return files.of_sites(place / part, sites, lambda file, site: read_part(file, part, site, study, within))

    def of_hub(part: str) -> Any:
        path = part_path(folder, number, part, HUB)
        return files.read_one(path, lambda file: read_part(file, part, HUB, study, within))

    sums, keys = of_sites(SUMS), of_sites(KEYS)
    read_receives = partial(_read_receives, study=study, within=within)
    declared = files.of_sites(place / RECEIVES, sites, read_receives)
    receivers = tuple(site for site in declared if site not in sums and site not in keys)  # who began to send, sends

    def phase(names: PhaseNames, announced: dict[str, Announcement]) -> MaskedPhase:
        return MaskedPhase(
            study=study,
            within=within,
            senders=_senders(study, receivers),
            names=names,
            keys=announced,
            masked=of_sites(names.masked),
            confirmed=of_sites(names.confirmed),
            opened=of_sites(names.opened),
            survivors=of_hub(names.survivors) if masked else None,
        )

    counts = {site: announced.counts for site, announced in keys.items() if announced.counts is not None}
    return RoundSnapshot(
        folder=folder,
        study=study,
        number=number,
        sums=sums,
        receivers=receivers,
        keys=keys,
        counting=phase(COUNT_PHASE, counts) if study.counts_first else None,
        summing=phase(SUM_PHASE, {site: announced.sums for site, announced in keys.items()}),
        total=of_hub(TOTAL),
        faults=files.faults,
    )


def _read_receives(file: OpenFile, site: str, study: Study, within: Round) -> Round:
    read: Round = read_part(file, RECEIVES, site, study, within)
    return read


def _newest(files: PostedFiles, study: Study) -> int:
    """The newest round that the hub opened for this study; notes rounds whose numbers leave a gap."""
    last = last_round(files.folder)
    _note_beyond(files, last)
    for number in range(last, 0, -1):
        within = numbered_round(study.fingerprint, study.roster, number)
        read_begun = partial(read_part, part=BEGUN, sender=HUB, study=study, within=within)
        if files.read_one(begun_path(files.folder, number), read_begun) is not None:
            return number
    reason = f" {files.faults[0]}" if files.faults else ""
    raise NoStudyFolder(
        f"{files.folder} has no round that the hub opened under this study and roster.{reason} The hub opens one with "
        "`fdtr hub open` or, where the roster changed, `fdtr hub new-round`."
    )


def _note_beyond(files: PostedFiles, last: int) -> None:
    """Note rounds that do not follow on the last one."""
    names = files.names(files.folder / ROUNDS)
    ahead = min((int(name) for name in names if _NUMBER.fullmatch(name) and int(name) > last + 1), default=0)
    if ahead:
        skipped = f"leaves out round {last + 1}, which the hub has not begun. Rounds count up one by one."
        files.note(f"{round_folder(files.folder, ahead)} {skipped}")
