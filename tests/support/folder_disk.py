"""The disk under a study's folder and its parties' homes: looked at, put back, compared; and turns that go on."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass

import numpy as np

from fdtr.exchange.site_state.ledger import site_ledger
from fdtr.policy import Policy
from fdtr.signing import HUB
from folder_parties import SITES, Parties

OPEN_TURNS = (
    *("open", "join a", "join b", "join c"),
    *("prepare a", "withdraw a"),
    *("a", "b", "c", "hub", "a", "b", "c"),
)
_COUNTING = (
    *("a", "b", "c", "a", "b"),  # keys and masked counts; c, who comes last, does both at once
    *("hub", "a", "b", "c", "a", "b"),  # the list, signatures under it, openings; b, who opens last, masks its sums
)
MASKED_TURNS = (
    *("open", "join a", "join b", "join c"),
    *(*_COUNTING, "prepare a", "withdraw a", "new-round"),
    *(*_COUNTING, "a", "c"),  # masked sums
    *("hub", "a", "b", "c", "a", "b"),  # the list, signatures under it, openings
    *("hub", "a", "b", "c"),
)
_HALF = re.compile(r"\.[0-9a-f]{8}(\.part)?$")
Tree = dict[str, bytes | None]
"""Files by their paths, with what is in them; folders have None."""


@dataclass
class Disk:
    """What lies under `parties.root` in the folders of a turn: the shared one and its party's home."""

    parties: Parties

    def party(self, turn: str) -> str:
        return HUB if turn in ("open", "new-round", HUB) else turn.split()[-1]

    def look(self, turn: str | None = None) -> Tree:
        """As it is now; without a turn, at all homes."""
        root = self.parties.root
        paths = [path for folder in self._folders(turn) for path in (root / folder).rglob("*")]
        return {str(path.relative_to(root)): None if path.is_dir() else path.read_bytes() for path in sorted(paths)}

    def put_back(self, tree: Tree, turn: str | None = None) -> None:
        for folder in self._folders(turn):
            shutil.rmtree(self.parties.root / folder, ignore_errors=True)
        for name, content in tree.items():
            path = self.parties.root / name
            if content is None:
                path.mkdir(parents=True, exist_ok=True)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)

    def content(self, turn: str) -> dict[str, object]:
        """All files that a turn may touch, but for the ledger, whose secret and times are never the same."""
        files = self.look(turn).items()
        return {name: content for name, content in files if content is not None and "/ledger/" not in name}

    def recorded(self, turn: str) -> list[str]:
        """The messages in the ledger of the turn's party, and which of them were struck."""
        with self.parties.at_home(self.party(turn)):
            return sorted({f"{record.message} {record.withdrawn}" for record in site_ledger().recorded()})

    def condition(self, turn: str) -> int:
        """The same for two disks that differ only in the names of what is half-written."""
        files = ((_HALF.sub("", name), content) for name, content in self.content(turn).items())
        return hash((*files, *self.recorded(turn)))

    def require_whole(self) -> None:
        """Every file that others read is whole; what is half-written has a name that readers pass over."""
        folder = self.parties.folder
        if (folder / "rounds/1/hub/begun.fdtr").exists():
            assert self.parties.snapshot.faults == ()
        for path in folder.rglob("*"):
            assert path.is_dir() or path.stat().st_size or path.name.startswith(".")

    def _folders(self, turn: str | None) -> list[str]:
        return ["shared", f"homes/{self.party(turn)}" if turn else "homes"]


def require_same(parties: Parties, expected: dict[str, Policy]) -> None:
    """The policies of a round that was disturbed, to the last bit those of one that was not."""
    for site in SITES:
        policy = parties.policy(site)
        np.testing.assert_array_equal(policy.theta, expected[site].theta)
        np.testing.assert_array_equal(policy.precision, expected[site].precision)
