"""Federations that break: sites that are away, killed or hang, and a hub that is killed in the middle."""

import os
import shutil
import signal
import tomllib

import pytest
import tomli_w

from folder_parties import EXACT, study_of
from network_parties import until
from same_policies import same_policies, through_a_folder

pytestmark = pytest.mark.network

FOUR = ("a", "b", "c", "d")


def posted(network, site: str, part: str = "sums"):
    """Whether the hub has a site's part."""
    return lambda: list((network.root / "shared" / "rounds" / "1" / part).glob(f"{site}-*"))


# In `make test` the law is held without sockets by test_apps.py:test_replies_are_known_by_the_message_they_answer,
# where a site is silent, one fails and one is not connected, and by
# tests/exchange/remote/test_hub_rounds.py:test_an_open_round_goes_on_without_a_site_that_is_down.
@pytest.mark.slow
def test_an_open_round_goes_on_without_a_site_that_is_away(network):
    network.begin(study_of(FOUR, masked=False), "a", "b", "c")
    result = network.finished(network.round())
    assert (result["ending"], result["members"]) == ("complete", ["a", "b", "c"])
    assert [(one["site"], one["reason"]) for one in result["absent"]] == [("d", "not connected")]


@pytest.mark.slow
def test_too_few_sites_are_refused_and_the_same_command_goes_on_when_they_are_back(network, tmp_path_factory):
    network.begin(study := study_of(masked=False, disclosure=EXACT), "a", "b")
    result = network.finished(network.round(), code=1)
    assert result["ending"] == "refused"
    assert result["total"] is None
    network.serve_sites("c")
    assert network.finished(network.round())["ending"] == "complete"
    same_policies(network, through_a_folder(tmp_path_factory.mktemp("folder"), study))


@pytest.mark.slow
def test_a_site_that_is_killed_between_messages_finishes_when_it_is_back(network, tmp_path_factory):
    sites = network.begin(study := study_of(masked=False, disclosure=EXACT))
    round_ = network.round("--deadline", "30")
    until(posted(network, "a"), "the message of a", 120, lambda: round_.ended and round_.said)
    sites["a"].end(signal.SIGKILL)
    result = network.finished(round_, code=1)
    assert (result["ending"], result["members"]) == ("incomplete", ["a", "b", "c"])
    assert [one["site"] for one in result["absent"]] == ["a"]
    assert result["finished"] == ["b", "c"]
    network.serve_site("a")
    again = network.finished(network.round())
    assert (again["ending"], again["total"]) == ("complete", result["total"])
    same_policies(network, through_a_folder(tmp_path_factory.mktemp("folder"), study))


@pytest.mark.slow
def test_a_masked_round_recovers_a_site_that_is_killed_after_its_key(network):
    sites = network.begin(study_of(FOUR, masked=True))
    round_ = network.round("--deadline", "25")
    until(posted(network, "d", "keys"), "the key of d", 120, lambda: round_.ended and round_.said)
    sites["d"].end(signal.SIGKILL)
    result = network.finished(round_)
    assert (result["ending"], result["mode"], result["members"]) == ("complete", "masked", ["a", "b", "c"])
    assert [(one["site"], one["phase"]) for one in result["absent"]] == [("d", "counts")]


@pytest.mark.slow
def test_a_site_that_hangs_is_left_behind_after_the_deadline(network):
    sites = network.begin(study_of(FOUR, masked=False))
    os.kill(sites["d"].process.pid, signal.SIGSTOP)
    result = network.finished(network.round("--deadline", "20"))
    os.kill(sites["d"].process.pid, signal.SIGCONT)
    assert (result["ending"], result["members"]) == ("complete", ["a", "b", "c"])
    assert [(one["site"], one["reason"]) for one in result["absent"]] == [("d", "no answer")]
    # What it answers now is late: the total stands.
    until((network.root / "d-state" / "audit.jsonl").exists, "d has woken up", 60)
    again = network.finished(network.round("--deadline", "20"))
    assert (again["ending"], again["total"], again["members"]) == ("complete", result["total"], ["a", "b", "c"])
    assert [(one["site"], one["reason"]) for one in again["absent"]] == [("d", "left out earlier")]


@pytest.mark.slow
def test_a_site_that_is_served_twice_counts_once(network, tmp_path_factory):
    """By whoever restored a machine beside the one that still runs: both have its keys and state, either may answer."""
    network.begin(study := study_of(masked=False, disclosure=EXACT))
    settings = tomllib.loads((network.root / "a.toml").read_text())
    del settings["health_port"]
    (network.root / "restored.toml").write_text(tomli_w.dumps({**settings, "state": "restored-state"}))
    bare = network.serve_site("restored", wait=False)
    assert bare.result() == 1
    assert "another machine is connected with it" in bare.said
    shutil.copy(network.root / "a-state" / "node", network.root / "restored-state")
    network.serve_site("restored")
    result = network.finished(network.round())
    assert (result["ending"], result["members"]) == ("complete", ["a", "b", "c"])
    same_policies(network, through_a_folder(tmp_path_factory.mktemp("folder"), study))


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True])
def test_a_hub_that_is_killed_in_the_middle_goes_on_when_it_serves_again(network, tmp_path_factory, masked):
    sites = network.begin(study := study_of(masked=masked, disclosure=EXACT)).values()
    hub = network.processes[0]
    round_ = network.round()
    until(posted(network, "a", "masked" if masked else "sums"), "a part", 120, lambda: round_.ended and round_.said)
    hub.end(signal.SIGKILL)
    assert round_.result(60) == 1
    assert "The hub's service ended while the round ran" in round_.said
    until(lambda: not [one for one in network.left() if "flwr-serverapp" in one], "the round's program ended", 30)
    network.serve_hub()
    until(lambda: all(one.said.count("Connected to") > 1 for one in sites), "all are back", 90)
    assert network.finished(network.round(), timeout=300)["ending"] == "complete"
    same_policies(network, through_a_folder(tmp_path_factory.mktemp("folder"), study))


@pytest.mark.slow
def test_a_child_that_dies_ends_the_hub_with_a_sentence(network):
    network.set_up(study_of(masked=False))
    hub = network.serve_hub()
    front = int((network.root / "hub-state" / "front" / "nginx.pid").read_text())
    os.kill(front, signal.SIGKILL)
    assert hub.result(60) == 1
    assert "front ended, and the hub with it" in hub.said
    assert network.round().result(60) == 1


@pytest.mark.slow
def test_a_round_that_was_stopped_does_not_keep_the_next_from_its_end(network):
    sites = network.begin(study_of(FOUR, masked=False))
    os.kill(sites["d"].process.pid, signal.SIGSTOP)
    first = network.round("--deadline", "60")
    answered = network.root / "a-state" / "audit.jsonl"
    until(answered.exists, "a has answered", 60, lambda: first.ended and first.said)
    first.end()
    result = network.finished(network.round("--deadline", "20"))
    os.kill(sites["d"].process.pid, signal.SIGCONT)
    assert (result["ending"], result["members"]) == ("complete", ["a", "b", "c"])
