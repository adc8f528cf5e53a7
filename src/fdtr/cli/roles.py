"""The commands of the two roles, site and hub, and of a policy."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from fdtr.cli import show
from fdtr.errors import FdtrError, InvalidStates, OutputExists

if TYPE_CHECKING:
    from fdtr.study import Study
    from fdtr.summary import SiteSummary, Total
    from fdtr.trajectories import Trajectories

site_app = typer.Typer(help="A hospital's part.", no_args_is_help=True)
hub_app = typer.Typer(help="The hub's part.", no_args_is_help=True)
policy_app = typer.Typer(help="Use a policy.", no_args_is_help=True)

StudyPath = Annotated[Path, typer.Argument(metavar="STUDY", help="The study file (TOML).")]
DataPath = Annotated[Path, typer.Argument(metavar="DATA", help="This site's table.")]
Json = Annotated[bool, typer.Option("--json", help="Print a machine's view instead of a person's.")]
SiteName = Annotated[str | None, typer.Option("--site", help="This site's name; needed where the table has none.")]
TotalPath = Annotated[Path, typer.Argument(metavar="TOTAL", help="The hub's answer.")]
LikeSites = Annotated[
    int | None,
    typer.Option("--sites", min=1, help="Tell the cost of differential privacy at so many sites like this one."),
]
Own = Annotated[Path | None, typer.Option(help="This site's message as sent, where no copy was kept here.")]


@site_app.command()
def summarize(
    study: StudyPath,
    data: DataPath,
    out: Annotated[Path, typer.Option(help="The message to write.")],
    site: SiteName = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before writing.")] = False,
    sites: LikeSites = None,
    json: Json = False,
) -> None:
    """Compute this site's message and write one file: sums over patients, never a row. Nothing is sent.

    Refuses where a disclosure rule does, and then writes nothing. A copy is kept at home, because the site has to
    subtract exactly what it sent, and a line in the ledger, because almost the same patients must not be sent again.
    Where the study asks for differential privacy (experimental), says first what the noise costs; asked again for the
    same patients, it writes the kept message, not another one.
    """
    from fdtr.exchange.kept import find_copy, keep, ledger
    from fdtr.exchange.wire import write_message
    from fdtr.site import cost_of, fit_local, read_trajectories, release_of
    from fdtr.site import summarize as summarize_site
    from fdtr.study import Study

    _spare_inputs(out, study, data)
    loaded = Study.load(study)
    if loaded.disclosure.secure_sum:
        raise FdtrError(
            "The study asks for a secure sum, and this file would show the hub this site's own sums. Nothing was "
            "written. Take part through the study's folder instead."
        )
    rows, releases = read_trajectories(data, loaded, site), ledger()
    if loaded.disclosure.epsilon is not None and _written_again(loaded, rows, out, yes, json):
        return
    fitted = fit_local(loaded, rows)
    message = summarize_site(loaded, rows, releases, fitted)
    cost = cost_of(loaded, fitted.fit, sites)
    if not json:
        show.message(loaded, message, cost)
    if not yes and not _agreed(f"Write this to {out}?"):
        raise FdtrError("Nothing was written.")
    before = find_copy(message.summary.digest)
    with releases.recording(release_of(loaded, rows, message.summary)):
        kept = keep(message)
        try:
            write_message(message, out)
        except FdtrError:
            if before is None:  # else it is the copy of the same message, made earlier
                kept.unlink()
            raise
    show.message_written(message.summary, out, kept, cost, json)


def _written_again(study: "Study", rows: "Trajectories", out: Path, yes: bool, json: bool) -> bool:
    """Write the kept copy where these patients were released with noise before: other noise would tell more of them."""
    from fdtr.container import write_atomically
    from fdtr.exchange.kept import find_copy, ledger
    from fdtr.exchange.wire import read_message
    from fdtr.site import release_of

    before = ledger().repeated(release_of(study, rows, None))
    kept = find_copy(before) if before else None
    if kept is None:
        return False
    if not json:
        show.line(
            f"The message {str(before)[:12]}… of these patients was made before. Noise is drawn once, because every "
            "other draw would spend ε again: it is used as it is, even if the table's values have changed since."
        )
    if not yes and not _agreed(f"Write this to {out}?"):
        raise FdtrError("Nothing was written.")
    write_atomically(out, kept.read_bytes())
    show.message_written(read_message(kept), out, kept, None, json)
    return True


@site_app.command()
def withdraw(
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="The message's file, or its digest.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask: it was never sent.")] = False,
) -> None:
    """Strike a message that was never sent from this site's ledger, so that its patients may be released anew.

    Only for messages that nobody else ever had: two messages of almost the same patients give away those in which they
    differ.
    """
    from fdtr.exchange.kept import ledger
    from fdtr.exchange.wire import read_message

    digest = read_message(message).digest if Path(message).is_file() else message
    if not yes and not _agreed(f"Was {message} never given to anybody, the hub included?"):
        raise FdtrError("Nothing was struck.")
    for one in ledger().withdraw(digest):
        show.line(f"Struck {one.message[:12]}… of {one.time}: {one.n:,} patients, site {one.site}. Delete its file.")


def _agreed(question: str) -> bool:
    """Ask on a terminal; elsewhere the answer has to be --yes."""
    if not sys.stdin.isatty():
        raise FdtrError("Nothing was written: there is no terminal to ask on. Add --yes to answer beforehand.")
    return typer.confirm(question)


def _spare_inputs(out: Path, *inputs: Path | None) -> None:
    """Refuse to overwrite what a command reads, and files that are none of ours."""
    from fdtr.container import is_container

    if out.is_file() and not is_container(out):
        raise OutputExists(f"{out} is a file that fdtr did not write. Nothing was written. Name another with --out.")
    if any(path is not None and path.resolve() == out.resolve() for path in inputs):
        raise OutputExists(f"{out} is one of the files to read. Nothing was written. Name another with --out.")


class _Answered(NamedTuple):
    """A site with the hub's answer in hand."""

    study: "Study"
    rows: "Trajectories"
    total: "Total"
    sent: "SiteSummary"


