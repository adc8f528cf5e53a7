"""What a site remembers of its secure sums is missed when it is gone, and kept when two write at once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from fdtr.errors import LostState, MalformedPart
from fdtr.exchange.site_state.release_guard import history_locked, read_history, save_history
from fdtr.signing import HUB
from fdtr.study import set_roster
from folder_parties import Parties, key_of, study_of

pytestmark = pytest.mark.slow

EMPTY = b'{"secure_sums": []}'


def memory(parties: Parties, site: str) -> Path:
    return parties.root / "homes" / site / "secure-sums.json"


def begin_again_without_d(parties: Parties) -> None:
    set_roster(parties.folder / "study.toml", {name: key_of(name).public for name in (*"abc", HUB)})
    parties.new_round()
    parties.sites = tuple("abc")
    parties.join_all()


def test_no_second_sum_comes_about_where_the_first_was_forgotten(tmp_path):
    parties = Parties(tmp_path, tuple("abcd")).set_up(study_of(tuple("abcd"), masked=True))
    parties.open()
    parties.join_all()
    parties.all()
    early = memory(parties, "c").read_bytes()
    parties.play()
    whole = memory(parties, "a").read_bytes()
    begin_again_without_d(parties)
    memory(parties, "a").unlink()
    memory(parties, "b").write_bytes(EMPTY)
    memory(parties, "c").write_bytes(early)  # an old copy, from before the masks were opened
    for site in "abc":
        with pytest.raises(LostState, match=r"secure-sums\.json no longer holds .* Restore its newest copy"):
            parties.site(site)
    assert parties.snapshot.keys == {}
    memory(parties, "a").write_bytes(whole)
    assert parties.site("a").waits.startswith("Keys of b and c")


def test_a_memory_that_vanishes_within_a_round_is_missed(tmp_path):
    parties = Parties(tmp_path).set_up(study_of(masked=True))
    parties.open()
    parties.join_all().count()
    parties.all()
    parties.all()
    memory(parties, "a").unlink()
    parties.hub()
    with pytest.raises(LostState):
        parties.site("a")
    assert parties.snapshot.summing.confirmed == {}


def test_whoever_died_before_it_was_remembered_that_keys_were_made_goes_on(tmp_path):
    parties = Parties(tmp_path).set_up(study_of(masked=True))
    parties.open()
    parties.join_all()
    parties.site("a")
    memory(parties, "a").unlink()
    parties.play()


@pytest.mark.quick
@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"secure_sums": [["00"]]}', b'{"secure_sums": [["00", "", "", null]]}']
)
def test_a_damaged_memory_is_ones_own_to_restore(tmp_path, monkeypatch, content):
    monkeypatch.setenv("FDTR_STATE", str(tmp_path))
    (tmp_path / "secure-sums.json").write_bytes(content)
    with pytest.raises(MalformedPart, match=r"secure-sums\.json is damaged\. .* Restore its newest copy") as refused:
        read_history()
    assert "sender" not in str(refused.value)


def test_damaged_masks_are_ones_own_too(tmp_path):
    parties = Parties(tmp_path).set_up(study_of(masked=True))
    parties.open()
    parties.join_all()
    parties.site("a")
    [state] = parties.home_of("a").glob("*/state.json")
    state.write_bytes(b"{")
    with pytest.raises(MalformedPart, match=r"state\.json is damaged\. .* Wait for a new round") as refused:
        parties.site("a")
    assert "sender" not in str(refused.value)


@pytest.mark.quick
def test_of_two_studies_at_work_at_once_neither_forgets_the_others_round(tmp_path, monkeypatch):
    monkeypatch.setenv("FDTR_STATE", str(tmp_path))
    first, second = (bytes([number] * 32) for number in (1, 2))

    def remember_second() -> None:
        with history_locked() as history:
            save_history(history.begun(second))

    other = threading.Thread(target=remember_second)
    with history_locked() as history:
        other.start()
        other.join(0.15)  # long enough to get through, if nothing kept it waiting
        save_history(history.begun(first))
    other.join()
    assert [read_history().knows(context) for context in (first, second)] == [True, True]
