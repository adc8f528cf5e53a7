"""The log of a site: no line of it is changed, removed or moved without being found."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fdtr.errors import BrokenChain, UnreadableFile, UnwritableFile
from fdtr.exchange.atomic_files import locked
from fdtr.exchange.remote import audit
from fdtr.exchange.remote.audit import FIRST, Audit, verify


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> list[bytes]:
    path = tmp_path_factory.mktemp("log") / "audit.jsonl"
    for number in range(6):
        Audit(path).append({"outcome": "done", "phase": f"phase {number}"})
    return path.read_bytes().splitlines(keepends=True)


def is_found(path, content: bytes) -> bool:
    """Whether the log is no longer taken for a whole one."""
    path.write_bytes(content)
    try:
        return verify(path).unended
    except BrokenChain:
        return True


any_file = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=200)


@pytest.mark.slow
@any_file
@given(data=st.data())
def test_any_changed_byte_is_found(tmp_path, written, data):
    content = bytearray(b"".join(written))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    assert is_found(tmp_path / "log", bytes(content))


@any_file
@given(data=st.data())
def test_any_removed_or_repeated_line_is_found(tmp_path, written, data):
    at = data.draw(st.integers(0, len(written) - 2))  # the end is for a noted head to find
    assert is_found(tmp_path / "log", b"".join(written[:at] + written[at + 1 :]))
    assert is_found(tmp_path / "log", b"".join([*written[: at + 1], *written[at:]]))


@any_file
@given(data=st.data())
def test_any_two_lines_that_change_places_are_found(tmp_path, written, data):
    a, b = data.draw(st.lists(st.integers(0, len(written) - 1), min_size=2, max_size=2, unique=True))
    moved = list(written)
    moved[a], moved[b] = moved[b], moved[a]
    assert is_found(tmp_path / "log", b"".join(moved))


@pytest.mark.slow
@any_file
@given(data=st.data())
def test_any_cut_in_the_middle_is_found(tmp_path, written, data):
    whole = b"".join(written)
    start = data.draw(st.integers(0, len(whole) - 2))
    end = data.draw(st.integers(start + 1, len(whole) - 1))
    assert is_found(tmp_path / "log", whole[:start] + whole[end:])


def test_a_cut_end_is_found_by_a_head_that_was_noted(tmp_path, written):
    path = tmp_path / "log"
    path.write_bytes(b"".join(written))
    head = verify(path).head
    path.write_bytes(b"".join(written[:-1]))
    assert verify(path).lines == len(written) - 1
    with pytest.raises(BrokenChain, match="cut off"):
        verify(path, noted=head)
    path.write_bytes(b"".join(written))
    Audit(path).append({"outcome": "done"})
    assert verify(path, noted=head).lines == len(written) + 1


@pytest.mark.slow
@any_file
@given(data=st.data())
def test_a_torn_line_is_noted_and_the_chain_goes_on(tmp_path, monkeypatch, written, data):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    path = tmp_path / "log"
    whole = b"".join(written)
    keep = data.draw(st.integers(0, len(whole) - 1))
    log = Audit(path)

    def append() -> None:
        log.head.unlink(missing_ok=True)  # it notes lines of other examples
        log.append({"outcome": "done"})

    path.write_bytes(whole[:keep])
    before = verify(path)
    append()
    after = verify(path)
    assert path.read_bytes().startswith(whole[:keep])  # nothing is taken away
    assert not after.unended
    assert after.torn == before.torn == (0 if keep == 0 or 10 in whole[keep - 1 : keep + 1] else 1)
    assert after.lines == before.lines + 1 + after.torn
    for cut in (1, 7, len(path.read_bytes()) - keep - 2):  # a crash while the torn line is noted
        path.write_bytes(path.read_bytes()[: max(len(path.read_bytes()) - cut, keep)])
        append()
        assert not verify(path).unended


def test_a_torn_line_that_is_changed_afterwards_is_found(tmp_path, written):
    path = tmp_path / "log"
    path.write_bytes(b"".join(written)[:-9])
    Audit(path).append({"outcome": "done"})
    content = path.read_bytes()
    assert is_found(path, content.replace(b"phase 5", b"phase 6"))
    assert is_found(path, b"".join(line for line in content.splitlines(keepends=True) if b"phase 5" not in line))


def test_nothing_is_written_after_a_line_that_was_changed(tmp_path, written):
    path = tmp_path / "log"
    for changed in range(1, 4):  # the last ones, each with its end
        content = b"".join([*written[:-changed], *(line.replace(b"done", b"none") for line in written[-changed:])])
        path.write_bytes(content)
        with pytest.raises(BrokenChain, match="it was changed"):
            verify(path)
        with pytest.raises(BrokenChain, match="ends with a line that was changed"):
            Audit(path).append({"outcome": "done"})
        assert path.read_bytes() == content


def test_several_changed_lines_are_not_taken_for_one_that_a_crash_left(tmp_path, written):
    path = tmp_path / "log"
    path.write_bytes(b"".join([*written[:-2], *(line.replace(b"done", b"none") for line in written[-2:])])[:-1])
    with pytest.raises(BrokenChain, match=f"line {len(written) - 1}: it was changed"):
        verify(path)
    with pytest.raises(BrokenChain):
        Audit(path).append({"outcome": "done"})


def test_a_line_says_nothing_of_a_crash_that_was_not(tmp_path, written):
    path = tmp_path / "log"
    path.write_bytes(b"".join(written)[:-9])
    Audit(path).append({"outcome": "done"})
    note = path.read_bytes().splitlines()[-2]
    path.write_bytes(b"".join(written[:-1]) + note[note.rfind(b'{"before"') :] + b"\n")
    with pytest.raises(BrokenChain, match="not what a crash left"):
        verify(path)


def test_what_a_line_says_and_who_may_read_it(tmp_path):
    path = tmp_path / "log"
    head = Audit(path).append({"outcome": "done"})
    [line] = [json.loads(line) for line in path.read_text().splitlines()]
    assert (line["outcome"], line["line"], line["before"], line["seal"]) == ("done", 1, FIRST, head)
    assert verify(path).head == head
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_long_logs_are_continued_from_their_end(tmp_path):
    path = tmp_path / "log"
    for _ in range(3):
        Audit(path).append({"what": "x" * 100_000})
    assert verify(path).lines == 3


def test_a_second_writer_waits_for_the_first(tmp_path):
    path = tmp_path / "log"
    second = threading.Thread(target=Audit(path).append, args=({"outcome": "done"},))
    with locked(path.with_name(".log.lock"), "the first"):
        second.start()
        second.join(0.3)
        assert second.is_alive()
        assert not path.exists()
    second.join(10)
    assert verify(path).lines == 1


def test_a_line_is_on_disk_before_its_writer_goes_on(tmp_path, monkeypatch):
    path, on_disk, sync = tmp_path / "log", [], os.fsync

    def fsync(descriptor: int) -> None:
        sync(descriptor)
        if Path(f"/proc/self/fd/{descriptor}").readlink() == path:
            on_disk.append(path.read_bytes())

    monkeypatch.setattr(os, "fsync", fsync)
    for _ in range(2):
        Audit(path).append({"outcome": "done"})
        assert on_disk[-1:] == [path.read_bytes()]


def test_a_full_disk_leaves_the_log_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "log"
    Audit(path).append({"outcome": "done"})
    before, write = path.read_bytes(), os.write

    def full(descriptor: int, content: bytes) -> int:
        write(descriptor, content[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(UnwritableFile, match="No space left"):
        Audit(path).append({"outcome": "done"})
    assert path.read_bytes() == before


def test_a_log_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UnreadableFile, match="could not be read"):
        verify(tmp_path / "none")


def test_a_log_that_was_taken_away_or_cut_is_not_gone_on_with(tmp_path):
    log = Audit(tmp_path / "log")
    for _ in range(3):
        log.append({"outcome": "done"})
    whole = log.path.read_bytes()
    first, second, _ = whole.splitlines(keepends=True)
    for cut in (None, b"", first, first + second):
        log.path.write_bytes(cut) if cut is not None else log.path.unlink()
        for refused in (lambda: log.append({"outcome": "done"}), log.require_whole):
            with pytest.raises(BrokenChain, match="taken away, or lines were cut off"):
                refused()
        assert (log.path.read_bytes() if log.path.exists() else None) == cut
    log.path.write_bytes(whole)
    log.append({"outcome": "done"})
    log.require_whole()
    log.path.rename(tmp_path / "kept"), log.head.rename(tmp_path / "kept.head")
    log.append({"outcome": "done"})
    assert verify(log.path).lines == 1


def test_a_crash_between_a_line_and_its_note_is_gone_on_with(tmp_path):
    log = Audit(tmp_path / "log")
    log.append({"outcome": "done"})
    noted = log.head.read_bytes()
    log.append({"outcome": "done"})
    log.head.write_bytes(noted)
    log.require_whole()
    log.append({"outcome": "done"})
    assert log.head.read_text().strip() == verify(log.path).head
    assert verify(log.path).lost_heads == 0


def test_a_lost_note_is_written_again_and_that_is_said(tmp_path):
    log = Audit(tmp_path / "log")
    log.append({"outcome": "done"})
    log.head.unlink()  # a crash may have come before it
    log.append({"outcome": "done"})
    assert verify(log.path).lost_heads == 0
    log.head.unlink()
    assert verify(log.path).lost_heads == 1
    log.append({"outcome": "done"})
    found = verify(log.path)
    assert (found.lines, found.lost_heads) == (3, 1)
    assert log.head.read_text().strip() == found.head
    assert json.loads(log.path.read_bytes().splitlines()[2])["lost_head"] is True


def test_a_note_that_cannot_be_written_takes_its_line_back(tmp_path, monkeypatch):
    log = Audit(tmp_path / "log")
    log.append({"outcome": "done"})
    before = log.path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise UnwritableFile("No space left on device.")

    monkeypatch.setattr(audit, "write_atomically", full)
    with pytest.raises(UnwritableFile):
        log.append({"outcome": "done"})
    assert log.path.read_bytes() == before
