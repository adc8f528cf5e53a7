"""A site's commands on files (its message, its policy, its values) and in a shared folder."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from fdtr.cli import show
from fdtr.cli.evaluation_output import evaluation_json, show_evaluation, show_released_values, write_page
from fdtr.cli.options import (
    UNSIGNED,
    DataOption,
    DataTable,
    FolderPath,
    HeldOut,
    Json,
    KeyPath,
    LikeSites,
    PostYes,
    ReceiveOnly,
    RoundNumber,
    Scheduler,
    StudyPath,
    Table,
    Workers,
    agreed,
    optional_key,
    round_of,
    spare_inputs,
    spread,
)
from fdtr.disclosure import ValueMessage
from fdtr.errors import FdtrError, WrongSite
from fdtr.exchange.folder import site_session
from fdtr.exchange.folder.round_snapshot import cautions
from fdtr.exchange.folder.site_steps import take_site_steps
from fdtr.exchange.folder_layout import require_apart
from fdtr.exchange.release import Proposal, release_message, release_values, require_open
from fdtr.exchange.release import withdraw as withdraw_release
from fdtr.exchange.site_state.joined_folders import find_joined
from fdtr.exchange.site_state.ledger import site_ledger
from fdtr.exchange.site_state.sent_copies import find_kept, read_own
from fdtr.exchange.wire import inspect, read_total
from fdtr.learners.finished_steps import goes_on
from fdtr.signing import fingerprint_of, require_own
from fdtr.site.fitting import fit_federated, recomputed, verify
from fdtr.site.rows import read_trajectories
from fdtr.site.site_evaluation import (
    evaluate_site,
    refuse_values,
)
from fdtr.site.site_message import is_made_from
from fdtr.study import Study
from fdtr.summary import SiteSummary, Total
from fdtr.trajectories import Trajectories

SiteName = Annotated[str | None, typer.Option("--site", help="This site's name; needed where the table has none.")]
TotalPath = Annotated[Path, typer.Argument(metavar="TOTAL", help="The hub's answer.")]
Own = Annotated[
    Path | None,
    typer.Option(help="This site's message as sent (or its rounded copy), if none was kept."),
]


def summarize(
    context: typer.Context,
    study: StudyPath,
    data: DataTable,
    out: Annotated[Path, typer.Option(help="The message to write.")],
    site: SiteName = None,
    key: KeyPath = None,
    round_number: RoundNumber = 1,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before writing.")] = False,
    sites: LikeSites = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    json: Json = False,
) -> None:
    """Compute this site's message and write one file. It holds sums over patients, never a row. Nothing is sent.

    Refuses where a disclosure rule does, and then writes nothing. A copy is kept at home, because the site has to
    subtract exactly what it sent, and a line in the ledger, because almost the same patients must not be sent again. It
    is signed with --key where the study has a roster. Where the study asks for differential privacy (experimental),
    says first what the noise costs; asked again for the same patients, it writes the kept sums, not others.
    """
    question = None if yes else f"Write this to {out}?"
    on_cluster = partial(spread, context, workers=workers, scheduler=scheduler)
    ask_and_release(study, data, out, site, key, round_number, question, sites, json, on_cluster)


def ask_and_release(
    study: Path,
    data: Table,
    out: Path,
    site: str | None,
    key: Path | None,
    round_number: int,
    question: str | None,
    sites: int | None = None,
    json: bool = False,
    on_cluster: Callable[[Trajectories], Trajectories] = lambda rows: rows,
) -> None:
    """What `fdtr site summarize` does; `question` is asked before anything is written, None where the answer is yes.

    `on_cluster` says where the rows are summed, if not here.
    """

    def confirm(proposal: Proposal) -> bool:
        if not json:
            for sentence in proposal.sentences:
                show.line(sentence)
        return question is None or agreed(question)

    spare_inputs(out, study, data, key)
    loaded = Study.load(study)
    require_open(loaded)
    round_of(loaded, round_number)
    signer, rows = optional_key(key), on_cluster(read_trajectories(data, loaded, site))
    released = release_message(loaded, rows, out, confirm=confirm, round_number=round_number, key=signer, n_sites=sites)
    if json:
        cost = {"differential_privacy": show.privacy_json(released.cost)} if released.cost else {}
        content = {"site": released.summary.site, "patients": int(released.summary.sums.n.max()), "message": out}
        show.as_json({**content, "digest": released.summary.digest, "copy": released.copy, **cost})
        return
    show.line(f"Wrote {out}. Give it to the hub. A copy stays at home: {released.copy}")
    if not released.again:  # else its sums may have been sent before
        show.line(f"If it is never sent, strike it: {show.program()} site withdraw {released.summary.digest[:12]}")


@goes_on
def fit(
    context: typer.Context,
    study: StudyPath,
    data: DataTable,
    total: TotalPath,
    out: Annotated[Path, typer.Option(help="The policy to write; confidential to this site.")],
    site: SiteName = None,
    own: Own = None,
    receive_only: ReceiveOnly = False,
    round_number: RoundNumber = 1,
    workers: Workers = None,
    scheduler: Scheduler = None,
    json: Json = False,
) -> None:
    """Finish this site's policy at home from the hub's total. Writes one file, readable by you alone.

    A site whose sums may not leave learns from the others' total with --receive-only. Its ledger then refuses to
    release sums for this study.
    """
    spare_inputs(out, study, data, total, own)
    on_cluster = partial(spread, context, workers=workers, scheduler=scheduler)
    inputs = _read_inputs(study, data, total, site, own, round_number, receive_only, on_cluster)
    fitted = fit_federated(inputs.study, inputs.rows, inputs.total, inputs.sent, receive_only=receive_only)
    if receive_only:
        site_ledger().receive_only(inputs.study.fingerprint, inputs.rows.site)
    verified = verify(inputs.study, inputs.rows, fitted)
    verified.save(out)
    policy, members = fitted.policy, inputs.total.sites
    others = len({*members} - {policy.site})
    reasons = fitted.choice.reasons(policy.site)
    if json:
        answer = {"site": policy.site, "method": policy.method, "sites": members, "policy": out}
        parts = {"verified": verified.speaks, "settings": policy.settings, "reasons": reasons}
        show.as_json({**answer, **parts, "verified_on": verified.sample})
        return
    show.line(f"Wrote {out}: the policy of {policy.site}, learnt with {others} other sites. Keep it here.")
    for reason in reasons:
        show.line(reason)
    if verified.sample is not None:
        show.line(f"Which part of it the data can verify was judged on {verified.sample}; it was fitted to all.")
    if not verified.speaks:
        show.line("These data can verify no part of it: too few patients were treated as it advises.")


@goes_on
def evaluate(
    study: StudyPath,
    data: DataTable,
    total: TotalPath,
    out: Annotated[
        Path | None, typer.Option(help="The file for the hub: value and standard error of each method. Optional.")
    ] = None,
    site: SiteName = None,
    own: Own = None,
    receive_only: ReceiveOnly = False,
    split: HeldOut = "folds",
    key: KeyPath = None,
    round_number: RoundNumber = 1,
    report: Annotated[
        Path | None, typer.Option(help="A page (HTML) of what was found, for this site's own use. Optional.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before writing.")] = False,
    json: Json = False,
) -> None:
    """Value every method on this site's own patients. Policies, and their tuning, are fitted without those they value.

    Writes nothing, unless --out names a file for the hub; then disclosure decides which values may leave, and the
    ledger refuses those of almost the same patients as before.
    """

    def confirm(message: ValueMessage) -> bool:
        if not json:
            show_released_values(message)
        return yes or agreed(f"Write this to {out}?")

    for written in filter(None, (out, report)):
        spare_inputs(written, study, data, total, own, key)
    if out is not None:
        refuse_values(Study.load(study))  # before the work, not after it
    inputs = _read_inputs(study, data, total, site, own, round_number, receive_only)
    signer = optional_key(key) if out is not None else None
    if out is not None:
        require_own(signer, inputs.rows.site, inputs.study.roster)
    with show.progress() as progress:
        evaluation = evaluate_site(inputs.study, inputs.rows, inputs.total, inputs.sent, split=split, progress=progress)
    if not json:
        show_evaluation(inputs.study, evaluation)
    if report is not None:
        receives = inputs.sent is None and evaluation.site not in inputs.total.sites
        fitted = fit_federated(inputs.study, inputs.rows, inputs.total, inputs.sent, receive_only=receives)
        write_page(inputs.study, inputs.rows, fitted, evaluation, split, report)
    message = None
    if out is not None:
        message = release_values(
            inputs.study, inputs.rows, evaluation, out, confirm=confirm, round_number=round_number, key=signer
        )
    if json:
        show.as_json(evaluation_json(inputs.study, evaluation, message, out))
    else:
        if report is not None:
            show.line(f"Wrote {report}, for this site alone: it was not checked for disclosure.")
        nothing = "Nothing was written. Add --out FILE to tell the hub." if report is None else ""
        show.line(f"Wrote {out}. Give it to the hub." if out else nothing)


def withdraw(
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="The file that was written, or its digest.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask: it was never sent.")] = False,
) -> None:
    """Remove a message that was never sent from the ledger. Its patients may then be released anew.

    Values and a Table 1 are removed in the same way. Only for messages that nobody else ever had: two messages of
    almost the same patients give away those in which they differ. Where it waits to be posted in a joined folder, it is
    deleted at home, and a masked round is given up.
    """
    digest = _digest_of(Path(message)) if Path(message).is_file() else message
    if not yes and not agreed(f"Was {message} never given to anybody, the hub included, in any round?"):
        raise FdtrError("Nothing was struck.")
    struck = withdraw_release(digest)
    for release in struck:
        what = f"{release.message[:12]}… of {release.time}: {release.n:,} patients, site {release.site}"
        show.line(f"Struck {what}. Delete its file.")
    if not struck:
        show.line(f"Deleted {digest[:12]}…, which waited to be posted; the ledger had no record of it.")


def _digest_of(path: Path) -> str:
    """The digest of a message's file, by which ledger and copies know it."""
    body = inspect(path, None, None).body
    if isinstance(body, Total):
        raise FdtrError(f"{path} is the hub's. Name a message or values that were written here, or their digest.")
    return body.digest


