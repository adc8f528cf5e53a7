"""A hub that is started again: with other nodes in its settings, and while sites are connected."""

import tomllib

import pytest
import tomli_w

from folder_parties import study_of
from network_parties import until

pytestmark = [pytest.mark.network, pytest.mark.slow]


def with_nodes(network, nodes: dict[str, str]) -> None:
    """Edit [nodes] of the hub's settings."""
    path = network.root / "hub.toml"
    path.write_text(tomli_w.dumps({**tomllib.loads(path.read_text()), "nodes": nodes}))


def test_nodes_may_be_taken_out_swapped_and_put_back_and_sites_that_were_connected_come_back(network):
    network.sites = tuple("abcd")  # three are left when one is taken out
    network.set_up(study_of(network.sites, masked=False))
    nodes = tomllib.loads((network.root / "hub.toml").read_text())["nodes"]
    hub = network.serve_hub()
    served = network.serve_sites("a")["a"]
    without = {site: line for site, line in nodes.items() if site != "c"}
    swapped = {**nodes, "b": nodes["c"], "c": nodes["b"]}
    for edited in (without, swapped, nodes):
        hub.end()
        before = served.said.count("Connected to")
        with_nodes(network, edited)
        hub = network.serve_hub()
    network.serve_sites("b", "c", "d")
    until(lambda: served.said.count("Connected to") > before, "a is back", 90, lambda: served.ended and served.said)
    assert network.finished(network.round())["ending"] == "complete"
