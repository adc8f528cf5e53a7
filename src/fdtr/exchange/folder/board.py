"""What lies in a study's folder, as far as it can be believed."""

import hashlib
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from fdtr.container import size_of
from fdtr.errors import FdtrError, NoStudyFolder, OtherTotal, UnreadableFile, WrongLength
from fdtr.exchange.folder import parts
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
from fdtr.study import Study
from fdtr.summary import SiteSummary, Total

STUDY = "study.toml"
ROUNDS = "rounds"
SUMS, TOTAL = "sums", "total"
SUFFIX = ".fdtr"
_MOST_STUDY_BYTES = 2**20
_MOST_LISTED = 20_000
_MOST_FAULTS = 20
MOST_ROUNDS = 9999
"""Each is looked for, from the first on: more than anybody needs, and few enough to look."""
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")

Part = TypeVar("Part")


def file_name(site: str) -> str:
    """A site's file, told apart from every other site's on any file system, whatever its name is.

    >>> file_name("North"), file_name("north"), file_name("../St. Mary's")
    ('north-43f853bbb592.fdtr', 'north-dc365e79d41c.fdtr', 'st.-mary-s-c16010d0855a.fdtr')
    """
    plain = re.sub(r"[^a-z0-9.]+", "-", site.lower()).strip("-.")[:40] or "site"
    return f"{plain}-{hashlib.sha256(site.encode()).hexdigest()[:12]}{SUFFIX}"


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


def round_folder(folder: Path, number: int) -> Path:
    """Where a round's files lie."""
    return folder / ROUNDS / str(number)


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
    if not path.is_file():
        raise NoStudyFolder(
            f"{folder} is no study's folder: it has no {STUDY}. Name the folder that `fdtr hub open` made; a synced "
            "one may still be on its way."
        )
    if size_of(path) > _MOST_STUDY_BYTES:
        raise WrongLength(f"{path} is too long for a study file. It was not read.")
    return Study.load(path)


def read_board(folder: Path, study: Study | None = None) -> Board:
    """Read and verify all of the newest round that the hub opened.

    `study` is what the reader relies on, the folder's own where it is None.
    """
    study = study or read_study(folder)
    number, faults = _newest(folder, study)
    within = numbered_round(study.fingerprint, study.roster, number)
    reader = _Reader(round_folder(folder, number), faults)
    sites = parts.sites_of(study.roster)

    def of_sites(part: str, read: Callable[[Path, str], Part], among: tuple[str, ...] = sites) -> dict[str, Part]:
        return reader.of_sites(part, among, read)

    masked = study.disclosure.secure_sum
    length = scale_of(study).length if masked else 0
    posted = sites or (() if masked else reader.senders(study, within))
    return Board(
        folder=folder,
        study=study,
        number=number,
        sums={} if masked else of_sites(SUMS, lambda p, s: _message(p, s, study, within), posted),
        keys=of_sites(parts.KEYS, lambda p, s: parts.read_keys(p, s, within)) if masked else {},
        masked=of_sites(parts.MASKED, lambda p, s: parts.read_masked(p, s, within, length)) if masked else {},
        confirmed=of_sites(parts.CONFIRMED, lambda p, s: parts.read_confirmed(p, s, within)) if masked else {},
        opened=of_sites(parts.OPENED, lambda p, s: parts.read_opened(p, s, within)) if masked else {},
        survivors=reader.of_hub(parts.SURVIVORS, lambda p: parts.read_survivors(p, within)) if masked else None,
        total=reader.of_hub(TOTAL, lambda p: open_total(p, study, within).body),
        faults=tuple(faults),
    )


def _newest(folder: Path, study: Study) -> tuple[int, list[str]]:
    """The newest round that the hub opened for this study, and what is wrong with rounds beyond it."""
    last = last_round(folder)
    faults = _beyond(folder, last)
    for number in range(last, 0, -1):
        within = numbered_round(study.fingerprint, study.roster, number)
        path = begun_path(folder, number)
        try:
            _require_plain(path)
            parts.read_begun(path, within)
        except FdtrError as error:
            faults.append(str(error))
        else:
            return number, [f"Ignored: {fault}" for fault in faults[:_MOST_FAULTS]]
    reason = f" {faults[0]}" if faults else ""
    raise NoStudyFolder(
        f"{folder} has no round that the hub opened under this study and roster.{reason} The hub opens one with `fdtr "
        "hub open` or, where the roster changed, `fdtr hub new-round`."
    )


