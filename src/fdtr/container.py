"""One file format for everything we write: safetensors with a small JSON header. No pickle, no code in data.

    8 bytes   length of the next part, little-endian
    JSON      {"__metadata__": {"fdtr": header}, array: {dtype, shape, data_offsets}, …}, padded with spaces
    arrays    in the order of their names, without gaps

The header is itself canonical JSON (RFC 8785), under one key. It carries the kind of file, a format version, and a
`digest` and `signature` of fixed width. The digest is the SHA-256 of every byte of the file, with digest and signature
counted as zeros; it is checked on every read. A file is read only when writing what was read gives the same header
again, so that one content has one form: no key twice, no gap, nothing behind the end.

safetensors' own reader gives out no metadata of bytes in memory, forgives a key given twice, and maps files that may
change under it; its writer orders metadata at random. Files of either are files of the other.
"""

import hashlib
import json
import logging
import os
import re
import secrets
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite, prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr.errors import (
    ChangedFile,
    DamagedFile,
    DisguisedFile,
    ForeignFile,
    OtherArrays,
    OtherFormat,
    OtherKind,
    RepeatedKey,
    UnreadableFile,
    UnwritableFile,
    WrongLength,
)

log = logging.getLogger(__name__)

FORMAT = 1
UNSIGNED = "0" * 128
"""A signature's place where there is none."""
MOST_HEADER_BYTES = 2**22
_KEY = "fdtr"
_NO_DIGEST = "0" * 64
_DTYPES = {"F64": np.dtype("<f8"), "U64": np.dtype("<u8")}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_KIND = re.compile(rb'\\"kind\\":\\"([a-z]{1,20})\\"')
_AGAIN = "Ask its sender for it again."
_OTHERS = {
    b"\x80\x02": "a Python pickle, which could run code",
    b"\x80\x03": "a Python pickle, which could run code",
    b"\x80\x04": "a Python pickle, which could run code",
    b"\x80\x05": "a Python pickle, which could run code",
    b"PK\x03\x04": "a zip or npz archive",
    b"PK\x05\x06": "a zip archive",
    b"\x93NUMPY": "a NumPy array (npy)",
    b"\x1f\x8b": "a gzip file",
    b"\x89HDF": "an HDF5 file",
    b"PAR1": "a Parquet file",
    b"%PDF": "a PDF",
}


@dataclass(frozen=True)
class Container:
    """A file's `header` (JSON values), its `arrays`, and the `digest` and `signature` it carries."""

    header: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    digest: str
    signature: str


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


def encode(
    kind: str,
    header: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    *,
    header_bytes: int | None = None,
    sign: Callable[[str], str] | None = None,
) -> bytes:
    """A file's content. `header_bytes` pads all that stands before the arrays; `sign` makes a signature of a digest."""
    full = {**header, "kind": kind, "format": FORMAT}
    plain = {name: np.ascontiguousarray(arrays[name]) for name in sorted(arrays)}
    shapes = {name: (_NAMES[array.dtype], array.shape) for name, array in plain.items()}
    payload = b"".join(array.tobytes() for array in plain.values())
    blank = _head({**full, "digest": _NO_DIGEST, "signature": UNSIGNED}, shapes, header_bytes)
    found = hashlib.sha256(blank + payload).hexdigest()
    signature = sign(found) if sign else UNSIGNED
    return _head({**full, "digest": found, "signature": signature}, shapes, header_bytes) + payload


def write(
    path: str | Path, kind: str, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], *, private: bool = False
) -> None:
    """Write a container; `private` makes it readable by its owner alone. Either the whole file appears or none."""
    write_atomically(path, encode(kind, header, arrays), mode=0o600 if private else 0o644)


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
    """Whether a file begins as those that `encode` makes, of any kind."""
    try:
        return f'"__metadata__":{{"{_KEY}":'.encode() in _beginning(Path(path), 64)
    except UnreadableFile:
        return False


def size_of(path: str | Path) -> int:
    """How many bytes a file has, without reading it; folders, devices and pipes are refused."""
    source = Path(path)
    try:
        found = source.stat()
    except FileNotFoundError:
        raise UnreadableFile(f"{source} does not exist.") from None
    except (OSError, ValueError) as error:
        raise UnreadableFile(f"{source} could not be read: {_reason(error)}.") from None
    if stat.S_ISDIR(found.st_mode):
        raise UnreadableFile(f"{source} is a folder, not a file.")
    if not stat.S_ISREG(found.st_mode):
        raise UnreadableFile(f"{source} is a device or a pipe, not a file.")
    return found.st_size


