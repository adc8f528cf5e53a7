"""The one file format of fdtr: safetensors with a small JSON header. No pickle, no code in data.

    8 bytes   length of the next part, little-endian
    JSON      {"__metadata__": {"fdtr": header}, array: {dtype, shape, data_offsets}, …}, padded with spaces
    arrays    in the order of their names, without gaps

The header is itself canonical JSON (RFC 8785), under one key. It carries the kind of file, a format version, and a
`digest` and `signature` of fixed width. The digest is the SHA-256 of every byte of the file, with digest and signature
counted as zeros; it is checked on every read. A file is accepted only if writing its content again gives the same
header, so every content has one form: no key twice, no gap, nothing after the end.

The safetensors library is not used here: its reader gives no metadata of bytes in memory, accepts a repeated key, and
maps files that may change meanwhile; its writer orders metadata at random. Both read each other's files.
"""

from fdtr.container.encoding import (
    FORMAT,
    UNSIGNED,
    Container,
    canonical_json,
    decode,
    digest,
    encode,
    fingerprint,
    is_container,
    kind_of,
    read,
    read_exactly,
    write,
)
from fdtr.container.files import (
    OpenFile,
    Source,
    create_private,
    flush_folder,
    opened,
    opened_folder,
    read_bounded,
    size_of,
    write_atomically,
    write_through,
)

__all__ = [
    "FORMAT",
    "UNSIGNED",
    "Container",
    "OpenFile",
    "Source",
    "canonical_json",
    "create_private",
    "decode",
    "digest",
    "encode",
    "fingerprint",
    "flush_folder",
    "is_container",
    "kind_of",
    "opened",
    "opened_folder",
    "read",
    "read_bounded",
    "read_exactly",
    "size_of",
    "write",
    "write_atomically",
    "write_through",
]
