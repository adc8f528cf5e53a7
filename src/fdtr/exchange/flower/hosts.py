"""Names and addresses of machines, as settings and certificates give them."""

import ipaddress
import re

_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME = re.compile(rf"({_LABEL}\.)*(?![0-9]+\Z){_LABEL}")  # one that ends in a number would be an address
_LONGEST_NAME = 253
_PORT = re.compile("[0-9]{1,5}")


def is_host(text: str) -> bool:
    """Whether it is a name that DNS can have, or an address; without a port, and without brackets.

    >>> [is_host(text) for text in ("hub.example.org", "10.0.0.1", "::1", "hub.example.org:8443", "10.0.0.256", "")]
    [True, True, True, False, False, False]
    """
    return _is_address(text) or (len(text) <= _LONGEST_NAME and _NAME.fullmatch(text) is not None)


def host_of(endpoint: str) -> str | None:
    """The host in a text such as "hub.example.org:8443" or "[::1]:8443"; None where it is not a host and a port.

    >>> host_of("[::1]:8443"), host_of("::1:8443"), host_of("user@hub:8443")
    ('::1', None, None)
    """
    host, _, port = endpoint.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    known = _PORT.fullmatch(port) is not None and 0 < int(port) < 65536
    return bare if known and is_host(bare) and (":" in bare) == bracketed else None


def _is_address(text: str) -> bool:
    try:
        return "%" not in str(ipaddress.ip_address(text))
    except ValueError:
        return False
