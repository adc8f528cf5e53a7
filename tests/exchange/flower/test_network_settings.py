"""Settings files: what is wrong with them is said before anything starts."""

import os
import re
import socket
import subprocess
import sys

import pyarrow as pa
import pyarrow.csv
import pytest
import tomli_w

from fdtr.errors import (
    BadSignature,
    Busy,
    Exposed,
    FdtrError,
    InvalidSettings,
    InvalidStudy,
    OtherStudy,
    ServiceError,
    UnreadableFile,
)
from fdtr.exchange.atomic_files import locked
from fdtr.exchange.flower.certificates import make_certificates
from fdtr.exchange.flower.network_settings import HubSettings, SiteSettings, private_folder, require_private
from fdtr.exchange.flower.node_keys import new_node_key
from fdtr.exchange.flower.processes import free_port
from fdtr.signing import HUB
from fdtr.study import Study
from fdtr.trajectories.table_in_database import DatabaseTable
from folder_parties import Parties, key_of, study_of
from random_tables import put_into_duckdb


@pytest.fixture
def site(tmp_path):
    study = study_of(masked=False)
    Parties(tmp_path).set_up(study)
    new_node_key(tmp_path / "a.node")
    return {
        "site": "a",
        "hub": "hub.example.org:8443",
        "node_key": "a.node",
        "key": "a.key",
        "state": "state",
        "studies": [{"study": "study.toml", "fingerprint": study.fingerprint, "data": "a.csv"}],
    }


@pytest.fixture
def hub(tmp_path):
    study = study_of(masked=False)
    parties = Parties(tmp_path).set_up(study)
    parties.open()
    parties.folder.chmod(0o700)
    make_certificates(tmp_path / "tls", ["hub.example.org"])
    return {
        "folder": "shared",
        "key": "hub.key",
        "state": "state",
        "address": "hub.example.org:8443",
        "tls": {"certificate": "tls/server.crt", "key": "tls/server.key"},
        "nodes": {name: new_node_key(tmp_path / f"{name}.node") for name in "abc"},
    }


def written(folder, settings, name="settings.toml"):
    path = folder / name
    path.write_text(tomli_w.dumps(settings))
    return path


def test_paths_start_at_the_settings_file(tmp_path, site, monkeypatch):
    monkeypatch.chdir("/")
    loaded = SiteSettings.load(written(tmp_path, site))
    assert loaded.studies[0].data == tmp_path / "a.csv"
    assert loaded.audit == tmp_path / "state" / "audit.jsonl"


@pytest.mark.parametrize(
    ("db", "address"),
    [
        ("duckdb:icu.db", "duckdb:{folder}/icu.db"),
        ("duckdb:/srv/icu.db", "duckdb:/srv/icu.db"),
        ("postgresql://me@db/icu",) * 2,
    ],
)
def test_a_table_may_lie_in_a_database(tmp_path, site, monkeypatch, db, address):
    monkeypatch.chdir("/")
    named = {**site["studies"][0], "db": db, "table": "rows"}
    del named["data"]
    loaded = SiteSettings.load(written(tmp_path, {**site, "studies": [named]}))
    assert loaded.studies[0].source == DatabaseTable(address.format(folder=tmp_path), "rows")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"nodekey": "a.node"}, 'nodekey: unknown key; did you mean "node_key"?'),
        ({"hub": "https://hub.example.org"}, "hub: give a host and a port"),
        ({"hub": "hub.example.org:99999"}, "hub: give a host and a port"),
        ({"hub": 'hub"; x:80'}, "hub: give a host and a port"),
        ({"hub": "::1:8443"}, "hub: give a host and a port"),
        ({"hub": "user@hub.example.org:8443"}, "hub: give a host and a port"),
        ({"hub": "hub.example.org?x:8443"}, "hub: give a host and a port"),
        ({"hub": "hub.example.org:٨٤٤٣"}, "hub: give a host and a port"),
        ({"hub": "*:8443"}, "hub: give a host and a port"),
        ({"authority": "ca\0.crt"}, "authority: no path holds a zero byte"),
        ({"state": "\0"}, "state: no path holds a zero byte"),
        ({"studies": [{"study": "s", "fingerprint": "f", "data": "x" * 300}]}, "data: no path is as long"),
        ({"health_port": 0}, "health_port: must be greater than or equal to 1"),
        ({"studies": []}, "studies: "),
        ({"studies": [{"study": "study.toml", "data": "a.csv"}]}, "fingerprint: is required"),
        ({"studies": [{"study": "s", "fingerprint": "f"}]}, "either data = FILE, or db = ADDRESS with table = NAME"),
        ({"studies": [{"study": "s", "fingerprint": "f", "db": "duckdb:x"}]}, "or db = ADDRESS with table = NAME"),
        (
            {"studies": [{"study": "s", "fingerprint": "f", "data": "x", "db": "duckdb:x", "table": "y"}]},
            "either data = FILE",
        ),
        (
            {"studies": [{"study": "s", "fingerprint": "f", "db": "postgresql://me:hunter2@db/icu", "table": "y"}]},
            "db: leave the password out; put it into ~/.pgpass",
        ),
    ],
)
def test_faults_of_a_sites_settings_are_named(tmp_path, site, change, sentence):
    with pytest.raises(InvalidSettings) as found:
        SiteSettings.load(written(tmp_path, {**site, **change}))
    assert sentence in str(found.value)
    assert "hunter2" not in str(found.value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"min_sites": 2}, "min_sites: must be greater than or equal to 3"),
        ({"nodes": {"a": "ssh-ed25519 AAAA"}}, "nodes: a: a node's public key is the line"),
        ({"tls": {"certificate": "x"}}, "tls.key: is required"),
        ({"tls": {"certificate": "x\0", "key": "y"}}, "tls.certificate: no path holds a zero byte"),
        ({"listen": "**:8443"}, "listen: give a host and a port"),
        ({"max_request_megabytes": 64}, "max_request_megabytes: unknown key"),
        ({"listne": "x:1"}, 'listne: unknown key; did you mean "listen"?'),
    ],
)
def test_faults_of_a_hubs_settings_are_named(tmp_path, hub, change, sentence):
    with pytest.raises(InvalidSettings) as found:
        HubSettings.load(written(tmp_path, {**hub, **change}))
    assert sentence in str(found.value)


