"""The same numbers leave one way: openly, or within a secure sum.

Whoever tells openly what is in a secure sum takes it off that sum, and where all others do, the last one is shown. An
open message is in the ledger before it is held to the memory of secure sums; a sum is held to the ledger and remembered
under that memory's lock. So of two processes at once one sees the other.
"""

from contextlib import nullcontext

from fdtr.errors import SummedBefore, ToldBefore
from fdtr.exchange import kept
from fdtr.exchange.folder.home import all_homes
from fdtr.exchange.folder.memory import history_locked, read_history


def require_never_summed(content: str, *, recorded: bool = False) -> None:
    """Refuse to tell numbers openly, by their digest, that are in a secure sum which was opened.

    Ask before a person is, and once more when the release is `recorded`, which waits for a sum that is being opened.
    """
    with history_locked() if recorded else nullcontext(read_history()) as history:
        past = history.opened_with(content)
    if past is not None:
        raise SummedBefore(
            f"These very sums are part of a secure sum that was opened, of the study {past.study[:12]}…. Told openly, "
            "they could be taken from it, and show a site that stayed out. Nothing was released. Share them in secure "
            "sums alone, or wait until clearly more patients have come."
        )


def require_never_told(content: str) -> None:
    """Refuse to put numbers into a secure sum, by their digest, that left openly: the hub could take them off it.

    Not a warning, because it is not this site alone that pays: the others would stand behind one site less than the
    secure sum promises them, and they cannot know.
    """
    masked = {home.study.fingerprint for home in all_homes() if home.study.disclosure.secure_sum}
    for one in kept.ledger().recorded():
        if one.content == content and not one.withdrawn and one.study not in masked:
            raise ToldBefore(
                f"These very sums left openly before, on {one.time[:10]} for the study {one.study[:12]}…. A secure sum "
                "would not hide them, and the others' less than it promises. Nothing was posted. Ask the hub for a "
                f"roster without this site; if nobody had that message, strike it: `fdtr site withdraw "
                f"{one.message[:12]}`."
            )
