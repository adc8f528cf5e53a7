"""A site's turn: everything it can do now, in order, and then what it waits for."""

from pathlib import Path

from fdtr.exchange.folder import masked_site, open_site
from fdtr.exchange.folder.board import read_board, read_study
from fdtr.exchange.folder.durable import sweep_folder
from fdtr.exchange.folder.home import Home
from fdtr.exchange.folder.player import Agree, Player
from fdtr.exchange.folder.turns import Turn
from fdtr.signing import Key


def take_site_turn(home: Home, key: Key | None, agree: Agree, out: Path | None = None) -> Turn:
    """Do all that this site can do now. Whatever is posted was saved at home before."""
    with home.locked():
        home.require_same(read_study(home.folder))
        board = read_board(home.folder, home.study)
        within = board.within
        player = Player(home, home.round(within), within, board.number, key, agree, out)
        sweep_folder(home.place, ".*")
        player.sweep(board)
        done = []
        if home.give_up_others(within):
            done.append("Gave an earlier round up: its masks are destroyed.")
        advance = masked_site.advance if board.is_masked else open_site.advance
        step = advance(player, board)
        while step.done:
            done.append(step.done)
            board = player.board()
            step = advance(player, board)
        return Turn(board.number, tuple(done), step.waits, (*board.faults, *player.notes), player.mine.policy)
