"""A site's desk: it answers the hub's requests with what the rules let out, and with one word."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fdtr.exchange.remote.audit import Audit
from fdtr.exchange.remote.parcels import Answer, Request
from fdtr.signing import Key
from fdtr.study import Study


@dataclass(frozen=True)
class DeskStudy:
    """A study that the site's administrator allows: the study file as agreed on, roster and [columns] included.

    `data` is the site's table; the policy is written to `out`, or beside the site's state where it is None.
    """

    study: Study
    data: Path
    out: Path | None = None


class Desk:
    """Answers for one site. `state` is its state folder, the user's own where it is None."""

    def __init__(
        self, site: str, studies: Sequence[DeskStudy], key: Key, audit: Audit, state: Path | None = None
    ) -> None:
        self.site = site
        self._studies = {one.study.fingerprint: one for one in studies}
        self._key = key
        self._audit = audit
        self._state = state

    def answer(self, request: Request | None) -> Answer:
        """Never raises, and says nothing but an outcome and the postings of the phase; None cannot be read."""
        raise NotImplementedError