class _Inputs(NamedTuple):
    """All that a site needs after the hub answered, `sent` as the message was sent; None if the site only receives."""

    study: Study
    rows: Trajectories
    total: Total
    sent: SiteSummary | None


def _read_inputs(
    study: Path,
    data: Table,
    total: Path,
    site: str | None,
    own: Path | None,
    number: int,
    receive_only: bool,
    on_cluster: Callable[[Trajectories], Trajectories] = lambda rows: rows,
) -> _Inputs:
    """Read everything, and find the message as it was sent: given, kept at home, or computed again."""
    loaded = Study.load(study)
    answer = read_total(total, loaded, round_of(loaded, number))
    rows = read_trajectories(data, loaded, site)
    if receive_only:
        _require_receiver(answer, rows.site, own)
        return _Inputs(loaded, on_cluster(rows), answer, None)
    if rows.site not in answer.sites:
        raise WrongSite(
            f"The total does not contain site {rows.site!r}; it contains {', '.join(answer.sites)}. Nothing was "
            "written. If this site sent nothing and is to learn from the others all the same, add --receive-only."
        )
    rows = on_cluster(rows)
    sent = read_own(own, loaded) if own else find_kept(answer, rows.site, loaded)
    sent = sent or recomputed(loaded, rows, answer)
    if sent.site == rows.site and not is_made_from(loaded, rows, sent, site_ledger()):
        show.note(
            f"This table is not the one that the message of {rows.site} was made from. The message as it was sent is "
            f"subtracted ({sent.sums.n.max():.0f} patients), and policies are fitted on this table ({rows.n_patients})."
        )
    return _Inputs(loaded, rows, answer, sent)


