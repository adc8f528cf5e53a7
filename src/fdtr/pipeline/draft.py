"""Draft a study file from a table: a start to edit, with what has to be decided written beside it."""

import json
import tomllib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr.errors import InvalidTable
from fdtr.study import Study
from fdtr.trajectories.table_columns import Numbers, numbers, texts
from fdtr.trajectories.table_sources import Columns, Covariate, TableLayout, load, round_outward

ROLES: dict[str, tuple[str, ...]] = {
    "site": ("site", "hospital", "center", "centre", "unit", "careunit", "site_id", "hospital_id"),
    "patient": ("patient", "patient_id", "subject", "subject_id", "stay_id", "id", "person_id", "hospitalization_id"),
    "step": ("step", "stage", "time", "t", "visit", "h", "period"),
    "action": ("action", "treatment", "dose", "a", "arm"),
    "reward": ("reward", "outcome", "r", "y", "response"),
    "end": ("end", "outcome_type", "disposition", "ended"),
}
"""Names that a column of each role commonly has."""

MOST_LEVELS = 20
MOST_ENDS = 10


@dataclass(frozen=True)
class _Covariate:
    name: str
    low: float
    high: float
    site_level: bool
    gaps: int


@dataclass(frozen=True)
class Draft:
    """The `text` of a study file; `has_site` says whether the table has a column of sites."""

    text: str
    has_site: bool


def draft_study(source: Any, name: str) -> Draft:
    """A study file for the table `source`, with comments on what to decide.

    Columns are recognised by common names such as site, patient, step, action and reward; the others become covariates.

    >>> import fdtr, numpy as np, pyarrow as pa
    >>> from fdtr.simulation import WorldSpec, make_world
    >>> world = make_world(WorldSpec(n_sites=2, horizon=2, n_actions=2), np.random.default_rng(1))
    >>> table = pa.table(world.table(60, np.random.default_rng(2)))
    >>> draft = fdtr.draft_study(table, name="fluids")
    >>> print(draft.text)
    # A draft made from a table. Decide, together with all sites:
    ...
    name = "fluids"
    horizon = 2  # steps of a full trajectory
    ...
    [[covariates]]
    name = "shared_1"
    effect = "specific"
    range = [0, 1]
    ...
    """
    table = _load_everything(source)
    roles = _find_roles(table)
    steps, actions, rewards = (_required(table, roles, role) for role in ("step", "action", "reward"))
    if "patient" not in roles:
        raise InvalidTable(_missing("patient", table))
    levels = np.unique(actions.values[np.isfinite(actions.values)])
    if not 2 <= len(levels) <= MOST_LEVELS:
        raise InvalidTable(
            f'The action column "{roles["action"]}" has {len(levels)} different values; a study needs 2 to '
            f"{MOST_LEVELS} action levels. Group doses into levels first."
        )
    sites = texts(table.arrow[roles["site"]]) if "site" in roles else None
    covariates, left_out = _find_covariates(table, set(roles.values()), None if sites is None else sites.codes)
    ends = _end_names(table, roles)
    first, last = int(np.nanmin(steps.values)), int(np.nanmax(steps.values))
    if first != 0:
        raise InvalidTable(
            f'Steps in column "{roles["step"]}" start at {first}; they must count from 0. Subtract {first} first.'
        )
    text = _render(name, last + 1, roles, levels, rewards, covariates, left_out, ends)
    Study.model_validate(tomllib.loads(text))  # a draft that is no study would be a fault here
    return Draft(text, "site" in roles)


def _load_everything(source: Any) -> Columns:
    """All columns of a table that no study describes yet."""
    nothing = TableLayout(horizon=1, covariates=(), action_levels=(), reward_low=0.0, reward_high=1.0)
    every = tuple(Covariate(name, name, 0.0, 1.0) for name in load(source, nothing).names)
    return load(source, replace(nothing, covariates=every))


def _find_roles(table: Columns) -> dict[str, str]:
    by_lower = {name.lower(): name for name in reversed(table.names)}
    columns = {role: [by_lower[n] for n in names if n in by_lower] for role, names in ROLES.items()}
    return {role: names[0] for role, names in columns.items() if names}


def _missing(role: str, table: Columns) -> str:
    # A table without a header shows a patient's cells as column names, so names are quoted only beside known ones.
    known = len(_find_roles(table)) >= 2
    seen = f"The table has {', '.join(table.names)}." if known else "Does the first line hold column names?"
    return (
        f"No column looks like the {role} (looked for {', '.join(ROLES[role])}). {seen} Rename one, or write the study "
        f"file by hand with [columns] {role} = …."
    )


