"""Where a round stands: what a party did, what it waits for, and whose part is missing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fdtr.exchange.folder.round_snapshot import RoundSnapshot
from fdtr.exchange.folder_layout import SUMS


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
    """The newest round: which parts of each site are posted and verified, what comes next, and what was ignored."""

    study: str
    fingerprint: str
    number: int
    masked: bool
    signed: bool
    sites: dict[str, dict[str, bool]]
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
        survivors=None if snapshot.survivors is None else snapshot.survivors.sites,
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
        return f"The total is there: {names(snapshot.total.sites)} finish their policies with `fdtr site next`."
    expected: list[tuple[Mapping[str, object], str]] = [(snapshot.sums, "Messages")]
    among, then = snapshot.sites, "The hub adds up: `fdtr hub next`."
    if snapshot.is_masked and snapshot.survivors is None:
        expected = [(snapshot.keys, "Keys"), (snapshot.masked, "Masked messages")]
        then = "The hub lists the survivors: `fdtr hub next`."
    elif snapshot.survivors is not None:
        if snapshot.dissenters:
            dissenters = names(snapshot.dissenters)
            return f"{dissenters} signed another list of survivors. Begin a new round: `fdtr hub new-round`."
        expected = [
            (snapshot.confirmed, "Signatures under the list of survivors"),
            (snapshot.opened, "Openings"),
        ]
        among = snapshot.survivors.sites
    for parts, what in expected:
        missing = snapshot.lacking(parts, among)
        if missing:
            return f"{what} of {names(missing)}: `fdtr site next`."
    return then
