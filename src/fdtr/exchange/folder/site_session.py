"""A site in one round: its patients, its key, what it keeps, and how its message is released and posted."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from fdtr.disclosure import Message
from fdtr.disclosure.common_repairs import CommonRepairs
from fdtr.disclosure.masked_counts import SiteCounts
from fdtr.errors import ChangedSummary, DisclosureError, NotJoined, OtherStudy, ProtocolViolation
from fdtr.exchange.atomic_files import clean_up, post, remove, save
from fdtr.exchange.folder.masked_phase import masked_round
from fdtr.exchange.folder.round_snapshot import RoundSnapshot, read_round, read_study
from fdtr.exchange.folder_layout import MASKED, SITE_PARTS, SUMS, require_apart
from fdtr.exchange.release import AGREED_BEFOREHAND, Confirm, Proposal, carry_out, require_agreed
from fdtr.exchange.site_state import state_folder
from fdtr.exchange.site_state.joined_folders import JoinedFolder, RoundState, Sent, joined_place
from fdtr.exchange.site_state.ledger import site_ledger
from fdtr.exchange.site_state.sent_copies import keep, read_copy
from fdtr.exchange.wire import encode_message, read_message
from fdtr.signing import Key, Round, check_site_name, numbered_round, require_own
from fdtr.site.fitting import MessageFit, fit_federated, fit_message
from fdtr.site.rows import read_trajectories
from fdtr.site.site_check import check_total
from fdtr.site.site_message import counts_of, is_made_from, release_of, summarize
from fdtr.study import Study
from fdtr.summary import SiteSummary, Total
from fdtr.trajectories import Trajectories
from fdtr.trajectories.table_in_database import DatabaseTable, as_kept, file_of

_OTHER_REPAIRS = (
    "The sums of these patients of site {site!r} left before in a round of this study. By the counts of this round's "
    "sites, or by a changed table, they would leave with other numbers, and the difference could be told. Nothing was "
    "posted. Begin a round with the same sites and tables as then, or another study. Do not forward this message."
)


def join(
    folder: str | Path,
    site: str,
    data: str | Path | DatabaseTable,
    key: str | Path | None = None,
    signer: Key | None = None,
    own: Study | None = None,
    *,
    receive_only: bool = False,
) -> JoinedFolder:
    """Remember a folder, and the study in it as this site accepts it. Nothing is posted.

    `data` is the site's table; of a table in a database, address and name are remembered, and no password. `own` is a
    study file with the site's own [columns]. A study with a roster requires both `key` and `signer`:

    - `key` is the path of the site's key file. It is remembered, so that later steps find the file.
    - `signer` is the key in that file, opened with its passphrase where it has one. It is compared with the roster now,
      and not stored.

    With `receive_only` the site will send nothing and learn from the others' total. The ledger holds it to that in this
    study.
    """
    folder, key = Path(folder), Path(key) if key is not None else None
    table = as_kept(data if isinstance(data, DatabaseTable) else Path(data))
    check_site_name(site)
    require_apart(folder, ("The state folder", state_folder()), ("The table", file_of(table)), ("The key", key))
    study = read_study(folder)
    require_own(signer, site, study.roster)
    if study.disclosure.secure_sum:
        masked_round(study, numbered_round(study.fingerprint, study.roster, 1))  # refuses a roster that is too small
    if own is not None:
        if own.fingerprint != study.fingerprint:
            raise OtherStudy(
                f"The study in {folder} is another than this site's (fingerprint {study.fingerprint[:12]}…, this "
                f"site's is {own.fingerprint[:12]}…). Nothing was written. Take the folder's; change only [columns]."
            )
        study = Study.model_validate({**study.model_dump(), "columns": own.columns.model_dump()})
    read_trajectories(table, study, site)  # what is wrong with the table is better known now
    if receive_only:
        site_ledger().receive_only(study.fingerprint, site)
    elif site_ledger().receives_only(study.fingerprint):
        raise NotJoined(
            f"Site {site!r} only receives in this study, as it said before, and its ledger holds it to that. Nothing "
            "was written. Join with --receive-only."
        )
    key_file, place = key and key.absolute(), joined_place(study, site)
    joined = JoinedFolder(place, folder.absolute(), site, table, key_file, study, receive_only)
    joined.save()
    return joined


@dataclass
class SiteSession:
    """A site at work in one round. `confirm` shows a proposal and asks; the policy is also written to `out`."""

    joined: JoinedFolder
    state: RoundState
    within: Round
    number: int
    key: Key | None
    confirm: Confirm[Proposal]
    out: Path | None
    notes: list[str] = field(default_factory=list)
    common: CommonRepairs | None = None

    @property
    def site(self) -> str:
        """The name of the site."""
        return self.joined.site

    @property
    def study(self) -> Study:
        """The study as the site accepted it."""
        return self.joined.study

    def snapshot(self) -> RoundSnapshot:
        """The folder as it is now."""
        return read_round(self.joined.folder, self.study)

    @cached_property
    def rows(self) -> Trajectories:
        """The site's patients."""
        return read_trajectories(self.joined.data, self.study, self.site)

    @cached_property
    def fitted(self) -> MessageFit:
        """The fit behind a message of the table as it is now."""
        return fit_message(self.study, self.rows)

    @cached_property
    def own_message(self) -> Message:
        """The message of a secure sum before it is known what all sites take out of theirs."""
        return summarize(self.study, self.rows, site_ledger(), self.fitted, counting=True)

    @cached_property
    def counts(self) -> SiteCounts:
        """What the site counts, on whose total the rules are judged."""
        return counts_of(self.own_message)

    def agree_to_counts(self) -> None:
        """Ask, before counts of patients leave under masks."""
        require_agreed(
            self.confirm, Proposal(self.study, self.own_message.summary, self.own_message, counts=self.counts)
        )

    def require_counted(self) -> None:
        """Refuse a message of another table than the one that was counted: the others rely on the counts."""
        if self.study.counts_first and self.state.counted != self.counts.digest:
            raise ChangedSummary(
                f"The counts of site {self.site!r} in round {self.number} were made from another table than "
                f"{self.joined.data} is now. Nothing was posted. Restore the table, or wait for a new round: `fdtr hub "
                "new-round`."
            )

    @cached_property
    def message(self) -> Message:
        """The message of the table as it is now; refuses where a rule does. Of a secure sum `common` is taken out.

        Noise is drawn once for the same patients, whatever the round: another draw would spend ε again. The rules judge
        the table as it is.
        """
        drawn = self._drawn_before() if self._noised else None
        fitted = self.fitted if drawn is None else MessageFit(self.fitted.fit, lambda: drawn)
        try:
            message = summarize(self.study, self.rows, site_ledger(), fitted, self.common)
        except DisclosureError as error:
            if error.rule == "ONCE" and self.common is not None and self._summed_before():
                raise DisclosureError("ONCE", _OTHER_REPAIRS.format(site=self.site)) from None
            raise
        if self._noised and drawn is None:
            clean_up(keep(message, self.within, self.key), ending="")
            self.joined.save_drawn(self.rows.ids.digest(), message.summary.digest)
        return message

    def _summed_before(self) -> bool:
        """Whether the sums of these very patients left before for this study."""
        return site_ledger().repeated(release_of(self.study, self.rows, None)) is not None

    def _drawn_before(self) -> SiteSummary | None:
        """What the ledger says was released of these very patients, or was drawn for them and not recorded yet."""
        released = site_ledger().repeated(release_of(self.study, self.rows, None))
        digest = released or self.joined.drawn.get(self.rows.ids.digest())
        summary = read_copy(digest, self.study) if digest else None
        return None if summary is None else replace(summary, noised=True)

    @property
    def sent(self) -> Sent:
        """The message of this round that the ledger holds."""
        sent = self.state.sent
        if sent is None:
            raise ProtocolViolation(f"Site {self.site!r} has released nothing in round {self.number}.")
        return sent

    def saved(self) -> SiteSummary:
        """The saved message of this round; makes and saves it where there is none yet."""
        if self.state.outgoing(SUMS) is None:
            self.state.save_outgoing(SUMS, encode_message(self.message, self.within, self.key))
        return read_message(self.state.path(SUMS), self.study)

    def release(self, common: Callable[[], CommonRepairs | None] = lambda: None) -> None:
        """Release the saved message: judge, ask and record it, unless its record stands.

        A failure leaves the message as it is: the next attempt goes on with the very same bytes. `common` says what
        all sites of a secure sum take out.
        """
        self.common = self.common or common()
        if self.study.counts_first and self.common is None:
            raise ProtocolViolation("Nobody knows yet what all sites take out of their sums. Nothing was posted.")
        before, saved = self.state.sent, self.saved()
        if before is not None and before.message == saved.digest and site_ledger().stands(saved.digest):
            return
        if saved.digest != self.message.summary.digest:
            raise ChangedSummary(
                f"The message that waits at home was made from another table than {self.joined.data} is now, and the "
                "ledger does not hold it. Nothing was posted. Restore the table; or take the message back with `fdtr "
                f"site withdraw {saved.digest[:12]}`, and a masked round with it."
            )
        is_open = not self.study.disclosure.secure_sum
        posted = before is not None and before.posted
        carry_out(
            release_of(self.study, self.rows, self.message.summary),
            Proposal(self.study, self.message.summary, self.message),
            partial(self._ask, before=before),
            open_sums=is_open and not posted,
            keep_copy=self._keep if is_open else None,
            refusal="Nothing was posted.",
        )
        self.state.save_sent(Sent(saved.digest, saved.content, self.number, posted))

    def _ask(self, proposal: Proposal, before: Sent | None) -> bool:
        """Show the message and ask. After a no the saved message is removed, since the table may change then."""
        agreed = False
        try:
            agreed = self.confirm is AGREED_BEFOREHAND or self.confirm(proposal) is True
        finally:  # nobody there to ask, or Ctrl-C, is a no
            stays = before is not None or self._noised or site_ledger().stands(proposal.summary.digest)
            if not agreed and not stays:
                remove(self.state.path(SUMS))
        return agreed

    def _keep(self) -> Path:
        path = keep(self.message, self.within, self.key)
        clean_up(path, ending="")
        return path

    def clean_up(self, snapshot: RoundSnapshot) -> None:
        """Remove what a crash left half-written of this site's postings."""
        for part in SITE_PARTS:
            clean_up(snapshot.path(part, self.site))

    def post(self, snapshot: RoundSnapshot, part: str) -> bool:
        """Post a saved part; whether it is new. Sums are posted only while their record stands."""
        content = self.state.outgoing(part)
        if content is None:
            return False
        if part not in (SUMS, MASKED):
            return post(snapshot.path(part, self.site), content)
        self.release(lambda: self.state.common)
        return post(snapshot.path(part, self.site), content, self._begin_posting)

    def finish(self, snapshot: RoundSnapshot, own: SiteSummary | None) -> str:
        """Check the total, fit from it, and write the policy. `own` is None where the site only receives."""
        total = snapshot.checked_total()
        others = len([site for site in total.sites if site != self.site])
        self.common = self.common or self.state.common
        fitted = fit_federated(self.study, self.rows, total, own, receive_only=own is None)
        self._compare(own, total)
        private = self.state.place / f"round-{self.number}.policy"
        fitted.policy.save(private)
        out = (self.out or private).absolute()
        if out != private:
            save(out, private.read_bytes())
        self.state.finish(out)
        self.out = None
        return f"Checked the total and wrote this site's policy, learnt with {others} others: {out}"

    def _begin_posting(self) -> None:
        if not self.sent.posted:
            self.state.save_sent(replace(self.sent, posted=True))

    @property
    def _noised(self) -> bool:
        return self.study.disclosure.epsilon is not None

    def _compare(self, own: SiteSummary | None, total: Total) -> None:
        if own is not None and not is_made_from(self.study, self.rows, own, site_ledger(), self.common):
            self.notes.append(
                "The table is not the one that this site's message was made from. The message as it was sent is "
                "subtracted, and the policy is fitted on the table as it is now."
            )
        self.notes.append(check_total(self.study, self.rows, total, own).sentence)
