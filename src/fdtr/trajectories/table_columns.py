"""Columns of a table as numbers, or as codes into distinct texts, whatever type the file gave them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLANKS = ("", "NA", "N/A", "#N/A", "NaN", "nan", "NULL", "null", "None")  # a missing number, written as text


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
    if pa.types.is_decimal(column.type):  # a float keeps 15 of up to 38 digits, and would make one id of two
        exact = whole_decimals(column)
        column = column.cast(pa.float64(), safe=False) if exact is None else exact
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
    rounded = not pa.types.is_string(encoded.dictionary.type) and len(labels.unique()) < len(labels)
    if rounded or not trimmed.equals(labels):  # "A " and "A" are one, and so are numbers that read alike
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


def whole_decimals(values: Any) -> Any:
    """Decimals in their text, digit by digit; None if they are none, or if one has a fraction.

    >>> import pyarrow as pa
    >>> whole_decimals(pa.array([9007199254740993, None], pa.decimal128(20, 0))).to_pylist()
    ['9007199254740993', None]
    """
    import pyarrow as pa

    if not pa.types.is_decimal(values.type):
        return None
    try:
        return values.cast(pa.decimal256(76, 0)).cast(pa.string())
    except pa.ArrowInvalid:
        return None


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
