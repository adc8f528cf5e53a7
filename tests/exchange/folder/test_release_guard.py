"""The same numbers leave openly or within a secure sum, never both: else whoever stays out of one is shown."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from command_line import fdtr
from fdtr.errors import DifferencingRisk
from fdtr.exchange.folder.site_steps import take_site_steps
from fdtr.exchange.release import withdraw
from fdtr.exchange.site_state.joined_folders import find_joined
from fdtr.exchange.site_state.ledger import site_ledger
from fdtr.exchange.site_state.release_guard import history_locked, require_never_summed, save_history
from folder_pairs import beside, opened
from folder_parties import Parties, study_of

pytestmark = pytest.mark.slow


def open_clone(first: Parties, root: Path) -> Parties:
    """The same study under another name, without a secure sum, of all sites but d."""
    clone = beside(first, root, tuple("abc"), study_of(tuple("abc"), masked=False, name="clone"))
    clone.open()
    return clone.join_all()


def summarize(parties: Parties, site: str, study: Path) -> subprocess.CompletedProcess[str]:
    named = ["--site", site, "--key", str(parties.root / f"{site}.key"), "--out", str(parties.root / f"{site}.fdtr")]
    command = ["site", "summarize", str(study), str(parties.root / f"{site}.csv"), *named, "--yes"]
    return fdtr(*command, cwd=parties.root, FDTR_STATE=str(parties.root / "homes" / site))


def standing(parties: Parties, site: str) -> int:
    with parties.at_home(site):
        return sum(not one.withdrawn for one in site_ledger().recorded())


def test_an_open_clone_of_a_secure_sum_shows_nobody_who_stays_out_of_it(tmp_path):
    """Its total, taken from the secure sum, would be d's message, who agreed to nothing open."""
    clone = open_clone(opened(tmp_path / "one"), tmp_path / "two")
    for site in "abc":
        with pytest.raises(DifferencingRisk, match=r"that was opened, .* Nothing was released\."):
            clone.site(site)
        assert standing(clone, site) == 1
        assert not list(clone.home_of(site).glob("*/sums.fdtr"))
    assert clone.snapshot.sums == {}


def test_nor_does_a_message_in_a_file(tmp_path):
    clone = open_clone(opened(tmp_path / "one"), tmp_path / "two")
    told = summarize(clone, "a", clone.root / "study.toml")
    assert told.returncode == 1, told.stdout
    assert "part of a secure sum that was opened" in told.stderr
    assert not (clone.root / "a.fdtr").exists()
    assert standing(clone, "a") == 1


def test_a_sum_that_is_opened_while_a_person_is_asked_counts(tmp_path):
    first = Parties(tmp_path / "one", tuple("abcd")).set_up(study_of(tuple("abcd"), masked=True))
    first.open()
    first.join_all()
    clone = open_clone(first, tmp_path / "two")

    def agree(_: object) -> bool:
        first.play()
        return True

    for _ in range(2):
        with clone.at_home("a"), pytest.raises(DifferencingRisk, match="part of a secure sum that was opened"):
            take_site_steps(find_joined(clone.folder, "a"), confirm=agree, key=clone.key("a"))
    assert clone.snapshot.sums == {}


@pytest.mark.quick
def test_a_sum_that_is_being_opened_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setenv("FDTR_STATE", str(tmp_path))
    with ThreadPoolExecutor(1) as pool:
        with history_locked() as history:
            asked = pool.submit(require_never_summed, "numbers", recorded=True)
            wait([asked], timeout=0.15)  # long enough to get through, if nothing kept it waiting
            save_history(history.opened(bytes(32), "study", "numbers", {"a": "k1", "b": "k2", "c": "k3"}))
        with pytest.raises(DifferencingRisk, match="part of a secure sum that was opened"):
            asked.result()


def test_what_left_openly_is_not_hidden_in_vain(tmp_path):
    """The others would stand behind one site less than a secure sum promises them."""
    first = Parties(tmp_path / "one").set_up(study_of(masked=False))
    first.open()
    first.join_all().play()
    masked = beside(first, tmp_path / "two", first.sites, study_of(masked=True, name="masked"))
    masked.open()
    masked.join_all()
    with pytest.raises(DifferencingRisk, match=r"left openly before, .* without this site"):
        masked.site("a")
    assert masked.snapshot.keys == {}


def test_what_was_never_sent_is_hidden_as_ever(tmp_path):
    parties = Parties(tmp_path).set_up(study_of(masked=True))
    study_of(masked=False, name="another").save(tmp_path / "open.toml")
    parties.open()
    parties.join_all()
    assert summarize(parties, "a", tmp_path / "open.toml").returncode == 0
    with pytest.raises(DifferencingRisk, match="left openly before"):
        parties.site("a")
    with parties.at_home("a"):
        [written] = site_ledger().recorded()
        withdraw(written.message)
    parties.play()
    parties.new_round()
    parties.play()  # the same numbers again, within the same study


def test_no_mask_is_opened_once_the_numbers_left_openly(tmp_path):
    first = Parties(tmp_path / "one", tuple("abcd")).set_up(study_of(tuple("abcd"), masked=True))
    first.open()
    first.join_all().count()
    first.all()
    first.all()
    first.hub()
    first.site("a")  # signs the list; the others have not yet
    clone = open_clone(first, tmp_path / "two")
    clone.all()
    first.all("b", "c", "d")
    with pytest.raises(DifferencingRisk, match="left openly before"):
        first.site("a")
    assert "a" not in first.snapshot.summing.opened
