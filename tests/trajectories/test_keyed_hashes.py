"""Keyed hashes are sorted and compared part by part as sets would be, in memory and in a file."""

import hashlib
import hmac
from collections.abc import Iterator
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdtr.container import temporary
from fdtr.container.temporary import Storage
from fdtr.trajectories.keyed_hashes import (
    WIDTH,
    HashPart,
    SortedHashes,
    common_patients,
    keyed_hash,
    sort_hashes,
)

pytestmark = pytest.mark.quick
KEY = b"key"
TABLES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 5)), max_size=80)
"""Patients, of whom some come twice, and the steps of each."""


def hash_of(patient: int) -> bytes:
    return hashlib.sha256(bytes([patient])).digest()[:WIDTH]


def sorted_of(table, most, in_memory) -> SortedHashes:
    with patch.object(temporary, "IN_MEMORY", 1 << 30 if in_memory else 0):
        storage = Storage()
        for patient, _ in table:
            storage.append(hash_of(patient))
        return sort_hashes(storage, [steps for _, steps in table], most)


def content(hashes: SortedHashes) -> dict[bytes, int]:
    parts = [*hashes.parts()]
    joined = b"".join(part.hashes for part in parts)
    steps = [int(each) for part in parts for each in part.steps]
    return dict(zip((joined[i : i + WIDTH] for i in range(0, len(joined), WIDTH)), steps, strict=True))


@given(TABLES, st.integers(1, 100), st.booleans())
def test_sorting_by_parts_is_sorting(table, most, in_memory):
    """Of a patient who comes twice the last row counts."""
    expected = dict(sorted((hash_of(patient), steps) for patient, steps in dict(table).items()))
    found = sorted_of(table, most, in_memory)
    assert [*content(found).items()] == [*expected.items()]
    assert found.counts[0] == found.n == len(expected)
    assert found.counts.tolist() == [
        sum(steps > step for steps in expected.values()) for step in range(max([1, *expected.values()]))
    ]
    assert SortedHashes.of(found.parts).counts.tolist() == found.counts.tolist()


@given(TABLES, TABLES, st.integers(1, 100), st.integers(1, 100), st.booleans())
def test_patients_whom_both_have_are_those_of_sets(first, second, most, most_of_other, in_memory):
    """Whatever parts both lie in: a patient is in both at a step if they have that many steps in both."""
    found = common_patients(sorted_of(first, most, in_memory), sorted_of(second, most_of_other, True))
    mine, theirs = dict(first), dict(second)
    both = [min(steps, theirs[patient]) for patient, steps in mine.items() if patient in theirs]
    horizon = min(max([1, *mine.values()]), max([1, *theirs.values()]))
    assert found.tolist() == [sum(steps > step for steps in both) for step in range(horizon)]


def test_steps_of_other_patients_are_refused():
    storage = Storage()
    storage.append(hash_of(1))
    with pytest.raises(ValueError, match="1 patients, and steps of 2"):
        sort_hashes(storage, [1, 2])


@given(st.binary(max_size=200), st.lists(st.binary(max_size=100)))
def test_a_keyed_hash_is_an_hmac(key, texts):
    assert keyed_hash(key)(texts) == b"".join(hmac.digest(key, text, "sha256")[:WIDTH] for text in texts)


def test_patients_are_sorted_by_the_bytes_of_their_hashes():
    """Also those whose first halves are the same."""
    hashes = [b"\xff" * 16, b"\0" * 16, b"\0" * 15 + b"\1", b"\x7f" + b"\xff" * 15, b"\x80" + b"\0" * 15]
    storage = Storage()
    storage.append(b"".join(hashes))
    [part] = sort_hashes(storage, range(1, 6)).parts()
    order = sorted(range(5), key=lambda i: hashes[i])
    assert part.hashes == b"".join(hashes[i] for i in order)
    assert part.steps.tolist() == [i + 1 for i in order]


def test_only_a_part_of_two_releases_is_read_at_a_time():
    """Two streams are read in step: neither is a part ahead of what the other needs."""
    taken = {"first": 0, "second": 0}

    def counted(name: str, hashes: SortedHashes) -> SortedHashes:
        def parts() -> Iterator[HashPart]:
            for part in hashes.parts():
                taken[name] += 1
                assert abs(taken["first"] - taken["second"]) <= 1
                yield part

        return SortedHashes(hashes.counts, parts)

    rng = np.random.default_rng(0)
    tables = [[(int(patient), 1) for patient in rng.permutation(256)[:200]] for _ in range(2)]
    first, second = (sorted_of(table, 30, True) for table in tables)
    both = {patient for patient, _ in tables[0]} & {patient for patient, _ in tables[1]}
    assert common_patients(counted("first", first), counted("second", second)).tolist() == [len(both)]
    assert taken["first"] == taken["second"] == 8
