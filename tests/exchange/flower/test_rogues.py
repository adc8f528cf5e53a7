"""Those who try what they may not: strangers at the reverse proxy, and a hub that sends code."""

import http.client
import json
import ssl
import time

import pytest

from folder_parties import study_of
from network_parties import until

pytestmark = [
    pytest.mark.network,
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),  # of Flower's own packing
]

FORBIDDEN = [
    "/v1/control/start-run",
    "/v1/control/list-runs",
    "/v1/control/register-node",
    "/v1/control/list-nodes",
    "/v1/fleet/register-node",
    "/v1/fleet/unregister-node",
    "/v1/runtime/acquire-task",
    "/v1/fleet/../control/list-nodes",
    "/v1/fleet/%2e%2e/control/list-nodes",
    "/v1/fleet/pull-messages/../../control/list-nodes",
    "//v1/control/list-nodes",
    "/V1/control/list-nodes",
    "/docs",
    "/openapi.json",
]
THIEF = """
import pathlib
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

pathlib.Path({mark!r}).open("a").write(__name__ + "\\n")
client = ClientApp()
server = ServerApp()

@client.query("sums")
def steal(message: Message, context: Context) -> Message:
    stolen = pathlib.Path({table!r}).read_bytes()
    return Message(RecordDict({{"stolen": ConfigRecord({{"rows": stolen}})}}), reply_to=message)

@server.main()
def main(grid: Grid, context: Context) -> None:
    nodes = list(grid.get_node_ids())
    asked = [Message(RecordDict(), dst_node_id=node, message_type="query.sums") for node in nodes]
    replies = list(grid.send_and_receive(asked, timeout=60))
    told = [str(dict(one.content["fdtr"])) if one.has_content() else one.error.reason for one in replies]
    pathlib.Path({out!r}).write_text(repr(told))
"""
APP = """
[project]
name = "thief"
version = "1.0.0"
dependencies = []
[tool.flwr.app]
publisher = "thief"
[tool.flwr.app.components]
serverapp = "thief:server"
clientapp = "thief:client"
"""


def asked(network, path: str, method: str = "POST", body: bytes = b"") -> tuple[int, bytes]:
    """What somebody hears from the reverse proxy who has the authority's certificate and nothing else."""
    host, _, port = network.address.rpartition(":")
    context = ssl.create_default_context(cafile=str(network.root / "tls" / "ca.crt"))
    connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=20)
    try:
        connection.request(
            method, path, body, {"Content-Type": "application/protobuf", "Accept": "application/protobuf"}
        )
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def control_of(network):
    from fdtr.exchange.flower.hub_service import Serving

    state = network.root / "hub-state"
    return Serving.find(state).control(state)


def test_strangers_get_past_the_front_to_nothing(served):
    from flwr.proto.control_pb2 import RegisterNodeRequest
    from flwr.proto.fleet_pb2 import ActivateNodeRequest

    from fdtr.exchange.flower.node_keys import new_node_key, public_pem
    from fdtr.exchange.flower.reverse_proxy import FORWARDED

    own = public_pem(new_node_key(served.root / "stranger.node"))
    body = RegisterNodeRequest(public_key=own).SerializeToString()
    for path in FORBIDDEN:
        status, _ = asked(served, path, body=body)
        assert status in (400, 404), path
    assert asked(served, "/health", "GET")[0] == 200
    assert asked(served, "/health", "POST")[0] == 403
    assert asked(served, "/v1/fleet/pull-messages", "GET")[0] == 403
    activate = ActivateNodeRequest(public_key=own).SerializeToString()
    assert asked(served, "/v1/fleet/activate-node", body=activate)[0] == 401
    for path in FORWARDED:  # an empty message is one of every kind
        assert asked(served, f"/v1/fleet/{path}")[0] == 401, path
    assert asked(served, "/v1/fleet/push-object", body=b"0" * 100_000)[0] == 413

    # The node of a site that the hub's settings do not name.
    site = served.serve_site("c", wait=False)
    assert site.result(60) == 1
    assert "The hub does not take this node key (SHA256:" in site.said
    assert 'c = "ecdsa-sha2-nistp384 ' in site.said


def test_a_site_refuses_a_hub_under_another_authority(served):
    from fdtr.exchange.flower.certificates import make_certificates

    make_certificates(served.root / "other", [served.host])
    served.settle("b", served.address, study_of(served.sites, masked=False), authority="other/ca.crt")
    site = served.serve_site("b", wait=False)
    assert site.result(60) == 1
    assert "is not one that" in site.said
    assert "Nothing was sent" in site.said


def test_the_hubs_code_does_not_run_at_a_site(served):
    from flwr.cli.build import build_fab_from_files
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.proto.fab_pb2 import Fab

    hub = served.processes[0]
    served.serve_site("a")
    mark, out = served.root / "ran", served.root / "heard"
    code = THIEF.format(mark=str(mark), table=str(served.root / "a.csv"), out=str(out))
    content, _ = build_fab_from_files({"pyproject.toml": APP.encode(), "thief.py": code.encode()})
    with control_of(served)._client() as client:
        client.StartRun(StartRunRequest(fab=Fab(content=content)))
    until(out.exists, "the hub heard the site", 120, lambda: hub.ended and hub.said)
    time.sleep(0.2)
    assert mark.read_text() == "thief\n"  # once: at the hub, whose own code it is
    told = out.read_text()
    assert "stolen" not in told
    assert "'outcome': 'refused'" in told
    lines = [json.loads(line) for line in (served.root / "a-state" / "audit.jsonl").read_text().splitlines()]
    assert [(line["outcome"], line["sent"]) for line in lines] == [("refused", [])]


# In `make test` a site's answer to a study that is not on its list, and what the hub makes of it, are held by
# tests/exchange/remote/test_request_handler.py:test_studies_that_are_not_on_the_list_are_unknown and
# tests/exchange/remote/test_hub_rounds.py:test_a_site_with_another_study_or_roster_says_so.
@pytest.mark.slow
def test_a_site_is_asked_only_for_studies_on_its_list(network):
    network.sites = sites = tuple("abcd")
    network.set_up(study := study_of(sites, masked=False))
    other = study_of(sites, masked=False, name="another")
    other.save(network.root / "other.toml")
    accepted = {"study": "other.toml", "fingerprint": other.fingerprint, "data": "d.csv"}
    address = network.address
    network.settle("d", address, study, studies=[accepted])
    network.serve_hub()
    network.serve_sites()
    result = network.finished(network.round())
    assert (result["ending"], result["members"]) == ("complete", ["a", "b", "c"])
    assert [(one["site"], one["reason"]) for one in result["absent"]] == [("d", "unknown study")]
