"""Read a table: a file, a folder or a dataframe becomes the Arrow columns that a study needs."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fdtr.errors import UnreadableFile
from fdtr.trajectories.table_faults import first_few

MANIFEST = "partition.json"
"""The file by which a partition is known (`fdtr.trajectories.partition`)."""

PARQUET_SUFFIXES = (".parquet", ".pq")
_NO_CSV = "{label} is not a CSV table in UTF-8. Export it again as CSV, UTF-8."


@dataclass(frozen=True)
class Covariate:
    """One covariate of a table.

    `column` is its name in this site's table. `low` and `high` are its public range: values outside are
    clipped and counted. With `levels` it is categorical: other values are faults and nothing is clipped.
    `missing` is "refuse", "forward" (the patient's previous step) or "range-middle". With
    `constant_within_site` it may not vary in a site.
    """

    name: str
    column: str
    low: float
    high: float
    levels: tuple[float, ...] | None = None
    missing: str = "refuse"
    constant_within_site: bool = False


@dataclass(frozen=True)
class TableLayout:
    """What a table must hold: column names, ranges and levels.

    `ends` gives the worth of each missing step by the name of the end; where it is empty, every trajectory
    has all `horizon` steps. `site`, `patient`, `step`, `action`, `reward`, `end` and `cluster` are column names;
    without `cluster` patients belong to none.
    """

    horizon: int
    covariates: tuple[Covariate, ...]
    action_levels: tuple[float, ...]
    reward_low: float
    reward_high: float
    ends: Mapping[str, float] = field(default_factory=dict)
    site: str = "site"
    patient: str = "patient"
    step: str = "step"
    action: str = "action"
    reward: str = "reward"
    end: str = "end"
    cluster: str | None = None

    @property
    def meaning(self) -> tuple[Any, ...]:
        """Layout without column names: rows of the same meaning may be fitted together."""
        covariates = tuple(replace(covariate, column="") for covariate in self.covariates)
        ends = tuple(sorted(self.ends.items()))
        return (self.horizon, covariates, self.action_levels, self.reward_low, self.reward_high, ends)

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Columns read as text, so that an id "007" stays what it is."""
        optional = ((self.end,) if self.ends else ()) + ((self.cluster,) if self.cluster is not None else ())
        return (self.site, self.patient, *optional)

    @property
    def number_columns(self) -> tuple[str, ...]:
        """Columns read as numbers, each once."""
        columns = (self.step, self.action, self.reward, *(c.column for c in self.covariates))
        return tuple(dict.fromkeys(columns))


@dataclass(frozen=True, eq=False, repr=False)
class Columns:
    """A source as read: `names` is its whole header, `arrow` the wanted columns that occur exactly once."""

    label: str
    names: tuple[str, ...]
    arrow: dict[str, Any]

    @property
    def n_rows(self) -> int:
        """Rows of the table; 0 where no wanted column was found."""
        return len(next(iter(self.arrow.values()))) if self.arrow else 0


def round_outward(low: float, high: float) -> tuple[float, float]:
    """The next round numbers outside [low, high], as a draft study proposes for a range.

    >>> round_outward(43.2, 218.9)
    (40.0, 220.0)
    >>> round_outward(0.0, 1.0)
    (0.0, 1.0)
    """
    unit = 10.0 ** math.floor(math.log10(high - low) - 0.5)
    # A bound that is round already stays; 1e-9 allows for rounding of the division.
    return math.floor(low / unit + 1e-9) * unit, math.ceil(high / unit - 1e-9) * unit


def is_partition(path: Path) -> bool:
    """Whether a folder is a partition."""
    return (path / MANIFEST).is_file()


def load(source: object, layout: TableLayout) -> Columns:
    """Read from `source` the columns that `layout` names, and no others."""
    wanted = _wanted(layout)
    if not isinstance(source, str | os.PathLike):
        return _load_dataframe(source, wanted)
    label, files, folder = _files_of(Path(source))
    if files:
        return _load_parquet(label, files, folder, wanted, layout)
    return _load_csv(Path(source), wanted)


def stream(source: str | os.PathLike[str], layout: TableLayout) -> Iterator[Columns]:
    """Read a file or folder as `load` does, some rows at a time, in their order; at least one part, perhaps empty."""
    from pyarrow import dataset

    wanted = _wanted(layout)
    label, files, folder = _files_of(Path(source))
    if not files:
        yield from _stream_csv(Path(source), wanted)
        return
    with _reading_parquet(label):
        data, names = _as_dataset(files, folder, wanted, layout)
        present = _once(names, wanted)
        yield Columns(label, names, {name: data.schema.empty_table()[name] for name in present})
        # Read ahead as usual, it would hold whole row groups of all columns several times over.
        little = dataset.ParquetFragmentScanOptions(use_buffered_stream=True, pre_buffer=False)
        for batch in data.to_batches(
            columns=present, batch_readahead=1, fragment_readahead=1, fragment_scan_options=little
        ):
            yield _part(label, names, batch)


def _wanted(layout: TableLayout) -> Collection[str]:
    return dict.fromkeys((*layout.text_columns, *layout.number_columns))


def _files_of(path: Path) -> tuple[str, list[Path], Path | None]:
    """What a message calls a table, its Parquet files (none of a CSV file), and their folder."""
    if is_partition(path):
        raise UnreadableFile(f'Folder "{path}" is a partition of a table. Name the table itself here.')
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.suffix.lower() in PARQUET_SUFFIXES and file.is_file()]
        files = sorted(file for file in files if not file.name.startswith((".", "_")))
        if not files:
            raise UnreadableFile(f'Folder "{path}" holds no Parquet file. Name one, or a folder of them.')
        return f'Folder "{path}"', files, path
    if not path.exists():
        raise UnreadableFile(f'File "{path}" does not exist. Check the path.')
    if path.suffix.lower() in PARQUET_SUFFIXES:
        return f'File "{path}"', [path], None
    if path.suffix.lower() == ".csv":
        return f'File "{path}"', [], None
    raise UnreadableFile(f'File "{path}" ends in neither .csv nor .parquet. Convert or rename it.')


