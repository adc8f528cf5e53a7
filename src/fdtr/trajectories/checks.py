"""Checks of a table of trajectories: every fault in one pass, or rows ready to be arranged."""

from __future__ import annotations

import difflib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fdtr.errors import UnknownSite
from fdtr.trajectories.faults import Faults, Kind
from fdtr.trajectories.tables import Columns, Covariate, Numbers, TableLayout, Texts, numbers, texts

Codes = NDArray[np.intp]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

MOST_SITES_NAMED = 12
LONGEST_SITE_NAME = 64  # bytes: a message's header has room for no more


@dataclass(frozen=True, eq=False, repr=False)
class Checked:
    """A table without faults, in its own row order.

    By row: `patient`, `step`, `action` (position among the levels), `reward` (on [0,1]) and `covariates`,
    each clipped, with NaN where the patient's previous step is to be used. By patient, as they appear:
    `patient_site` (position in `sites`), `patient_id`, `cluster` (None where the table is read without),
    `length` and `ended_value`. By covariate and site: `clipped` and `filled`.
    """

    sites: tuple[str, ...]
    patient: Codes
    step: Codes
    action: Codes
    reward: Floats
    covariates: tuple[Floats, ...]
    patient_site: Codes
    patient_id: Any
    cluster: Any
    length: Codes
    ended_value: Floats
    clipped: Codes
    filled: Codes


@dataclass(frozen=True, eq=False, repr=False)
class _Filled:
    """One covariate, clipped and filled but for "forward"; by site, how many values were."""

    values: Floats
    clipped: Codes
    filled: Codes


@dataclass(frozen=True, eq=False, repr=False)
class _People:
    """Who each row is about: `site` and `patient` are by row, -1 where unknown; the others by patient."""

    sites: tuple[str, ...]
    site: Codes
    patient: Codes | None
    patient_site: Codes
    patient_id: Any


def check(columns: Columns, spec: TableLayout, site: str | None) -> Checked:
    """Find every fault of the table, or return its rows ready to be arranged."""
    faults = Faults(columns.label)
    _check_header(columns, spec, site, faults)
    if columns.n_rows == 0:
        faults.refuse()
    columns, place = _rows_of_site(columns, spec, site, faults)
    ids, found = _read_columns(columns, spec, faults)
    people = _identify(ids, columns.n_rows, spec, place, faults)
    step, valid = _check_step(found.get(spec.step), columns.n_rows, spec, faults)
    length = _check_order(people, step, valid, spec, faults)
    end = _read_texts(columns, spec.end, faults) if spec.ends else None
    ended_value = _check_ends(end, columns, people, step, valid, length, spec, faults)
    action = _check_action(found.get(spec.action), spec, faults)
    reward = _check_reward(found.get(spec.reward), spec, faults)
    cluster = None if spec.cluster is None else _check_cluster(columns, spec.cluster, people, faults)
    parts = [
        _check_covariate(covariate, found.get(covariate.column), people, step, valid, faults)
        for covariate in spec.covariates
    ]
    faults.refuse()
    return Checked(
        sites=people.sites,
        patient=cast(Codes, people.patient),  # None only beside a fault, and those were refused
        step=step,
        action=action,
        reward=reward,
        covariates=tuple(part.values for part in parts),
        patient_site=people.patient_site,
        patient_id=people.patient_id,
        cluster=cluster,
        length=length,
        ended_value=ended_value,
        clipped=np.array([part.clipped for part in parts], np.intp).reshape(-1, len(people.sites)),
        filled=np.array([part.filled for part in parts], np.intp).reshape(-1, len(people.sites)),
    )


