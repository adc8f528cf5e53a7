"""A site's summary, its sums with name and study, and the total of several sites. Adding two of them is pooling."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fdtr.container import digest
from fdtr.errors import ChangedSummary, OtherStudy, WrongSite
from fdtr.sums import INFORMATION_COARSENESS, Grams, Removed, Sums

Array = NDArray[np.float64]

_MOST_NAMED = 12


@dataclass(frozen=True)
class SiteSummary:
    """The sums of one site, not checked for disclosure. Adding two makes a `Total`.

    `fdtr.exchange.release_message` checks them and writes what passed. If the study asks for `grams`, the sums are
    derived from them. If the sums went into a secure sum, `sent_as` is the digest of the masked message.
    `noised` says, at the site that made them, whether the sums carry the noise of differential privacy; elsewhere the
    study says so. `mean_weight` is the mean weight of rows in them: 1, or less in a message of weighted rows.
    """

    site: str
    fingerprint: str
    sums: Sums
    grams: Grams | None = None
    sent_as: str = ""
    noised: bool = field(default=False, compare=False)
    mean_weight: float = field(default=1.0, compare=False)

    @property
    def payload(self) -> Sums | Grams:
        """What is sent: the Grams if there are any, else the sums."""
        return self.sums if self.grams is None else self.grams

    @cached_property
    def digest(self) -> str:
        """Identifies the summary in a total: `sent_as`, or the SHA-256 of site, study and every number that is sent.

        Derived numbers are left out, because their last bit may differ between machines.
        """
        return self.sent_as or digest({"site": self.site, "fingerprint": self.fingerprint}, self.payload.packed())

    @property
    def content(self) -> str:
        """SHA-256 of the numbers alone, whatever the study and the site are called."""
        return digest({}, self.payload.packed())

    def without(self, steps: Sequence[int]) -> "SiteSummary":
        """A copy with zeros, also for the number of patients, at `steps`."""
        grams = None if self.grams is None else self.grams.without(steps)
        return replace(self, sums=self.sums.without(steps), grams=grams, sent_as="")

    def __repr__(self) -> str:
        return f"<SiteSummary of {self.site!r}: {_size(self.sums)}>"

    def as_total(self) -> "Total":
        """A total with this one member."""
        return Total(self.fingerprint, ((self.site, self.digest),), self.sums, mean_weight=self.mean_weight)

    def __add__(self, other: "SiteSummary | Total") -> "Total":
        return self.as_total() + other

    def __sub__(self, own: "SiteSummary") -> "Total":
        return self.as_total() - own


@dataclass(frozen=True)
class Total:
    """The sums of several sites; `members` are (site, digest of its summary), sorted by site.

    `resolution` is the unit to which a secure sum rounded each site's S, s and s_r; 0 without a secure sum. `removed`
    were eliminated from every message before it was added. `mean_weight` is that of the messages' rows.
    """

    fingerprint: str
    members: tuple[tuple[str, str], ...]
    sums: Sums
    resolution: float = 0.0
    removed: tuple[Removed, ...] = ()
    mean_weight: float = field(default=1.0, compare=False)

    def __repr__(self) -> str:
        return f"<Total of {_named(self.sites)}: {_size(self.sums)}>"

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites in the total."""
        return tuple(site for site, _ in self.members)

    @property
    def significant(self) -> Sums:
        """The sums without directions that may be rounding error alone; invert S and W of these.

        Rounding each site's matrix to the resolution moves eigenvalues of the total by at most K·d0·resolution; smaller
        ones count as zero. Without rounding these are the sums themselves.
        """
        if self.resolution == 0.0:
            return self.sums
        floor = len(self.members) * self.sums.n_shared * self.resolution
        return self.sums.above(floor, INFORMATION_COARSENESS * floor)

    def __add__(self, other: "SiteSummary | Total") -> "Total":
        more = other.as_total() if isinstance(other, SiteSummary) else other
        _same_study(self.fingerprint, more.fingerprint)
        twice = sorted(set(self.sites) & set(more.sites))
        if twice:
            raise _twice(twice[0])
        if self.removed or more.removed or self.mean_weight != more.mean_weight:
            raise _other_weights()
        return Total(
            self.fingerprint,
            tuple(sorted(self.members + more.members)),
            self.sums + more.sums,
            max(self.resolution, more.resolution),
            mean_weight=self.mean_weight,
        )

    def __sub__(self, own: SiteSummary) -> "Total":
        """The total of the other sites; `own` must be, bit for bit, the summary that went in."""
        _same_study(self.fingerprint, own.fingerprint)
        members = dict(self.members)
        if own.site not in members:
            raise WrongSite(f"The total does not contain site {own.site!r}; it holds {_named(self.sites)}.")
        if members.pop(own.site) != own.digest:
            raise ChangedSummary(
                f"Site {own.site!r}: the summary at hand is not the one that went into the total. The data, the "
                "study or the software changed since it was sent. Use the message as it was sent, or send a new one."
            )
        rest = self.sums - own.sums.without_directions(self.removed)
        return replace(self, members=tuple(members.items()), sums=rest)


