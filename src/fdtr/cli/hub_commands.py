"""The hub's commands on files and in a shared folder. Nothing here loads what fits a policy."""

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Annotated

import typer

from fdtr.cli import show
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
from fdtr.comparisons import LEGEND
from fdtr.errors import FdtrError, OutputExists
from fdtr.exchange.folder import hub_steps
from fdtr.exchange.folder.round_snapshot import read_round
from fdtr.exchange.folder.round_status import status_of
from fdtr.exchange.folder_layout import require_apart
from fdtr.exchange.streamed_messages import StreamedMessages
from fdtr.exchange.wire import read_values, write_total
from fdtr.hub import (
    PooledMethod,
    combine_messages,
    doubtful_messages,
    missing_columns,
    not_compared,
    pool_values,
    pooled_coefficients,
)
from fdtr.inference.message_checks import Suspicion
from fdtr.inference.pooling import Pooled, Pooling
from fdtr.signing import HUB, require_own
from fdtr.study import Study
from fdtr.summary import Total

_MOST_LISTED = 100


def combine(
    study: StudyPath,
    messages: Annotated[
        list[Path], typer.Argument(metavar="MESSAGES", help="One file from every site, or a folder that holds them.")
    ],
    out: Annotated[Path, typer.Option(help="The total to write.")],
    key: KeyPath = None,
    round_number: RoundNumber = 1,
    json: Json = False,
) -> None:
    """Add the sites' messages into one total and write one file. Give it to every site.

    Where the study has a roster every message must be signed, and the total is signed with --key if the roster has
    a key of the hub. Messages are read one by one, so that there may be very many.
    """
    spare_inputs(out, study, key, *messages)
    if any(place.is_dir() and place.resolve() == out.resolve().parent for place in messages):
        raise OutputExists(f"{out} is in the folder of the messages. Nothing was written. Name another with --out.")
    loaded = Study.load(study)
    this_round, signer = round_of(loaded, round_number), optional_key(key)
    require_own(signer, HUB, loaded.roster)
    received = StreamedMessages(messages, loaded, this_round)
    total = combine_messages(loaded, received)
    write_total(total, out, this_round, signer)
    doubts = () if not_compared(len(received)) else doubtful_messages(received)
    show_total(loaded, total, doubts, out, json)


def show_total(study: Study, total: Total, doubts: Sequence[Suspicion], out: Path, machine: bool) -> None:
    """Say what `fdtr hub combine` added, and which sites contradict the others."""
    names, patients = study.feature_map.names[: study.feature_map.n_shared], int(total.sums.n.max())
    by_feature = dict(zip(names, pooled_coefficients(total).T.tolist(), strict=True))
    unnamed = not_compared(len(total.members))
    if machine:
        sums = {"sites": total.sites, "patients": patients, "shared_coefficients": by_feature}
        removed = [{"step": part.step, "columns": part.names} for part in total.removed]
        show.as_json({**sums, "removed": removed, "suspicions": doubts, "compared": not unnamed})
        return
    more = f" and {len(total.sites) - _MOST_LISTED:,} more" if len(total.sites) > _MOST_LISTED else ""
    listed = ", ".join(total.sites[:_MOST_LISTED]) + more
    show.line(f"Added the sums of {len(total.sites):,} sites: {listed}; {patients:,} patients.")
    show.coefficients_table("Shared coefficients of the totals, S⁺s", by_feature)
    for note in (missing_columns(total), unnamed, *(doubt.sentence for doubt in doubts)):
        if note:
            show.note(note)
    show.line(f"Wrote {out}. Give it to every site.")


def pool(
    study: StudyPath,
    values: Annotated[list[Path], typer.Argument(metavar="VALUES", help="What every site wrote with site evaluate.")],
    round_number: RoundNumber = 1,
    json: Json = False,
) -> None:
    """Pool the sites' values of each method. Shows their mean, fixed and random effects. Writes nothing."""
    loaded = Study.load(study)
    this_round = round_of(loaded, round_number)
    pooled = pool_values(loaded, [read_values(path, this_round) for path in values])
    show_pooled_values(loaded, pooled, json)


