"""`fdtr hub serve`: Flower's server on loopback, the nodes that may connect to it, and the front before it."""

import json
import os
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from fdtr.container import write_atomically
from fdtr.errors import InvalidSettings, NotServed, ServiceEnded
from fdtr.exchange.flower.certificates import ServerFiles, make_certificates, require_shown
from fdtr.exchange.flower.control import Control
from fdtr.exchange.flower.front import Front, write_front
from fdtr.exchange.flower.hub_app import JOBS
from fdtr.exchange.flower.lengths import longest_request
from fdtr.exchange.flower.permissions import private_folder, require_owner, require_private, require_private_folder
from fdtr.exchange.flower.processes import (
    LOOPBACK,
    Children,
    environment,
    find_program,
    free_port,
    spare_loopback,
    stopping,
)
from fdtr.exchange.flower.settings import HubSettings
from fdtr.exchange.folder.board import read_study
from fdtr.exchange.folder.durable import locked
from fdtr.exchange.folder.parts import sites_of
from fdtr.exchange.remote.desk import require_carriable
from fdtr.signing import HUB, Key, require_own
from fdtr.study import Study

INSTALL_FLOWER = "pip install 'fdtr[flower]'"
_PATIENCE = 90.0
_TURN = 0.2


@dataclass(frozen=True)
class Serving:
    """A hub that serves: the process, its server's port on loopback, and the number of each site's node."""

    pid: int
    port: int
    nodes: dict[str, int]

    def save(self, state: Path) -> None:
        """For `fdtr hub start-round` to find."""
        write_atomically(_place(state), json.dumps(asdict(self)).encode(), mode=0o600)

    @classmethod
    def find(cls, state: Path) -> "Serving":
        """The hub that serves with this state."""
        try:
            found = cls(**json.loads(_place(state).read_bytes()))
            os.kill(found.pid, 0)
        except (OSError, ValueError, TypeError):
            raise NotServed("No hub serves with these settings. Run `fdtr hub serve` first, and leave it on.") from None
        return found

    def control(self, state: Path) -> Control:
        """To its server."""
        return Control(self.port, ServerFiles.within(state / "tls").authority)


def require_hub(settings: HubSettings, key: Key) -> Study:
    """Refuse settings that no federation could run with; the study that lies in the hub's folder."""
    require_private("The hub's key", settings.key)
    require_private("The certificate's key", settings.tls.key)
    require_shown(settings.tls.certificate, settings.tls.key, settings.address.rpartition(":")[0].strip("[]"))
    require_private_folder("The study's folder", settings.folder)
    study = read_study(settings.folder)
    require_carriable(study)
    require_own(key, HUB, study.roster)
    strangers = sorted(set(settings.nodes) - set(sites_of(study.roster)))
    if strangers:
        raise InvalidSettings(
            f"[nodes] has {strangers[0]!r}, which is not on the study's roster: {', '.join(sites_of(study.roster))}."
        )
    if len(settings.nodes) < settings.min_sites:
        raise InvalidSettings(
            f"[nodes] has {len(settings.nodes)} of the {settings.min_sites} sites that min_sites asks for: every round "
            "would be refused. Add the other sites' lines from `fdtr keys node`."
        )
    return study


def _require_free(listen: str) -> None:
    """Whoever holds the port would answer in the front's place."""
    host, port = _listening(listen)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        with socket.socket(found[0][0], socket.SOCK_STREAM) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as nginx does
            tried.bind(found[0][4])
    except OSError as error:
        raise InvalidSettings(f"listen: nobody can listen on {listen} now: {error.strerror}.") from None


def _listening(listen: str) -> tuple[str | None, int]:
    host, _, port = listen.rpartition(":")
    return (None if host == "*" else host.strip("[]")), int(port)


def serve_hub(settings: HubSettings, key: Key, tell: Callable[[HubSettings, Study], None]) -> None:
    """Serve until told to stop. `tell` is called once sites can connect."""
    spare_loopback()
    require_owner(settings.state)
    study = require_hub(settings, key)
    state = private_folder("The state folder", settings.state)
    lock = locked(state / "serve.lock", f"the service whose state is {state}", patience=1.0)
    with lock, stopping() as stop, Children(state / "logs") as children:
        _require_free(settings.listen)
        try:
            port = free_port()
            serving = Serving(os.getpid(), port, _start_server(children, settings, port))
            _start_front(children, settings, port, longest_request(study))
            serving.save(state)
            tell(settings, study)
            while not stop.wait(_TURN):
                _require_running(children)
                children.bound_logs()
        finally:
            _place(state).unlink(missing_ok=True)


def _start_server(children: Children, settings: HubSettings, port: int) -> dict[str, int]:
    state = settings.state
    shutil.rmtree(state / "tls", ignore_errors=True)
    files = make_certificates(state / "tls", [LOOPBACK, "localhost"], days=3650)
    jobs = private_folder("The folder of jobs", state / "jobs")
    database = _fresh_database(state)
    told = environment(passphrases=True, FLWR_HOME=str(state / "flower"), **{JOBS: str(jobs)})
    program = find_program("flower-superlink", INSTALL_FLOWER)
    command = [program, "--host", LOOPBACK, "--port", str(port), "--database", str(database)]
    command += ["--ssl-ca-certfile", str(files.authority), "--ssl-certfile", str(files.certificate)]
    command += ["--ssl-keyfile", str(files.key), "--enable-supernode-auth", "--disable-runtime-dependency-installation"]
    children.start("superlink", command, told)
    control = Control(port, files.authority)
    _wait_until(children, control.answers)
    return control.register(settings.nodes)


def _fresh_database(state: Path) -> Path:
    """Where Flower's server keeps its nodes and runs; what an earlier one kept is removed.

    It takes no public key a second time, not even of a node that was taken out: an edit of [nodes] could never be taken
    back. What has to last is in the study's folder.
    """
    for left in state.glob("superlink.db*"):  # SQLite keeps files of its own beside it
        left.unlink()
    return state / "superlink.db"


def _start_front(children: Children, settings: HubSettings, port: int, longest: int) -> None:
    authority = ServerFiles.within(settings.state / "tls").authority
    front = Front(settings.listen, settings.tls.certificate, settings.tls.key, port, authority, longest)
    children.start("front", write_front(settings.state / "front", front), environment())
    host, listening = _listening(settings.listen)
    known = LOOPBACK if host in (None, "0.0.0.0") else "::1" if host == "::" else str(host)  # noqa: S104
    _wait_until(children, lambda: _accepts(known, listening))


def _accepts(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def _wait_until(children: Children, ready: Callable[[], bool]) -> None:
    until = time.monotonic() + _PATIENCE
    while not ready():
        _require_running(children)
        if time.monotonic() > until:
            raise ServiceEnded(f"{children.running[-1].name} did not start in {_PATIENCE:.0f} s. See {children.logs}.")
        time.sleep(_TURN)
    _require_running(children)


def _require_running(children: Children) -> None:
    child = children.ended()
    if child is not None:
        raise ServiceEnded(
            f"{child.name} ended, and the hub with it: {child.last_words()} See {child.log}. No round is lost."
        )


def _place(state: Path) -> Path:
    return state / "serving.json"
