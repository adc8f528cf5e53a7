"""Check a table of trajectories: report every fault at once, or return rows ready to be arranged."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from fdtr.errors import UnknownSite
from fdtr.trajectories.table_columns import Numbers, Texts, numbers, texts
from fdtr.trajectories.table_faults import Faults, Kind
from fdtr.trajectories.table_sources import Columns, Covariate, TableLayout

Codes = NDArray[np.intp]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Values = TypeVar("Values", bound=NDArray[Any])

MOST_SITES_NAMED = 12
LONGEST_SITE_NAME = 64  # bytes: a message's header has room for no more


@dataclass(frozen=True, eq=False, repr=False)
class Rows:
    """Whom and which step each row is about, in the table's order.

    By row: `site` (position in `sites`) and `patient`, both -1 where unknown, `step`, and `known`, where patient and
    step can be trusted. By patient, as they appear: `patient_site` and `patient_id`.
    """

    sites: tuple[str, ...]
    site: Codes
    patient: Codes
    patient_site: Codes
    patient_id: Any
    step: Codes
    known: Mask


@dataclass(frozen=True, eq=False, repr=False)
class CheckedCovariate:
    """One covariate by row, clipped, with NaN where the patient's previous step is to be used.

    `clipped` and `filled` count such values by site.
    """

    values: Floats
    clipped: Codes
    filled: Codes


@dataclass(frozen=True, eq=False, repr=False)
class Checked:
    """A table without faults, in its own row order.

    By row: `action` (position among the levels), `reward` (on [0,1]) and `covariates`. By patient: `cluster` (None
    where the table is read without), `length` and `ended_value`.
    """

    rows: Rows
    action: Codes
    reward: Floats
    covariates: tuple[CheckedCovariate, ...]
    cluster: Any
    length: Codes
    ended_value: Floats


def check(columns: Columns, layout: TableLayout, site: str | None) -> Checked:
    """Return the table's rows ready to be arranged; raises InvalidTable with every fault."""
    faults = Faults(columns.label)
    checked = check_part(columns, layout, site, faults)
    faults.refuse()
    return checked


def check_part(columns: Columns, layout: TableLayout, site: str | None, faults: Faults) -> Checked:
    """Check a table, or all rows of some of its patients, and add to `faults`; without any, the rows are ready."""
    _check_header(columns, layout, site, faults)
    if columns.n_rows == 0:
        faults.refuse()
    columns, row_sites = _rows_of_site(columns, layout, site, faults)
    ids, by_column = _read_columns(columns, layout, faults)
    rows = _identify(ids, row_sites, by_column.get(layout.step), columns.n_rows, layout, faults)
    length = _check_order(rows, layout, faults)
    return Checked(
        rows=rows,
        length=length,
        ended_value=_check_ends(columns, rows, length, layout, faults),
        action=_check_action(by_column.get(layout.action), layout, faults),
        reward=_check_reward(by_column.get(layout.reward), layout, faults),
        cluster=None if layout.cluster is None else _check_cluster(columns, layout.cluster, rows, faults),
        covariates=tuple(
            _check_covariate(covariate, by_column.get(covariate.column), rows, faults)
            for covariate in layout.covariates
        ),
    )


def _check_header(columns: Columns, layout: TableLayout, site: str | None, faults: Faults) -> None:
    needed = dict.fromkeys((layout.patient, *layout.number_columns))
    if layout.cluster is not None:
        needed[layout.cluster] = None
    if not any(name in columns.names for name in needed):
        # A table without a header shows a patient's cells as column names: none may be quoted.
        listed = ", ".join(f'"{name}"' for name in needed)
        faults.add(Kind.COLUMN, f"None of the columns {listed} is there. Does the first line hold column names?")
        faults.refuse()
    if not site and layout.site not in columns.names:
        advice = "Name the site (site=, or --site NAME on the command line), or map the column."
        faults.add(Kind.COLUMN, _absent(layout.site, columns, layout, advice))
    for name in needed:
        if name not in columns.names:
            faults.add(Kind.COLUMN, _absent(name, columns, layout, "[columns] in the study file maps names."))
    for name in dict.fromkeys((*layout.text_columns, *needed)):
        if columns.names.count(name) > 1:
            fact = f'Column "{name}" appears {columns.names.count(name)} times.'
            faults.add(Kind.COLUMN, f"{fact} Rename or drop all but one.")
    if columns.arrow and columns.n_rows == 0:
        faults.add(Kind.COLUMN, "The table has no rows. Check the export.")


