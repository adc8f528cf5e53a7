"""A federation's job file, which the hub reads, and its result file, which the hub writes. Both are JSON."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fdtr.container import read_bounded, write_atomically
from fdtr.errors import UnreadableFile

_MOST_JOB_BYTES = 2**20


def timestamp() -> str:
    """The current time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class Job(BaseModel):
    """One federation: the hub's folder of the study, its key, and the network node of each site.

    Only sites in `nodes` are asked. An open round needs `min_sites` of them, and never fewer than the study requires.
    `deadline` is the number of seconds that a site has to answer in each phase.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: Path
    key: Path
    result: Path
    nodes: dict[str, int]
    min_sites: int = Field(default=3, ge=1)
    deadline: float = Field(default=3600.0, gt=0)

    @property
    def lock(self) -> Path:
        """Lock of all federations whose results lie in the same folder."""
        return self.result.with_name("conduct.lock")

    def save(self, path: Path) -> None:
        """Write the job, readable by its owner alone."""
        write_atomically(path, self.model_dump_json(indent=1).encode(), mode=0o600)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a job that `save` wrote."""
        try:
            return cls.model_validate_json(read_bounded(path, _MOST_JOB_BYTES, "a job"))
        except (UnreadableFile, ValidationError):
            raise UnreadableFile(f"{path} is no job that `fdtr hub` wrote. Start the federation again.") from None


class Ending(StrEnum):
    """How a federation ended."""

    COMPLETE = "complete"  # there is a total, and every site in it finished
    INCOMPLETE = "incomplete"  # there is a total; not every site in it is known to have finished
    REFUSED = "refused"  # there is no total


class Reason(StrEnum):
    """Why a site is absent: the outcome in its own answer, or what the hub observed."""

    NOT_ASKED = "not asked"  # this run was for others
    NOT_CONNECTED = "not connected"
    NO_ANSWER = "no answer"
    LOST_LATE = "lost after the list"
    DECLINED = "declined"
    UNKNOWN_STUDY = "unknown study"
    OTHER_ROSTER = "other roster"
    REFUSED = "refused"
    FAILED = "failed"
    WRONG_SIGNATURE = "wrong signature"
    OTHER_SITE = "answers as another site"  # two lines of [nodes] were mixed up
    BAD_ANSWER = "unreadable answer"
    LEFT_OUT = "left out earlier"  # the total was there when this run began


@dataclass(frozen=True)
class Absence:
    """A site that did not do its part, with round, phase and reason."""

    site: str
    round: int
    phase: str
    reason: Reason


@dataclass(frozen=True)
class Result:
    """How a federation ended, for the people at the hub and for programs.

    `members` are the sites in the total; `finished` are those that reported that their policy is written; `given_up`
    are rounds that were begun and abandoned; `total` is the SHA-256 of the total's file; `next` says what to do.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    study: str
    fingerprint: str
    round: int
    mode: str
    ending: Ending
    members: tuple[str, ...]
    finished: tuple[str, ...]
    absent: tuple[Absence, ...]
    given_up: tuple[int, ...]
    total: str | None
    began: str
    ended: str
    next: str
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)

    @classmethod
    def failed(cls, advice: str) -> Self:
        """The result when the study could not be read, or the hub's own program failed."""
        now = timestamp()
        return cls("", "", 0, "", Ending.REFUSED, (), (), (), (), None, now, now, advice)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read what `save` wrote."""
        try:
            return TypeAdapter(cls).validate_json(text)
        except ValidationError:
            raise UnreadableFile("This is no result of a federation, or one of another version.") from None

    def save(self, path: Path) -> None:
        """Write the result, whole or not at all."""
        write_atomically(path, TypeAdapter(Result).dump_json(self, indent=1))
