"""The hub's ServerApp: it carries the requests of one federation to the sites' nodes, and their answers back.

The configuration of a run travels to the sites, so it holds only a random name. The job of that name lies in the folder
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
from fdtr.exchange.flower.processes import exit_after_parent
from fdtr.exchange.flower.records import read_answer, request_record
from fdtr.exchange.remote.hub_rounds import Ask, run_federation
from fdtr.exchange.remote.jobs import Job, Reason, Result
from fdtr.exchange.remote.requests import Answer, Phase, Request
from fdtr.signing import Key, is_locked, stated_passphrase

JOBS = "FDTR_HUB_JOBS"
"""Environment variable that names the folder of jobs."""
JOB = "job"
"""The only key of a run's configuration."""
_NAME = re.compile("[0-9a-f]{32}")

log = logging.getLogger("fdtr.hub")
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one federation. Its result is written to the file that the job names."""
    exit_after_parent()  # two federations must not work in one folder
    job = Job.load(job_path(context.run_config.get(JOB)))
    try:
        key = Key.load(job.key, stated_passphrase() if is_locked(job.key) else None)
        run_federation(job, key, asker(grid, job), {"flwr": version("flwr")})
    except Exception as error:
        log.exception("the federation failed")
        Result.failed(_advice(error)).save(job.result)
        raise


def _advice(error: Exception) -> str:
    """The sentence for the person at the hub."""
    if isinstance(error, FdtrError):
        return str(error)
    return f"The hub's own program failed ({type(error).__name__}): logs/superlink.log in the state folder has it all."


def job_path(name: object) -> Path:
    """Path of the job with this name. No name can lead out of the folder of jobs."""
    folder = os.environ.get(JOBS)
    if not folder or not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UnreadableFile(
            f"This run names no job of this hub, or {JOBS} is not set. Start it with `fdtr hub`, not by hand."
        )
    return Path(folder) / f"{name}.json"


def asker(grid: Grid, job: Job) -> Ask:
    """Send requests over `grid` to the nodes that are connected, with the job's deadline for each phase."""

    def ask(phase: Phase, requests: Mapping[str, Request]) -> dict[str, Answer | Reason]:
        connected = set(grid.get_node_ids())
        sent = {
            site: Message(request_record(request), job.nodes[site], f"query.{phase.value}", ttl=job.deadline)
            for site, request in requests.items()
            if job.nodes[site] in connected
        }
        replies = grid.send_and_receive(list(sent.values()), timeout=job.deadline) if sent else []
        answers = _matched(sent, replies)
        missing = {site: Reason.NO_ANSWER if site in sent else Reason.NOT_CONNECTED for site in requests}
        return {**missing, **answers}

    return ask


def _matched(sent: Mapping[str, Message], replies: Iterable[Message]) -> dict[str, Answer | Reason]:
    """The first reply to each message, matched by message id: an error names the hub's own node as its source."""
    sites = {message.metadata.message_id: site for site, message in sent.items()}
    answers: dict[str, Answer | Reason] = {}
    for reply in replies:
        site = sites.get(reply.metadata.reply_to_message_id)
        if site is None or site in answers:
            continue
        if reply.has_error():
            log.warning("site %s: no answer, error %d of the network", site, reply.error.code)
            answers[site] = Reason.NO_ANSWER
        else:
            answers[site] = read_answer(reply) or Reason.BAD_ANSWER
    return answers
