"""Messages with the noise of differential privacy, which is drawn once: another draw would spend ε again."""

import json
from dataclasses import replace
from pathlib import Path

from fdtr.container import fingerprint
from fdtr.disclosure import Message
from fdtr.errors import DamagedFile
from fdtr.exchange import kept
from fdtr.exchange.folder.durable import remove, save, sweep
from fdtr.exchange.folder.home import Home
from fdtr.signing import Key, Round
from fdtr.site import MessageFit, release_of, summarize
from fdtr.summary import SiteSummary
from fdtr.trajectories import Trajectories


def noised_message(home: Home, rows: Trajectories, fitted: MessageFit, within: Round, key: Key | None) -> Message:
    """The message of these patients as it was drawn for any round of the study, or else drawn and noted now.

    Refuses where a rule does. `fitted` is the fit of the table as it is, which the rules look at.
    """
    before = _drawn_before(home, rows)
    if before is not None:
        return summarize(home.study, rows, kept.ledger(), MessageFit(fitted.fit, lambda: before))
    message = summarize(home.study, rows, kept.ledger(), fitted)
    sweep(kept.keep(message, within, key), ending="")
    noted = _noted(home) | {_patients(rows): message.summary.digest}
    save(_note(home), json.dumps(noted).encode())
    return message


def forget_drawn(home: Home) -> None:
    """After a message that nobody had was struck, its patients may be released anew."""
    remove(_note(home))


def _drawn_before(home: Home, rows: Trajectories) -> SiteSummary | None:
    """What the ledger says was released of these very patients, or what was drawn for them and not recorded yet."""
    digest = kept.ledger().repeated(release_of(home.study, rows, None)) or _noted(home).get(_patients(rows))
    found = kept.read_copy(digest, home.study) if digest else None
    return None if found is None else replace(found, noised=True)


def _noted(home: Home) -> dict[str, str]:
    """The message that was drawn, by whom it is of."""
    path = _note(home)
    try:
        noted = json.loads(path.read_bytes()) if path.exists() else {}
    except (OSError, ValueError):
        noted = None
    if not isinstance(noted, dict):
        raise DamagedFile(f"{path} cannot be read. Nothing was drawn. Restore it from a copy.")
    return {str(patients): str(message) for patients, message in noted.items()}


def _note(home: Home) -> Path:
    return home.place / "drawn.json"


def _patients(rows: Trajectories) -> str:
    """Whose message it is, without an id at rest: the digest of all of them."""
    return fingerprint({"patients": sorted(rows.patients.to_pylist())})
