"""Files that others put into a study's folder: read if they can be believed, named if not."""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from fdtr.container import OpenFile, opened, opened_folder
from fdtr.errors import FdtrError, MissingFile, UnreadableFile
from fdtr.exchange.folder.layout import file_name
from fdtr.exchange.wire import MOST_SITES
from fdtr.summary import SiteSummary

_MOST_COUNTED = 20_000
_MOST_NAMED = 20

Part = TypeVar("Part")


@dataclass
class Reader:
    """Reads what lies in a study's `folder`, following no link in it, and notes what cannot be believed.

    Where it is known whose files there may be, they are opened by their names: however many strangers' lie beside
    them, none is hidden.
    """

    folder: Path
    _faults: list[str] = field(default_factory=list)
    _unnamed: int = 0

    def one(self, path: Path, read: Callable[[OpenFile], Part]) -> Part | None:
        """What a file holds; None where it is absent, or cannot be believed."""
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
        expected = {file_name(site): site for site in sorted(sites)}
        read_all = {site: self.one(place / name, partial(_of, site, read)) for name, site in expected.items()}
        self._note_strangers(place, set(expected))
        return {site: part for site, part in read_all.items() if part is not None}

    def of_anybody(self, place: Path, read: Callable[[OpenFile], SiteSummary]) -> dict[str, SiteSummary]:
        """Messages where no roster says whose there may be; each under the name that is its own."""
        found: dict[str, SiteSummary] = {}
        for name in self.names(place):
            message = self.one(place / name, read)
            if message is None:
                continue
            if name != file_name(message.site):
                self.note(f"{place / name} is of {message.site!r} and lies under another name.")
                continue
            found[message.site] = message
            if len(found) > MOST_SITES:
                raise UnreadableFile(
                    f"{place} holds messages of more than {MOST_SITES:,} sites, and the study has no [roster] that "
                    "says whose count. Nothing was done. Write one with `fdtr roster add`, in another folder."
                )
        return dict(sorted(found.items()))

    def names(self, place: Path) -> Iterator[str]:
        """What lies in a folder, one by one; what is half-written begins with a dot and is passed over."""
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
        """Remember what is wrong, once; a stranger's name must not write on a person's terminal."""
        told = "Ignored: " + "".join(c if c.isprintable() else "?" for c in fault)
        if told in self._faults:
            return
        if len(self._faults) < _MOST_NAMED:
            self._faults.append(told)
        else:
            self._unnamed += 1

    @property
    def faults(self) -> tuple[str, ...]:
        """All that was noted; beyond a few, how many."""
        rest = (f"Ignored: at least {self._unnamed:,} more.",) if self._unnamed else ()
        return (*self._faults, *rest)

    def _note_strangers(self, place: Path, expected: set[str]) -> None:
        strangers = (name for name in self.names(place) if name not in expected)
        for name in sorted(islice(strangers, _MOST_COUNTED)):
            self.note(f"{place / name} is under no name of this study's sites.")


def _of(site: str, read: Callable[[OpenFile, str], Part], file: OpenFile) -> Part:
    return read(file, site)
