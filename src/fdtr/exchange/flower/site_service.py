"""`fdtr site serve`: Flower's supernode keeps the connection to the hub, and this package's worker answers."""

import os
import re
import secrets
import ssl
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import DeactivateNodeRequest
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fdtr.container import write_atomically
from fdtr.errors import FdtrError, InvalidSettings, OtherStudy, ServiceError
from fdtr.exchange.atomic_files import locked
from fdtr.exchange.flower import supernode
from fdtr.exchange.flower.certificates import require_authority
from fdtr.exchange.flower.health import Health, health_endpoint, reachable, resolved
from fdtr.exchange.flower.network_settings import (
    AcceptedStudy,
    SiteSettings,
    private_folder,
    require_owner,
    require_private,
)
from fdtr.exchange.flower.node_keys import node_fingerprint, public_line, settings_line
from fdtr.exchange.flower.processes import (
    LOOPBACK,
    Child,
    Children,
    bypass_proxy_for_loopback,
    environment,
    free_port,
    stopping,
)
from fdtr.exchange.flower.site_worker import SiteApp, Worker
from fdtr.exchange.remote.audit import Audit
from fdtr.exchange.remote.request_handler import RequestHandler, ServedStudy
from fdtr.exchange.remote.requests import longest_to_site, require_hub_key
from fdtr.policy import Policy
from fdtr.signing import Key, check_site_name, require_own
from fdtr.site.rows import read_trajectories
from fdtr.study import Study
from fdtr.trajectories.table_in_database import file_of

_INTERVAL = 0.5
_SECRET = "supernode.secret"  # noqa: S105  the name of a file
_NODE_NUMBER = re.compile(r"SuperNode ID: (\d+)")
_NOT_ACTIVATED = "Failed to activate SuperNode"
_RECONNECT_AFTER = 5.0
_HEALTH_INTERVAL = 5.0


def require_site(settings: SiteSettings, key: Key) -> list[ServedStudy]:
    """Refuse settings with which no federation could run. Returns the studies that this site answers for."""
    check_site_name(settings.site)
    require_private("The site's key", settings.key)
    require_private("The node key", settings.node_key)
    public_line(settings.node_key)
    if settings.authority is not None:
        require_authority(settings.authority)
    studies = [_served(accepted, settings.site, key) for accepted in settings.studies]
    fingerprints = [served.study.fingerprint for served in studies]
    if len(set(fingerprints)) < len(fingerprints):
        raise InvalidSettings("Two of [[studies]] are the same study. Keep one.")
    for served in studies:
        _require_own_policy_file(served, studies, settings)
    return studies


def _served(accepted: AcceptedStudy, site: str, key: Key) -> ServedStudy:
    study = Study.load(accepted.study)
    if study.fingerprint != accepted.fingerprint:
        raise OtherStudy(
            f"{accepted.study} is not the study that was agreed to: its fingerprint is {study.fingerprint}, the "
            f"settings say {accepted.fingerprint}. Compare with the hub by telephone before you change either."
        )
    require_hub_key(study)
    require_own(key, site, study.roster)
    file = file_of(accepted.source)
    if file is not None and not file.exists():
        raise InvalidSettings(f"The table {file} is not there.")
    if accepted.policy is not None:
        _require_writable(accepted.policy)
    read_trajectories(accepted.source, study, site)  # refuses a faulty table before the first round
    return ServedStudy(study, accepted.source, accepted.policy, accepted.releases, accepted.receive_only)


