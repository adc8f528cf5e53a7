"""A site about to release its sums through a folder: it dies, cannot reach the share, or takes them back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fdtr.exchange.folder.site_steps import take_site_steps
from fdtr.exchange.folder_layout import MASKED, SUMS
from fdtr.exchange.release import withdraw
from fdtr.exchange.site_state.joined_folders import find_joined
from fdtr.exchange.site_state.ledger import site_ledger
from folder_parties import Parties, study_of

BOTH = pytest.mark.parametrize("masked", [False, True], ids=["open", "masked"])


def due(root: Path, *, masked: bool, **disclosure: object) -> Parties:
    """Site a is about to release: in a masked round the keys are there, and the others opened their counts."""
    parties = Parties(root).set_up(study_of(masked=masked, disclosure=disclosure))
    parties.open()
    parties.join_all()
    if masked and parties.snapshot.counting is not None:
        parties.count().all("b", "c")
    elif masked:
        parties.all()
    return parties


def crash(parties: Parties, site: str = "a") -> None:
    """The site dies when it is asked: its message is saved, and not recorded."""

    class Died(Exception):
        pass

    home, left = parties.home_of(site), parties.root / "left"

    def dies(_: object) -> bool:
        shutil.copytree(home, left)
        raise Died

    with parties.at_home(site), pytest.raises(Died):
        take_site_steps(find_joined(), confirm=dies, key=parties.key(site))
    shutil.rmtree(home)  # an exception tidies up, and a death does not
    left.rename(home)


def unreachable(parties: Parties, *, masked: bool) -> Path:
    """Nothing can be posted: what is in the way."""
    place = parties.folder / "rounds/1" / (MASKED if masked else SUMS)
    for file in place.glob("*"):  # c came last and masked at once
        file.rename(parties.root / file.name)
    if place.exists():
        place.rmdir()
    place.write_text("in the way")
    return place


def reachable(parties: Parties, place: Path) -> None:
    place.unlink()
    place.mkdir()
    for file in parties.root.glob("*.fdtr"):
        file.rename(place / file.name)


def at_home(parties: Parties, part: str, site: str = "a") -> list[Path]:
    return sorted(parties.home_of(site).glob(f"*/{part}.fdtr"))


def standing(parties: Parties, site: str = "a") -> list[str]:
    with parties.at_home(site):
        return [record.message for record in site_ledger().recorded() if not record.withdrawn]


def taken_back(parties: Parties, message: str, site: str = "a") -> int:
    with parties.at_home(site):
        return len(withdraw(message))


def shorter(table: Path, patients: int = 100) -> None:
    """Without the last patients."""
    lines = table.read_text().splitlines(keepends=True)
    table.write_text("".join(lines[: 1 + 2 * patients]))
