"""Handle the hub's requests at a site. An answer contains only released files and a status."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from fdtr.disclosure import Verdict
from fdtr.errors import (
    Busy,
    DisclosureError,
    ExchangeError,
    Exposed,
    FdtrError,
    FileError,
    MalformedRequest,
    MaskingError,
    NotJoined,
    NotRepeatable,
    OtherPosting,
    OtherRoster,
    OtherStudy,
    OutOfRange,
)
from fdtr.exchange.atomic_files import locked, post
from fdtr.exchange.envelopes import HEX
from fdtr.exchange.folder.site_session import join
from fdtr.exchange.folder.site_steps import take_site_steps
from fdtr.exchange.folder_layout import (
    BEGUN,
    MOST_ROUNDS,
    RECEIVES,
    STUDY,
    SUFFIX,
    begun_path,
    file_name,
    last_round,
    part_path,
)
from fdtr.exchange.release import Proposal
from fdtr.exchange.remote.audit import Audit
from fdtr.exchange.remote.requests import (
    Answer,
    Outcome,
    Phase,
    Posting,
    Request,
    allowed_to_site,
    phases_of,
    require_allowed,
    require_hub_key,
    verify_postings,
)
from fdtr.exchange.site_state import state_folder, use_state_folder
from fdtr.exchange.site_state.joined_folders import JoinedFolder, find_joined
from fdtr.exchange.site_state.ledger import site_ledger
from fdtr.signing import Key, Round, numbered_round, require_own, roster_hash
from fdtr.site.rows import read_trajectories
from fdtr.site.site_check import check
from fdtr.study import Study
from fdtr.trajectories.table_in_database import DatabaseTable, as_kept

log = logging.getLogger("fdtr.request_handler")

CONSENT = "CONSENT"
"""Name in the audit for the administrator's consent, listed beside the disclosure rules."""
MOST_MISSED = 100
"""Number of rounds that may pass without a site before it refuses to take part again."""
_LOCAL_ERRORS = (Busy, Exposed, NotJoined, NotRepeatable, OutOfRange)
"""Exchange and secure-sum errors that the site causes, not the hub. They are answered with "failed"."""


@dataclass(frozen=True)
class ServedStudy:
    """A study that the site's administrator allows: the agreed study file, with its roster and [columns].

    `data` is the site's table. The policy is written to `out`; None keeps it in the site's state folder. `releases` is
    the number of different messages that may leave: otherwise a hub could start a round after every few new patients
    and collect a message each time. With `receive_only` none leaves.
    """

    study: Study
    data: Path | DatabaseTable
    out: Path | None = None
    releases: int = 1
    receive_only: bool = False


@dataclass(frozen=True)
class LocalCopy:
    """A site's private copy of the study's folder, for one study and roster: what the hub sent, and its own postings.

    It lies in the site's state folder.
    """

    site: str
    study: Study

    @property
    def place(self) -> Path:
        """The folder that holds the copy and the handler's lock."""
        site = file_name(self.site).removesuffix(SUFFIX)
        agreed = f"{self.study.fingerprint[:16]}-{roster_hash(self.study.roster)[:16]}"
        return state_folder() / "mirrors" / f"{agreed}-{site}"

    @property
    def folder(self) -> Path:
        """The copy of the study's folder."""
        return self.place / "folder"

    def joined(self, served: ServedStudy, key: Key) -> JoinedFolder:
        """The copy as the site joined it. It joins at first use, and when the administrator changed study or table.

        It joins again where the copy was lost: its own postings are saved in its state, and the hub sends the others.
        """
        with suppress(NotJoined):
            joined = find_joined(self.folder, self.site)
            before = (joined.study, joined.data, joined.receive_only)
            if (self.folder / STUDY).exists() and before == (self.study, as_kept(served.data), served.receive_only):
                return joined
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.study.save(self.folder / STUDY)
        return join(self.folder, self.site, served.data, None, key, receive_only=served.receive_only)

    def store(self, number: int, postings: Sequence[Posting]) -> None:
        """Write the hub's postings. Only the newest round, or one of the next `MOST_MISSED`, is accepted.

        Rounds of a folder are numbered without gaps. A round that passed while this site was away, or under another
        roster, has nothing for it: an empty file marks its place.
        """
        last, begun = last_round(self.folder), any(posting.part == BEGUN for posting in postings)
        if not last <= number <= (last + MOST_MISSED if begun else last):
            raise MalformedRequest(
                f"The hub asks for round {number} after round {last}: it is over, not begun, or too far ahead. "
                "Nothing was done."
            )
        for missed in range(last + 1, number):
            post(begun_path(self.folder, missed), b"")
        for posting in postings:
            post(part_path(self.folder, number, posting.part, posting.sender), posting.content)

    def own_posting(self, number: int, part: str) -> Posting:
        """The posting that this site wrote."""
        path = part_path(self.folder, number, part, self.site)
        if not path.exists():
            raise MalformedRequest(f"Site {self.site!r} has no part {part!r} to post yet: the hub asks out of turn.")
        return Posting(part, self.site, path.read_bytes())


