"""Flower's supernode, which here follows no redirects and limits the length of an answer.

Flower's own client follows redirects, so a hub could make a hospital's machine call any address that it can reach, and
it reads answers of any length. Run as `python -m fdtr.exchange.flower.supernode`, with the options of
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
"""Environment variable with the most bytes of one answer of the hub."""
_DEFAULT_LONGEST = 2**20


class AnswerTooLong(httpx.HTTPError):
    """An answer of the hub is longer than any study of this site needs. The rest of it was not read."""


class RestrictedFleetClient(FleetHttpClient):
    """Client of the hub's server. A redirect is an error, and so is an answer that is too long."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._client.follow_redirects = False
        self._client.headers["accept-encoding"] = "identity"
        self._client.event_hooks = {"response": [_limit]}


class _LimitedStream(httpx.SyncByteStream):
    """The bytes of an answer; raises AnswerTooLong after `most`."""

    def __init__(self, stream: httpx.SyncByteStream, most: int) -> None:
        self._stream = stream
        self._most = most

    def __iter__(self) -> Iterator[bytes]:
        read = 0
        for part in self._stream:
            read += len(part)
            if read > self._most:
                raise AnswerTooLong(f"The hub's answer has more than {self._most} bytes.")
            yield part

    def close(self) -> None:
        self._stream.close()


def _limit(response: httpx.Response) -> None:
    """Limit the length of an answer; httpx calls this before the body is read."""
    if "content-encoding" in response.headers:  # a few compressed bytes can expand to any length
        response.close()
        raise AnswerTooLong("The hub's answer is packed, which nobody asked for.")
    assert isinstance(response.stream, httpx.SyncByteStream)  # noqa: S101  the client is not asynchronous
    response.stream = _LimitedStream(response.stream, int(os.environ.get(LONGEST, _DEFAULT_LONGEST)))


def main() -> None:
    """Run the supernode."""
    fleet_http_connection.FleetHttpClient = RestrictedFleetClient  # type: ignore[attr-defined]
    flower_supernode()


if __name__ == "__main__":
    main()
