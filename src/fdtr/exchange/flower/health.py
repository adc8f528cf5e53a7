"""A site's health over HTTP on loopback, for whatever watches the machine: whether it is connected, and no more."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from fdtr.errors import InvalidSettings
from fdtr.exchange.flower.processes import LOOPBACK


@dataclass
class Health:
    """What may be told: whether the hub knows us and answers, and when it last got an answer of ours."""

    connected: Callable[[], bool]
    last_answer: str | None = None

    def answered(self) -> None:
        """An answer went out now."""
        self.last_answer = datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def health_endpoint(health: Health, port: int | None) -> Iterator[None]:
    """Answer GET /health on loopback while the block runs; nothing where no port is given."""
    if port is None:
        yield
        return

    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            if self.path != "/health":
                self.send_error(404)
                return
            connected = health.connected()
            body = json.dumps({"connected": connected, "last_answer": health.last_answer}).encode()
            self.send_response(200 if connected else 503)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    try:
        server = ThreadingHTTPServer((LOOPBACK, port), Handler)
    except OSError as error:
        raise InvalidSettings(f"health_port {port} cannot be listened on: {error.strerror}. Name another.") from None
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()