@dataclass
class _CheckResults:
    """For the audit: whether each disclosure rule held or failed during a request, without the values it saw."""

    rules: dict[str, str] = field(default_factory=dict)

    def consent(self, served: ServedStudy, joined: JoinedFolder, proposal: Proposal) -> bool:
        """Check the administrator's consent to one more message. The disclosure rules held, or there is no message.

        Counts that leave before a message are counted as messages are.
        """
        self.add(proposal.message.verdicts if proposal.message else ())
        study, digest = served.study.fingerprint, proposal.summary.digest
        released = {entry.message for entry in site_ledger().recorded() if entry.study == study and not entry.withdrawn}
        if proposal.counts is not None:
            digest = proposal.counts.digest
            released = {state.counted for state in joined.rounds()} - {""}
        if digest not in released and len(released) >= served.releases:
            self.rules[CONSENT] = "failed"
            raise _ConsentUsed(
                f"{len(released)} of {served.releases} agreed messages for the study {served.study.name} have left, "
                "and the table has changed since. Nothing was sent. Restore the table; or, if another message may "
                "leave, raise `releases` of the study in the site's settings and serve again."
            )
        self.rules[CONSENT] = "held"
        return True

    def add(self, verdicts: Sequence[Verdict]) -> None:
        for verdict in verdicts:
            if self.rules.get(verdict.rule) != "failed":
                self.rules[verdict.rule] = "held" if verdict.holds else "failed"


