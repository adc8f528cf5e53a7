"""The hub's commands on files and in a shared folder. Nothing here loads what fits a policy."""

from pathlib import Path
from typing import Annotated

import typer

from fdtr.cli import evaluation_output, message_output, show
from fdtr.cli.options import (
    FolderPath,
    Json,
    KeyPath,
    PostYes,
    RoundNumber,
    StudyPath,
    agreed,
    optional_key,
    round_of,
    spare_inputs,
)
from fdtr.errors import FdtrError
from fdtr.exchange.folder import hub_steps
from fdtr.exchange.folder.round_snapshot import read_round
from fdtr.exchange.folder.round_status import status_of
from fdtr.exchange.folder_layout import require_apart
from fdtr.exchange.wire import read_message, read_values, write_total
from fdtr.hub import combine_messages, doubtful_messages, pool_values, pooled_coefficients
from fdtr.signing import HUB, require_own
from fdtr.study import Study


def combine(
    study: StudyPath,
    messages: Annotated[list[Path], typer.Argument(metavar="MESSAGE", help="One file from every site.")],
    out: Annotated[Path, typer.Option(help="The total to write.")],
    key: KeyPath = None,
    round_number: RoundNumber = 1,
    json: Json = False,
) -> None:
    """Add the sites' messages into one total and write one file. Give it to every site.

    Where the study has a roster every message must be signed, and the total is signed with --key if the roster has
    a key of the hub.
    """
    spare_inputs(out, study, key, *messages)
    loaded = Study.load(study)
    this_round, signer = round_of(loaded, round_number), optional_key(key)
    require_own(signer, HUB, loaded.roster)
    summaries = [read_message(path, loaded, this_round) for path in messages]
    total = combine_messages(loaded, summaries)
    write_total(total, out, this_round, signer)
    message_output.show_total(loaded, total, pooled_coefficients(total), doubtful_messages(summaries), out, json)


def pool(
    study: StudyPath,
    values: Annotated[list[Path], typer.Argument(metavar="VALUES", help="What every site wrote with site evaluate.")],
    round_number: RoundNumber = 1,
    json: Json = False,
) -> None:
    """Pool the sites' values of each method. Shows their mean, fixed and random effects. Writes nothing."""
    loaded = Study.load(study)
    this_round = round_of(loaded, round_number)
    evaluation_output.show_pooled_values(
        loaded, pool_values(loaded, [read_values(path, this_round) for path in values]), json
    )


def open_folder(
    folder: FolderPath,
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="The study file (TOML), roster included.")],
    key: KeyPath = None,
    json: Json = False,
) -> None:
    """Make a folder through which hub and sites run the study. Opens its first round."""
    require_apart(folder, ("The key", key))
    message_output.show_steps(hub_steps.open_folder(folder, study, optional_key(key)), json)


def hub_next(
    folder: FolderPath,
    key: KeyPath = None,
    close: Annotated[bool, typer.Option("--close", help="Wait no longer: go on with those who are there.")] = False,
    without: Annotated[list[str] | None, typer.Option("--without", help="Do not wait for this site.")] = None,
    json: Json = False,
) -> None:
    """Do the hub's next step in a study's folder. Says what it waits for.

    The steps: list the survivors of a masked round, add up, post the total.
    """
    require_apart(folder, ("The key", key))
    message_output.show_steps(hub_steps.take_hub_steps(folder, optional_key(key), close, without or ()), json)


def new_round(folder: FolderPath, key: KeyPath = None, yes: PostYes = False, json: Json = False) -> None:
    """Begin another round. Needed when a site was lost after the list of survivors, or the roster changed.

    What was posted before counts no more, and sites destroy their masks of the round that is given up.
    """
    if not yes and not agreed(f"Give the present round in {folder} up, for all sites?"):
        raise FdtrError("Nothing was written.")
    message_output.show_steps(hub_steps.new_round(folder, optional_key(key)), json)


def status(folder: FolderPath, json: Json = False) -> None:
    """Who is where in a study's folder. Every signature is checked. Anybody may look; nothing is written."""
    round_status = status_of(read_round(folder))
    if json:
        show.as_json({**vars(round_status), "faults": list(round_status.faults)})
        return
    for fault in round_status.faults:
        show.note(fault)
    kind = "masked" if round_status.masked else "open"
    keys = "signed" if round_status.signed else "unsigned"
    parts = list(next(iter(round_status.sites.values()), {}))
    rows = [
        [site, *("yes" if is_there else "–" for is_there in posted.values())]
        for site, posted in round_status.sites.items()
    ]
    show.table(f"{round_status.study}: round {round_status.number}, {kind}, {keys}", ["site", *parts], rows)
    if round_status.survivors is not None:
        show.line(f"Survivors: {', '.join(round_status.survivors)}")
    if round_status.total is not None:
        show.line(f"Total of: {', '.join(round_status.total)}")
    show.line(f"Next: {round_status.next}")
