"""Rule ONCE: what this site released before, of which patients, for any study. It never leaves the site.

Two messages over nearly the same patients differ by the few in which they differ, so that a second release is refused
when those are few. The ledger holds no id: patients are HMAC-SHA256 of their ids under a secret of the site's own, cut
to 16 bytes, sorted.

Values that leave after learning (`VALUES`) are held to the rule among themselves: two rounds of them over patients that
differ by a few differ by what those few were worth. They are not held to the site's sums. A table often grows a little
between message and evaluation, and a value, a weighted mean rounded to a twentieth of its error or coarser, cannot be
subtracted from a sum over other features. Nor are two releases over the same patients refused when their numbers
differ: another total, another split or another study changes the policies that are valued, and nobody joins or leaves.

SQLite, because judging and recording have to be one act when two processes release at once, and because a crash in
between must leave either the whole record or none. Lines appended to a file would need locks and repairs of our own.
"""

import hmac
import os
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from fdtr.disclosure.messages import refusal
from fdtr.disclosure.rules import Verdict
from fdtr.errors import ForeignFile, ReleasedBefore, UnknownRelease, UnreadableFile, UnwritableFile

VALUES = "values"
"""What stands for the feature map of a release of values; a map's fingerprint has 64 digits."""
_WIDTH = 16
_WAIT_SECONDS = 30.0
_FORMAT = 1
_SCHEMA = """
CREATE TABLE releases (
    id INTEGER PRIMARY KEY, time TEXT NOT NULL, study TEXT NOT NULL, feature_map TEXT NOT NULL, site TEXT NOT NULL,
    message TEXT NOT NULL, content TEXT NOT NULL, margin INTEGER NOT NULL, state TEXT NOT NULL, n INTEGER NOT NULL,
    patients BLOB NOT NULL
);
CREATE TABLE secret (proof BLOB NOT NULL);
"""


@dataclass(frozen=True, repr=False)
class Release:
    """What a site is about to release: a `message` by its digest, of `patients` by their ids.

    `study` and `feature_map` are fingerprints (`VALUES` for values), `content` is the digest of the numbers alone, and
    `margin` the study's `once_margin`. No repr: it would print ids.
    """

    study: str
    feature_map: str
    site: str
    message: str
    content: str
    margin: int
    patients: Sequence[str]


@dataclass(frozen=True)
class Recorded:
    """A line of the ledger: when, for which study, as which site, which message, of how many patients."""

    time: str
    study: str
    site: str
    message: str
    n: int
    withdrawn: bool


