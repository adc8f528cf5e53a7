"""The ledger: what this site released before, of which patients, for any study. It never leaves the site.

Rule ONCE (`fdtr.disclosure.rule_once`) compares a release with it. The ledger holds no id: patients are HMAC-SHA256 of
their ids under a secret of the site's own, cut to 16 bytes, sorted. Beside each stands how many steps it has. They are
stored and read part by part, so that no release is ever held whole.

The ledger is an SQLite file, because judging and recording have to be one transaction when two processes release at
once, and because a crash in between must leave either the whole record or none.
"""

import hmac
import json
import os
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from fdtr.container import flush_folder, write_through
from fdtr.disclosure.message import refusal
from fdtr.disclosure.rule_once import (
    VALUES,
    Draws,
    Earlier,
    Patients,
    Release,
    drawn,
    drawn_by_digests,
    judge_once,
    nothing_near,
    receives_only,
)
from fdtr.disclosure.rules import Verdict
from fdtr.errors import (
    DisclosureError,
    ForeignFile,
    LostState,
    NotWithdrawable,
    PerhapsWritten,
    UnreadableFile,
    UnwritableFile,
)
from fdtr.exchange.site_state import state_folder
from fdtr.trajectories.keyed_hashes import WIDTH, HashPart, SortedHashes, common_patients
from fdtr.trajectories.patient_ids import PatientIds

FEWEST_DIGITS = 8
"""Of a digest, to name a release by."""
_WAIT_SECONDS = 30.0
_DIGESTS, _CIPHER = "digests", "cipher"
_FORMATS = (
    """
    CREATE TABLE releases (
        id INTEGER PRIMARY KEY, time TEXT NOT NULL, study TEXT NOT NULL, feature_map TEXT NOT NULL, site TEXT NOT NULL,
        message TEXT NOT NULL, content TEXT NOT NULL, margin INTEGER NOT NULL, state TEXT NOT NULL, n INTEGER NOT NULL,
        patients BLOB NOT NULL
    );
    CREATE TABLE secret (proof BLOB NOT NULL)
    """,
    "ALTER TABLE releases ADD COLUMN steps BLOB; ALTER TABLE releases ADD COLUMN released TEXT",
    "CREATE TABLE receiving (study TEXT PRIMARY KEY, site TEXT NOT NULL, time TEXT NOT NULL)",
    f"""
    CREATE TABLE parts (
        release INTEGER NOT NULL, number INTEGER NOT NULL, patients BLOB NOT NULL, steps BLOB,
        PRIMARY KEY (release, number)
    );
    ALTER TABLE releases ADD COLUMN counts TEXT;
    ALTER TABLE secret ADD COLUMN weights TEXT NOT NULL DEFAULT '{_DIGESTS}'
    """,
)
"""Statements that make each format from the one before it, and the first from an empty file.

`steps` and `released` (the digest of a step's numbers, by step) are NULL where whole tables are compared: for values,
and for what format 1 recorded. `receiving` are studies in which the site only receives. From format 4 on the patients
of a release are in its `parts`, and `counts` are the patients at each step; what an earlier format recorded stays in
`releases`. `weights` says how the secret makes weights: a ledger keeps the way that it began with, because the same
patients have the same weights in every release.
"""
_STEPS = "<u2"
_MADE = b"There was a ledger beside this file. Without releases.sqlite nothing is released: restore it from a copy.\n"


@dataclass(frozen=True)
class Recorded:
    """An entry of the ledger: when, for which study, as which site, and of how many patients.

    `message` is the digest of the message, `content` that of its numbers.
    """

    time: str
    study: str
    site: str
    message: str
    content: str
    n: int
    withdrawn: bool


def site_ledger() -> "Ledger":
    """The ledger in this site's state folder."""
    return Ledger(state_folder() / "ledger")


