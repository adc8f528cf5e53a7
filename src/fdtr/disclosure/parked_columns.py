"""Columns of a step that are computed once and needed again: short ones in memory, long ones in a temporary file."""

from contextlib import suppress
from io import BytesIO
from tempfile import TemporaryFile
from threading import Lock
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fdtr.errors import UnwritableFile

MOST_IN_MEMORY = 2**22
"""Bytes of one column beyond which it goes to a file without a name, which the system removes by itself."""


class ParkedColumn:
    """Numbers of one type, written in order and read in parts."""

    def __init__(self, dtype: DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._file: IO[bytes] = BytesIO()
        self._lock = Lock()

    def append(self, numbers: NDArray[Any]) -> None:
        """Write further numbers."""
        content = np.ascontiguousarray(numbers, self._dtype).data
        try:
            with self._lock:
                self._file.seek(0, 2)
                if isinstance(self._file, BytesIO) and self._file.tell() + content.nbytes > MOST_IN_MEMORY:
                    short, self._file = self._file, TemporaryFile()  # noqa: SIM115 - closed by `close`
                    self._file.write(short.getbuffer())
                self._file.write(content)
                self._file.flush()  # a full disk shows here
        except OSError as error:
            raise UnwritableFile(
                f"A temporary file could not be written: {error.strerror or type(error).__name__}. Nothing was "
                "written. Free some space, or let the variable TMPDIR name a folder on another disk."
            ) from None

    def read(self, here: slice) -> NDArray[Any]:
        """The numbers from `here.start` to `here.stop`."""
        width = self._dtype.itemsize
        with self._lock:
            self._file.seek(here.start * width)
            content = self._file.read((here.stop - here.start) * width)
        return np.frombuffer(content, self._dtype)

    def take(self, places: NDArray[np.intp]) -> NDArray[Any]:
        """The numbers at some `places`, which are in order."""
        size = MOST_IN_MEMORY // self._dtype.itemsize
        parts = [np.zeros(0, self._dtype)]
        for start in range(0, int(places.max(initial=-1)) + 1, size):
            inside = places[np.searchsorted(places, start) : np.searchsorted(places, start + size)]
            if len(inside):
                parts.append(self.read(slice(start, int(inside[-1]) + 1))[inside - start])
        return np.concatenate(parts)

    def close(self) -> None:
        """Give the file back, if there is one."""
        if not isinstance(self._file, BytesIO):
            with suppress(OSError):  # what could not be written before
                self._file.close()
