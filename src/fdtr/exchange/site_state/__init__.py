"""All that a site keeps, in one state folder that nobody else reads.

ledger/                        what left the site before, of which patients (`ledger`)
sent/DIGEST.fdtr               copies of its messages, to be subtracted from totals (`sent_copies`)
secure-sums.json               the secure sums in which its sums were opened, in all studies (`release_guard`)
studies/FINGERPRINT-SITE/      a folder that it joined (`joined_folders`):
joined.json                    folder, table, key, and the study as the site accepted it, its roster included
drawn.json                     with differential privacy: which message was drawn for whom
ROUND/state.json               its masks in a round
ROUND/PART.fdtr                the bytes of everything that it posts there
ROUND/sent.json                the message that a person agreed to and the ledger holds
ROUND/finished.json            where the policy of the round was written
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_chosen: ContextVar[Path | None] = ContextVar("_chosen", default=None)


@contextmanager
def use_state_folder(folder: str | Path | None) -> Iterator[None]:
    """Use this state folder, whatever the environment says; None changes nothing."""
    token = _chosen.set(None if folder is None else Path(folder).absolute())
    try:
        yield
    finally:
        _chosen.reset(token)


def state_folder() -> Path:
    """The site's state folder: of `use_state_folder`, else of `FDTR_STATE`, else under the user's own."""
    chosen = _chosen.get() or os.environ.get("FDTR_STATE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "fdtr"
