"""One text and one number for one content: canonical JSON and SHA-256."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def canonical_json(value: Any) -> bytes:
    """RFC 8785: sorted keys, no white space, numbers as ECMAScript prints them.

    >>> canonical_json({"b": 1.0, "a": [0.005]})
    b'{"a":[0.005],"b":1}'
    """
    import rfc8785

    return rfc8785.dumps(value)


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
