"""Messages in files or folders, each read when it is asked for, so that a hub can add those of very many sites.

The names of the sites are looked up first, because messages are added in the order of names. A file is read, with all
checks, whenever its message is taken, and nothing of it is kept but its digest: a second reading has to give the same.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import overload

import numpy as np

from fdtr import container
from fdtr.container import OpenFile
from fdtr.errors import DamagedFile, UnreadableFile
from fdtr.exchange.wire import HEADER_BYTES, MOST_SITES, open_messages
from fdtr.signing import Round
from fdtr.study import Study
from fdtr.summary import SiteSummary

_AT_ONCE = 32
"""Messages whose sums are checked together: most of the work for one is that of calling NumPy."""
_SITE = re.compile(rb'\\"site\\":\\"([^"\\]{1,64})\\"')


class StreamedMessages(Sequence[SiteSummary]):
    """The messages in some files and folders, in the order of their sites' names; none stays in memory.

    Every file of a folder counts, but those whose names begin with a dot. `expected` is the round, as for
    `read_message`. `hub.combine_messages` adds them.

    >>> import tempfile, fdtr
    >>> from fdtr.simulation import WorldSpec, make_world
    >>> study = fdtr.Study.model_validate(make_world(WorldSpec(n_sites=2), np.random.default_rng(1)).study())
    >>> with tempfile.TemporaryDirectory() as folder:  # that the sites' messages were put into
    ...     len(StreamedMessages([folder], study))
    0
    """

    def __init__(self, places: Sequence[str | Path], study: Study, expected: Round | None = None) -> None:
        self._study, self._expected = study, expected
        self._folders: list[Path] = []
        self._files: list[tuple[str, str, int]] = []  # site, file, and which folder it is in; −1: none
        for place in map(Path, places):
            names = _names_in(place) if place.is_dir() else [str(place)]
            if len(self._files) + len(names) > MOST_SITES:
                raise UnreadableFile(
                    f"{place}: these are more than {MOST_SITES:,} files, and a total has at most so many sites. "
                    "Nothing was written."
                )
            if place.is_dir():
                self._folders.append(place)
            self._files += self._look_up(names, len(self._folders) - 1 if place.is_dir() else -1)
        self._files.sort()
        self._digests = np.zeros((len(self._files), 32), np.uint8)

    def __len__(self) -> int:
        return len(self._files)

    @overload
    def __getitem__(self, index: int) -> SiteSummary: ...

    @overload
    def __getitem__(self, index: slice) -> list[SiteSummary]: ...

    def __getitem__(self, index: int | slice) -> SiteSummary | list[SiteSummary]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        return self._read(range(index, index + 1) if index >= 0 else range(len(self) + index, len(self) + index + 1))[0]

    def __iter__(self) -> Iterator[SiteSummary]:
        for start in range(0, len(self), _AT_ONCE):
            yield from self._read(range(start, min(start + _AT_ONCE, len(self))))

    def _read(self, places: range) -> list[SiteSummary]:
        """Some messages, checked; refuses one that is not what its file was before."""
        received = open_messages(self._open_files(places), self._study, self._expected)
        messages = []
        for place, part in zip(places, received, strict=True):
            site, name, folder = self._files[place]
            digest, known = np.frombuffer(bytes.fromhex(part.body.digest), np.uint8), self._digests[place]
            if part.body.site != site or (known.any() and not np.array_equal(known, digest)):
                raise DamagedFile(f"{name} changed while messages were added. Nothing was written. Combine again.")
            self._digests[place], self._files[place] = digest, (part.body.site, name, folder)  # one text for the site
            messages.append(part.body)
        return messages

    def _open_files(self, places: range) -> Iterator[OpenFile]:
        """Each file, open while it is its turn."""
        for place in places:
            _, name, folder = self._files[place]
            with self._opened(name, folder) as file:
                yield file

    def _look_up(self, names: Sequence[str], folder: int) -> Iterator[tuple[str, str, int]]:
        """Each file with the site that its header names; "" where it names none, which its reading refuses."""
        for name in names:
            with self._opened(name, folder) as file:
                match = _SITE.search(file.beginning(HEADER_BYTES))
            yield (match[1].decode(errors="replace") if match else "", name, folder)

    @contextmanager
    def _opened(self, name: str, folder: int) -> Iterator[OpenFile]:
        """A file that the user named. In a folder somebody else may have put it there: no link is followed."""
        beneath = self._folders[folder] if folder >= 0 else None
        with container.opened(beneath / name if beneath else name, beneath) as file:
            yield file


def _names_in(folder: Path) -> list[str]:
    """The names of a folder's files, without half-written ones, which begin with a dot."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise UnreadableFile(f"{folder} could not be listed: {error.strerror}.") from None
