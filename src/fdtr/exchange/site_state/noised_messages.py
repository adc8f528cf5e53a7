"""Messages with the noise of differential privacy. Noise is drawn once: another draw would spend ε again."""

import json
from dataclasses import replace
from pathlib import Path

from fdtr.container import fingerprint
from fdtr.disclosure import Message
from fdtr.errors import DamagedFile
from fdtr.exchange.atomic_files import clean_up, remove, save
from fdtr.exchange.site_state.joined_folders import JoinedFolder
from fdtr.exchange.site_state.ledger import site_ledger
from fdtr.exchange.site_state.sent_copies import keep, read_copy
from fdtr.signing import Key, Round
from fdtr.site.fitting import MessageFit
from fdtr.site.site_message import release_of, summarize
from fdtr.summary import SiteSummary
from fdtr.trajectories import Trajectories


def noised_message(
    joined: JoinedFolder, rows: Trajectories, fitted: MessageFit, within: Round, key: Key | None
) -> Message:
    """The message of these patients that was drawn for any round of the study, else one that is drawn and noted now.

    Refuses where a rule does. `fitted` is the fit of the table as it is, which the rules judge.
    """
    drawn = _drawn_before(joined, rows)
    if drawn is not None:
        return summarize(joined.study, rows, site_ledger(), MessageFit(fitted.fit, lambda: drawn))
    message = summarize(joined.study, rows, site_ledger(), fitted)
    clean_up(keep(message, within, key), ending="")
    digests = _drawn_digests(joined) | {_patients_digest(rows): message.summary.digest}
    save(_path(joined), json.dumps(digests).encode())
    return message


def forget_drawn(joined: JoinedFolder) -> None:
    """Forget the drawn messages, once one that nobody had was withdrawn: its patients may be released anew."""
    remove(_path(joined))


def _drawn_before(joined: JoinedFolder, rows: Trajectories) -> SiteSummary | None:
    """What the ledger says was released of these very patients, or was drawn for them and not recorded yet."""
    released = site_ledger().repeated(release_of(joined.study, rows, None))
    digest = released or _drawn_digests(joined).get(_patients_digest(rows))
    summary = read_copy(digest, joined.study) if digest else None
    return None if summary is None else replace(summary, noised=True)


def _drawn_digests(joined: JoinedFolder) -> dict[str, str]:
    """Digest of the drawn message, by the digest of its patients."""
    path = _path(joined)
    try:
        digests = json.loads(path.read_bytes()) if path.exists() else {}
    except (OSError, ValueError):
        digests = None
    if not isinstance(digests, dict):
        raise DamagedFile(f"{path} cannot be read. Nothing was drawn. Restore it from a copy.")
    return {str(patients): str(message) for patients, message in digests.items()}


def _path(joined: JoinedFolder) -> Path:
    return joined.place / "drawn.json"


def _patients_digest(rows: Trajectories) -> str:
    """Digest of all patients together, so that no id is stored."""
    return fingerprint({"patients": sorted(rows.patients.to_pylist())})