@pytest.mark.parametrize("listen", ["*:8443", "0.0.0.0:8443", "[::]:8443", "hub-1.example.org:1", "fdtr_hub:65535"])
def test_places_to_listen_at_are_taken(tmp_path, hub, listen):
    assert HubSettings.load(written(tmp_path, {**hub, "listen": listen})).listen == listen


def test_two_sites_with_one_node_key_are_refused(tmp_path, hub):
    hub["nodes"]["b"] = hub["nodes"]["a"]
    with pytest.raises(InvalidSettings, match="a and b have the same key"):
        HubSettings.load(written(tmp_path, hub))


def test_what_is_no_settings_file_is_named(tmp_path):
    with pytest.raises(InvalidSettings, match="could not be read: No such file"):
        SiteSettings.load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[")
    with pytest.raises(InvalidSettings, match="not valid TOML"):
        SiteSettings.load(tmp_path / "bad.toml")


def test_what_others_could_read_is_refused(tmp_path):
    path = tmp_path / "open.key"
    path.touch(mode=0o640)
    with pytest.raises(Exposed, match="chmod 600"):
        require_private("The key", path)
    with pytest.raises(InvalidSettings, match="is no file"):
        require_private("The key", tmp_path)
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(Exposed, match="chmod 700"):
        private_folder("The state", tmp_path / "open")
    assert private_folder("The state", tmp_path / "new").stat().st_mode & 0o777 == 0o700


def refused_site(folder, settings, kind: type[FdtrError], sentence: str):
    from fdtr.exchange.flower.site_service import require_site

    with pytest.raises(kind, match=sentence):
        require_site(SiteSettings.load(written(folder, settings)), key_of("a"))


@pytest.mark.slow  # imports flwr
def test_a_site_starts_only_with_what_it_agreed_to(tmp_path, site):
    from fdtr.exchange.flower.site_service import require_site

    study = site["studies"][0]
    assert len(require_site(SiteSettings.load(written(tmp_path, site)), key_of("a"))) == 1
    other = {**study, "fingerprint": "0" * 64}
    refused_site(tmp_path, {**site, "studies": [other]}, OtherStudy, "not the study that was agreed to")
    refused_site(tmp_path, {**site, "studies": [study, study]}, InvalidSettings, "are the same study")
    refused_site(tmp_path, {**site, "studies": [{**study, "data": "none.csv"}]}, InvalidSettings, "is not there")
    in_base = {name: value for name, value in study.items() if name != "data"} | {"db": "duckdb:no.db", "table": "t"}
    refused_site(tmp_path, {**site, "studies": [in_base]}, InvalidSettings, "no.db is not there")
    put_into_duckdb(pa.csv.read_csv(tmp_path / "a.csv"), tmp_path / "no.db", "t")
    [served] = require_site(SiteSettings.load(written(tmp_path, {**site, "studies": [in_base]})), key_of("a"))
    assert served.data == DatabaseTable(f"duckdb:{tmp_path}/no.db", "t")
    refused_site(tmp_path, {**site, "site": "b"}, BadSignature, "not the one that the roster has of 'b'")
    refused_site(tmp_path, {**site, "authority": "none.crt"}, InvalidSettings, "Ask the hub")
    refused_site(tmp_path, {**site, "authority": "a.csv"}, InvalidSettings, "no certificate in PEM. Ask the hub")
    os.mkfifo(tmp_path / "pipe")  # nobody writes into it: whoever opened it would wait for ever
    for place in (".", "pipe"):
        refused_site(tmp_path, {**site, "authority": place}, InvalidSettings, "authority: .* is no file")
    for place in ("none/a.policy", "a.csv/a.policy", "."):
        refused_site(tmp_path, {**site, "studies": [{**study, "policy": place}]}, InvalidSettings, "policy: .* folder")
    for place in ("a.csv", "a.key", "study.toml", "a-state/audit.jsonl"):
        (tmp_path / "a-state").mkdir(exist_ok=True)
        policy = {**study, "policy": place}
        refused_site(tmp_path, {**site, "studies": [policy], "state": "a-state"}, InvalidSettings, "of this service")
    (tmp_path / "letter.txt").write_text("to my daughter")
    elsewhere = {**study, "policy": "letter.txt"}
    refused_site(tmp_path, {**site, "studies": [elsewhere]}, InvalidSettings, "is no policy of a for the study test")
    refused_site(tmp_path, {**site, "node_key": "a.key"}, UnreadableFile, "fdtr keys node")
    (tmp_path / "a.key").chmod(0o644)
    refused_site(tmp_path, site, Exposed, "chmod 600")
    (tmp_path / "a.key").chmod(0o600)
    loaded = Study.load(tmp_path / "study.toml")
    roster = {name: key for name, key in loaded.roster.items() if name != HUB}
    Study.model_validate({**loaded.model_dump(), "roster": roster}).save(tmp_path / "study.toml")
    refused_site(tmp_path, site, InvalidStudy, "no key of the hub")


@pytest.mark.slow  # imports flwr
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_policy_that_could_not_be_written_is_refused_before_the_round(tmp_path, site):
    (tmp_path / "closed").mkdir(mode=0o500)
    study = {**site["studies"][0], "policy": "closed/a.policy"}
    refused_site(tmp_path, {**site, "studies": [study]}, InvalidSettings, "does not let this user write")


def refused_hub(folder, settings, sentence: str):
    from fdtr.exchange.flower.hub_service import require_hub

    with pytest.raises(InvalidSettings, match=sentence):
        require_hub(HubSettings.load(written(folder, settings)), key_of(HUB))


@pytest.mark.slow  # imports flwr
def test_a_hub_starts_only_with_a_certificate_under_which_sites_can_connect(tmp_path, hub):
    other = make_certificates(tmp_path / "other", ["other.example.org"])
    own = hub["tls"]
    os.mkfifo(tmp_path / "pipe")
    for tls, sentence in (
        ({**own, "certificate": "none.crt"}, "none.crt could not be read: No such file"),
        ({**own, "certificate": "pipe"}, "pipe is no file"),
        ({**own, "certificate": "a.csv"}, "a.csv is no certificate in PEM"),
        ({**own, "key": str(other.key)}, "server.key is not the private key of"),
        ({"certificate": str(other.certificate), "key": str(other.key)}, "no site could connect to hub.example.org"),
    ):
        refused_hub(tmp_path, {**hub, "tls": tls}, sentence)
    refused_hub(tmp_path, {**hub, "address": "127.0.0.1:8443"}, "no site could connect to 127.0.0.1")


@pytest.mark.slow  # imports flwr
def test_a_hub_starts_only_where_a_round_could_come_to_its_end(tmp_path, hub):
    few = {name: hub["nodes"][name] for name in "ab"}
    refused_hub(tmp_path, {**hub, "nodes": few}, "has 2 of the 3 sites that min_sites asks for")
    refused_hub(tmp_path, {**hub, "min_sites": 4}, "has 3 of the 4 sites that min_sites asks for")


@pytest.mark.slow  # imports flwr
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "*"])
def test_a_hub_does_not_start_behind_a_port_that_is_taken(tmp_path, hub, host):
    from fdtr.exchange.flower.hub_service import serve_hub

    with socket.create_server(("127.0.0.1", free_port())) as taken:
        listen = f"{host}:{taken.getsockname()[1]}"
        loaded = HubSettings.load(written(tmp_path, {**hub, "listen": listen}))
        with pytest.raises(InvalidSettings, match=r"nobody can listen on .* now: Address already in use"):
            serve_hub(loaded, key_of(HUB), lambda *_: pytest.fail("it serves"))


