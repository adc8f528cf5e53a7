"""How many bytes a request of a site's machine, and an answer to one, can have in a study: more is cut off unread."""

from fdtr.exchange.remote.parcels import carried_to, largest, phases_of
from fdtr.study import Study

_AROUND_A_MESSAGE = 2**16  # what Flower puts around one
_AROUND_A_POSTING = 512  # its part and its sender


def longest_request(study: Study) -> int:
    """What a site sends to the hub's server at once: a posting of its own at most."""
    return max(largest(phase.value, study) for phase in phases_of(study)) + _AROUND_A_MESSAGE


def longest_answer(study: Study, site: str) -> int:
    """What a site is sent at once; twice what its roster asks for, so that a hub with a longer one can be told so."""
    carried = [
        sum(largest(part, study) + _AROUND_A_POSTING for part, _ in carried_to(site, phase, study))
        for phase in phases_of(study)
    ]
    return 2 * max(carried) + _AROUND_A_MESSAGE
