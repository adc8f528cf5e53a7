"""Taking back a message that waits at home, before anybody could read it."""

from contextlib import ExitStack

from fdtr.disclosure import Recorded
from fdtr.errors import AlreadyPosted, UnreadableFile
from fdtr.exchange import kept
from fdtr.exchange.folder.drawn import forget_drawn
from fdtr.exchange.folder.home import Home, RoundHome, all_homes
from fdtr.exchange.folder.layout import SUMS, file_name, round_folder
from fdtr.exchange.folder.parts import MASKED
from fdtr.exchange.wire import read_message

_FEWEST_DIGITS = 8


def withdraw(message: str) -> list[Recorded]:
    """Strike a release from the ledger, by its digest or the beginning of it; what was struck.

    Where a joined folder holds it at home, it is deleted there and the masks of its round with it, so that no later
    turn posts what the ledger lacks. Refused once its posting began.
    """
    releases, homes = kept.ledger(), all_homes() if len(message) >= _FEWEST_DIGITS else []
    with ExitStack() as locks:
        for home in homes:
            locks.enter_context(home.locked())
        held = [(home, one) for home in homes for one in home.rounds() if _message_of(home, one).startswith(message)]
        for home, one in held:
            _require_unposted(home, one)
        for home, one in held:  # before it is struck: a record without its message does no harm, the reverse would
            forget_drawn(home)
            one.forget()
        standing = any(one.message.startswith(message) and not one.withdrawn for one in releases.recorded())
        return releases.withdraw(message) if standing or not held else []


def _message_of(home: Home, one: RoundHome) -> str:
    """The digest of the message of a round; empty where there is none."""
    if one.sent is not None:
        return one.sent.message
    return read_message(one.path(SUMS), home.study).digest if one.path(SUMS).exists() else ""


def _require_unposted(home: Home, one: RoundHome) -> None:
    sent = one.sent
    if sent is None:  # nothing is posted before it is agreed to and recorded
        return
    if not home.folder.is_dir():
        raise UnreadableFile(
            f"Whether the message lies in {home.folder} cannot be told: the folder is not there. Nothing was struck. "
            "Connect it, and run the same command again."
        )
    place = round_folder(home.folder, sent.number)
    if sent.posted or any((place / part / file_name(home.site)).exists() for part in (SUMS, MASKED)):
        raise AlreadyPosted(
            f"The message was posted in round {sent.number} of {home.folder}, or its posting began and failed, and "
            "others may have read it. Nothing was struck: what nobody remembers could be given away a second time."
        )
