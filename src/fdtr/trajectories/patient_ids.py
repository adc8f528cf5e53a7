"""Patients' ids, batch by batch. What is kept of them are keyed hashes (`fdtr.trajectories.keyed_hashes`).

Each id is hashed once for each key, whoever asks: the weights of rows need the hashes in the order of rows, and rule
ONCE needs them sorted.
"""

import hashlib
import secrets
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr.container.temporary import Storage
from fdtr.trajectories.keyed_hashes import WIDTH, SortedHashes, common_patients, keyed_hash, sort_hashes

BATCH = 65_536
"""Ids that are held at a time."""

_BLANK = b" \t\n\r\v\f\x1c\x1d\x1e\x1f"  # what `str.strip` removes of ASCII


def plain_id(patient: str) -> bytes:
    """An id in one spelling: accented letters have several."""
    return unicodedata.normalize("NFC", patient).strip().encode()


class PatientIds:
    """The ids of `n` patients, which `batches` yields as Arrow text in the order of rows; they are never all held."""

    def __init__(self, n: int, batches: Callable[[], Iterable[Any]]) -> None:
        self._n, self._batches = n, batches
        self._hashed: tuple[bytes, Storage] | None = None
        self._sorted: tuple[bytes, object, SortedHashes] | None = None

    @classmethod
    def of(cls, ids: "Sequence[str] | PatientIds") -> "PatientIds":
        """Ids from a list, or these."""
        import pyarrow as pa

        if isinstance(ids, PatientIds):
            return ids
        return cls(len(ids), lambda: batches_of(pa.array(list(ids), pa.string())))

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[str]:
        for batch in self._batches():
            yield from batch.to_pylist()

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process reads the ids again: hashes under a secret key do not travel."""
        return PatientIds, (self._n, self._batches)

    def hashes(self, key: bytes) -> Storage:
        """The hash of every id under `key`, in the order of rows."""
        if self._hashed is None or self._hashed[0] != key:
            self._hashed = key, self._hash(key)
        return self._hashed[1]

    def sorted_hashes(self, key: bytes, steps: Sequence[int] | NDArray[np.uint16] = ()) -> SortedHashes:
        """The hashes sorted, each once, beside the steps of each patient: one where `steps` is empty."""
        if self._sorted is None or self._sorted[0] != key or self._sorted[1] is not steps:
            self._sorted = key, steps, sort_hashes(self.hashes(key), steps)
        return self._sorted[2]

    def are_among(self, others: "PatientIds") -> bool:
        """Whether all these ids are among the others."""
        if others is self:
            return True
        key = secrets.token_bytes(WIDTH)
        mine, theirs = (sort_hashes(ids._hash(key)) for ids in (self, others))
        return int(common_patients(mine, theirs)[0]) == mine.n

    def digest(self) -> str:
        """Digest of all patients together, in whatever order they come."""
        whole = hashlib.sha256()
        for part in sort_hashes(self._hash(b"patients")).parts():
            whole.update(part.hashes)
        return whole.hexdigest()

    def _hash(self, key: bytes) -> Storage:
        hashed, storage = keyed_hash(key), Storage()
        for batch in self._batches():
            storage.append(hashed(_plain(batch)))
        return storage


def batches_of(labels: Any) -> Iterator[Any]:
    """Arrow text in memory, BATCH labels at a time, as views."""
    for start in range(0, len(labels), BATCH):
        yield labels.slice(start, BATCH)


def _plain(batch: Any) -> list[bytes]:
    """`plain_id` of a batch; where all are ASCII, their bytes are taken as they are."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pc.all(pc.string_is_ascii(batch)).as_py():
        return [patient.strip(_BLANK) for patient in batch.cast(pa.large_binary()).to_pylist()]
    return [plain_id(patient) for patient in batch.to_pylist()]
