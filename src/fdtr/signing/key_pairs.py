"""Key pairs and their fingerprints: Ed25519 from PyCA cryptography."""

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from fdtr.container import create_private, opened
from fdtr.errors import Exposed, UnreadableFile

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PREFIX = "ed25519:"
_MOST_KEY_BYTES = 4096
_GROUP_OR_ALL, _ALL = 0o077, 0o007
_CONSONANTS, _VOWELS = "bdfghjklmnprstvz", "aiou"


@dataclass(frozen=True)
class Fingerprint:
    """The first 128 bits of the SHA-256 of a public key, to be read aloud.

    `words` are proquints (D. S. Wilkerson, arXiv:0901.4016): each of eight words spells 16 bits as
    consonant-vowel-consonant-vowel-consonant, so that no list of words is needed.

    >>> Fingerprint(bytes.fromhex("7f000001") * 4).words
    'lusab babad lusab babad lusab babad lusab babad'
    """

    bits: bytes

    @property
    def hex(self) -> str:
        """Eight groups of four digits."""
        return " ".join(self.bits.hex()[i : i + 4] for i in range(0, 32, 4))

    @property
    def words(self) -> str:
        """Eight words of five letters."""
        return " ".join(_proquint(int.from_bytes(self.bits[i : i + 2])) for i in range(0, 16, 2))


def _proquint(number: int) -> str:
    return (
        _CONSONANTS[number >> 12]
        + _VOWELS[number >> 10 & 3]
        + _CONSONANTS[number >> 6 & 15]
        + _VOWELS[number >> 4 & 3]
        + _CONSONANTS[number & 15]
    )


def public_bytes(text: str) -> bytes:
    """The 32 bytes of a public key that is given as text; raises ValueError if it is not one."""
    body = text.removeprefix(PREFIX)
    try:
        raw = urlsafe_b64decode(body + "=" * (-len(body) % 4))
    except ValueError:
        raw = b""
    if len(raw) != 32 or public_text(raw) != text:
        raise ValueError(f'a public key is "{PREFIX}" and 43 letters and digits, as `fdtr keys show` prints it')
    return raw


def public_text(raw: bytes) -> str:
    """The text form of a public key, as the roster has it.

    >>> public_text(bytes(32))
    'ed25519:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'
    """
    return PREFIX + urlsafe_b64encode(raw).rstrip(b"=").decode()


def fingerprint_of(public: str) -> Fingerprint:
    """The fingerprint of a public key."""
    return Fingerprint(sha256(public_bytes(public)).digest()[:16])


class Key:
    """A private key with its public half; `repr` shows the public half only."""

    def __init__(self, private: "Ed25519PrivateKey") -> None:
        self._private = private

    def __repr__(self) -> str:
        return f"<Key {self.public}>"

    @classmethod
    def new(cls) -> "Key":
        """A fresh key."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(Ed25519PrivateKey.generate())

    @cached_property
    def public(self) -> str:
        """The public half, as text."""
        return public_text(self._private.public_key().public_bytes_raw())

    def sign(self, statement: bytes) -> str:
        """A signature, in hex."""
        return self._private.sign(statement).hex()

    def save(self, path: str | Path, passphrase: str | None = None) -> None:
        """Write the key as PKCS8 PEM, readable by its owner alone; an existing file is never overwritten."""
        from cryptography.hazmat.primitives.serialization import (
            BestAvailableEncryption,
            Encoding,
            KeySerializationEncryption,
            NoEncryption,
            PrivateFormat,
        )

        lock: KeySerializationEncryption = (
            BestAvailableEncryption(passphrase.encode()) if passphrase else NoEncryption()
        )
        create_private(Path(path), self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock))

    @classmethod
    def load(cls, path: str | Path, passphrase: str | None = None) -> "Key":
        """Read a key that `save` wrote."""
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        content = _pem(path)
        try:
            private = load_pem_private_key(content, passphrase.encode() if passphrase else None)
        except (TypeError, ValueError, UnsupportedAlgorithm):
            if is_locked(path):
                raise UnreadableFile(f"{path} could not be opened: the passphrase is another one.") from None
            private = None
        if not isinstance(private, Ed25519PrivateKey):
            raise UnreadableFile(f"{path} is no private key that `fdtr keys new` made.")
        return cls(private)


def stated_passphrase() -> str | None:
    """The passphrase in FDTR_PASSPHRASE, or in the file named by FDTR_PASSPHRASE_FILE; None if neither is set."""
    passphrase, file = os.environ.get("FDTR_PASSPHRASE"), os.environ.get("FDTR_PASSPHRASE_FILE")
    if passphrase or not file:
        return passphrase or None
    try:
        passphrase = Path(file).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError):
        passphrase = ""
    if not passphrase:
        raise UnreadableFile(f"FDTR_PASSPHRASE_FILE names {file}, which holds no passphrase that can be read.")
    return passphrase


def is_locked(path: str | Path) -> bool:
    """Whether a private key needs a passphrase."""
    return b"-----BEGIN ENCRYPTED PRIVATE KEY-----" in _pem(path)


def _pem(path: str | Path) -> bytes:
    """The content of a private key's file; refuses a file that other users can read."""
    try:
        with opened(path) as file:
            content = file.beginning(_MOST_KEY_BYTES + 1)
            status = os.fstat(file.descriptor)
    except UnreadableFile as error:
        raise UnreadableFile(f"The key could not be read: {error}") from None
    if len(content) > _MOST_KEY_BYTES or b"PRIVATE KEY-----" not in content:
        raise UnreadableFile(f"{path} is no private key that `fdtr keys new` made.")
    _refuse_exposed(path, status)
    return content


def _refuse_exposed(path: str | Path, status: os.stat_result) -> None:
    """Refuse a key that others on the machine can read or change, as ssh does.

    A key of another owner was handed out by an administrator, who may do so through a group. A file system without
    modes reports that everybody may read: no key should be kept there.
    """
    others = _GROUP_OR_ALL if status.st_uid == os.geteuid() else _ALL
    if status.st_mode & others:
        raise Exposed(
            f"The private key {path} is open to other users of this machine, who could sign with it. It was not used. "
            f"Run `chmod 600 {path}`, keep it where that has an effect, and make another if somebody may have read it."
        )
