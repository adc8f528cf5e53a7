"""`fdtr site serve`: Flower's supernode, which keeps the connection, and our worker, which answers."""

import secrets
import ssl
import threading
import time
from collections.abc import Callable

from fdtr.container import write_atomically
from fdtr.errors import InvalidSettings, NoHubKey, OtherStudy, ServiceEnded
from fdtr.exchange.flower.control import reachable
from fdtr.exchange.flower.health import Health, health_endpoint
from fdtr.exchange.flower.hub_service import INSTALL_FLOWER
from fdtr.exchange.flower.node_keys import node_fingerprint, public_line
from fdtr.exchange.flower.processes import LOOPBACK, Child, Children, environment, find_program, free_port, stopping
from fdtr.exchange.flower.settings import AcceptedStudy, SiteSettings, private_folder, require_private
from fdtr.exchange.flower.site_app import make_app
from fdtr.exchange.flower.worker import Worker
from fdtr.exchange.folder.durable import locked
from fdtr.exchange.remote import Audit, Desk, DeskStudy
from fdtr.signing import HUB, Key, check_site_name, require_own
from fdtr.site import read_trajectories
from fdtr.study import Study

_TURN = 0.5
_BEFORE_AGAIN = 5.0
_FRESH = 5.0
_CONNECTED = "SuperNode ID"
Say = Callable[[str], None]


def require_site(settings: SiteSettings, key: Key) -> list[DeskStudy]:
    """Refuse settings that no federation could run with; the studies that this site answers for."""
    check_site_name(settings.site)
    require_private("The site's key", settings.key)
    require_private("The node key", settings.node_key)
    public_line(settings.node_key)
    if settings.authority is not None and not settings.authority.is_file():
        raise InvalidSettings(
            f"authority: {settings.authority} is not there. Ask the hub for its certificate authority."
        )
    accepted = [_accepted(one, settings.site, key) for one in settings.studies]
    prints = [one.study.fingerprint for one in accepted]
    if len(set(prints)) < len(prints):
        raise InvalidSettings("Two of [[studies]] are the same study. Keep one.")
    return accepted


def _accepted(given: AcceptedStudy, site: str, key: Key) -> DeskStudy:
    study = Study.load(given.study)
    if study.fingerprint != given.fingerprint:
        raise OtherStudy(
            f"{given.study} is not the study that was agreed to: its fingerprint is {study.fingerprint}, the settings "
            f"say {given.fingerprint}. Compare with the hub by telephone before you change either."
        )
    if HUB not in study.roster:
        raise NoHubKey(
            f"{given.study} has no key of the hub on its roster, and over the network its total is believed by that "
            "signature. Ask the hub for the study file with its key."
        )
    require_own(key, site, study.roster)
    if not given.data.exists():
        raise InvalidSettings(f"The table {given.data} is not there.")
    read_trajectories(given.data, study, site)  # what is wrong with the table is better known now
    return DeskStudy(study, given.data, given.policy)


def serve_site(settings: SiteSettings, key: Key, say: Say) -> None:
    """Answer the hub until told to stop."""
    studies = require_site(settings, key)
    state = private_folder("The state folder", settings.state)
    with locked(state / "serve.lock", f"site {settings.site!r}", patience=1.0), stopping() as stop:
        _require_hub_is_itself(settings, say)
        desk = Desk(settings.site, studies, key, Audit(settings.audit), state)
        secret, port = secrets.token_bytes(32), free_port()
        write_atomically(state / "supernode.secret", secret, mode=0o600)
        with Children(state / "logs") as children:
            link = Link(settings, children, port, say)
            health = Health(link.connected)
            worker = Worker(f"{LOOPBACK}:{port}", secret, make_app(desk), health.answered)
            at_work = threading.Thread(target=worker.run, args=(stop,), daemon=True)
            at_work.start()
            with health_endpoint(health, settings.health_port):
                while not stop.wait(_TURN):
                    link.keep()
                    if not at_work.is_alive():
                        raise ServiceEnded("The site's worker ended, and the service with it. Start it again.")


class Link:
    """The supernode: started, and started again when it ends after it was once connected."""

    def __init__(self, settings: SiteSettings, children: Children, port: int, say: Say) -> None:
        self._settings = settings
        self._children = children
        self._port = port
        self._say = say
        self._ever = False
        self._seen = (0.0, False)
        self._again = 0.0
        self._child = self._start()

    def keep(self) -> None:
        """Look after it; a first connection that fails is refused with its reason."""
        if not self._ever and _CONNECTED in self._child.words():
            self._ever = True
            self._say(f"Connected to {self._settings.hub} as {self._settings.site}. Waiting for the hub's questions.")
        if self._child.process.poll() is None:
            return
        if not self._ever:
            raise ServiceEnded(_why(self._child, self._settings))
        if not self._again:
            self._say("The connection to the hub ended; trying again.")
            self._again = time.monotonic() + _BEFORE_AGAIN
        elif time.monotonic() > self._again:
            self._children.end(self._child)
            self._child, self._again = self._start(), 0.0

    def connected(self) -> bool:
        """Whether the hub took our node key, and answers now; asked at most every few seconds."""
        if self._child.process.poll() is not None or _CONNECTED not in self._child.words():
            return False
        when, found = self._seen
        if time.monotonic() > when + _FRESH:
            try:
                found = reachable(self._settings.hub, self._settings.authority)
            except ssl.SSLCertVerificationError:
                found = False
            self._seen = (time.monotonic(), found)
        return found

    def _start(self) -> Child:
        settings, state = self._settings, self._settings.state
        program = find_program("flower-supernode", INSTALL_FLOWER)
        command = [program, "--superlink", settings.hub, "--host", LOOPBACK, "--port", str(self._port)]
        command += ["--auth-supernode-private-key", str(settings.node_key), "--isolation", "process"]
        command += ["--superexec-auth-secret-file", str(state / "supernode.secret")]
        command += ["--root-certificates", str(settings.authority)] if settings.authority else []
        return self._children.start("supernode", command, environment(FLWR_HOME=str(state / "flower")))


def _require_hub_is_itself(settings: SiteSettings, say: Say) -> None:
    try:
        if not reachable(settings.hub, settings.authority):
            say(f"{settings.hub} does not answer now; trying on.")
    except ssl.SSLCertVerificationError:
        by = settings.authority or "the system's authorities"
        raise InvalidSettings(
            f"The certificate of {settings.hub} is not one that {by} vouches for. Nothing was sent. Compare the "
            "authority's fingerprint with the hub by telephone."
        ) from None


def _why(child: Child, settings: SiteSettings) -> str:
    line = public_line(settings.node_key)
    words = child.words()
    if "401" in words or "not registered" in words.lower() or "Invalid public key" in words:
        return (
            f"The hub does not know this node key ({node_fingerprint(line)}). Give the hub this line for its [nodes]:\n"
            f"  {settings.site} = {line!r}".replace("'", '"')
        )
    return f"The connection to {settings.hub} could not be opened: {child.last_line()} See {child.log}."