def _require_receiver(total: Total, site: str, own: Path | None) -> None:
    """Refuse to receive only where the site's own sums are in the total, or are given."""
    if site in total.sites or own is not None:
        raise WrongSite(
            f"Site {site!r} is in the total, or its message was given with --own: what it sent has to be subtracted. "
            "Nothing was written. Leave --receive-only out."
        )


def join(
    folder: FolderPath,
    site: Annotated[str, typer.Option("--site", help="This site's name, as in the roster.")],
    data: DataOption,
    key: KeyPath = None,
    study: Annotated[
        Path | None, typer.Option(help="A study file of the same study with this site's own \\[columns].")
    ] = None,
    receive_only: ReceiveOnly = False,
    json: Json = False,
) -> None:
    """Join a study's folder: accept the study and the roster in it. Posts nothing.

    A site whose sums may not leave joins with --receive-only: it tells everybody so, signed, in its first step, and
    finishes a policy from the others' total. That is for good in this study.

    Compare the fingerprints that it prints by telephone: from here on, another roster in the folder is refused.
    """
    own_study = Study.load(study) if study else None
    joined = site_session.join(folder, site, data, key, optional_key(key), own_study, receive_only=receive_only)
    if json:
        answer = {"site": site, "study": joined.study.name, "fingerprint": joined.study.fingerprint}
        show.as_json({**answer, "receive_only": receive_only})
        return
    role = ", to receive only: none of its sums will leave" if receive_only else ""
    show.line(f"Joined {folder} as {site}{role}. Nothing was posted.")
    _show_accepted(joined.study)
    show.line(f"Next: {show.program()} site next {folder} --site {site}")


