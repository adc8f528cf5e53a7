"""Canonical JSON, digests, and the bytes of a container: how they are written and what is read from them."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from json.encoder import encode_basestring
from math import isfinite, prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr.container.files import Source, opened, refuse_disguised, write_atomically
from fdtr.errors import DamagedFile, ForeignFile, OtherFormat, UnreadableFile

FORMAT = 4
"""Format 2 weights rows and rounds numbers of patients. Secure sums open counts first from 3 on, with spread from 4."""
_ALSO_READ = {"policy": (1, 2, 3)}
"""Kinds of files that are the same in earlier formats."""
UNSIGNED = "0" * 128
"""Stands where a signature would be in an unsigned file."""
MOST_HEADER_BYTES = 2**25
_LONG_HEADER_BYTES = 2**22
"""A longer header is parsed only if it is a list of short texts, as that of a total of many sites is."""
_SHORTEST_MEMBER = 78
"""Bytes of a site and its digest in a header."""
_KEY = "fdtr"
_NO_DIGEST = "0" * 64
_DTYPES = {"F64": np.dtype("<f8"), "U64": np.dtype("<u8")}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_KIND = re.compile(rb'\\"kind\\":\\"([a-z]{1,20})\\"')
_INNER = re.compile(rb'\{"__metadata__":\{"fdtr":"((?:[^"\\]++|\\")*+)"')
_QUOTED = re.compile(rb'\\"[^"\\]*\\"')
_LOOK = 2048
_SPACES = b" " * 4096
_LARGEST_INTEGER = 2**53
"""Beyond it, JSON does not give every whole number a text of its own."""
_AGAIN = "Ask its sender for it again."
_PLAIN_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def canonical_json(value: Any) -> bytes:
    """The JSON text of `value` by RFC 8785: sorted keys, no white space, numbers as ECMAScript prints them.

    >>> canonical_json({"b": 1.0, "a": [0.005]})
    b'{"a":[0.005],"b":1}'
    """
    if type(value) is str and value.isascii():
        return encode_basestring(value).encode()
    if _is_plain(value):  # gives the same bytes as rfc8785, many times faster for a roster of a thousand sites
        return _PLAIN_JSON.encode(value).encode()
    import rfc8785

    return rfc8785.dumps(value)


def _is_plain(value: Any) -> bool:
    """Whether `value` holds only ASCII text, booleans, None and small integers: Python's JSON is then canonical."""
    kind = type(value)
    if kind is str:
        return bool(value.isascii())
    if kind is dict:
        return _is_plain(list(value)) and _is_plain(list(value.values()))
    if kind is list or kind is tuple:
        texts = [part for part in value if type(part) is str]
        others = value if not texts else [part for part in value if type(part) is not str]
        return "".join(texts).isascii() and all(map(_is_plain, others))
    return value is None or kind is bool or (kind is int and abs(value) < _LARGEST_INTEGER)


def fingerprint(content: Mapping[str, Any]) -> str:
    """SHA-256, in hex, of the canonical JSON of `content`, such as the public fields of a study."""
    return hashlib.sha256(canonical_json(dict(content))).hexdigest()


