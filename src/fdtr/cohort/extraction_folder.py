"""Write the folder of an extraction: the table and what describes it, completely or not at all."""

import csv
import io
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fdtr.cohort.data_dictionary import as_markdown
from fdtr.cohort.time_steps import ExtractedTable
from fdtr.errors import OutputExists, UnwritableFile
from fdtr.study import Study


def write_extraction(
    extracted: ExtractedTable, study: str, folder: str | Path, extra_files: Mapping[str, bytes] | None = None
) -> None:
    """Write the table, the text of its `study` file and what describes them into the new `folder`.

    `extra_files` are further files by name. An existing folder is refused unless it is empty.
    """
    write_files(folder, files_of(extracted, study) | dict(extra_files or {}))


def write_files(folder: str | Path, files: Mapping[str, bytes]) -> None:
    """Make the new `folder` with all of `files`, or write nothing."""
    target = require_new_folder(folder)
    try:
        _write_completely(target, files)
    except OSError as error:
        raise UnwritableFile(f"{target} could not be written: {error.strerror}. Nothing was written.") from None


def files_of(extracted: ExtractedTable, study: str) -> dict[str, bytes]:
    """The files of an extraction by name. The text of the `study` file must be valid."""
    Study.parse(study.encode(), "study.toml")
    files = {
        "table.parquet": as_parquet(extracted.table),
        "study.toml": study.encode(),
        "settings.toml": extracted.settings.as_toml().encode(),
        "dictionary.csv": as_csv(map(asdict, extracted.dictionary)),
        "dictionary.md": as_markdown(extracted.dictionary, f"{extracted.settings.name}: columns").encode(),
        "flow.csv": as_csv(extracted.flow.as_rows()),
        "flow.svg": extracted.flow.as_svg().encode(),
        "missing.csv": as_csv(extracted.missing.to_pylist()),
    }
    if extracted.left_out is not None:
        files["left-out.csv"] = as_csv(extracted.left_out.to_pylist(), extracted.left_out.column_names)
    return files


def require_new_folder(folder: str | Path) -> Path:
    """`folder` as a path. Refuse it if it holds something already, or if it cannot be written."""
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
    # Permissions alone are not enough: a disk may be mounted read-only.
    parent = next(folder for folder in target.absolute().parents if folder.exists())
    Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=parent)).rmdir()


def _write_completely(target: Path, files: Mapping[str, bytes]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    # mkdtemp lets only the owner enter, and the renamed folder keeps that: it holds patients.
    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        for name, content in files.items():
            path = unfinished / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        unfinished.rename(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def as_parquet(table: pa.Table) -> bytes:
    """The table as a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def as_csv(rows: Iterable[Mapping[str, Any]], columns: Sequence[str] | None = None) -> bytes:
    """Rows as CSV in UTF-8. `columns` default to the keys of the first row."""
    records = list(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, columns or (list(records[0]) if records else []), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue().encode()
