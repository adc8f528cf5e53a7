"""Run a federation at the hub: which sites are asked for what, until there is a total and every site has finished.

    open      sums ──────────────────────────────────────────▶ total ─ finish
    masked    keys ─ masked ─▶ list ─ confirmed ─ opened ────▶ total ─ finish

If rules are judged on totals of counts, these go from masked to opened before the sums do. A site that only receives
says so instead of sending sums or keys.

The next phase follows from the files in the hub's folder alone, so a hub that was stopped continues where it was.
"""

import platform
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from fdtr import __version__
from fdtr.errors import BadSignature, FdtrError, UnwritableFile
from fdtr.exchange.atomic_files import locked, post
from fdtr.exchange.folder.hub_steps import new_round, take_hub_steps
from fdtr.exchange.folder.round_snapshot import RoundSnapshot, read_round, read_study
from fdtr.exchange.folder.round_status import names
from fdtr.exchange.folder_layout import RECEIVES, STUDY, TOTAL
from fdtr.exchange.remote.jobs import Absence, Ending, Job, Reason, Result, timestamp
from fdtr.exchange.remote.requests import (
    Answer,
    Outcome,
    Phase,
    Posting,
    Request,
    allowed_from_site,
    allowed_to_site,
    require_allowed,
    require_hub_key,
    verify_postings,
)
from fdtr.signing import HUB, Key
from fdtr.study import Study

_AGAIN = "Run the same again when the reason is gone: who has answered need not send again."
_BEFORE_LISTS = {Phase.SUMS, Phase.KEYS, Phase.COUNTS, Phase.MASKED, Phase.FINISH}
_NEW_ROUND_MAY_HELP = {Reason.REFUSED, Reason.FAILED, Reason.WRONG_SIGNATURE, Reason.BAD_ANSWER}


Ask = Callable[[Phase, Mapping[str, Request]], Mapping[str, Answer | Reason]]
"""The network: sends each site its request, waits as long as the job allows, and returns what came back.

Where no answer came, it is the reason: not connected, no answer, or an unreadable answer.
"""


@dataclass(frozen=True)
class Collected:
    """The sites that did their part in a phase, and the reason for each one that did not."""

    done: tuple[str, ...]
    absent: dict[str, Reason]


def collect(snapshot: RoundSnapshot, phase: Phase, sites: list[str], listed: Collection[str], ask: Ask) -> Collected:
    """Ask `sites` for their part, and store it in the hub's folder. A site that is not `listed` is not asked."""
    postings = _postings_for(snapshot, phase)

    def request(site: str) -> Request:
        of_others = tuple(posting for posting in postings if posting.sender != site)
        return Request(snapshot.study.fingerprint, snapshot.number, phase, of_others)

    requests = {site: request(site) for site in sites if site in listed}
    answers = ask(phase, requests) if requests else {}
    absent: dict[str, Reason] = {}
    for site in sites:
        reason: Reason | None = Reason.NOT_ASKED
        if site in requests:
            reason = _store(snapshot, phase, site, answers.get(site, Reason.NO_ANSWER))
        if reason is not None:
            absent[site] = reason
    return Collected(tuple(site for site in sites if site not in absent), absent)


def _postings_for(snapshot: RoundSnapshot, phase: Phase) -> list[Posting]:
    """The verified postings in the hub's folder that sites need for a phase."""
    wanted = sorted(allowed_to_site(HUB, phase, snapshot.study))
    parts = {**snapshot.secure_sum_parts, RECEIVES: snapshot.receivers}
    posted = [(part, sender) for part, sender in wanted if sender == HUB or sender in parts[part]]
    return [Posting(part, sender, snapshot.path(part, sender).read_bytes()) for part, sender in posted]


