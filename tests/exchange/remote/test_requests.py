"""Requests and answers: which postings a phase may have, and how long they may be."""

from itertools import product

import pytest

from fdtr.exchange.remote.requests import (
    Phase,
    allowed_to_site,
    longest_to_hub,
    longest_to_site,
    most_bytes,
    phases_of,
)
from fdtr.signing import HUB
from folder_parties import study_of


def test_what_may_be_sent_follows_from_the_study():
    masked, plain = study_of(masked=True), study_of(masked=False)
    assert allowed_to_site("a", Phase.FINISH, plain) == {("begun", HUB), ("total", HUB)}
    begun, needed = ("begun", HUB), ("keys", "receives", "counts", "countsopened")
    assert allowed_to_site("a", Phase.COUNTS, masked) == {begun, *product(("keys", "receives"), "bc")}
    assert allowed_to_site("a", Phase.MASKED, masked) == {begun, *product(needed, "bc")}
    exact = study_of(masked=True, disclosure={"jitter": 0})  # judged at each site alone, without counts
    assert allowed_to_site("a", Phase.MASKED, exact) == {begun, *product(("keys", "receives"), "bc")}
    assert Phase.COUNTS not in phases_of(exact)
    assert ("masked", "a") not in allowed_to_site("a", Phase.FINISH, masked)
    assert most_bytes("keys", masked) == 2048
    assert most_bytes("total", plain) > most_bytes("sums", plain)


@pytest.mark.parametrize("masked", [False, True], ids=["open", "masked"])
def test_there_is_room_for_every_message_of_the_study_and_not_for_much_more(masked):
    study = study_of(masked=masked)
    for phase in phases_of(study):
        assert most_bytes(phase.value, study) < longest_to_hub(study)
        carried = sum(most_bytes(part, study) for part, _ in allowed_to_site("a", phase, study))
        assert carried < longest_to_site(study, "a")
    assert longest_to_hub(study) < 100_000
    assert longest_to_site(study, "a") < 200_000
