"""Health of the network: whether a server answers, and a site's own health endpoint on loopback."""

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, HTTPSHandler, ProxyHandler, build_opener, getproxies, proxy_bypass

from fdtr.errors import InvalidSettings
from fdtr.exchange.flower.processes import LOOPBACK


class _NoRedirects(HTTPRedirectHandler):
    """Treats a redirect as an error: otherwise the server could make this machine call any address."""

    def redirect_request(self, *_: object) -> None:
        return None


def reachable(address: str, authority: Path | None, patience: float = 3.0) -> bool:
    """Whether the server at `address` (host and port) answers.

    Raises ssl.SSLCertVerificationError if its certificate is not signed by `authority`, or by the system's if None.
    """
    local = address.startswith(f"{LOOPBACK}:")
    try:
        context = ssl.create_default_context(cafile=str(authority) if authority else None)
        handlers = [HTTPSHandler(context=context), _NoRedirects(), *([ProxyHandler({})] if local else [])]
        with build_opener(*handlers).open(f"https://{address}/health", timeout=patience) as answer:
            return bool(answer.status == 200)
    except HTTPError as error:
        error.close()
        return False
    except URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise error.reason from None
        return False
    except (OSError, ValueError):
        return False


def resolved(address: str) -> bool:
    """Whether the host of an address has an IP address here, or a proxy will look it up."""
    host = address.rpartition(":")[0].strip("[]")
    if "https" in getproxies() and not proxy_bypass(host):
        return True
    try:
        return bool(socket.getaddrinfo(host, None))
    except (OSError, UnicodeError):
        return False


@dataclass
class Health:
    """What the endpoint reports: whether the site is connected to the hub, and when its last answer was sent."""

    connected: Callable[[], bool]
    last_answer: str | None = None

    def answered(self) -> None:
        """Record that an answer was sent now."""
        self.last_answer = datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def health_endpoint(health: Health, port: int | None) -> Iterator[None]:
    """Answer GET /health on loopback while the block runs. Does nothing if `port` is None."""
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
