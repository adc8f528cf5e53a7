"""The commands of the two roles, site and hub."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from fdtr.cli import message_output, show
from fdtr.cli.options import HeldOut, Json, Split, StudyPath, agreed, spare_inputs
from fdtr.cli.signed import KeyPath, RoundNumber, load_key, round_of
from fdtr.errors import FdtrError

if TYPE_CHECKING:
    from fdtr.study import Study
    from fdtr.summary import SiteSummary, Total
    from fdtr.trajectories import Trajectories


site_app = typer.Typer(help="A hospital's part.", no_args_is_help=True)
hub_app = typer.Typer(help="The hub's part.", no_args_is_help=True)

DataPath = Annotated[Path, typer.Argument(metavar="DATA", help="This site's table.")]
SiteName = Annotated[str | None, typer.Option("--site", help="This site's name; needed where the table has none.")]
TotalPath = Annotated[Path, typer.Argument(metavar="TOTAL", help="The hub's answer.")]
LikeSites = Annotated[
    int | None,
    typer.Option("--sites", min=1, help="Tell the cost of differential privacy at so many sites like this one."),
]
_ROUNDED = 1e-6
"""How far, relative to the largest, sums that went into a secure sum may lie from those before they were rounded."""
Own = Annotated[
    Path | None,
    typer.Option(help="This site's message as sent (or its rounded copy), if none was kept."),
]


@site_app.command()
def summarize(
    study: StudyPath,
    data: DataPath,
    out: Annotated[Path, typer.Option(help="The message to write.")],
    site: SiteName = None,
    key: KeyPath = None,
    round_number: RoundNumber = 1,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before writing.")] = False,
    sites: LikeSites = None,
    json: Json = False,
) -> None:
    """Compute this site's message and write one file: sums over patients, never a row. Nothing is sent.

    Refuses where a disclosure rule does, and then writes nothing. A copy is kept at home, because the site has to
    subtract exactly what it sent, and a line in the ledger, because almost the same patients must not be sent again. It
    is signed with --key where the study has a roster. Where the study asks for differential privacy (experimental),
    says first what the noise costs; asked again for the same patients, it writes the kept sums, not others.
    """
    ask_and_release(study, data, out, site, key, round_number, None if yes else f"Write this to {out}?", sites, json)


def ask_and_release(
    study: Path,
    data: Path,
    out: Path,
    site: str | None,
    key: Path | None,
    round_number: int,
    question: str | None,
    sites: int | None = None,
    json: bool = False,
) -> None:
    """What `fdtr site summarize` does; `question` is asked before anything is written, None where the answer is yes."""
    from fdtr.exchange.release import Proposal, release_message, require_open
    from fdtr.site.rows import read_trajectories
    from fdtr.study import Study

    def confirm(proposal: Proposal) -> bool:
        if not json:
            for sentence in proposal.sentences:
                show.line(sentence)
        return question is None or agreed(question)

    spare_inputs(out, study, data, key)
    loaded = Study.load(study)
    require_open(loaded)
    round_of(loaded, round_number)
    signer, rows = load_key(key), read_trajectories(data, loaded, site)
    released = release_message(loaded, rows, out, confirm=confirm, round_number=round_number, key=signer, n_sites=sites)
    message_output.show_message_written(released.summary, out, released.copy, released.cost, json, again=released.again)


def _digest_of(path: Path) -> str:
    """The digest of a message's file, by which ledger and copies know it."""
    from fdtr.exchange.wire import inspect
    from fdtr.summary import Total

    found = inspect(path, None, None).body
    if isinstance(found, Total):
        raise FdtrError(f"{path} is the hub's. Name a message or values that were written here, or their digest.")
    return found.digest


@site_app.command()
def withdraw(
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="The file that was written, or its digest.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask: it was never sent.")] = False,
) -> None:
    """Strike a message, or values, never sent from this site's ledger, so that its patients may be released anew.

    Only for messages that nobody else ever had: two messages of almost the same patients give away those in which they
    differ. Where it waits to be posted in a joined folder, it is deleted at home, and a masked round is given up.
    """
    from fdtr.exchange.release import withdraw as take_back

    digest = _digest_of(Path(message)) if Path(message).is_file() else message
    if not yes and not agreed(f"Was {message} never given to anybody, the hub included, in any round?"):
        raise FdtrError("Nothing was struck.")
    struck = take_back(digest)
    for one in struck:
        show.line(f"Struck {one.message[:12]}… of {one.time}: {one.n:,} patients, site {one.site}. Delete its file.")
    if not struck:
        show.line(f"Deleted {digest[:12]}…, which waited to be posted; the ledger had no record of it.")


class _Answered(NamedTuple):
    """A site with the hub's answer in hand."""

    study: "Study"
    rows: "Trajectories"
    total: "Total"
    sent: "SiteSummary"


