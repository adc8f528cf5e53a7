"""A hub that points elsewhere, or sends without end: a site's machine does not go there, and does not read on."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from flwr.proto.fleet_pb2 import DeactivateNodeRequest

from fdtr.exchange.flower.certificates import ServerFiles, make_certificates
from fdtr.exchange.flower.health import reachable, resolved
from fdtr.exchange.flower.supernode import LONGEST, AnswerTooLong, RestrictedFleetClient
from folder_parties import study_of

pytestmark = pytest.mark.network


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler], files: ServerFiles | None = None) -> Iterator[str]:
    """A server on loopback while the block runs; where it is."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if files is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(files.certificate, files.key)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


class Quiet(BaseHTTPRequestHandler):
    """Answers everything with the status and the headers of its class, and remembers what it was asked."""

    status, headers_told, heard = 200, {}, []

    def do_GET(self) -> None:
        self.heard.append(self.path)
        self.send_response(self.status)
        for name, value in {**self.headers_told, "Content-Length": "0"}.items():
            self.send_header(name, value)
        self.end_headers()

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path):
    """The address of a hub that points to a machine of the hospital, what that one heard, and what the hub heard."""
    files = make_certificates(tmp_path / "hostile", ["127.0.0.1"])
    inner = type("Inner", (Quiet,), {"heard": []})
    with ExitStack() as servers:
        there = {"Location": f"http://{servers.enter_context(listening(inner))}/internal"}
        outer = type("Outer", (Quiet,), {"status": 307, "headers_told": there, "heard": []})
        yield servers.enter_context(listening(outer, files)), inner.heard, outer.heard


def test_whether_the_hub_answers_is_asked_of_the_hub_alone(hub, tmp_path):
    address, inner, outer = hub
    assert not reachable(address, tmp_path / "hostile" / "ca.crt")
    assert (inner, outer) == ([], ["/health"])


def test_a_node_signs_off_at_the_hub_alone(hub, tmp_path):
    address, inner, outer = hub
    authority = (tmp_path / "hostile" / "ca.crt").read_bytes()
    with (
        RestrictedFleetClient.from_server_address(address, False, authority, []) as client,
        pytest.raises(httpx.HTTPStatusError, match="307"),
    ):
        client.DeactivateNode(DeactivateNodeRequest(node_id=1))
    assert (inner, outer) == ([], ["/v1/fleet/deactivate-node"])


class Flood(Quiet):
    """Answers with far more than anybody asked for, packed where `packed` says so, and counts what was taken."""

    taken, packed = [], False

    def do_GET(self) -> None:
        self.send_response(200)
        if self.packed:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        try:
            for _ in range(250):
                self.wfile.write(bytes(2**20))
                self.taken.append(2**20)
        except OSError:
            self.close_connection = True


@pytest.mark.parametrize("packed", [False, True])
def test_what_a_hub_sends_is_read_up_to_the_length_that_a_study_needs(tmp_path, monkeypatch, packed):
    files = make_certificates(tmp_path / "hostile", ["127.0.0.1"])
    monkeypatch.setenv(LONGEST, "100000")
    flood = type("One", (Flood,), {"taken": [], "packed": packed})
    with (
        listening(flood, files) as address,
        RestrictedFleetClient.from_server_address(address, False, files.authority.read_bytes(), []) as client,
        pytest.raises(AnswerTooLong, match="packed" if packed else "more than 100000 bytes"),
    ):
        client.DeactivateNode(DeactivateNodeRequest(node_id=1))
    assert sum(flood.taken) < 20 * 2**20  # what the system's own buffers took


def test_a_name_that_nobody_knows_is_told_from_a_hub_that_is_silent(monkeypatch):
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert resolved("127.0.0.1:8443")
    assert resolved("[::1]:8443")
    assert not resolved("no-such-host.invalid:8443")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.org:3128")
    assert resolved("no-such-host.invalid:8443")  # for the proxy to say


@pytest.mark.slow
def test_a_site_that_serves_is_not_led_elsewhere(hub, network):
    address, inner, outer = hub
    network.set_up(study := study_of(masked=False))
    network.settle("a", address, study, authority="hostile/ca.crt")
    state = network.root / "a-state"
    state.mkdir(mode=0o700)
    (state / "node").write_text("1")  # of a supernode that was killed before
    served = network.serve_site("a", wait=False)
    assert served.result(60) == 1
    assert "could not be opened: “Failed to initialize the connection to the SuperLink. Redirect" in served.said
    assert inner == []
    assert {"/health", "/v1/fleet/deactivate-node", "/v1/fleet/activate-node"} <= set(outer)