def kind_of(path: str | Path) -> str | None:
    """The kind that a file claims to be of, from its beginning alone; None where it does not look like ours."""
    found = _KIND.search(_beginning(Path(path), 2048))
    return found[1].decode() if found else None


def read(path: str | Path, kind: str, *, most: int | None = None, signed: bool = False) -> Container:
    """Read a container of the given kind, checking that it is whole and ours.

    One with more than `most` bytes is not read. A file may carry a signature only where the caller looks at it.
    """
    source = Path(path)
    size = size_of(source)
    if most is not None and size > most:
        raise WrongLength(f"{source} has {size:,} bytes, and a {kind} at most {most:,}. It was not read. {_AGAIN}")
    ahead = int.from_bytes(_beginning(source, 8), "little")
    if not 8 <= ahead + 8 <= min(size, MOST_HEADER_BYTES):
        _refuse_disguised(source, _beginning(source, 16))
        raise DamagedFile(
            f"{source} is not a readable fdtr {kind} file: it is truncated, damaged or of another format. "
            "Check the order of the files, or ask its sender for it again."
        )
    declared = ahead + 8 + _payload_bytes(source, _beginning(source, ahead + 8)[8:])
    found = read_exactly(source, kind, declared, f"its own header tells of {declared:,}")
    if found.signature != UNSIGNED and not signed:
        raise ChangedFile(f"{source} carries a signature, and a {kind} has none. {_AGAIN}")
    return found


def read_exactly(
    path: str | Path, kind: str, size: int, expected: str, *, header_bytes: int | None = None
) -> Container:
    """Read a container that must have `size` bytes; one of another length is not read. `expected` says why so many."""
    source = Path(path)
    found = size_of(source)
    if found != size:
        look = _beginning(source, 2048)
        _refuse_disguised(source, look)
        other = _KIND.search(look)
        if other and other[1].decode() != kind:
            raise OtherKind(f"{source} holds a {other[1].decode()}, not a {kind}.")
        raise WrongLength(
            f"{source} has {found:,} bytes; {expected}. It is truncated, damaged, made for another study, or no {kind} "
            f"at all, and was not read. {_AGAIN}"
        )
    content = _beginning(source, size + 1)
    if len(content) != size:
        raise WrongLength(f"{source} changed while it was read. Wait until it is complete, then try again.")
    return decode(content, kind, source, header_bytes=header_bytes)


