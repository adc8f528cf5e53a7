"""A site's private copy of a study's folder: what the hub sent it, and what it posted itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fdtr.errors import MalformedParcel, NotJoined
from fdtr.exchange import kept
from fdtr.exchange.folder import Home, find_home, join
from fdtr.exchange.folder.board import begun_path, last_round
from fdtr.exchange.folder.durable import post
from fdtr.exchange.folder.layout import STUDY, SUFFIX, file_name, round_folder
from fdtr.exchange.folder.parts import BEGUN
from fdtr.exchange.remote.parcels import Posting
from fdtr.signing import HUB, Key, roster_hash
from fdtr.study import Study

MOST_MISSED = 100
"""Rounds that may go by without a site before it asks questions."""


@dataclass(frozen=True)
class Mirror:
    """The copy of one study, with one roster, at one site, in its state folder."""

    site: str
    study: Study

    @property
    def place(self) -> Path:
        """What is beside the copy is for the desk's own use."""
        site = file_name(self.site).removesuffix(SUFFIX)
        agreed = f"{self.study.fingerprint[:16]}-{roster_hash(self.study.roster)[:16]}"
        return kept.state_folder() / "mirrors" / f"{agreed}-{site}"

    @property
    def folder(self) -> Path:
        """The copy itself."""
        return self.place / "folder"

    def home(self, data: Path, key: Key) -> Home:
        """The site's home, joined at first use and whenever its administrator changed what is agreed on."""
        try:
            home = find_home(self.folder, self.site)
            if home.study == self.study and home.data == data.absolute():
                return home
        except NotJoined:
            pass
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.study.save(self.folder / STUDY)
        return join(self.folder, self.site, data, None, key)

    def add(self, number: int, postings: Sequence[Posting]) -> None:
        """Write what the hub sent; refuses anything but the newest round that it began, or one of the next few.

        Rounds of a folder count one by one. Those that went by while this site was away, or under another roster, hold
        nothing for it: their places are marked.
        """
        last, begun = last_round(self.folder), any(one.part == BEGUN for one in postings)
        if not last <= number <= (last + MOST_MISSED if begun else last):
            raise MalformedParcel(
                f"The hub asks for round {number} after round {last}: it is over, not begun, or too far ahead. "
                "Nothing was done."
            )
        for missed in range(last + 1, number):
            post(begun_path(self.folder, missed), b"")
        for one in postings:
            post(self._path(number, one.part, one.sender), one.content)

    def own(self, number: int, part: str) -> Posting:
        """What the site posted."""
        path = self._path(number, part, self.site)
        if not path.exists():
            raise MalformedParcel(f"Site {self.site!r} has no part {part!r} to post yet: the hub asks out of turn.")
        return Posting(part, self.site, path.read_bytes())

    def _path(self, number: int, part: str, sender: str) -> Path:
        place = round_folder(self.folder, number)
        return place / HUB / f"{part}{SUFFIX}" if sender == HUB else place / part / file_name(sender)
