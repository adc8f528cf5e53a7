"""Files that survive a crash: whole or absent, never half, and on disk before the next step relies on them."""

import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fdtr.errors import Busy, OtherPosting, UnwritableFile

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_NO_FLUSH = {errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EPERM}
_PART = ".part"


def post(path: Path, content: bytes) -> bool:
    """Put a file where others read it, once: True where it was not there yet.

    The same bytes may be posted again, after a crash; other bytes under the same name are refused.
    """
    try:
        _make(path.parent)
        sweep(path)
        if _lies_there(path, content):
            _flush_folder(path.parent)
            return False
        temporary = _written_beside(path, content, 0o644)
        try:
            _place(temporary, path)
        except FileExistsError:
            if not _lies_there(path, content):
                raise
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        _flush_folder(path.parent)
    except OSError as error:
        raise UnwritableFile(f"{path} could not be written: {_reason(error)}. Run the same command again.") from None
    return True


def save(path: Path, content: bytes) -> None:
    """Write a file of one's own, readable by its owner alone, in place of what was there."""
    try:
        _make(path.parent, 0o700)
        sweep(path)
        temporary = _written_beside(path, content, 0o600)
        try:
            os.replace(temporary, path)  # noqa: PTH105  one name for every crash that the tests inject
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        _flush_folder(path.parent)
    except OSError as error:
        raise UnwritableFile(
            f"{path} could not be written: {_reason(error)}. Set FDTR_STATE to a folder of your own."
        ) from None


def remove(path: Path) -> None:
    """Remove a file of one's own, for good."""
    if path.exists():
        path.unlink()
        _flush_folder(path.parent)


@contextmanager
def locked(path: Path, who: str, patience: float = 20.0) -> Iterator[None]:
    """Keep a second process of the same party waiting; a process that dies lets go of it."""
    try:
        _make(path.parent, 0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise UnwritableFile(
            f"{path} could not be written: {_reason(error)}. Set FDTR_STATE to a folder of your own."
        ) from None
    try:
        _wait_for(descriptor, who, time.monotonic() + patience)
        yield
    finally:
        os.close(descriptor)


def _wait_for(descriptor: int, who: str, until: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > until:
                raise Busy(f"Another fdtr is at work for {who}. Nothing was done. Wait until it is through.") from None
            time.sleep(0.05)
        else:
            return


def _written_beside(path: Path, content: bytes, mode: int) -> Path:
    """The content on disk, under a name that readers pass over and the next writer of `path` sweeps away."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_PART}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    return temporary


def _place(temporary: Path, path: Path) -> None:
    """Give a written file its name, which must be free.

    Where a file system has no links, a rename does it: it could overwrite, but only this party writes this name, one
    process of it at a time.
    """
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        os.rename(temporary, path)  # noqa: PTH104


def _lies_there(path: Path, content: bytes) -> bool:
    """Whether the posting is there already; refuses another under its name."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    same = stat.S_ISREG(found.st_mode) and found.st_size == len(content) and path.read_bytes() == content
    if not same:
        raise OtherPosting(
            f"{path} is there already, with other content than is to be posted. Nothing was overwritten. Find out who "
            "wrote it; if nobody should have, remove it and run the same command again."
        )
    return True


def sweep(path: Path, ending: str = _PART) -> None:
    """Remove what a crash of its only writer left half-written of a file."""
    _unlink(path.parent.glob(f".{_literal(path.name)}.*{ending}"))


def sweep_folder(folder: Path, pattern: str = f".*{_PART}") -> None:
    """The same for all files of a folder that only one party writes into."""
    _unlink(folder.rglob(pattern))


def _unlink(paths: Iterable[Path]) -> None:
    for path in list(paths):
        with suppress(OSError):
            path.unlink()


def _literal(name: str) -> str:
    return "".join(f"[{c}]" if c in "[]*?" else c for c in name)


def _make(folder: Path, mode: int = 0o777) -> None:
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for one in reversed(missing):
        with suppress(FileExistsError):
            one.mkdir(mode)
        _flush_folder(one.parent)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some network shares cannot, and are no safer for failing here
        if error.errno not in _NO_FLUSH:
            raise
    finally:
        os.close(descriptor)


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__
