"""A site's link to the hub: Flower's supernode, kept running, and told apart from one that was killed before."""

import re
import ssl
import sys
import time
from collections.abc import Callable

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import DeactivateNodeRequest
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fdtr.container import write_atomically
from fdtr.errors import InvalidSettings, ServiceEnded
from fdtr.exchange.flower import supernode
from fdtr.exchange.flower.node_keys import node_fingerprint, public_line, settings_line
from fdtr.exchange.flower.processes import LOOPBACK, Child, Children, environment
from fdtr.exchange.flower.reaching import reachable, resolved
from fdtr.exchange.flower.settings import SiteSettings

SECRET = "supernode.secret"  # noqa: S105  the name of a file
_NUMBER = re.compile(r"SuperNode ID: (\d+)")
_NOT_TAKEN = "Failed to activate SuperNode"
_BEFORE_AGAIN = 5.0
_FRESH = 5.0
Say = Callable[[str], None]


class Link:
    """The supernode: started, and started again when it ends after it was once connected.

    It serves the worker at `port`, and reads at most `longest` bytes of an answer of the hub.
    """

    def __init__(self, settings: SiteSettings, children: Children, port: int, longest: int, say: Say) -> None:
        self._settings = settings
        self._children = children
        self._port = port
        self._longest = longest
        self._say = say
        self._connected = False
        self._ever = False
        self._again = 0.0
        self._seen = (0.0, False)
        self._require_hub_is_itself()
        self._child = self._start()

    def keep(self) -> None:
        """Look after it; a first connection that fails is refused with its reason."""
        if not self._connected and not self._again:  # while it waits, the words are of the one that ended
            found = _NUMBER.search(self._child.words())
            if found:
                write_atomically(self._settings.state / "node", found[1].encode(), mode=0o600)
                self._connected = self._ever = True
                self._say(f"Connected to {self._settings.hub} as {self._settings.site}. Waiting for what the hub asks.")
        self._children.bound_logs()
        if self._child.process.poll() is None:
            return
        self._connected = False
        if not self._ever:
            raise ServiceEnded(self._why())
        if not self._again:
            self._say("The connection to the hub ended; trying again.")
            self._again = time.monotonic() + _BEFORE_AGAIN
        elif time.monotonic() > self._again:
            self._children.end(self._child)
            self._child, self._again = self._start(), 0.0

    def connected(self) -> bool:
        """Whether the hub took our node key, and answers now; asked at most every few seconds."""
        when, found = self._seen
        if self._connected and time.monotonic() > when + _FRESH:
            try:
                found = reachable(self._settings.hub, self._settings.authority)
            except ssl.SSLCertVerificationError:
                found = False
            self._seen = (time.monotonic(), found)
        return self._connected and found

    def _start(self) -> Child:
        settings, state = self._settings, self._settings.state
        self._leave()
        command = [sys.executable, "-P", "-m", supernode.__name__, "--superlink", settings.hub]
        command += ["--host", LOOPBACK, "--port", str(self._port)]
        command += ["--auth-supernode-private-key", str(settings.node_key), "--isolation", "process"]
        command += ["--superexec-auth-secret-file", str(state / SECRET)]
        command += ["--root-certificates", str(settings.authority)] if settings.authority else []
        most = {supernode.LONGEST: str(self._longest)}
        told = environment(passphrases=False, FLWR_HOME=str(state / "flower"), **most)
        return self._children.start("supernode", command, told)

    def _leave(self) -> None:
        """Sign off the node of a supernode that was killed: for a minute the hub would take us for a second one."""
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
        try:
            client = supernode.StraightFleetClient.from_server_address(settings.hub, False, authority, [version, proof])
            with client:
                client.DeactivateNode(DeactivateNodeRequest(node_id=number))
        except (httpx.HTTPError, ValueError):  # the latter where an answer cannot be read
            return  # it was offline already, or the hub does not answer now

    def _require_hub_is_itself(self) -> None:
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
        if _NOT_TAKEN in self._child.words():  # Flower does not tell why
            return (
                f"The hub does not take this node key ({node_fingerprint(line)}): it does not know it, or another "
                "machine is connected with it, or was until a minute ago. Serve this site on one machine, or give "
                f"the hub this line for its [nodes]:\n  {settings_line(self._settings.site, line)}"
            )
        return (
            f"The connection to {self._settings.hub} could not be opened: {self._child.last_words()} See "
            f"{self._child.log}."
        )
