"""Control a serving hub: register nodes at its SuperLink over loopback, and run a round (`fdtr hub start-round`)."""

import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
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
from fdtr.exchange.flower.certificates import ServerFiles
from fdtr.exchange.flower.health import reachable
from fdtr.exchange.flower.hub_app import JOB
from fdtr.exchange.flower.network_settings import LEAST_DEADLINE, MOST_DEADLINE, HubSettings, require_owner
from fdtr.exchange.flower.node_keys import public_pem
from fdtr.exchange.flower.processes import LOOPBACK, bypass_proxy_for_loopback
from fdtr.exchange.remote.jobs import Job, Result

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
            return FinishedRound(_run(serving, settings.state, name, job), job.result)
        finally:
            path.unlink(missing_ok=True)


def _run(serving: Serving, state: Path, name: str, job: Job) -> Result:
    control = serving.control(state)
    for abandoned in control.running():  # nobody waits for its result: that would need the lock that we hold
        control.stop(abandoned)
    with locked(job.lock, "a round of this hub that was stopped", patience=_STOPPED_RUN):
        pass  # the program of a stopped run works on for some seconds
    run = control.start(name)
    try:
        _wait(serving, state, run, job.result)
    except BaseException:
        with suppress(NotServed):
            control.stop(run)
        raise
    return Result.from_json(job.result.read_bytes())


def _wait(serving: Serving, state: Path, run: int, result: Path) -> None:
    control, checked, ended = serving.control(state), time.monotonic(), 0.0
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