def _check_header(columns: Columns, spec: TableLayout, site: str | None, faults: Faults) -> None:
    needed = dict.fromkeys((spec.patient, *spec.number_columns))
    if spec.cluster is not None:
        needed[spec.cluster] = None
    if not any(name in columns.names for name in needed):
        # A table without a header shows a patient's cells as column names: none may be quoted.
        listed = ", ".join(f'"{name}"' for name in needed)
        fact = f"None of the columns {listed} is there."
        faults.add(Kind.COLUMN, f"{fact} Does the first line hold column names?")
        faults.refuse()
    if not site and spec.site not in columns.names:
        advice = "Name the site (site=, or --site NAME on the command line), or map the column."
        faults.add(Kind.COLUMN, _absent(spec.site, columns, spec, advice))
    for name in needed:
        if name not in columns.names:
            faults.add(Kind.COLUMN, _absent(name, columns, spec, "[columns] in the study file maps names."))
    for name in dict.fromkeys((*spec.text_columns, *needed)):
        if columns.names.count(name) > 1:
            fact = f'Column "{name}" appears {columns.names.count(name)} times.'
            faults.add(Kind.COLUMN, f"{fact} Rename or drop all but one.")
    if columns.arrow and columns.n_rows == 0:
        faults.add(Kind.COLUMN, "The table has no rows. Check the export.")


def _absent(name: str, columns: Columns, spec: TableLayout, advice: str) -> str:
    taken = {*spec.text_columns, *spec.number_columns}
    near = difflib.get_close_matches(name, [str(other) for other in columns.names if other not in taken], n=1)
    hint = f' The nearest is "{near[0]}".' if near else ""
    return f'Column "{name}" is missing.{hint} {advice}'


@dataclass(frozen=True, eq=False, repr=False)
class _Place:
    """The site of each row: `code` is None where the site column cannot be read."""

    names: tuple[str, ...]
    code: Codes | None


def _rows_of_site(columns: Columns, spec: TableLayout, site: str | None, faults: Faults) -> tuple[Columns, _Place]:
    if site is not None and len(site.encode()) > LONGEST_SITE_NAME:
        raise UnknownSite(f"A site's name has at most {LONGEST_SITE_NAME} bytes; the one given is longer.")
    if spec.site not in columns.names:
        return columns, _Place((site or "",), np.zeros(columns.n_rows, np.intp))
    found = _read_texts(columns, spec.site, faults)
    if found is None:
        return columns, _Place((), None)
    labels = found.labels.to_pylist()
    if any(len(label.encode()) > LONGEST_SITE_NAME for label in labels):
        advice = f"Site names have at most {LONGEST_SITE_NAME} bytes. Shorten them."
        faults.add(Kind.IDENTITY, f'Column "{spec.site}": a name is too long. {advice}')
    if site is None:
        rank = {name: i for i, name in enumerate(sorted(labels))}
        by_label = np.array([*(rank[label] for label in labels), -1], np.intp)
        return columns, _Place(tuple(rank), by_label[found.codes])
    if site not in labels:
        # So many sites are patients, read from the wrong column, and may not be named.
        few = len(labels) <= MOST_SITES_NAMED
        listed = ", ".join(f'"{name}"' for name in sorted(labels)) if few else f"{len(labels)} others"
        raise UnknownSite(f'{columns.label} has no rows of site "{site}". Its sites: {listed or "none"}.')
    import pyarrow as pa

    mine = found.codes == labels.index(site)
    faults.position = np.flatnonzero(mine)
    if mine.all():
        return columns, _Place((site,), np.zeros(len(mine), np.intp))
    keep = pa.array(mine)
    kept = replace(columns, arrow={name: column.filter(keep) for name, column in columns.arrow.items()})
    return kept, _Place((site,), np.zeros(len(faults.position), np.intp))


def _read_texts(columns: Columns, name: str, faults: Faults) -> Texts | None:
    if name not in columns.arrow:
        return None
    found = texts(columns.arrow[name])
    if found is None:
        kind = columns.arrow[name].type
        faults.add(Kind.TEXT, f'Column "{name}" is of type {kind}; text is needed. Convert it.')
    return found


