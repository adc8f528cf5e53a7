"""Keys and masks: X25519 agreement, HKDF-SHA256, ChaCha20 key streams, all from PyCA `cryptography`."""

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

Words = NDArray[np.uint64]

KEY_BYTES = 32
_NONCE = bytes(16)  # a key makes one stream, so that the nonce may be the same for all


def public_key(private_key: bytes) -> bytes:
    """The X25519 public key of a private one, 32 bytes each."""
    return X25519PrivateKey.from_private_bytes(private_key).public_key().public_bytes_raw()


def pair_key(private_key: bytes, other_public_key: bytes, context: bytes, site: str, other: str) -> bytes:
    """HKDF-SHA256(shared secret, salt = ctx, info = both names): the same at both sites.

    Raises ValueError for a public key that forces the secret.
    """
    secret = X25519PrivateKey.from_private_bytes(private_key).exchange(
        X25519PublicKey.from_public_bytes(other_public_key)
    )
    info = b"".join(prefixed(name.encode()) for name in sorted((site, other)))
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=context, info=info).derive(secret)


def stream(key: bytes, length: int) -> Words:
    """PRG(key): `length` words of the ChaCha20 key stream, little-endian."""
    noise = Cipher(ChaCha20(key, _NONCE), mode=None).encryptor().update(bytes(8 * length))
    return np.frombuffer(noise, dtype="<u8").astype(np.uint64, copy=False)


def add_pair_mask(vector: Words, key: bytes, site: str, other: str) -> None:
    """Add a pair's mask in place, or take it away: + at the site with the smaller name."""
    mask = stream(key, len(vector))
    (np.add if site < other else np.subtract)(vector, mask, out=vector)


def prefixed(part: bytes) -> bytes:
    """A part with its length before it, so that no two lists of parts read the same."""
    return len(part).to_bytes(4, "big") + part