def _part(label: str, names: tuple[str, ...], batch: Any) -> Columns:
    import pyarrow as pa

    return Columns(label, names, {name: pa.chunked_array([batch[name]]) for name in batch.schema.names})


def _once(names: Collection[str], wanted: Collection[str]) -> list[str]:
    every = list(names)
    return [name for name in wanted if every.count(name) == 1]


def _load_csv(path: Path, wanted: Collection[str]) -> Columns:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    label = f'File "{path}"'
    names, has_rows = _csv_header(path, label)
    present = _once(names, wanted)
    if not has_rows or not present:
        return Columns(label, names, dict.fromkeys(present, pa.chunked_array([], pa.string())))
    ragged: list[int] = []
    try:
        table = arrow_csv.read_csv(path, **_csv_options(present, ragged))
        if ragged:  # Arrow knows line numbers only when it reads on one thread.
            ragged.clear()
            arrow_csv.read_csv(path, **_csv_options(present, ragged, threads=False))
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        raise UnreadableFile(_NO_CSV.format(label=label)) from None
    _refuse_ragged(label, names, ragged)
    return Columns(label, names, {name: table[name] for name in present})


def _stream_csv(path: Path, wanted: Collection[str]) -> Iterator[Columns]:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    label = f'File "{path}"'
    names, has_rows = _csv_header(path, label)
    present, ragged = _once(names, wanted), list[int]()
    yield Columns(label, names, dict.fromkeys(present, pa.chunked_array([], pa.string())))
    if not has_rows or not present:
        return
    try:
        for batch in arrow_csv.open_csv(path, **_csv_options(present, ragged, threads=False)):
            yield _part(label, names, batch)
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        raise UnreadableFile(_NO_CSV.format(label=label)) from None
    _refuse_ragged(label, names, ragged)


def _csv_options(present: Collection[str], ragged: list[int], *, threads: bool = True) -> dict[str, Any]:
    """How Arrow is to read a CSV table; the numbers of lines with more or fewer fields go into `ragged`."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    def skip(row: Any) -> str:
        ragged.append(row.number)
        return "skip"

    # Everything as text: Arrow's own number parsing stops at the first bad cell and quotes it.
    text = dict.fromkeys(present, pa.string())
    return {
        "read_options": arrow_csv.ReadOptions(use_threads=threads),
        "parse_options": arrow_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=skip),
        "convert_options": arrow_csv.ConvertOptions(include_columns=list(present), column_types=text),
    }


def _refuse_ragged(label: str, names: Collection[str], ragged: Sequence[int]) -> None:
    if ragged:
        raise UnreadableFile(
            f"{label}: the header has {len(names)} fields, {len(ragged)} of the other lines more or fewer "
            f"({first_few(ragged)}; the header is line 1). Quote cells that hold commas."
        )


def _csv_header(path: Path, label: str) -> tuple[tuple[str, ...], bool]:
    """Column names, and whether any row follows them."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            rows = filter(None, csv.reader(lines))
            names, has_rows = tuple(next(rows, ())), next(rows, None) is not None
    except (OSError, UnicodeDecodeError, csv.Error):
        raise UnreadableFile(f"{label} is not text in UTF-8. Export it again as CSV, UTF-8.") from None
    if not names:
        raise UnreadableFile(f"{label} is empty. Export it again.")
    for mark, word in ((";", "semicolons"), ("\t", "tabs")):
        if len(names) == 1 and mark in names[0]:
            raise UnreadableFile(f"{label} separates columns by {word}. Export with commas and decimal points.")
    return names, has_rows


