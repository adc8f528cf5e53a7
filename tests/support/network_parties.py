"""A hub and its sites as processes of their own on loopback, with TLS and node keys; every one is ended by its pid."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from fdtr.exchange.flower.certificates import make_certificates
from fdtr.exchange.flower.node_keys import new_node_key
from fdtr.exchange.flower.processes import exits_with_parent
from fdtr.exchange.folder_layout import sites_of
from fdtr.policy import Policy
from fdtr.signing import HUB
from fdtr.study import Study
from folder_parties import SITES, Parties

TIMEOUT = 120.0
_TAKEN = itertools.count()


@dataclass
class Running:
    """A process of a party, and what it said so far."""

    process: subprocess.Popen[bytes]
    log: Path
    asked_to_end: bool = False

    @property
    def said(self) -> str:
        return self.log.read_text()

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def until_said(self, words: str, timeout: float = TIMEOUT) -> None:
        until(lambda: words in self.said, f"{words!r} in:\n{self.log}", timeout, lambda: self.ended and self.said)

    def result(self, timeout: float = TIMEOUT) -> int:
        return self.process.wait(timeout)

    def ask(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Ask it to end, once."""
        if not self.ended and not self.asked_to_end:
            self.asked_to_end = True
            self.process.send_signal(how)
            self.process.send_signal(signal.SIGCONT)

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        self.ask(how)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        if not self.ended:
            self.process.kill()
        self.process.wait()