class Ledger:
    """The ledger in a private `folder`, made when something is first recorded.

    A patient is an id, whatever the site was called: a hospital may have another name in each study, and must not
    release the same patients twice under two names of one study.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "releases.sqlite"
        self._secret_file = folder / "secret"
        self._made_file = folder / "made"

    def judge(self, release: Release) -> Verdict:
        """Rule ONCE for a release. Reads only; where no ledger is, nothing was released."""
        with self._open() as ledger:
            if ledger is None:
                return nothing_near(release, "no earlier release")
            return _judge(ledger, release, self._patients(ledger, release))

    def require(self, release: Release) -> None:
        """Refuse what rule ONCE refuses, before anybody is asked and anything is written."""
        verdict = self.judge(release)
        if not verdict.holds:
            raise DisclosureError("ONCE", _refusal(release, verdict))

    def repeated(self, release: Release) -> str | None:
        """The latest message by which a site released these very patients for this study; None where none did."""
        with self._open() as ledger:
            if ledger is None:
                return None
            patients = self._patients(ledger, release).hashes
            earlier = ledger.execute(
                f"SELECT id, {_counts(ledger)}, message FROM releases WHERE state = 'released' AND study = ? "  # noqa: S608
                "AND site = ? AND n = ? AND feature_map <> ? ORDER BY id DESC",
                (release.study, release.site, patients.n, VALUES),
            )
            for number, counts, message in earlier:
                recorded = _recorded_patients(ledger, number, None, counts).hashes
                if common_patients(patients, recorded)[0] == patients.n:
                    return str(message)
            return None

    def draws(self, patients: Sequence[str] | PatientIds, horizon: int, *, make: bool) -> Draws | None:
        """A number in [0, 1) for each step and id that follows from the ledger's secret: the weights of rows.

        Where there is no ledger, it is made if `make` says so; else the answer is None.
        """
        if make:
            self._make()
        with self._open() as ledger:
            if ledger is None:
                return None
            draw = drawn if _weights(ledger) == _CIPHER else drawn_by_digests
            return draw(self._secret(ledger), patients, horizon)

    def receive_only(self, study: str, site: str) -> None:
        """Remember that the site sends nothing in a study; refused where it sent something.

        This is for good: a total without the site, taken from a later one with it, would show its sums.
        """
        self._make()
        with self._connected() as ledger:
            sent = ledger.execute(
                "SELECT time, message FROM releases WHERE state = 'released' AND study = ? AND feature_map <> ? "
                "ORDER BY id DESC",
                (study, VALUES),
            ).fetchone()
            if sent is not None:
                raise NotWithdrawable(
                    f"Site {site!r} released sums for this study on {sent[0][:10]}, so that it cannot receive only. "
                    "Nothing was written. If nobody ever had them, strike them first: `fdtr site withdraw "
                    f"{sent[1][:12]}`."
                )
            now = datetime.now(UTC).isoformat(timespec="seconds")
            ledger.execute("INSERT OR IGNORE INTO receiving VALUES (?, ?, ?)", (study, site, now))

    def receives_only(self, study: str) -> bool:
        """Whether the site said that it only receives in a study."""
        with self._open() as ledger:
            return ledger is not None and _receiving_since(ledger, study) is not None

    @contextmanager
    def recording(self, release: Release) -> Iterator[None]:
        """Record a release before the body writes it, and take the record back where the body surely wrote nothing.

        So no message is ever in the world without its record. An interruption leaves the record, and so does
        `PerhapsWritten`: the file may be there already. The same message may be released again, and `withdraw` strikes
        the record.
        """
        number = self._record(release)
        try:
            yield
        except PerhapsWritten as error:
            raise PerhapsWritten(
                f"{error} The ledger keeps its record. Run the same command again; if nobody had the file, strike it "
                f"with `fdtr site withdraw {release.message[:12]}`."
            ) from None
        except Exception:
            with suppress(UnreadableFile), self._connected() as ledger:
                ledger.execute("BEGIN IMMEDIATE")
                ledger.execute("DELETE FROM releases WHERE id = ?", (number,))
                ledger.execute("DELETE FROM parts WHERE release = ?", (number,))
                ledger.execute("COMMIT")
            raise

    def withdraw(self, digest: str) -> list[Recorded]:
        """Strike a release that was never sent, by its message's digest or the first digits of it; what was struck."""
        meant = [entry for entry in self.recorded() if not entry.withdrawn and entry.message.startswith(digest)]
        if len(digest) < FEWEST_DIGITS or len({entry.message for entry in meant}) != 1:
            raise NotWithdrawable(
                f"The ledger holds {'several releases' if meant else 'no release'} under {digest[:12]!r}. "
                f"Nothing was struck. {self._known()}"
            )
        with self._connected() as ledger:
            ledger.execute("UPDATE releases SET state = 'withdrawn' WHERE message = ?", (meant[0].message,))
        return meant

    def recorded(self) -> list[Recorded]:
        """Every release, oldest first."""
        with self._open() as ledger:
            if ledger is None:
                return []
            columns = "time, study, site, message, content, n, state = 'withdrawn'"
            return [Recorded(*row) for row in ledger.execute(f"SELECT {columns} FROM releases ORDER BY id")]  # noqa: S608

    def stands(self, digest: str) -> bool:
        """Whether the message with this digest was recorded and not withdrawn."""
        return any(entry.message == digest and not entry.withdrawn for entry in self.recorded())

    def _known(self) -> str:
        standing = [entry for entry in self.recorded() if not entry.withdrawn]
        listed = "; ".join(f"{entry.message[:12]} of {entry.time}, site {entry.site}" for entry in standing)
        return f"Give 8 or more characters of a digest, or the message's file. It holds: {listed or 'nothing'}."

    def _record(self, release: Release) -> int:
        self._make()
        with self._connected() as ledger:
            patients = self._patients(ledger, release)
            ledger.execute("BEGIN IMMEDIATE")  # from judging to recording, no other process may record
            verdict = _judge(ledger, release, patients)
            if not verdict.holds:
                ledger.execute("ROLLBACK")
                raise DisclosureError("ONCE", _refusal(release, verdict))
            number = _insert(ledger, release, patients)
            ledger.execute("COMMIT")
            return number

    def _patients(self, ledger: sqlite3.Connection, release: Release) -> Patients:
        """The patients of a release, hashed as the ledger stores them."""
        ids = PatientIds.of(release.patients)
        return Patients(ids.sorted_hashes(self._secret(ledger), release.steps), release.released)

    def _secret(self, ledger: sqlite3.Connection) -> bytes:
        """The site's secret, if the ledger was made with it: under another, no patient would match."""
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
        """Make the folder, an empty ledger and the secret, where they are missing; bring an older format up to date.

        The secret is written once the ledger's file is there, so that a secret without a ledger is never what a crash
        left. The mark is last of all: whoever dies before it has forgotten nothing.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            marked, left = self._marked(), self._left()
            if not self._file.exists():
                self._refuse_forgotten(left)
                os.close(os.open(self._file, os.O_RDWR | os.O_CREAT, 0o600))
                flush_folder(self._folder)
            with self._connected() as ledger:
                ledger.execute("BEGIN IMMEDIATE")
                format_ = _format(ledger)
                self._refuse_forgotten(marked and not format_)
                if format_ < len(_FORMATS):
                    for statement in ";".join(_FORMATS[format_:]).split(";"):
                        ledger.execute(statement)
                    ledger.execute(f"PRAGMA user_version = {len(_FORMATS)}")
                if not format_:
                    _write_once(self._secret_file, new_secret())
                    proof = _proof(self._secret_file.read_bytes())
                    ledger.execute("INSERT INTO secret (proof, weights) VALUES (?, ?)", (proof, _CIPHER))
                ledger.execute("COMMIT")
            if not marked:
                _write_once(self._made_file, _MADE)
        except OSError as error:
            raise _unwritable(self._folder, error) from None

    def _marked(self) -> bool:
        """Whether a ledger was made completely."""
        return self._made_file.exists()

    def _left(self) -> bool:
        """Whether something is left of a ledger beside its file."""
        return self._marked() or self._secret_file.exists()

    def _refuse_forgotten(self, forgotten: bool) -> None:
        """Refuse to begin anew: every patient of a lost ledger could be released again."""
        if forgotten:
            raise LostState(
                f"The ledger in {self._folder} was made, and its file {self._file.name!r} is gone or empty. Nothing "
                "was written. Restore the folder from its newest copy. Else nobody can tell whose sums left: move "
                "the folder away only for patients of whom none ever did."
            )

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection | None]:
        """The ledger to read; None where nothing was ever recorded."""
        marked, left = self._marked(), self._left()  # read first: another process may be making all of them just now
        if not self._file.exists():
            self._refuse_forgotten(left)
            yield None
            return
        with self._connected() as ledger:
            self._refuse_forgotten(marked and not _format(ledger))
            yield ledger if _format(ledger) else None

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """A connection without implicit transactions; SQLite's errors become sentences."""
        try:
            connection = sqlite3.connect(f"{self._file.absolute().as_uri()}?mode=rw", uri=True, timeout=_WAIT_SECONDS)
            with closing(connection):
                connection.isolation_level = None
                if _format(connection) > len(_FORMATS):
                    raise ForeignFile(f"{self._file} was written by a newer fdtr. Nothing was written. Use that one.")
                yield connection
        except sqlite3.Error as error:
            raise UnreadableFile(
                f"The ledger of releases {self._file} cannot be used: {error}. Nothing was written. If another fdtr is "
                "at work, wait for it; else restore the folder from a copy."
            ) from None


