"""The hub's service: Flower's server on loopback, the nodes that may connect, the proxy before it, and its rounds.

`fdtr hub serve` starts it. `fdtr hub start-round` finds the serving hub, and runs a round through its server.
"""

import json
import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import user_config_to_proto
from flwr.proto.control_pb2 import (
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
)
from flwr.proto.fab_pb2 import Fab
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from fdtr import __version__
from fdtr.container import write_atomically
from fdtr.errors import InvalidSettings, NotServed, ServiceError
from fdtr.exchange.atomic_files import locked
from fdtr.exchange.flower.certificates import ServerFiles, make_certificates, require_server_certificate
from fdtr.exchange.flower.health import reachable
from fdtr.exchange.flower.hub_app import JOB, JOBS
from fdtr.exchange.flower.network_settings import (
    LEAST_DEADLINE,
    MOST_DEADLINE,
    HubSettings,
    private_folder,
    require_owner,
    require_private,
    require_private_folder,
)
from fdtr.exchange.flower.node_keys import public_pem
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
from fdtr.exchange.remote.jobs import Job, Result
from fdtr.exchange.remote.requests import longest_to_hub, require_hub_key
from fdtr.signing import HUB, Key, require_own
from fdtr.study import Study

INSTALL_FLOWER = "pip install 'fdtr[flower]'"
_PATIENCE = 90.0
_INTERVAL = 0.2
_FINISHED = "finished"
_APP = f"""\
[project]
name = "fdtr-round"
version = "{__version__}"
dependencies = []

[tool.flwr.app]
publisher = "fdtr"

[tool.flwr.app.components]
serverapp = "fdtr.exchange.flower.hub_app:app"
clientapp = "fdtr.exchange.flower.site_worker:SiteApp"

[tool.flwr.app.config]
{JOB} = ""
"""
# Seconds between looks for the result, and between checks that its run and service still exist.
_RESULT_INTERVAL = 0.3
_RUN_INTERVAL = 3.0
_AFTER_RUN = 5.0  # seconds in which a result may still appear after its run has ended
_STOPPED_RUN = 60.0  # seconds in which the program of a stopped run may still hold the lock


class Control:
    """Client of the control interface of the server on `port`; `authority` signed the server's certificate."""

    def __init__(self, port: int, authority: Path) -> None:
        self._address = f"{LOOPBACK}:{port}"
        self._authority = authority

    def answers(self) -> bool:
        """Whether the server is up."""
        return reachable(self._address, self._authority)

    def register(self, nodes: Mapping[str, str]) -> dict[str, int]:
        """Let each site's node connect, by its public key. Returns node numbers, which hold until the server ends."""
        with self._client() as client:
            return {
                site: client.RegisterNode(RegisterNodeRequest(public_key=public_pem(line), name=site)).node_id
                for site, line in sorted(nodes.items())
            }

    def start(self, job: str) -> int:
        """Submit a run for the job with this name. Returns the run's number."""
        content, _ = build_fab_from_files({"pyproject.toml": _APP.encode()})
        request = StartRunRequest(fab=Fab(content=content), override_config=user_config_to_proto({JOB: job}))
        with self._client() as client:
            started = client.StartRun(request)
        if not started.HasField("run_id"):
            raise NotServed("The hub's server took no run. Its log says why.")
        return int(started.run_id)

    def running(self) -> list[int]:
        """Runs that have not finished."""
        with self._client() as client:
            runs = client.ListRuns(ListRunsRequest()).run_dict
        return [number for number, run in runs.items() if run.status.status != _FINISHED]

    def stop(self, run: int) -> None:
        """Stop a run."""
        with self._client() as client:
            client.StopRun(StopRunRequest(run_id=run))

    @contextmanager
    def _client(self) -> Iterator[ControlHttpClient]:
        client = ControlHttpClient.from_server_address(
            self._address,
            insecure=False,
            root_certificates=self._authority.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )
        with closing(client):
            try:
                yield client
            except httpx.HTTPStatusError as error:
                raise NotServed(f"The hub's server refused ({error.response.status_code}). Its log says why.") from None
            except httpx.HTTPError:
                raise NotServed("The hub's server does not answer. Run `fdtr hub serve` again.") from None


