"""What a site keeps at home of the folders it joined: where they are, its secrets, and what it posts, before it does.

Under STATE/studies/FINGERPRINT-SITE lie

- joined.json: folder, table, key, and the study as the site accepted it, its roster included;
- drawn.json: which message carries the noise that was drawn for whom, where the study asks for noise;
- ROUND/state.json: its masks in a round; ROUND/….fdtr: the bytes of everything it posts there;
- ROUND/sent.json: the message that a person agreed to and the ledger holds.

Beside STATE/studies lies secure-sums.json, what the site remembers of its secure sums in all of them (`memory`).
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fdtr.errors import DamagedFile, Exposed, InvalidStudy, MalformedPart, NotJoined, OtherRoster, OtherStudy
from fdtr.exchange.folder.board import masked_round, read_study
from fdtr.exchange.folder.durable import locked, remove, save
from fdtr.exchange.folder.layout import SUFFIX, SUMS, file_name
from fdtr.exchange.folder.parts import MASKED, OPENED
from fdtr.exchange.kept import state_folder
from fdtr.masking import SiteRound
from fdtr.signing import Key, Round, check_site_name, numbered_round, require_own
from fdtr.site import read_trajectories
from fdtr.study import Study

_JOINED = "joined.json"


@dataclass(frozen=True)
class Sent:
    """The message of a round that the ledger holds: its digest and that of its numbers.

    `posted` is true from before its first byte lies where others read: a share that fails may have passed it on.
    """

    message: str
    content: str
    number: int
    posted: bool = False


@dataclass(frozen=True)
class RoundHome:
    """A site's part in one round: its secrets, and what it posts."""

    place: Path

    @property
    def state(self) -> SiteRound | None:
        """The masks; None where the site did not begin."""
        path = self.place / "state.json"
        try:
            return SiteRound.from_json(path.read_bytes()) if path.exists() else None
        except MalformedPart:
            raise MalformedPart(
                f"{path} is damaged. Nothing was posted, and the masks in it are lost: masks are never put back from a "
                "copy. Move it away. Wait for a new round: `fdtr hub new-round`."
            ) from None

    def save_state(self, state: SiteRound) -> None:
        """Before anything that follows from it is posted."""
        save(self.place / "state.json", state.to_json().encode())

    def outgoing(self, part: str) -> bytes | None:
        """The bytes that the site posts, or posted."""
        path = self.path(part)
        return path.read_bytes() if path.exists() else None

    def save_outgoing(self, part: str, content: bytes) -> None:
        """Before they are posted: after a crash the very same go out again."""
        save(self.path(part), content)

    def path(self, part: str) -> Path:
        """Where they lie."""
        return self.place / f"{part}{SUFFIX}"

    @property
    def sent(self) -> Sent | None:
        """What was released in this round; None where nobody agreed yet."""
        path = self.place / "sent.json"
        try:
            return Sent(**json.loads(path.read_bytes())) if path.exists() else None
        except (OSError, ValueError, TypeError):
            raise DamagedFile(f"{path} cannot be read. Restore it from a copy, or wait for a new round.") from None

    def save_sent(self, sent: Sent) -> None:
        """After the ledger holds it, and before it is posted."""
        save(self.place / "sent.json", json.dumps(vars(sent)).encode())

    @property
    def policy(self) -> Path | None:
        """Where the finished policy was written."""
        path = self.place / "finished.json"
        return Path(json.loads(path.read_bytes())["policy"]) if path.exists() else None

    def finish(self, policy: Path) -> None:
        """Remember that the round is through."""
        save(self.place / "finished.json", json.dumps({"policy": str(policy)}).encode())

    def destroy(self) -> bool:
        """Forget the masks, and what was masked; whether there were any left."""
        if self.state is None:  # an open round keeps its message
            return False
        left = self._destroy_masks()
        self._remove(self.path(OPENED), self.path(SUMS))
        return left

    def forget(self) -> None:
        """Take back what was never posted: its bytes, the masks on it, and that it was agreed to.

        Masks first, so that nothing follows from them any more; the message last, because by it a second attempt, after
        a crash, finds what the first left.
        """
        self._destroy_masks()
        self._remove(self.path(MASKED), self.path(OPENED), self.place / "sent.json", self.path(SUMS))

    def _destroy_masks(self) -> bool:
        state = self.state
        if state is None or state == state.destroyed():
            return False
        self.save_state(state.destroyed())
        return True

    def _remove(self, *paths: Path) -> None:
        for path in paths:
            if path.exists():
                remove(path)


