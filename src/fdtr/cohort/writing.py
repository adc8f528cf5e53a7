"""The folder of an extraction: the table and all that has to be known about it, written whole or not at all."""

import csv
import io
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fdtr.cohort.dictionary import as_markdown
from fdtr.cohort.steps import Extracted
from fdtr.errors import OutputExists, UnwritableFile
from fdtr.study import Study


def write(extracted: Extracted, study: str, folder: str | Path, extra: Mapping[str, bytes] | None = None) -> None:
    """Write the table, the text of its study file, and what describes them into the new `folder`.

    `extra` are further files by name. An existing folder is refused unless it is empty.
    """
    write_files(folder, parts_of(extracted, study) | dict(extra or {}))


def write_files(folder: str | Path, files: Mapping[str, bytes]) -> None:
    """Make the new `folder` with all of `files`, or leave nothing."""
    target = refuse_taken(folder)
    try:
        _write_whole(target, files)
    except OSError as error:
        raise UnwritableFile(f"{target} could not be written: {error.strerror}. Nothing was written.") from None


def parts_of(extracted: Extracted, study: str) -> dict[str, bytes]:
    """The files of an extraction by name, with the text of its study file, which has to load."""
    Study.parse(study.encode(), "study.toml")
    dictionary = [entry.as_row() for entry in extracted.dictionary]
    return {
        "table.parquet": as_parquet(extracted.table),
        "study.toml": study.encode(),
        "settings.toml": extracted.settings.as_toml().encode(),
        "dictionary.csv": as_csv(dictionary),
        "dictionary.md": as_markdown(extracted.dictionary, f"{extracted.settings.name}: columns").encode(),
        "flow.csv": as_csv(extracted.flow.as_rows()),
        "flow.svg": extracted.flow.as_svg().encode(),
        "missing.csv": as_csv(extracted.missing.to_pylist()),
    }


def refuse_taken(folder: str | Path) -> Path:
    """The folder as a path; refused where something lies there already, or nothing can be written."""
    target = Path(folder)
    try:
        taken = target.exists() and not (target.is_dir() and not any(target.iterdir()))
        if not taken:
            _try_writing(target)
    except OSError as error:
        raise UnwritableFile(
            f"{target} cannot be written: {error.strerror}. Nothing was written. Name another folder with --out."
        ) from None
    if taken:
        raise OutputExists(f"{target} exists already. Nothing was written. Name a new folder with --out.")
    return target


def _try_writing(target: Path) -> None:
    # Permissions alone do not tell: a disk may be mounted for reading only.
    above = next(folder for folder in target.absolute().parents if folder.exists())
    Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=above)).rmdir()


def _write_whole(target: Path, files: Mapping[str, bytes]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    # Only its owner may enter it, and so it stays: it holds patients.
    made = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        for name, content in files.items():
            place = made / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        made.rename(target)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def as_parquet(table: pa.Table) -> bytes:
    """The table as a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def as_csv(rows: Iterable[Mapping[str, Any]], columns: Sequence[str] | None = None) -> bytes:
    """Rows as CSV, in UTF-8, under `columns`, or the keys of the first."""
    listed = list(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, columns or (list(listed[0]) if listed else []), lineterminator="\n")
    writer.writeheader()
    writer.writerows(listed)
    return text.getvalue().encode()
