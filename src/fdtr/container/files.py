"""Files as a whole: written so that a reader sees all of one or none, and measured before they are read."""

import logging
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from fdtr.errors import DisguisedFile, OutputExists, UnreadableFile, UnwritableFile

log = logging.getLogger("fdtr.container")

_OTHERS = {
    b"\x80\x02": "a Python pickle, which could run code",
    b"\x80\x03": "a Python pickle, which could run code",
    b"\x80\x04": "a Python pickle, which could run code",
    b"\x80\x05": "a Python pickle, which could run code",
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
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        log.info("wrote %s, %d bytes", target, len(content))
    except OSError as error:
        raise UnwritableFile(f"{target} could not be written: {_reason(error)}. Nothing was written.") from None
    finally:  # after an interruption too
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def create_private(path: Path, content: bytes) -> None:
    """Write a new file, readable by its owner alone; where it cannot be written whole, nothing is left."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise OutputExists(
            f"{path} exists already, and a key is never overwritten. Nothing was written. Name another file with --out."
        ) from None
    except OSError as error:
        raise UnwritableFile(f"{path} could not be written: {_reason(error)}. Nothing was written.") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise UnwritableFile(f"{path} could not be written: {_reason(error)}. Nothing was written.") from None
        raise


def size_of(path: str | Path) -> int:
    """How many bytes a file has, without reading it; folders, devices and pipes are refused."""
    source = Path(path)
    try:
        found = source.stat()
    except FileNotFoundError:
        raise UnreadableFile(f"{source} does not exist.") from None
    except (OSError, ValueError) as error:
        raise UnreadableFile(f"{source} could not be read: {_reason(error)}.") from None
    if stat.S_ISDIR(found.st_mode):
        raise UnreadableFile(f"{source} is a folder, not a file.")
    if not stat.S_ISREG(found.st_mode):
        raise UnreadableFile(f"{source} is a device or a pipe, not a file.")
    return found.st_size


def refuse_disguised(source: str | Path, content: bytes) -> None:
    """Refuse a file that opens as another format does."""
    for mark, what in _OTHERS.items():
        # A safetensors file opens with a length: sixteen bits of it may look like another format's mark.
        if content.startswith(mark) and content[8:9] != b"{":
            raise DisguisedFile(
                f"{source} is {what}, not a file of fdtr. It was not opened. Ask its sender for it again."
            )


def beginning(source: Path, most: int) -> bytes:
    """At most `most` bytes from the start of a file."""
    size_of(source)
    try:
        with source.open("rb") as file:
            return file.read(most)
    except OSError as error:
        raise UnreadableFile(f"{source} could not be read: {_reason(error)}.") from None


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
