"""The hub's own talk with its SuperLink, over loopback: which nodes may connect, and which run to run."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
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
from fdtr.errors import NotServed
from fdtr.exchange.flower.hub_app import JOB
from fdtr.exchange.flower.node_keys import public_pem
from fdtr.exchange.flower.processes import LOOPBACK
from fdtr.exchange.flower.reaching import reachable

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
clientapp = "fdtr.exchange.flower.site_app:SiteApp"

[tool.flwr.app.config]
{JOB} = ""
"""


class Control:
    """What the hub may do with the server on `port`; `authority` signed the server's certificate."""

    def __init__(self, port: int, authority: Path) -> None:
        self._address = f"{LOOPBACK}:{port}"
        self._authority = authority

    def answers(self) -> bool:
        """Whether the server is up."""
        return reachable(self._address, self._authority)

    def register(self, nodes: Mapping[str, str]) -> dict[str, int]:
        """Let these nodes connect, site by public key; the number by which each is known until the server ends."""
        with self._client() as client:
            return {
                site: client.RegisterNode(RegisterNodeRequest(public_key=public_pem(line), name=site)).node_id
                for site, line in sorted(nodes.items())
            }

    def start(self, job: str) -> int:
        """Submit a run that does a job; its number."""
        content, _ = build_fab_from_files({"pyproject.toml": _APP.encode()})
        asked = StartRunRequest(fab=Fab(content=content), override_config=user_config_to_proto({JOB: job}))
        with self._client() as client:
            started = client.StartRun(asked)
        if not started.HasField("run_id"):
            raise NotServed("The hub's server took no run. Its log says why.")
        return int(started.run_id)

    def running(self) -> list[int]:
        """Runs that did not finish."""
        with self._client() as client:
            found = client.ListRuns(ListRunsRequest()).run_dict
        return [number for number, run in found.items() if run.status.status != _FINISHED]

    def stop(self, run: int) -> None:
        """End a run."""
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