@dataclass(frozen=True)
class Serving:
    """A serving hub: its process id, its server's port on loopback, and the node number of each site."""

    pid: int
    port: int
    nodes: dict[str, int]

    @staticmethod
    def path(state: Path) -> Path:
        """The file by which `fdtr hub start-round` finds the serving hub."""
        return state / "serving.json"

    def save(self, state: Path) -> None:
        """Write the file."""
        write_atomically(self.path(state), json.dumps(asdict(self)).encode(), mode=0o600)

    @classmethod
    def find(cls, state: Path) -> "Serving":
        """The hub that serves with this state folder."""
        try:
            serving = cls(**json.loads(cls.path(state).read_bytes()))
            os.kill(serving.pid, 0)
        except (OSError, ValueError, TypeError):
            raise NotServed("No hub serves with these settings. Run `fdtr hub serve` first, and leave it on.") from None
        return serving

    def control(self, state: Path) -> Control:
        """Client of the hub's server."""
        return Control(self.port, ServerFiles.within(state / "tls").authority)


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


@dataclass(frozen=True)
class FinishedRound:
    """The result of a round, and the `file` that holds it."""

    result: Result
    file: Path


def start_round(
    settings: HubSettings, sites: tuple[str, ...] = (), min_sites: int | None = None, deadline: float | None = None
) -> FinishedRound:
    """Run a round with these sites, or with all, and wait for its result."""
    if deadline is not None and not LEAST_DEADLINE <= deadline <= MOST_DEADLINE:  # refuses NaN too
        raise InvalidSettings(
            f"The deadline is {deadline:g} seconds. Nothing was asked. Give {LEAST_DEADLINE} to {MOST_DEADLINE}."
        )
    bypass_proxy_for_loopback()
    require_owner(settings.state)
    serving = Serving.find(settings.state)
    unknown = sorted(set(sites) - set(serving.nodes))
    if unknown:
        raise InvalidSettings(f"{unknown[0]!r} has no node in the settings; there are {', '.join(serving.nodes)}.")
    name = secrets.token_hex(16)
    jobs = settings.state / "jobs"
    job = Job(
        folder=settings.folder,
        key=settings.key,
        result=jobs / f"{name}.result.json",
        nodes={site: node for site, node in serving.nodes.items() if not sites or site in sites},
        min_sites=min_sites or settings.min_sites,
        deadline=deadline or settings.deadline,
    )
    with locked(settings.state / "round.lock", "a round of this hub", patience=1.0):
        path = jobs / f"{name}.json"
        job.save(path)
        try:
            return FinishedRound(_run_job(serving, settings.state, name, job), job.result)
        finally:
            path.unlink(missing_ok=True)


def _run_job(serving: Serving, state: Path, name: str, job: Job) -> Result:
    control = serving.control(state)
    for abandoned in control.running():  # nobody waits for its result: that would need the lock that we hold
        control.stop(abandoned)
    with locked(job.lock, "a round of this hub that was stopped", patience=_STOPPED_RUN):
        pass  # the program of a stopped run works on for some seconds
    run = control.start(name)
    try:
        _wait_for_result(control, state, run, job.result)
    except BaseException:
        with suppress(NotServed):
            control.stop(run)
        raise
    return Result.from_json(job.result.read_bytes())


def _wait_for_result(control: Control, state: Path, run: int, result: Path) -> None:
    checked, ended = time.monotonic(), 0.0
    while not result.exists():
        time.sleep(_RESULT_INTERVAL)
        now = time.monotonic()
        if ended and now > ended + _AFTER_RUN:
            raise ServiceError(
                f"The round's program ended without a result. See {state}/logs/superlink.log. What sites posted is "
                "kept: the same command goes on from there."
            )
        if now < checked + _RUN_INTERVAL:
            continue
        checked = now
        try:
            Serving.find(state)
            ended = ended or (0.0 if run in control.running() else now)
        except NotServed:
            if result.exists():
                return
            raise NotServed(
                "The hub's service ended while the round ran. What sites posted is kept: run `fdtr hub serve` and the "
                "same command again."
            ) from None
