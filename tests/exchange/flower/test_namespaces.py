"""Parties in network namespaces of their own: a site reaches the reverse proxy alone, the hub calls nobody."""

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from fdtr.exchange.flower.hub_service import Serving
from fdtr.signing import HUB
from folder_parties import EXACT, study_of
from network_parties import Network, until
from network_proxy import Proxy
from same_policies import same_policies, through_a_folder

pytestmark = [pytest.mark.network, pytest.mark.slow]

MADE = itertools.count()
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3)"
RULES = """
table inet fdtr {{
    counter other {{ }}
    chain out {{
        type filter hook output priority 0; policy drop;
        oifname "lo" accept
        {allowed} accept
        meta nfproto ipv6 ip6 daddr ff02::/16 drop
        counter name other drop
    }}
}}
"""


def run(*command: object, told: str | None = None) -> str:
    done = subprocess.run([str(one) for one in command], input=told, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout


@dataclass(frozen=True)
class Namespace:
    """A machine with one cable to this one. Its default route leads here, so that whatever it tries is counted."""

    name: str
    hub: str
    own: str

    @property
    def within(self) -> list[str]:
        return ["ip", "netns", "exec", self.name]

    def make(self) -> None:
        run("ip", "netns", "add", self.name)
        run("ip", "link", "add", f"{self.name}h", "type", "veth", "peer", f"{self.name}s", "netns", self.name)
        run("ip", "addr", "add", f"{self.hub}/30", "dev", f"{self.name}h")
        run("ip", "link", "set", f"{self.name}h", "up")
        run(*self.within, "ip", "addr", "add", f"{self.own}/30", "dev", f"{self.name}s")
        run(*self.within, "ip", "link", "set", f"{self.name}s", "up")
        run(*self.within, "ip", "link", "set", "lo", "up")
        run(*self.within, "ip", "route", "add", "default", "via", self.hub)

    def remove(self) -> None:
        subprocess.run(["ip", "link", "del", f"{self.name}h"], capture_output=True, timeout=30)
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True, timeout=30)

    def reaches(self, port: int) -> bool:
        tried = [*self.within, sys.executable, "-c", CONNECT, self.hub, str(port)]
        return subprocess.run(tried, capture_output=True, timeout=30).returncode == 0

    def allow_only(self, port: int) -> None:
        """Of all that may leave, what goes to the reverse proxy."""
        self._allow(f"ip daddr {self.hub} tcp dport {port}")

    def allow_answers(self, port: int) -> None:
        """Of all that may leave, what a server on this port says to those who called it."""
        self._allow(f"ip daddr {self.hub} tcp sport {port} tcp flags & (syn | ack) != syn")

    def _allow(self, what: str) -> None:
        run(*self.within, "nft", "-f", "-", told=RULES.format(allowed=what))

    def tried_elsewhere(self) -> int:
        said = run(*self.within, "nft", "list", "counter", "inet", "fdtr", "other")
        return int(said.split("packets")[1].split()[0])

    def cut(self) -> None:
        run(*self.within, "nft", "insert", "rule", "inet", "fdtr", "out", "ip", "daddr", self.hub, "drop")

    def mend(self, port: int) -> None:
        run(*self.within, "nft", "delete", "table", "inet", "fdtr")
        self.allow_only(port)


@pytest.fixture
def elsewhere() -> Iterator[Namespace]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    lacking = [program for program in ("ip", "nft") if shutil.which(program, path="/usr/sbin:/sbin:/usr/bin") is None]
    if lacking:
        pytest.skip(f"{lacking[0]} is not installed")
    # Addresses of its own: what the test before left unanswered must not count here.
    number, fourth = os.getpid() % 200, 4 * next(MADE)
    made = Namespace(
        f"fd{os.getpid() % 100000}n{fourth}", f"10.253.{number}.{fourth + 1}", f"10.253.{number}.{fourth + 2}"
    )
    try:
        made.make()
        yield made
    finally:
        made.remove()


def test_a_site_reaches_the_front_alone_and_survives_a_cut_link(network, elsewhere, tmp_path_factory):
    network.host, network.within = elsewhere.hub, {"a": elsewhere.within}
    network.set_up(study := study_of(masked=False, disclosure=EXACT))
    network.serve_hub()
    port = int(network.address.rpartition(":")[2])
    assert elsewhere.reaches(port)
    assert not elsewhere.reaches(Serving.find(network.root / "hub-state").port)
    elsewhere.allow_only(port)
    network.serve_sites()

    round_ = network.round("--deadline", "25")
    posted(network, round_)
    elsewhere.cut()
    result = network.finished(round_, code=1)
    assert (result["ending"], result["finished"]) == ("incomplete", ["b", "c"])
    assert [(one["site"], one["phase"]) for one in result["absent"]] == [("a", "finish")]

    assert elsewhere.tried_elsewhere() == 0
    elsewhere.mend(port)
    until(lambda: back(network), "a is back", 180)
    assert elsewhere.tried_elsewhere() == 0
    assert not elsewhere.reaches(port + 1)
    assert elsewhere.tried_elsewhere() > 0  # so the counter counts
    same_policies(network, through_a_folder(tmp_path_factory.mktemp("folder"), study))


def test_the_hub_answers_sites_and_calls_nobody(network, elsewhere):
    network.host, network.within = elsewhere.own, dict.fromkeys((HUB, "round"), elsewhere.within)
    network.set_up(study_of(masked=False))
    elsewhere.allow_answers(int(network.address.rpartition(":")[2]))
    network.serve_hub()
    network.serve_sites()
    assert network.finished(network.round())["ending"] == "complete"
    assert elsewhere.tried_elsewhere() == 0
    assert not elsewhere.reaches(9)
    assert elsewhere.tried_elsewhere() > 0


def test_a_site_that_reaches_a_proxy_alone_goes_through_it(network, elsewhere):
    network.host = elsewhere.hub
    network.set_up(study_of(masked=False))
    with Proxy(elsewhere.hub) as proxy:
        port = proxy.server_address[1]
        elsewhere.allow_only(port)
        network.within = {"a": [*elsewhere.within, "env", f"HTTPS_PROXY=http://{elsewhere.hub}:{port}"]}
        network.serve_hub()
        network.serve_sites()
        assert network.finished(network.round())["members"] == ["a", "b", "c"]
        network.end()
        assert set(proxy.requested) == {network.address}
    assert elsewhere.tried_elsewhere() == 0


def posted(network: Network, round_) -> None:
    sums = network.root / "shared" / "rounds" / "1" / "sums"
    until(lambda: list(sums.glob("a-*")), "the message of a", 120, lambda: round_.ended and round_.said)


def back(network: Network) -> bool:
    """Whether another try of the same round ends well: a link that was cut takes its supernode a while to find."""
    tried = network.round("--deadline", "25")
    return tried.result(120) == 0