def _answered(study: Path, data: Path, total: Path, site: str | None, own: Path | None) -> _Answered:
    """Read everything, and find the message as it was sent: given, kept at home, or computed again."""
    from fdtr.exchange.kept import find_kept
    from fdtr.exchange.wire import read_message, read_total
    from fdtr.site import read_trajectories, recomputed
    from fdtr.study import Study

    loaded = Study.load(study)
    answer = read_total(total)
    rows = read_trajectories(data, loaded, site)
    sent = read_message(own) if own else find_kept(answer, rows.site)
    if sent is not None and loaded.disclosure.epsilon is not None:
        return _Answered(loaded, rows, answer, sent)
    now = recomputed(loaded, rows)
    sent = sent or now
    if sent.digest != now.digest:
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
    json: Json = False,
) -> None:
    """Finish this site's policy at home from the hub's total. Writes one file, readable by you alone."""
    from fdtr.site import fit_federated

    _spare_inputs(out, study, data, total, own)
    given = _answered(study, data, total, site, own)
    fitted = fit_federated(given.study, given.rows, given.total, given.sent)
    fitted.policy.save(out)
    show.policy_written(fitted.policy, given.total, out, json)


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
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before writing.")] = False,
    json: Json = False,
) -> None:
    """Value every method on this site's own patients, each by policies fitted without them, tuning included.

    Writes nothing, unless --out names a file for the hub; then disclosure decides which values may leave.
    """
    from fdtr.cli import valued
    from fdtr.exchange.wire import write_values
    from fdtr.site import evaluate_site, refuse_values, tell_values
    from fdtr.study import Study

    if out is not None:
        _spare_inputs(out, study, data, total, own)
        refuse_values(Study.load(study))  # before the work, not after it
    given = _answered(study, data, total, site, own)
    with show.progress() as progress:
        found = evaluate_site(given.study, given.rows, given.total, given.sent, progress=progress)
    message = tell_values(given.study, found) if out is not None else None
    if json:
        valued.evaluation_json(found, message, out)
    else:
        valued.evaluation(given.study, found, message, out)
    if message is not None and out is not None:
        if not yes and not _agreed(f"Write this to {out}?"):
            raise FdtrError("Nothing was written.")
        write_values(message, out)
        if not json:
            show.line(f"Wrote {out}. Give it to the hub.")


@hub_app.command()
def combine(
    study: StudyPath,
    messages: Annotated[list[Path], typer.Argument(metavar="MESSAGE", help="One file from every site.")],
    out: Annotated[Path, typer.Option(help="The total to write.")],
    json: Json = False,
) -> None:
    """Add the sites' messages into one total and write one file, to be given to every site."""
    from fdtr.exchange.wire import read_message, write_total
    from fdtr.hub import combine_messages, pooled_coefficients
    from fdtr.study import Study

    _spare_inputs(out, study, *messages)
    loaded = Study.load(study)
    total = combine_messages(loaded, [read_message(path) for path in messages])
    write_total(total, out)
    show.total(loaded, total, pooled_coefficients(total), out, json)


@hub_app.command()
def pool(
    study: StudyPath,
    values: Annotated[list[Path], typer.Argument(metavar="VALUES", help="What every site wrote with site evaluate.")],
    json: Json = False,
) -> None:
    """Show the sites' values of each method as one: their mean, fixed and random effects. Writes nothing."""
    from fdtr.cli import valued
    from fdtr.exchange.wire import read_values
    from fdtr.hub import pool_values
    from fdtr.study import Study

    loaded = Study.load(study)
    valued.pooled(loaded, pool_values(loaded, [read_values(path) for path in values]), json)


@policy_app.command()
def recommend(
    policy: Annotated[Path, typer.Argument(metavar="POLICY", help="A policy file.")],
    state: Annotated[list[str], typer.Argument(metavar="NAME=VALUE", help="The patient's state, in raw units.")],
    step: Annotated[int, typer.Option(help="Which decision, from 0.")] = 0,
    json: Json = False,
) -> None:
    """Show what a policy would do for one state, and why: for every action the estimate, the penalty, the bound.

    Writes and sends nothing. Research software: not for bedside use.
    """
    from fdtr.policy import Policy

    loaded = Policy.load(policy)
    show.recommendation(loaded, loaded.explain(_parse_state(state, loaded.features.covariates), step), json)


def _parse_state(pairs: list[str], known: tuple[str, ...]) -> dict[str, float]:
    state: dict[str, float] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InvalidStates(f"Give the state as NAME=VALUE without spaces; {name!r} has no value.")
        if name in state:
            raise InvalidStates(f"{name!r} is given twice.")
        if name not in known:
            raise InvalidStates(f"The policy knows no {name!r}. It needs {', '.join(known)}.")
        try:
            state[name] = float(value)
        except ValueError:
            raise InvalidStates(f"The value of {name!r} is not a number. Write a decimal point, no comma.") from None
    return state
