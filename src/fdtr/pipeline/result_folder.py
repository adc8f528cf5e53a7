"""Folders of results, written completely beside their place and then moved in, and the tables in them."""

import csv
import io
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fdtr.errors import OutputExists, UnwritableFile


@contextmanager
def staged_folder(folder: str | Path, mark: str) -> Iterator[Path]:
    """Yield a temporary folder to write into; its files move into `folder` when the block ends without an error.

    `mark` is the file by which an earlier result is known. The files of an earlier result are replaced, and its
    policies removed. Any other folder that is not empty is refused.
    """
    target = refuse_foreign(folder, mark)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise UnwritableFile(f"{target} cannot be made: {error.strerror}. Nothing was written.") from None
    try:
        yield staging
        for old in (target / "policies").glob("*.policy"):
            old.unlink()
        for file in sorted(path for path in staging.rglob("*") if path.is_file()):
            place = target / file.relative_to(staging)
            place.parent.mkdir(parents=True, exist_ok=True)
            file.replace(place)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def refuse_foreign(folder: str | Path, mark: str) -> Path:
    """Return `folder` as a path; refuse a file, and a folder with files other than earlier results."""
    target = Path(folder)
    if target.exists() and not target.is_dir():
        raise OutputExists(f"{target} is a file; name a folder. Nothing was written.")
    if target.is_dir() and any(target.iterdir()) and not (target / mark).exists():
        raise OutputExists(
            f"The folder {target} holds other files, and results might overwrite them. Nothing was written. "
            "Name a new folder with --out, or empty this one."
        )
    return target


def file_names(sites: Iterable[str]) -> dict[str, str]:
    """A file name for each site: characters that file systems refuse are replaced, and no two names are alike.

    >>> file_names(["St. Mary's / ICU 2", "North", "north"])
    {"St. Mary's / ICU 2": 'St.-Mary-s-ICU-2', 'North': 'North', 'north': 'north-2'}
    """
    names: dict[str, str] = {}
    for site in sites:
        stem = re.sub(r"[^\w.-]+", "-", site).strip("-.") or "site"
        taken = {name.lower() for name in names.values()}
        options = chain([stem], (f"{stem}-{number}" for number in count(2)))
        names[site] = next(option for option in options if option.lower() not in taken)
    return names


def table_as_csv(columns: Mapping[str, NDArray[Any]]) -> bytes:
    """A table, given by its columns, as CSV.

    >>> import numpy as np
    >>> table_as_csv({"site": np.array(["a"]), "step": np.array([0])}).decode().split()
    ['site,step', 'a,0']
    """
    return as_csv(columns, zip(*(column.tolist() for column in columns.values()), strict=True))


def as_csv(columns: Iterable[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """Rows under the names of their `columns` as CSV, in UTF-8."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue().encode()