def digest(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256, in hex, of a header and its arrays: their names, shapes, types and every bit."""
    state = hashlib.sha256(canonical_json(dict(header)))
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        state.update(_description(name, array.dtype.str, array.shape))
        state.update(array.tobytes())
    return state.hexdigest()


@lru_cache(maxsize=256)
def _description(name: str, dtype: str, shape: tuple[int, ...]) -> bytes:
    """Name, type and shape of an array as `digest` covers them. Cached: messages of a study have the same arrays."""
    return canonical_json([name, dtype, list(shape)])


@dataclass(frozen=True)
class Container:
    """A file's `header` (JSON values), its `arrays`, and the `digest` and `signature` it carries."""

    header: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    digest: str
    signature: str


def encode(
    kind: str,
    header: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    *,
    header_bytes: int | None = None,
    sign: Callable[[str], str] | None = None,
) -> bytes:
    """The bytes of a file. `header_bytes` is the padded size of everything before the arrays; `sign` signs a digest."""
    full = {**header, "kind": kind, "format": FORMAT}
    plain = {name: np.ascontiguousarray(arrays[name]) for name in sorted(arrays)}
    shapes = {name: (_NAMES[array.dtype], array.shape) for name, array in plain.items()}
    payload = b"".join(array.tobytes() for array in plain.values())
    checksum = _checksum(_head({**full, "digest": _NO_DIGEST, "signature": UNSIGNED}, shapes, header_bytes), payload)
    signature = sign(checksum) if sign else UNSIGNED
    return b"".join((*_head({**full, "digest": checksum, "signature": signature}, shapes, header_bytes), payload))


def write(
    path: str | Path, kind: str, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], *, private: bool = False
) -> None:
    """Write a container; `private` makes it readable by its owner alone. Either the whole file appears or none."""
    write_atomically(path, encode(kind, header, arrays), mode=0o600 if private else 0o644)


def is_container(path: str | Path) -> bool:
    """Whether a file begins like one that `encode` made, of any kind."""
    try:
        with opened(path) as file:
            return f'"__metadata__":{{"{_KEY}":'.encode() in file.beginning(64)
    except UnreadableFile:
        return False


def kind_of(source: Source) -> str | None:
    """The kind that a file states in its first bytes; None if it does not look like a container."""
    with opened(source) as file:
        return _stated_kind(file.beginning(_LOOK))


def read(source: Source, kind: str, *, most: int | None = None, signed: bool = False) -> Container:
    """Read a container of the given kind and check that it is complete and unchanged.

    A file of more than `most` bytes is not read. Pass `signed=True` only if the caller verifies the signature; without
    it a signed file is refused.
    """
    with opened(source) as file:
        if most is not None and file.size > most:
            raise DamagedFile(
                f"{file} has {file.size:,} bytes, and a {kind} at most {most:,}. It was not read. {_AGAIN}"
            )
        ahead = int.from_bytes(file.beginning(8), "little")
        if not 8 <= ahead + 8 <= min(file.size, MOST_HEADER_BYTES):
            refuse_disguised(file.path, file.beginning(16))
            raise DamagedFile(
                f"{file} is not a readable fdtr {kind} file: it is truncated, damaged or of another format. "
                "Check the order of the files, or ask its sender for it again."
            )
        declared = ahead + 8 + _payload_bytes(file.path, file.beginning(ahead + 8)[8:])
        content = read_exactly(file, kind, declared, f"its own header tells of {declared:,}")
    if content.signature != UNSIGNED and not signed:
        raise DamagedFile(f"{source} carries a signature, and a {kind} has none. {_AGAIN}")
    return content


def read_exactly(source: Source, kind: str, size: int, expected: str, *, header_bytes: int | None = None) -> Container:
    """Read a container that must have `size` bytes; a file of another length is not read.

    `expected` is the part of the refusal that explains this size.
    """
    with opened(source) as file:
        if file.size != size:
            start = file.beginning(_LOOK)
            refuse_disguised(file.path, start)
            other = _stated_kind(start)
            if other and other != kind:
                raise ForeignFile(f"{file} holds a {other}, not a {kind}.")
            raise DamagedFile(
                f"{file} has {file.size:,} bytes; {expected}. It is truncated, damaged, made for another study, or no "
                f"{kind} at all, and was not read. {_AGAIN}"
            )
        return decode(file.whole(), kind, file.path, header_bytes=header_bytes)