def _judge(ledger: sqlite3.Connection, release: Release, patients: Patients) -> Verdict:
    """Judge against every standing release of the same kind; the stricter of two margins counts."""
    since = None if release.feature_map == VALUES else _receiving_since(ledger, release.study)
    if since is not None:
        return receives_only(since)
    columns = f"{'released' if _format(ledger) > 1 else 'NULL'}, {_counts(ledger)}"
    standing = ledger.execute(
        f"SELECT id, {columns}, time, study, feature_map, site, content, MAX(margin, ?1) FROM releases "  # noqa: S608
        "WHERE state = 'released' AND MAX(margin, ?1) > 0 AND (feature_map = ?2) = ?3 ORDER BY id",
        (release.margin, VALUES, release.feature_map == VALUES),
    )
    earlier = (
        Earlier(_recorded_patients(ledger, number, released, counts), *rest)
        for number, released, counts, *rest in standing
    )
    return judge_once(release, patients, earlier)


def _insert(ledger: sqlite3.Connection, release: Release, patients: Patients) -> int:
    """Record a release and its patients, in a transaction that is open; its number."""
    now, hashes, by_step = datetime.now(UTC).isoformat(timespec="seconds"), patients.hashes, len(release.steps) > 0
    values = {
        "time": now, "study": release.study, "feature_map": release.feature_map, "site": release.site,
        "message": release.message, "content": release.content, "margin": release.margin, "state": "released",
        "n": hashes.n, "patients": b"", "released": json.dumps(dict(release.released)) if by_step else None,
        "counts": json.dumps(hashes.counts.tolist()),
    }  # fmt: skip
    marks = ", ".join("?" * len(values))
    number = ledger.execute(
        f"INSERT INTO releases ({', '.join(values)}) VALUES ({marks})",  # noqa: S608
        (*values.values(),),
    ).lastrowid
    for place, part in enumerate(hashes.parts()):
        steps = part.steps.astype(_STEPS).tobytes() if by_step else None
        ledger.execute("INSERT INTO parts VALUES (?, ?, ?, ?)", (number, place, part.hashes, steps))
    return int(number or 0)