def _store(snapshot: RoundSnapshot, phase: Phase, site: str, answer: Answer | Reason) -> Reason | None:
    """Store a site's part; otherwise the reason why it is missing."""
    if isinstance(answer, Reason):
        late = phase not in _BEFORE_LISTS and answer is not Reason.BAD_ANSWER
        return Reason.LOST_LATE if late else answer
    if answer.site != site:
        return Reason.OTHER_SITE
    if answer.outcome is not Outcome.DONE:
        return Reason(answer.outcome.value)
    allowed = allowed_from_site(site, phase)
    try:
        require_allowed(answer.postings, allowed, snapshot.study)
        if len(answer.postings) != (phase is not Phase.FINISH):
            return Reason.BAD_ANSWER
        verify_postings(answer.postings, snapshot.study, snapshot.within, snapshot.folder)
        for posting in answer.postings:
            post(snapshot.path(posting.part, site), posting.content)
    except UnwritableFile:
        raise  # the hub's own disk
    except BadSignature:
        return Reason.WRONG_SIGNATURE
    except FdtrError:
        return Reason.BAD_ANSWER
    return None


def run_federation(job: Job, key: Key, ask: Ask, versions: Mapping[str, str] | None = None) -> Result:
    """Run a federation to its end, or as far as it goes, and write its result.

    Called again after a crash, or when sites are back, it continues from the hub's folder. While another call is still
    running, it waits. `versions` are the versions of the network library, for the result.
    """
    with locked(job.lock, "a round of this hub"):
        job.result.unlink(missing_ok=True)  # whoever waits must not read the result of an earlier run
        result = _run(job, key, ask, versions or {})
        result.save(job.result)
    return result


def _run(job: Job, key: Key, ask: Ask, versions: Mapping[str, str]) -> Result:
    federation = _Federation(job, key, ask, read_study(job.folder), dict(versions))
    try:
        require_hub_key(federation.study)
        federation.reach_total()
        return federation.finish()
    except (_Stopped, FdtrError, OSError) as error:
        return federation.refused(str(error))


class _Stopped(Exception):
    """The federation cannot continue now. The text says what to do."""


