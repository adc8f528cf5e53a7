"""A site's release: everything about its patients leaves through `carry_out`, as one transaction.

Its public callers are `release_message`, `release_values`, `release_table` and `take_site_steps`. Only counts that a
secure sum opens before the sums leave without it, under masks, after a person agreed. The steps, in this order, for a
file, a package, a shared folder and a network:

1. Judge: the disclosure rules, rule ONCE against the ledger, and that the numbers are in no opened secure sum.
2. Show what would leave, and ask a person.
3. Keep a copy of a message: the site has to subtract later exactly what it sent.
4. Record the release in the ledger. From judging ONCE again to recording, no other process can record.
5. Write. The record is taken back where surely nothing was written, and stays where something may have been.

Whatever fails or dies in between, no message exists outside the site that the ledger does not record.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, Literal, TypeVar

from fdtr import container
from fdtr.disclosure import Message, Release, TableOne, ValueMessage, lost_to_noise
from fdtr.disclosure.masked_counts import SiteCounts
from fdtr.disclosure.noise import Cost
from fdtr.errors import FdtrError, NotWithdrawable, OutputExists, PerhapsWritten, UnreadableFile, WrongSite
from fdtr.exchange.folder_layout import MASKED, ROUNDS, SUMS, file_name, round_folder
from fdtr.exchange.site_state.joined_folders import JoinedFolder, RoundState, all_joined
from fdtr.exchange.site_state.ledger import FEWEST_DIGITS, Recorded, site_ledger
from fdtr.exchange.site_state.release_guard import read_history, require_never_summed
from fdtr.exchange.site_state.sent_copies import copy_path, find_copy, keep, read_own, write_again
from fdtr.exchange.wire import is_table_one, read_message, write_message, write_table, write_values
from fdtr.signing import Key, Round, check_site_name, numbered_round, require_own
from fdtr.site.fitting import cost_of, fit_message
from fdtr.site.site_evaluation import SiteEvaluation, summarize_values
from fdtr.site.site_message import release_of, release_of_values, summarize
from fdtr.site.site_table_one import release_of_table
from fdtr.study import Study
from fdtr.summary import SiteSummary
from fdtr.trajectories import Trajectories

Shown = TypeVar("Shown")


class _Agreed(Enum):
    BEFOREHAND = "agreed beforehand"


AGREED_BEFOREHAND: Final = _Agreed.BEFOREHAND
"""Pass this as `confirm` where a person has agreed already. Nothing is shown then, and nobody is asked."""

Confirm = Callable[[Shown], bool] | Literal[_Agreed.BEFOREHAND]
"""A function that shows a person what would leave and returns their answer, or `AGREED_BEFOREHAND`.

Only `True` is a yes: the text that `input` returns is not.
"""


@dataclass(frozen=True)
class Proposal:
    """A message that passed every rule, before anything is written. `print(proposal)` says what would leave.

    `summary` holds the sums. `message` has the verdicts of the rules; it is None where the sums were released before
    and are used again. `cost` is the cost of differential privacy, None where the study adds no noise.
    `counts` are what leaves now where a secure sum opens totals of counts first: the sums follow, and are asked about.
    """

    study: Study
    summary: SiteSummary
    message: Message | None
    cost: Cost | None = None
    counts: SiteCounts | None = None

    @property
    def again(self) -> bool:
        """Whether these sums were released before."""
        return self.message is None

    @property
    def sentences(self) -> tuple[str, ...]:
        """What would leave, line by line, for the site's own eyes."""
        if self.counts is not None:
            return describe_counts(self.study, self.summary.site)
        if self.message is not None:
            return describe_message(self.study, self.message, self.cost)
        lost = lost_to_noise(self.summary)
        repeated = (
            f"The message {self.summary.digest[:12]}… of these patients was made before. Noise is drawn once, because "
            "every other draw would spend ε again: its sums are used as they are, even if the table's values have "
            "changed."
        )
        return (repeated, f"Note: {lost}") if lost else (repeated,)

    def __str__(self) -> str:
        return "\n".join(self.sentences)


@dataclass(frozen=True)
class ReleasedMessage:
    """A message that was written to `path`: its `summary`, the site's own `copy` of it, and the `cost` of privacy.

    `again` is true where noised sums of an earlier release were written once more: noise is drawn once.
    """

    summary: SiteSummary
    path: Path
    copy: Path
    cost: Cost | None
    again: bool


