"""Flower's supernode, which talks to the hub and to nobody that the hub sends it to, and reads no more than it can use.

Flower's own client follows redirects, so that a hub could have a hospital's machine call any address that it can reach,
and reads answers of any length. Run as `python -m fdtr.exchange.flower.supernode`, with the options of
`flower-supernode`; FDTR_LONGEST_ANSWER holds the most bytes of one answer.
"""

import os
from collections.abc import Iterator
from typing import Any

import httpx
from flwr.supernode import fleet_http_connection
from flwr.supernode.cli import flower_supernode
from flwr.supernode.fleet_http_client import FleetHttpClient

LONGEST = "FDTR_LONGEST_ANSWER"
"""The environment variable with the most bytes that an answer of the hub may have."""
_LONGEST_UNLESS_TOLD = 2**20


class TooLong(httpx.HTTPError):
    """An answer of the hub is longer than any of the studies here needs; the rest of it was not read."""


class StraightFleetClient(FleetHttpClient):
    """To the hub's server; an answer that points elsewhere is an error, and so is one that is too long."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._client.follow_redirects = False
        self._client.headers["accept-encoding"] = "identity"
        self._client.event_hooks = {"response": [_bound]}


class _Bounded(httpx.SyncByteStream):
    """The bytes of an answer, up to `most`."""

    def __init__(self, stream: httpx.SyncByteStream, most: int) -> None:
        self._stream = stream
        self._most = most

    def __iter__(self) -> Iterator[bytes]:
        read = 0
        for part in self._stream:
            read += len(part)
            if read > self._most:
                raise TooLong(f"The hub's answer has more than {self._most} bytes.")
            yield part

    def close(self) -> None:
        self._stream.close()


def _bound(response: httpx.Response) -> None:
    """Called before an answer is read."""
    if "content-encoding" in response.headers:  # a few bytes could be unpacked into any number
        response.close()
        raise TooLong("The hub's answer is packed, which nobody asked for.")
    assert isinstance(response.stream, httpx.SyncByteStream)  # noqa: S101  the client is not asynchronous
    response.stream = _Bounded(response.stream, int(os.environ.get(LONGEST, _LONGEST_UNLESS_TOLD)))


def main() -> None:
    """Be the supernode."""
    fleet_http_connection.FleetHttpClient = StraightFleetClient  # type: ignore[attr-defined]
    flower_supernode()


if __name__ == "__main__":
    main()
