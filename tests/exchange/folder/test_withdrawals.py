"""What a site releases is taken back, whole, if nobody could have had it, and else never."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from fdtr.errors import FdtrError, NotWithdrawable, ProtocolViolation, UnreadableFile
from fdtr.exchange.folder_layout import MASKED, SUMS
from fdtr.exchange.site_state.joined_folders import RoundState
from fdtr.exchange.site_state.ledger import site_ledger
from folder_releases import BOTH, at_home, due, reachable, shorter, standing, taken_back, unreachable

pytestmark = pytest.mark.slow


@BOTH
def test_a_message_that_waits_is_taken_back_with_its_bytes_and_masks(tmp_path, masked):
    parties = due(tmp_path, masked=masked)
    place = unreachable(parties, masked=masked)
    with pytest.raises(FdtrError, match="could not be written"):
        parties.site("a")
    [message] = standing(parties)
    assert taken_back(parties, message[:12]) == 1
    assert standing(parties) == []
    assert at_home(parties, SUMS) == at_home(parties, MASKED) == []
    reachable(parties, place)
    shorter(tmp_path / "a.csv", patients=115)  # ONCE no longer minds
    if masked:
        with pytest.raises(ProtocolViolation, match="its masks are destroyed"):
            parties.site("a")
        parties.new_round()
    parties.play()
    assert standing(parties) != [message]


@BOTH
def test_a_message_that_was_posted_is_not_taken_back_even_if_somebody_hid_it(tmp_path, masked):
    parties = due(tmp_path, masked=masked)
    parties.site("a")
    [message] = standing(parties)
    posted = parties.snapshot.path(MASKED if masked else SUMS, "a")
    for hide in (lambda: None, posted.unlink, lambda: parties.folder.rename(tmp_path / "elsewhere")):
        hide()
        with pytest.raises((NotWithdrawable, UnreadableFile), match=r"posted in round 1|the folder is not there"):
            taken_back(parties, message)
        assert standing(parties) == [message]
    (tmp_path / "elsewhere").rename(parties.folder)
    parties.new_round()
    parties.site("a")
    with pytest.raises(NotWithdrawable, match="posted in round 1"):
        taken_back(parties, message)
    with pytest.raises(NotWithdrawable, match="The ledger holds"):
        taken_back(parties, message[:4])


@BOTH
@pytest.mark.parametrize("finished", [False, True], ids=["posted", "finished"])
def test_a_message_that_was_posted_is_not_taken_back_when_its_record_is_lost(tmp_path, masked, finished):
    parties = due(tmp_path, masked=masked)
    parties.site("a")
    if finished:
        parties.play()
    [message] = standing(parties)
    [record] = parties.home_of("a").glob("*/sent.json")
    record.unlink()
    with pytest.raises(NotWithdrawable, match=r"in round 1 of .*sent\.json, is lost.*Nothing was struck"):
        taken_back(parties, message)
    for path in at_home(parties, SUMS) if not masked else []:  # it is recognised in the shared folder as well
        path.unlink()
    with pytest.raises(NotWithdrawable, match=r"sent\.json, is lost"):
        taken_back(parties, message[:12])
    assert standing(parties) == [message]


def test_a_posting_whose_record_is_lost_does_not_prevent_that_another_message_is_taken_back(tmp_path):
    parties = due(tmp_path, masked=False)
    parties.site("a")
    [first] = standing(parties)
    [record] = parties.home_of("a").glob("*/sent.json")
    record.unlink()
    parties.new_round()
    with parties.at_home("a"):
        site_ledger().withdraw(first)  # past the command, so that ONCE lets another table leave
    shorter(tmp_path / "a.csv")
    parties.prepare("a")
    [second] = standing(parties)
    assert taken_back(parties, second) == 1
    assert standing(parties) == []


@BOTH
@pytest.mark.parametrize("call", ["fsync", "link"], ids=["while it is written", "after it got its name"])
def test_a_message_whose_posting_failed_midway_is_not_taken_back(tmp_path, monkeypatch, masked, call):
    parties = due(tmp_path, masked=masked)
    place = parties.folder / "rounds/1" / (MASKED if masked else SUMS)
    real = getattr(os, call)

    def fails_on_the_share(*arguments: Any, **options: Any) -> None:
        real(*arguments, **options)
        if any(path.name.startswith((".a-", "a-")) for path in place.glob("*")):
            raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fails_on_the_share)
        with pytest.raises(FdtrError, match="Input/output error"):
            parties.site("a")
    [message] = standing(parties)
    parties.snapshot.path(place.name, "a").unlink(missing_ok=True)  # somebody has it now, and hides it
    with pytest.raises(NotWithdrawable, match="or its posting began and failed"):
        taken_back(parties, message)
    assert standing(parties) == [message]
    parties.play()


@BOTH
def test_that_a_message_was_posted_is_remembered_when_it_is_released_again(tmp_path, masked):
    parties = due(tmp_path, masked=masked)
    parties.site("a")
    [message] = standing(parties)
    with parties.at_home("a"):
        site_ledger().withdraw(message)  # past the command
    place = unreachable(parties, masked=masked)
    with pytest.raises(FdtrError, match="could not be written"):
        parties.site("a")
    assert standing(parties) == [message]
    reachable(parties, place)
    parties.snapshot.path(place.name, "a").unlink()
    with pytest.raises(NotWithdrawable, match=r"others may have read it\. Nothing was struck"):
        taken_back(parties, message)


def test_whoever_dies_while_taking_a_masked_message_back_posts_nothing_under_its_masks(tmp_path, monkeypatch):
    parties = due(tmp_path, masked=True)
    place = unreachable(parties, masked=True)
    with pytest.raises(FdtrError, match="could not be written"):
        parties.site("a")
    reachable(parties, place)
    [message] = standing(parties)

    class Died(Exception):
        pass

    def dies(*_: object) -> None:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(RoundState, "_remove", dies)  # the masks are destroyed, and all else is still there
        with pytest.raises(Died):
            taken_back(parties, message)
    shorter(tmp_path / "a.csv")
    with pytest.raises(ProtocolViolation, match="its masks are destroyed"):
        parties.site("a")
    assert taken_back(parties, message) == 1
    assert standing(parties) == []
    parties.new_round()
    parties.play()
    assert parties.snapshot.total is not None
    assert parties.snapshot.total.sums.n.max() == 340


def test_a_masked_message_that_is_gone_from_home_is_not_made_anew(tmp_path):
    parties = due(tmp_path, masked=True)
    parties.site("a")
    [path] = at_home(parties, SUMS)
    path.unlink()
    shorter(tmp_path / "a.csv")
    before = standing(parties)
    with pytest.raises(ProtocolViolation, match="no longer at home"):
        parties.site("a")
    assert standing(parties) == before
    assert at_home(parties, SUMS) == []
