"""Messages, totals, values and tables as files.

A message has exactly 2,048 + 8·H·(d0(d0+1) + 3·d0 + 3) bytes, a total of K sites 256·K more: everybody knows from the
study how long a file has to be, and one of another length is not read. Where the study asks for Grams, for an audit, a
message has 2,048 + 8·H·(d(d+1)/2 + 2·d + 2); totals stay as they are. Every file carries the SHA-256 of all its bytes,
and a signature where the study has a roster.
"""

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from math import frexp, prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr import container
from fdtr.container import Container, Source
from fdtr.disclosure import Message, MethodValue, SiteValues, TableOne, ValueMessage
from fdtr.disclosure.blocks import absent
from fdtr.disclosure.released_values import ESTIMATORS, MOST_NAME, VERDICTS
from fdtr.errors import DamagedFile, ForeignFile, InvalidSums, OtherStudy, UnreadableFile
from fdtr.exchange.envelopes import AGAIN, HEX, Received, seal, unseal
from fdtr.exchange.validity import check_site, check_sound
from fdtr.masking import FEWEST_BITS
from fdtr.signing import HUB, Envelope, Key, Round, check_site_name
from fdtr.study import Study
from fdtr.summary import SiteSummary, Total
from fdtr.sums import Grams, Sums, stack_steps

HEADER_BYTES = 2048
MEMBER_BYTES = 256
MOST_SITES = 100_000
MOST_VALUES_BYTES = 2**16
MOST_BYTES_UNKNOWN = 2**26
"""Largest file that is looked at without its study."""
MESSAGE, TOTAL, VALUES = "message", "total", "valuation"
SUMS_PHASE, TOTAL_PHASE, VALUES_PHASE = "sums", "total", "values"
TABLE_HEADINGS = ("site", "variable", "unit", "level", "patients", "percent", "mean", "standard_deviation")


