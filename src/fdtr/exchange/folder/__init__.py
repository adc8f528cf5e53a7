"""A round through a shared folder: a network share, a synced folder, a Git repository.

    study.toml                     the study, its roster included
    rounds/1/hub/begun.fdtr        the hub: this round is open
    rounds/1/sums/SITE.fdtr        open rounds: a site's message
    rounds/1/keys/SITE.fdtr        masked rounds: a site's key for this round,
    rounds/1/masked/SITE.fdtr        its masked message,
    rounds/1/hub/survivors.fdtr      the hub's list of those who are left,
    rounds/1/confirmed/SITE.fdtr     a site's signature under that list,
    rounds/1/opened/SITE.fdtr        what takes its masks off the sum
    rounds/1/hub/total.fdtr        the hub: the sums over all sites

Everybody writes under names of their own, each file once and whole, and overwrites nothing: so two may act at once, and
whoever crashed goes on where they stopped. What is posted was saved at home before. Whatever is read here is a
stranger's until its length, digest, round, part and signature say otherwise; what fails is named and left out.
"""

from fdtr.exchange.folder.board import Board, cautions, read_board
from fdtr.exchange.folder.home import Home, find_home, join, require_apart
from fdtr.exchange.folder.hub_turns import new_round, open_folder, take_hub_turn
from fdtr.exchange.folder.one_way import require_never_summed
from fdtr.exchange.folder.progress import Progress, progress_of
from fdtr.exchange.folder.site_turns import take_site_turn
from fdtr.exchange.folder.turns import Turn
from fdtr.exchange.folder.withdrawing import withdraw

__all__ = [
    "Board",
    "Home",
    "Progress",
    "Turn",
    "cautions",
    "find_home",
    "join",
    "new_round",
    "open_folder",
    "progress_of",
    "read_board",
    "require_apart",
    "require_never_summed",
    "take_hub_turn",
    "take_site_turn",
    "withdraw",
]
