"""Keyed hashes of patients: stored flat, sorted part by part, and compared as streams.

A hash is an HMAC-SHA256 cut to WIDTH bytes. Those of many patients lie in a temporary file. They are divided by their
leading bits into parts of at most about PART hashes, and each part is sorted in memory. So two releases are compared
with a part of each in memory.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fdtr.container.temporary import Storage

WIDTH = 16
"""Bytes of a patient's hash."""

PART = 1 << 18
"""About the most hashes that are sorted, compared or stored at a time."""

Counts = NDArray[np.int64]
Steps = Sequence[int] | NDArray[np.uint16]

_RECORD = np.dtype([("hash", ">u8", WIDTH // 8), ("steps", "<u2")])
_BLOCK = 64  # bytes: SHA-256 takes in so many at a time, and HMAC pads its key to them


def keyed_hash(key: bytes) -> Callable[[Iterable[bytes]], bytes]:
    """A function of texts: their HMAC-SHA256 under `key`, WIDTH bytes each, one after another.

    The two padded keys are hashed once, not again for each text as `hmac.digest` does.

    >>> import hmac
    >>> keyed_hash(b"key")([b"p1", b"p2"])[WIDTH:] == hmac.digest(b"key", b"p2", "sha256")[:WIDTH]
    True
    """
    padded = (key if len(key) <= _BLOCK else hashlib.sha256(key).digest()).ljust(_BLOCK, b"\0")
    inner, outer = (hashlib.sha256(bytes(byte ^ pad for byte in padded)) for pad in (0x36, 0x5C))
    copy_inner, copy_outer = inner.copy, outer.copy

    def digests(texts: Iterable[bytes]) -> Iterator[bytes]:
        for text in texts:
            within, around = copy_inner(), copy_outer()
            within.update(text)
            around.update(within.digest())
            yield around.digest()[:WIDTH]

    return lambda texts: b"".join(digests(texts))


@dataclass(frozen=True, eq=False, repr=False)
class HashPart:
    """Some sorted `hashes`, one after another, and the `steps` (k,) of each patient."""

    hashes: bytes
    steps: NDArray[np.uint16]

    def __len__(self) -> int:
        return len(self.steps)

    @cached_property
    def halves(self) -> NDArray[np.uint64]:
        """The hashes as two numbers each, (k, 2): they sort as the bytes do, and are searched many times faster."""
        return np.frombuffer(self.hashes, ">u8").reshape(-1, WIDTH // 8).astype(np.uint64)

    def cut(self, start: int, stop: int) -> "HashPart":
        """Some of them."""
        return HashPart(self.hashes[start * WIDTH : stop * WIDTH], self.steps[start:stop])


@dataclass(frozen=True, eq=False, repr=False)
class SortedHashes:
    """The sorted hashes of patients in `parts`; `counts` (h,) are the patients at each step that anybody has.

    Hashes with the same first half lie in one part.
    """

    counts: Counts
    parts: Callable[[], Iterator[HashPart]]

    @property
    def n(self) -> int:
        """Patients in all."""
        return int(self.counts[0])

    @classmethod
    def of(cls, parts: Callable[[], Iterator[HashPart]]) -> "SortedHashes":
        """Sorted hashes whose patients are not counted yet."""
        lengths = np.zeros(2, np.int64)
        for part in parts():
            lengths = _added(lengths, np.bincount(part.steps))
        return cls(_at_each_step(lengths), parts)


def sort_hashes(hashes: Storage, steps: Steps = (), most: int = PART) -> SortedHashes:
    """Sort the hashes of patients, about `most` at a time; of equal ones the last is kept.

    `steps` of each patient are in the order of the hashes; without them each patient has one.
    """
    n = hashes.size // WIDTH
    if len(steps) not in (0, n):
        raise ValueError(f"There are {n} patients, and steps of {len(steps)}.")
    bits = max(-(-n // most) - 1, 0).bit_length()
    blocks = (_block(hashes, steps, start, min(start + most, n)) for start in range(0, n, most))
    stored, ends, lengths = Storage(), [0], np.zeros(2, np.int64)
    for part in map(_sorted, _divided(blocks, bits) if bits else blocks):
        stored.append(_records(part).tobytes())
        ends.append(ends[-1] + len(part))
        lengths = _added(lengths, np.bincount(part.steps))
    return SortedHashes(_at_each_step(lengths), lambda: (_stored(stored, [each]) for each in pairwise(ends)))


def common_patients(first: SortedHashes, second: SortedHashes) -> Counts:
    """Patients whom both have at each step, (h,): as long as both have them."""
    lengths = np.zeros(min(len(first.counts), len(second.counts)) + 1, np.int64)
    for one, other in _side_by_side(filter(len, first.parts()), filter(len, second.parts())):
        lengths = _added(lengths, np.bincount(_common_steps(one, other)))
    return _at_each_step(lengths)


def _common_steps(one: HashPart, other: HashPart) -> NDArray[np.uint16]:
    """The smaller number of steps of each patient whom both have."""
    if one.hashes == other.hashes:
        return np.asarray(np.minimum(one.steps, other.steps))
    place = np.searchsorted(other.halves[:, 0], one.halves[:, 0])
    place[place == len(other)] = 0
    matched = (one.halves == other.halves[place]).all(axis=1)
    return np.asarray(np.minimum(one.steps[matched], other.steps[place[matched]]))


def _side_by_side(first: Iterator[HashPart], second: Iterator[HashPart]) -> Iterator[tuple[HashPart, HashPart]]:
    """Pieces of both that cover the same range of hashes; ranges that one of them has nothing in are left out."""
    one, other = next(first, None), next(second, None)
    while one is not None and other is not None:
        stops = [len(one), len(other)]
        if one.hashes != other.hashes:
            last = min(one.halves[-1, 0], other.halves[-1, 0])
            stops = [int(np.searchsorted(part.halves[:, 0], last, "right")) for part in (one, other)]
        if all(stops):
            yield one.cut(0, stops[0]), other.cut(0, stops[1])
        one = one.cut(stops[0], len(one)) if stops[0] < len(one) else next(first, None)
        other = other.cut(stops[1], len(other)) if stops[1] < len(other) else next(second, None)


def _divided(blocks: Iterable[HashPart], bits: int) -> Iterator[HashPart]:
    """The hashes of all blocks by their leading bits, each part in the order of rows."""
    stored, bounds, start = Storage(), [], 0
    for block in blocks:
        leading = (block.halves[:, 0] >> np.uint64(64 - bits)).astype(np.uint16)
        stored.append(_records(block)[np.argsort(leading, kind="stable")].tobytes())
        bounds.append([start, *(start + np.bincount(leading, minlength=1 << bits).cumsum()).tolist()])
        start += len(block)
    for number in range(1 << bits):
        yield _stored(stored, [(each[number], each[number + 1]) for each in bounds])


def _sorted(part: HashPart) -> HashPart:
    """A part in the order of its hashes; of equal ones the last is kept."""
    order = np.argsort(part.halves[:, 0])
    first = part.halves[order, 0]
    if (first[1:] == first[:-1]).any():
        order = np.lexsort((part.halves[:, 1], part.halves[:, 0]))
        halves = part.halves[order]
        order = order[np.append((halves[1:] != halves[:-1]).any(axis=1), True)]
    return _of_records(_records(part)[order])


def _block(hashes: Storage, steps: Steps, start: int, stop: int) -> HashPart:
    held = np.asarray(steps[start:stop], np.uint16) if len(steps) else np.ones(stop - start, np.uint16)
    return HashPart(hashes.read(start * WIDTH, stop * WIDTH), held)


def _stored(storage: Storage, pieces: Iterable[tuple[int, int]]) -> HashPart:
    width = _RECORD.itemsize
    return _of_records(np.frombuffer(b"".join(storage.read(a * width, b * width) for a, b in pieces), _RECORD))


def _records(part: HashPart) -> NDArray[np.void]:
    records = np.empty(len(part), _RECORD)
    records["hash"] = np.frombuffer(part.hashes, ">u8").reshape(-1, WIDTH // 8)
    records["steps"] = part.steps
    return records


def _of_records(records: NDArray[np.void]) -> HashPart:
    return HashPart(records["hash"].tobytes(), records["steps"].astype(np.uint16))


def _added(first: Counts, second: Counts) -> Counts:
    """The sum of two counts, the shorter of which ends in zeros."""
    both: Counts = np.zeros(max(len(first), len(second)), np.int64)
    both[: len(first)] += first
    both[: len(second)] += second
    return both


def _at_each_step(lengths: Counts) -> Counts:
    """Patients at each step, from how many have 0, 1, 2, … steps.

    >>> _at_each_step(np.array([0, 5, 0, 2]))
    array([7, 2, 2])
    """
    counts: Counts = lengths[:0:-1].cumsum()[::-1]
    return counts