def _answered(study: Path, data: Path, total: Path, site: str | None, own: Path | None, number: int) -> _Answered:
    """Read everything, and find the message as it was sent: given, kept at home, or computed again."""
    from fdtr.exchange.site_state.sent_copies import find_kept, read_own
    from fdtr.exchange.wire import read_total
    from fdtr.site.fitting import recomputed
    from fdtr.site.rows import read_trajectories
    from fdtr.study import Study

    loaded = Study.load(study)
    within = round_of(loaded, number)
    answer = read_total(total, loaded, within)
    rows = read_trajectories(data, loaded, site)
    found = read_own(own, loaded) if own else find_kept(answer, rows.site, loaded)
    if found is not None and loaded.disclosure.epsilon is not None:  # nothing computed again could be compared with it
        return _Answered(loaded, rows, answer, found)
    now = recomputed(loaded, rows)
    sent = found or now
    same = sent.sums.close_to(now.sums, _ROUNDED) if sent.sent_as else sent.digest == now.digest
    if not same and sent.site == rows.site:
        show.note(
            f"This table is not the one that the message of {rows.site} was made from. The message as it was sent is "
            f"subtracted ({sent.sums.n.max():.0f} patients), and policies are fitted on this table ({rows.n_patients})."
        )
    return _Answered(loaded, rows, answer, sent)


@site_app.command()
def fit(
    study: StudyPath,
    data: DataPath,
    total: TotalPath,
    out: Annotated[Path, typer.Option(help="The policy to write; confidential to this site.")],
    site: SiteName = None,
    own: Own = None,
    round_number: RoundNumber = 1,
    json: Json = False,
) -> None:
    """Finish this site's policy at home from the hub's total. Writes one file, readable by you alone."""
    from fdtr.site.fitting import fit_federated

    spare_inputs(out, study, data, total, own)
    given = _answered(study, data, total, site, own, round_number)
    fitted = fit_federated(given.study, given.rows, given.total, given.sent)
    fitted.policy.save(out)
    message_output.show_policy_written(fitted.policy, given.total, out, json)


@site_app.command()
def evaluate(
    study: StudyPath,
    data: DataPath,
    total: TotalPath,
    out: Annotated[
        Path | None, typer.Option(help="The file for the hub: value and standard error of each method. Optional.")
    ] = None,
    site: SiteName = None,
    own: Own = None,
    split: HeldOut = Split.folds,
    key: KeyPath = None,
    round_number: RoundNumber = 1,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before writing.")] = False,
    json: Json = False,
) -> None:
    """Value every method on this site's own patients, each by policies fitted without them, tuning included.

    Writes nothing, unless --out names a file for the hub; then disclosure decides which values may leave, and the
    ledger refuses those of almost the same patients as before.
    """
    from fdtr.cli import evaluation_output
    from fdtr.disclosure import ValueMessage
    from fdtr.exchange.release import release_values
    from fdtr.signing import require_own
    from fdtr.site.site_evaluation import evaluate_site, refuse_values
    from fdtr.study import Study

    def confirm(message: ValueMessage) -> bool:
        if not json:
            evaluation_output.show_released_values(message)
        return yes or agreed(f"Write this to {out}?")

    if out is not None:
        spare_inputs(out, study, data, total, own, key)
        refuse_values(Study.load(study))  # before the work, not after it
    given = _answered(study, data, total, site, own, round_number)
    signer = load_key(key) if out is not None else None
    if out is not None:
        require_own(signer, given.rows.site, given.study.roster)
    with show.progress() as progress:
        found = evaluate_site(given.study, given.rows, given.total, given.sent, split=split.value, progress=progress)
    if not json:
        evaluation_output.show_evaluation(given.study, found)
    message = None
    if out is not None:
        message = release_values(
            given.study, given.rows, found, out, confirm=confirm, round_number=round_number, key=signer
        )
    if json:
        evaluation_output.show_evaluation_json(given.study, found, message, out)
    else:
        show.line(
            f"Wrote {out}. Give it to the hub." if out else "Nothing was written. Add --out FILE to tell the hub."
        )


@hub_app.command()
def combine(
    study: StudyPath,
    messages: Annotated[list[Path], typer.Argument(metavar="MESSAGE", help="One file from every site.")],
    out: Annotated[Path, typer.Option(help="The total to write.")],
    key: KeyPath = None,
    round_number: RoundNumber = 1,
    json: Json = False,
) -> None:
    """Add the sites' messages into one total and write one file, to be given to every site.

    Where the study has a roster every message must be signed, and the total is signed with --key if the roster has
    a key of the hub.
    """
    from fdtr.exchange.wire import read_message, write_total
    from fdtr.hub import combine_messages, doubtful_messages, pooled_coefficients
    from fdtr.signing import HUB, require_own
    from fdtr.study import Study

    spare_inputs(out, study, key, *messages)
    loaded = Study.load(study)
    within, signer = round_of(loaded, round_number), load_key(key)
    require_own(signer, HUB, loaded.roster)
    read = [read_message(path, loaded, within) for path in messages]
    total = combine_messages(loaded, read)
    write_total(total, out, within, signer)
    message_output.show_total(loaded, total, pooled_coefficients(total), doubtful_messages(read), out, json)


@hub_app.command()
def pool(
    study: StudyPath,
    values: Annotated[list[Path], typer.Argument(metavar="VALUES", help="What every site wrote with site evaluate.")],
    round_number: RoundNumber = 1,
    json: Json = False,
) -> None:
    """Show the sites' values of each method as one: their mean, fixed and random effects. Writes nothing."""
    from fdtr.cli import evaluation_output
    from fdtr.exchange.wire import read_values
    from fdtr.hub import pool_values
    from fdtr.study import Study

    loaded = Study.load(study)
    within = round_of(loaded, round_number)
    evaluation_output.show_pooled_values(
        loaded, pool_values(loaded, [read_values(path, within) for path in values]), json
    )
