"""A site at its turn: its patients, its key, what it keeps, and how it asks before anything leaves."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from fdtr.disclosure import Message
from fdtr.errors import ChangedSummary, OutOfTurn
from fdtr.exchange import kept, release
from fdtr.exchange.folder.board import Board, read_board
from fdtr.exchange.folder.drawn import noised_message
from fdtr.exchange.folder.durable import post, remove, save, sweep
from fdtr.exchange.folder.home import Home, RoundHome, Sent
from fdtr.exchange.folder.layout import SUMS
from fdtr.exchange.folder.parts import CONFIRMED, KEYS, MASKED, OPENED
from fdtr.exchange.wire import encode_message, read_message
from fdtr.signing import Key, Round
from fdtr.site import (
    MessageFit,
    check_total,
    fit_federated,
    fit_message,
    read_trajectories,
    release_of,
    summarize,
)
from fdtr.study import Study
from fdtr.summary import SiteSummary, Total
from fdtr.trajectories import Trajectories

PARTS = (SUMS, KEYS, MASKED, CONFIRMED, OPENED)
Agree = Callable[[Message], bool]
"""Shows a person what is about to leave the site, and asks."""


@dataclass
class Player:
    """A site in one round: what it has at home, its key, and how it asks and answers."""

    home: Home
    mine: RoundHome
    within: Round
    number: int
    key: Key | None
    agree: Agree
    out: Path | None
    notes: list[str] = field(default_factory=list)

    @property
    def site(self) -> str:
        """Its name."""
        return self.home.site

    @property
    def study(self) -> Study:
        """As the site accepted it."""
        return self.home.study

    def board(self) -> Board:
        """The folder as it is now."""
        return read_board(self.home.folder, self.study)

    @cached_property
    def rows(self) -> Trajectories:
        """The site's patients."""
        return read_trajectories(self.home.data, self.study, self.site)

    @cached_property
    def fitted(self) -> MessageFit:
        """The fit behind a message of the table as it is now."""
        return fit_message(self.study, self.rows)

    @cached_property
    def message(self) -> Message:
        """What may leave the site, of the table as it is now; refuses where a rule does."""
        if self._noised:
            return noised_message(self.home, self.rows, self.fitted, self.within, self.key)
        return summarize(self.study, self.rows, kept.ledger(), self.fitted)

    @property
    def sent(self) -> Sent:
        """What the ledger holds of this round."""
        sent = self.mine.sent
        if sent is None:
            raise OutOfTurn(f"Site {self.site!r} has released nothing in round {self.number}.")
        return sent

    def saved(self) -> SiteSummary:
        """The message of this round as it lies at home, made and saved where there is none yet."""
        if self.mine.outgoing(SUMS) is None:
            self.mine.save_outgoing(SUMS, encode_message(self.message, self.within, self.key))
        return read_message(self.mine.path(SUMS), self.study)

    def release(self) -> None:
        """Judge the message that lies at home, ask, and write it into the ledger, unless it stands there.

        A failure leaves the message and the record as they are: the next turn goes on with the very same bytes.
        """
        before, saved = self.mine.sent, self.saved()
        if before is not None and before.message == saved.digest and kept.ledger().stands(saved.digest):
            return
        if saved.digest != self.message.summary.digest:
            raise ChangedSummary(
                f"The message that waits at home was made from another table than {self.home.data} is now, and the "
                "ledger does not hold it. Nothing was posted. Restore the table; or take the message back with `fdtr "
                f"site withdraw {saved.digest[:12]}`, and a masked round with it."
            )
        is_open = not self.study.disclosure.secure_sum
        posted = before is not None and before.posted
        release.carry_out(
            release_of(self.study, self.rows, self.message.summary),
            self.message,
            partial(self._ask, before=before),
            open_sums=is_open and not posted,
            keep_copy=self._keep if is_open else None,
            refusal="Nothing was posted.",
        )
        self.mine.save_sent(Sent(saved.digest, saved.content, self.number, posted))

    def _ask(self, message: Message, before: Sent | None) -> bool:
        """Show the message and ask; whoever says no, or cannot be asked, may want to change the table."""
        agreed = False
        try:
            agreed = self.agree(message) is True
        finally:  # nobody there to ask, or Ctrl-C, is a no
            stands = before is not None or self._noised or kept.ledger().stands(message.summary.digest)
            if not agreed and not stands:
                remove(self.mine.path(SUMS))
        return agreed

    def _keep(self) -> Path:
        path = kept.keep(self.message, self.within, self.key)
        sweep(path, ending="")
        return path

    def sweep(self, board: Board) -> None:
        """Remove what a crash left half-written of this site's postings."""
        for part in PARTS:
            sweep(board.path(part, self.site))

    def post(self, board: Board, part: str) -> bool:
        """Post what was saved at home; whether it was not there yet. Sums are posted only while their record stands."""
        content = self.mine.outgoing(part)
        if content is None:
            return False
        if part not in (SUMS, MASKED):
            return post(board.path(part, self.site), content)
        self.release()
        return post(board.path(part, self.site), content, self._begin_posting)

    def finish(self, board: Board, own: SiteSummary) -> str:
        """Fit from the total, once it is found to be right, and write the policy."""
        total = board.checked_total()
        others = len(total.sites) - 1
        fitted = fit_federated(self.study, self.rows, total, own)
        self._compare(own, total)
        at_home = self.mine.place / f"round-{self.number}.policy"
        fitted.policy.save(at_home)
        place = (self.out or at_home).absolute()
        if place != at_home:
            save(place, at_home.read_bytes())
        self.mine.finish(place)
        return f"Checked the total and wrote this site's policy, learnt with {others} others: {place}"

    def _begin_posting(self) -> None:
        if not self.sent.posted:
            self.mine.save_sent(replace(self.sent, posted=True))

    @property
    def _noised(self) -> bool:
        return self.study.disclosure.epsilon is not None

    def _compare(self, own: SiteSummary, total: Total) -> None:
        if not self._noised and not self.fitted.summary.sums.close_to(own.sums, 1e-6):
            self.notes.append(
                "The table is not the one that this site's message was made from. The message as it was sent is "
                "subtracted, and the policy is fitted on the table as it is now."
            )
        self.notes.append(check_total(self.study, self.rows, total, own).sentence)