def carry_out(
    entry: Release,
    shown: Shown,
    confirm: Confirm[Shown],
    *,
    open_sums: bool,
    keep_copy: Callable[[], Path] | None = None,
    write: Callable[[], None] | None = None,
    refusal: str = "Nothing was written.",
) -> None:
    """Judge ONCE, ask, keep a copy, record and write.

    `entry` is the release as the ledger records it, and `shown` what `confirm` is asked about. `open_sums` says that
    the hub will read these sums: they must not be part of an opened secure sum. Without `write` the release is recorded
    for good, and the caller posts it later. A copy is removed again where it was made here and nothing left.
    """
    releases = site_ledger()
    releases.require(entry)
    if open_sums:
        require_never_summed(entry.content)
    require_agreed(confirm, shown, refusal)
    is_new = find_copy(entry.message) is None
    copy = keep_copy() if keep_copy else None
    try:
        with releases.recording(entry):
            if open_sums:
                require_never_summed(entry.content, recorded=True)
            if write:
                write()
    except FdtrError as error:
        # Otherwise it is the copy of an earlier release, or of a message that somebody may have.
        if copy is not None and is_new and not isinstance(error, PerhapsWritten):
            copy.unlink()
        raise


def require_confirm(confirm: object) -> None:
    """Refuse a `confirm` that nobody could be asked with, such as True, before anything is computed."""
    if confirm is not AGREED_BEFOREHAND and not callable(confirm):
        raise TypeError(
            f"confirm is {confirm!r}. Nothing was written. Give a function that shows a person what would leave and "
            "returns their answer; or fdtr.exchange.AGREED_BEFOREHAND, where a person has agreed already."
        )


def require_agreed(confirm: Confirm[Shown], shown: Shown, refusal: str = "Nothing was written.") -> None:
    """Ask with `confirm`, and refuse without a yes."""
    if confirm is not AGREED_BEFOREHAND and confirm(shown) is not True:
        raise FdtrError(refusal)


def release_message(
    study: Study,
    rows: Trajectories,
    out: str | Path,
    *,
    confirm: Confirm[Proposal],
    round_number: int = 1,
    key: Key | None = None,
    n_sites: int | None = None,
) -> ReleasedMessage:
    """Write a site's message to `out`: sums over the patients in `rows`, never a row.

    Nothing leaves unless every disclosure rule passed, `confirm` agreed, and the ledger recorded the release; each
    refusal raises and writes nothing. `confirm` gets a `Proposal`. The message is signed with `key`, which a study with
    a roster requires. With differential privacy noise is drawn once: for patients who were released before, the sums of
    that release are written again. `n_sites` is the number of sites for which its cost is told.
    `help(fdtr.exchange)` has an example.
    """
    require_confirm(confirm)
    out = Path(out)
    require_open(study)
    within = _checked(study, rows, out, round_number, key)
    before = _released_before(study, rows)
    if before is not None:
        require_agreed(confirm, Proposal(study, read_own(before, study), None))
        return ReleasedMessage(write_again(before, out, study, within, key), out, before, None, again=True)
    fitted = fit_message(study, rows)
    message = summarize(study, rows, site_ledger(), fitted)
    cost = cost_of(study, fitted.fit, n_sites)
    carry_out(
        release_of(study, rows, message.summary),
        Proposal(study, message.summary, message, cost),
        confirm,
        open_sums=True,
        keep_copy=lambda: keep(message, within, key),
        write=lambda: write_message(message, out, within, key),
    )
    return ReleasedMessage(message.summary, out, copy_path(message.summary.digest), cost, again=False)


def release_values(
    study: Study,
    rows: Trajectories,
    evaluation: SiteEvaluation,
    out: str | Path,
    *,
    confirm: Confirm[ValueMessage],
    round_number: int = 1,
    key: Key | None = None,
) -> ValueMessage:
    """Write the value and standard error of each method to `out`; what was released and what was withheld.

    `rows` are all patients of the table, since those who were not valued were fitted to. Nothing leaves unless the
    rules let it, `confirm` agreed to the `ValueMessage`, and the ledger recorded it.
    """
    require_confirm(confirm)
    out = Path(out)
    _require_evaluated(rows, evaluation)
    message = summarize_values(study, evaluation)
    within = _checked(study, rows, out, round_number, key)
    carry_out(
        release_of_values(study, rows, message.values),
        message,
        confirm,
        open_sums=False,
        write=lambda: write_values(message, out, within, key),
    )
    return message