class RequestHandler:
    """Answers the hub for one site. `state` is the site's state folder; None is the user's own.

    Only studies on the administrator's list are answered. The list is the site's consent: sums leave once the
    disclosure rules hold, and nobody is asked each time.
    """

    def __init__(
        self, site: str, studies: Sequence[ServedStudy], key: Key, audit: Audit, state: Path | None = None
    ) -> None:
        for served in studies:
            require_hub_key(served.study)
            require_own(key, site, served.study.roster)
        self.site = site
        self._studies = {served.study.fingerprint: served for served in studies}
        self._key = key
        self._audit = audit
        self._state = state

    def answer(self, request: Request | None) -> Answer:
        """Answer a request; None stands for one that could not be read. This method never raises.

        The answer holds a status and the postings of the phase. It is in the audit before it is returned.
        """
        results = _CheckResults()
        try:
            with use_state_folder(self._state):
                postings = self._postings(request, results)
            answer = Answer(self.site, Outcome.DONE, postings)
        except Exception as error:  # of any kind: its text must not leave the site
            self._log(error)
            answer = Answer(self.site, outcome_of(error))
        try:
            self._audit.append(self._entry(request, results, answer))
        except Exception as error:
            self._log(error)
            return Answer(self.site, Outcome.FAILED)
        return answer

    def _postings(self, request: Request | None, results: _CheckResults) -> tuple[Posting, ...]:
        if request is None:
            raise MalformedRequest("A request came that cannot be read. Nothing was done.")
        served = self._studies.get(request.fingerprint)
        if served is None:
            raise _NotListed("The hub asks for a study that is not on this site's list. Nothing was done.")
        study = served.study
        if request.phase not in phases_of(study) or not 1 <= request.round <= MOST_ROUNDS:
            raise MalformedRequest("The hub asks for what no round of this study has. Nothing was done.")
        require_allowed(request.postings, allowed_to_site(self.site, request.phase, study), study)
        copy = LocalCopy(self.site, study)
        within = numbered_round(study.fingerprint, study.roster, request.round)
        # The lock's name is fixed: services of two versions may share one state folder.
        with locked(copy.place / "desk.lock", f"the request handler of site {self.site!r}"):
            try:
                verify_postings(request.postings, study, within, copy.place)
            except FileError as error:  # the hub sent it: this is no fault of the site's disk
                raise MalformedRequest(str(error)) from None
            joined = copy.joined(served, self._key)
            copy.store(request.round, request.postings)
            finished = self._take_steps(results, joined, served, within)
            if request.phase is not Phase.FINISH:
                first = request.phase in (Phase.SUMS, Phase.KEYS)
                part = RECEIVES if served.receive_only and first else request.phase.value
                return (copy.own_posting(request.round, part),)
            if not finished:
                raise MalformedRequest("The hub says that the round is through, and it is not.")
            return ()

    def _take_steps(self, results: _CheckResults, joined: JoinedFolder, served: ServedStudy, within: Round) -> bool:
        """Do all that the site can do in the round now; whether its policy is written."""
        out = served.out if joined.round(within).policy is None else None  # the policy is written there once
        try:
            steps = take_site_steps(joined, confirm=partial(results.consent, served, joined), key=self._key, out=out)
        except _ConsentUsed:
            raise
        except DisclosureError:
            rows = read_trajectories(joined.data, joined.study, self.site)
            results.add(check(joined.study, rows, ledger=site_ledger()).verdicts)
            raise
        for note in steps.notes:
            log.info("site %s: %s", self.site, note)
        return steps.policy is not None

    def _log(self, error: Exception) -> None:
        """Write the full error into the site's own log."""
        known = isinstance(error, FdtrError)
        log.error("site %s: %s", self.site, error, exc_info=None if known else error)

    def _entry(self, request: Request | None, results: _CheckResults, answer: Answer) -> dict[str, Any]:
        asked = request and {
            "study": request.fingerprint if HEX.fullmatch(request.fingerprint) else "",
            "round": request.round if 1 <= request.round <= MOST_ROUNDS else 0,
            "phase": request.phase.value,
            "bytes": request.size,
        }
        sent = [
            {"part": posting.part, "bytes": len(posting.content), "sha256": sha256(posting.content).hexdigest()}
            for posting in answer.postings
        ]
        return {
            "site": self.site,
            "asked": asked,
            "checked": results.rules,
            "sent": sent,
            "outcome": answer.outcome.value,
        }


class _NotListed(OtherStudy):
    """The administrator did not allow this study."""


class _ConsentUsed(FdtrError):
    """As many different messages have left as the administrator agreed to."""


def outcome_of(error: Exception) -> Outcome:
    """The status that the hub receives for an error."""
    outcomes: tuple[tuple[type[Exception] | tuple[type[Exception], ...], Outcome], ...] = (
        ((DisclosureError, _ConsentUsed), Outcome.DECLINED),
        (_NotListed, Outcome.UNKNOWN_STUDY),
        (OtherRoster, Outcome.OTHER_ROSTER),
        (_LOCAL_ERRORS, Outcome.FAILED),
        ((ExchangeError, MaskingError, OtherPosting), Outcome.REFUSED),
    )
    return next((outcome for kind, outcome in outcomes if isinstance(error, kind)), Outcome.FAILED)
