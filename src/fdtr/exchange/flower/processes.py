"""Child processes of a service: started, watched, and ended by their process ids."""

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

from fdtr.errors import ServiceError

LOOPBACK = "127.0.0.1"
_NOT_EPHEMERAL = range(15000, 32000)
_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PATIENCE = 8.0
_TAIL_BYTES = 65536
_LARGE_LOG = 2**20
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_ROUTINE = re.compile("INFO|For more information")
_EXIT = re.compile(r"Exit Code: \d+$")  # Flower's reason is in the lines after it
_SECRET = ("FDTR_PASSPHRASE", "FDTR_PASSPHRASE_FILE", "FDTR_KEY", "PGPASSWORD")
# Asks the kernel for a signal when the parent ends, then becomes the program. 1 is PR_SET_PDEATHSIG of linux/prctl.h;
# it outlives exec. Run with `-I -c`, without this package, so that it starts at once.
_EXIT_WITH_PARENT = """\
import ctypes, os, signal, sys
if ctypes.CDLL(None).prctl(1, signal.SIGTERM) != 0 or os.getppid() != int(sys.argv[1]):
    sys.exit("The parent is gone already.")
os.execv(sys.argv[2], sys.argv[2:])
"""


def free_port() -> int:
    """A free port of loopback, outside the range that the system uses for outgoing connections."""
    while True:
        port = secrets.choice(_NOT_EPHEMERAL)
        with socket.socket() as candidate, suppress(OSError):
            candidate.bind((LOOPBACK, port))
            return port


def find_program(name: str, install: str) -> str:
    """The path of a program: beside this Python, on PATH, or in the system's sbin folders."""
    program = shutil.which(name, path=_path())
    if program is None:
        raise ServiceError(f"The program {name} is not installed here. Install it with: {install}")
    return program


def environment(*, passphrases: bool = False, **changes: str) -> dict[str, str]:
    """Environment of a child process: that of this process and `changes`, with Flower's telemetry off.

    Passphrases, passwords and the key's path are left out unless `passphrases` is set, and so are all FLWR_ variables.
    """
    hidden = () if passphrases else _SECRET
    inherited = {
        name: value for name, value in os.environ.items() if name not in hidden and not name.startswith("FLWR_")
    }
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "PYTHONUNBUFFERED": "1"}
    return {**inherited, "PATH": _path(), **_no_proxy(), **quiet, **changes}


def bypass_proxy_for_loopback() -> None:
    """Make this process connect to loopback directly, whatever proxy the environment names.

    A proxy runs on another machine: it would answer in place of the service's own programs, or block.
    """
    os.environ.update(_no_proxy())


def _path() -> str:
    return os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def _no_proxy() -> dict[str, str]:
    """Hosts that are reached without a proxy, loopback included. Where both spellings are set, lower case counts."""
    configured = os.environ.get("no_proxy", os.environ.get("NO_PROXY", ""))
    hosts = [host for host in map(str.strip, configured.split(",")) if host not in ("", LOOPBACK)]
    direct = "*" if "*" in hosts else ",".join([*hosts, LOOPBACK])
    return {"NO_PROXY": direct, "no_proxy": direct}


def exits_with_parent(command: Sequence[str]) -> list[str]:
    """A command that runs `command` and ends when this process ends, even if this process is killed."""
    return [sys.executable, "-I", "-c", _EXIT_WITH_PARENT, str(os.getpid()), *command]


@dataclass
class Child:
    """One program: its name, its process, and its log, in which its own output starts at byte `begins`."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    begins: int = 0

    def output(self) -> str:
        """The last part of what it wrote since it started."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(self.begins, self.log.stat().st_size - _TAIL_BYTES))
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    def last_words(self) -> str:
        """Why it ended, in quotes: Flower's reason for its exit code, or else its last line."""
        lines = [_COLOUR.sub("", line).strip() for line in self.output().splitlines()]
        relevant = [line for line in lines if line and not _ROUTINE.match(line)] or [line for line in lines if line]
        if not relevant:
            return "it said nothing."
        exits = [number for number, line in enumerate(relevant) if _EXIT.search(line)]
        reason = " ".join(relevant[exits[-1] + 1 :][:2]) if exits else ""
        return f"“{reason or relevant[-1]}”."


@dataclass
class Children:
    """All programs of a service. Leaving the `with` block ends them, the last started first."""

    logs: Path
    running: list[Child] = field(default_factory=list)

    def start(self, name: str, command: Sequence[str], variables: Mapping[str, str]) -> Child:
        """Start a program in a session of its own. It ends with this process, however this process ends."""
        self.logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        log = self.logs / f"{name}.log"
        _shorten(log)
        with log.open("ab") as out:
            begins = out.tell()
            process = subprocess.Popen(  # noqa: S603  the command is ours; no shell reads it
                exits_with_parent(command),
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        child = Child(name, process, log, begins)
        self.running.append(child)
        return child

    def ended(self) -> Child | None:
        """The first program that is no longer running."""
        return next((child for child in self.running if child.process.poll() is not None), None)

    def bound_logs(self) -> None:
        """Shorten large logs: what strangers can make a program write must not fill the disk."""
        for child in self.running:
            if _shorten(child.log):
                child.begins = 0

    def end(self, *children: Child) -> None:
        """End these children, or all: by SIGTERM, then by SIGKILL to everything in their session."""
        for child in reversed(children or tuple(self.running)):
            _end(child.process)
            self.running.remove(child)

    def __enter__(self) -> "Children":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


@cache
def exit_after_parent(grace: float = 5.0) -> None:
    """End this process `grace` seconds after its parent ended, even if it hangs.

    Flower's own programs try to sign off at a server that has ended, and some wait for it for ever.
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
    """An event that is set when this process is asked to stop: by SIGTERM, SIGINT or a closed terminal."""
    stop = threading.Event()
    previous = {number: signal.signal(number, lambda *_: stop.set()) for number in _STOP}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _shorten(log: Path) -> bool:
    """Copy a large log to a file beside it, and empty it. Returns whether that was done.

    The log is not renamed: its program continues to write to the file that it has open.
    """
    try:
        if log.stat().st_size <= _LARGE_LOG:
            return False
        with suppress(OSError):  # on a full disk the old lines are lost
            shutil.copyfile(log, log.with_suffix(".log.1"))
        os.truncate(log, 0)
    except OSError:
        return False
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)  # a stopped process would not handle SIGTERM
        with suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
