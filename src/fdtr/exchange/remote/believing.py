"""Whether a posting that came over the network can be believed: the readers of a shared folder decide."""

from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from fdtr.errors import OtherSite
from fdtr.exchange.folder import parts
from fdtr.exchange.folder.board import SUMS, TOTAL, scale_of
from fdtr.exchange.remote.parcels import Posting
from fdtr.exchange.wire import open_message, open_total
from fdtr.signing import Round
from fdtr.study import Study


def require_sound(postings: Iterable[Posting], study: Study, within: Round, place: Path) -> None:
    """Refuse a posting whose length, digest, round, part, sender or signature is not as it should be.

    They are looked at under `place`, where only their reader can see them, before any lies where it would count.
    """
    with TemporaryDirectory(dir=place, prefix=".arrived-") as folder:
        path = Path(folder) / "posting.fdtr"
        for one in postings:
            path.write_bytes(one.content)
            _read(path, one, study, within)


def _read(path: Path, posting: Posting, study: Study, within: Round) -> None:
    sender = posting.sender
    readers: dict[str, Callable[[], object]] = {
        parts.BEGUN: lambda: parts.read_begun(path, within),
        parts.KEYS: lambda: parts.read_keys(path, sender, within),
        parts.MASKED: lambda: parts.read_masked(path, sender, within, scale_of(study).length),
        parts.SURVIVORS: lambda: parts.read_survivors(path, within),
        parts.CONFIRMED: lambda: parts.read_confirmed(path, sender, within),
        parts.OPENED: lambda: parts.read_opened(path, sender, within),
        SUMS: lambda: _require_of(sender, open_message(path, study, within).body.site),
        TOTAL: lambda: open_total(path, study, within),
    }
    readers[posting.part]()


def _require_of(sender: str, found: str) -> None:
    if found != sender:
        raise OtherSite(f"A message of {found!r} came from {sender!r}.")