def show_pooled_values(study: Study, methods: Sequence[PooledMethod], machine: bool) -> None:
    """Print means over sites: the plain mean as in the paper, fixed and random effects beside it."""
    if machine:
        show.as_json([_pooled_json(method) for method in methods])
        return
    for gains in (True, False):
        rows = [
            [
                pooled.label,
                str(len(pooled.pooling.sites)),
                f"{pooled.pooling.n:,}",
                pooled.verdict,
                *(show.interval(mean, gains) for mean in _means(pooled.pooling)),
                f"{pooled.pooling.i_squared:.0%}" if isfinite(pooled.pooling.i_squared) else "–",
            ]
            for pooled in methods
            if bool(pooled.over) == gains
        ]
        columns = ["gain of" if gains else "method", "sites", "n", "verdict", "mean", "fixed effect", "random effects"]
        bound = f"sum of {study.horizon} mapped rewards, at most {study.horizon}"
        if rows:
            what = "Gains over sites, paired by patient" if gains else "Values over sites"
            show.table(f"{what} (95%): {bound}", [*columns, "I²"], rows)
    if methods:
        show.line(LEGEND)
    incomplete = [
        [pooled.label, ", ".join(pooled.silent)]
        for pooled in methods
        if pooled.silent and (pooled.over or pooled.label == pooled.method)
    ]
    if incomplete:
        show.table("Not told by every site: a mean over some", ["of", "withheld by"], incomplete)
    warnings = {warning.name: warning.sentence for pooled in reversed(methods) for warning in pooled.pooling.warnings}
    for sentence in warnings.values():
        show.line(sentence)


def _means(pooling: Pooling) -> tuple[Pooled, Pooled, Pooled]:
    return pooling.plain, pooling.fixed, pooling.random


def _pooled_json(pooled: PooledMethod) -> dict[str, object]:
    """More than the record keeps of a mean over sites: its standard errors and Cochran's Q, too."""
    pooling = pooled.pooling
    return {
        "method": pooled.method,
        "over": pooled.over,
        "verdict": pooled.verdict,
        "tolerance": pooling.tolerance,
        "sites": pooling.sites,
        "not_told_by": pooled.silent,
        "patients": pooling.n,
        "plain": pooling.plain,
        "fixed": pooling.fixed,
        "random": pooling.random,
        "between": pooling.between,
        "Q": pooling.statistic,
        "df": pooling.df,
        "p": pooling.p_value,
        "i_squared": pooling.i_squared,
        "predicted": [pooling.predicted_low, pooling.predicted_high],
        "warnings": pooling.warnings,
    }


def open_folder(
    folder: FolderPath,
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="The study file (TOML), roster included.")],
    key: KeyPath = None,
    json: Json = False,
) -> None:
    """Make a folder through which hub and sites run the study. Opens its first round."""
    require_apart(folder, ("The key", key))
    show.steps(hub_steps.open_folder(folder, study, optional_key(key)), json)


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
    show.steps(hub_steps.take_hub_steps(folder, optional_key(key), close, without or ()), json)


def new_round(folder: FolderPath, key: KeyPath = None, yes: PostYes = False, json: Json = False) -> None:
    """Begin another round. Needed when a site was lost after the list of survivors, or the roster changed.

    What was posted before counts no more, and sites destroy their masks of the round that is given up.
    """
    if not yes and not agreed(f"Give the present round in {folder} up, for all sites?"):
        raise FdtrError("Nothing was written.")
    show.steps(hub_steps.new_round(folder, optional_key(key)), json)


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
    if round_status.receivers:
        show.line(f"Receive only: {', '.join(round_status.receivers)}")
    if round_status.survivors is not None:
        show.line(f"Survivors: {', '.join(round_status.survivors)}")
    if round_status.total is not None:
        show.line(f"Total of: {', '.join(round_status.total)}")
    show.line(f"Next: {round_status.next}")
