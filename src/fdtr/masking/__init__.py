"""The secure sum: nobody can read a site's masked message, and everybody can read the total.

Every pair of sites agrees on a mask that one adds and the other subtracts, and every site adds a mask of its own. Sites
open their own masks only when all survivors have signed the same list of survivors. Otherwise a hub that shows
different lists could collect a site's own mask from some sites and its pair masks from others. The hub together with t
colluding sites learns the sum over the other sites and nothing more; at least three of these must be honest. Nothing
here protects against wrong messages, or against what the same site sends in another study. No function here reads or
writes a file.
"""

from fdtr.masking.fixed_point import FEWEST_BITS, FixedPoint
from fdtr.masking.protocol_messages import (
    FEWEST_HONEST,
    Announcement,
    Announcements,
    Confirmation,
    JsonPart,
    MaskedMessage,
    Opening,
    Round,
    Sign,
    SurvivorList,
)
from fdtr.masking.round_history import History, require_unlike
from fdtr.masking.site_protocol import SiteRound, accept_survivors, allow_opening, mask, start
from fdtr.masking.unmasking import as_sent, list_survivors, masked_total, unmask

__all__ = [
    "FEWEST_BITS",
    "FEWEST_HONEST",
    "Announcement",
    "Announcements",
    "Confirmation",
    "FixedPoint",
    "History",
    "JsonPart",
    "MaskedMessage",
    "Opening",
    "Round",
    "Sign",
    "SiteRound",
    "SurvivorList",
    "accept_survivors",
    "allow_opening",
    "as_sent",
    "list_survivors",
    "mask",
    "masked_total",
    "require_unlike",
    "start",
    "unmask",
]
