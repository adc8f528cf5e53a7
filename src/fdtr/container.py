"""One file format for everything we write: safetensors with a small JSON header. No pickle, no code in data.

The header is canonical JSON (RFC 8785) under a single metadata key, because safetensors writes several keys in
random order: the same content is the same bytes. It carries the kind of file, a format version, and the SHA-256
of header and arrays, checked on every read.
"""

import hashlib
import json
import logging
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr.errors import ForeignFile, UnreadableFile, UnwritableFile

log = logging.getLogger(__name__)

FORMAT = 1
_KEY = "fdtr"


@dataclass(frozen=True)
class Container:
    """A file's `header` (JSON values) and its `arrays`."""

    header: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


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


def write(
    path: str | Path, kind: str, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], *, private: bool = False
) -> None:
    """Write a container; `private` makes it readable by its owner alone. Either the whole file appears or none."""
    from safetensors.numpy import save

    full = {**header, "kind": kind, "format": FORMAT}
    full["sha256"] = digest(full, arrays)
    content = save(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()},
        metadata={_KEY: canonical_json(full).decode()},
    )
    write_atomically(path, content, mode=0o600 if private else 0o644)


def write_atomically(path: str | Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write under a temporary name, flush to disk, then rename: a reader sees the old file or the whole new one."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        log.info("wrote %s, %d bytes", target, len(content))
    except OSError as error:
        raise UnwritableFile(f"{target} could not be written: {_reason(error)}. Nothing was written.") from None
    finally:  # after an interruption too
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def is_container(path: str | Path) -> bool:
    """Whether a file is one that `write` made, of any kind."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(Path(path), framework="numpy") as file:
            return _KEY in (file.metadata() or {})
    except (SafetensorError, OSError):
        return False


def read(path: str | Path, kind: str) -> Container:
    """Read a container of the given kind, checking that it is whole and ours."""
    from safetensors import SafetensorError, safe_open

    source = Path(path)
    _require_file(source)
    try:
        with safe_open(source, framework="numpy") as file:
            metadata = file.metadata() or {}
            names = list(file.keys())
            header = _parse_header(source, metadata.get(_KEY), kind)
            arrays = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError):
        raise UnreadableFile(
            f"{source} is not a readable fdtr {kind} file: it is truncated, damaged or of another format. "
            "Check the order of the files, or ask its sender for it again."
        ) from None
    stated = header.pop("sha256", None)
    if stated != digest(header, arrays):
        raise UnreadableFile(f"{source} was changed after it was written: its checksum differs. Ask for it again.")
    return Container(header, arrays)


def _require_file(source: Path) -> None:
    if source.is_dir():
        raise UnreadableFile(f"{source} is a folder, not a file.")
    if not source.exists():
        raise UnreadableFile(f"{source} does not exist.")


def _parse_header(source: Path, text: str | None, kind: str) -> dict[str, Any]:
    try:
        header = json.loads(text) if text is not None else None
    except json.JSONDecodeError:
        header = None
    if not isinstance(header, dict):
        raise ForeignFile(f"{source} is a safetensors file that fdtr did not write.")
    if header.get("kind") != kind:
        raise ForeignFile(f"{source} holds a {header.get('kind')}, not a {kind}.")
    if header.get("format") != FORMAT:
        raise ForeignFile(
            f"{source} has format {header.get('format')}; this version of fdtr reads format {FORMAT}. "
            "Use the version of fdtr that wrote it, or a newer one."
        )
    return header


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__
