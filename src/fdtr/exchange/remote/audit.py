"""A site's audit log: what it was asked, what it checked and what it sent, as a hash chain with one line per request.

A line is canonical JSON. `seal` is the SHA-256 of the rest of the line; `before` is the seal of the previous line. A
line that was changed, removed or moved breaks the chain. Lines cut off at the end do not, so the newest seal, the head,
is also written to a file beside the log, and nothing is appended to a log that does not end with it. Somebody who can
write to both files can cut both: note the head elsewhere from time to time, and give it to `verify`.

Where that file was lost, the next line says so.

A crash can leave part of a line. It stays in the log, and the next line begins right behind it with its length and
hash. So a crash leaves one unfinished piece at the end, and never a finished line that is not valid. A finished line
that is not valid was changed, and nothing is written after it.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from fdtr.container import canonical_json, write_atomically
from fdtr.errors import BrokenChain, FdtrError, UnreadableFile, UnwritableFile
from fdtr.exchange.atomic_files import locked

FIRST = "0" * 64
"""`before` of the first line."""
_TORN = "torn"
_LOST_HEAD = "lost_head"
_BEGINS = b'{"before":"'  # how the line after a torn one begins: canonical JSON sorts its keys
_CHUNK = 2**16
_UNRELIABLE = (
    "The log cannot be relied on from there. Keep it as it is, compare it with a copy, and find out who could write "
    "to it."
)


@dataclass(frozen=True)
class Verified:
    """A log whose chain holds: its number of `lines`, its `head`, and how many lines a crash has `torn`.

    `unended` says that the log still ends with a torn line. `lost_heads` counts how often the head's file was lost, so
    that lines may have been cut off unseen.
    """

    lines: int
    head: str
    torn: int
    unended: bool
    lost_heads: int = 0


@dataclass(frozen=True)
class Audit:
    """The log at `path`, readable by its owner only. One process writes at a time."""

    path: Path

    @property
    def head(self) -> Path:
        """The file that holds the seal of the newest line."""
        return self.path.with_name(f"{self.path.name}.head")

    def require_whole(self) -> None:
        """Refuse a log that was removed or shortened after its head was written."""
        line, rest = _ending(self.path)
        self._require_head(_valid(rest) or (_valid(line) if line else None))

    def append(self, event: Mapping[str, Any]) -> str:
        """Append one line, which is on disk when this returns. Returns the new head."""
        with locked(self.path.with_name(f".{self.path.name}.lock"), f"the log {self.path}"):
            try:
                return self._append(event)
            except OSError as error:
                raise UnwritableFile(
                    f"The log {self.path} could not be written: {error.strerror}. Nothing was sent."
                ) from None

    def _append(self, event: Mapping[str, Any]) -> str:
        line, rest = _ending(self.path)
        last = _valid(line) if line else None
        if line is not None and last is None:
            raise BrokenChain(f"The log {self.path} ends with a line that was changed. {_UNRELIABLE}")
        unended = _valid(rest)  # a line that lacks only its newline
        content = b"\n" if unended else b""
        last = unended or last
        lost = self.lacks_head(last["line"] if last else 0)
        if not lost and not self._require_head(last) and last is not None:
            self._write_head(last)  # a crash came between the line and its head
        events = [event] if unended or not rest else [{_TORN: _described(rest)}, event]
        if lost:
            events[0] = {**events[0], _LOST_HEAD: True}
        for entry in events:  # the head follows every line, so that a crash leaves at most one line without
            last = _sealed(entry, last)
            self._write(content + canonical_json(last) + b"\n", last)
            content = b""
        return str(last["seal"]) if last else FIRST

    def _write(self, content: bytes, last: Mapping[str, Any]) -> None:
        """Append and flush `content`, then write the head; both or neither."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size, written = os.fstat(descriptor).st_size, 0
            try:
                while written < len(content):
                    written += os.write(descriptor, content[written:])
                os.fsync(descriptor)
                self._write_head(last)
            except (OSError, FdtrError):
                with suppress(OSError):
                    os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)

    def _write_head(self, last: Mapping[str, Any]) -> None:
        write_atomically(self.head, f"{last['seal']}\n".encode(), mode=0o600)

    def lacks_head(self, lines: int) -> bool:
        """Whether a log of so many lines has lost its head. After the first line a crash may have come before it."""
        return lines > 1 and not os.path.lexists(self.head)

    def _require_head(self, last: Mapping[str, Any] | None) -> bool:
        """Whether the head is the seal of `last`. It may also be the seal before; anything else is refused."""
        try:
            head = self.head.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return last is None
        except (OSError, UnicodeDecodeError):
            raise BrokenChain(f"The note {self.head} of the log's newest line cannot be read. {_UNRELIABLE}") from None
        if last is None or head not in (last["seal"], last["before"]):
            raise BrokenChain(
                f"The log {self.path} does not end with the line that was written last: it was taken away, or lines "
                "were cut off. Put it back. To begin a new one, keep the old one elsewhere, and move its note "
                f"{self.head.name} there too."
            )
        return bool(head == last["seal"])


