"""The hub's conversation: whom it asks for what, until there is a total and every site has finished."""

from collections.abc import Callable, Mapping
from enum import StrEnum

from fdtr.exchange.remote.jobs import Job, Result
from fdtr.exchange.remote.parcels import Answer, Phase, Request
from fdtr.signing import Key


class Lost(StrEnum):
    """No answer of a site, as the engine saw it."""

    NOT_CONNECTED = "not connected"
    NO_ANSWER = "no answer"
    UNREADABLE = "unreadable answer"


Ask = Callable[[Phase, Mapping[str, Request]], Mapping[str, Answer | Lost]]
"""The engine: sends each site its request, waits as long as the job says, and gives what came back."""


def conduct(job: Job, key: Key, ask: Ask, versions: Mapping[str, str] | None = None) -> Result:
    """Run a federation to its end, or as far as it goes, and write its result.

    Run again after a crash, or when sites are back, it goes on where the hub's folder stands.
    """
    raise NotImplementedError
