"""Two studies through folders of the same hospitals, each with one home for both."""

from __future__ import annotations

from pathlib import Path

from fdtr.study import Study
from folder_parties import Parties, study_of


def opened(root: Path, sites: str = "abcd") -> Parties:
    """A secure sum that came about."""
    parties = Parties(root, tuple(sites)).set_up(study_of(tuple(sites), masked=True))
    parties.open()
    parties.join_all().play()
    return parties


def beside(first: Parties, root: Path, sites: tuple[str, ...], study: Study) -> Parties:
    """Another folder of the same hospitals."""
    parties = Parties(root, sites).set_up(study)
    (root / "homes").symlink_to(first.root / "homes")
    return parties