@pytest.mark.slow  # imports flwr
def test_a_hub_starts_only_with_nodes_of_the_roster_and_its_own_key(tmp_path, hub):
    from fdtr.exchange.flower.hub_service import require_hub

    require_hub(HubSettings.load(written(tmp_path, hub)), key_of(HUB))
    with pytest.raises(BadSignature, match="not the one that the roster has of"):
        require_hub(HubSettings.load(written(tmp_path, hub)), key_of("a"))
    stranger = {**hub["nodes"], "d": new_node_key(tmp_path / "d.node")}
    with pytest.raises(InvalidSettings, match="has 'd', which is not on the study's roster"):
        require_hub(HubSettings.load(written(tmp_path, {**hub, "nodes": stranger})), key_of(HUB))
    (tmp_path / "shared").chmod(0o750)
    with pytest.raises(Exposed, match=r"The study's folder .*/shared can be read by others.* chmod 700 .*/shared"):
        require_hub(HubSettings.load(written(tmp_path, hub)), key_of(HUB))
    (tmp_path / "shared").chmod(0o700)
    (tmp_path / "tls" / "server.key").chmod(0o644)
    with pytest.raises(Exposed, match="certificate's key"):
        require_hub(HubSettings.load(written(tmp_path, hub)), key_of(HUB))