def _recorded_patients(ledger: sqlite3.Connection, number: int, released: str | None, counts: str | None) -> Patients:
    """The patients of a recorded release, part by part; those of formats 1 to 3 are one part, and not counted."""
    if counts is not None:
        query = "SELECT patients, steps FROM parts WHERE release = ? ORDER BY number"
    else:
        query = f"SELECT patients, {'steps' if _format(ledger) > 1 else 'NULL'} FROM releases WHERE id = ?"  # noqa: S608

    def parts() -> Iterator[HashPart]:
        for hashes, steps in ledger.execute(query, (number,)):
            each = np.ones(len(hashes) // WIDTH, np.uint16) if steps is None else np.frombuffer(steps, _STEPS)
            yield HashPart(hashes, each)

    hashes = SortedHashes.of(parts) if counts is None else SortedHashes(np.array(json.loads(counts), np.int64), parts)
    return Patients(hashes, {int(step): str(digest) for step, digest in json.loads(released or "{}").items()})


def _counts(ledger: sqlite3.Connection) -> str:
    """The column of patients at each step, which is NULL for what older formats recorded."""
    return "counts" if _format(ledger) > 3 else "NULL"


def _weights(ledger: sqlite3.Connection) -> str:
    """How the ledger's secret makes weights."""
    row = ledger.execute("SELECT weights FROM secret").fetchone() if _format(ledger) > 3 else None
    return _DIGESTS if row is None else str(row[0])


def _receiving_since(ledger: sqlite3.Connection, study: str) -> str | None:
    """When the site said that it only receives in a study; None where it did not."""
    if _format(ledger) < 3:
        return None
    row = ledger.execute("SELECT time FROM receiving WHERE study = ?", (study,)).fetchone()
    return None if row is None else str(row[0])


def _format(ledger: sqlite3.Connection) -> int:
    """The format that a ledger was made in; 0 while it is being made."""
    return int(ledger.execute("PRAGMA user_version").fetchone()[0])


def _refusal(release: Release, verdict: Verdict) -> str:
    return refusal(release.site, [verdict], "values" if release.feature_map == VALUES else "sums")


def new_secret() -> bytes:
    """A secret for a new ledger: for the hashes of patients, and for their weights."""
    return secrets.token_bytes(32)


def _proof(secret: bytes) -> bytes:
    return hmac.digest(secret, b"fdtr ledger", "sha256")


def _unwritable(folder: Path, error: OSError) -> UnwritableFile:
    return UnwritableFile(
        f"The ledger of releases cannot be kept in {folder}: {error.strerror}. Nothing was written. Set FDTR_STATE to "
        "a folder of your own."
    )


def _write_once(path: Path, content: bytes) -> None:
    """Write a file readable by its owner alone, whole, unless it is there already."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        write_through(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), content)
        try:
            os.link(temporary, path)  # unlike a rename, it never replaces what another process just made
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
