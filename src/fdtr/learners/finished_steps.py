"""Keep the sums of finished passes over rows on disk: a fit that was killed goes on from its last finished step.

A pass over a step of millions of rows takes a while, and what comes of it is small. Its sums are written beside the
rows, for their owner alone, as soon as the pass is finished, and are removed when the fit is:

    PARTITION/000/finished/ROWS-PASS.sums

ROWS stands for the site's files, their sizes and times of change; PASS for all that the sums depend on: the patients
who count, the step, the features, V of the next step, by which all settings and other sites' sums come in, and the
folds. So a file of other rows or of another fit is never read as one of this. A file that is damaged is none, and where
none can be written, the fit goes on without.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from fdtr import container
from fdtr.algebra.pessimism import LowerBound
from fdtr.errors import DisclosureError, FdtrError, InvalidSettings
from fdtr.features import FeatureMap
from fdtr.trajectories.partition import StepOnDisk

Arrays = tuple[NDArray[Any], ...]
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

log = logging.getLogger("fdtr.learners")

LEAST_ROWS = 1_000_000
"""A pass over fewer rows is as soon done again: it takes a fraction of a second."""

FOLDER, KIND = "finished", "finished"

_in_use: ContextVar[set[Path] | None] = ContextVar("_in_use", default=None)


def goes_on(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Let a function, and all that it calls, go on from the passes that an earlier call had finished when it stopped.

    What they left is removed when the outermost of such functions returns, or refuses for a reason that the next try
    would find as well; it stays where it fails otherwise.
    """

    @wraps(function)
    def going_on(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if _in_use.get() is not None:
            return function(*args, **kwargs)
        in_use: set[Path] = set()
        token = _in_use.set(in_use)
        try:
            result = function(*args, **kwargs)
        except (DisclosureError, InvalidSettings):
            _remove(in_use)
            raise
        finally:
            _in_use.reset(token)
        _remove(in_use)
        return result

    return going_on


def once(
    step: object, features: FeatureMap, next_values: Sequence[object], folds: object, compute: Callable[[], Arrays]
) -> Arrays:
    """The sums of a pass over a step: those that were kept, or else those that `compute` gives, which are then kept.

    Only of rows on disk, at least `LEAST_ROWS` of them, inside of a function that `goes_on`.
    """
    in_use = _in_use.get()
    if in_use is None or not isinstance(step, StepOnDisk) or step.n < LEAST_ROWS:
        return compute()
    path = _path(step, features, next_values, folds)
    if path is None:
        return compute()
    sums = _read(path)
    if sums is None:
        sums = compute()
        _write(path, sums)
    else:
        log.info("step %d: its sums were finished before", step.h)
    in_use.add(path)
    return sums


def _path(step: StepOnDisk, features: FeatureMap, next_values: Sequence[object], folds: object) -> Path | None:
    """Where the sums of a pass are kept; None where it cannot be told what they depend on."""
    try:
        rows = step.rows.digest
    except OSError:
        return None  # whoever reads the rows says what is wrong
    passed = hashlib.sha256()
    for part in _inputs(step, features, next_values, folds):
        if part is None:
            return None
        passed.update(len(part).to_bytes(8, "little") + part)
    return step.rows.folder / FOLDER / f"{rows[:16]}-{passed.hexdigest()}.sums"


def _inputs(
    step: StepOnDisk, features: FeatureMap, next_values: Sequence[object], folds: object
) -> Iterator[bytes | None]:
    """All that the sums of a pass depend on, as bytes; None for what is not known here."""
    rows = step.rows
    yield f"{version('fdtr')} {np.__version__} {rows.digest} {step.h} {features.blocks!r}".encode()
    for array in (features.embeddings, np.zeros(0, np.bool_) if rows.mask is None else np.packbits(rows.mask), folds):
        yield b"" if array is None else np.ascontiguousarray(array).tobytes()
    for value in next_values:
        if value is None:
            yield b""
        elif isinstance(value, LowerBound):
            yield np.array([value.offset, value.floor, value.cap]).tobytes()
            yield np.ascontiguousarray(value.coefficients).tobytes()
            yield b"" if value.roots is None else np.ascontiguousarray(value.roots).tobytes()
        else:
            yield None


def _read(path: Path) -> Arrays | None:
    """What was kept; None where there is nothing, or not this."""
    if not path.exists():
        return None
    try:
        kept = container.read(path, KIND)
        if kept.header["of"] != path.stem:
            return None
        types = [np.dtype(name) for name in kept.header["types"]]
        return tuple(kept.arrays[f"{place:03}"].view(dtype) for place, dtype in enumerate(types))
    except (FdtrError, OSError, KeyError, TypeError, ValueError):
        return None


def _write(path: Path, sums: Arrays) -> None:
    """Keep the sums of a pass, whole or not at all."""
    header = {"of": path.stem, "types": [array.dtype.str for array in sums]}
    whole = np.dtype(np.uint64)
    arrays = {
        f"{place:03}": array if array.dtype == np.float64 else array.view(whole) for place, array in enumerate(sums)
    }
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        container.write(path, KIND, header, arrays, private=True)
    except (FdtrError, OSError) as error:
        log.info("the sums of a finished step are not kept: %s", error)


def _remove(in_use: set[Path]) -> None:
    """Remove what a finished fit left, and what is left of rows that have changed since."""
    for folder in {path.parent for path in in_use}:
        rows = {path.name.partition("-")[0] for path in in_use if path.parent == folder}
        with suppress(OSError):
            for path in [*folder.iterdir()]:
                if path in in_use or path.name.partition("-")[0] not in rows:
                    path.unlink(missing_ok=True)
            folder.rmdir()  # refused where another fit has kept something
