"""Whether a posting that came over the network can be believed: the readers of a shared folder decide."""

from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryFile

from fdtr.container import OpenFile
from fdtr.errors import OtherSite
from fdtr.exchange.folder import parts
from fdtr.exchange.folder.board import scale_of
from fdtr.exchange.folder.layout import SUMS, TOTAL
from fdtr.exchange.remote.parcels import Posting
from fdtr.exchange.wire import open_message, open_total
from fdtr.signing import Round
from fdtr.study import Study


def require_sound(postings: Iterable[Posting], study: Study, within: Round, place: Path) -> None:
    """Refuse a posting whose length, digest, round, part, sender or signature is not as it should be.

    They are looked at in files under `place` that have no name, before any lies where it would count.
    """
    for one in postings:
        with TemporaryFile(dir=place) as held:
            held.write(one.content)
            held.flush()
            arrived = OpenFile(Path(f"{one.part} of {one.sender}"), held.fileno(), len(one.content))
            _read(arrived, one, study, within)


def _read(file: OpenFile, posting: Posting, study: Study, within: Round) -> None:
    sender = posting.sender
    readers: dict[str, Callable[[], object]] = {
        parts.BEGUN: lambda: parts.read_begun(file, within),
        parts.KEYS: lambda: parts.read_keys(file, sender, within),
        parts.MASKED: lambda: parts.read_masked(file, sender, within, scale_of(study).length),
        parts.SURVIVORS: lambda: parts.read_survivors(file, within),
        parts.CONFIRMED: lambda: parts.read_confirmed(file, sender, within),
        parts.OPENED: lambda: parts.read_opened(file, sender, within),
        SUMS: lambda: _require_of(sender, open_message(file, study, within).body.site),
        TOTAL: lambda: open_total(file, study, within),
    }
    readers[posting.part]()


def _require_of(sender: str, found: str) -> None:
    if found != sender:
        raise OtherSite(f"A message of {found!r} came from {sender!r}.")