def begun_path(folder: Path, number: int) -> Path:
    """Where the hub says that a round is open."""
    return round_folder(folder, number) / HUB / f"{parts.BEGUN}{SUFFIX}"


def last_round(folder: Path) -> int:
    """How many rounds were begun, one after the other.

    They count only without a hole: one that is numbered far ahead would keep every later one from being the newest.
    """
    number = 0
    while number < MOST_ROUNDS and begun_path(folder, number + 1).exists():
        number += 1
    return number


def _beyond(folder: Path, last: int) -> list[str]:
    """What is wrong with rounds that do not follow on the last."""
    names = [path.name for path in _entries(folder / ROUNDS)]
    ahead = [int(name) for name in names if _NUMBER.fullmatch(name) and int(name) > last + 1]
    skipped = f"leaves out round {last + 1}, which the hub has not begun. Rounds count up one by one."
    return [f"{round_folder(folder, min(ahead))} {skipped}"] if ahead else []


def _message(path: Path, site: str, study: Study, within: Round) -> SiteSummary:
    found = open_message(path, study, within).body
    if found.site != site:
        raise UnreadableFile(f"{path} is of {found.site!r} and lies under the name of {site!r}.")
    return found


def _entries(folder: Path) -> list[Path]:
    """What lies in a folder, in order; what is half-written begins with a dot and is passed over."""
    try:
        found = [path for path, _ in zip(folder.iterdir(), range(_MOST_LISTED), strict=False)]
    except OSError:
        return []
    return sorted(path for path in found if not path.name.startswith("."))


def _require_plain(path: Path) -> None:
    """Refuse links: a file in the folder must be the file itself."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return  # absent or unreadable: whoever opens it says so
    if stat.S_ISLNK(mode):
        raise UnreadableFile(f"{path} is a link to somewhere else, not a file. It was not opened.")


@dataclass
class _Reader:
    """Reads parts of one round, and notes what cannot be believed."""

    place: Path
    faults: list[str]

    def of_sites(self, part: str, sites: tuple[str, ...], read: Callable[[Path, str], Part]) -> dict[str, Part]:
        found: dict[str, Part] = {}
        expected = {file_name(site): site for site in sites}
        for path in _entries(self.place / part):
            site = expected.get(path.name)
            if site is None:
                if not self.named(path):
                    self._note(f"{path} is under no name of this study's sites.")
                continue
            try:
                _require_plain(path)
                found[site] = read(path, site)
            except FdtrError as error:
                self._note(str(error))
        return dict(sorted(found.items()))

    def of_hub(self, part: str, read: Callable[[Path], Part]) -> Part | None:
        path = self.place / HUB / f"{part}{SUFFIX}"
        if not path.exists():
            return None
        try:
            _require_plain(path)
            return read(path)
        except FdtrError as error:
            self._note(str(error))
            return None

    def senders(self, study: Study, within: Round) -> tuple[str, ...]:
        """Who posted sums, where no roster says who may; each under the name that is its own."""
        found = []
        for path in _entries(self.place / SUMS):
            try:
                _require_plain(path)
                site = open_message(path, study, within).body.site
            except FdtrError as error:
                self._note(str(error))
                continue
            if path.name == file_name(site):
                found.append(site)
            else:
                self._note(f"{path} is of {site!r} and lies under another name.")
        return tuple(sorted(found))

    def named(self, path: Path) -> bool:
        """Whether a fault was noted of a file already."""
        return any(fault.startswith(f"Ignored: {path}") for fault in self.faults)

    def _note(self, fault: str) -> None:
        if len(self.faults) < _MOST_FAULTS:
            self.faults.append(f"Ignored: {fault}")
