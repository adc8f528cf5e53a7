"""The programs that a service runs beside itself: started, watched, and ended by their process ids."""

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from fdtr.errors import MissingProgram
from fdtr.exchange.flower import leash

LOOPBACK = "127.0.0.1"
_NOT_EPHEMERAL = range(15000, 32000)
_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PATIENCE = 8.0
_TAIL_BYTES = 65536
_LARGE_LOG = 2**20
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_ROUTINE = re.compile("INFO|For more information")
_EXIT = re.compile(r"Exit Code: \d+$")  # Flower's reason is in the lines after it
_SECRET = ("FDTR_PASSPHRASE", "FDTR_PASSPHRASE_FILE", "FDTR_KEY")


def free_port() -> int:
    """A port of loopback that nobody listens on, and that the system gives to no outgoing connection meanwhile."""
    while True:
        port = secrets.choice(_NOT_EPHEMERAL)
        with socket.socket() as found, suppress(OSError):
            found.bind((LOOPBACK, port))
            return port


def find_program(name: str, install: str) -> str:
    """Where a program lies: beside this Python, on the path, or among the system's own."""
    found = shutil.which(name, path=_path())
    if found is None:
        raise MissingProgram(f"The program {name} is not installed here. Install it with: {install}")
    return found


def environment(*, passphrases: bool = False, **changes: str) -> dict[str, str]:
    """What a child is told: this process's environment and `changes`, Flower silent, no secret but asked-for ones."""
    hidden = () if passphrases else _SECRET
    kept = {name: value for name, value in os.environ.items() if name not in hidden and not name.startswith("FLWR_")}
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "PYTHONUNBUFFERED": "1"}
    return {**kept, "PATH": _path(), **_direct(), **quiet, **changes}


def spare_loopback() -> None:
    """Let nothing of this process go to loopback through a proxy, whatever the environment names.

    A proxy is not on this machine: it would answer for the service's own programs, or keep the service waiting.
    """
    os.environ.update(_direct())


def _path() -> str:
    return os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def _direct() -> dict[str, str]:
    """What is reached without a proxy, loopback too, in both spellings: where both are set, the lower one counts."""
    told = os.environ.get("no_proxy", os.environ.get("NO_PROXY", ""))
    hosts = [host for host in map(str.strip, told.split(",")) if host not in ("", LOOPBACK)]
    direct = "*" if "*" in hosts else ",".join([*hosts, LOOPBACK])
    return {"NO_PROXY": direct, "no_proxy": direct}


@dataclass
class Child:
    """One program: what a person calls it, and where its own words go, after those of earlier ones."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    begins: int = 0

    def words(self) -> str:
        """What it said since it began, the end of it."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(self.begins, self.log.stat().st_size - _TAIL_BYTES))
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    def last_words(self) -> str:
        """The last thing that it said; where Flower gave a reason, that, and not its goodbyes."""
        lines = [_COLOUR.sub("", line).strip() for line in self.words().splitlines()]
        telling = [line for line in lines if line and not _ROUTINE.match(line)] or [line for line in lines if line]
        if not telling:
            return "it said nothing."
        reasons = [number for number, line in enumerate(telling) if _EXIT.search(line)]
        told = " ".join(telling[reasons[-1] + 1 :][:2]) if reasons else ""
        return f"“{told or telling[-1]}”."


@dataclass
class Children:
    """Every program of a service. Leaving the `with` block ends them, last started first."""

    logs: Path
    running: list[Child] = field(default_factory=list)

    def start(self, name: str, command: Sequence[str], told: Mapping[str, str]) -> Child:
        """Start a program in a session of its own; it ends with this process, however this process ends."""
        self.logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        log = self.logs / f"{name}.log"
        leashed = [sys.executable, "-I", str(leash.__file__), str(os.getpid()), *command]
        _bound(log)
        with log.open("ab") as out:
            begins = out.tell()
            process = subprocess.Popen(  # noqa: S603  the command is ours; no shell reads it
                leashed, env=told, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        child = Child(name, process, log, begins)
        self.running.append(child)
        return child

    def ended(self) -> Child | None:
        """The first that is not running any more."""
        return next((child for child in self.running if child.process.poll() is not None), None)

    def bound_logs(self) -> None:
        """Move the words of those that said much; what strangers make them say must not fill the disk."""
        for child in self.running:
            if _bound(child.log):
                child.begins = 0

    def end(self, *meant: Child) -> None:
        """End these, or all: first asked, then, with whatever they started in their session, killed."""
        for child in reversed(meant or tuple(self.running)):
            _end(child.process)
            self.running.remove(child)

    def __enter__(self) -> "Children":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


@cache
def end_with_parent(grace: float = 5.0) -> None:
    """End this process soon after its parent did, whatever it hangs in.

    Flower's own programs try to say goodbye to a server that is gone, and some wait for it for ever.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        time.sleep(grace)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """An event that is set when somebody asks this process to stop: SIGTERM, SIGINT or a closed terminal."""
    stop = threading.Event()
    before = {asked: signal.signal(asked, lambda *_: stop.set()) for asked in _STOP}
    try:
        yield stop
    finally:
        for asked, handler in before.items():
            signal.signal(asked, handler)


def _bound(log: Path) -> bool:
    """Keep the last large part of a log beside it, and begin it anew; whether that was done.

    It is copied and emptied, not renamed: a program goes on writing at the end of the file that it has open.
    """
    try:
        if log.stat().st_size <= _LARGE_LOG:
            return False
        with suppress(OSError):  # on a full disk the log is let go
            shutil.copyfile(log, log.with_suffix(".log.1"))
        os.truncate(log, 0)
    except OSError:
        return False
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)  # one that was stopped could not obey
        with suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
