"""Rule ONCE: in how many patients two releases differ, and which second release is refused.

The difference of two messages over nearly the same patients reveals the few patients in which they differ. This holds
for whole tables and for every step by itself: if trajectories end early, tables that differ in many patients may differ
in one patient at a late step. A step is compared if both releases have sums of it. Over the same patients it must have
the same numbers; otherwise the difference reveals what was changed about a patient.

Values that leave after learning (`VALUES`) are compared among themselves, as whole tables: two releases of values over
patients that differ by a few reveal the outcomes of those few. They are not compared with the site's sums. A table
often grows a little between message and evaluation, and a value, a weighted mean rounded to a twentieth of its error or
coarser, cannot be subtracted from a sum over other features. Other values of the same patients may follow, because
another total, split or study changes the policies, but only a limited number of times (`MOST_VALUES`).
"""

import hmac
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fdtr.container.temporary import Storage
from fdtr.disclosure.rules import Verdict
from fdtr.trajectories.keyed_hashes import WIDTH, Counts, SortedHashes, common_patients
from fdtr.trajectories.patient_ids import PatientIds, plain_id

VALUES = "values"
"""Marks a release of values, in place of a feature map's fingerprint of 64 digits."""

MOST_VALUES = 10
"""Most releases of values with different numbers over the same patients, in all studies together.

Whoever chooses the totals chooses the policies that are evaluated, and each gives another weighted mean of the same
outcomes. Ten allow an honest study to be run again, and are few compared with the patients that rule N asks for.
"""

NOTHING_OF_A_RECEIVER = "nothing from a site that only receives"
"""What rule ONCE asks of a site that said that it only receives."""


@dataclass(frozen=True, eq=False, repr=False)
class Draws:
    """A number in [0, 1) for each step and patient: `numbers` (H, n), or what computes some of them when asked."""

    numbers: "NDArray[np.float64] | SecretNumbers"

    def at(self, step: int, patients: slice = slice(None)) -> NDArray[np.float64]:
        """The numbers of some patients at a step, (c,)."""
        return self.numbers[step, patients]