class Ledger:
    """The ledger in a `folder` of the site's own, made when something is first recorded.

    A patient is an id, whatever the site was called, since studies may name one hospital differently; but within one
    study another site is other people, whose ids may repeat.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "releases.sqlite"
        self._secret_file = folder / "secret"

    def judge(self, release: Release) -> Verdict:
        """Rule ONCE for a release. Reads only; where no ledger is, nothing was released."""
        with self._open() as ledger:
            if ledger is None:
                return _verdict(release, release.margin, "no earlier release")
            return _judge(ledger, release, self._hashed(ledger, release.patients))

    def require(self, release: Release) -> None:
        """Refuse what rule ONCE refuses, before anybody is asked or anything written."""
        verdict = self.judge(release)
        if not verdict.holds:
            raise ReleasedBefore(_refusal(release, verdict))

    def repeated(self, release: Release) -> str | None:
        """The latest message by which a site released these very patients for this study; None where none did."""
        with self._open() as ledger:
            if ledger is None:
                return None
            found = ledger.execute(
                "SELECT message FROM releases WHERE state = 'released' AND study = ? AND site = ? AND patients = ? "
                "AND feature_map <> ? ORDER BY id DESC",
                (release.study, release.site, self._hashed(ledger, release.patients), VALUES),
            ).fetchone()
            return None if found is None else str(found[0])

    @contextmanager
    def recording(self, release: Release) -> Iterator[None]:
        """Record a release before the body writes it, and take the record back where the body fails.

        So no message is ever in the world without its record. An interruption leaves the record: the file may be there
        already, the same message may be made again, and `withdraw` strikes it.
        """
        number = self._record(release)
        try:
            yield
        except Exception:
            with suppress(UnreadableFile), self._connected() as ledger:
                ledger.execute("DELETE FROM releases WHERE id = ?", (number,))
            raise

    def withdraw(self, message: str) -> list[Recorded]:
        """Strike a release that was never sent, by its message's digest or the beginning of it; what was struck."""
        found = [one for one in self.recorded() if not one.withdrawn and one.message.startswith(message)]
        if len(message) < 8 or len({one.message for one in found}) != 1:
            raise UnknownRelease(
                f"The ledger holds {'several releases' if found else 'no release'} under {message[:12]!r}. "
                f"Nothing was struck. {self._known()}"
            )
        with self._connected() as ledger:
            ledger.execute("UPDATE releases SET state = 'withdrawn' WHERE message = ?", (found[0].message,))
        return found

    def recorded(self) -> list[Recorded]:
        """Every release, oldest first."""
        with self._open() as ledger:
            if ledger is None:
                return []
            columns = "time, study, site, message, n, state = 'withdrawn'"
            return [Recorded(*row) for row in ledger.execute(f"SELECT {columns} FROM releases ORDER BY id")]  # noqa: S608

    def record(self, release: Release) -> None:
        """Record a release for good, where what is released is saved already and only `withdraw` may strike it."""
        with self.recording(release):
            pass

    def stands(self, message: str) -> bool:
        """Whether a message, by its whole digest, was recorded and not withdrawn."""
        return any(one.message == message and not one.withdrawn for one in self.recorded())

    def _known(self) -> str:
        standing = [one for one in self.recorded() if not one.withdrawn]
        listed = "; ".join(f"{one.message[:12]} of {one.time}, site {one.site}" for one in standing)
        return f"Give 8 or more characters of a digest, or the message's file. It holds: {listed or 'nothing'}."

    def _record(self, release: Release) -> int:
        self._make()
        with self._connected() as ledger:
            hashed = self._hashed(ledger, release.patients)
            ledger.execute("BEGIN IMMEDIATE")  # from judging to recording nobody else may record
            verdict = _judge(ledger, release, hashed)
            if not verdict.holds:
                ledger.execute("ROLLBACK")
                raise ReleasedBefore(_refusal(release, verdict))
            now = datetime.now(UTC).isoformat(timespec="seconds")
            row = (now, release.study, release.feature_map, release.site, release.message, release.content)
            done = ledger.execute(
                "INSERT INTO releases (time, study, feature_map, site, message, content, margin, state, n, patients) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, 'released', ?, ?)",
                (*row, release.margin, len(hashed) // _WIDTH, hashed),
            )
            ledger.execute("COMMIT")
            return int(done.lastrowid or 0)

    def _hashed(self, ledger: sqlite3.Connection, patients: Sequence[str]) -> bytes:
        """Keyed hashes of ids, sorted, side by side."""
        secret = self._secret(ledger)
        hashes = {hmac.digest(secret, patient.encode(), "sha256")[:_WIDTH] for patient in patients}
        return b"".join(sorted(hashes))

    def _secret(self, ledger: sqlite3.Connection) -> bytes:
        """The site's secret, if it is the one that the ledger was made with: under another, nobody would match."""
        try:
            secret = self._secret_file.read_bytes()
        except OSError:
            secret = b""
        proof = ledger.execute("SELECT proof FROM secret").fetchone()
        if proof is None or not secret or not hmac.compare_digest(proof[0], _proof(secret)):
            raise UnreadableFile(
                f"The ledger in {self._folder} cannot be compared with: its file {self._secret_file.name!r} is missing "
                "or another. Nothing was written. Restore the folder from a copy. Without it nobody can tell whether "
                "these patients were released before."
            )
        return secret

    def _make(self) -> None:
        """The folder, the secret and an empty ledger, where they are missing; whoever comes first makes them."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not self._file.exists():
                _write_once(self._secret_file, secrets.token_bytes(32))
                os.close(os.open(self._file, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise UnwritableFile(
                f"The ledger of releases cannot be kept in {self._folder}: {error.strerror}. Nothing was written. "
                "Set FDTR_STATE to a folder of your own."
            ) from None
        with self._connected() as ledger:
            ledger.execute("BEGIN IMMEDIATE")
            if ledger.execute("PRAGMA user_version").fetchone()[0] == 0:
                for statement in _SCHEMA.split(";"):
                    ledger.execute(statement)
                ledger.execute("INSERT INTO secret VALUES (?)", (_proof(self._secret_file.read_bytes()),))
                ledger.execute(f"PRAGMA user_version = {_FORMAT}")
            ledger.execute("COMMIT")

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection | None]:
        """The ledger to read; None where nothing was ever recorded."""
        if not self._file.exists():
            yield None
            return
        with self._connected() as ledger:
            yield ledger if ledger.execute("PRAGMA user_version").fetchone()[0] else None

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """A connection without implicit transactions; what SQLite reports becomes a sentence."""
        try:
            connection = sqlite3.connect(f"{self._file.absolute().as_uri()}?mode=rw", uri=True, timeout=_WAIT_SECONDS)
            with closing(connection):
                connection.isolation_level = None
                if connection.execute("PRAGMA user_version").fetchone()[0] > _FORMAT:
                    raise ForeignFile(f"{self._file} was written by a newer fdtr. Nothing was written. Use that one.")
                yield connection
        except sqlite3.Error as error:
            raise UnreadableFile(
                f"The ledger of releases {self._file} cannot be used: {error}. Nothing was written. If another fdtr is "
                "at work, wait for it; else restore the folder from a copy."
            ) from None


def _judge(ledger: sqlite3.Connection, release: Release, hashed: bytes) -> Verdict:
    """Against every release that stands and has about as many patients; the stricter of two margins counts."""
    n = len(hashed) // _WIDTH
    near = ledger.execute(
        "SELECT time, study, feature_map, content, MAX(margin, ?1), n, patients FROM releases WHERE state = 'released' "
        "AND MAX(margin, ?1) > 0 AND ABS(n - ?2) <= MAX(margin, ?1) AND NOT (study = ?3 AND site <> ?4) "
        "AND (feature_map = ?5) = ?6 ORDER BY id",
        (release.margin, n, release.study, release.site, VALUES, release.feature_map == VALUES),
    )
    mine = np.frombuffer(hashed, f"S{_WIDTH}")
    for time, study, feature_map, content, margin, count, patients in near:
        theirs = np.frombuffer(patients, f"S{_WIDTH}")
        same = n if patients == hashed else int(np.isin(mine, theirs, assume_unique=True).sum())
        differ = n + count - 2 * same
        of = f"those released on {time[:10]} for the study {study[:12]}…"
        if 0 < differ <= margin:
            return _verdict(
                release, margin, f"{differ} patient{'s differ' if differ > 1 else ' differs'} from {of}", holds=False
            )
        if differ == 0 and content != release.content and feature_map == release.feature_map != VALUES:
            return _verdict(
                release, margin, f"the patients are {of}, with other values of the same features", holds=False
            )
    return _verdict(release, release.margin, "no earlier release of nearly the same patients")


def _verdict(release: Release, margin: int, measured: str, holds: bool = True) -> Verdict:
    again = "" if release.feature_map == VALUES else " with the same values or other features"
    return Verdict(
        ReleasedBefore, None, holds, measured, f"more than {margin} that differ, or the same patients{again}"
    )


def _refusal(release: Release, verdict: Verdict) -> str:
    return refusal(release.site, [verdict], "values" if release.feature_map == VALUES else "sums")


def _proof(secret: bytes) -> bytes:
    return hmac.digest(secret, b"fdtr ledger", "sha256")


def _write_once(path: Path, content: bytes) -> None:
    """Write a file readable by its owner alone, whole, unless it is there already."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)  # unlike a rename, it never replaces what another process just made
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