def combine(summaries: Iterable[SiteSummary]) -> Total:
    """Add the summaries of several sites: Σ_k of every array in `Sums`.

    Sites are added in the order of their names, so the result does not depend on the order of `summaries`.

    >>> import fdtr, numpy as np, pyarrow as pa
    >>> from fdtr.simulation import WorldSpec, make_world
    >>> world = make_world(WorldSpec(n_sites=2, horizon=2), np.random.default_rng(1))
    >>> study = fdtr.Study.model_validate(world.study())
    >>> data = fdtr.read_trajectories(pa.table(world.table(60, np.random.default_rng(2))), study)
    >>> first, second = (fdtr.fit_local(study, rows).summary for rows in data.by_site().values())
    >>> total = combine([second, first])
    >>> total
    <Total of 'site-1', 'site-2': 120 patients, 2 steps, 4 shared features>
    >>> bool((total.sums.schur == first.sums.schur + second.sums.schur).all())
    True
    """
    added = list(summaries)
    strangers = [type(summary).__name__ for summary in added if not isinstance(summary, SiteSummary)]
    if strangers:
        raise TypeError(f"Summaries are combined, not {strangers[0]}: combine(fit.summary for fit in fits).")
    running = RunningTotal()
    for summary in sorted(added, key=lambda summary: summary.site):
        running.add(summary)
    return running.total()


class RunningTotal:
    """A total to which summaries are added one by one, in the order of their sites' names; none of them is kept.

    >>> import numpy as np
    >>> from fdtr.sums import summarize_step
    >>> running = RunningTotal()
    >>> step = summarize_step(np.eye(2), np.ones(2), np.ones(2), 1.0, n=60, n_shared=1)
    >>> for name in ("north", "south"):
    ...     running.add(SiteSummary(name, "a study's fingerprint", step))
    >>> running.total()
    <Total of 'north', 'south': 120 patients, 1 steps, 1 shared features>
    """

    def __init__(self) -> None:
        self._members: list[tuple[str, str]] = []
        self._first: Total | None = None
        self._sums: Sums | None = None

    def add(self, summary: SiteSummary) -> None:
        """Add the sums of the next site. Refuses a site that is in it, another study, and other weights."""
        if self._first is None or self._sums is None:
            self._first = replace(summary.as_total(), members=())
            self._sums = Sums(*(array.copy() for array in summary.sums._arrays()))
        else:
            last = self._members[-1][0]
            if summary.site < last:
                raise ValueError(f"Site {summary.site!r} is added after {last!r}: sites come in the order of names.")
            _same_study(self._first.fingerprint, summary.fingerprint)
            if summary.site == last:
                raise _twice(last)
            if summary.mean_weight != self._first.mean_weight:
                raise _other_weights()
            self._sums._require_shape_of(summary.sums)
            for mine, theirs in zip(self._sums._arrays(), summary.sums._arrays(), strict=True):
                np.add(mine, theirs, out=mine)
        self._members.append((summary.site, summary.digest))

    @property
    def count(self) -> int:
        """How many sites were added."""
        return len(self._members)

    def total(self) -> Total:
        """The total of all that was added; refuses one of nothing."""
        if self._first is None or self._sums is None:
            raise WrongSite("There is nothing to combine: give at least one summary.")
        return replace(self._first, members=tuple(self._members), sums=self._sums)


def _named(sites: Sequence[str]) -> str:
    """The first sites by name, and how many more there are."""
    more = f" and {len(sites) - _MOST_NAMED:,} more" if len(sites) > _MOST_NAMED else ""
    return ", ".join(map(repr, sites[:_MOST_NAMED])) + more


def _size(sums: Sums) -> str:
    return f"{int(sums.n.max(initial=0))} patients, {sums.horizon} steps, {sums.n_shared} shared features"


def _twice(site: str) -> WrongSite:
    return WrongSite(f"Site {site!r} is already in the total and cannot be added again.")


def _other_weights() -> OtherStudy:
    return OtherStudy(
        "Sums of weighted rows and exact ones cannot be added, nor sums from which the hub removed what too few sites "
        "sent. Add the messages as they were sent: `fdtr hub combine`."
    )


def _same_study(mine: str, other: str) -> None:
    if mine != other:
        raise OtherStudy(
            f"The parts belong to different studies (fingerprints {mine[:12]}… and {other[:12]}…). "
            "All sites must use the same study file; compare it with `fdtr study fingerprint`."
        )