def _show_accepted(study: Study) -> None:
    """Print the study and the roster that the site accepts by joining."""
    way = "a secure sum: nobody sees this site's sums" if study.disclosure.secure_sum else "open"
    show.line(f"The study {study.name}, fingerprint {study.fingerprint[:32]}; {way}.")
    for caution in cautions(study):
        show.note(caution)
    if not study.disclosure.secure_sum:
        show.note("whoever can read the folder can read this site's sums. See secure_sum under [disclosure].")
    if not study.roster:
        show.note(UNSIGNED)
        return
    rows = [[name, fingerprint_of(key).hex, fingerprint_of(key).words] for name, key in study.roster.items()]
    show.table("Who may speak: compare by telephone", ["site", "fingerprint", "in words"], rows)


def site_next(
    folder: Annotated[
        Path | None, typer.Argument(metavar="FOLDER", help="The study's folder; needed where several were joined.")
    ] = None,
    site: Annotated[str | None, typer.Option("--site", help="This site; needed where several joined here.")] = None,
    out: Annotated[Path | None, typer.Option(help="The policy to write at the end; confidential to this site.")] = None,
    yes: PostYes = False,
    json: Json = False,
) -> None:
    """Do this site's next step in a study's folder. Says what it waits for.

    Sums leave only after the disclosure rules, the ledger, and you agreed. The last step checks the total and writes
    this site's policy.
    """
    joined = find_joined(folder, site)
    require_apart(joined.folder, ("The policy", out))
    if out is not None:
        spare_inputs(out, joined.data, joined.key)

    def agree(proposal: Proposal) -> bool:
        for sentence in () if json else proposal.sentences:
            show.line(sentence)
        masked = joined.study.disclosure.secure_sum
        how = "masked, so that nobody can read it alone" if masked else "where all parties read it"
        again = "" if proposal.counts is None else " You are asked again before the sums leave."
        return yes or agreed(f"Post this in {joined.folder}, {how}?{again}")

    steps = take_site_steps(joined, confirm=agree, key=optional_key(joined.key), out=out)
    show.steps(steps, json)
