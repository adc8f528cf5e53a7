"""The key by which the hub's server knows a site's machine: ECDSA P-384 in OpenSSH's format, as Flower wants it.

It opens the connection and nothing else: what a site says is signed with its key on the roster.
"""

from base64 import b64decode, b64encode
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from fdtr.container import create_private
from fdtr.errors import UnreadableKey

_MOST_KEY_BYTES = 4096


def new_node_key(path: Path) -> str:
    """Write a new private key, readable by its owner alone; the public half as one line of text."""
    private = ec.generate_private_key(ec.SECP384R1())
    create_private(path, private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return _line(private.public_key())


def public_line(path: Path) -> str:
    """The public half of a private key in a file."""
    try:
        with path.open("rb") as file:
            found: object = load_ssh_private_key(file.read(_MOST_KEY_BYTES), password=None)
    except OSError as error:
        raise UnreadableKey(f"The node key {path} could not be read: {error.strerror}.") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        found = None
    if not isinstance(found, ec.EllipticCurvePrivateKey) or not isinstance(found.curve, ec.SECP384R1):
        raise UnreadableKey(f"{path} is no node key. Make one with `fdtr keys node --out FILE`.")
    return _line(found.public_key())


def settings_line(site: str, line: str) -> str:
    """What the hub's person puts under [nodes]: names with blanks, points or umlauts need quotes there."""
    import tomli_w

    return tomli_w.dumps({site: line}).strip()


def public_pem(line: str) -> bytes:
    """A public key as the hub's server stores it; a ValueError says what is wrong with the line."""
    return _public(line).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def node_fingerprint(line: str) -> str:
    """What `ssh-keygen -l` prints of a public key, to be compared by telephone."""
    blob = b64decode(_line(_public(line)).split()[1])
    return "SHA256:" + b64encode(sha256(blob).digest()).rstrip(b"=").decode()


def _public(line: str) -> ec.EllipticCurvePublicKey:
    try:
        found: object = load_ssh_public_key(line.encode())
    except (ValueError, UnsupportedAlgorithm):
        found = None
    if not isinstance(found, ec.EllipticCurvePublicKey) or not isinstance(found.curve, ec.SECP384R1):
        raise ValueError("a node's public key is the line that `fdtr keys node` prints: ecdsa-sha2-nistp384 AAAA…")
    return found


def _line(public: ec.EllipticCurvePublicKey) -> str:
    return public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
