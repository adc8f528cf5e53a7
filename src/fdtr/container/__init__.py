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

from fdtr.container.canonical import canonical_json, digest, fingerprint
from fdtr.container.encoding import (
    FORMAT,
    UNSIGNED,
    Container,
    decode,
    encode,
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
    opened,
    opened_folder,
    read_bounded,
    size_of,
    write_atomically,
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
]