def _read_columns(columns: Columns, spec: TableLayout, faults: Faults) -> tuple[Texts | None, dict[str, Numbers]]:
    """The patients' ids and the number columns, converted side by side."""
    present = [name for name in spec.number_columns if name in columns.arrow]
    with ThreadPoolExecutor() as pool:
        ids = pool.submit(_read_texts, columns, spec.patient, faults)
        read_all = dict(zip(present, pool.map(lambda name: numbers(columns.arrow[name]), present), strict=True))
    for name, number in read_all.items():
        if number is None:
            kind = columns.arrow[name].type
            faults.add(Kind.TEXT, f'Column "{name}" is of type {kind}; numbers are needed. Convert it.')
        else:
            advice = (
                "Write the codes that [actions] lists as levels."
                if name == spec.action
                else "Write numbers with a decimal point; leave a missing cell empty."
            )
            faults.rows(Kind.TEXT, f'Column "{name}": text instead of numbers', number.text, advice)
    found = {name: number for name, number in read_all.items() if number is not None}
    for name in (name for name in (spec.step, spec.action, spec.reward) if name in found):
        _check_finite(name, found[name], True, "Complete the table or drop the patient.", faults)
    return ids.result(), found


def _check_finite(name: str, number: Numbers, gaps_too: bool, advice: str, faults: Faults) -> None:
    if number.within(-np.finfo(float).max, np.finfo(float).max):
        return
    if gaps_too:
        faults.rows(Kind.MISSING, f'Column "{name}": missing values', number.gaps, advice)
    infinite = f'Column "{name}": infinite values'
    faults.rows(Kind.MISSING, infinite, np.isinf(number.values), "Correct them in the table.")


