"""Folders that a site joined: where they are, its masks, and everything that it posts, saved before it is posted."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from fdtr.disclosure.common_repairs import CommonRepairs
from fdtr.errors import DamagedFile, MalformedPart, NotJoined, OtherRoster, OtherStudy
from fdtr.exchange.atomic_files import locked, remove, save
from fdtr.exchange.folder_layout import COUNTS_OPENED, MASKED, OPENED, SUFFIX, SUMS, file_name
from fdtr.exchange.site_state import state_folder
from fdtr.masking import SiteRound
from fdtr.signing import Round
from fdtr.study import Study
from fdtr.trajectories.table_in_database import DatabaseTable

_JOINED = "joined.json"
_DRAWN = "drawn.json"
_MASKS = "state.json"
_COUNT_MASKS = "counting.json"
_COUNTED = "counted.txt"
_COMMON = "common.json"


@dataclass(frozen=True)
class Sent:
    """The message of a round that the ledger holds: its digest and that of its numbers.

    `posted` is set before the first byte is posted: a share that fails may have passed it on.
    """

    message: str
    content: str
    number: int
    posted: bool = False


@dataclass(frozen=True)
class RoundState:
    """What a site keeps of one round: its masks, and what it posts."""

    place: Path

    @property
    def masks(self) -> SiteRound | None:
        """The site's masks; None where it did not begin."""
        return self._read_masks(_MASKS)

    @property
    def count_masks(self) -> SiteRound | None:
        """The site's masks of the counts that are opened before the sums; None where it did not begin."""
        return self._read_masks(_COUNT_MASKS)

    def _read_masks(self, name: str) -> SiteRound | None:
        path = self.place / name
        try:
            return SiteRound.from_json(path.read_bytes()) if path.exists() else None
        except MalformedPart:
            raise MalformedPart(
                f"{path} is damaged. Nothing was posted, and the masks in it are lost: masks are never put back from a "
                "copy. Move it away. Wait for a new round: `fdtr hub new-round`."
            ) from None

    def save_masks(self, masks: SiteRound) -> None:
        """Save the masks, before anything that follows from them is posted."""
        save(self.place / _MASKS, masks.to_json().encode())

    def save_count_masks(self, masks: SiteRound) -> None:
        """Save the masks of the counts, before anything that follows from them is posted."""
        save(self.place / _COUNT_MASKS, masks.to_json().encode())

    @property
    def counted(self) -> str:
        """Digest of the counts that the site masked in this round; "" where it did not."""
        path = self.place / _COUNTED
        return path.read_text(encoding="ascii") if path.exists() else ""

    @property
    def common(self) -> CommonRepairs | None:
        """What all sites take out of their sums in this round, as this site computed it; None before it did."""
        path = self.place / _COMMON
        try:
            return _REPAIRS.validate_json(path.read_bytes()) if path.exists() else None
        except ValueError:
            raise DamagedFile(f"{path} cannot be read. Nothing was posted. Wait for a new round.") from None

    def save_common(self, common: CommonRepairs) -> None:
        """Save it before the site's sums are made."""
        save(self.place / _COMMON, _REPAIRS.dump_json(common))

    def save_counted(self, digest: str) -> None:
        """Save the digest of the counts, before these are masked."""
        save(self.place / _COUNTED, digest.encode())

    def outgoing(self, part: str) -> bytes | None:
        """The bytes that the site posts, or posted."""
        path = self.path(part)
        return path.read_bytes() if path.exists() else None

    def save_outgoing(self, part: str, content: bytes) -> None:
        """Save the bytes before they are posted: after a crash the very same are posted again."""
        save(self.path(part), content)

    def path(self, part: str) -> Path:
        """Where the bytes of a part lie."""
        return self.place / f"{part}{SUFFIX}"

    @property
    def sent(self) -> Sent | None:
        """The message that was released in this round; None where nobody agreed yet."""
        path = self.place / "sent.json"
        try:
            return Sent(**json.loads(path.read_bytes())) if path.exists() else None
        except (OSError, ValueError, TypeError):
            raise DamagedFile(f"{path} cannot be read. Restore it from a copy, or wait for a new round.") from None

    def save_sent(self, sent: Sent) -> None:
        """Save this after the ledger holds the message, and before it is posted."""
        save(self.place / "sent.json", json.dumps(vars(sent)).encode())

    @property
    def policy(self) -> Path | None:
        """Where the finished policy was written."""
        path = self.place / "finished.json"
        try:
            return Path(json.loads(path.read_bytes())["policy"]) if path.exists() else None
        except (OSError, ValueError, TypeError, KeyError):
            raise DamagedFile(
                f"{path} cannot be read: it says where this site's policy of the round was written. Nothing was "
                "posted. Move it away, and run `fdtr site next` again: the policy is then written again."
            ) from None

    def finish(self, policy: Path) -> None:
        """Remember that the round is finished."""
        save(self.place / "finished.json", json.dumps({"policy": str(policy)}).encode())

    def destroy(self) -> bool:
        """Destroy the masks, and the message under them; whether there were masks left."""
        if self.masks is None:  # an open round keeps its message
            return False
        destroyed = self._destroy_masks()
        self._remove(self.path(OPENED), self.path(COUNTS_OPENED), self.path(SUMS))
        return destroyed

    @property
    def is_free(self) -> bool:
        """Whether nobody can ever read the message: it was masked, and its masks are destroyed and were never opened.

        Without b_i the masked numbers are uniform, whatever all others open.
        """
        masks = self.masks
        return masks is not None and not masks.opened and masks == masks.destroyed()

    def forget(self) -> None:
        """Take back what was never posted: its bytes, the masks on it, and that it was agreed to.

        Masks first, so that nothing follows from them any more. The message last: by it a second attempt, after a
        crash, recognises what the first one left.
        """
        self._destroy_masks()
        self._remove(self.path(MASKED), self.path(OPENED), self.place / "sent.json", self.path(SUMS))

    def _destroy_masks(self) -> bool:
        stored = [(self.count_masks, self.save_count_masks), (self.masks, self.save_masks)]
        live = [(masks, store) for masks, store in stored if masks is not None and masks != masks.destroyed()]
        for masks, store in live:
            store(masks.destroyed())
        return bool(live)

    def _remove(self, *paths: Path) -> None:
        for path in paths:
            if path.exists():
                remove(path)


