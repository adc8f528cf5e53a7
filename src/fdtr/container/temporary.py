"""Bytes or numbers that are written once and read again in pieces: few in memory, many in a file without a name."""

import os
import tempfile
from contextlib import suppress
from typing import Any
from weakref import finalize

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fdtr.errors import UnwritableFile

IN_MEMORY = 2**22
"""Bytes beyond which they go to a file, which has no name and vanishes with the process."""


class Storage:
    """Bytes that are appended, and read in pieces, by several threads if need be."""

    def __init__(self) -> None:
        self.size = 0
        self._held = bytearray()
        self._file: Any = None

    def append(self, content: bytes) -> None:
        """Add bytes at the end."""
        size = self.size + len(content)
        try:
            if self._file is None and size > IN_MEMORY:
                self._file, held = tempfile.TemporaryFile(), self._held  # noqa: SIM115 - closed by `close`
                finalize(self, _close, self._file)
                self._write(held)
                self._held = bytearray()
            if self._file is None:
                self._held += content
            else:
                self._write(content)
        except OSError as error:
            raise UnwritableFile(
                f"A temporary file of {size / 1e6:,.0f} MB or more could not be written to {tempfile.gettempdir()}: "
                f"{error.strerror or type(error).__name__}. Nothing was written. Free some space, or let the variable "
                "TMPDIR name a folder of your own on another disk."
            ) from None
        self.size = size

    def _write(self, content: bytes | bytearray) -> None:
        self._file.write(content)
        self._file.flush()  # a full disk shows here

    def read(self, start: int, stop: int) -> bytes:
        """The bytes from `start` to `stop`."""
        if self._file is None:
            return bytes(memoryview(self._held)[start:stop])
        return os.pread(self._file.fileno(), stop - start, start)

    def close(self) -> None:
        """Give memory or the file back."""
        self._held = bytearray()
        if self._file is not None:
            _close(self._file)


def _close(file: Any) -> None:
    with suppress(OSError):  # what could not be written before
        file.close()


class Column:
    """Numbers of one type, written in order and read in parts."""

    def __init__(self, dtype: DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._storage = Storage()

    def append(self, numbers: NDArray[Any]) -> None:
        """Write further numbers."""
        self._storage.append(np.asarray(numbers, self._dtype).tobytes())

    def read(self, here: slice) -> NDArray[Any]:
        """The numbers from `here.start` to `here.stop`."""
        width = self._dtype.itemsize
        return np.frombuffer(self._storage.read(here.start * width, here.stop * width), self._dtype)

    def take(self, places: NDArray[np.intp]) -> NDArray[Any]:
        """The numbers at some `places`, which are in order."""
        size = max(1, IN_MEMORY // self._dtype.itemsize)
        parts = [np.zeros(0, self._dtype)]
        for start in range(0, int(places.max(initial=-1)) + 1, size):
            inside = places[np.searchsorted(places, start) : np.searchsorted(places, start + size)]
            if len(inside):
                parts.append(self.read(slice(start, int(inside[-1]) + 1))[inside - start])
        return np.concatenate(parts)

    def close(self) -> None:
        """Give memory or the file back."""
        self._storage.close()
