"""The secure sum: sites' messages that nobody can read, whose total everybody can.

Every pair of sites agrees on a mask that one adds and the other takes away, and every site adds one of its own. The
own masks are opened only when all survivors have signed the same list of survivors: a hub that showed different lists
could otherwise gather, from some, a site's own mask and, from others, its pair masks. The hub together with t of the
sites learns the sum over the others, no more; at least three of those must be honest. Nothing here protects against
wrong messages, or against what the same site sends in another study. No function here reads or writes a file.
"""

from fdtr.masking.fixed_point import FEWEST_BITS, PROMISED_BITS, FixedPoint
from fdtr.masking.parts import (
    FEWEST_HONEST,
    Announcement,
    Confirmation,
    MaskedMessage,
    Opening,
    Round,
    Sign,
    SurvivorList,
    Verify,
)
from fdtr.masking.past import History, PastRound, require_unlike
from fdtr.masking.turns import SiteRound, confirm, mask, release, start
from fdtr.masking.unmasking import as_sent, list_survivors, masked_total, unmask

__all__ = [
    "FEWEST_BITS",
    "FEWEST_HONEST",
    "PROMISED_BITS",
    "Announcement",
    "Confirmation",
    "FixedPoint",
    "History",
    "MaskedMessage",
    "Opening",
    "PastRound",
    "Round",
    "Sign",
    "SiteRound",
    "SurvivorList",
    "Verify",
    "as_sent",
    "confirm",
    "list_survivors",
    "mask",
    "masked_total",
    "release",
    "require_unlike",
    "start",
    "unmask",
]
