"""Whether a server answers, and is the one that it should be: asked by a hub on loopback, and by a site of its hub."""

import socket
import ssl
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, HTTPSHandler, ProxyHandler, build_opener, getproxies, proxy_bypass

from fdtr.exchange.flower.processes import LOOPBACK


class _NoRedirects(HTTPRedirectHandler):
    """An answer that points elsewhere is an error: whoever answers could have this machine call any other."""

    def redirect_request(self, *_: object) -> None:
        return None


def reachable(address: str, authority: Path | None, patience: float = 3.0) -> bool:
    """Whether a server answers at `address`, host and port; an ssl.SSLCertVerificationError where it is another."""
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
    """Whether the host of an address has a number here, or a proxy is to find it."""
    host = address.rpartition(":")[0].strip("[]")
    if "https" in getproxies() and not proxy_bypass(host):
        return True
    try:
        return bool(socket.getaddrinfo(host, None))
    except (OSError, UnicodeError):
        return False
