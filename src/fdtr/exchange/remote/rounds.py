"""The hub's conversation: whom it asks for what, until there is a total and every site has finished.

    open      sums ──────────────────────────────────────────▶ total ─ finish
    masked    keys ─ masked ─▶ list ─ confirmed ─ opened ────▶ total ─ finish

What comes next follows from the hub's folder alone, so that a hub that was stopped goes on where it was.
"""

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from fdtr import __version__
from fdtr.errors import FdtrError
from fdtr.exchange.folder.board import Board, read_board, read_study
from fdtr.exchange.folder.durable import locked
from fdtr.exchange.folder.hub_turns import new_round, take_hub_turn
from fdtr.exchange.folder.layout import STUDY, TOTAL
from fdtr.exchange.folder.turns import names
from fdtr.exchange.remote.desk import require_carriable
from fdtr.exchange.remote.gathering import Ask, Gathered, Lost, gather
from fdtr.exchange.remote.jobs import Absence, Ending, Job, Reason, Result, moment
from fdtr.exchange.remote.parcels import Phase
from fdtr.signing import Key
from fdtr.study import Study

__all__ = ["Ask", "Lost", "conduct"]

_AGAIN = "Run the same again when the reason is gone: who has answered need not send again."
_CAN_BEGIN_ANEW = {Reason.REFUSED, Reason.FAILED, Reason.WRONG_SIGNATURE, Reason.BAD_ANSWER}


def conduct(job: Job, key: Key, ask: Ask, versions: Mapping[str, str] | None = None) -> Result:
    """Run a federation to its end, or as far as it goes, and write its result.

    Run again after a crash, or when sites are back, it goes on where the hub's folder stands; while another is still
    at it, it waits. `versions` are those of the engine, for the result.
    """
    with locked(job.lock, "a round of this hub"):
        job.result.unlink(missing_ok=True)  # an old one would be taken for this one's
        result = _conduct(job, key, ask, versions or {})
        result.save(job.result)
    return result


def _conduct(job: Job, key: Key, ask: Ask, versions: Mapping[str, str]) -> Result:
    talk = _Conversation(job, key, ask, read_study(job.folder), dict(versions))
    try:
        require_carriable(talk.study)
        talk.reach_total()
        return talk.finish()
    except _Stopped as stopped:
        return talk.refused(str(stopped))
    except (FdtrError, OSError) as error:
        return talk.refused(str(error))


class _Stopped(Exception):
    """The federation cannot go on for now; its text says what to do."""


@dataclass
class _Conversation:
    """What was learnt on the way: who was absent in which round, and which rounds were left."""

    job: Job
    key: Key
    ask: Ask
    study: Study
    versions: dict[str, str]
    absent: dict[tuple[str, int], Absence] = field(default_factory=dict)
    given_up: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    number: int = 0
    began: str = field(default_factory=moment)

    @property
    def board(self) -> Board:
        """The hub's folder as it is now."""
        found = read_board(self.job.folder, self.study)
        self.number = found.number
        return found

    def reach_total(self) -> None:
        """All phases that come before the total; raises where one cannot be passed."""
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
        found = self._gather(board, Phase.SUMS, board.lacking(board.sums))
        self._require_enough(len(board.sums) + len(found.done))
        self._turn()

    def _sum_masked(self) -> bool:
        """Whether the round came to a total; one that cannot any more is to be given up."""
        board = self.board
        if board.total is not None:
            return True
        if board.survivors is None:
            silent = sorted(self._gather(board, Phase.KEYS, board.lacking(board.keys)).absent)
            if silent:
                raise _Stopped(
                    f"No key came from {names(silent)}, and nobody can mask before all are there. If a site does "
                    f"not come back, take it out with `fdtr roster remove {self.job.folder / STUDY} SITE`, give "
                    f"everybody the study file, and begin a new round with `fdtr hub new-round`. {_AGAIN}"
                )
            board = self.board
            found = self._gather(board, Phase.MASKED, board.lacking(board.masked))
            self._require_enough(len(board.masked) + len(found.done))
            self._turn()
        for phase in (Phase.CONFIRMED, Phase.OPENED):
            if not self._gather_all(phase):
                return False
        self._turn()
        return True

    def _gather_all(self, phase: Phase) -> bool:
        """Ask every survivor, those who are missing once more; whether the round can go on.

        A round without one of them has no total. Where all are reached and one cannot go on, another round may do
        better; where one is not reached, its key for another round would be missing too, so this one waits.
        """
        for _ in range(2):
            board = self.board
            survivors = board.survivors.sites if board.survivors else ()
            lacking = board.lacking(board.confirmed if phase is Phase.CONFIRMED else board.opened, survivors)
            if not lacking and not board.dissenters:
                return True
            found = self._gather(board, phase, lacking)
        if not found.absent and not self.board.dissenters:
            return True
        if set(found.absent.values()) <= _CAN_BEGIN_ANEW:
            return False
        raise _Stopped(
            f"{names(sorted(found.absent))} is on the list of survivors and does not answer. When it is back, run the "
            "same again: the round goes on where it stopped. If it does not come back, take it out with `fdtr roster "
            f"remove {self.job.folder / STUDY} SITE`, give everybody the study file, and begin a new round with `fdtr "
            "hub new-round`."
        )

    def _gather(self, board: Board, phase: Phase, sites: list[str]) -> Gathered:
        found = gather(board, phase, sites, self.job.nodes, self.ask)
        for site in found.done:
            self.absent.pop((site, board.number), None)
        for site, reason in found.absent.items():
            self.absent[site, board.number] = Absence(site, board.number, phase.value, reason)
        return found

    def _require_enough(self, count: int) -> None:
        if count < self.job.min_sites:
            raise _Stopped(
                f"{count} sites sent their sums, and {self.job.min_sites} were asked for. Nothing was added. {_AGAIN}"
            )

    def _turn(self) -> None:
        self.notes += take_hub_turn(self.job.folder, self.key, close=True).notes

    def finish(self) -> Result:
        """Send the total to those who are in it, and tell who has finished."""
        board = self.board
        total = board.checked_total()
        for site in board.lacking(dict(total.members)):
            left = Absence(site, board.number, "", Reason.LEFT_OUT)
            self.absent.setdefault((site, board.number), left)
        found = self._gather(board, Phase.FINISH, list(total.sites))
        if found.absent:
            advice = f"{names(sorted(found.absent))} did not finish. When it is back, run the same again."
        else:
            advice = "Nothing: every site in the total has written its policy."
        digest = sha256(board.hub_path(TOTAL).read_bytes()).hexdigest()
        ending = Ending.INCOMPLETE if found.absent else Ending.COMPLETE
        return self._result(ending, total.sites, found.done, digest, advice)

    def refused(self, advice: str) -> Result:
        """What is told where there is no total."""
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
            ended=moment(),
            next=advice,
            notes=tuple(dict.fromkeys(self.notes)),
            versions={"fdtr": __version__, "python": platform.python_version(), **self.versions},
        )
