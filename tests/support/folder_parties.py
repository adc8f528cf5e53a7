"""A small study through a folder: a hub and sites that take their turns, each with a home of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.csv

from fdtr.errors import UnwritableFile
from fdtr.exchange.folder import site_session
from fdtr.exchange.folder.hub_steps import new_round, open_folder, take_hub_steps
from fdtr.exchange.folder.round_snapshot import RoundSnapshot, read_round
from fdtr.exchange.folder.round_status import StepsTaken
from fdtr.exchange.folder.site_session import join
from fdtr.exchange.folder.site_steps import take_site_steps
from fdtr.exchange.release import withdraw
from fdtr.exchange.site_state import use_state_folder
from fdtr.exchange.site_state.joined_folders import find_joined
from fdtr.exchange.site_state.ledger import site_ledger
from fdtr.policy import Policy
from fdtr.signing import HUB, Key
from fdtr.study import Study
from message_files import small_study
from random_tables import make_table

SITES = ("a", "b", "c")
EXACT = {"jitter": 0}
"""[disclosure] without weights, where processes that share no secret have to give the same messages."""


@cache
def key_of(name: str) -> Key:
    return Key.new()


def study_of(
    sites: tuple[str, ...] = SITES,
    *,
    masked: bool,
    roster: bool = True,
    disclosure: dict[str, Any] | None = None,
    **changes: Any,
) -> Study:
    """A study for a folder; `disclosure` holds further keys of [disclosure]."""
    rules = ({"secure_sum": True, "max_patients": 1000} if masked else {}) | (disclosure or {})
    keys = {name: key_of(name).public for name in (*sites, HUB)} if roster else {}
    study = small_study(disclosure=rules, **changes)
    return Study.model_validate({**study.model_dump(), "roster": keys})


@dataclass
class Parties:
    """Everything under `root`: the shared folder, and for each party a home, its table and its key."""

    root: Path
    sites: tuple[str, ...] = SITES

    @property
    def folder(self) -> Path:
        return self.root / "shared"

    @property
    def snapshot(self) -> RoundSnapshot:
        return read_round(self.folder)

    def set_up(self, study: Study, n: int = 120) -> Parties:
        self.root.mkdir(parents=True, exist_ok=True)
        study.save(self.root / "study.toml")
        table = make_table(study, dict.fromkeys(self.sites, n))
        for site in self.sites:
            own = table.filter(pa.compute.equal(table["site"], site))
            pa.csv.write_csv(own, self.root / f"{site}.csv")
        for name in (*self.sites, HUB):
            if study.roster and not (self.root / f"{name}.key").exists():
                key_of(name).save(self.root / f"{name}.key")
        return self

    def key(self, name: str) -> Key | None:
        return key_of(name) if (self.root / f"{name}.key").exists() else None

    @contextmanager
    def at_home(self, name: str) -> Iterator[None]:
        before = os.environ.get("FDTR_STATE")
        os.environ["FDTR_STATE"] = str(self.root / "homes" / name)
        try:
            with use_state_folder(self.root / "homes" / name):
                yield
        finally:
            if before is None:
                del os.environ["FDTR_STATE"]
            else:
                os.environ["FDTR_STATE"] = before

    def open(self) -> StepsTaken:
        with self.at_home(HUB):
            return open_folder(self.folder, self.root / "study.toml", self.key(HUB))

    def join(self, site: str) -> None:
        with self.at_home(site):
            key = self.root / f"{site}.key"
            join(self.folder, site, self.root / f"{site}.csv", key if key.exists() else None, self.key(site))

    def join_all(self) -> Parties:
        for site in self.sites:
            self.join(site)
        return self

    def hub(self, **options: Any) -> StepsTaken:
        with self.at_home(HUB):
            return take_hub_steps(self.folder, self.key(HUB), **options)

    def site(self, site: str, *, says: bool = True, out: Path | None = None) -> StepsTaken:
        with self.at_home(site):
            return take_site_steps(find_joined(self.folder, site), confirm=lambda _: says, key=self.key(site), out=out)

    def new_round(self) -> StepsTaken:
        with self.at_home(HUB):
            return new_round(self.folder, self.key(HUB))

    def prepare(self, site: str) -> None:
        """The site's turn while nothing can be put on the share: its message is recorded, and waits at home."""

        def unreachable(*_: object) -> bool:
            raise UnwritableFile("The share is not there.")

        with patch.object(site_session, "post", unreachable), suppress(UnwritableFile):
            self.site(site)

    def withdraw(self, site: str) -> None:
        """Take back whatever the site's ledger holds."""
        with self.at_home(site):
            for message in {record.message for record in site_ledger().recorded() if not record.withdrawn}:
                withdraw(message)

    def turn(self, what: str) -> StepsTaken | None:
        """One act of one party: "open", "join a", "a", "hub", "prepare a", "withdraw a", "new-round"."""
        act, _, site = what.partition(" ")
        alone = {"open": self.open, "new-round": self.new_round, HUB: self.hub}
        if act in alone:
            return alone[act]()
        if not site:
            return self.site(act)
        return {"join": self.join, "prepare": self.prepare, "withdraw": self.withdraw}[act](site)

    def all(self, *sites: str) -> list[StepsTaken]:
        return [self.site(site) for site in sites or self.sites]

    def count(self, *sites: str) -> Parties:
        """A secure sum until counts are signed for: in the sites' next turns they open them, and mask their sums."""
        if self.snapshot.counting is not None:
            self.all(*sites)
            self.all(*sites)
            self.hub(close=True)
            self.all(*sites)
        return self

    def play(self, *sites: str) -> None:
        """To the end, whatever was done before."""
        for _ in range(12):
            turns = self.all(*sites)
            if not any(turn.waits for turn in turns):
                break
            self.hub()
        assert not any(turn.waits for turn in turns)
        assert all(turn.policy is not None for turn in turns)

    def policy(self, site: str) -> Policy:
        path = self.site(site).policy
        assert path is not None
        return Policy.load(path)

    def home_of(self, site: str) -> Path:
        with self.at_home(site):
            return find_joined(self.folder, site).place
