"""Temporary storage: what was written is read again, in memory or in a file without a name."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdtr.container import temporary
from fdtr.container.temporary import Column, Storage
from fdtr.errors import UnwritableFile

pytestmark = pytest.mark.quick


@given(st.lists(st.binary(max_size=40), max_size=12), st.integers(0, 200), st.data())
def test_bytes_are_read_as_they_were_appended(parts, most, data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(temporary, "IN_MEMORY", most)
        storage, whole = Storage(), b""
        for part in parts:
            storage.append(part)
            whole += part
            start, stop = sorted(data.draw(st.tuples(st.integers(0, len(whole)), st.integers(0, len(whole)))))
            assert storage.read(start, stop) == whole[start:stop]
        assert storage.size == len(whole)
        assert (storage._file is None) == (len(whole) <= most)
        storage.close()


@pytest.mark.parametrize("most", [10, 10_000])
def test_a_column_is_read_in_parts(monkeypatch, most):
    monkeypatch.setattr(temporary, "IN_MEMORY", most)
    column, numbers = Column(np.float64), np.random.default_rng(0).random(100)
    for start in range(0, 100, 30):
        column.append(numbers[start : start + 30])
        np.testing.assert_array_equal(column.read(slice(0, 20)), numbers[:20])
    column.append(numbers[:0])
    np.testing.assert_array_equal(column.read(slice(25, 100)), numbers[25:])
    places = np.array([0, 3, 4, 50, 99])
    np.testing.assert_array_equal(column.take(places), numbers[places])
    column.close()


def test_a_large_file_has_no_name(tmp_path, monkeypatch):
    monkeypatch.setattr(temporary, "IN_MEMORY", 0)
    monkeypatch.setattr(temporary.tempfile, "tempdir", str(tmp_path))
    storage = Storage()
    storage.append(b"0123456789")
    storage.append(b"abcdef")
    assert (storage.size, storage.read(8, 12), [*tmp_path.iterdir()]) == (16, b"89ab", [])


def test_a_full_disk_is_told(monkeypatch):
    monkeypatch.setattr(temporary, "IN_MEMORY", 10)
    with Path("/dev/full").open("wb", buffering=0) as full:
        monkeypatch.setattr(temporary.tempfile, "TemporaryFile", lambda: full)
        with pytest.raises(UnwritableFile, match=r"No space left on device\. Nothing was written.*TMPDIR"):
            Column(np.float64).append(np.zeros(100))


def test_a_folder_that_takes_no_file_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(temporary, "IN_MEMORY", 0)
    monkeypatch.setattr(temporary.tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(UnwritableFile, match="No such file or directory"):
        Storage().append(b"x")
