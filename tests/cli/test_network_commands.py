"""Commands of a federation over the network, as far as they need no network."""

import json
import tomllib

import pytest
import tomli_w
from typer.testing import CliRunner

from fdtr.cli.app import app
from fdtr.errors import BrokenChain, InvalidSettings, MissingExtra, NotServed, OutputExists, UnreadableFile
from fdtr.exchange.flower.node_keys import new_node_key, public_line
from fdtr.exchange.remote.audit import Audit
from fdtr.signing import Key


def said(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.output


def test_a_node_key_is_made_with_the_line_that_the_hub_needs(tmp_path):
    path = tmp_path / "node.key"
    told = said("keys", "node", "--out", path, "--site", "north")
    assert f'north = "{public_line(path)}"' in told.replace("\n", "")
    with pytest.raises(OutputExists):
        said("keys", "node", "--out", path)
    other = json.loads(said("keys", "node", "--out", tmp_path / "other.key", "--json"))
    assert other["node_key"] == public_line(tmp_path / "other.key")


@pytest.mark.parametrize(
    "site", ["north", "St. Mary's", "north ward", "Universitätsklinik", "St.Mary", 'the "old" one']
)
def test_the_line_for_the_hub_is_toml_whatever_the_name(tmp_path, site):
    told = said("keys", "node", "--out", tmp_path / "node.key", "--site", site)
    [line] = [line for line in told.splitlines() if "ecdsa-sha2" in line]
    assert tomllib.loads(line) == {site: public_line(tmp_path / "node.key")}


def test_certificates_of_a_trial_are_made_with_a_fingerprint_to_compare(tmp_path):
    told = said("hub", "certificates", tmp_path / "tls", "--host", "hub.example.org")
    assert "Give it to every site" in told
    assert "A real deployment brings a certificate of its institution" in told
    assert (tmp_path / "tls" / "server.key").stat().st_mode & 0o777 == 0o600


def test_an_audit_is_verified_and_a_changed_line_is_found(tmp_path):
    path = tmp_path / "audit.jsonl"
    first = Audit(path).append({"asked": "one"})
    Audit(path).append({"asked": "two"})
    assert "2 lines, none changed" in said("audit", "verify", path)
    assert json.loads(said("audit", "verify", path, "--head", first, "--json"))["lines"] == 2
    Audit(path).head.unlink()
    assert "Lost heads: 1. audit.jsonl.head was gone" in said("audit", "verify", path)
    path.write_text(path.read_text().replace("one", "One"))
    with pytest.raises(BrokenChain):
        said("audit", "verify", path)


@pytest.mark.parametrize("command", [("hub", "serve"), ("hub", "start-round"), ("site", "serve")])
def test_settings_that_are_not_there_are_named(tmp_path, command):
    with pytest.raises(InvalidSettings, match="could not be read"):
        said(*command, tmp_path / "none.toml")


@pytest.mark.parametrize("command", [("hub", "serve"), ("hub", "start-round"), ("site", "serve")])
def test_without_flower_the_command_that_installs_it_is_named(tmp_path, command, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"pip install 'fdtr\[flower\]'"):
        said(*command, tmp_path / "none.toml")


def test_a_round_without_a_serving_hub_is_refused(tmp_path):
    from fdtr.exchange.flower.hub_service import Serving

    with pytest.raises(NotServed, match="Run `fdtr hub serve` first"):
        Serving.find(tmp_path)
    Serving(2**22 + 1, 1, {}).save(tmp_path)  # beyond the largest process id: one that crashed left this
    with pytest.raises(NotServed):
        Serving.find(tmp_path)


def test_a_round_whose_study_cannot_be_read_says_so_and_shows_no_empty_table(tmp_path, monkeypatch):
    from fdtr.exchange.flower import hub_service
    from fdtr.exchange.remote.jobs import Result

    told = hub_service.FinishedRound(Result.failed("study.toml: horizon: is required."), tmp_path / "x.result.json")
    monkeypatch.setattr(hub_service, "start_round", lambda *_: told)
    monkeypatch.setattr("fdtr.exchange.flower.network_settings.HubSettings.load", lambda _: None)
    done = CliRunner().invoke(app, ["hub", "start-round", "hub.toml"], env={"COLUMNS": "200"})
    assert done.exit_code == 1
    first, second = done.output.splitlines()
    assert first == "No round was run. study.toml: horizon: is required."
    assert second.startswith("The result is kept in ")


def test_a_locked_key_of_the_hub_needs_a_passphrase_that_rounds_can_read(tmp_path, monkeypatch):
    for name in ("FDTR_PASSPHRASE", "FDTR_PASSPHRASE_FILE"):
        monkeypatch.delenv(name, raising=False)
    settings = {
        "folder": "shared",
        "key": "hub.key",
        "state": "state",
        "address": "hub.example.org:8443",
        "tls": {"certificate": "tls.crt", "key": "tls.key"},
        "nodes": {"a": new_node_key(tmp_path / "a.node")},
    }
    path = tmp_path / "hub.toml"
    path.write_text(tomli_w.dumps(settings))
    Key.new().save(tmp_path / "hub.key", passphrase="secret")
    with pytest.raises(InvalidSettings, match=r"cannot ask for\. Nothing was started.* FDTR_PASSPHRASE_FILE"):
        said("hub", "serve", path)
    monkeypatch.setenv("FDTR_PASSPHRASE", "another")
    with pytest.raises(UnreadableFile, match="the passphrase is another one"):
        said("hub", "serve", path)
