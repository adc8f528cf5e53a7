"""Mask keys and key streams: X25519 agreement, HKDF-SHA256 and ChaCha20, all from PyCA `cryptography`."""

from collections.abc import Mapping

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

Words = NDArray[np.uint64]

KEY_BYTES = 32
_NONCE = bytes(16)  # every key makes one stream only, so all may use the same nonce


def public_key(private_key: bytes) -> bytes:
    """The X25519 public key of a private one, 32 bytes each."""
    return X25519PrivateKey.from_private_bytes(private_key).public_key().public_bytes_raw()


def pair_keys(private_key: bytes, site: str, public_keys: Mapping[str, bytes], context: bytes) -> dict[str, bytes]:
    """The key shared with each other site: HKDF-SHA256(shared secret, salt = ctx, info = both names, sorted).

    Both sites of a pair get the same key. `public_keys` are those of the other sites; raises ValueError for one that
    forces the secret.
    """
    own = X25519PrivateKey.from_private_bytes(private_key)
    shared = {}
    for other, public in public_keys.items():
        secret = own.exchange(X25519PublicKey.from_public_bytes(public))
        info = b"".join(prefixed(name.encode()) for name in sorted((site, other)))
        shared[other] = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=context, info=info).derive(secret)
    return shared


def stream(key: bytes, length: int) -> Words:
    """PRG(key): `length` words of the ChaCha20 key stream, little-endian."""
    noise = Cipher(ChaCha20(key, _NONCE), mode=None).encryptor().update(bytes(8 * length))
    return np.frombuffer(noise, dtype="<u8").astype(np.uint64, copy=False)


def add_pair_mask(vector: Words, key: bytes, site: str, other: str) -> None:
    """Add a pair's mask to `vector` in place at the site with the smaller name, and subtract it at the other."""
    mask = stream(key, len(vector))
    (np.add if site < other else np.subtract)(vector, mask, out=vector)


def prefixed(part: bytes) -> bytes:
    """A part after its length, so that no two lists of parts give the same bytes."""
    return len(part).to_bytes(4, "big") + part
