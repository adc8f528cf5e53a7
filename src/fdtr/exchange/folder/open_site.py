"""A site in an open round: its message, then its policy from the total."""

from fdtr.errors import RoundClosed
from fdtr.exchange.folder.board import Board
from fdtr.exchange.folder.layout import SUMS
from fdtr.exchange.folder.one_way import require_never_summed
from fdtr.exchange.folder.player import Player
from fdtr.exchange.folder.turns import Step


def advance(player: Player, board: Board) -> Step:
    """One step, or what it takes for the next."""
    closed = board.total is not None and player.site not in board.total.sites
    if closed:
        raise RoundClosed(
            f"Round {board.number} was closed without site {player.site!r}. Nothing was done. Ask the hub for another "
            "round; strike a message that nobody had with `fdtr site withdraw`."
        )
    if player.mine.policy is None:
        _release(player)
        player.saved()
        if player.post(board, SUMS):
            return Step("Posted this site's message: sums over its patients, never a row.")
        if board.total is None:
            return Step(waits="The hub adds the messages up when all are there: `fdtr hub next`.")
    if player.mine.policy is None or player.out is not None:
        done, player.out = player.finish(board, player.saved()), None
        return Step(done)
    return Step()


def _release(player: Player) -> None:
    """Have the message agreed to and recorded, unless its numbers are in a secure sum."""
    if player.mine.sent is not None and player.mine.sent.posted:
        return
    waits = player.mine.outgoing(SUMS) is not None
    require_never_summed((player.saved() if waits else player.message.summary).content)
    player.release()
    require_never_summed(player.sent.content, recorded=True)