@dataclass
class _Federation:
    """The state of one run: which sites were absent in which round, and which rounds were given up."""

    job: Job
    key: Key
    ask: Ask
    study: Study
    versions: dict[str, str]
    absent: dict[tuple[str, int], Absence] = field(default_factory=dict)
    given_up: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    number: int = 0
    began: str = field(default_factory=timestamp)

    def read(self) -> RoundSnapshot:
        """The hub's folder as it is now."""
        snapshot = read_round(self.job.folder, self.study)
        self.number = snapshot.number
        return snapshot

    def reach_total(self) -> None:
        """Run all phases before the total; raises where a phase cannot be completed."""
        if not self.study.disclosure.secure_sum:
            self._sum_openly()
        elif not self._sum_masked():
            self.given_up.append(self.number)
            new_round(self.job.folder, self.key)
            if not self._sum_masked():
                raise _Stopped(
                    f"Round {self.number} was given up as well: a site that the list of survivors names cannot go on. "
                    f"See its own log. {_AGAIN}"
                )

    def _sum_openly(self) -> None:
        snapshot = self.read()
        if snapshot.total is not None:
            return
        self._collect(snapshot, Phase.SUMS, snapshot.lacking(snapshot.sums))
        self._require_enough(len(self.read().sums))
        self._take_steps()

    def _sum_masked(self) -> bool:
        """Whether the round has a total. A round that cannot reach one is to be given up."""
        snapshot = self.read()
        if snapshot.total is not None:
            return True
        silent = sorted(self._collect(snapshot, Phase.KEYS, snapshot.lacking(snapshot.keys)).absent)
        if silent:
            raise _Stopped(
                f"No key came from {names(silent)}, and nobody can mask before all are there. If a site does "
                f"not come back, take it out with `fdtr roster remove {self.job.folder / STUDY} SITE`, give "
                f"everybody the study file, and begin a new round with `fdtr hub new-round`. {_AGAIN}"
            )
        if not all(self._run_phase(index) for index in range(len(snapshot.phases))):
            return False
        self._take_steps()
        return True

    def _run_phase(self, index: int) -> bool:
        """Have one masked phase opened. Returns whether the round can continue."""
        snapshot = self.read()
        phase = snapshot.phases[index]
        if phase.survivors is None:
            phase_due = Phase(phase.names.masked)
            if index and not self._collect_from_all(index, phase_due):  # whoever was counted has to send
                return False
            if not index:
                self._collect(snapshot, phase_due, snapshot.lacking(phase.masked))
                self._require_enough(len(self.read().phases[index].masked))
            self._take_steps()
        return all(self._collect_from_all(index, Phase(part)) for part in (phase.names.confirmed, phase.names.opened))

    def _collect_from_all(self, index: int, phase_due: Phase) -> bool:
        """Ask every site of a list, and those that are missing once more. Returns whether the round can continue.

        Without one of them a round has no total. If all answer and one cannot continue, a new round may succeed:
        returns False. If one does not answer, its key for a new round would be missing too: the round waits.
        """
        for _ in range(2):
            snapshot = self.read()
            phase = snapshot.phases[index]
            listed = phase.survivors.sites if phase.survivors else snapshot.expected
            lacking = snapshot.lacking(phase.parts[phase_due.value], listed)
            if not lacking and not phase.dissenters:
                return True
            collected = self._collect(snapshot, phase_due, lacking)
        if not collected.absent and not self.read().phases[index].dissenters:
            return True
        if set(collected.absent.values()) <= _NEW_ROUND_MAY_HELP:
            return False
        raise _Stopped(
            f"{names(sorted(collected.absent))} is on the list of survivors and does not answer. When it is back, run "
            "the same again: the round goes on where it stopped. If it does not come back, take it out with `fdtr "
            f"roster remove {self.job.folder / STUDY} SITE`, give everybody the study file, and begin a new round with "
            "`fdtr hub new-round`."
        )

    def _collect(self, snapshot: RoundSnapshot, phase: Phase, sites: list[str]) -> Collected:
        collected = collect(snapshot, phase, sites, self.job.nodes, self.ask)
        for site in collected.done:
            self.absent.pop((site, snapshot.number), None)
        for site, reason in collected.absent.items():
            self.absent[site, snapshot.number] = Absence(site, snapshot.number, phase.value, reason)
        return collected

    def _require_enough(self, count: int) -> None:
        if count < self.job.min_sites:
            raise _Stopped(
                f"{count} sites sent their sums, and {self.job.min_sites} were asked for. Nothing was added. {_AGAIN}"
            )

    def _take_steps(self) -> None:
        self.notes += take_hub_steps(self.job.folder, self.key, close=True).notes

    def finish(self) -> Result:
        """Send the total to the sites that are in it, and report which have finished."""
        snapshot = self.read()
        total = snapshot.checked_total()
        finishing = (*total.sites, *snapshot.receivers)
        for site in snapshot.lacking(dict(total.members)):
            left_out = Absence(site, snapshot.number, "", Reason.LEFT_OUT)
            self.absent.setdefault((site, snapshot.number), left_out)
        collected = self._collect(snapshot, Phase.FINISH, list(finishing))
        if collected.absent:
            advice = f"{names(sorted(collected.absent))} did not finish. When it is back, run the same again."
        else:
            advice = "Nothing: every site has written its policy."
        digest = sha256(snapshot.path(TOTAL, HUB).read_bytes()).hexdigest()
        ending = Ending.INCOMPLETE if collected.absent else Ending.COMPLETE
        return self._result(ending, total.sites, collected.done, digest, advice)

    def refused(self, advice: str) -> Result:
        """The result of a run without a total."""
        return self._result(Ending.REFUSED, (), (), None, advice)

    def _result(
        self, ending: Ending, members: tuple[str, ...], finished: tuple[str, ...], digest: str | None, advice: str
    ) -> Result:
        return Result(
            study=self.study.name,
            fingerprint=self.study.fingerprint,
            round=self.number,
            mode="masked" if self.study.disclosure.secure_sum else "open",
            ending=ending,
            members=members,
            finished=finished,
            absent=tuple(self.absent[name] for name in sorted(self.absent)),
            given_up=tuple(self.given_up),
            total=digest,
            began=self.began,
            ended=timestamp(),
            next=advice,
            notes=tuple(dict.fromkeys(self.notes)),
            versions={"fdtr": __version__, "python": platform.python_version(), **self.versions},
        )