def decode(content: bytes, kind: str, source: str | Path, *, header_bytes: int | None = None) -> Container:
    """A container from its bytes; `source` is what a refusal calls it."""
    _refuse_disguised(source, content)
    end = 8 + int.from_bytes(content[:8], "little")
    if len(content) < 8 or end > min(len(content), MOST_HEADER_BYTES):
        raise DamagedFile(f"{source} is not a readable fdtr {kind} file: its beginning is damaged. {_AGAIN}")
    if header_bytes is not None and end != header_bytes:
        raise DamagedFile(f"{source} has a header of {end:,} bytes; a {kind} has one of {header_bytes:,}. {_AGAIN}")
    whole, header = _parse_header(source, content[8:end], kind)
    shapes = {name: _described(source, name, whole[name]) for name in sorted(whole) if name != "__metadata__"}
    try:
        same = _head(header, shapes, end) == content[:end]
    except (ValueError, RecursionError):
        same = False
    if not same:
        raise DamagedFile(f"{source} has a header that fdtr would not write. It was changed or badly copied. {_AGAIN}")
    sizes = [prod(shape) * 8 for _, shape in shapes.values()]
    if end + sum(sizes) != len(content):
        raise WrongLength(f"{source} holds more or fewer numbers than its header tells of. {_AGAIN}")
    stated, signature = header.pop("digest"), header.pop("signature")
    blank = _head({**header, "digest": _NO_DIGEST, "signature": UNSIGNED}, shapes, end)
    state = hashlib.sha256(blank)
    state.update(memoryview(content)[end:])
    if stated != state.hexdigest():
        raise ChangedFile(f"{source} was changed after it was written: its checksum differs. {_AGAIN}")
    arrays, start = {}, end
    for (name, (dtype, shape)), size in zip(shapes.items(), sizes, strict=True):
        flat = np.frombuffer(content, _DTYPES[dtype], count=size // 8, offset=start)
        arrays[name] = flat.reshape(shape).copy()  # aligned, writable, and free of `content`
        start += size
    return Container(header, arrays, stated, signature)


def _head(header: Mapping[str, Any], shapes: Mapping[str, tuple[str, tuple[int, ...]]], size: int | None) -> bytes:
    """Everything before the arrays, padded with spaces to `size` bytes, or to a multiple of eight."""
    whole: dict[str, Any] = {"__metadata__": {_KEY: canonical_json(dict(header)).decode()}}
    start = 0
    for name, (dtype, shape) in shapes.items():
        end = start + prod(shape) * 8
        whole[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
        start = end
    text = canonical_json(whole)
    room = (size if size is not None else -(-(8 + len(text)) // 8) * 8) - 8
    if len(text) > room:
        raise ValueError(f"The header needs {len(text) + 8} bytes and has room for {room + 8}.")
    return room.to_bytes(8, "little") + text.ljust(room)


def _parse_header(source: str | Path, text: bytes, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The outer JSON, and our header inside it."""
    whole = _parse(source, text)
    metadata = whole.get("__metadata__")
    inner = metadata.get(_KEY) if isinstance(metadata, dict) and len(metadata) == 1 else None
    if not isinstance(inner, str):
        raise ForeignFile(f"{source} is a safetensors file that fdtr did not write.")
    header = _parse(source, inner.encode(errors="replace"))
    if header.get("kind") != kind:
        raise OtherKind(f"{source} holds a {_shown(header.get('kind'))}, not a {kind}.")
    if header.get("format") != FORMAT or isinstance(header["format"], bool):
        raise OtherFormat(
            f"{source} has format {_shown(header.get('format'))}; this version of fdtr reads format {FORMAT}. "
            "Use the version of fdtr that wrote it, or a newer one."
        )
    for key, length in (("digest", len(_NO_DIGEST)), ("signature", len(UNSIGNED))):
        if not isinstance(header.get(key), str) or not re.fullmatch(f"[0-9a-f]{{{length}}}", header[key]):
            raise DamagedFile(f"{source} has no {key} in its header, or a damaged one. {_AGAIN}")
    return whole, header


def _parse(source: str | Path, text: bytes) -> dict[str, Any]:
    """A JSON object, without what JSON readers forgive: a key twice, numbers that are none."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise RepeatedKey(f"{source} says one thing twice in its header, so that readers could differ. {_AGAIN}")
        return found

    def number(literal: str) -> float:
        value = float(literal)
        if not isfinite(value):
            raise DamagedFile(f"{source} has a number in its header that is not finite. {_AGAIN}")
        return value

    try:
        found = json.loads(text.decode(), object_pairs_hook=unique, parse_float=number, parse_constant=number)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise DamagedFile(
            f"{source} is not a readable fdtr file: its header is truncated, damaged or of another format. {_AGAIN}"
        )
    return found


def _described(source: str | Path, name: str, descriptor: Any) -> tuple[str, tuple[int, ...]]:
    """Type and shape of an array as the outer header tells them."""
    told = descriptor if isinstance(descriptor, dict) else {}
    dtype, shape = told.get("dtype"), told.get("shape")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise OtherArrays(f"{source}: array {_shown(name)} holds numbers of another type than fdtr writes. {_AGAIN}")
    if not isinstance(shape, list) or len(shape) > 4 or not all(type(n) is int and 0 <= n < 2**40 for n in shape):
        raise OtherArrays(f"{source}: array {_shown(name)} has no shape. {_AGAIN}")
    return dtype, tuple(shape)


def _payload_bytes(source: Path, text: bytes) -> int:
    described = {name: told for name, told in _parse(source, text).items() if name != "__metadata__"}
    return sum(prod(_described(source, name, told)[1]) * 8 for name, told in described.items())


def _refuse_disguised(source: str | Path, beginning: bytes) -> None:
    for mark, what in _OTHERS.items():
        # A safetensors file opens with a length: sixteen bits of it may look like another format's mark.
        if beginning.startswith(mark) and beginning[8:9] != b"{":
            raise DisguisedFile(f"{source} is {what}, not a file of fdtr. It was not opened. {_AGAIN}")


def _beginning(source: Path, most: int) -> bytes:
    """At most `most` bytes from the start of a file."""
    size_of(source)
    try:
        with source.open("rb") as file:
            return file.read(most)
    except OSError as error:
        raise UnreadableFile(f"{source} could not be read: {_reason(error)}.") from None


def _shown(value: object) -> str:
    """A value of a stranger's file, fit for a sentence."""
    text = value if isinstance(value, str) else repr(value)
    return "".join(c if c.isprintable() else "?" for c in text[:40])


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