def _identify(ids: Texts | None, n: int, spec: TableLayout, place: _Place, faults: Faults) -> _People:
    import pyarrow as pa

    advice = "Every row needs one."
    if place.code is not None:
        faults.rows(Kind.IDENTITY, f'Column "{spec.site}": empty', place.code < 0, advice)
    site = np.zeros(n, np.intp) if place.code is None else place.code
    if ids is not None:
        faults.rows(Kind.IDENTITY, f'Column "{spec.patient}": empty', ids.codes < 0, advice)
    if ids is None or place.code is None:
        return _People(place.names or ("",), site, None, np.zeros(0, np.intp), None)
    unknown = (site < 0) | (ids.codes < 0)
    # Ids repeat across sites, so a patient is the pair; Arrow's hash numbers pairs in order of appearance.
    n_labels = max(len(ids.labels), 1)
    pairs = pa.array(site * n_labels + ids.codes, mask=unknown if unknown.any() else None)
    pairs = pairs.dictionary_encode()
    pair = pairs.dictionary.to_numpy()
    patient = pairs.indices.fill_null(-1).to_numpy().astype(np.intp)
    patient_id = ids.labels.take(pa.array(pair % n_labels))
    return _People(place.names, site, patient, pair // n_labels, patient_id)


def _check_step(number: Numbers | None, n: int, spec: TableLayout, faults: Faults) -> tuple[Codes, Mask]:
    """Steps as whole numbers, and which of them can be trusted."""
    if number is None:
        return np.zeros(n, np.intp), np.zeros(n, np.bool_)
    with np.errstate(invalid="ignore"):
        step = number.values.astype(np.intp)
    whole = step == number.values
    if number.within(0, spec.horizon - 1) and whole.all():
        return step, whole
    finite = np.isfinite(number.values)
    subject, advice = f'Column "{spec.step}"', f"Steps run 0 … {spec.horizon - 1}."
    # Beyond 2⁶³ the cast to an integer means nothing, so the comparisons are made on the values.
    broken = finite & (np.floor(number.values) != number.values)
    negative = finite & (number.values < 0) & ~broken
    late = finite & (number.values >= spec.horizon) & ~broken
    faults.rows(Kind.STEP, f"{subject}: not a whole number", broken, advice)
    faults.rows(Kind.STEP, f"{subject}: negative", negative, advice)
    late_advice = f"{advice} Subtract 1 where the table counts from 1."
    faults.rows(Kind.STEP, f"{subject}: at or beyond the horizon {spec.horizon}", late, late_advice)
    return step, finite & ~broken & ~negative & ~late


def _check_order(people: _People, step: Codes, valid: Mask, spec: TableLayout, faults: Faults) -> Codes:
    """Length of each patient's trajectory; repeated and skipped steps are faults."""
    patient = people.patient
    if patient is None or not valid.any():
        return np.zeros(0, np.intp)
    n_patients = len(people.patient_site)
    if valid.all() and patient.min() >= 0:
        length = np.bincount(patient, minlength=n_patients)
        if (step < length[patient]).all():
            seen = np.zeros(len(step), np.bool_)
            seen[(np.cumsum(length) - length)[patient] + step] = True
            if seen.all():
                return length
    rows = np.flatnonzero(valid & (patient >= 0))
    rows = rows[np.lexsort((step[rows], patient[rows]))]
    who, when = patient[rows], step[rows]
    earlier = np.full(len(rows), -1)
    earlier[1:] = np.where(who[1:] == who[:-1], when[:-1], -1)
    # A patient with an unusable step is already reported; the gap it leaves is no second fault.
    doubtful = np.zeros(n_patients, np.bool_)
    doubtful[patient[~valid & (patient >= 0)]] = True
    repeated, skipped = np.zeros((2, len(step)), np.bool_)
    repeated[rows[when == earlier]] = True
    skipped[rows[(when > earlier + 1) & ~doubtful[who]]] = True
    subject = f'Columns "{spec.patient}", "{spec.step}"'
    faults.rows(
        Kind.DUPLICATE, f"{subject}: the same step of a patient more than once", repeated, "Keep one row a step."
    )
    advice = "Steps of a patient run 0, 1, … without holes."
    faults.rows(Kind.HOLE, f"{subject}: steps skipped just before the one", skipped, advice)
    length = np.zeros(n_patients, np.intp)
    np.maximum.at(length, who, when + 1)
    length[doubtful] = spec.horizon
    return length


def _check_ends(
    end: Texts | None,
    columns: Columns,
    people: _People,
    step: Codes,
    valid: Mask,
    length: Codes,
    spec: TableLayout,
    faults: Faults,
) -> Floats:
    """What the missing steps of each patient are worth together."""
    worth = np.zeros(len(length))
    if people.patient is None or not len(length) or (end is None and length.min() == spec.horizon):
        return worth
    known = valid & (people.patient >= 0)
    left = length[people.patient] - 1 - step
    early = known & (left == 0) & (step < spec.horizon - 1)
    if end is None:
        if not spec.ends:
            fact = f'Column "{spec.step}": trajectories of fewer than {spec.horizon} steps end'
            advice = "Complete them, or say in [ends] of the study what the missing steps are worth."
            faults.rows(Kind.EARLY, fact, early, advice)
        elif early.any() and spec.end not in columns.names:
            advice = "Trajectories end early, so it is needed; [columns] in the study file maps names."
            faults.add(Kind.COLUMN, _absent(spec.end, columns, spec, advice))
        return worth
    subject, names = f'Column "{spec.end}"', ", ".join(f'"{name}"' for name in spec.ends)
    by_label = np.array([*(spec.ends.get(label, np.nan) for label in end.labels.to_pylist()), np.nan])
    value, empty = by_label[end.codes], end.codes < 0
    advice = f"The study knows {names}."
    faults.rows(Kind.END, f"{subject}: empty where a trajectory ends early,", early & empty, advice)
    faults.rows(Kind.END, f"{subject}: an unknown end", early & ~empty & np.isnan(value), advice)
    advice = "An end belongs on a patient's last row."
    faults.rows(Kind.END, f"{subject}: given before the last step", known & ~empty & (left > 0), advice)
    worth[people.patient[early]] = (spec.horizon - 1 - step[early]) * value[early]
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


def _check_action(number: Numbers | None, spec: TableLayout, faults: Faults) -> Codes:
    if number is None:
        return np.zeros(0, np.intp)
    position, other = _positions(number.values, spec.action_levels)
    if other.any():
        listed = ", ".join(f"{level:g}" for level in spec.action_levels)
        fact = f'Column "{spec.action}": not one of the action levels'
        faults.rows(Kind.ACTION, fact, other & np.isfinite(number.values), f"The study has {listed}.")
    return position


def _check_reward(number: Numbers | None, spec: TableLayout, faults: Faults) -> Floats:
    if number is None:
        return np.zeros(0)
    low, high, values = spec.reward_low, spec.reward_high, number.values
    if not number.within(low, high):
        outside = np.isfinite(values) & ((values < low) | (values > high))
        advice = "Correct the table or widen [reward] range in the study."
        faults.rows(Kind.REWARD, f'Column "{spec.reward}": outside {low:g} … {high:g}', outside, advice)
    return (values - low) / (high - low)


def _check_covariate(
    covariate: Covariate, number: Numbers | None, people: _People, step: Codes, valid: Mask, faults: Faults
) -> _Filled:
    none = np.zeros(len(people.sites), np.intp)
    if number is None:
        return _Filled(np.zeros(0), none, none)
    values, clipped, filled = number.values, none, none
    name = covariate.column
    refused = covariate.missing == "refuse"
    advice = 'Complete the table, or set missing = "forward" or "range-middle" for it in the study.'
    _check_finite(name, number, refused, advice, faults)
    if covariate.levels is not None:
        listed = ", ".join(f"{level:g}" for level in covariate.levels)
        _, other = _positions(values, covariate.levels)
        fact = f'Column "{name}": not one of its levels'
        faults.rows(Kind.LEVEL, fact, other & np.isfinite(values), f"The study has {listed}.")
    elif not number.within(covariate.low, covariate.high):
        outside = (values < covariate.low) | (values > covariate.high)
        clipped = _count_by_site(outside, people)
        values = np.clip(values, covariate.low, covariate.high)
    if not refused and np.isnan(number.low):
        gaps = number.gaps
        filled = _count_by_site(gaps, people)
        if covariate.missing == "range-middle":
            values = np.where(gaps, (covariate.low + covariate.high) / 2, values)
        else:
            _check_forward(name, gaps, ~np.isnan(values), people, step, valid, faults)
    if covariate.constant_within_site:
        _check_constant(name, values, people, faults)
    return _Filled(values, clipped, filled)


def _check_cluster(columns: Columns, name: str, people: _People, faults: Faults) -> Any:
    """The label of each patient's cluster, as Arrow text; empty cells and second clusters are faults."""
    import pyarrow as pa

    found = _read_texts(columns, name, faults)
    if found is None:
        return None
    faults.rows(Kind.IDENTITY, f'Column "{name}": empty', found.codes < 0, "Every row needs one.")
    if people.patient is None:
        return None
    given = np.flatnonzero((people.patient >= 0) & (found.codes >= 0))[::-1]
    first = np.zeros(len(people.patient_site), np.intp)
    first[people.patient[given]] = found.codes[given]  # of several assignments the last, so the first row, stays
    varies = np.zeros(len(found.codes), np.bool_)
    varies[given] = found.codes[given] != first[people.patient[given]]
    advice = "A patient has one cluster. Correct them, or drop cluster from [columns] in the study file."
    faults.rows(Kind.CLUSTER, f'Column "{name}": differs from the patient\'s first value', varies, advice)
    return found.labels.take(pa.array(first)) if len(found.labels) else None


def _count_by_site(rows: Mask, people: _People) -> Codes:
    counted = people.site[rows]
    return np.bincount(counted[counted >= 0], minlength=len(people.sites))


def _check_forward(
    name: str, gaps: Mask, given: Mask, people: _People, step: Codes, valid: Mask, faults: Faults
) -> None:
    if people.patient is None:
        return
    known = valid & (people.patient >= 0)
    first = np.full(len(people.patient_site), np.iinfo(np.intp).max)
    np.minimum.at(first, people.patient[known & given], step[known & given])
    unfilled = gaps & known
    unfilled[unfilled] = step[unfilled] < first[people.patient[unfilled]]
    advice = 'Complete the table, or set missing = "range-middle" for it in the study.'
    faults.rows(Kind.MISSING, f'Column "{name}": missing values with no earlier one', unfilled, advice)


def _check_constant(name: str, values: Floats, people: _People, faults: Faults) -> None:
    given = np.flatnonzero((people.site >= 0) & ~np.isnan(values))[::-1]
    first = np.full(len(people.sites), np.nan)
    first[people.site[given]] = values[given]  # of several assignments the last, so the first row, stays
    varies = np.zeros(len(values), np.bool_)
    varies[given] = values[given] != first[people.site[given]]
    advice = 'Correct them, or set level = "patient" in the study.'
    faults.rows(Kind.SITE_LEVEL, f'Column "{name}": differs from the site\'s first value', varies, advice)
