"""`fdtr hub serve`: Flower's server on loopback, the nodes that may connect to it, and the reverse proxy before it."""

import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path

from fdtr.errors import InvalidSettings, ServiceError
from fdtr.exchange.atomic_files import locked
from fdtr.exchange.flower.certificates import ServerFiles, make_certificates, require_server_certificate
from fdtr.exchange.flower.hub_app import JOBS
from fdtr.exchange.flower.hub_control import Control, Serving
from fdtr.exchange.flower.network_settings import (
    HubSettings,
    private_folder,
    require_owner,
    require_private,
    require_private_folder,
)
from fdtr.exchange.flower.processes import (
    LOOPBACK,
    Children,
    bypass_proxy_for_loopback,
    environment,
    find_program,
    free_port,
    stopping,
)
from fdtr.exchange.flower.reverse_proxy import ReverseProxy, write_configuration
from fdtr.exchange.folder.round_snapshot import read_study
from fdtr.exchange.folder_layout import sites_of
from fdtr.exchange.remote.requests import longest_to_hub, require_hub_key
from fdtr.signing import HUB, Key, require_own
from fdtr.study import Study

INSTALL_FLOWER = "pip install 'fdtr[flower]'"
_PATIENCE = 90.0
_INTERVAL = 0.2


def require_hub(settings: HubSettings, key: Key) -> Study:
    """Refuse settings with which no federation could run. Returns the study in the hub's folder."""
    require_private("The hub's key", settings.key)
    require_private("The certificate's key", settings.tls.key)
    host = settings.address.rpartition(":")[0].strip("[]")
    require_server_certificate(settings.tls.certificate, settings.tls.key, host)
    require_private_folder("The study's folder", settings.folder)
    study = read_study(settings.folder)
    require_hub_key(study)
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
    """Refuse a port that is taken: another program would answer in place of the proxy."""
    host, port = _listening(listen)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family, socket.SOCK_STREAM) as candidate:
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as nginx does
            candidate.bind(address)
    except OSError as error:
        raise InvalidSettings(f"listen: nobody can listen on {listen} now: {error.strerror}.") from None


def _listening(listen: str) -> tuple[str | None, int]:
    host, _, port = listen.rpartition(":")
    return (None if host == "*" else host.strip("[]")), int(port)


def serve_hub(settings: HubSettings, key: Key, ready: Callable[[HubSettings, Study], None]) -> None:
    """Serve until told to stop. `ready` is called once sites can connect."""
    bypass_proxy_for_loopback()
    require_owner(settings.state)
    study = require_hub(settings, key)
    state = private_folder("The state folder", settings.state)
    lock = locked(state / "serve.lock", f"the service whose state is {state}", patience=1.0)
    with lock, stopping() as stop, Children(state / "logs") as children:
        _require_free(settings.listen)
        try:
            port = free_port()
            serving = Serving(os.getpid(), port, _start_server(children, settings, port))
            _start_proxy(children, settings, port, longest_to_hub(study))
            serving.save(state)
            ready(settings, study)
            while not stop.wait(_INTERVAL):
                _require_running(children)
                children.bound_logs()
        finally:
            Serving.path(state).unlink(missing_ok=True)


def _start_server(children: Children, settings: HubSettings, port: int) -> dict[str, int]:
    state = settings.state
    shutil.rmtree(state / "tls", ignore_errors=True)
    files = make_certificates(state / "tls", [LOOPBACK, "localhost"], days=3650)
    jobs = private_folder("The folder of jobs", state / "jobs")
    database = _fresh_database(state)
    variables = environment(passphrases=True, FLWR_HOME=str(state / "flower"), **{JOBS: str(jobs)})
    program = find_program("flower-superlink", INSTALL_FLOWER)
    command = [program, "--host", LOOPBACK, "--port", str(port), "--database", str(database)]
    command += ["--ssl-ca-certfile", str(files.authority), "--ssl-certfile", str(files.certificate)]
    command += ["--ssl-keyfile", str(files.key), "--enable-supernode-auth", "--disable-runtime-dependency-installation"]
    children.start("superlink", command, variables)
    control = Control(port, files.authority)
    _wait_until(children, control.answers)
    return control.register(settings.nodes)


def _fresh_database(state: Path) -> Path:
    """The path for the database of Flower's server; the database of an earlier start is removed.

    Flower registers no public key twice, not even that of a node that was removed: a change of [nodes] could never be
    undone. What has to last is in the study's folder.
    """
    for old in state.glob("superlink.db*"):  # SQLite keeps files of its own beside it
        old.unlink()
    return state / "superlink.db"


def _start_proxy(children: Children, settings: HubSettings, port: int, longest: int) -> None:
    authority = ServerFiles.within(settings.state / "tls").authority
    proxy = ReverseProxy(settings.listen, settings.tls.certificate, settings.tls.key, port, authority, longest)
    children.start("front", write_configuration(settings.state / "front", proxy), environment())
    host, listening = _listening(settings.listen)
    reached_at = LOOPBACK if host in (None, "0.0.0.0") else "::1" if host == "::" else str(host)  # noqa: S104
    _wait_until(children, lambda: _accepts(reached_at, listening))


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
            raise ServiceError(f"{children.running[-1].name} did not start in {_PATIENCE:.0f} s. See {children.logs}.")
        time.sleep(_INTERVAL)
    _require_running(children)


def _require_running(children: Children) -> None:
    child = children.ended()
    if child is not None:
        raise ServiceError(
            f"{child.name} ended, and the hub with it: {child.last_words()} See {child.log}. No round is lost."
        )
