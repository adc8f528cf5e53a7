"""Small messages, totals and values for the tests, signed or not, and what a hostile hand makes of them."""

from __future__ import annotations

import hashlib
import json
import tempfile
from typing import Any

import numpy as np

from fdtr import container
from fdtr.disclosure import Message, MethodValue, ValueFacts, ValueMessage, ValueRules, release_values
from fdtr.exchange.envelopes import Received
from fdtr.exchange.wire import open_message
from fdtr.signing import Key, Round, numbered_round
from fdtr.site.site_message import summarize
from fdtr.study import Study
from fdtr.summary import SiteSummary
from random_tables import make_sites, make_study

SMALL = {
    "horizon": 2,
    "covariates": [{"name": "u", "effect": "shared", "interacts": False}, {"name": "x"}],
}
"""One shared feature: 2 · (2 + 3 + 3) numbers."""


def small_study(**changes: Any) -> Study:
    return make_study(**(SMALL | changes))


def small_messages(study: Study, n: int = 400, sites: str = "abc") -> dict[str, Message]:
    return {name: summarize(study, rows) for name, rows in make_sites(study, dict.fromkeys(sites, n)).items()}


def small_values(study: Study, site: str = "a") -> ValueMessage:
    facts = [ValueFacts(MethodValue(name, "wdr", 1.25, 0.1, verdict="verified"), 90.0) for name in ("FDTR", "LDTR")]
    gain = MethodValue("FDTR", "fqe", 0.25, 0.1, "Clinicians", "model-based", 0.05)
    facts.append(ValueFacts(gain, 90.0, differing=400))
    rules = ValueRules(min_patients=50, min_effective=30.0, min_cell=11)
    return release_values(site, study.fingerprint, 400, facts, rules, study.evaluation_fingerprint)


def with_roster(study: Study, *names: str) -> tuple[Study, dict[str, Key]]:
    keys = {name: Key.new() for name in names}
    roster = {name: key.public for name, key in keys.items()}
    return Study.model_validate({**study.model_dump(), "roster": roster}), keys


def round_of(study: Study, number: int = 1) -> Round:
    return numbered_round(study.fingerprint, study.roster, number)


def open_bytes(content: bytes, study: Study, expected: Round | None) -> Received[SiteSummary]:
    """What the reader of messages makes of a file with this content."""
    with tempfile.NamedTemporaryFile(suffix=".fdtr") as file:
        file.write(content)
        file.flush()
        return open_message(file.name, study, expected)


def forged(content: bytes, arrays: dict[str, Any] | None = None, **header: Any) -> bytes:
    """A message with other arrays or header fields and a checksum that fits again, as an attacker would make it."""
    end = 8 + int.from_bytes(content[:8], "little")
    whole = json.loads(content[8:end])
    fields = json.loads(whole["__metadata__"]["fdtr"])
    kind = header.pop("kind", fields.pop("kind"))
    for key in ("format", "digest", "signature", "kind"):
        fields.pop(key, None)
    replaced = {} if arrays is None else arrays
    if arrays is None:
        for name, entry in whole.items():
            if name != "__metadata__":
                start, stop = (end + offset for offset in entry["data_offsets"])
                replaced[name] = np.frombuffer(content[start:stop]).reshape(entry["shape"]).copy()
    return container.encode(kind, fields | header, replaced, header_bytes=end)


def by_hand(text: str, payload: bytes = b"", size: int = 2048) -> bytes:
    """A safetensors file from the text of its header, padded; its checksum is left to the text."""
    return (size - 8).to_bytes(8, "little") + text.encode().ljust(size - 8) + payload


def header_text(content: bytes) -> str:
    """The padded header of a file, as text."""
    return content[8 : 8 + int.from_bytes(content[:8], "little")].decode().rstrip()


def refreshed(text: str, payload: bytes, size: int = 2048) -> bytes:
    """The same file with the checksum that its header should have, were only the digest checked."""
    marks = [
        (m := text.index(f'\\"{key}\\":\\"') + len(key) + 7, m + n) for key, n in (("digest", 64), ("signature", 128))
    ]
    blank = list(text)
    for start, stop in marks:
        blank[start:stop] = "0" * (stop - start)
    digest = hashlib.sha256(by_hand("".join(blank), payload, size)).hexdigest()
    start, stop = marks[0]
    return by_hand(text[:start] + digest + text[stop:], payload, size)
