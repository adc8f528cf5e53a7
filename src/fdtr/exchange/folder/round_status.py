"""Where a round stands: what a party did, what it waits for, and whose part is missing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fdtr.exchange.folder.masked_phase import MaskedPhase
from fdtr.exchange.folder.round_snapshot import RoundSnapshot
from fdtr.exchange.folder_layout import COUNT_PHASE, SUM_PHASE, SUMS

WHAT = {COUNT_PHASE: "counts", SUM_PHASE: "sums"}
"""What is added in each masked phase, in words."""


@dataclass(frozen=True)
class StepsTaken:
    """What a site or the hub did in one call: sentences `done`, what it `waits` for (empty at the end), and `notes`.

    `policy` is where a site's finished policy lies.
    """

    number: int
    done: tuple[str, ...]
    waits: str
    notes: tuple[str, ...] = ()
    policy: Path | None = None


@dataclass(frozen=True)
class Step:
    """One step of a party: what was `done`, or else what it `waits` for; both are empty at the end of the round."""

    done: str = ""
    waits: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class RoundStatus:
    """The newest round: which parts of each site are posted and verified, what comes next, and what was ignored.

    `receivers` send nothing and receive the total.
    """

    study: str
    fingerprint: str
    number: int
    masked: bool
    signed: bool
    sites: dict[str, dict[str, bool]]
    receivers: tuple[str, ...]
    survivors: tuple[str, ...] | None
    total: tuple[str, ...] | None
    next: str
    faults: tuple[str, ...]


def status_of(snapshot: RoundSnapshot) -> RoundStatus:
    """The status of a round, and whose step is next."""
    posted = snapshot.secure_sum_parts if snapshot.is_masked else {SUMS: snapshot.sums}
    return RoundStatus(
        study=snapshot.study.name,
        fingerprint=snapshot.study.fingerprint,
        number=snapshot.number,
        masked=snapshot.is_masked,
        signed=bool(snapshot.study.roster),
        sites={site: {part: site in senders for part, senders in posted.items()} for site in snapshot.sites},
        receivers=snapshot.receivers,
        survivors=None if snapshot.summing.survivors is None else snapshot.summing.survivors.sites,
        total=None if snapshot.total is None else snapshot.total.sites,
        next=_next(snapshot),
        faults=snapshot.faults,
    )


def names(sites: Sequence[str]) -> str:
    """Sites in a sentence.

    >>> names(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join([", ".join(sites[:-1]), sites[-1]] if len(sites) > 1 else list(sites))


def _next(snapshot: RoundSnapshot) -> str:
    if snapshot.total is not None:
        finishing = (*snapshot.total.sites, *snapshot.receivers)
        return f"The total is there: {names(finishing)} finish their policies with `fdtr site next`."
    if not snapshot.is_masked:
        return _missing(snapshot, [(snapshot.sums, "Messages")]) or "The hub adds up: `fdtr hub next`."
    missing = _missing(snapshot, [(snapshot.keys, "Keys")])
    for phase in snapshot.phases:
        missing = missing or _next_of(snapshot, phase)
    return missing or "The hub adds up: `fdtr hub next`."


def _next_of(snapshot: RoundSnapshot, phase: MaskedPhase) -> str:
    """What comes next in a masked phase; "" where it is through."""
    what = WHAT[phase.names]
    if phase.survivors is None:
        missing = _missing(snapshot, [(phase.masked, f"Masked {what}")], snapshot.expected)
        return missing or f"The hub lists the survivors for {what}: `fdtr hub next`."
    if phase.dissenters:
        return f"{names(phase.dissenters)} signed another list of survivors. Begin a new round: `fdtr hub new-round`."
    signatures = (phase.confirmed, "Signatures under the list of survivors")
    return _missing(snapshot, [signatures, (phase.opened, f"Openings of {what}")], phase.survivors.sites)


def _missing(
    snapshot: RoundSnapshot, expected: list[tuple[Mapping[str, object], str]], among: tuple[str, ...] | None = None
) -> str:
    for parts, what in expected:
        missing = snapshot.lacking(parts, among)
        if missing:
            return f"{what} of {names(missing)}: `fdtr site next`."
    return ""