def own_port() -> int:
    """A port that nobody has: services take theirs from higher ones, and tests that run beside this one from others."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = 10_000 + 1_000 * (worker % 5) + next(_TAKEN) % 1_000
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def _links(folder: Path) -> list[Path]:
    links = []
    for path in folder.glob("*"):
        with suppress(OSError):
            links.append(path.readlink())
    return links


def until(
    holds: Callable[[], object], what: str, timeout: float = TIMEOUT, hopeless: Callable[[], object] = lambda: None
) -> None:
    """Wait for something, and not longer than it can still come."""
    end = time.monotonic() + timeout
    while not holds():
        words = hopeless()
        if words:
            assert holds(), f"never {what}\n{words}"
            return
        assert time.monotonic() < end, f"not in {timeout:.0f} s: {what}"
        time.sleep(0.1)


@dataclass
class Network:
    """Everything under `root`; `host` is where nginx listens, `within` a command that runs a party elsewhere."""

    root: Path
    sites: tuple[str, ...] = SITES
    host: str = "127.0.0.1"
    within: dict[str, list[str]] = field(default_factory=dict)
    processes: list[Running] = field(default_factory=list)
    health: dict[str, int] = field(default_factory=dict)

    @property
    def parties(self) -> Parties:
        return Parties(self.root, self.sites)

    @property
    def address(self) -> str:
        """Where nginx listens."""
        return str(tomllib.loads((self.root / "hub.toml").read_text())["listen"])

    def set_up(self, study: Study, n: int = 120, nodes: tuple[str, ...] | None = None, **hub: Any) -> Network:
        """Keys, tables, certificates and settings of everybody; `nodes` may connect, all sites where it is None."""
        self.parties.set_up(study, n)
        self.parties.open()
        self.parties.folder.chmod(0o700)  # over the network it is the hub's own
        files = make_certificates(self.root / "tls", [self.host])
        lines = {site: new_node_key(self.root / f"{site}.node") for site in self.sites}
        address = f"{self.host}:{own_port()}"
        settings = {
            "folder": "shared",
            "key": "hub.key",
            "state": "hub-state",
            "listen": address,
            "address": address,
            "deadline": 60,
            "tls": {"certificate": str(files.certificate), "key": str(files.key)},
            "nodes": {site: lines[site] for site in nodes or self.sites},
            **hub,
        }
        (self.root / "hub.toml").write_text(tomli_w.dumps(settings))
        for site in self.sites:
            self.settle(site, address, study)
        return self

    def settle(self, site: str, address: str, study: Study, **changes: Any) -> None:
        """Write a site's settings."""
        self.health[site] = self.health.get(site) or own_port()
        settings = {
            "site": site,
            "hub": address,
            "authority": "tls/ca.crt",
            "node_key": f"{site}.node",
            "key": f"{site}.key",
            "state": f"{site}-state",
            "health_port": self.health[site],
            "studies": [
                {
                    "study": "study.toml",
                    "fingerprint": study.fingerprint,
                    "data": f"{site}.csv",
                    "policy": f"{site}.policy",
                }
            ],
            **changes,
        }
        (self.root / f"{site}.toml").write_text(tomli_w.dumps(settings))

    def command(self, name: str, *arguments: object) -> Running:
        """A process of a party."""
        log = self.root / f"{name}-{len(self.processes)}.log"
        state = str(self.root / "homes" / name)
        environment = {**os.environ, "COLUMNS": "300", "PYTHONUNBUFFERED": "1", "FDTR_STATE": state}
        command = [*self.within.get(name, []), sys.executable, "-m", "fdtr", *map(str, arguments)]
        command = exits_with_parent([str(shutil.which(command[0])), *command[1:]])  # none outlives the tests
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, env=environment, cwd=self.root, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        running = Running(process, log)
        self.processes.append(running)
        return running

    def begin(self, study: Study, *sites: str) -> dict[str, Running]:
        """Everything set up, the hub served, and these sites connected; all where none is named."""
        self.sites = sites_of(study.roster)
        self.set_up(study)
        self.serve_hub()
        return self.serve_sites(*sites)

    def serve_hub(self) -> Running:
        hub = self.command(HUB, "hub", "serve", "hub.toml")
        hub.until_said("Serving.")
        return hub

    def serve_site(self, site: str, *, wait: bool = True) -> Running:
        served = self.command(site, "site", "serve", f"{site}.toml")
        if wait:
            served.until_said("Connected to")
        return served

    def serve_sites(self, *sites: str) -> dict[str, Running]:
        started = {site: self.serve_site(site, wait=False) for site in sites or self.sites}
        for served in started.values():
            served.until_said("Connected to")
        return started

    def round(self, *arguments: object) -> Running:
        return self.command("round", "hub", "start-round", "hub.toml", "--json", *arguments)

    def finished(self, running: Running, code: int = 0, timeout: float = 180.0) -> dict[str, Any]:
        assert running.result(timeout) == code, running.said
        result: dict[str, Any] = json.loads(running.said)
        return result

    def policy(self, site: str) -> Policy:
        return Policy.load(self.root / f"{site}.policy")

    def healthy(self, site: str) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.health[site]}/health", timeout=10) as answer:
                health: dict[str, Any] = json.load(answer)
                return health
        except urllib.error.HTTPError as error:
            return dict(json.load(error))

    def left(self) -> list[str]:
        """What still runs of all that was started here."""
        return [words.replace(b"\0", b" ").decode() for words in self._processes().values()]

    def _processes(self) -> dict[Path, bytes]:
        """Commands of all that runs, and was started here as its command or its environment tells."""
        commands = {}
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (path / "cmdline").read_bytes()
                if words and f"{self.root}/".encode() in words + b"\0" + (path / "environ").read_bytes():
                    commands[path] = words
        return commands

    def listening(self) -> set[str]:
        """Every address at which something that was started here listens, as the kernel writes it, and no port."""
        sockets = {str(link) for path in self._processes() for link in _links(path / "fd") if "socket:" in str(link)}
        addresses = set()
        for table in ("tcp", "tcp6"):
            for line in (Path("/proc/net") / table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                    addresses.add(words[1].partition(":")[0])
        return addresses

    def end(self) -> None:
        """Everything that was started."""
        for running in self.processes:  # all at once, which is sooner than one by one
            running.ask()
        for running in reversed(self.processes):
            running.end()
        until(lambda: not self.left(), "everything that was started has ended", 30)
