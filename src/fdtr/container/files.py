"""Reading and writing whole files: atomic writes, and reads of a size that is checked first.

Another program may replace a file between a check of its name and its opening. A name is therefore used once, to open
the file; size and content are then taken from the open descriptor.
"""

import errno
import logging
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from fdtr.errors import (
    DamagedFile,
    ForeignFile,
    MissingFile,
    OutputExists,
    PerhapsWritten,
    UnreadableFile,
    UnwritableFile,
)

log = logging.getLogger("fdtr.container")

# Opening a pipe or a terminal must neither wait nor take it over.
_TO_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_TO_ENTER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NO_FLUSH = {errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EPERM}
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

_OTHERS = {
    **{bytes((0x80, protocol)): "a Python pickle, which could run code" for protocol in range(2, 6)},
    b"PK\x03\x04": "a zip or npz archive",
    b"PK\x05\x06": "a zip archive",
    b"\x93NUMPY": "a NumPy array (npy)",
    b"\x1f\x8b": "a gzip file",
    b"\x89HDF": "an HDF5 file",
    b"PAR1": "a Parquet file",
    b"%PDF": "a PDF",
}


def write_atomically(path: str | Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write under a temporary name, flush to disk, then rename: a reader sees the old file or the whole new one."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        write_through(descriptor, content)
        _rename(temporary, target)
        log.info("wrote %s, %d bytes", target, len(content))
    except OSError as error:
        raise _unwritable(target, error) from None
    finally:  # after an interruption too
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_through(descriptor: int, content: bytes) -> None:
    """Write the content, flush it to disk, and close."""
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def flush_folder(folder: Path | int) -> None:
    """Flush the names in a folder, a path or a descriptor, to disk."""
    descriptor = folder if isinstance(folder, int) else os.open(folder, _TO_ENTER)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some network shares cannot, and are no safer for failing here
        if error.errno not in _NO_FLUSH:
            raise
    finally:
        if descriptor is not folder:
            os.close(descriptor)


def _rename(temporary: Path, target: Path) -> None:
    """Rename, and raise PerhapsWritten if the outcome is unknown.

    A network share may rename and lose the answer. Only a file that still has its old name was surely not renamed.
    """
    try:
        temporary.replace(target)
    except OSError as error:
        if os.path.lexists(temporary):
            raise
        raise PerhapsWritten(f"{target} may have been written or not: {_reason(error)}.") from None


def create_private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read; if writing fails, no part of it is left."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise OutputExists(
            f"{path} exists already, and a key is never overwritten. Nothing was written. Name another file with --out."
        ) from None
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        write_through(descriptor, content)
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _unwritable(path, error) from None
        raise


@dataclass(frozen=True)
class OpenFile:
    """A regular file that is open for reading: its `path`, and its `size` when it was opened."""

    path: Path
    descriptor: int
    size: int

    def __str__(self) -> str:
        return str(self.path)

    def beginning(self, most: int) -> bytes:
        """At most `most` bytes from its start."""
        parts, n_read = [], 0
        try:
            while n_read < most and (part := os.pread(self.descriptor, most - n_read, n_read)):
                parts.append(part)
                n_read += len(part)
        except OSError as error:
            raise _unreadable(self.path, error) from None
        return b"".join(parts)

    def whole(self) -> bytes:
        """The whole content; refuses a file that grows or shrinks meanwhile."""
        content = self.beginning(self.size + 1)
        if len(content) != self.size:
            raise DamagedFile(f"{self} changed while it was read. Wait until it is complete, then try again.")
        return content


Source: TypeAlias = str | Path | OpenFile
"""A file by its path, or one that is open already."""


@contextmanager
def opened(source: Source, beneath: Path | None = None) -> Iterator[OpenFile]:
    """Open a regular file for reading; folders, pipes, sockets and devices are refused.

    Pass `beneath` for a file that somebody else placed: no link between that folder and the file is followed. Without
    it the file is one that the user named, and links are followed. An `OpenFile` is passed on and stays open.
    """
    if isinstance(source, OpenFile):
        yield source
        return
    path = Path(source)
    try:
        if beneath is None:
            descriptor = os.open(path, _TO_READ)
        else:
            with opened_folder(path.parent, beneath) as folder:
                descriptor = os.open(path.name, _TO_READ | os.O_NOFOLLOW, dir_fd=folder)
    except (OSError, ValueError) as error:
        if beneath is not None and getattr(error, "errno", None) == errno.ELOOP:
            raise _linked(path) from None
        raise _unreadable(path, error) from None
    try:
        yield OpenFile(path, descriptor, _regular_size(path, descriptor))
    finally:
        os.close(descriptor)


@contextmanager
def opened_folder(folder: Path, beneath: Path) -> Iterator[int]:
    """A descriptor of a folder, reached from `beneath` without following a link; `beneath` itself may be a link."""
    descriptor = os.open(beneath, _TO_ENTER)
    try:
        current = beneath
        for name in folder.relative_to(beneath).parts:
            current /= name
            inner = _enter(descriptor, current)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def read_bounded(source: Source, most: int, what: str, beneath: Path | None = None) -> bytes:
    """The content of a file of at most `most` bytes; `what` names the expected kind of file in the refusal."""
    with opened(source, beneath) as file:
        if file.size > most:
            raise DamagedFile(f"{file} is too long for {what}: it has {file.size:,} bytes. It was not read.")
        return file.whole()


def size_of(source: Source) -> int:
    """How many bytes a file has, without reading it."""
    with opened(source) as file:
        return file.size


def refuse_disguised(source: str | Path, content: bytes) -> None:
    """Refuse a file that begins like a file of another format."""
    for mark, what in _OTHERS.items():
        # A safetensors file begins with a length, whose first bytes may equal another format's mark.
        if content.startswith(mark) and content[8:9] != b"{":
            raise ForeignFile(
                f"{source} is {what}, not a file of fdtr. It was not opened. Ask its sender for it again."
            )


def _enter(outer: int, path: Path) -> int:
    """A descriptor of the folder `path`, whose parent is open as `outer`."""
    try:
        return os.open(path.name, _TO_ENTER | os.O_NOFOLLOW, dir_fd=outer)
    except NotADirectoryError:
        if stat.S_ISLNK(os.stat(path.name, dir_fd=outer, follow_symlinks=False).st_mode):
            raise _linked(path) from None
        raise UnreadableFile(f"{path} is a file, and a folder should be there. It was not opened.") from None


def _regular_size(path: Path, descriptor: int) -> int:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableFile(f"{path} is {_KINDS.get(stat.S_IFMT(status.st_mode), 'something else')}, not a file.")
    return status.st_size


def _unwritable(path: Path, error: OSError) -> UnwritableFile:
    return UnwritableFile(f"{path} could not be written: {_reason(error)}. Nothing was written.")


def _unreadable(path: Path, error: OSError | ValueError) -> UnreadableFile:
    number = getattr(error, "errno", None)
    if number == errno.ENOENT:
        return MissingFile(f"{path} does not exist.")
    if number == errno.ENXIO:
        return UnreadableFile(f"{path} is a socket or a device, not a file.")
    return UnreadableFile(f"{path} could not be read: {_reason(error)}.")


def _linked(path: Path) -> UnreadableFile:
    return UnreadableFile(
        f"{path} is a link to somewhere else, and was not followed. Remove it, and find out who put it there."
    )


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
