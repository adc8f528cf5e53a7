"""One text and one number for one content: canonical JSON and SHA-256."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LARGEST = 2**53
"""Beyond it not every whole number has a text of its own in JSON."""


def canonical_json(value: Any) -> bytes:
    """RFC 8785: sorted keys, no white space, numbers as ECMAScript prints them.

    >>> canonical_json({"b": 1.0, "a": [0.005]})
    b'{"a":[0.005],"b":1}'
    """
    if _is_plain(value):  # the same bytes, many times faster, for lists of a thousand sites
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    import rfc8785

    return rfc8785.dumps(value)


def _is_plain(value: Any) -> bool:
    """Whether JSON has one text for a value but for white space and order: ASCII alone, and no fractions."""
    kind = type(value)
    if kind is str:
        return bool(value.isascii())
    if kind is dict:
        return _is_plain(list(value)) and _is_plain(list(value.values()))
    if kind is list:
        texts = set(map(type, value)) == {str}
        return "".join(value).isascii() if texts else all(map(_is_plain, value))
    return value is None or kind is bool or (kind is int and abs(value) < _LARGEST)


def fingerprint(study: Mapping[str, Any]) -> str:
    """SHA-256, in hex, of the canonical JSON of what is public in a study: two studies agree when these do."""
    return hashlib.sha256(canonical_json(dict(study))).hexdigest()


def digest(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256, in hex, of a header and the arrays beside it: names, shapes, types and every bit."""
    state = hashlib.sha256(canonical_json(dict(header)))
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        state.update(canonical_json([name, array.dtype.str, list(array.shape)]))
        state.update(array.tobytes())
    return state.hexdigest()
