"""Read a table: a file, a folder or a dataframe becomes the Arrow columns that a study needs."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr.errors import UnreadableFile
from fdtr.trajectories.table_faults import first_few

PARQUET_SUFFIXES = (".parquet", ".pq")
BLANKS = ("", "NA", "N/A", "#N/A", "NaN", "nan", "NULL", "null", "None")  # a missing number, written as text


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


@dataclass(frozen=True, eq=False, repr=False)
class Texts:
    """A text column: `labels[codes[i]]` is row i; a code of -1 is an empty cell."""

    codes: NDArray[np.intp]
    labels: Any


@dataclass(frozen=True, eq=False, repr=False)
class Numbers:
    """A number column: NaN where missing; `text` marks the rows that hold something else, if any do.

    `low` and `high` are its extremes, and NaN as soon as one value is.
    """

    values: NDArray[np.float64]
    text: NDArray[np.bool_] | None
    low: float
    high: float

    @property
    def gaps(self) -> NDArray[np.bool_]:
        """Where a value is missing."""
        gaps = np.isnan(self.values)
        return gaps if self.text is None else gaps & ~self.text

    def within(self, low: float, high: float) -> bool:
        """Whether there is no gap and every value lies in [low, high]."""
        return low <= self.low and self.high <= high


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


def load(source: object, layout: TableLayout) -> Columns:
    """Read from `source` the columns that `layout` names, and no others."""
    wanted = dict.fromkeys((*layout.text_columns, *layout.number_columns))
    if not isinstance(source, str | os.PathLike):
        return _load_dataframe(source, wanted)
    path = Path(source)
    if path.is_dir():
        return _load_folder(path, wanted, layout)
    if not path.exists():
        raise UnreadableFile(f'File "{path}" does not exist. Check the path.')
    if path.suffix.lower() in PARQUET_SUFFIXES:
        return _load_parquet(f'File "{path}"', [path], None, wanted, layout)
    if path.suffix.lower() == ".csv":
        return _load_csv(path, wanted)
    raise UnreadableFile(f'File "{path}" ends in neither .csv nor .parquet. Convert or rename it.')


def numbers(column: Any) -> Numbers | None:
    """The column as float64; None if its type, such as a date, cannot be read as numbers.

    >>> import pyarrow as pa
    >>> numbers(pa.chunked_array([["1.5", " 2", "", "high"]])).values
    array([1.5, 2. , nan, nan])
    """
    import pyarrow as pa
    from pyarrow import types

    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return _numbers_in_text(column.cast(pa.string()))
    readable = (types.is_floating, types.is_integer, types.is_boolean, types.is_decimal, types.is_null)
    if not any(is_kind(kind) for is_kind in readable):
        return None
    if not types.is_float64(kind):
        column = column.cast(pa.float64(), safe=False)
    return _with_extremes(column.to_numpy())


def texts(column: Any) -> Texts | None:
    """The column as codes into distinct labels, whole numbers in their decimal text; None for nested types.

    >>> import pyarrow as pa
    >>> texts(pa.chunked_array([[7.0, None, 7.0]])).labels.to_pylist()
    ['7']
    >>> texts(pa.chunked_array([["A", "A ", ""]])).codes
    array([ 0,  0, -1])
    >>> texts(pa.chunked_array([["A", "B"]]).dictionary_encode().slice(1)).labels.to_pylist()  # nobody is in A
    ['B']
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_nested(column.type):
        return None
    if not pa.types.is_dictionary(column.type):
        # In one chunk first: hashing is cheap, while unifying the dictionaries of many chunks is not.
        column = pa.table([column], ["text"]).combine_chunks()["text"].dictionary_encode()
    encoded = column.unify_dictionaries().combine_chunks()
    try:
        labels = _as_text(encoded.dictionary)
    except pa.ArrowException:
        return None
    codes = encoded.indices.cast(pa.int64()).fill_null(-1).to_numpy()
    trimmed = pc.utf8_trim_whitespace(labels)
    if not trimmed.equals(labels):  # "A " and "A" are one
        merged = trimmed.dictionary_encode()
        codes = np.append(merged.indices.cast(pa.int64()).fill_null(-1).to_numpy(), -1)[codes]
        labels = merged.dictionary
    kept = pc.not_equal(labels, "").fill_null(False).to_numpy(zero_copy_only=False)
    # A table that was filtered down to one hospital may still list the labels of all.
    kept = kept & (np.bincount(codes[codes >= 0], minlength=len(labels)) > 0)
    if not kept.all():
        keep = np.append(kept, False)  # position -1 is the empty cell
        codes = np.where(keep, np.cumsum(keep) - 1, -1)[codes]
        labels = labels.filter(pa.array(kept))
    return Texts(codes, labels)