def _required(table: Columns, roles: dict[str, str], role: str) -> Numbers:
    if role not in roles or roles[role] not in table.arrow:
        raise InvalidTable(_missing(role, table))
    column = numbers(table.arrow[roles[role]])
    if column is None or column.text is not None or not np.isfinite(column.values).all():
        raise InvalidTable(f'The {role} column "{roles[role]}" must hold a number in every row. Recode it first.')
    return column


def _find_covariates(
    table: Columns, used: set[str], sites: NDArray[np.intp] | None
) -> tuple[list[_Covariate], list[str]]:
    covariates, left_out = [], []
    for name, column in table.arrow.items():
        if name in used:
            continue
        column_numbers = numbers(column)
        values = np.array([]) if column_numbers is None else column_numbers.values
        finite = values[np.isfinite(values)]
        if column_numbers is None or column_numbers.text is not None or len(finite) == 0 or np.ptp(finite) == 0:
            left_out.append(name)
            continue
        low, high = round_outward(float(finite.min()), float(finite.max()))
        gaps = len(values) - len(finite)
        site_level = sites is not None and _constant_within(values, sites)
        covariates.append(_Covariate(name, low, high, site_level, gaps))
    return covariates, left_out


def _constant_within(values: NDArray[np.float64], sites: NDArray[np.intp]) -> bool:
    groups = [values[sites == code] for code in np.unique(sites)]
    return len(groups) > 1 and all(np.nanmin(group) == np.nanmax(group) for group in groups if np.isfinite(group).any())


def _end_names(table: Columns, roles: dict[str, str]) -> list[str]:
    ends = texts(table.arrow[roles["end"]]) if "end" in roles and roles["end"] in table.arrow else None
    labels = sorted(str(label) for label in ends.labels.to_pylist() if label) if ends is not None else []
    # Names of ends are words, and few: anything else in that column is about patients, and the study is public.
    words = len(labels) <= MOST_ENDS and not any(character.isdigit() for label in labels for character in label)
    return labels if words else []


def _render(
    name: str,
    horizon: int,
    roles: dict[str, str],
    levels: NDArray[np.float64],
    rewards: Numbers,
    covariates: list[_Covariate],
    left_out: list[str],
    ends: list[str],
) -> str:
    low, high = float(np.nanmin(rewards.values)), float(np.nanmax(rewards.values))
    low, high = round_outward(low, high) if low < high else (low, low + 1)
    lines = [
        "# A draft made from a table. Decide, together with all sites:",
        '#  1. which effects are the same everywhere: effect = "shared" instead of "specific";',
        "#  2. ranges: those below are this table's own extremes, rounded. Replace them by bounds known beforehand,",
        "#     because the study file is public and must hold at every site.",
        "format = 1",
        f"name = {_quoted(name)}",
        f"horizon = {horizon}  # steps of a full trajectory",
        "",
        "[columns]  # how this table calls them; each site may have its own",
        *(f"{role} = {_quoted(column)}" for role, column in roles.items() if role != "end" or ends),
        "",
        "[actions]",
        f"levels = [{', '.join(_plain(level) for level in levels)}]",
        f"labels = [{', '.join(_quoted(_plain(level)) for level in levels)}]  # names for people",
        'basis = "polynomial"',
        f"degree = {min(2, len(levels) - 1)}",
    ]
    for covariate in covariates:
        lines += ["", "[[covariates]]", f"name = {_quoted(covariate.name)}", 'effect = "specific"']
        lines.append(f"range = [{_plain(covariate.low)}, {_plain(covariate.high)}]")
        if covariate.site_level:
            lines.append('level = "site"  # constant within each site')
        if covariate.gaps:
            lines.append(f'# missing = "forward"  # or "range-middle": {covariate.gaps} values are missing')
    lines += ["", "[reward]", f"range = [{_plain(low)}, {_plain(high)}]  # mapped onto [0, 1]"]
    if ends:
        lines += ["", "[ends]  # what each missing step is worth on [0, 1], by how a trajectory ended: decide"]
        lines += [f"{_quoted(end)} = 0.0" for end in ends]
    lines += [
        "",
        "[learning]  # auto: each site's own held-out patients choose",
        'pessimism = "auto"  # or { noise = 0.03 }, units of the outcome\'s noise; larger stays closer to usual care',
        'ridge = "auto"  # λ; larger is steadier and more biased',
        'sharing = "auto"  # w on the other sites\' sums: 1 is the paper, 0 is alone',
        'share = "auto"  # "value" is the paper, "reward" where a shared covariate predicts the next state',
    ]
    if left_out:
        lines += ["", f"# Left out, because they hold text or do not vary: {', '.join(map(_quoted, left_out))}"]
    return "\n".join(lines) + "\n"


def _plain(number: float) -> str:
    return f"{number:.10g}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a TOML basic string
