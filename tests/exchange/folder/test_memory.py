"""Two secure sums are compared whatever study and sites are called, as long as the same numbers are in both."""

from __future__ import annotations

import pytest

from fdtr.errors import DifferencingRisk, OtherFormat
from fdtr.signing import HUB, Key
from fdtr.study import Study, set_roster
from folder_pairs import beside, opened
from folder_parties import Parties, key_of, study_of

pytestmark = pytest.mark.slow


def listed(parties: Parties) -> Parties:
    parties.open()
    parties.join_all().count()
    parties.all()
    parties.all()
    parties.hub()
    return parties


def test_the_same_sums_under_a_renamed_study_are_compared(tmp_path):
    first = opened(tmp_path / "one")
    renamed = study_of(tuple("abc"), masked=True, name="another name")
    parties = listed(beside(first, tmp_path / "two", tuple("abc"), renamed))
    for site in "abc":
        with pytest.raises(DifferencingRisk, match="fewer than 3 sites"):
            parties.site(site)
    assert parties.snapshot.summing.confirmed == {}
    assert parties.snapshot.summing.opened == {}


def test_the_same_sites_under_other_names_are_compared(tmp_path):
    first = opened(tmp_path / "one")
    names = {"a": "north", "b": "south", "c": "west"}
    roster = {new: key_of(old).public for old, new in names.items()} | {HUB: key_of(HUB).public}
    study = Study.model_validate({**first.snapshot.study.model_dump(), "roster": roster})
    parties = beside(first, tmp_path / "two", tuple(names.values()), study)
    for old, new in names.items():
        (parties.root / f"{new}.csv").write_text(
            (first.root / f"{old}.csv").read_text().replace(f'"{old}",', f'"{new}",')
        )
        (first.root / "homes" / new).symlink_to(first.root / "homes" / old)
        (parties.root / f"{new}.key").unlink()
        key_of(old).save(parties.root / f"{new}.key")
    parties.key = lambda name: key_of({new: old for old, new in names.items()}.get(name, name))
    listed(parties)
    for site in parties.sites:
        with pytest.raises(DifferencingRisk, match="fewer than 3 sites"):
            parties.site(site)
    assert parties.snapshot.summing.confirmed == {}


@pytest.mark.parametrize("replaced", ["d", "bcd"])
def test_the_same_sites_under_other_keys_are_compared(tmp_path, replaced):
    """By keys alone at least three sites differ, and the two sums would still show e."""
    parties = opened(tmp_path, "abcde")
    new = {site: Key.new() for site in replaced}
    parties.key = lambda name: new.get(name) or key_of(name)
    for site, key in new.items():
        (tmp_path / f"{site}.key").unlink()
        key.save(tmp_path / f"{site}.key")
    set_roster(parties.folder / "study.toml", {name: parties.key(name).public for name in (*"abcd", HUB)})
    parties.new_round()
    parties.sites = tuple("abcd")
    parties.join_all().count()
    parties.all()
    parties.all()
    parties.hub()
    for site in "abcd":
        with pytest.raises(DifferencingRisk, match="the same names and keys"):
            parties.site(site)
    assert parties.snapshot.summing.confirmed == {}
    assert parties.snapshot.summing.opened == {}


def test_another_study_of_other_patients_is_no_second_sum(tmp_path):
    first = opened(tmp_path / "one")
    other = study_of(tuple("abc"), masked=True, name="another")
    parties = beside(first, tmp_path / "two", tuple("abc"), other)
    for site in "abc":
        table = parties.root / f"{site}.csv"
        header, *lines = table.read_text().splitlines(keepends=True)
        table.write_text("".join([header, *(line.replace('"p', '"q') for line in lines[:200])]))
    parties.open()
    parties.join_all().play()
    assert parties.snapshot.checked_total().sites == ("a", "b", "c")


def test_what_an_earlier_version_remembers_is_not_forgotten(tmp_path):
    parties = Parties(tmp_path).set_up(study_of(masked=True))
    parties.open()
    parties.join_all()
    old = tmp_path / "homes/a/studies/some-study-a/history.json"
    old.parent.mkdir()
    old.write_text('{"rounds": []}')
    with pytest.raises(OtherFormat, match="by the names of their sites"):
        parties.site("a")
    assert parties.snapshot.keys == {}
    old.unlink()
    parties.play()