def verify(path: Path, noted: str | None = None) -> Verified:
    """Check a whole log, line by line; raises BrokenChain at the first line that was changed, removed or moved.

    `noted` is an earlier head, which the log must still contain.
    """
    lines, head, torn, unended, lost_heads = 0, FIRST, 0, False, 0
    missing = noted not in (None, FIRST)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                entry = _valid(line.removesuffix(b"\n"))
                if entry is None and not line.endswith(b"\n"):
                    unended = True
                    break
                if entry is None:
                    raise _broken(path, number, "it was changed, or is not what a crash left")
                if entry["before"] != head or entry["line"] != lines + 1:
                    raise _broken(path, number, "it does not follow the line before it")
                torn, lost_heads = torn + (_TORN in entry), lost_heads + (_LOST_HEAD in entry)
                lines, head = lines + 1, entry["seal"]
                missing = missing and head != noted
    except OSError as error:
        raise UnreadableFile(f"The log {path} could not be read: {error.strerror}.") from None
    if missing:
        raise BrokenChain(f"{path} does not hold the line {noted}, which was its head once: lines were cut off.")
    return Verified(lines, head, torn + unended, unended, lost_heads + Audit(path).lacks_head(lines))


def _broken(path: Path, number: int, what: str) -> BrokenChain:
    return BrokenChain(f"{path}, line {number}: {what}. {_UNRELIABLE}")


def _sealed(event: Mapping[str, Any], last: Mapping[str, Any] | None) -> dict[str, Any]:
    entry = {
        **event,
        "line": last["line"] + 1 if last else 1,
        "before": last["seal"] if last else FIRST,
        "when": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
    return {**entry, "seal": _seal(entry)}


def _seal(entry: Mapping[str, Any]) -> str:
    return sha256(canonical_json(dict(entry))).hexdigest()


def _described(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": sha256(content).hexdigest()}


def _valid(line: bytes) -> dict[str, Any] | None:
    """The entry of a line whose bytes are as they were written; otherwise None.

    A line may begin with what a crash left, if the entry gives its length and hash.
    """
    begins = max(line.rfind(_BEGINS), 0)
    entry = _valid_entry(line[begins:])
    if entry is None or entry.get(_TORN) != (_described(line[:begins]) if begins else None):
        return None
    return entry


def _valid_entry(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
        canonical = isinstance(entry, dict) and canonical_json(entry) == line
    except (ValueError, RecursionError):
        return None
    if not canonical or not {"line", "before", "seal"} <= set(entry):
        return None
    rest = {name: value for name, value in entry.items() if name != "seal"}
    return entry if entry["seal"] == _seal(rest) else None


def _ending(path: Path) -> tuple[bytes | None, bytes]:
    """The last finished line, and the bytes after it."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return None, b""
    length = 0
    with path.open("rb") as file:
        while True:
            length = min(size, max(2 * length, _CHUNK))
            file.seek(size - length)
            *lines, rest = file.read(length).split(b"\n")
            if len(lines) > 1 or length == size:  # the first line of the chunk may be cut
                return (lines[-1] if lines else None), rest