@dataclass(frozen=True)
class Home:
    """A site that joined a folder: `study` is as it accepted it."""

    place: Path
    folder: Path
    site: str
    data: Path
    key: Path | None
    study: Study

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process of the site at a time."""
        with locked(self.place / "lock", f"site {self.site!r}"):
            yield

    def round(self, within: Round) -> RoundHome:
        """The site's part in a round."""
        return RoundHome(self.place / within.context[:32])

    def rounds(self) -> list[RoundHome]:
        """The site's part in every round so far."""
        return [RoundHome(path) for path in sorted(self.place.iterdir()) if path.is_dir()]

    def give_up_others(self, within: Round) -> bool:
        """Destroy the masks of every other round; whether any were left."""
        kept = self.round(within)
        destroyed = [one.destroy() for one in self.rounds() if one != kept]
        return any(destroyed)

    def require_same(self, found: Study) -> None:
        """Refuse a study or a roster that the site did not accept."""
        if found.fingerprint != self.study.fingerprint:
            raise OtherStudy(
                f"{self.folder} holds another study than the one that site {self.site!r} joined (fingerprint "
                f"{found.fingerprint[:12]}…, joined was {self.study.fingerprint[:12]}…). Nothing was done. Ask the hub."
            )
        if found.roster != self.study.roster:
            changed = sorted(
                site
                for site in {*found.roster, *self.study.roster}
                if found.roster.get(site) != self.study.roster.get(site)
            )
            raise OtherRoster(
                f"The roster in {self.folder} is not the one that site {self.site!r} joined with: {', '.join(changed)} "
                "changed. Nothing was done. Compare `fdtr roster show` by telephone; if all agree, run `fdtr site "
                "join` again."
            )


def require_apart(folder: Path, *own: tuple[str, Path | None]) -> None:
    """Refuse what is a party's own, each a name and a path, where all can read it."""
    for what, path in own:
        if path is not None and path.resolve().is_relative_to(folder.resolve()):
            raise Exposed(
                f"{what} {path} lies in the folder that all share. Nothing was written. Keep it where only its owner "
                "reads, and see who could read it so far."
            )


def join(folder: Path, site: str, data: Path, key: Path | None, signer: Key | None, own: Study | None = None) -> Home:
    """Remember a folder, and the study in it as this site accepts it. Nothing is posted.

    `own` is a study file with the site's own [columns].
    """
    check_site_name(site)
    require_apart(folder, ("The state folder", state_folder()), ("The table", data), ("The key", key))
    study = read_study(folder)
    require_own(signer, site, study.roster)
    if study.disclosure.secure_sum:
        masked_round(study, numbered_round(study.fingerprint, study.roster, 1))  # refuses a roster that is too small
    if own is not None:
        if own.fingerprint != study.fingerprint:
            raise OtherStudy(
                f"The study in {folder} is another than this site's (fingerprint {study.fingerprint[:12]}…, this "
                f"site's is {own.fingerprint[:12]}…). Nothing was written. Take the folder's; change only [columns]."
            )
        study = Study.model_validate({**study.model_dump(), "columns": own.columns.model_dump()})
    read_trajectories(data, study, site)  # what is wrong with the table is better known now
    home = Home(_place(study, site), folder.absolute(), site, data.absolute(), key and key.absolute(), study)
    told = {
        "folder": str(home.folder),
        "site": site,
        "data": str(home.data),
        "key": str(home.key) if home.key else None,
        "study": study.model_dump(mode="json"),
    }
    with home.locked():
        save(home.place / _JOINED, json.dumps(told).encode())
    return home


def all_homes() -> list[Home]:
    """Every folder that was joined here."""
    return [_read(path) for path in sorted((state_folder() / "studies").glob(f"*/{_JOINED}"))]


def all_states() -> list[tuple[Path, SiteRound]]:
    """The masks of every round that was begun here, those of left folders included, and where each lies."""
    places = sorted(path.parent for path in (state_folder() / "studies").glob("*/*/state.json"))
    states = ((place, RoundHome(place).state) for place in places)
    return [(place, state) for place, state in states if state is not None]


def find_home(folder: Path | None = None, site: str | None = None) -> Home:
    """The one folder that was joined here, or the one that is meant."""
    found = all_homes()
    meant = [
        home
        for home in found
        if (folder is None or home.folder.resolve() == folder.resolve()) and site in (None, home.site)
    ]
    if len(meant) == 1:
        return meant[0]
    joined = "; ".join(f"{home.folder} as {home.site}" for home in found) or "none"
    if not meant:
        raise NotJoined(f"No such folder was joined here. Run `fdtr site join FOLDER` first. Joined are: {joined}.")
    raise NotJoined(f"Several folders were joined here: {joined}. Name the folder, and the site with --site.")


def hub_lock(study: Study) -> Path:
    """Where the hub's processes wait for each other."""
    return state_folder() / "studies" / f"{study.fingerprint[:16]}-hub" / "lock"


def _place(study: Study, site: str) -> Path:
    return state_folder() / "studies" / f"{study.fingerprint[:16]}-{file_name(site).removesuffix(SUFFIX)}"


def _read(path: Path) -> Home:
    try:
        told: dict[str, Any] = json.loads(path.read_bytes())
        return Home(
            path.parent,
            Path(told["folder"]),
            told["site"],
            Path(told["data"]),
            Path(told["key"]) if told["key"] else None,
            Study.model_validate(told["study"]),
        )
    except (OSError, ValueError, KeyError, TypeError, InvalidStudy):
        raise DamagedFile(f"{path} cannot be read. Run `fdtr site join FOLDER` again.") from None
