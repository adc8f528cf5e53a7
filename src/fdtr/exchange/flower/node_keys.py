"""Node keys, by which the hub's server identifies a site's machine: ECDSA P-384 in OpenSSH format, as Flower requires.

A node key only opens the connection. What a site sends is signed with its key on the roster.
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
from fdtr.errors import UnreadableFile

_MOST_KEY_BYTES = 4096


def new_node_key(path: Path) -> str:
    """Write a new private key, readable by its owner only. Returns the public half as one line of text."""
    private = ec.generate_private_key(ec.SECP384R1())
    create_private(path, private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return _line(private.public_key())


def public_line(path: Path) -> str:
    """The public half of the private key in a file, as one line of text."""
    try:
        with path.open("rb") as file:
            key: object = load_ssh_private_key(file.read(_MOST_KEY_BYTES), password=None)
    except OSError as error:
        raise UnreadableFile(f"The node key {path} could not be read: {error.strerror}.") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise UnreadableFile(f"{path} is no node key. Make one with `fdtr keys node --out FILE`.")
    return _line(key.public_key())


def settings_line(site: str, line: str) -> str:
    """The line for [nodes] of the hub's settings, with quotes where the site's name needs them in TOML."""
    import tomli_w

    return tomli_w.dumps({site: line}).strip()


def public_pem(line: str) -> bytes:
    """A public key in the PEM form that the hub's server stores; raises ValueError if the line is no such key."""
    return _public(line).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def node_fingerprint(line: str) -> str:
    """The fingerprint that `ssh-keygen -l` prints of a public key, to be compared by telephone."""
    blob = b64decode(_line(_public(line)).split()[1])
    return "SHA256:" + b64encode(sha256(blob).digest()).rstrip(b"=").decode()


def _public(line: str) -> ec.EllipticCurvePublicKey:
    try:
        key: object = load_ssh_public_key(line.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise ValueError("a node's public key is the line that `fdtr keys node` prints: ecdsa-sha2-nistp384 AAAA…")
    return key


def _line(public: ec.EllipticCurvePublicKey) -> str:
    return public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