def _absent(name: str, columns: Columns, layout: TableLayout, advice: str) -> str:
    taken = {*layout.text_columns, *layout.number_columns}
    near = difflib.get_close_matches(name, [str(other) for other in columns.names if other not in taken], n=1)
    hint = f' The nearest is "{near[0]}".' if near else ""
    return f'Column "{name}" is missing.{hint} {advice}'


def _rows_of_site(
    columns: Columns, layout: TableLayout, site: str | None, faults: Faults
) -> tuple[Columns, Texts | None]:
    """The columns, of one `site` if it is given, and the site of each row, None where that column cannot be read."""
    if site is not None and len(site.encode()) > LONGEST_SITE_NAME:
        raise UnknownSite(f"A site's name has at most {LONGEST_SITE_NAME} bytes; the one given is longer.")
    if layout.site not in columns.names:
        return columns, Texts(np.zeros(columns.n_rows, np.intp), (site or "",))
    names = _read_texts(columns, layout.site, faults)
    if names is None:
        return columns, None
    labels = names.labels.to_pylist()
    if any(len(label.encode()) > LONGEST_SITE_NAME for label in labels):
        advice = f"Site names have at most {LONGEST_SITE_NAME} bytes. Shorten them."
        faults.add(Kind.IDENTITY, f'Column "{layout.site}": a name is too long. {advice}')
    if site is None:
        rank = {name: i for i, name in enumerate(sorted(labels))}
        by_label = np.array([*(rank[label] for label in labels), -1], np.intp)
        return columns, Texts(by_label[names.codes], tuple(rank))
    if site not in labels:
        raise unknown_site(columns.label, site, labels)
    import pyarrow as pa

    of_site = names.codes == labels.index(site)
    faults.position = np.flatnonzero(of_site) if faults.position is None else faults.position[of_site]
    if not of_site.all():
        mask = pa.array(of_site)
        columns = replace(columns, arrow={name: column.filter(mask) for name, column in columns.arrow.items()})
    return columns, Texts(np.zeros(int(of_site.sum()), np.intp), (site,))


def unknown_site(label: str, site: str, names: Collection[str]) -> UnknownSite:
    """The error for a `site` that a table does not have; `names` are those that it has."""
    # More "sites" than that are patients, read from the wrong column, and must not be named.
    listed = (
        ", ".join(f'"{name}"' for name in sorted(names)) if len(names) <= MOST_SITES_NAMED else f"{len(names)} others"
    )
    return UnknownSite(f'{label} has no rows of site "{site}". Its sites: {listed or "none"}.')


def _read_texts(columns: Columns, name: str, faults: Faults) -> Texts | None:
    if name not in columns.arrow:
        return None
    column = texts(columns.arrow[name])
    if column is None:
        kind = columns.arrow[name].type
        faults.add(Kind.TEXT, f'Column "{name}" is of type {kind}; text is needed. Convert it.')
    return column


def _read_columns(columns: Columns, layout: TableLayout, faults: Faults) -> tuple[Texts | None, dict[str, Numbers]]:
    """The patients' ids and the number columns, converted in parallel."""
    present = [name for name in layout.number_columns if name in columns.arrow]
    with ThreadPoolExecutor() as pool:
        ids = pool.submit(_read_texts, columns, layout.patient, faults)
        read_all = dict(zip(present, pool.map(lambda name: numbers(columns.arrow[name]), present), strict=True))
    for name, column in read_all.items():
        if column is None:
            kind = columns.arrow[name].type
            faults.add(Kind.TEXT, f'Column "{name}" is of type {kind}; numbers are needed. Convert it.')
        else:
            advice = "Write numbers with a decimal point; leave a missing cell empty."
            if name == layout.action:
                advice = "Write the codes that [actions] lists as levels."
            faults.rows(Kind.TEXT, f'Column "{name}": text instead of numbers', column.text, advice)
    by_column = {name: column for name, column in read_all.items() if column is not None}
    for name in (name for name in (layout.step, layout.action, layout.reward) if name in by_column):
        _check_finite(name, by_column[name], True, "Complete the table or drop the patient.", faults)
    return ids.result(), by_column


