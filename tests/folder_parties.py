"""A small study through a folder: a hub and sites that take their turns, each with a home of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from fdtr.exchange.folder import Board, Turn, find_home, join, open_folder, read_board, take_hub_turn, take_site_turn
from fdtr.policy import Policy
from fdtr.signing import HUB, Key
from fdtr.study import Study
from letters import small_study
from worlds import make_table

SITES = ("a", "b", "c")


@cache
def key_of(name: str) -> Key:
    return Key.new()


def study_of(sites: tuple[str, ...] = SITES, *, masked: bool, roster: bool = True, **changes: Any) -> Study:
    asked: dict[str, Any] = {"secure_sum": True, "max_patients": 1000} if masked else {}
    keys = {name: key_of(name).public for name in (*sites, HUB)} if roster else {}
    study = small_study(disclosure=asked, **changes)
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
    def board(self) -> Board:
        return read_board(self.folder)

    def set_up(self, study: Study, n: int = 200) -> Parties:
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
            yield
        finally:
            if before is None:
                del os.environ["FDTR_STATE"]
            else:
                os.environ["FDTR_STATE"] = before

    def open(self) -> Turn:
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

    def hub(self, **options: Any) -> Turn:
        with self.at_home(HUB):
            return take_hub_turn(self.folder, self.key(HUB), **options)

    def site(self, site: str, *, says: bool = True) -> Turn:
        with self.at_home(site):
            return take_site_turn(find_home(self.folder, site), self.key(site), lambda _: says, self.policy_path(site))

    def again(self, site: str) -> Turn:
        """As `site`, with the policy where it is by default."""
        with self.at_home(site):
            return take_site_turn(find_home(self.folder, site), self.key(site), lambda _: True)

    def turn(self, name: str) -> Turn:
        return self.hub() if name == HUB else self.again(name)

    def all(self, *sites: str) -> list[Turn]:
        return [self.again(site) for site in sites or self.sites]

    def play(self, sites: tuple[str, ...] | None = None) -> None:
        """To the end, whatever was done before."""
        for _ in range(6):
            for site in sites or self.sites:
                self.again(site)
            self.hub()
        for site in sites or self.sites:
            assert self.again(site).waits == "", self.again(site)

    def policy_path(self, site: str) -> Path:
        return self.root / f"{site}.policy"

    def policy(self, site: str) -> Policy:
        path = self.again(site).policy
        assert path is not None
        return Policy.load(path)

    def home_of(self, site: str) -> Path:
        with self.at_home(site):
            return find_home(self.folder, site).place

    def copy_to(self, root: Path) -> Parties:
        """The same parties elsewhere: homes know where their folder lies, so that they are told anew."""
        if root.exists():
            shutil.rmtree(root)
        shutil.copytree(self.root, root)
        return Parties(root, self.sites)