def release_table(
    study: Study, rows: Trajectories, table: TableOne, out: str | Path, *, confirm: Confirm[TableOne]
) -> None:
    """Write a site's Table 1, as `fdtr.site.summarize_table` made it from `rows`, to `out` as CSV.

    Nothing leaves unless every cell passed the rules, `confirm` agreed to the table, and the ledger recorded it. An
    earlier Table 1 at `out` is replaced; any other file is refused.
    """
    require_confirm(confirm)
    if table.site != rows.site:
        raise WrongSite(
            f"The Table 1 is of site {table.site!r}, and the rows are of {rows.site!r}: the ledger would record other "
            "patients than those who are told of. Nothing was written. Give the rows that the table was made from."
        )
    if Path(out).is_file() and not is_table_one(out):
        raise OutputExists(f"{out} is a file that fdtr did not write. Nothing was written. Name another.")
    carry_out(
        release_of_table(study, rows, table),
        table,
        confirm,
        open_sums=False,
        write=lambda: write_table(table, out),
    )


def withdraw(digest: str) -> list[Recorded]:
    """Strike a release from the ledger, by its digest or the first digits of it; the entries that were struck.

    Only for what nobody else ever had: two messages of almost the same patients give away those in which they differ.
    Where a joined folder holds the message, it is deleted there, and the masks of its round with it, so that no later
    step posts what the ledger lacks. Refused once its posting began.
    """
    releases, folders = site_ledger(), all_joined() if len(digest) >= FEWEST_DIGITS else []
    with ExitStack() as locks:
        for joined in folders:
            locks.enter_context(joined.locked())
        held = [
            (joined, state)
            for joined in folders
            for state in joined.rounds()
            if _digest_of(joined, state).startswith(digest)
        ]
        for joined, state in held:
            _require_unposted(joined, state)
        for joined in folders:
            is_at_home = any(joined == holder and state.sent is None for holder, state in held)
            _require_no_lost_posting(joined, digest, is_at_home)
        for joined, state in held:  # before it is struck: a record without its message does no harm, the reverse would
            joined.forget_drawn()
            state.forget()
        standing = any(entry.message.startswith(digest) and not entry.withdrawn for entry in releases.recorded())
        return releases.withdraw(digest) if standing or not held else []


def require_open(study: Study) -> None:
    """Refuse a message that the hub could read, where the study asks for a secure sum."""
    if study.disclosure.secure_sum:
        raise FdtrError(
            "The study asks for a secure sum, and this file would show the hub this site's own sums. Nothing was "
            "written. Take part through the study's folder instead."
        )


def describe_counts(study: Study, site: str) -> tuple[str, ...]:
    """What leaves before the sums of a secure sum, line by line."""
    return (
        f"The counts of site {site} for the study {study.name}, before its sums:",
        f"  {study.count_layout.length:,} numbers under masks. Everybody will read their totals over all sites, by",
        "  step and action: of patients; of those in the rarer value of each shared column, at each reference level,",
        "  in the cells of each pair of columns, and of those who stand out by an outcome; each rounded down to fives",
        "  and capped. Of each, also the largest part of one site, without its name; of the last three, whether",
        "  anybody has one to four; and how much each shared column varies. The rules are judged on these totals.",
    )


def describe_message(study: Study, message: Message, cost: Cost | None = None) -> tuple[str, ...]:
    """What a message holds, line by line, for the site's own eyes."""
    summary = message.summary
    sums = summary.sums
    numbers = sum(array.size for array in summary.payload.packed().values())
    patients = f"{int(sums.n.max()):,} patients, {sums.horizon} steps"
    lines = [
        f"The message of site {summary.site} for the study {study.name}:",
        f"  {numbers} sums over {patients}, {sums.n_shared} shared features.",
        f"  Nobody's leverage in them is more than {message.leverage:.2f}.",
    ]
    if summary.grams is not None:
        n_features = summary.grams.n_features
        lines.append(f"  They are those of all {n_features} features, the site's own included: an audit message.")
    if message.kept is not None and any(verdict.repaired for verdict in message.verdicts):
        left = f"{message.kept.share:.0%} of the independent directions"
        lines.append(f"  The rules leave {left} of the shared features.")
    private = [f"  {line}" for line in (message.kept.lines if message.kept is not None else ())]
    private += [f"  {sentence}" for sentence in (cost.sentences if cost else ())]
    private += [
        f"  {'Withheld' if verdict.withholds else 'Note'}: {verdict.sentence}"
        for verdict in message.verdicts
        if verdict.withholds or verdict.warns
    ]
    if message.lost:
        private.append(f"  Note: {message.lost}")
    return (*lines, *private, *(["  Do not forward these lines."] if private else []))


