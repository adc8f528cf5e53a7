"""The commands of the two roles, site and hub."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from fdtr.cli import show, show_results
from fdtr.cli.options import HeldOut, Json, Split, StudyPath, agreed, spare_inputs
from fdtr.cli.signed import KeyPath, RoundNumber, load_key, round_of
from fdtr.errors import FdtrError, PerhapsWritten

if TYPE_CHECKING:
    from fdtr.disclosure import Ledger
    from fdtr.signing import Key, Round
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
    release_message(study, data, out, site, key, round_number, None if yes else f"Write this to {out}?", sites, json)


def release_message(
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
    from fdtr.exchange.folder import require_never_summed
    from fdtr.exchange.kept import find_copy, keep, ledger
    from fdtr.exchange.wire import write_message
    from fdtr.signing import check_site_name, require_own
    from fdtr.site import cost_of, fit_message, read_trajectories, release_of
    from fdtr.site import summarize as summarize_site
    from fdtr.study import Study

    spare_inputs(out, study, data, key)
    loaded = Study.load(study)
    if loaded.disclosure.secure_sum:
        raise FdtrError(
            "The study asks for a secure sum, and this file would show the hub this site's own sums. Nothing was "
            "written. Take part through the study's folder instead."
        )
    within, signer = round_of(loaded, round_number), load_key(key)
    rows, releases = read_trajectories(data, loaded, site), ledger()
    check_site_name(rows.site)
    require_own(signer, rows.site, loaded.roster)
    if loaded.disclosure.epsilon is not None:
        made = _made_before(loaded, rows, releases)
        if made is not None:
            _write_again(made, loaded, out, within, signer, question, json)
            return
    fitted = fit_message(loaded, rows)
    message = summarize_site(loaded, rows, releases, fitted)
    release = release_of(loaded, rows, message.summary)
    require_never_summed(release.content)
    cost = cost_of(loaded, fitted.fit, sites)
    if not json:
        show_results.message(loaded, message, cost)
    if question and not agreed(question):
        raise FdtrError("Nothing was written.")
    before = find_copy(message.summary.digest)
    with releases.recording(release):
        require_never_summed(release.content, recorded=True)
        kept = keep(message, within, signer)
        try:
            write_message(message, out, within, signer)
        except FdtrError as error:
            # Else it is the copy of the same message, made earlier, or of one that may be out in the world.
            if before is None and not isinstance(error, PerhapsWritten):
                kept.unlink()
            raise
    show_results.message_written(message.summary, out, kept, cost, json)


def _made_before(study: "Study", rows: "Trajectories", releases: "Ledger") -> Path | None:
    """The copy of the message by which these very patients were released for the study, where there is one."""
    from fdtr.exchange.kept import find_copy
    from fdtr.site import release_of

    before = releases.repeated(release_of(study, rows, None))
    return find_copy(before) if before else None


def _write_again(
    kept: Path, study: "Study", out: Path, within: "Round", signer: "Key | None", question: str | None, json: bool
) -> None:
    """Write the kept sums for this round: other noise on the same patients would tell more of them."""
    from fdtr.disclosure import lost_to_noise
    from fdtr.exchange.kept import read_own, write_again

    if not json:
        lost = lost_to_noise(read_own(kept, study))
        show.line(
            f"The message {kept.stem[:12]}… of these patients was made before. Noise is drawn once, because every "
            "other draw would spend ε again: its sums are used as they are, even if the table's values have changed."
        )
        if lost:
            show.line(f"Note: {lost}")
    if question and not agreed(question):
        raise FdtrError("Nothing was written.")
    show_results.message_written(write_again(kept, out, study, within, signer), out, kept, None, json, again=True)


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
    from fdtr.exchange.folder import withdraw as take_back

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
    within: "Round"


def _answered(study: Path, data: Path, total: Path, site: str | None, own: Path | None, number: int) -> _Answered:
    """Read everything, and find the message as it was sent: given, kept at home, or computed again."""
    from fdtr.exchange.kept import find_kept, read_own
    from fdtr.exchange.wire import read_total
    from fdtr.site import read_trajectories, recomputed
    from fdtr.study import Study

    loaded = Study.load(study)
    within = round_of(loaded, number)
    answer = read_total(total, loaded, within)
    rows = read_trajectories(data, loaded, site)
    found = read_own(own, loaded) if own else find_kept(answer, rows.site, loaded)
    if found is not None and loaded.disclosure.epsilon is not None:  # nothing computed again could be compared with it
        return _Answered(loaded, rows, answer, found, within)
    now = recomputed(loaded, rows)
    sent = found or now
    same = sent.sums.close_to(now.sums, _ROUNDED) if sent.sent_as else sent.digest == now.digest
    if not same and sent.site == rows.site:
        show.note(
            f"This table is not the one that the message of {rows.site} was made from. The message as it was sent is "
            f"subtracted ({sent.sums.n.max():.0f} patients), and policies are fitted on this table ({rows.n_patients})."
        )
    return _Answered(loaded, rows, answer, sent, within)


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
    from fdtr.site import fit_federated

    spare_inputs(out, study, data, total, own)
    given = _answered(study, data, total, site, own, round_number)
    fitted = fit_federated(given.study, given.rows, given.total, given.sent)
    fitted.policy.save(out)
    show_results.policy_written(fitted.policy, given.total, out, json)


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
    from fdtr.cli import valued
    from fdtr.exchange.kept import ledger
    from fdtr.exchange.wire import write_values
    from fdtr.signing import require_own
    from fdtr.site import evaluate_site, refuse_values, release_of_values, tell_values
    from fdtr.study import Study

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
        valued.evaluation(given.study, found)
    message = None
    if out is not None:
        message, releases = tell_values(given.study, found), ledger()
        release = release_of_values(given.study, given.rows, message.values)
        releases.require(release)
        if not json:
            valued.leaving(message)
        if not yes and not agreed(f"Write this to {out}?"):
            raise FdtrError("Nothing was written.")
        with releases.recording(release):
            write_values(message, out, given.within, signer)
    if json:
        valued.evaluation_json(given.study, found, message, out)
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
    show_results.total(loaded, total, pooled_coefficients(total), doubtful_messages(read), out, json)


@hub_app.command()
def pool(
    study: StudyPath,
    values: Annotated[list[Path], typer.Argument(metavar="VALUES", help="What every site wrote with site evaluate.")],
    round_number: RoundNumber = 1,
    json: Json = False,
) -> None:
    """Show the sites' values of each method as one: their mean, fixed and random effects. Writes nothing."""
    from fdtr.cli import valued
    from fdtr.exchange.wire import read_values
    from fdtr.hub import pool_values
    from fdtr.study import Study

    loaded = Study.load(study)
    within = round_of(loaded, round_number)
    valued.pooled(loaded, pool_values(loaded, [read_values(path, within) for path in values]), json)
