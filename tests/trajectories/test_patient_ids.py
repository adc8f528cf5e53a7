"""Ids are hashed batch by batch, once, in one spelling."""

import hmac
import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdtr.trajectories import TableLayout, patient_ids, read
from fdtr.trajectories.keyed_hashes import WIDTH
from fdtr.trajectories.patient_ids import PatientIds, batches_of, plain_id

pytestmark = pytest.mark.quick
IDS = st.lists(st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(["é", "e\u0301", " a\x1c", "\ta "]))


@given(IDS, st.sampled_from([pa.string(), pa.large_string()]))
def test_hashes_are_those_of_ids_one_by_one(ids, kind):
    expected = b"".join(hmac.digest(b"key", plain_id(one), "sha256")[:WIDTH] for one in ids)
    for batches in (lambda: batches_of(pa.array(ids, kind)), lambda: (pa.array([one], kind) for one in ids)):
        of_batches = PatientIds(len(ids), batches)
        assert of_batches.hashes(b"key").read(0, WIDTH * len(ids)) == expected
        assert ([*of_batches], len(of_batches)) == (ids, len(ids))
    assert PatientIds.of(ids).hashes(b"key").read(0, WIDTH * len(ids)) == expected


def test_ids_are_hashed_once_for_each_key():
    reads = []

    def batches():
        reads.append(1)
        return batches_of(pa.array(["p", "q", "r"]))

    ids, steps = PatientIds(3, batches), np.array([2, 1, 1], np.uint16)
    first = ids.sorted_hashes(b"key", steps)
    assert ids.sorted_hashes(b"key", steps) is first
    assert (first.counts.tolist(), ids.sorted_hashes(b"key").counts.tolist()) == ([3, 1], [3])
    ids.hashes(b"key")
    assert len(reads) == 1
    other = ids.sorted_hashes(b"other", steps)
    assert {part.hashes for part in first.parts()}.isdisjoint(part.hashes for part in other.parts())
    assert len(reads) == 2


@given(st.sets(st.integers(0, 9)), st.sets(st.integers(0, 9)))
def test_ids_are_among_others_as_subsets_are(some, others):
    first, second = (PatientIds.of([str(one) for one in ids]) for ids in (some, others))
    assert first.are_among(second) == (some <= others)
    assert first.are_among(first)


def test_a_digest_is_that_of_the_patients_in_whatever_order():
    ids = [f"p{i}" for i in range(50)]
    digests = [PatientIds.of(some).digest() for some in (ids, ids[::-1], [f" {one}" for one in ids], ids[1:])]
    assert digests[0] == digests[1] == digests[2] != digests[3]


def test_a_large_table_is_taken_in_batches(monkeypatch):
    monkeypatch.setattr(patient_ids, "BATCH", 3)
    labels = pa.array([f"p{i}" for i in range(8)])
    assert [batch.to_pylist() for batch in batches_of(labels)] == [["p0", "p1", "p2"], ["p3", "p4", "p5"], ["p6", "p7"]]


def test_ids_and_lengths_follow_the_rows():
    table = pa.table(
        {
            "patient": ["a", "b", "b", "c", "c", "c"],
            "step": [0, 0, 1, 0, 1, 2],
            "action": [0] * 6,
            "reward": [0.0] * 6,
            "end": ["x", "", "x", "", "", ""],
        }
    )
    rows = read(table, TableLayout(3, (), (0,), 0, 1, ends={"x": 0.0}), "north")
    assert ([*rows.ids], rows.lengths.tolist()) == (["c", "b", "a"], [3, 2, 1])
    assert rows.ids is rows.ids
    some = rows.select(np.array([True, False, True]))
    assert ([*some.ids], some.lengths.tolist()) == (["c", "a"], [3, 1])


def test_no_hash_goes_to_another_process():
    rows = read(pa.table({"patient": ["a", "b"], "step": [0, 0], "action": [0, 0], "reward": [0.0, 1.0]}),
                TableLayout(1, (), (0,), 0, 1), "north")  # fmt: skip
    before, kept = len(pickle.dumps(rows.ids)), rows.ids.hashes(b"secret")
    sent = pickle.dumps(rows)
    assert len(pickle.dumps(rows.ids)) == before
    assert kept.read(0, WIDTH) not in sent
    assert b"secret" not in sent
    assert [*pickle.loads(sent).ids] == ["a", "b"]
