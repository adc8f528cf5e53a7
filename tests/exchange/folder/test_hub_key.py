"""What the hub's key is for: who may say which sites are in a sum."""

from __future__ import annotations

from pathlib import Path

import pytest

from fdtr.errors import NoStudyFolder
from fdtr.exchange.atomic_files import post
from fdtr.exchange.folder import round_snapshot
from fdtr.exchange.folder.masked_phase import MaskedPhase
from fdtr.exchange.folder.round_files import seal_part
from fdtr.exchange.folder.round_snapshot import RoundSnapshot
from fdtr.masking import SurvivorList
from fdtr.signing import HUB
from fdtr.study import Study
from folder_parties import Parties, study_of

pytestmark = pytest.mark.slow

FIVE = tuple("abcde")


def without_hub(study: Study) -> Study:
    return Study.model_validate({**study.model_dump(), "roster": {s: k for s, k in study.roster.items() if s != HUB}})


def masked_by_all(root: Path, study: Study) -> Parties:
    parties = Parties(root, FIVE).set_up(study)
    if HUB not in study.roster:
        (root / "hub.key").unlink()
    parties.open()
    parties.join_all()
    parties.all()
    parties.all()
    return parties


def outsiders_list(found: RoundSnapshot, phase: MaskedPhase) -> None:
    """Three of five, as the list of survivors, by somebody who can write into the folder and has no key."""
    listed, part = SurvivorList(tuple((site, phase.masked[site].digest(phase.round)) for site in "abc")), phase.names[1]
    post(found.path(part, HUB), seal_part(part, HUB, listed, found.within, None))


def test_without_it_an_outsider_chooses_whom_a_secure_sum_is_over(tmp_path, monkeypatch):
    monkeypatch.setattr(round_snapshot, "require_keys", lambda _: None)
    monkeypatch.setattr("fdtr.exchange.folder.hub_steps.require_keys", lambda _: None)
    parties = masked_by_all(tmp_path, without_hub(study_of(FIVE, masked=True)))
    for phase in ("counting", "summing"):
        outsiders_list(parties.snapshot, getattr(parties.snapshot, phase))
        for _ in range(3):
            parties.all("a", "b", "c")
    assert parties.snapshot.add_up(("a", "b", "c")).sites == ("a", "b", "c")


@pytest.mark.parametrize(("roster", "lacks"), [(False, r"no \[roster\]"), (True, "no key of the hub")])
def test_so_a_secure_sum_without_it_is_refused_by_hub_and_sites(tmp_path, roster, lacks):
    study = without_hub(study_of(masked=True, roster=roster))
    parties = Parties(tmp_path).set_up(study)
    with pytest.raises(NoStudyFolder, match=f"secure sum and has {lacks}"):
        parties.open()
    assert not parties.folder.exists()
    parties.folder.mkdir()
    study.save(parties.folder / "study.toml")
    with pytest.raises(NoStudyFolder, match=f"secure sum and has {lacks}"):
        parties.join("a")


def test_with_it_an_outsiders_list_counts_as_absent(tmp_path, monkeypatch):
    parties = masked_by_all(tmp_path, study_of(FIVE, masked=True))
    with monkeypatch.context() as patched:
        patched.setattr("fdtr.exchange.envelopes.require_own", lambda *_: None)  # an outsider's program is their own
        outsiders_list(parties.snapshot, parties.snapshot.counting)
    [fault] = parties.snapshot.faults
    assert "counted.fdtr is not signed, and the roster has a key of the hub" in fault
    assert parties.snapshot.counting.survivors is None
    assert "hub's list of survivors" in parties.site("a").waits
