"""A site at its turn: its patients, its key, what it keeps, and how it asks before anything leaves."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from fdtr.disclosure import Message
from fdtr.errors import FdtrError
from fdtr.exchange import kept
from fdtr.exchange.folder.board import SUMS, Board, read_board
from fdtr.exchange.folder.durable import post, save, sweep
from fdtr.exchange.folder.home import Home, RoundHome
from fdtr.exchange.folder.parts import CONFIRMED, KEYS, MASKED, OPENED
from fdtr.signing import Key, Round
from fdtr.site import check_total, fit_federated, fit_message, read_trajectories, release_of, summarize
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
    def message(self) -> Message:
        """What may leave the site; refuses where a rule does."""
        return summarize(self.study, self.rows, kept.ledger())

    def release(self, keep: Callable[[], None]) -> None:
        """Ask, write the release into the ledger, and keep what is then posted: a posting never lacks its record."""
        if not self.agree(self.message):
            raise FdtrError("Nothing was posted.")
        with kept.ledger().recording(release_of(self.study, self.rows, self.message.summary)):
            sweep(kept.keep(self.message, self.within, self.key), ending="")
            keep()

    def sweep(self, board: Board) -> None:
        """Remove what a crash left half-written of this site's postings."""
        for part in PARTS:
            sweep(board.path(part, self.site))

    def post(self, board: Board, part: str) -> bool:
        """Post what was saved at home; whether it was not there yet."""
        content = self.mine.outgoing(part)
        return content is not None and post(board.path(part, self.site), content)

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

    def _compare(self, own: SiteSummary, total: Total) -> None:
        now = fit_message(self.study, self.rows).summary
        if not now.sums.close_to(own.sums, 1e-6):
            self.notes.append(
                "The table is not the one that this site's message was made from. The message as it was sent is "
                "subtracted, and the policy is fitted on the table as it is now."
            )
        self.notes.append(check_total(self.study, self.rows, total, own).sentence)