def sums_layout(horizon: int, n_shared: int) -> dict[str, tuple[int, ...]]:
    """Array names and shapes of sums; symmetric matrices are stored as their upper triangles."""
    matrix, vector, number = (horizon, n_shared * (n_shared + 1) // 2), (horizon, n_shared), (horizon,)
    return {
        **dict.fromkeys(("schur", "information"), matrix),
        **dict.fromkeys(("schur_moment", "schur_reward", "information_moment"), vector),
        **dict.fromkeys(("information_square", "rank", "n"), number),
    }


def grams_layout(horizon: int, n_features: int) -> dict[str, tuple[int, ...]]:
    """Array names and shapes of a Gram message."""
    vector, number = (horizon, n_features), (horizon,)
    return {
        "gram": (horizon, n_features * (n_features + 1) // 2),
        **dict.fromkeys(("moment", "reward_moment"), vector),
        **dict.fromkeys(("reward_square", "n"), number),
    }


def _bytes_of(layout: dict[str, tuple[int, ...]]) -> int:
    return 8 * sum(prod(shape) for shape in layout.values())


def payload_size(study: Study) -> int:
    """Bytes of a message's numbers: 8·H·(d0(d0+1) + 3·d0 + 3), or those of Grams where the study asks for them."""
    if study.disclosure.payload == "gram":
        return _bytes_of(grams_layout(study.horizon, study.feature_map.n_features))
    return _bytes_of(sums_layout(study.horizon, study.feature_map.n_shared))


def message_size(study: Study) -> int:
    """Bytes of a message's file."""
    return HEADER_BYTES + payload_size(study)


def total_size(study: Study, n_sites: int) -> int:
    """Bytes of the file of a total over `n_sites`."""
    numbers = _bytes_of(sums_layout(study.horizon, study.feature_map.n_shared))  # of whatever payload they were made
    return HEADER_BYTES + MEMBER_BYTES * n_sites + numbers


def encode_message(message: Message, within: Round | None = None, key: Key | None = None) -> bytes:
    """What a site sends, as bytes. Takes only what `disclosure.release` made."""
    return _sealed(message.summary, within, key)


def _sealed(summary: SiteSummary, within: Round | None, key: Key | None) -> bytes:
    check_site_name(summary.site)
    within = within or Round(summary.fingerprint)
    return seal(MESSAGE, SUMS_PHASE, summary.site, {}, summary.payload.packed(), within, key, HEADER_BYTES)


def write_message(message: Message, path: str | Path, within: Round | None = None, key: Key | None = None) -> None:
    """Write what a site sends, for the round `within`, signed with the site's `key` where it has one."""
    container.write_atomically(path, encode_message(message, within, key))


def rewrite_message(
    source: str | Path, path: str | Path, study: Study, within: Round, key: Key | None = None
) -> SiteSummary:
    """Write a message for another round, sealed and signed anew: the sums of the file `source`, to the last bit.

    Takes only what is a message of the study already, so that nothing leaves that `disclosure.release` did not let.
    """
    summary = read_message(source, study)
    if not summary.fingerprint == study.fingerprint == within.fingerprint:
        raise OtherStudy(
            f"{source} belongs to another study. Nothing was written. Use the study file it was made with."
        )
    container.write_atomically(path, _sealed(summary, within, key))
    return summary


def open_message(source: Source, study: Study, expected: Round | None) -> Received[SiteSummary]:
    """Read a site's message with its envelope; refuses sums that no patients of the study could give."""
    size = message_size(study)
    words = f"a message of this study has {size:,}"
    file = container.read_exactly(source, MESSAGE, size, words, header_bytes=HEADER_BYTES)
    return _message(file, str(source), study, expected)


def open_messages(sources: Iterable[Source], study: Study, expected: Round | None) -> list[Received[SiteSummary]]:
    """Read some sites' messages, with the checks of `open_message`; that of their sums is made for all at once."""
    if study.disclosure.payload == "gram" or study.disclosure.epsilon is not None:
        return [open_message(source, study, expected) for source in sources]
    size = message_size(study)
    words = f"a message of this study has {size:,}"
    names: list[str] = []
    unchecked: list[Sums] = []
    received = []
    for source in sources:
        file = container.read_exactly(source, MESSAGE, size, words, header_bytes=HEADER_BYTES)
        names.append(str(source))
        received.append(_message(file, names[-1], study, expected, unchecked.append))
    try:
        if unchecked:
            check_site(stack_steps(unchecked), study.rules.norm_bound, study.horizon)
    except InvalidSums:
        for name, message, sums in zip(names, received, unchecked, strict=True):
            with _naming(name, _whose(message.body.site)):
                _check_possible(sums, study)
        raise
    return received


def read_message(path: str | Path, study: Study, expected: Round | None = None) -> SiteSummary:
    """Read a site's message; refuses sums that no patients of the study could give.

    Signature, sender and round are checked only if the `expected` round is given. A hub always gives it. Without it
    only the content is checked, which is enough for a site's own copy.
    """
    return open_message(path, study, expected).body


def encode_total(total: Total, within: Round | None = None, key: Key | None = None) -> bytes:
    """What the hub sends back, as bytes."""
    header: dict[str, Any] = {"members": total.members}
    if total.resolution:
        header["resolution"] = total.resolution
    within = within or Round(total.fingerprint)
    size = HEADER_BYTES + MEMBER_BYTES * len(total.members)
    return seal(TOTAL, TOTAL_PHASE, HUB, header, total.sums.packed(), within, key, size)


def write_total(total: Total, path: str | Path, within: Round | None = None, key: Key | None = None) -> None:
    """Write what the hub sends back: the sums over all sites, and who is in them."""
    container.write_atomically(path, encode_total(total, within, key))


def open_total(source: Source, study: Study, expected: Round | None) -> Received[Total]:
    """Read the hub's total with its envelope."""
    words = f"a total of this study has {total_size(study, 0):,} and {MEMBER_BYTES} for each site"
    with container.opened(source) as open_file:
        n_sites = max((open_file.size - total_size(study, 0)) // MEMBER_BYTES, 1)
        size = total_size(study, min(n_sites, MOST_SITES))
        header_bytes = HEADER_BYTES + MEMBER_BYTES * n_sites
        file = container.read_exactly(open_file, TOTAL, size, words, header_bytes=header_bytes)
    received = _total(file, str(source), study, expected)
    if len(received.body.members) != n_sites:
        raise DamagedFile(f"{source} has room for {n_sites} sites and names {len(received.body.members)}. {AGAIN}")
    return received


def read_total(path: str | Path, study: Study, expected: Round | None = None) -> Total:
    """Read the hub's total; refuses sums that are no sums of squares.

    Signature, sender and round are checked only if the `expected` round is given. A site always gives it for a total
    that it received, and a hub for every file.
    """
    return open_total(path, study, expected).body


def write_values(message: ValueMessage, path: str | Path, within: Round | None = None, key: Key | None = None) -> None:
    """Write the values of a site's methods. Takes only what `disclosure.release_values` made."""
    values = message.values
    check_site_name(values.site)
    within = within or Round(values.fingerprint)
    content = seal(VALUES, VALUES_PHASE, values.site, values.header, values.packed(), within, key, None)
    container.write_atomically(path, content)


def open_values(source: Source, expected: Round | None) -> Received[SiteValues]:
    """Read the values of a site's methods with their envelope."""
    file = container.read(source, VALUES, most=MOST_VALUES_BYTES, signed=True)
    fields = frozenset({"n", "evaluation", "methods", "over", "estimators", "verdicts"})
    name = str(source)
    return unseal(file, name, VALUES_PHASE, fields, expected, lambda envelope: _values(file, name, envelope))


def read_values(path: str | Path, expected: Round | None = None) -> SiteValues:
    """Read the values of a site's methods.

    Signature, sender and round are checked only if the `expected` round is given. A hub always gives it.
    """
    return open_values(path, expected).body


def write_table(table: TableOne, path: str | Path) -> None:
    """Write a Table 1 as CSV, with the site in every line, so that those of many sites can be put into one.

    Takes only what `disclosure.release_table` made.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(TABLE_HEADINGS)
    writer.writerows(table_lines(table))
    container.write_atomically(path, text.getvalue().encode())


def is_table_one(path: str | Path) -> bool:
    """Whether a file begins as `write_table` begins one."""
    headings = (",".join(TABLE_HEADINGS) + "\n").encode()
    with Path(path).open("rb") as file:
        return file.read(len(headings)) == headings


def table_lines(table: TableOne) -> list[list[str]]:
    """The lines of a Table 1 under `TABLE_HEADINGS`."""
    return [[table.site, *row.cells] for row in table.rows]


def inspect(
    path: str | Path, study: Study | None, expected: Round | None
) -> Received[SiteSummary] | Received[Total] | Received[SiteValues]:
    """Read a message, a total or values. Without the study its content is read, and its sender is not verified."""
    with container.opened(path) as source:
        kind = container.kind_of(source)
        if kind == VALUES:
            return open_values(source, expected)
        if kind not in (MESSAGE, TOTAL):
            container.read(source, MESSAGE, most=MOST_BYTES_UNKNOWN)  # says what is wrong with it
            raise ForeignFile(f"{path} is no message, total or values.")
        if study is not None:
            return open_message(source, study, expected) if kind == MESSAGE else open_total(source, study, expected)
        file = container.read(source, kind, most=MOST_BYTES_UNKNOWN, signed=True)
    return _message(file, path, None, None) if kind == MESSAGE else _total(file, path, None, None)


def _message(
    file: Container,
    source: str | Path,
    study: Study | None,
    expected: Round | None,
    check: Callable[[Sums], None] | None = None,
) -> Received[SiteSummary]:
    """A message from its file; `check` takes the place of the check of its sums."""

    def body(envelope: Envelope) -> SiteSummary:
        check_site_name(envelope.site)
        what = _whose(envelope.site)
        if (study.disclosure.payload == "gram") if study else ("gram" in file.arrays):
            grams = _grams(file, source, study, what)
            # Only the study says which features are shared; without it nothing is derived.
            n_shared = study.feature_map.n_shared if study else 0
            return SiteSummary(envelope.site, envelope.fingerprint, grams.sums(n_shared), grams)
        sums = _sums(file, source, study, what, check or (lambda sums: _check_possible(sums, study)))
        return SiteSummary(envelope.site, envelope.fingerprint, sums, mean_weight=_mean_weight(study))

    return unseal(file, source, SUMS_PHASE, frozenset(), expected, body)


def _whose(site: str) -> str:
    return f"the sums of site {site!r}"


def _mean_weight(study: Study | None) -> float:
    """The mean weight of the rows behind sums of a study; without the study nothing is fitted from them."""
    return study.mean_weight if study else 1.0


def _check_possible(sums: Sums | Grams, study: Study | None) -> None:
    """Refuse sums that patients of one site could not give; with noise, or without a study, only unsound ones."""
    if study is None or study.disclosure.epsilon is not None:
        check_sound(sums)
    else:
        check_site(sums, study.rules.norm_bound)


def _total(file: Container, source: str | Path, study: Study | None, expected: Round | None) -> Received[Total]:
    def body(envelope: Envelope) -> Total:
        members = _members(file, source)
        resolution = _resolution(file, source, study)
        # Rounding each of K matrices moves an eigenvalue of their sum by at most K·d0·resolution.
        sums = _sums(
            file, source, study, "the total",
            lambda sums: check_sound(sums, len(members) * sums.n_shared * resolution),
        )  # fmt: skip
        removed = absent(study.feature_map, sums) if study and study.rules.by_block and not resolution else ()
        return Total(envelope.fingerprint, members, sums, resolution, removed, _mean_weight(study))

    rounded = frozenset({"resolution"} & file.header.keys())
    return unseal(file, source, TOTAL_PHASE, frozenset({"members"}) | rounded, expected, body)


def _resolution(file: Container, source: str | Path, study: Study | None) -> float:
    """The unit to which a secure sum rounded; 0 without a secure sum, where the header has no such field.

    It is a power of two that leaves enough digits. A coarser one would excuse negative eigenvalues, and hide whatever
    is smaller.
    """
    resolution = file.header.get("resolution", 0.0)
    valid = isinstance(resolution, float) and frexp(resolution)[0] == 0.5 and resolution <= 2.0**-FEWEST_BITS
    if "resolution" in file.header and not valid:
        raise DamagedFile(f"{source} does not say to what unit its sums were rounded. Ask the hub for it again.")
    if study is not None and study.disclosure.secure_sum != bool(resolution):
        was, asked = ("a secure sum", "none") if resolution else ("no secure sum", "one")
        raise OtherStudy(
            f"{source} was made by {was}, and the study asks for {asked}. Nothing of it was used. Ask the hub how the "
            "total came about."
        )
    return float(resolution)


def _members(file: Container, source: str | Path) -> tuple[tuple[str, str], ...]:
    field = file.header["members"]
    pairs = field if isinstance(field, list) and all(isinstance(m, list) and len(m) == 2 for m in field) else []
    members = tuple((site, digest) for site, digest in pairs if isinstance(site, str) and isinstance(digest, str))
    for site, _ in members:
        check_site_name(site)
    if (
        not members
        or len(members) != len(field)
        or any(a[0] >= b[0] for a, b in pairwise(members))
        or not all(HEX.fullmatch(digest) for _, digest in members)
    ):
        raise DamagedFile(f"{source} does not say which sites are in it, each once. Ask the hub for it again.")
    return members


def _sums(file: Container, source: str | Path, study: Study | None, what: str, check: Callable[[Sums], None]) -> Sums:
    """The sums of a file: names and shapes of arrays are checked, finite numbers, and what `check` asks."""
    shape = _shape(file, "schur_moment") if study is None else (study.horizon, study.feature_map.n_shared)
    _require_arrays(file, source, sums_layout(*shape))
    with _naming(source, what):
        sums = Sums.unpacked(file.arrays)
        check(sums)
    return sums


def _grams(file: Container, source: str | Path, study: Study | None, what: str) -> Grams:
    """The Grams of a file, checked like its sums."""
    shape = _shape(file, "moment") if study is None else (study.horizon, study.feature_map.n_features)
    _require_arrays(file, source, grams_layout(*shape))
    with _naming(source, what):
        grams = Grams.unpacked(file.arrays)
        _check_possible(grams, study)
    return grams


def _shape(file: Container, name: str) -> tuple[int, int]:
    """Number of steps and features by an array of a file, where the study is not known."""
    shape = file.arrays[name].shape if name in file.arrays else ()
    return (shape[0], shape[1]) if len(shape) == 2 else (0, 0)


def _require_arrays(file: Container, source: str | Path, expected: dict[str, tuple[int, ...]]) -> None:
    if {name: array.shape for name, array in file.arrays.items()} != expected:
        raise DamagedFile(f"{source} does not hold the arrays of a message of this study, and those alone. {AGAIN}")
    _require_floats(file.arrays.values(), source)


@contextmanager
def _naming(source: str | Path, what: str) -> Iterator[None]:
    """Name the file, and whose numbers they are, in the refusal of a check."""
    try:
        yield
    except InvalidSums as error:
        raise type(error)(
            f"{source}: {what} cannot come from patients of the study: {error}. Nothing of it was used. Ask for it "
            "again, made with the same study file and version of fdtr."
        ) from None


def _require_floats(arrays: Iterable[NDArray[Any]], source: str | Path) -> None:
    arrays = list(arrays)
    if any(array.dtype != np.float64 for array in arrays):
        raise DamagedFile(f"{source} holds numbers of another type than this kind of file has. {AGAIN}")
    if not all(np.isfinite(array).all() for array in arrays):
        raise InvalidSums(f"{source} holds numbers that are not finite (NaN or infinite). {AGAIN}")


def _is_known(value: MethodValue) -> bool:
    """Whether verdict and estimator are among those there are, and names can be printed on one line."""
    names = all(len(name) <= MOST_NAME and name.isprintable() for name in (value.method, value.over))
    return names and value.method != "" and value.verdict in VERDICTS and value.estimator in ESTIMATORS


def _values(file: Container, source: str | Path, envelope: Envelope) -> SiteValues:
    check_site_name(envelope.site)
    names = [file.header[name] for name in ("methods", "estimators", "over", "verdicts")]
    columns = [file.arrays[name] for name in ("value", "standard_error", "tolerance") if name in file.arrays]
    n, evaluation = file.header["n"], file.header["evaluation"]
    if (
        not isinstance(evaluation, str)
        or not all(isinstance(part, list) and all(isinstance(name, str) for name in part) for part in names)
        or len({len(part) for part in names}) != 1
        or not len(file.arrays) == len(columns) == 3
        or any(column.shape != (len(names[0]),) for column in columns)
        or type(n) is not int
        or n < 1
    ):
        raise UnreadableFile(f"{source} holds no values that can be read. {AGAIN}")
    _require_floats(columns, source)
    rows = zip(*names, *(column.tolist() for column in columns), strict=True)
    values = tuple(
        MethodValue(method, estimator, value, error, over, verdict, tolerance)
        for method, estimator, over, verdict, value, error, tolerance in rows
    )
    sound = all(v.standard_error > 0 and v.tolerance >= 0 and _is_known(v) for v in values)
    if len({(v.method, v.over) for v in values}) < len(values) or not sound:
        raise UnreadableFile(f"{source} tells of a method twice, without an error, or in words of its own. {AGAIN}")
    return SiteValues(envelope.site, envelope.fingerprint, n, values, evaluation)
