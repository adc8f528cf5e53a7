"""The file format: whole or refused, the same bytes for the same content."""

import errno
import os
import re
from pathlib import Path

import numpy as np
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from fdtr import container
from fdtr.container.encoding import FORMAT
from fdtr.errors import ForeignFile, PerhapsWritten, UnreadableFile, UnwritableFile

pytestmark = pytest.mark.quick
ARRAYS = {"b": np.arange(6.0).reshape(2, 3), "a": np.array([np.pi, -0.0, 5e-324])}


def write(path, **header):
    container.write(path, "thing", {"site": "a", **header}, ARRAYS)


def test_round_trip_is_bit_exact(tmp_path):
    write(tmp_path / "x")
    found = container.read(tmp_path / "x", "thing")
    assert found.header["site"] == "a"
    assert all(found.arrays[name].tobytes() == array.tobytes() for name, array in ARRAYS.items())


def test_the_page_of_messages_names_the_format_that_is_written():
    page = Path(__file__).parents[2] / "docs/messages.md"
    assert re.findall(r"`format` \((\d+)\)", page.read_text(encoding="utf-8")) == [str(FORMAT)]


def test_the_same_content_is_the_same_bytes(tmp_path):
    write(tmp_path / "x", other=1)
    write(tmp_path / "y", other=1)
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()


def test_every_cut_is_noticed(tmp_path):
    write(tmp_path / "x")
    content = (tmp_path / "x").read_bytes()
    for length in (0, 5, 50, len(content) - 1):
        (tmp_path / "cut").write_bytes(content[:length])
        with pytest.raises(UnreadableFile, match=r"truncated|damaged"):
            container.read(tmp_path / "cut", "thing")
    (tmp_path / "long").write_bytes(content + b"\0")
    with pytest.raises(UnreadableFile, match="its own header tells of"):
        container.read(tmp_path / "long", "thing")


def test_every_changed_byte_is_noticed(tmp_path):
    write(tmp_path / "x")
    content = bytearray((tmp_path / "x").read_bytes())
    for place in range(0, len(content), 7):
        changed = content.copy()
        changed[place] ^= 1
        (tmp_path / "changed").write_bytes(changed)
        with pytest.raises((UnreadableFile, ForeignFile)):
            container.read(tmp_path / "changed", "thing")


def test_other_files_are_refused_by_what_they_are(tmp_path):
    write(tmp_path / "x")
    with pytest.raises(ForeignFile, match="holds a thing, not a policy"):
        container.read(tmp_path / "x", "policy")
    with pytest.raises(UnreadableFile, match="does not exist"):
        container.read(tmp_path / "none", "thing")
    with pytest.raises(UnreadableFile, match="is a folder"):
        container.read(tmp_path, "thing")
    from safetensors.numpy import save_file

    save_file(ARRAYS, tmp_path / "foreign")
    with pytest.raises(ForeignFile, match="fdtr did not write"):
        container.read(tmp_path / "foreign", "thing")


def test_a_newer_format_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(container.encoding, "FORMAT", 5)
    write(tmp_path / "x")
    monkeypatch.undo()
    with pytest.raises(ForeignFile, match="format 5; this version of fdtr reads format 4"):
        container.read(tmp_path / "x", "thing")


def test_a_failed_write_leaves_nothing(tmp_path):
    with pytest.raises(UnwritableFile, match="could not be written"):
        write(tmp_path / "no" / "folder")
    (tmp_path / "taken").mkdir()
    with pytest.raises(UnwritableFile, match="could not be written"):
        write(tmp_path / "taken")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_private_files_are_for_their_owner(tmp_path):
    container.write(tmp_path / "x", "thing", {}, ARRAYS, private=True)
    assert (tmp_path / "x").stat().st_mode & 0o077 == 0


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)


@given(VALUES | st.dictionaries(st.text(st.characters(max_codepoint=127)), st.text(st.characters(max_codepoint=127))))
def test_the_fast_way_to_canonical_json_gives_the_bytes_of_rfc_8785(value):
    assert container.canonical_json(value) == rfc8785.dumps(value)


@pytest.mark.parametrize("renamed", [False, True], ids=["not renamed", "renamed, and the answer lost"])
def test_a_rename_that_fails_says_whether_the_file_may_be_there(tmp_path, monkeypatch, renamed):
    real = os.replace

    def fails(*names):
        if renamed:
            real(*names)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(UnwritableFile, match="may have been written or not" if renamed else "Nothing was") as told:
        write(tmp_path / "x")
    assert isinstance(told.value, PerhapsWritten) == renamed
    assert [path.name for path in tmp_path.iterdir()] == ["x"] * renamed