@dataclass(frozen=True)
class JoinedFolder:
    """A study's `folder` that a site joined. `study` is as the site accepted it; `place` is in the state folder.

    `data` is the site's table: its path, or its name in a database, without a password.

    With `receive_only` the site sends nothing, and learns from the others' total.
    """

    place: Path
    folder: Path
    site: str
    data: Path | DatabaseTable
    key: Path | None
    study: Study
    receive_only: bool = False

    @property
    def state_folder(self) -> Path:
        """The state folder in which the site joined."""
        return self.place.parents[1]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let one process of the site work at a time."""
        with locked(self.place / "lock", f"site {self.site!r}"):
            yield

    def save(self) -> None:
        """Remember the folder."""
        with self.locked():
            save(self.place / _JOINED, _ADAPTER.dump_json(self, exclude={"place"}))

    def round(self, within: Round) -> RoundState:
        """What the site keeps of a round."""
        return RoundState(self.place / within.context[:32])

    def rounds(self) -> list[RoundState]:
        """What the site keeps of every round so far."""
        return [RoundState(path) for path in sorted(self.place.iterdir()) if path.is_dir()]

    def free_messages(self, present: RoundState) -> list[Sent]:
        """Messages of other rounds that nobody can ever read, and that no round has in which somebody still might."""
        sent = [(state, state.sent) for state in self.rounds()]
        held = {message.message for state, message in sent if message and (state == present or not state.is_free)}
        return [message for state, message in sent if message and state.is_free and message.message not in held]

    @property
    def drawn(self) -> dict[str, str]:
        """With differential privacy, the digest of the message that was drawn, by the digest of its patients."""
        path = self.place / _DRAWN
        try:
            digests = json.loads(path.read_bytes()) if path.exists() else {}
        except (OSError, ValueError):
            digests = None
        if not isinstance(digests, dict):
            raise DamagedFile(f"{path} cannot be read. Nothing was drawn. Restore it from a copy.")
        return {str(patients): str(message) for patients, message in digests.items()}

    def save_drawn(self, patients: str, message: str) -> None:
        """Remember which message was drawn for whom, by their digests."""
        save(self.place / _DRAWN, json.dumps(self.drawn | {patients: message}).encode())

    def forget_drawn(self) -> None:
        """Forget the drawn messages, once one that nobody had was withdrawn: its patients may be released anew."""
        remove(self.place / _DRAWN)

    def give_up_others(self, within: Round) -> bool:
        """Destroy the masks of every other round; whether any were left."""
        present = self.round(within)
        destroyed = [state.destroy() for state in self.rounds() if state != present]
        return any(destroyed)

    def require_same(self, study: Study) -> None:
        """Refuse a study or a roster that the site did not accept."""
        if study.fingerprint != self.study.fingerprint:
            raise OtherStudy(
                f"{self.folder} holds another study than the one that site {self.site!r} joined (fingerprint "
                f"{study.fingerprint[:12]}…, joined was {self.study.fingerprint[:12]}…). Nothing was done. Ask the hub."
            )
        if study.roster != self.study.roster:
            names = {*study.roster, *self.study.roster}
            changed = sorted(name for name in names if study.roster.get(name) != self.study.roster.get(name))
            raise OtherRoster(
                f"The roster in {self.folder} is not the one that site {self.site!r} joined with: {', '.join(changed)} "
                "changed. Nothing was done. Compare `fdtr roster show` by telephone; if all agree, run `fdtr site "
                "join` again."
            )


_ADAPTER = TypeAdapter(JoinedFolder)
_REPAIRS = TypeAdapter(CommonRepairs)


def all_joined() -> list[JoinedFolder]:
    """Every folder that was joined here."""
    return [_read(path) for path in sorted((state_folder() / "studies").glob(f"*/{_JOINED}"))]


def all_masks() -> list[tuple[Path, SiteRound]]:
    """The masks of every round that was begun here, and where each lies; also of folders that were left since."""
    folders = sorted(path.parent for path in (state_folder() / "studies").glob(f"*/*/{_MASKS}"))
    rounds = ((folder, RoundState(folder).masks) for folder in folders)
    return [(folder, masks) for folder, masks in rounds if masks is not None]


def find_joined(folder: str | Path | None = None, site: str | None = None) -> JoinedFolder:
    """The only folder that was joined here, or the one that `folder` and `site` name."""
    everything = all_joined()
    meant = [
        joined
        for joined in everything
        if (folder is None or joined.folder.resolve() == Path(folder).resolve()) and site in (None, joined.site)
    ]
    if len(meant) == 1:
        return meant[0]
    listed = "; ".join(f"{joined.folder} as {joined.site}" for joined in everything) or "none"
    if not meant:
        raise NotJoined(f"No such folder was joined here. Run `fdtr site join FOLDER` first. Joined are: {listed}.")
    raise NotJoined(f"Several folders were joined here: {listed}. Name the folder, and the site with --site.")


def joined_place(study: Study, site: str) -> Path:
    """Where a site keeps what belongs to a study's folder."""
    return state_folder() / "studies" / f"{study.fingerprint[:16]}-{file_name(site).removesuffix(SUFFIX)}"


def hub_lock(study: Study) -> Path:
    """The file by which the hub's processes wait for each other."""
    return state_folder() / "studies" / f"{study.fingerprint[:16]}-hub" / "lock"


def _read(path: Path) -> JoinedFolder:
    try:
        fields = json.loads(path.read_bytes())
        joined: JoinedFolder = _ADAPTER.validate_python({**fields, "place": path.parent})
    except (OSError, ValueError, TypeError):
        raise DamagedFile(f"{path} cannot be read. Run `fdtr site join FOLDER` again.") from None
    return joined
