"""What the hub's programs are told, read from the reverse proxy's configuration and from the command of its server."""

import http.client
import re
import shutil
import ssl
import time
from contextlib import closing
from types import SimpleNamespace

import pytest

from fdtr.errors import InvalidSettings
from fdtr.exchange.flower.certificates import make_certificates
from fdtr.exchange.flower.processes import Children, environment, free_port
from fdtr.exchange.flower.reverse_proxy import ReverseProxy, write_configuration


@pytest.fixture
def proxy(tmp_path, monkeypatch):
    monkeypatch.setattr("fdtr.exchange.flower.reverse_proxy.find_program", lambda *_: "/usr/sbin/nginx")
    return ReverseProxy(
        "0.0.0.0:8443", tmp_path / "server.crt", tmp_path / "server.key", 5000, tmp_path / "ca.crt", 70_000
    )


def told(folder, proxy) -> str:
    write_configuration(folder, proxy)
    return (folder / "nginx.conf").read_text()


def test_the_front_speaks_new_tls_and_believes_its_own_server_alone(tmp_path, proxy):
    text = told(tmp_path, proxy)
    assert re.findall("ssl_protocols (.*);", text) == ["TLSv1.2 TLSv1.3"]
    assert re.findall("proxy_ssl_verify (.*);", text) == ["on"]
    assert re.findall("proxy_ssl_trusted_certificate (.*);", text) == [f'"{tmp_path}/ca.crt"']
    assert set(re.findall("proxy_pass (.*);", text)) == {"https://127.0.0.1:5000"}


def test_strangers_are_held_to_few_connections_few_requests_and_the_length_of_a_message(tmp_path, proxy):
    text = told(tmp_path, proxy)
    assert re.findall("client_max_body_size (.*);", text) == ["70000"]
    assert re.findall("limit_conn peers (.*);", text) == ["64"]
    assert re.findall("rate=(.*);", text) == ["50r/s"]
    assert re.findall("limit_req zone=requests burst=(.*);", text) == ["1000 nodelay"]


def test_a_path_that_would_change_the_fronts_configuration_is_refused(tmp_path, proxy):
    changed = ReverseProxy(**{**vars(proxy), "certificate": tmp_path / 'x"; include /etc/shadow; "'})
    with pytest.raises(InvalidSettings, match="cannot hold"):
        write_configuration(tmp_path, changed)


@pytest.mark.network
@pytest.mark.skipif(shutil.which("nginx", path="/usr/sbin:/usr/bin") is None, reason="nginx is not installed")
def test_nginx_turns_long_and_frequent_requests_away_and_writes_nothing_of_the_latter(tmp_path, monkeypatch):
    monkeypatch.setattr("fdtr.exchange.flower.reverse_proxy._REQUEST_BURST", 40)
    files, port = make_certificates(tmp_path / "tls", ["127.0.0.1"]), free_port()
    nobody = free_port()  # stands behind the proxy: what is forwarded is answered with 502
    proxy = ReverseProxy(f"127.0.0.1:{port}", files.certificate, files.key, nobody, files.authority, 70_000)

    def asked(size: int, headers: dict[str, str]) -> int:
        context = ssl.create_default_context(cafile=str(files.authority))
        with closing(http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=10)) as connection:
            connection.request("POST", "/v1/fleet/push-object", b"0" * size, headers)
            return connection.getresponse().status

    with Children(tmp_path / "logs") as children:
        child = children.start("front", write_configuration(tmp_path / "front", proxy), environment())
        end = time.monotonic() + 10
        while True:
            try:
                assert asked(70_000, {}) == 502
                break
            except ConnectionRefusedError:
                assert time.monotonic() < end, child.output()
                time.sleep(0.05)
        assert asked(0, {"Content-Length": "70001"}) == 413
        assert 429 in {asked(0, {}) for _ in range(200)}
        assert "limiting" not in child.output()


@pytest.mark.slow  # imports flwr
def test_the_hubs_server_listens_on_loopback_and_wants_node_keys(tmp_path, monkeypatch):
    from fdtr.exchange.flower import hub_service

    class Ready:
        def __init__(self, *_: object) -> None:
            pass

        def answers(self) -> bool:
            return True

        def register(self, nodes: dict[str, str]) -> dict[str, int]:
            return {site: number for number, site in enumerate(nodes)}

    started = []
    children = SimpleNamespace(start=lambda *given: started.append(given), ended=lambda: None)
    monkeypatch.setattr(hub_service, "Control", Ready)
    settings = SimpleNamespace(state=tmp_path / "state", nodes={"a": "line"})
    assert hub_service._start_server(children, settings, 5000) == {"a": 0}
    [(_, command, environment)] = started
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--port") + 1] == "5000"
    assert {"--enable-supernode-auth", "--disable-runtime-dependency-installation"} <= set(command)
    assert environment["FLWR_DISABLE_UPDATE_CHECK"] == "1"