def _require_evaluated(rows: Trajectories, evaluation: SiteEvaluation) -> None:
    """Refuse values of patients whom the ledger would not record."""
    evaluated = evaluation.evaluator.rows
    strangers = {*evaluated.patients.to_pylist()}
    for ids in rows.id_batches():
        strangers.difference_update(ids.to_pylist())
    if evaluation.site != rows.site or strangers:
        raise WrongSite(
            f"The values are of {evaluated.n_patients:,} patients of site {evaluation.site!r} who are not all among "
            f"the rows, {rows.n_patients:,} patients of {rows.site!r}: the ledger would record others. Nothing was "
            "written. Give all rows of the site that was evaluated."
        )


def _checked(study: Study, rows: Trajectories, out: Path, round_number: int, key: Key | None) -> Round:
    """The round that a file is written for; refuses a sender, a key or a place that nobody would accept."""
    check_site_name(rows.site)
    require_own(key, rows.site, study.roster)
    if out.is_file() and not container.is_container(out):
        raise OutputExists(f"{out} is a file that fdtr did not write. Nothing was written. Name another.")
    return numbered_round(study.fingerprint, study.roster, round_number)


def _released_before(study: Study, rows: Trajectories) -> Path | None:
    """The copy of the noised message by which these very patients were released for the study."""
    if study.disclosure.epsilon is None:
        return None
    digest = site_ledger().repeated(release_of(study, rows, None))
    return find_copy(digest) if digest else None


def _digest_of(joined: JoinedFolder, state: RoundState) -> str:
    """The digest of the message of a round; empty where there is none."""
    if state.sent is not None:
        return state.sent.message
    return read_message(state.path(SUMS), joined.study).digest if state.path(SUMS).exists() else ""


def _require_unposted(joined: JoinedFolder, state: RoundState) -> None:
    sent = state.sent
    if sent is None:  # not recorded yet, or its record is lost: `_require_no_lost_posting` tells
        return
    if not joined.folder.is_dir():
        raise UnreadableFile(
            f"Whether the message lies in {joined.folder} cannot be told: the folder is not there. Nothing was struck. "
            "Connect it, and run the same command again."
        )
    round_place = round_folder(joined.folder, sent.number)
    if sent.posted or any((round_place / part / file_name(joined.site)).exists() for part in (SUMS, MASKED)):
        raise NotWithdrawable(
            f"The message was posted in round {sent.number} of {joined.folder}, or its posting began and failed, and "
            "others may have read it. Nothing was struck: what nobody remembers could be given away a second time."
        )


def _require_no_lost_posting(joined: JoinedFolder, digest: str, is_at_home: bool) -> None:
    """Refuse a message that may lie in a round of the shared folder of which this site's `sent.json` is lost.

    A posting of such a round may be any message that waits `is_at_home` without a record. A folder that cannot be
    reached has no postings.
    """
    recorded = {str(state.sent.number) for state in joined.rounds() if state.sent is not None}
    for part in (SUMS, MASKED):
        for posting in sorted((joined.folder / ROUNDS).glob(f"*/{part}/{file_name(joined.site)}")):
            number = posting.parents[1].name
            if number not in recorded and (is_at_home or _may_hold(posting, joined.study, digest)):
                raise NotWithdrawable(
                    f"A message of site {joined.site!r} was posted in round {number} of {joined.folder}, and what this "
                    "site noted of it, sent.json, is lost. It may be this message, and others may have read it. "
                    "Nothing was struck: what nobody remembers could be given away a second time."
                )


def _may_hold(posting: Path, study: Study, digest: str) -> bool:
    """Whether a posting holds a message, by its digest.

    An open one is read. A masked one may hold it where a secure sum was opened with its numbers.
    """
    if posting.parent.name == SUMS:
        try:
            return read_message(posting, study).digest.startswith(digest)
        except FdtrError:  # a stranger's file
            return False
    contents = {entry.content for entry in site_ledger().recorded() if entry.message.startswith(digest)}
    opened = [past for past in read_history().rounds if past.survivors is not None]
    return any(past.study == study.fingerprint and past.content in contents for past in opened)
