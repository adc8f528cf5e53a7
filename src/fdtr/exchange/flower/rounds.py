"""`fdtr hub start-round`: give a serving hub a job, wait for what comes of it, and notice when nothing will."""

import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fdtr.errors import InvalidSettings, NotServed, ServiceEnded
from fdtr.exchange.flower.hub_service import Serving
from fdtr.exchange.flower.permissions import require_owner
from fdtr.exchange.flower.processes import spare_loopback
from fdtr.exchange.flower.settings import LEAST_DEADLINE, MOST_DEADLINE, HubSettings
from fdtr.exchange.folder.durable import locked
from fdtr.exchange.remote import Job, Result

_TURN = 0.3
_LOOK = 3.0
_GRACE = 5.0
_LAST_BREATH = 60.0


@dataclass(frozen=True)
class Told:
    """How a round went, and the `file` that keeps it."""

    result: Result
    file: Path


def start_round(
    settings: HubSettings, sites: tuple[str, ...] = (), min_sites: int | None = None, deadline: float | None = None
) -> Told:
    """Ask the sites, all or these, and return how it went."""
    if deadline is not None and not LEAST_DEADLINE <= deadline <= MOST_DEADLINE:  # NaN is neither
        raise InvalidSettings(
            f"The deadline is {deadline:g} seconds. Nothing was asked. Give {LEAST_DEADLINE} to {MOST_DEADLINE}."
        )
    spare_loopback()
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
            return Told(_run(serving, settings.state, name, job), job.result)
        finally:
            path.unlink(missing_ok=True)


def _run(serving: Serving, state: Path, name: str, job: Job) -> Result:
    control = serving.control(state)
    for left in control.running():  # nobody waits for it: whoever did held the lock
        control.stop(left)
    with locked(job.lock, "a round of this hub that was stopped", patience=_LAST_BREATH):
        pass  # the program of a run that was stopped goes on for some seconds
    run = control.start(name)
    try:
        _wait(serving, state, run, job.result)
    except BaseException:
        with suppress(NotServed):
            control.stop(run)
        raise
    return Result.from_json(job.result.read_bytes())


def _wait(serving: Serving, state: Path, run: int, result: Path) -> None:
    control, looked, over = serving.control(state), time.monotonic(), 0.0
    while not result.exists():
        time.sleep(_TURN)
        now = time.monotonic()
        if over and now > over + _GRACE:
            raise ServiceEnded(
                f"The round's program ended without a result. See {state}/logs/superlink.log. What sites posted is "
                "kept: the same command goes on from there."
            )
        if now < looked + _LOOK:
            continue
        looked = now
        try:
            Serving.find(state)
            over = over or (0.0 if run in control.running() else now)
        except NotServed:
            if result.exists():
                return
            raise NotServed(
                "The hub's service ended while the round ran. What sites posted is kept: run `fdtr hub serve` and the "
                "same command again."
            ) from None
