"""A site's desk: it answers the hub's requests with what the rules let out, and with one word."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from fdtr.disclosure import Message, Verdict
from fdtr.errors import (
    Busy,
    DisclosureError,
    ExchangeError,
    Exposed,
    FdtrError,
    FileError,
    MalformedParcel,
    MaskingError,
    NoHubKey,
    NotJoined,
    NotRepeatable,
    OtherPosting,
    OtherRoster,
    OtherStudy,
    OutOfRange,
    TooManyPatients,
)
from fdtr.exchange import kept
from fdtr.exchange.folder import Home, take_site_turn
from fdtr.exchange.folder.board import MOST_ROUNDS
from fdtr.exchange.folder.durable import locked
from fdtr.exchange.letters import HEX
from fdtr.exchange.remote.audit import Audit
from fdtr.exchange.remote.believing import require_sound
from fdtr.exchange.remote.mirror import Mirror
from fdtr.exchange.remote.parcels import (
    Answer,
    Outcome,
    Phase,
    Posting,
    Request,
    carried_to,
    phases_of,
    require_bounded,
)
from fdtr.signing import HUB, Key, numbered_round, require_own
from fdtr.site import check, read_trajectories
from fdtr.study import Study

log = logging.getLogger("fdtr.desk")

CONSENT = "CONSENT"
"""Beside the disclosure rules in the log: whether the administrator's agreement covers the message."""
_AT_HOME = (Busy, Exposed, NotJoined, NotRepeatable, OutOfRange, TooManyPatients)
"""Of the exchange or the secure sum, and yet not the hub's doing."""


@dataclass(frozen=True)
class DeskStudy:
    """A study that the site's administrator allows: the study file as agreed on, roster and [columns] included.

    `data` is the site's table; the policy is written to `out`, or beside the site's state where it is None. `releases`
    is how many different messages he agreed to: whoever may begin rounds while a table grows would else collect them.
    """

    study: Study
    data: Path
    out: Path | None = None
    releases: int = 1


@dataclass
class _Checked:
    """How the disclosure rules came out while a request was answered, by rule; nothing of what they saw."""

    rules: dict[str, str] = field(default_factory=dict)

    def agree(self, agreed: DeskStudy, message: Message) -> bool:
        """The administrator agreed by putting the study on the list; the rules have held, or there were no message."""
        self.note(message.verdicts)
        study, digest = agreed.study.fingerprint, message.summary.digest
        before = {one.message for one in kept.ledger().recorded() if one.study == study and not one.withdrawn}
        if digest not in before and len(before) >= agreed.releases:
            self.rules[CONSENT] = "failed"
            raise _ConsentUsed(
                f"{len(before)} of {agreed.releases} agreed messages for the study {agreed.study.name} have left, and "
                "the table has changed since. Nothing was sent. Restore the table; or, if another message may leave, "
                "raise `releases` of the study in the site's settings and serve again."
            )
        self.rules[CONSENT] = "held"
        return True

    def note(self, verdicts: Sequence[Verdict]) -> None:
        for one in verdicts:
            if self.rules.get(one.rule.rule) != "failed":
                self.rules[one.rule.rule] = "held" if one.holds else "failed"