def _require_writable(policy: Path) -> None:
    """Refuse a policy file that could not be written, before the first round."""
    folder = policy.parent
    if policy.is_dir() or not folder.is_dir():
        raise InvalidSettings(f"policy: {policy} cannot be a file: {folder} is no folder, or it is a folder itself.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidSettings(f"policy: {policy} cannot be written: the folder does not let this user write.")


def _require_own_policy_file(served: ServedStudy, studies: list[ServedStudy], settings: SiteSettings) -> None:
    """Refuse a policy file that is used for anything else: every round replaces it without asking."""
    if served.out is None:
        return
    place, state = served.out.resolve(), settings.state.resolve()
    inputs = [settings.key, settings.node_key, settings.authority, *(file_of(other.data) for other in studies)]
    inputs += [accepted.study for accepted in settings.studies]
    if place.is_relative_to(state) or place in [path.resolve() for path in inputs if path is not None]:
        raise InvalidSettings(f"policy: {served.out} is a file of this service. Name another.")
    if [other.out and other.out.resolve() for other in studies].count(place) > 1:
        raise InvalidSettings(f"policy: two of [[studies]] would write {served.out}. Name one for each.")
    if not place.exists():
        return
    try:
        policy = Policy.load(place)
    except FdtrError:
        policy = None
    if policy is None or (policy.site, policy.fingerprint) != (settings.site, served.study.fingerprint):
        raise InvalidSettings(
            f"policy: {served.out} is there already, and is no policy of {settings.site} for the study "
            f"{served.study.name}. Every round would replace it. Name another, or move it away."
        )


def serve_site(settings: SiteSettings, key: Key, say: Callable[[str], None]) -> None:
    """Answer the hub until told to stop. `say` is given each sentence for the person at the site."""
    bypass_proxy_for_loopback()
    require_owner(settings.state)
    studies = require_site(settings, key)
    state = private_folder("The state folder", settings.state)
    with locked(state / "serve.lock", f"the service whose state is {state}", patience=1.0), stopping() as stop:
        handler = RequestHandler(settings.site, studies, key, Audit(settings.audit), state)
        secret, port = secrets.token_bytes(32), free_port()
        write_atomically(state / _SECRET, secret, mode=0o600)
        with Children(state / "logs") as children:
            longest = max(longest_to_site(served.study, settings.site) for served in studies)
            connection = HubConnection(settings, children, port, longest, say)
            health = Health(connection.connected)
            worker = Worker(f"{LOOPBACK}:{port}", secret, SiteApp(handler), health.answered)
            worker_thread = threading.Thread(target=worker.run, args=(stop,), daemon=True)
            worker_thread.start()
            with health_endpoint(health, settings.health_port):
                while not stop.wait(_INTERVAL):
                    connection.maintain()
                    if not worker_thread.is_alive():
                        raise ServiceError("The site's worker ended, and the service with it. Start it again.")


class HubConnection:
    """Flower's supernode, which is started again when it ends after it was once connected.

    It serves the worker at `port`, and reads at most `longest` bytes of an answer of the hub.
    """

    def __init__(
        self, settings: SiteSettings, children: Children, port: int, longest: int, say: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._children = children
        self._port = port
        self._longest = longest
        self._say = say
        self._connected = False
        self._ever_connected = False
        self._restart_at = 0.0
        self._health = (0.0, False)  # when the hub was last asked, and whether it answered
        self._require_hub_certificate()
        self._child = self._start()

    def maintain(self) -> None:
        """Notice a new connection, and restart a supernode that ended. Raises if the first connection failed."""
        if not self._connected and not self._restart_at:  # until the restart, the output is of the one that ended
            number = _NODE_NUMBER.search(self._child.output())
            if number:
                write_atomically(self._settings.state / "node", number[1].encode(), mode=0o600)
                self._connected = self._ever_connected = True
                self._say(f"Connected to {self._settings.hub} as {self._settings.site}. Waiting for what the hub asks.")
        self._children.bound_logs()
        if self._child.process.poll() is None:
            return
        self._connected = False
        if not self._ever_connected:
            raise ServiceError(self._why())
        if not self._restart_at:
            self._say("The connection to the hub ended; trying again.")
            self._restart_at = time.monotonic() + _RECONNECT_AFTER
        elif time.monotonic() > self._restart_at:
            self._children.end(self._child)
            self._child, self._restart_at = self._start(), 0.0

    def connected(self) -> bool:
        """Whether the hub accepted the node key and answers now. The hub is asked at most every few seconds."""
        when, answers = self._health
        if self._connected and time.monotonic() > when + _HEALTH_INTERVAL:
            try:
                answers = reachable(self._settings.hub, self._settings.authority)
            except ssl.SSLCertVerificationError:
                answers = False
            self._health = (time.monotonic(), answers)
        return self._connected and answers

    def _start(self) -> Child:
        settings, state = self._settings, self._settings.state
        self._sign_off()
        command = [sys.executable, "-P", "-m", supernode.__name__, "--superlink", settings.hub]
        command += ["--host", LOOPBACK, "--port", str(self._port)]
        command += ["--auth-supernode-private-key", str(settings.node_key), "--isolation", "process"]
        command += ["--superexec-auth-secret-file", str(state / _SECRET)]
        command += ["--root-certificates", str(settings.authority)] if settings.authority else []
        longest = {supernode.LONGEST: str(self._longest)}
        variables = environment(passphrases=False, FLWR_HOME=str(state / "flower"), **longest)
        return self._children.start("supernode", command, variables)

    def _sign_off(self) -> None:
        """Sign off the node of a supernode that was killed: for a minute the hub would take this one for a second."""
        settings = self._settings
        try:
            number = int((settings.state / "node").read_text())
            key = load_ssh_private_key(settings.node_key.read_bytes(), password=None)
            authority = settings.authority.read_bytes() if settings.authority else None
        except (OSError, ValueError):
            return  # never connected
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            return
        proof = NodeAuthHttpInterceptor(key, key.public_key())
        version = RuntimeVersionHttpInterceptor(component_name="SuperNode")
        connect = supernode.RestrictedFleetClient.from_server_address
        try:
            with connect(settings.hub, False, authority, [version, proof]) as client:
                client.DeactivateNode(DeactivateNodeRequest(node_id=number))
        except (httpx.HTTPError, ValueError):  # ValueError: the answer cannot be read
            return  # the node was offline already, or the hub does not answer now

    def _require_hub_certificate(self) -> None:
        hub, authority = self._settings.hub, self._settings.authority
        try:
            if not reachable(hub, authority):
                doubt = "" if resolved(hub) else ": this machine knows no host of that name"
                self._say(f"{hub} does not answer now{doubt}; trying on.")
        except ssl.SSLCertVerificationError:
            raise InvalidSettings(
                f"The certificate of {hub} is not one that {authority or 'an authority of this system'} vouches for. "
                "Nothing was sent. Compare the authority's fingerprint with the hub by telephone."
            ) from None

    def _why(self) -> str:
        line = public_line(self._settings.node_key)
        if _NOT_ACTIVATED in self._child.output():  # Flower gives no reason
            return (
                f"The hub does not take this node key ({node_fingerprint(line)}): it does not know it, or another "
                "machine is connected with it, or was until a minute ago. Serve this site on one machine, or give "
                f"the hub this line for its [nodes]:\n  {settings_line(self._settings.site, line)}"
            )
        return (
            f"The connection to {self._settings.hub} could not be opened: {self._child.last_words()} See "
            f"{self._child.log}."
        )
