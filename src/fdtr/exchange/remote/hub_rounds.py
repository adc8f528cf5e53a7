"""Run a federation at the hub: which sites are asked for what, until there is a total and every site has finished.

    open      sums ──────────────────────────────────────────▶ total ─ finish
    masked    keys ─ masked ─▶ list ─ confirmed ─ opened ────▶ total ─ finish

The next phase follows from the files in the hub's folder alone, so a hub that was stopped continues where it was.
"""

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from fdtr import __version__
from fdtr.errors import FdtrError
from fdtr.exchange.atomic_files import locked
from fdtr.exchange.folder.hub_steps import new_round, take_hub_steps
from fdtr.exchange.folder.round_snapshot import RoundSnapshot, read_round, read_study
from fdtr.exchange.folder.round_status import names
from fdtr.exchange.folder_layout import STUDY, TOTAL
from fdtr.exchange.remote.collection import Ask, Collected, collect
from fdtr.exchange.remote.jobs import Absence, Ending, Job, Reason, Result, timestamp
from fdtr.exchange.remote.requests import Phase, require_hub_key
from fdtr.signing import Key
from fdtr.study import Study

_AGAIN = "Run the same again when the reason is gone: who has answered need not send again."
_NEW_ROUND_MAY_HELP = {Reason.REFUSED, Reason.FAILED, Reason.WRONG_SIGNATURE, Reason.BAD_ANSWER}


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

    @property
    def board(self) -> RoundSnapshot:
        """The hub's folder as it is now."""
        board = read_round(self.job.folder, self.study)
        self.number = board.number
        return board

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
        board = self.board
        if board.total is not None:
            return
        collected = self._collect(board, Phase.SUMS, board.lacking(board.sums))
        self._require_enough(len(board.sums) + len(collected.done))
        self._take_turn()

    def _sum_masked(self) -> bool:
        """Whether the round has a total. A round that cannot reach one is to be given up."""
        board = self.board
        if board.total is not None:
            return True
        if board.survivors is None:
            silent = sorted(self._collect(board, Phase.KEYS, board.lacking(board.keys)).absent)
            if silent:
                raise _Stopped(
                    f"No key came from {names(silent)}, and nobody can mask before all are there. If a site does "
                    f"not come back, take it out with `fdtr roster remove {self.job.folder / STUDY} SITE`, give "
                    f"everybody the study file, and begin a new round with `fdtr hub new-round`. {_AGAIN}"
                )
            board = self.board
            collected = self._collect(board, Phase.MASKED, board.lacking(board.masked))
            self._require_enough(len(board.masked) + len(collected.done))
            self._take_turn()
        for phase in (Phase.CONFIRMED, Phase.OPENED):
            if not self._collect_from_survivors(phase):
                return False
        self._take_turn()
        return True

    def _collect_from_survivors(self, phase: Phase) -> bool:
        """Ask every survivor, and those that are missing once more. Returns whether the round can continue.

        Without one of the survivors a round has no total. If all answer and one cannot continue, a new round may
        succeed: returns False. If one does not answer, its key for a new round would be missing too: the round waits.
        """
        for _ in range(2):
            board = self.board
            survivors = board.survivors.sites if board.survivors else ()
            lacking = board.lacking(board.confirmed if phase is Phase.CONFIRMED else board.opened, survivors)
            if not lacking and not board.dissenters:
                return True
            collected = self._collect(board, phase, lacking)
        if not collected.absent and not self.board.dissenters:
            return True
        if set(collected.absent.values()) <= _NEW_ROUND_MAY_HELP:
            return False
        raise _Stopped(
            f"{names(sorted(collected.absent))} is on the list of survivors and does not answer. When it is back, run "
            "the same again: the round goes on where it stopped. If it does not come back, take it out with `fdtr "
            f"roster remove {self.job.folder / STUDY} SITE`, give everybody the study file, and begin a new round with "
            "`fdtr hub new-round`."
        )

    def _collect(self, board: RoundSnapshot, phase: Phase, sites: list[str]) -> Collected:
        collected = collect(board, phase, sites, self.job.nodes, self.ask)
        for site in collected.done:
            self.absent.pop((site, board.number), None)
        for site, reason in collected.absent.items():
            self.absent[site, board.number] = Absence(site, board.number, phase.value, reason)
        return collected

    def _require_enough(self, count: int) -> None:
        if count < self.job.min_sites:
            raise _Stopped(
                f"{count} sites sent their sums, and {self.job.min_sites} were asked for. Nothing was added. {_AGAIN}"
            )

    def _take_turn(self) -> None:
        self.notes += take_hub_steps(self.job.folder, self.key, close=True).notes

    def finish(self) -> Result:
        """Send the total to the sites that are in it, and report which have finished."""
        board = self.board
        total = board.checked_total()
        for site in board.lacking(dict(total.members)):
            left_out = Absence(site, board.number, "", Reason.LEFT_OUT)
            self.absent.setdefault((site, board.number), left_out)
        collected = self._collect(board, Phase.FINISH, list(total.sites))
        if collected.absent:
            advice = f"{names(sorted(collected.absent))} did not finish. When it is back, run the same again."
        else:
            advice = "Nothing: every site in the total has written its policy."
        digest = sha256(board.hub_path(TOTAL).read_bytes()).hexdigest()
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
