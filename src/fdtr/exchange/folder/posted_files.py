"""Files that others post in a study's folder: read if they pass every check, named among the faults if not."""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TypeVar

from fdtr.container import OpenFile, opened, opened_folder
from fdtr.errors import FdtrError, MissingFile, UnreadableFile
from fdtr.exchange.folder_layout import file_name
from fdtr.exchange.wire import MOST_SITES
from fdtr.summary import SiteSummary

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