class Desk:
    """Answers for one site. `state` is its state folder, the user's own where it is None.

    Only studies on the administrator's list are answered, and being on it is the site's agreement that sums leave
    once the disclosure rules hold: nobody is asked each time.
    """

    def __init__(
        self, site: str, studies: Sequence[DeskStudy], key: Key, audit: Audit, state: Path | None = None
    ) -> None:
        for one in studies:
            require_carriable(one.study)
            require_own(key, site, one.study.roster)
        self.site = site
        self._studies = {one.study.fingerprint: one for one in studies}
        self._key = key
        self._audit = audit
        self._state = state
        self._homes: dict[str, Home] = {}

    def answer(self, request: Request | None) -> Answer:
        """Never raises, and says nothing but an outcome and the postings of the phase; None cannot be read.

        What it says is in the log before it leaves.
        """
        checked = _Checked()
        try:
            with kept.staying_in(self._state):
                postings = self._postings(request, checked)
            answer = Answer(self.site, Outcome.DONE, postings)
        except Exception as error:  # whatever it is, its text stays here
            self._tell(error)
            answer = Answer(self.site, outcome_of(error))
        try:
            self._audit.append(self._entry(request, checked, answer))
        except Exception as error:
            self._tell(error)
            return Answer(self.site, Outcome.FAILED)
        return answer

    def _postings(self, request: Request | None, checked: _Checked) -> tuple[Posting, ...]:
        if request is None:
            raise MalformedParcel("A request came that cannot be read. Nothing was done.")
        agreed = self._studies.get(request.fingerprint)
        if agreed is None:
            raise _NotListed("The hub asks for a study that is not on this site's list. Nothing was done.")
        study = agreed.study
        if request.phase not in phases_of(study) or not 1 <= request.round <= MOST_ROUNDS:
            raise MalformedParcel("The hub asks for what no round of this study has. Nothing was done.")
        require_bounded(request.postings, carried_to(self.site, request.phase, study), study)
        mirror = Mirror(self.site, study)
        with locked(mirror.place / "desk.lock", f"the desk of site {self.site!r}"):
            self._believe(request, mirror)
            home = self._homes.get(study.fingerprint) or mirror.home(agreed.data, self._key)
            self._homes[study.fingerprint] = home
            mirror.add(request.round, request.postings)
            return self._turned(request, checked, mirror, home, agreed)

    def _believe(self, request: Request, mirror: Mirror) -> None:
        within = numbered_round(mirror.study.fingerprint, mirror.study.roster, request.round)
        try:
            require_sound(request.postings, mirror.study, within, mirror.place)
        except FileError as error:  # of the hub's making, not of this site's disk
            raise MalformedParcel(str(error)) from None

    def _turned(
        self, request: Request, checked: _Checked, mirror: Mirror, home: Home, agreed: DeskStudy
    ) -> tuple[Posting, ...]:
        within = numbered_round(home.study.fingerprint, home.study.roster, request.round)
        written = home.round(within).policy is not None
        try:
            turn = take_site_turn(home, self._key, partial(checked.agree, agreed), None if written else agreed.out)
        except _ConsentUsed:
            raise
        except DisclosureError:
            rows = read_trajectories(home.data, home.study, self.site)
            checked.note(check(home.study, rows, ledger=kept.ledger()).verdicts)
            raise
        for note in turn.notes:
            log.info("site %s: %s", self.site, note)
        if request.phase is not Phase.FINISH:
            return (mirror.own(request.round, request.phase.value),)
        if turn.policy is None:
            raise MalformedParcel("The hub says that the round is through, and it is not.")
        return ()

    def _tell(self, error: Exception) -> None:
        """Everything, in the site's own log."""
        known = isinstance(error, FdtrError)
        log.error("site %s: %s", self.site, error, exc_info=None if known else error)

    def _entry(self, request: Request | None, checked: _Checked, answer: Answer) -> dict[str, Any]:
        asked = request and {
            "study": request.fingerprint if HEX.fullmatch(request.fingerprint) else "",
            "round": request.round if 1 <= request.round <= MOST_ROUNDS else 0,
            "phase": request.phase.value,
            "bytes": request.size,
        }
        return {
            "site": self.site,
            "asked": asked,
            "checked": checked.rules,
            "sent": [
                {"part": one.part, "bytes": len(one.content), "sha256": sha256(one.content).hexdigest()}
                for one in answer.postings
            ],
            "outcome": answer.outcome.value,
        }


class _NotListed(OtherStudy):
    """A study that the administrator did not allow."""


class _ConsentUsed(FdtrError):
    """As many different messages have left as the administrator agreed to."""


def require_carriable(study: Study) -> None:
    """Refuse a study whose totals nobody could believe: over a network sites do not see each other's open sums."""
    if HUB not in study.roster:
        raise NoHubKey(
            f"The roster of the study {study.name} has no key of the hub, and over a network a site can rely on "
            "nothing but the hub's signature. Nothing was done. Make one with `fdtr keys new`, add it with `fdtr "
            "roster add STUDY hub KEY`, and give everybody the study file."
        )


def outcome_of(error: Exception) -> Outcome:
    """The one word that others may know of an error."""
    words: tuple[tuple[type[Exception] | tuple[type[Exception], ...], Outcome], ...] = (
        ((DisclosureError, _ConsentUsed), Outcome.DECLINED),
        (_NotListed, Outcome.UNKNOWN_STUDY),
        (OtherRoster, Outcome.OTHER_ROSTER),
        (_AT_HOME, Outcome.FAILED),
        ((ExchangeError, MaskingError, OtherPosting), Outcome.REFUSED),
    )
    return next((outcome for kind, outcome in words if isinstance(error, kind)), Outcome.FAILED)