def _check_finite(name: str, column: Numbers, gaps_too: bool, advice: str, faults: Faults) -> None:
    if column.within(-np.finfo(float).max, np.finfo(float).max):
        return
    if gaps_too:
        faults.rows(Kind.MISSING, f'Column "{name}": missing values', column.gaps, advice)
    infinite = f'Column "{name}": infinite values'
    faults.rows(Kind.MISSING, infinite, np.isinf(column.values), "Correct them in the table.")


def _identify(
    ids: Texts | None, sites: Texts | None, step: Numbers | None, n: int, layout: TableLayout, faults: Faults
) -> Rows:
    """Whom each of the `n` rows is about; `sites` and `ids` are None only beside a fault, and so is `step`."""
    import pyarrow as pa

    for column, name in ((sites, layout.site), (ids, layout.patient)):
        if column is not None:
            faults.rows(Kind.IDENTITY, f'Column "{name}": empty', column.codes < 0, "Every row needs one.")
    steps, valid = _check_step(step, n, layout, faults)
    if ids is None or sites is None:
        nobody = np.full(n, -1)
        names, site = (("",), np.zeros(n, np.intp)) if sites is None else (sites.labels, sites.codes)
        return Rows(names, site, nobody, np.zeros(0, np.intp), None, steps, np.zeros(n, np.bool_))
    unknown = (sites.codes < 0) | (ids.codes < 0)
    # Ids repeat across sites, so a patient is the pair; Arrow's hash numbers pairs in order of appearance.
    n_labels = max(len(ids.labels), 1)
    pairs = pa.array(sites.codes * n_labels + ids.codes, mask=unknown if unknown.any() else None)
    pairs = pairs.dictionary_encode()
    pair = pairs.dictionary.to_numpy()
    patient = pairs.indices.fill_null(-1).to_numpy().astype(np.intp)
    patient_id = ids.labels.take(pa.array(pair % n_labels))
    return Rows(sites.labels, sites.codes, patient, pair // n_labels, patient_id, steps, valid & ~unknown)


def _check_step(column: Numbers | None, n: int, layout: TableLayout, faults: Faults) -> tuple[Codes, Mask]:
    """Steps as whole numbers, and which of them can be trusted."""
    if column is None:
        return np.zeros(n, np.intp), np.zeros(n, np.bool_)
    with np.errstate(invalid="ignore"):
        step = column.values.astype(np.intp)
    whole = step == column.values
    if column.within(0, layout.horizon - 1) and whole.all():
        return step, whole
    finite = np.isfinite(column.values)
    subject, advice = f'Column "{layout.step}"', f"Steps run 0 … {layout.horizon - 1}."
    # Beyond 2⁶³ the cast to an integer means nothing, so the comparisons are made on the values.
    broken = finite & (np.floor(column.values) != column.values)
    negative = finite & (column.values < 0) & ~broken
    late = finite & (column.values >= layout.horizon) & ~broken
    faults.rows(Kind.STEP, f"{subject}: not a whole number", broken, advice)
    faults.rows(Kind.STEP, f"{subject}: negative", negative, advice)
    late_advice = f"{advice} Subtract 1 where the table counts from 1."
    faults.rows(Kind.STEP, f"{subject}: at or beyond the horizon {layout.horizon}", late, late_advice)
    return step, finite & ~broken & ~negative & ~late


def _check_order(rows: Rows, layout: TableLayout, faults: Faults) -> Codes:
    """Length of each patient's trajectory; repeated and skipped steps are faults."""
    patient, step, n_patients = rows.patient, rows.step, len(rows.patient_site)
    if rows.known.all():
        length = np.bincount(patient, minlength=n_patients)
        if (step < length[patient]).all():
            seen = np.zeros(len(step), np.bool_)
            seen[(np.cumsum(length) - length)[patient] + step] = True
            if seen.all():
                return length
    order = np.flatnonzero(rows.known)
    order = order[np.lexsort((step[order], patient[order]))]
    who, when = patient[order], step[order]
    earlier = np.full(len(order), -1)
    earlier[1:] = np.where(who[1:] == who[:-1], when[:-1], -1)
    # A patient with an unusable step is already reported; the gap it leaves is no second fault.
    doubtful = np.zeros(n_patients, np.bool_)
    doubtful[patient[~rows.known & (patient >= 0)]] = True
    repeated, skipped = np.zeros((2, len(step)), np.bool_)
    repeated[order[when == earlier]] = True
    skipped[order[(when > earlier + 1) & ~doubtful[who]]] = True
    subject = f'Columns "{layout.patient}", "{layout.step}"'
    again = f"{subject}: the same step of a patient more than once"
    faults.rows(Kind.DUPLICATE, again, repeated, "Keep one row a step.")
    advice = "Steps of a patient run 0, 1, … without holes."
    faults.rows(Kind.HOLE, f"{subject}: steps skipped just before the one", skipped, advice)
    length = np.zeros(n_patients, np.intp)
    np.maximum.at(length, who, when + 1)
    length[doubtful] = layout.horizon
    return length


def _check_ends(columns: Columns, rows: Rows, length: Codes, layout: TableLayout, faults: Faults) -> Floats:
    """What the missing steps of each patient are worth together."""
    end = _read_texts(columns, layout.end, faults) if layout.ends else None
    worth = np.zeros(len(length))
    if not len(length) or (end is None and length.min() == layout.horizon):
        return worth
    step, known = rows.step, rows.known
    left = length[rows.patient] - 1 - step
    early = known & (left == 0) & (step < layout.horizon - 1)
    if end is None:
        if not layout.ends:
            fact = f'Column "{layout.step}": trajectories of fewer than {layout.horizon} steps end'
            advice = "Complete them, or say in [ends] of the study what the missing steps are worth."
            faults.rows(Kind.EARLY, fact, early, advice)
        elif early.any() and layout.end not in columns.names:
            advice = "Trajectories end early, so it is needed; [columns] in the study file maps names."
            faults.add(Kind.COLUMN, _absent(layout.end, columns, layout, advice))
        return worth
    subject, names = f'Column "{layout.end}"', ", ".join(f'"{name}"' for name in layout.ends)
    by_label = np.array([*(layout.ends.get(label, np.nan) for label in end.labels.to_pylist()), np.nan])
    value, empty = by_label[end.codes], end.codes < 0
    advice = f"The study knows {names}."
    faults.rows(Kind.END, f"{subject}: empty where a trajectory ends early,", early & empty, advice)
    faults.rows(Kind.END, f"{subject}: an unknown end", early & ~empty & np.isnan(value), advice)
    advice = "An end belongs on a patient's last row."
    faults.rows(Kind.END, f"{subject}: given before the last step", known & ~empty & (left > 0), advice)
    worth[rows.patient[early]] = (layout.horizon - 1 - step[early]) * value[early]
    return worth


def _positions(values: Floats, levels: tuple[float, ...]) -> tuple[Codes, Mask]:
    """Position of each value in `levels`, and where it is none of them."""
    position = np.zeros(len(values), np.intp)
    other = values != levels[0]
    for i, level in enumerate(levels[1:], start=1):
        is_level = values == level
        position += i * is_level
        other &= ~is_level
    return position, other


def _check_action(column: Numbers | None, layout: TableLayout, faults: Faults) -> Codes:
    if column is None:
        return np.zeros(0, np.intp)
    position, other = _positions(column.values, layout.action_levels)
    if other.any():
        listed = ", ".join(f"{level:g}" for level in layout.action_levels)
        fact = f'Column "{layout.action}": not one of the action levels'
        faults.rows(Kind.ACTION, fact, other & np.isfinite(column.values), f"The study has {listed}.")
    return position


def _check_reward(column: Numbers | None, layout: TableLayout, faults: Faults) -> Floats:
    if column is None:
        return np.zeros(0)
    low, high, values = layout.reward_low, layout.reward_high, column.values
    if not column.within(low, high):
        outside = np.isfinite(values) & ((values < low) | (values > high))
        advice = "Correct the table or widen [reward] range in the study."
        faults.rows(Kind.REWARD, f'Column "{layout.reward}": outside {low:g} … {high:g}', outside, advice)
    return (values - low) / (high - low)


def _check_covariate(covariate: Covariate, column: Numbers | None, rows: Rows, faults: Faults) -> CheckedCovariate:
    none = np.zeros(len(rows.sites), np.intp)
    if column is None:
        return CheckedCovariate(np.zeros(0), none, none)
    values, clipped, filled = column.values, none, none
    name = covariate.column
    refused = covariate.missing == "refuse"
    advice = 'Complete the table, or set missing = "forward" or "range-middle" for it in the study.'
    _check_finite(name, column, refused, advice, faults)
    if covariate.levels is not None:
        listed = ", ".join(f"{level:g}" for level in covariate.levels)
        _, other = _positions(values, covariate.levels)
        fact = f'Column "{name}": not one of its levels'
        faults.rows(Kind.LEVEL, fact, other & np.isfinite(values), f"The study has {listed}.")
    elif not column.within(covariate.low, covariate.high):
        outside = (values < covariate.low) | (values > covariate.high)
        clipped = _count_by_site(outside, rows)
        values = np.clip(values, covariate.low, covariate.high)
    if not refused and np.isnan(column.low):
        gaps = column.gaps
        filled = _count_by_site(gaps, rows)
        if covariate.missing == "range-middle":
            values = np.where(gaps, (covariate.low + covariate.high) / 2, values)
        else:
            _check_forward(name, gaps, ~np.isnan(values), rows, faults)
    if covariate.constant_within_site:
        _check_constant(name, values, rows, faults)
    return CheckedCovariate(values, clipped, filled)


def _check_cluster(columns: Columns, name: str, rows: Rows, faults: Faults) -> Any:
    """The label of each patient's cluster, as Arrow text; empty cells and second clusters are faults."""
    import pyarrow as pa

    column = _read_texts(columns, name, faults)
    if column is None:
        return None
    faults.rows(Kind.IDENTITY, f'Column "{name}": empty', column.codes < 0, "Every row needs one.")
    known = (rows.patient >= 0) & (column.codes >= 0)
    first, varies = _compare_with_first(column.codes, rows.patient, len(rows.patient_site), known)
    advice = "A patient has one cluster. Correct them, or drop cluster from [columns] in the study file."
    faults.rows(Kind.CLUSTER, f'Column "{name}": differs from the patient\'s first value', varies, advice)
    return column.labels.take(pa.array(first)) if len(column.labels) else None


def _compare_with_first(values: Values, group: Codes, n_groups: int, known: Mask) -> tuple[Values, Mask]:
    """The first value of each group, and the rows that differ from it; rows that are not `known` count nowhere."""
    positions = np.flatnonzero(known)[::-1]
    first = np.zeros(n_groups, values.dtype)
    first[group[positions]] = values[positions]  # of several assignments the last one, that of the first row, stays
    differs = np.zeros(len(values), np.bool_)
    differs[positions] = values[positions] != first[group[positions]]
    return cast(Values, first), differs


def _count_by_site(where: Mask, rows: Rows) -> Codes:
    counted = rows.site[where]
    return np.bincount(counted[counted >= 0], minlength=len(rows.sites))


def _check_forward(name: str, gaps: Mask, observed: Mask, rows: Rows, faults: Faults) -> None:
    first = np.full(len(rows.patient_site), np.iinfo(np.intp).max)
    np.minimum.at(first, rows.patient[rows.known & observed], rows.step[rows.known & observed])
    unfilled = gaps & rows.known
    unfilled[unfilled] = rows.step[unfilled] < first[rows.patient[unfilled]]
    advice = 'Complete the table, or set missing = "range-middle" for it in the study.'
    faults.rows(Kind.MISSING, f'Column "{name}": missing values with no earlier one', unfilled, advice)


def _check_constant(name: str, values: Floats, rows: Rows, faults: Faults) -> None:
    known = (rows.site >= 0) & ~np.isnan(values)
    _, varies = _compare_with_first(values, rows.site, len(rows.sites), known)
    advice = 'Correct them, or set level = "patient" in the study.'
    faults.rows(Kind.SITE_LEVEL, f'Column "{name}": differs from the site\'s first value', varies, advice)