def _as_text(values: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_decimal(values.type) or pa.types.is_floating(values.type):
        values = values.cast(pa.float64(), safe=False)
        values = pc.if_else(pc.is_nan(values), None, values)
        if pc.all(pc.and_(pc.equal(pc.floor(values), values), pc.less(pc.abs(values), 2.0**63))).as_py():
            values = values.cast(pa.int64())
    return values.cast(pa.string())


def _numbers_in_text(column: Any) -> Numbers:
    import pyarrow as pa
    import pyarrow.compute as pc

    column = pc.utf8_trim_whitespace(column)
    column = pc.if_else(pc.is_in(column, value_set=pa.array(BLANKS)), None, column)
    try:
        return _with_extremes(column.cast(pa.float64()).to_numpy())
    except pa.ArrowInvalid:
        encoded = column.dictionary_encode().combine_chunks()
    parsed = [_number_or_none(text) for text in encoded.dictionary.to_pylist()]
    values = np.array([np.nan if number is None else number for number in parsed] + [np.nan])
    is_text = np.array([number is None for number in parsed] + [False])
    codes = encoded.indices.fill_null(-1).to_numpy()
    return _with_extremes(values[codes], is_text[codes] if is_text.any() else None)


def _with_extremes(values: NDArray[np.float64], text: NDArray[np.bool_] | None = None) -> Numbers:
    low, high = (float(values.min()), float(values.max())) if len(values) else (np.nan, np.nan)
    return Numbers(values, text, low, high)


def _number_or_none(text: str) -> float | None:
    truth = {"true": 1.0, "false": 0.0}.get(text.lower())
    if truth is not None:
        return truth
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


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

    def skip(row: Any) -> str:
        ragged.append(row.number)
        return "skip"

    def parse(threads: bool) -> Any:
        # Everything as text: Arrow's own number parsing stops at the first bad cell and quotes it.
        return arrow_csv.read_csv(
            path,
            read_options=arrow_csv.ReadOptions(use_threads=threads),
            parse_options=arrow_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=skip),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=present, column_types=dict.fromkeys(present, pa.string())
            ),
        )

    try:
        table = parse(threads=True)
        if ragged:  # Arrow knows line numbers only when it reads on one thread.
            ragged.clear()
            parse(threads=False)
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        raise UnreadableFile(f"{label} is not a CSV table in UTF-8. Export it again as CSV, UTF-8.") from None
    if ragged:
        raise UnreadableFile(
            f"{label}: the header has {len(names)} fields, {len(ragged)} of the other lines more or fewer "
            f"({first_few(ragged)}; the header is line 1). Quote cells that hold commas."
        )
    return Columns(label, names, {name: table[name] for name in present})


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


def _load_folder(path: Path, wanted: Collection[str], layout: TableLayout) -> Columns:
    files = [file for file in path.rglob("*") if file.suffix.lower() in PARQUET_SUFFIXES and file.is_file()]
    files = sorted(file for file in files if not file.name.startswith((".", "_")))
    if not files:
        raise UnreadableFile(f'Folder "{path}" holds no Parquet file. Name one, or a folder of them.')
    return _load_parquet(f'Folder "{path}"', files, path, wanted, layout)


def _load_parquet(
    label: str, files: list[Path], folder: Path | None, wanted: Collection[str], layout: TableLayout
) -> Columns:
    import pyarrow as pa
    from pyarrow import dataset

    try:
        if folder is None:
            few_values = dataset.ParquetFileFormat(dictionary_columns=[layout.site, layout.end])
            data = dataset.dataset(files[0], format=few_values)
            names = tuple(data.schema.names)
        else:
            data, names = _folder_as_dataset(files, folder, wanted, layout.text_columns)
        table = data.to_table(columns=_once(names, wanted))
    except pa.ArrowTypeError:
        raise UnreadableFile(f"{label}: its files disagree on a column's type. Write them alike.") from None
    except (pa.ArrowException, OSError):
        raise UnreadableFile(f"{label} is not sound Parquet: cut short, or another kind. Export again.") from None
    return Columns(label, names, {name: table[name] for name in table.column_names})


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