def _load_parquet(
    label: str, files: list[Path], folder: Path | None, wanted: Collection[str], layout: TableLayout
) -> Columns:
    with _reading_parquet(label):
        data, names = _as_dataset(files, folder, wanted, layout)
        table = data.to_table(columns=_once(names, wanted))
    return Columns(label, names, {name: table[name] for name in table.column_names})


@contextmanager
def _reading_parquet(label: str) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except pa.ArrowTypeError:
        raise UnreadableFile(f"{label}: its files disagree on a column's type. Write them alike.") from None
    except (pa.ArrowException, OSError):
        raise UnreadableFile(f"{label} is not sound Parquet: cut short, or another kind. Export again.") from None


def _as_dataset(
    files: list[Path], folder: Path | None, wanted: Collection[str], layout: TableLayout
) -> tuple[Any, tuple[str, ...]]:
    """A file, or all files of a folder, and the names of their columns."""
    from pyarrow import dataset

    if folder is not None:
        return _folder_as_dataset(files, folder, wanted, layout.text_columns)
    few_values = dataset.ParquetFileFormat(dictionary_columns=[layout.site, layout.end])
    data = dataset.dataset(files[0], format=few_values)
    return data, tuple(data.schema.names)


def _folder_as_dataset(
    files: list[Path], folder: Path, wanted: Collection[str], text_columns: Collection[str]
) -> tuple[Any, tuple[str, ...]]:
    import pyarrow as pa
    from pyarrow import dataset

    # site=007/part-0.parquet, as Spark and DuckDB write it: the key is text, or 007 would become 7.
    parents = {parent for file in files for parent in file.relative_to(folder).parts[:-1]}
    keys = [name for name in text_columns if any(parent.startswith(f"{name}=") for parent in parents)]
    in_path = pa.schema([(name, pa.string()) for name in keys])
    options = {
        "format": "parquet",
        "partition_base_dir": str(folder),
        "partitioning": dataset.partitioning(in_path, flavor="hive"),
    }
    paths = [str(file) for file in files]
    schemas = [part.physical_schema for part in dataset.dataset(paths, **options).get_fragments()]
    names = tuple(dict.fromkeys(name for schema in (*schemas, in_path) for name in schema.names))
    needed = [pa.schema([s.field(name) for name in _once(s.names, wanted)]) for s in (*schemas, in_path)]
    schema = pa.unify_schemas(needed, promote_options="permissive")
    return dataset.dataset(paths, schema=schema, **options), names


def _load_dataframe(source: object, wanted: Collection[str]) -> Columns:
    import narwhals as nw
    import pyarrow as pa

    if isinstance(source, pa.Table):
        names = tuple(source.column_names)
        return Columns("Dataframe", names, {name: source[name] for name in _once(names, wanted)})
    kind = type(source).__name__
    try:
        frame, names = _frame_and_names(source)
    except TypeError:
        raise TypeError(f"A table is a path or a dataframe that narwhals knows, not {kind}.") from None
    except Exception:
        raise UnreadableFile(f"Dataframe ({kind}) could not be read. Check that its query runs.") from None
    try:
        present = _once(names, wanted)
        frame = frame.select(present)
        if isinstance(frame, nw.LazyFrame):
            frame = frame.collect(backend="pyarrow")
        return Columns("Dataframe", names, {name: _series_to_arrow(frame[name]) for name in present})
    except Exception:  # each library has its own errors, and some quote cells
        raise UnreadableFile(f"Dataframe ({kind}) could not be read. Check that its query runs.") from None


def _frame_and_names(source: Any) -> tuple[Any, tuple[str, ...]]:
    import narwhals as nw

    try:
        frame: Any = nw.from_native(source)
        return frame, tuple(frame.collect_schema().names())
    except nw.exceptions.DuplicateError:  # pandas allows it; narwhals does not
        unique = source.loc[:, ~source.columns.duplicated(keep=False)]
        return nw.from_native(unique), tuple(source.columns)


def _series_to_arrow(series: Any) -> Any:
    import pyarrow as pa

    try:
        column = series.to_arrow()
    except (pa.ArrowException, TypeError):  # pandas objects of mixed types
        missing = series.is_null().to_list()
        cells = zip(series.to_list(), missing, strict=True)
        column = pa.array([None if gap else str(cell) for cell, gap in cells], pa.string())
    return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
