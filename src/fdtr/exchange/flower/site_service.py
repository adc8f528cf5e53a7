"""`fdtr site serve`: Flower's supernode, which keeps the connection, and our worker, which answers."""

import os
import secrets
import threading
from pathlib import Path

from fdtr.container import write_atomically
from fdtr.errors import FdtrError, InvalidSettings, OtherStudy, ServiceEnded
from fdtr.exchange.flower.certificates import require_authority
from fdtr.exchange.flower.health import Health, health_endpoint
from fdtr.exchange.flower.lengths import longest_answer
from fdtr.exchange.flower.link import SECRET, Link, Say
from fdtr.exchange.flower.node_keys import public_line
from fdtr.exchange.flower.permissions import private_folder, require_owner, require_private
from fdtr.exchange.flower.processes import LOOPBACK, Children, free_port, spare_loopback, stopping
from fdtr.exchange.flower.settings import AcceptedStudy, SiteSettings
from fdtr.exchange.flower.site_app import SiteApp
from fdtr.exchange.flower.worker import Worker
from fdtr.exchange.folder.durable import locked
from fdtr.exchange.remote import Audit, Desk, DeskStudy
from fdtr.exchange.remote.desk import require_carriable
from fdtr.policy import Policy
from fdtr.signing import Key, check_site_name, require_own
from fdtr.site import read_trajectories
from fdtr.study import Study

_TURN = 0.5


def require_site(settings: SiteSettings, key: Key) -> list[DeskStudy]:
    """Refuse settings that no federation could run with; the studies that this site answers for."""
    check_site_name(settings.site)
    require_private("The site's key", settings.key)
    require_private("The node key", settings.node_key)
    public_line(settings.node_key)
    if settings.authority is not None:
        require_authority(settings.authority)
    accepted = [_accepted(one, settings.site, key) for one in settings.studies]
    prints = [one.study.fingerprint for one in accepted]
    if len(set(prints)) < len(prints):
        raise InvalidSettings("Two of [[studies]] are the same study. Keep one.")
    for one in accepted:
        _require_own_place(one, accepted, settings)
    return accepted


def _accepted(given: AcceptedStudy, site: str, key: Key) -> DeskStudy:
    study = Study.load(given.study)
    if study.fingerprint != given.fingerprint:
        raise OtherStudy(
            f"{given.study} is not the study that was agreed to: its fingerprint is {study.fingerprint}, the settings "
            f"say {given.fingerprint}. Compare with the hub by telephone before you change either."
        )
    require_carriable(study)
    require_own(key, site, study.roster)
    if not given.data.exists():
        raise InvalidSettings(f"The table {given.data} is not there.")
    if given.policy is not None:
        _require_writable(given.policy)
    read_trajectories(given.data, study, site)  # what is wrong with the table is better known now
    return DeskStudy(study, given.data, given.policy, given.releases)


def _require_writable(policy: Path) -> None:
    """Now, rather than at the end of a round."""
    folder = policy.parent
    if policy.is_dir() or not folder.is_dir():
        raise InvalidSettings(f"policy: {policy} cannot be a file: {folder} is no folder, or it is a folder itself.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidSettings(f"policy: {policy} cannot be written: the folder does not let this user write.")


def _require_own_place(one: DeskStudy, accepted: list[DeskStudy], settings: SiteSettings) -> None:
    """Refuse a place for a policy where something else lies, or would: rounds replace it without asking."""
    if one.out is None:
        return
    place, state = one.out.resolve(), settings.state.resolve()
    read = [settings.key, settings.node_key, settings.authority, *(other.data for other in accepted)]
    read += [given.study for given in settings.studies]
    if place.is_relative_to(state) or place in [path.resolve() for path in read if path is not None]:
        raise InvalidSettings(f"policy: {one.out} is a file of this service. Name another.")
    if [other.out and other.out.resolve() for other in accepted].count(place) > 1:
        raise InvalidSettings(f"policy: two of [[studies]] would write {one.out}. Name one for each.")
    if not place.exists():
        return
    try:
        found = Policy.load(place)
    except FdtrError:
        found = None
    if found is None or (found.site, found.fingerprint) != (settings.site, one.study.fingerprint):
        raise InvalidSettings(
            f"policy: {one.out} is there already, and is no policy of {settings.site} for the study {one.study.name}. "
            "Every round would replace it. Name another, or move it away."
        )


def serve_site(settings: SiteSettings, key: Key, say: Say) -> None:
    """Answer the hub until told to stop."""
    spare_loopback()
    require_owner(settings.state)
    studies = require_site(settings, key)
    state = private_folder("The state folder", settings.state)
    with locked(state / "serve.lock", f"the service whose state is {state}", patience=1.0), stopping() as stop:
        desk = Desk(settings.site, studies, key, Audit(settings.audit), state)
        secret, port = secrets.token_bytes(32), free_port()
        write_atomically(state / SECRET, secret, mode=0o600)
        with Children(state / "logs") as children:
            longest = max(longest_answer(one.study, settings.site) for one in studies)
            link = Link(settings, children, port, longest, say)
            health = Health(link.connected)
            worker = Worker(f"{LOOPBACK}:{port}", secret, SiteApp(desk), health.answered)
            at_work = threading.Thread(target=worker.run, args=(stop,), daemon=True)
            at_work.start()
            with health_endpoint(health, settings.health_port):
                while not stop.wait(_TURN):
                    link.keep()
                    if not at_work.is_alive():
                        raise ServiceEnded("The site's worker ended, and the service with it. Start it again.")
