"""Flower's supernode, which talks to the hub and to nobody that the hub sends it to.

Flower's own client follows redirects: a hub could have a hospital's machine call any address that it can reach. Run as
`python -m fdtr.exchange.flower.supernode`, with the options of `flower-supernode`.
"""

from typing import Any

from flwr.supernode import fleet_http_connection
from flwr.supernode.cli import flower_supernode
from flwr.supernode.fleet_http_client import FleetHttpClient


class StraightFleetClient(FleetHttpClient):
    """To the hub's server; an answer that points elsewhere is an error."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._client.follow_redirects = False


def main() -> None:
    """Be the supernode."""
    fleet_http_connection.FleetHttpClient = StraightFleetClient  # type: ignore[attr-defined]
    flower_supernode()


if __name__ == "__main__":
    main()
