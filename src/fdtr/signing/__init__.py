"""Keys and signatures: who sent a message, and for which round.

A public key is written as `ed25519:` and its 32 bytes in base64url. The roster in the study file lists the key of each
site, and of the hub if it signs its totals. People compare keys by telephone before the first round, as hex or as the
words of `Fingerprint`.

>>> from fdtr.signing import HUB, Key, fingerprint_of, numbered_round
>>> public = "ed25519:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"  # as Key.new().public gives it
>>> fingerprint_of(public).words
'kinom lopot zodof rujul kufaz sakar mupiz mumob'
>>> roster = {HUB: Key.new().public, "north": Key.new().public}
>>> second = numbered_round("0" * 64, roster, number=2)
>>> second.name, sorted(second.roster), sorted(second.earlier)
('2', ['hub', 'north'], ['1'])
"""

from fdtr.signing.key_pairs import (
    Fingerprint,
    Key,
    fingerprint_of,
    is_locked,
    public_bytes,
    public_text,
    stated_passphrase,
)
from fdtr.signing.round_context import (
    HUB,
    Envelope,
    Round,
    check_name,
    check_site_name,
    is_signed,
    numbered_round,
    require_own,
    roster_hash,
    verify,
)

__all__ = [
    "HUB",
    "Envelope",
    "Fingerprint",
    "Key",
    "Round",
    "check_name",
    "check_site_name",
    "fingerprint_of",
    "is_locked",
    "is_signed",
    "numbered_round",
    "public_bytes",
    "public_text",
    "require_own",
    "roster_hash",
    "stated_passphrase",
    "verify",
]
