"""Files that survive a crash: each is whole or absent, and on disk before the next step relies on it."""

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from fdtr.container import flush_folder, opened, opened_folder, write_through
from fdtr.errors import Busy, MissingFile, OtherPosting, UnreadableFile, UnwritableFile
from fdtr.exchange.folder_layout import folder_of

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_PART = ".part"
_REMEDY = (
    "Nothing was overwritten. Find out who wrote it; if nobody should have, remove it and run the same command again."
)


def post(path: Path, content: bytes, begins: Callable[[], None] = lambda: None) -> bool:
    """Put a file where others read it, once; whether it is new.

    The same bytes may be posted again, after a crash. Other bytes under the same name are refused. So is a link between
    the study's folder and the file, which would lead this party's posting elsewhere. `begins` is called before the
    first byte lies where others read: whatever fails later, they may have all of it.
    """
    try:
        _make_folders(path)
        with _entered(path) as folder:
            _remove_leftovers(folder, path.name)
            new = not _is_posted(path, content)
            begins()
            if new:
                _put(folder, path, content)
            flush_folder(folder)
    except OSError as error:
        raise UnwritableFile(f"{path} could not be written: {_reason(error)}. Run the same command again.") from None
    except UnreadableFile as error:
        raise UnwritableFile(f"{path} could not be written: {error}") from None
    return new


def save(path: Path, content: bytes) -> None:
    """Write a private file, readable by its owner alone, in place of what was there."""
    try:
        _make_folders(path, 0o700)
        with _entered(path) as folder:
            _remove_leftovers(folder, path.name)
            with _written(folder, path.name, content, 0o600) as temporary:
                os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            flush_folder(folder)
    except OSError as error:
        raise UnwritableFile(
            f"{path} could not be written: {_reason(error)}. Set FDTR_STATE to a folder of your own."
        ) from None


def remove(path: Path) -> None:
    """Remove a private file for good."""
    try:
        with _entered(path) as folder:
            with suppress(FileNotFoundError):
                os.unlink(path.name, dir_fd=folder)
            flush_folder(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UnwritableFile(f"{path} could not be removed: {_reason(error)}. Run the same command again.") from None


@contextmanager
def locked(path: Path, who: str, patience: float = 20.0) -> Iterator[None]:
    """Let a second process of the same party wait. A process that dies releases the lock."""
    try:
        _make_folders(path, 0o700)
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


def clean_up(path: Path, ending: str = _PART) -> None:
    """Remove what a crash of its only writer left half-written of a file."""
    with suppress(OSError, UnreadableFile), _entered(path) as folder:
        _remove_leftovers(folder, path.name, ending)


def clean_up_folder(folder: Path, pattern: str) -> None:
    """Remove what crashes left half-written in a private folder: every file whose name matches `pattern`."""
    for path in list(folder.rglob(pattern)):
        with suppress(OSError):
            path.unlink()


def _entered(path: Path) -> AbstractContextManager[int]:
    """Open the folder of a file: files are written there, whatever happens to the folder's name."""
    return opened_folder(path.parent, folder_of(path))


@contextmanager
def _written(folder: int, name: str, content: bytes, mode: int) -> Iterator[str]:
    """Write the content under a temporary name, which readers skip and the next writer removes after a crash."""
    temporary = f".{name}.{secrets.token_hex(4)}{_PART}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode, dir_fd=folder)
    try:
        write_through(descriptor, content)
        yield temporary
    finally:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)


def _put(folder: int, path: Path, content: bytes) -> None:
    with _written(folder, path.name, content, 0o644) as temporary:
        try:
            _place(folder, temporary, path.name)
        except FileExistsError:
            if not _is_posted(path, content):
                raise


def _place(folder: int, temporary: str, name: str) -> None:
    """Give a written file its name, which must be free.

    Where a file system has no links, the file is renamed. A rename could overwrite, but only this party writes this
    name, and only one of its processes at a time.
    """
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if name in os.listdir(folder):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def _is_posted(path: Path, content: bytes) -> bool:
    """Whether this content is posted already; refuses other content under the same name."""
    try:
        with opened(path, beneath=folder_of(path)) as file:
            same = file.size == len(content) and file.whole() == content
    except MissingFile:
        return False
    except UnreadableFile as error:
        raise OtherPosting(f"{error} A posting should lie there. {_REMEDY}") from None
    if not same:
        raise OtherPosting(f"{path} is there already, with other content than is to be posted. {_REMEDY}")
    return True


def _remove_leftovers(folder: int, name: str, ending: str = _PART) -> None:
    with os.scandir(folder) as entries:
        leftovers = [
            entry.name for entry in entries if entry.name.startswith(f".{name}.") and entry.name.endswith(ending)
        ]
    for leftover in leftovers:
        with suppress(OSError):
            os.unlink(leftover, dir_fd=folder)


def _make_folders(path: Path, mode: int = 0o777) -> None:
    """Make the folders of a file where they are missing. Below the study's folder, none is made behind a link."""
    root = folder_of(path)
    missing = [folder for folder in (root, *root.parents) if not folder.exists()]
    for folder in reversed(missing):
        _make_folder(folder, folder.parent, mode)
    for folder in [parent for parent in reversed(path.parents) if parent.is_relative_to(root) and parent != root]:
        _make_folder(folder, root, mode)


def _make_folder(folder: Path, beneath: Path, mode: int) -> None:
    with opened_folder(folder.parent, beneath) as parent, suppress(FileExistsError):
        os.mkdir(folder.name, mode, dir_fd=parent)
        flush_folder(parent)


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__
