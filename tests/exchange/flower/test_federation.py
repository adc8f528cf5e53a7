"""Whole rounds over Flower: hub and sites as processes of their own, with TLS and node keys."""

import json
from pathlib import Path

import pytest

from fdtr.exchange.remote.audit import verify
from folder_parties import EXACT, SITES, study_of
from same_policies import same_policies, through_a_folder

pytestmark = pytest.mark.network
LOOPBACK = "0100007F"
"""127.0.0.1, where the reverse proxy is too: as /proc/net/tcp writes it."""


def test_policies_are_those_of_the_shared_folder_bit_for_bit(network, tmp_path_factory):
    network.set_up(study := study_of(masked=False, disclosure=EXACT))
    hub = network.serve_hub()
    sites = network.serve_sites()
    assert network.listening() == {LOOPBACK}
    assert (network.root / "a-state" / "supernode.secret").stat().st_mode & 0o777 == 0o600
    result = network.finished(network.round())
    assert result["ending"] == "complete"
    assert result["members"] == result["finished"] == list(SITES)
    assert result["absent"] == []
    assert json.loads(Path(result.pop("file")).read_text()) == result
    same_policies(network, through_a_folder(tmp_path_factory.mktemp("folder"), study))

    for site in SITES:
        assert network.healthy(site)["last_answer"] is not None
        assert verify(network.root / f"{site}-state" / "audit.jsonl").lines == 2
    first = json.loads((network.root / "a-state" / "audit.jsonl").read_text().splitlines()[0])
    assert first["asked"]["phase"] == "sums"
    assert [sent["part"] for sent in first["sent"]] == ["sums"]

    network.end()
    assert [one.process.returncode for one in (hub, *sites.values())] == [0, 0, 0, 0]


@pytest.mark.slow  # not a fault, but five messages a site, each a poll of seconds
def test_a_masked_round_gives_the_policies_of_the_shared_folder(network, tmp_path_factory):
    network.begin(study := study_of(masked=True, disclosure=EXACT))
    result = network.finished(network.round())
    assert (result["ending"], result["mode"], result["members"]) == ("complete", "masked", list(SITES))
    same_policies(network, through_a_folder(tmp_path_factory.mktemp("folder"), study))


@pytest.mark.slow
def test_a_proxy_that_the_environment_names_is_not_asked_for_what_is_on_this_machine(network, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "intern.example.org")  # overrules the other
    network.begin(study_of(masked=False))
    assert network.finished(network.round("--deadline", "30"))["ending"] == "complete"