@pytest.mark.slow  # imports flwr
def test_a_site_loads_nothing_of_the_hubs_app():
    code = "import sys, fdtr.exchange.flower.site_service; sys.exit('fdtr.exchange.flower.hub_app' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.slow  # imports flwr
def test_a_state_that_is_in_use_is_named_and_nobody_is_blamed(tmp_path, site):
    from fdtr.exchange.flower.site_service import serve_site

    settings = SiteSettings.load(written(tmp_path, site))
    busy = re.escape(f"at work for the service whose state is {settings.state}.")
    with locked(settings.state / "serve.lock", "somebody"), pytest.raises(Busy, match=busy):
        serve_site(settings, key_of("a"), lambda _: None)


@pytest.mark.slow  # imports flwr
@pytest.mark.parametrize("deadline", [float("nan"), float("inf"), 0.0, 4.9, 86401.0])
def test_a_deadline_that_is_none_is_refused(tmp_path, hub, deadline):
    from fdtr.exchange.flower.hub_service import start_round

    with pytest.raises(InvalidSettings, match=r"The deadline is .* seconds\. Nothing was asked\. Give 5 to 86400\."):
        start_round(HubSettings.load(written(tmp_path, hub)), deadline=deadline)


@pytest.mark.slow  # imports flwr
def test_a_round_is_started_by_the_owner_of_the_state_alone(tmp_path, hub, monkeypatch):
    from fdtr.exchange.flower.hub_service import Serving, serve_hub, start_round

    settings = HubSettings.load(written(tmp_path, hub))
    state = private_folder("The state folder", settings.state)
    Serving(os.getpid(), 1, {"a": 1}).save(state)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    before = sorted(state.rglob("*"))
    with pytest.raises(ServiceError, match=r"belongs to (\S+), .* sudo -u \1 fdtr"):
        start_round(settings)
    with pytest.raises(ServiceError, match="who runs the service"):
        serve_hub(settings, key_of(HUB), lambda *_: None)
    assert sorted(state.rglob("*")) == before


@pytest.mark.slow  # imports flwr
def test_a_site_is_served_by_the_owner_of_its_state_alone(tmp_path, site, monkeypatch):
    from fdtr.exchange.flower.site_service import serve_site

    settings = SiteSettings.load(written(tmp_path, site))
    state = private_folder("The state folder", settings.state)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(ServiceError, match="who runs the service"):
        serve_site(settings, key_of("a"), lambda *_: None)
    assert list(state.iterdir()) == []
