"""The hub's ServerApp: it carries the requests of one federation to the sites' nodes, and their answers back.

What a run is given travels to the sites, so it is nothing but a random name; the job of that name lies in the folder
that FDTR_HUB_JOBS names in the hub's own environment.
"""

import logging
import os
import re
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from fdtr.errors import FdtrError, UnreadableFile
from fdtr.exchange.flower.processes import end_with_parent
from fdtr.exchange.flower.records import read_answer, request_record
from fdtr.exchange.remote import Answer, Ask, Job, Lost, Phase, Request, Result, conduct
from fdtr.signing import Key, is_locked, stated_passphrase

JOBS = "FDTR_HUB_JOBS"
"""The environment variable that names the folder of jobs."""
JOB = "job"
"""The one key of a run's configuration."""
_NAME = re.compile("[0-9a-f]{32}")

log = logging.getLogger("fdtr.hub")
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one federation; how it went is in the file that its job names."""
    end_with_parent()  # two at work in one folder would get in each other's way
    job = Job.load(job_path(context.run_config.get(JOB)))
    try:
        key = Key.load(job.key, stated_passphrase() if is_locked(job.key) else None)
        conduct(job, key, asker(grid, job), {"flwr": version("flwr")})
    except Exception as error:
        log.exception("the federation failed")
        Result.failed(_advice(error)).save(job.result)
        raise


def _advice(error: Exception) -> str:
    """What the hub's person reads of it."""
    if isinstance(error, FdtrError):
        return str(error)
    return f"The hub's own program failed ({type(error).__name__}): logs/superlink.log in the state folder has it all."


def job_path(name: object) -> Path:
    """Where the job of a name lies; no name leads elsewhere."""
    folder = os.environ.get(JOBS)
    if not folder or not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UnreadableFile(
            f"This run names no job of this hub, or {JOBS} is not set. Start it with `fdtr hub`, not by hand."
        )
    return Path(folder) / f"{name}.json"


def asker(grid: Grid, job: Job) -> Ask:
    """How requests travel: to the nodes that are connected, with the job's deadline for each phase."""

    def ask(phase: Phase, requests: Mapping[str, Request]) -> dict[str, Answer | Lost]:
        connected = set(grid.get_node_ids())
        sent = {
            site: Message(request_record(one), job.nodes[site], f"query.{phase.value}", ttl=job.deadline)
            for site, one in requests.items()
            if job.nodes[site] in connected
        }
        replies = grid.send_and_receive(list(sent.values()), timeout=job.deadline) if sent else []
        found = _matched(sent, replies)
        return {site: found.get(site, Lost.NO_ANSWER if site in sent else Lost.NOT_CONNECTED) for site in requests}

    return ask


def _matched(sent: Mapping[str, Message], replies: Iterable[Message]) -> dict[str, Answer | Lost]:
    """The first reply to each message, known by that message's id: errors carry the hub's own node as their source."""
    asked = {message.metadata.message_id: site for site, message in sent.items()}
    found: dict[str, Answer | Lost] = {}
    for reply in replies:
        site = asked.get(reply.metadata.reply_to_message_id)
        if site is None or site in found:
            continue
        if reply.has_error():
            log.warning("site %s: no answer, error %d of the network", site, reply.error.code)
            found[site] = Lost.NO_ANSWER
        else:
            found[site] = read_answer(reply) or Lost.UNREADABLE
    return found
