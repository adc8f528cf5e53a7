"""Rule ONCE, as arithmetic: in how many patients two releases differ, and which second release is refused.

Two messages over nearly the same patients differ by the few in which they differ. That holds for whole tables, and for
every step by itself: where trajectories end early, tables that differ by many may differ by one patient at a late step,
whose sums then tell of that one. A step is compared where both releases have sums of it; over the same patients it has
to have the same numbers, else they differ by what was changed of a patient.

Values that leave after learning (`VALUES`) are held to the rule among themselves, as whole tables: two rounds of them
over patients that differ by a few differ by what those few were worth. They are not held to the site's sums. A table
often grows a little between message and evaluation, and a value, a weighted mean rounded to a twentieth of its error or
coarser, cannot be subtracted from a sum over other features. Over the same patients other numbers may follow, since
another total, another split or another study changes the policies that are valued, but not without end (`MOST_VALUES`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fdtr.disclosure.rules import Verdict
from fdtr.errors import ReleasedBefore

VALUES = "values"
"""What stands for the feature map of a release of values; a map's fingerprint has 64 digits."""

MOST_VALUES = 10
"""Releases of values with different numbers over the same patients, in all studies together.

Whoever chooses the totals chooses the policies that are valued, and each gives another weighted mean of the same
outcomes. Ten leave room for an honest study that is run again, and are few beside the patients that rule N asks for.
"""

WIDTH = 16
"""Bytes of a patient's hash."""

Counts = NDArray[np.int64]


@dataclass(frozen=True, repr=False)
class Release:
    """What a site is about to release: a `message` by its digest, of `patients` by their ids.

    `study` and `feature_map` are fingerprints (`VALUES` for values), `content` is the digest of the numbers alone, and
    `margin` the study's `once_margin`. `steps`, beside `patients`, says how many steps each of them has, and `released`
    which steps the message has sums of, each with the digest of its numbers ("": not known yet); both are empty where
    it is about the table as a whole. No repr: it would print ids.
    """

    study: str
    feature_map: str
    site: str
    message: str
    content: str
    margin: int
    patients: Sequence[str]
    steps: Sequence[int] = ()
    released: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, repr=False)
class Patients:
    """The patients of a release: `hashes`, sorted, side by side; `steps` (n,) of each; steps `released`, with digests.

    Where steps are not known each counts as having one: nothing but the whole table is compared then.
    """

    hashes: bytes
    steps: NDArray[np.uint16]
    released: Mapping[int, str]

    @cached_property
    def counts(self) -> Counts:
        """How many have each step, up to the last that anybody has. The first is all of them."""
        return _reaching(self.steps)

    def differing(self, other: "Patients", margin: int) -> Iterator[tuple[int, int]]:
        """How many patients differ: 0 with the whole table first, then each step that both released.

        Nothing where numbers of patients alone say that more than `margin` differ everywhere.
        """
        horizon = min(len(self.counts), len(other.counts))
        both = [0, *sorted(step for step in self.released.keys() & other.released.keys() if 0 < step < horizon)]
        if (np.abs(self.counts[both] - other.counts[both]) > margin).all():
            return
        mine, theirs = self._matched(other)
        common = np.zeros(horizon, np.int64)
        shared = _reaching(np.minimum(self.steps[mine], other.steps[theirs]))
        common[: len(shared)] = shared
        for step in both:
            yield step, int(self.counts[step] + other.counts[step] - 2 * common[step])

    def _matched(self, other: "Patients") -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Places of the patients whom both have, here and there."""
        if self.hashes == other.hashes:
            everybody = np.arange(len(self.steps))
            return everybody, everybody
        # Halves of a hash sort as the bytes do, and numbers are searched many times faster than texts.
        place = np.searchsorted(other._halves[:, 0], self._halves[:, 0])
        place[place == len(other.steps)] = 0
        found = (self._halves == other._halves[place]).all(axis=1)
        return np.flatnonzero(found), place[found]

    @cached_property
    def _halves(self) -> NDArray[np.uint64]:
        return np.frombuffer(self.hashes, ">u8").reshape(-1, WIDTH // 8).astype(np.uint64)


def _reaching(steps: NDArray[np.uint16]) -> Counts:
    """How many of these numbers of steps go beyond 0, 1, …, up to the largest."""
    counts: Counts = np.bincount(steps, minlength=2)[:0:-1].cumsum()[::-1]
    return counts


@dataclass(frozen=True, eq=False, repr=False)
class Earlier:
    """A release that stands in the ledger, with the stricter of its `margin` and that of the one to be judged."""

    patients: Patients
    time: str
    study: str
    feature_map: str
    site: str
    content: str
    margin: int


def judge_once(release: Release, patients: Patients, earlier: Iterable[Earlier]) -> Verdict:
    """Rule ONCE for a release of `patients`, beside all that stand, oldest first."""
    told: set[str] = set()  # numbers that left of these very patients
    for before in earlier:
        for step, differ in patients.differing(before.patients, before.margin):
            if 0 < differ <= before.margin:
                return _too_near(release, before, step, differ)
            if differ == 0 and _other_numbers(release, before, step):
                return _changed(release, before, step)
            if differ == 0 and step == 0:
                told.add(before.content)
    if release.feature_map == VALUES and release.content not in told and len(told) >= MOST_VALUES:
        return _too_often(len(told))
    return nothing_near(release, "no earlier release of nearly the same patients")


def nothing_near(release: Release, measured: str) -> Verdict:
    """The rule holds."""
    return Verdict(ReleasedBefore, None, True, measured, _asked(release, release.margin))


def _too_near(release: Release, before: Earlier, step: int, differ: int) -> Verdict:
    measured = f"{differ} patient{'s differ' if differ > 1 else ' differs'} from {_those(before)}"
    asked = f"more than {before.margin} that differ, or none" if step else _asked(release, before.margin)
    return Verdict(ReleasedBefore, step or None, False, measured, asked, advice=_own_folder(release, before))


def _other_numbers(release: Release, before: Earlier, step: int) -> bool:
    """Whether the same features of the same patients give other numbers than before: in all, or at a later step."""
    if not before.feature_map == release.feature_map != VALUES:
        return False
    if step == 0:
        return before.content != release.content
    then, now = before.patients.released[step], release.released[step]
    return bool(then and now and then != now)


def _changed(release: Release, before: Earlier, step: int) -> Verdict:
    measured = f"the patients are {_those(before)}, with other values of the same features"
    asked = _asked(release, before.margin)
    return Verdict(ReleasedBefore, step or None, False, measured, asked, advice=_own_folder(release, before))


def _too_often(times: int) -> Verdict:
    measured = f"values of these patients have left {times} times, with other numbers each time"
    advice = "Give the hub a file of values from before, or wait until clearly more patients have come."
    return Verdict(ReleasedBefore, None, False, measured, f"at most {MOST_VALUES} times", advice=advice)


def _asked(release: Release, margin: int) -> str:
    again = "" if release.feature_map == VALUES else " with the same values or other features"
    return f"more than {margin} that differ, or the same patients{again}"


def _those(before: Earlier) -> str:
    return f"those released on {before.time[:10]} for the study {before.study[:12]}…"


def _own_folder(release: Release, before: Earlier) -> str:
    """For the honest case of two names: nobody can tell it from one hospital that is asked to run under both."""
    if before.site == release.site:
        return ""
    return (
        f"They were released as site {before.site!r}. Only where that is another hospital, whose patients have the "
        "same ids, on a machine that plays both: give each a state folder of its own (FDTR_STATE)."
    )