@dataclass(frozen=True, eq=False, repr=False)
class SecretNumbers:
    """Numbers in [0, 1) that are computed when they are asked for: E_k(hash of the id), with a key k for each step.

    E is AES, whose output under a key that nobody knows cannot be told from random numbers. So numbers of different
    steps are unrelated. `hashes` are those of the ledger, in the order of rows; `keys` (H) follow from its secret.
    """

    hashes: Storage
    keys: Sequence[bytes]

    def __getitem__(self, place: tuple[int, slice]) -> NDArray[np.float64]:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        step, patients = place
        start, stop, _ = patients.indices(self.hashes.size // WIDTH)
        hashes = self.hashes.read(start * WIDTH, max(stop, start) * WIDTH)
        # Each block is a number of its own, so blocks are not chained. Nothing is ever deciphered.
        cipher = Cipher(algorithms.AES(self.keys[step]), modes.ECB())  # noqa: S305
        digits = np.frombuffer(cipher.encryptor().update(hashes), ">u8")[:: WIDTH // 8]
        return np.asarray((digits >> np.uint64(11)) / 2.0**53)


def drawn(secret: bytes, patients: Sequence[str] | PatientIds, horizon: int) -> Draws:
    """A number in [0, 1) for each step and id that nobody can compute without the secret.

    One number a patient for all steps could be solved for: with known covariates every step adds equations.
    """
    # No id begins with this byte: it is not UTF-8. So no key is the hash of an id.
    keys = [hmac.digest(secret, b"\xffweights of step %d" % step, "sha256") for step in range(horizon)]
    return Draws(SecretNumbers(PatientIds.of(patients).hashes(secret), keys))


def drawn_by_digests(secret: bytes, patients: Sequence[str] | PatientIds, horizon: int) -> Draws:
    """Numbers as ledgers of formats 1 to 3 draw them: four steps from each digest, all of them held."""
    ids = [plain_id(patient) for patient in PatientIds.of(patients)]
    blocks = [b"weight %d " % block for block in range(-(-horizon // 4))]
    digests = b"".join(hmac.digest(secret, block + patient, "sha256") for patient in ids for block in blocks)
    numbers = (np.frombuffer(digests, ">u8") >> np.uint64(11)) / 2.0**53
    return Draws(np.ascontiguousarray(numbers.reshape(len(ids), 4 * len(blocks))[:, :horizon].T))


@dataclass(frozen=True, repr=False)
class Release:
    """What a site is about to release: the digest of a `message`, and the ids of its `patients`.

    `study` and `feature_map` are fingerprints (`VALUES` for values), `content` is the digest of the numbers alone, and
    `margin` the study's `once_margin`. `steps` counts the steps of each patient; `released` maps each step that the
    message has sums of to the digest of its numbers ("" before noise has been drawn). Both are empty for a release
    about the table as a whole. Releases are compared without `steps`. No repr: it would print ids.
    """

    study: str
    feature_map: str
    site: str
    message: str
    content: str
    margin: int
    patients: Sequence[str] | PatientIds
    steps: Sequence[int] | NDArray[np.uint16] = field(default=(), compare=False)
    released: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, repr=False)
class Patients:
    """The patients of a release: their `hashes` with the steps of each, and the steps `released`.

    If the steps are not known, each patient counts as having one, and only whole tables are compared.
    """

    hashes: SortedHashes
    released: Mapping[int, str]

    @property
    def counts(self) -> Counts:
        """Patients at each step, up to the last step that anybody has; at the first step, all of them."""
        return self.hashes.counts

    def differing(self, other: "Patients", margin: int) -> Iterator[tuple[int, int]]:
        """Pairs (step, patients that differ): the whole table as step 0, then each later step that both released.

        Yields nothing if the numbers of patients alone differ by more than `margin` everywhere.
        """
        horizon = min(len(self.counts), len(other.counts))
        compared = [0, *sorted(step for step in self.released.keys() & other.released.keys() if 0 < step < horizon)]
        if (np.abs(self.counts[compared] - other.counts[compared]) > margin).all():
            return
        common = common_patients(self.hashes, other.hashes)
        for step in compared:
            yield step, int(self.counts[step] + other.counts[step] - 2 * common[step])


@dataclass(frozen=True, eq=False, repr=False)
class Earlier:
    """An earlier release in the ledger; `margin` is the larger of its own and that of the release to be judged."""

    patients: Patients
    time: str
    study: str
    feature_map: str
    site: str
    content: str
    margin: int


class EarlierReleases(Protocol):
    """What a site released before: its ledger, which is kept with the rest of the site's state."""

    def judge(self, release: Release) -> Verdict:
        """Rule ONCE for a release."""
        ...

    def repeated(self, release: Release) -> str | None:
        """The latest message by which a site released these very patients for this study; None where none did."""
        ...

    def draws(self, patients: Sequence[str] | PatientIds, horizon: int, *, make: bool) -> Draws | None:
        """A number in [0, 1) for each step and id, the same in every release; None where there is no secret."""
        ...


def judge_once(release: Release, patients: Patients, earlier: Iterable[Earlier]) -> Verdict:
    """The verdict of rule ONCE on a release of `patients`, given the `earlier` ones, oldest first."""
    contents: set[str] = set()  # digests of numbers that left for exactly these patients
    for before in earlier:
        for step, differ in patients.differing(before.patients, before.margin):
            if 0 < differ <= before.margin:
                return _too_near(release, before, step, differ)
            if differ == 0 and _other_numbers(release, before, step):
                return _changed(release, before, step)
            if differ == 0 and step == 0:
                contents.add(before.content)
    if release.feature_map == VALUES and release.content not in contents and len(contents) >= MOST_VALUES:
        return _too_often(len(contents))
    return nothing_near(release, "no earlier release of nearly the same patients")


def nothing_near(release: Release, measured: str) -> Verdict:
    """The verdict that rule ONCE holds; `measured` says why."""
    return Verdict("ONCE", None, True, measured, _requirement(release, release.margin))


def receives_only(since: str) -> Verdict:
    """The verdict on sums of a site that said that it only receives in this study, at the time `since`."""
    measured = f"since {since[:10]} this site only receives in this study"
    advice = "Its sums could be told from two totals, one without it and one with it. Another study starts anew."
    return Verdict("ONCE", None, False, measured, NOTHING_OF_A_RECEIVER, advice=advice)


def _too_near(release: Release, before: Earlier, step: int, differ: int) -> Verdict:
    measured = f"{differ} patient{'s differ' if differ > 1 else ' differs'} from {_those(before)}"
    required = f"more than {before.margin} that differ, or none" if step else _requirement(release, before.margin)
    return Verdict("ONCE", step or None, False, measured, required, advice=_own_folder(release, before))


def _other_numbers(release: Release, before: Earlier, step: int) -> bool:
    """Whether the same features of the same patients gave other numbers before, in the whole table or at a step."""
    if not before.feature_map == release.feature_map != VALUES or not release.content:  # "": not known yet
        return False
    if step == 0:
        return before.content != release.content
    then, now = before.patients.released[step], release.released[step]
    return bool(then and now and then != now)


def _changed(release: Release, before: Earlier, step: int) -> Verdict:
    measured = f"the patients are {_those(before)}, with other values of the same features"
    required = _requirement(release, before.margin)
    return Verdict("ONCE", step or None, False, measured, required, advice=_own_folder(release, before))


def _too_often(times: int) -> Verdict:
    measured = f"values of these patients have left {times} times, with other numbers each time"
    advice = "Give the hub a file of values from before, or wait until clearly more patients have come."
    return Verdict("ONCE", None, False, measured, f"at most {MOST_VALUES} times", advice=advice)


def _requirement(release: Release, margin: int) -> str:
    again = "" if release.feature_map == VALUES else " with the same values or other features"
    return f"more than {margin} that differ, or the same patients{again}"


def _those(before: Earlier) -> str:
    return f"those released on {before.time[:10]} for the study {before.study[:12]}…"


def _own_folder(release: Release, before: Earlier) -> str:
    """Advice if the earlier release has another site's name: two hospitals, or one that runs under two names."""
    if before.site == release.site:
        return ""
    return (
        f"They were released as site {before.site!r}. Only where that is another hospital, whose patients have the "
        "same ids, on a machine that plays both: give each a state folder of its own (FDTR_STATE)."
    )