def decode(content: bytes, kind: str, source: str | Path, *, header_bytes: int | None = None) -> Container:
    """A container from its bytes; `source` is what a refusal calls it."""
    refuse_disguised(source, content)
    end = 8 + int.from_bytes(content[:8], "little")
    if len(content) < 8 or end > min(len(content), MOST_HEADER_BYTES):
        raise DamagedFile(f"{source} is not a readable fdtr {kind} file: its beginning is damaged. {_AGAIN}")
    if header_bytes is not None and end != header_bytes:
        raise DamagedFile(f"{source} has a header of {end:,} bytes; a {kind} has one of {header_bytes:,}. {_AGAIN}")
    whole, header = _parse_header(source, content[8:end], kind)
    shapes = {name: _described(source, name, whole[name]) for name in sorted(whole) if name != "__metadata__"}
    try:
        same = _is_at(_head(header, shapes, end), content)
    except (ValueError, RecursionError):
        same = False
    if not same:
        raise DamagedFile(f"{source} has a header that fdtr would not write. It was changed or badly copied. {_AGAIN}")
    sizes = [prod(shape) * 8 for _, shape in shapes.values()]
    if end + sum(sizes) != len(content):
        raise DamagedFile(f"{source} holds more or fewer numbers than its header tells of. {_AGAIN}")
    stated, signature = header.pop("digest"), header.pop("signature")
    blank = {**header, "digest": _NO_DIGEST, "signature": UNSIGNED}
    if stated != _checksum(_head(blank, shapes, end), memoryview(content)[end:]):
        raise DamagedFile(f"{source} was changed after it was written: its checksum differs. {_AGAIN}")
    arrays, start = {}, end
    for (name, (dtype, shape)), size in zip(shapes.items(), sizes, strict=True):
        flat = np.frombuffer(content, _DTYPES[dtype], count=size // 8, offset=start)
        arrays[name] = flat.reshape(shape).copy()  # aligned, writable, and free of `content`
        start += size
    return Container(header, arrays, stated, signature)


def _head(
    header: Mapping[str, Any], shapes: Mapping[str, tuple[str, tuple[int, ...]]], size: int | None
) -> tuple[bytes, ...]:
    """Everything before the arrays: its length, its text, and spaces up to `size` bytes or a multiple of eight.

    In parts, because a total of many sites has megabytes of spaces.
    """
    inner = canonical_json(dict(header)).decode()
    text = b'{"__metadata__":{"%s":%s}}' % (_KEY.encode(), canonical_json(inner))
    described = _described_arrays(tuple(shapes.items()))
    if described is None:  # an array whose name stands before the header's
        text = canonical_json({**json.loads(text), **_descriptions(shapes)})
    elif shapes:
        text = text[:-1] + b"," + described[1:]
    room = (size if size is not None else -(-(8 + len(text)) // 8) * 8) - 8
    if len(text) > room:
        raise ValueError(f"The header needs {len(text) + 8} bytes and has room for {room + 8}.")
    whole, rest = divmod(room - len(text), len(_SPACES))
    return room.to_bytes(8, "little"), text, *(_SPACES,) * whole, _SPACES[:rest]


@lru_cache(maxsize=8)
def _described_arrays(shapes: tuple[tuple[str, tuple[str, tuple[int, ...]]], ...]) -> bytes | None:
    """The JSON of all arrays, None if a name sorts before "__metadata__". Cached: messages of a study share it."""
    by_name = dict(shapes)
    return None if by_name and min(by_name) < "__metadata__" else canonical_json(_descriptions(by_name))


def _descriptions(shapes: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, Any]:
    described, start = {}, 0
    for name, (dtype, shape) in shapes.items():
        end = start + prod(shape) * 8
        described[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
        start = end
    return described


def _checksum(head: Sequence[bytes], payload: bytes | memoryview) -> str:
    """SHA-256, in hex, of a whole file."""
    state = hashlib.sha256()
    for part in (*head, payload):
        state.update(part)
    return state.hexdigest()


def _is_at(parts: Sequence[bytes], content: bytes) -> bool:
    """Whether a file begins with these parts."""
    view, start = memoryview(content), 0
    for part in parts:
        if view[start : start + len(part)] != part:
            return False
        start += len(part)
    return True


def _parse_header(source: str | Path, text: bytes, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The outer JSON, and our header inside it."""
    if len(text) > _LONG_HEADER_BYTES:
        _refuse_crowded(source, text)
    whole = _parse(source, text)
    metadata = whole.get("__metadata__")
    inner = metadata.get(_KEY) if isinstance(metadata, dict) and len(metadata) == 1 else None
    if not isinstance(inner, str):
        raise ForeignFile(f"{source} is a safetensors file that fdtr did not write.")
    header = _parse(source, inner.encode(errors="replace"))
    if header.get("kind") != kind:
        raise ForeignFile(f"{source} holds a {_shown(header.get('kind'))}, not a {kind}.")
    readable = (FORMAT, *_ALSO_READ.get(kind, ()))
    if header.get("format") not in readable or isinstance(header["format"], bool):
        raise OtherFormat(
            f"{source} has format {_shown(header.get('format'))}; this version of fdtr reads format {FORMAT}. "
            "Use the version of fdtr that wrote it, or a newer one."
        )
    for key, length in (("digest", len(_NO_DIGEST)), ("signature", len(UNSIGNED))):
        if not isinstance(header.get(key), str) or not re.fullmatch(f"[0-9a-f]{{{length}}}", header[key]):
            raise DamagedFile(f"{source} has no {key} in its header, or a damaged one. {_AGAIN}")
    return whole, header


def _refuse_crowded(source: str | Path, text: bytes) -> None:
    """Refuse a long header that would take far more memory than its own length when it is parsed.

    Apart from the arrays, it may hold as many texts as a total's members have, and brackets and commas around them.
    """
    inner = _INNER.match(text)
    members = len(text) // _SHORTEST_MEMBER
    if (
        inner is None
        or len(text[inner.end() :].rstrip(b" ")) > _LOOK
        or inner[1].count(b'"') > 4 * members + _LOOK
        or len(_QUOTED.sub(b"", inner[1])) > 4 * members + _LOOK
    ):
        raise DamagedFile(f"{source} has a header that is longer than its contents explain. It was not read. {_AGAIN}")


def _parse(source: str | Path, text: bytes) -> dict[str, Any]:
    """Parse a JSON object strictly: no repeated key, no number that is not finite."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        unique_keys = dict(pairs)
        if len(unique_keys) < len(pairs):
            raise DamagedFile(f"{source} says one thing twice in its header, so that readers could differ. {_AGAIN}")
        return unique_keys

    def number(literal: str) -> float:
        value = float(literal)
        if not isfinite(value):
            raise DamagedFile(f"{source} has a number in its header that is not finite. {_AGAIN}")
        return value

    try:
        parsed = json.loads(text.decode(), object_pairs_hook=unique, parse_float=number, parse_constant=number)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise DamagedFile(
            f"{source} is not a readable fdtr file: its header is truncated, damaged or of another format. {_AGAIN}"
        )
    return parsed


def _described(source: str | Path, name: str, descriptor: Any) -> tuple[str, tuple[int, ...]]:
    """Type and shape of an array, from the outer header."""
    fields = descriptor if isinstance(descriptor, dict) else {}
    dtype, shape = fields.get("dtype"), fields.get("shape")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise DamagedFile(f"{source}: array {_shown(name)} holds numbers of another type than fdtr writes. {_AGAIN}")
    if not isinstance(shape, list) or len(shape) > 4 or not all(type(n) is int and 0 <= n < 2**40 for n in shape):
        raise DamagedFile(f"{source}: array {_shown(name)} has no shape. {_AGAIN}")
    return dtype, tuple(shape)


def _stated_kind(start: bytes) -> str | None:
    match = _KIND.search(start)
    return match[1].decode() if match else None


def _payload_bytes(source: Path, text: bytes) -> int:
    if len(text) > _LONG_HEADER_BYTES:
        _refuse_crowded(source, text)
    outer = _parse(source, text)
    return sum(prod(_described(source, name, outer[name])[1]) * 8 for name in outer if name != "__metadata__")


def _shown(value: object) -> str:
    """A value from an untrusted file, shortened and printable, for a message."""
    text = value if isinstance(value, str) else repr(value)
    return "".join(c if c.isprintable() else "?" for c in text[:40])
