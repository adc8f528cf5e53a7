"""The study that goes with episodes, and the folder for both."""

import json
from math import isfinite
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from fdtr.cohort.dictionary import Entry, as_markdown
from fdtr.cohort.drafting import RELAXED
from fdtr.cohort.minari import TERMINATED, Episodes, names
from fdtr.cohort.writing import as_csv, as_parquet, write_files
from fdtr.study import Study
from fdtr.trajectories.ranges import round_outward

EFFECT = 'effect = "shared"  # the same at every site; or "specific": a site\'s own'


def write_episodes(episodes: Episodes, name: str, folder: Path, *, teaching: bool = False) -> None:
    """Write table, draft of the study and dictionary into the new `folder`."""
    study = draft_study(episodes, name, teaching=teaching)
    Study.parse(study.encode(), "study.toml")
    entries = _dictionary(episodes)
    write_files(
        folder,
        {
            "table.parquet": as_parquet(episodes.table),
            "study.toml": study.encode(),
            "dictionary.csv": as_csv([entry.as_row() for entry in entries]),
            "dictionary.md": as_markdown(entries, f"{name}: columns").encode(),
        },
    )


def draft_study(episodes: Episodes, name: str, *, teaching: bool = False) -> str:
    """The text of a study file. Ranges are those of the spaces, or, where a space has no end, of the data.

    `teaching`: the episodes are public already, and the disclosure rules are relaxed.
    """
    actions = list(episodes.actions.levels)
    low, high = _reward_range(episodes)
    lines = [
        "# Drafted by `fdtr extract minari`. Decide with all sites which effects are shared. Ranges that are",
        "# marked are this data's own extremes, rounded: replace them by bounds known beforehand.",
        "format = 1",
        f"name = {json.dumps(name, ensure_ascii=False)}",
        f"horizon = {episodes.horizon}",
        "",
        "[actions]",
        f"levels = {actions}",
        'basis = "categorical"  # codes of a space have no order',
    ]
    for number, column in enumerate(names(episodes.states)):
        lines += ["", "[[covariates]]", f"name = {json.dumps(column)}", EFFECT, *_covariate(episodes, number, column)]
    lines += ["", "[reward]", f"range = [{low:.10g}, {high:.10g}]  # of this data"]
    if _ended_early(episodes):
        lines += ["", "[ends]  # what each missing step is worth on [0, 1]: a reward of 0"]
        lines.append(f"{TERMINATED} = {abs(low) / (high - low):.10g}")  # low is 0 or below: never -0
    lines += ["", "[disclosure]", *RELAXED] if teaching else []
    return "\n".join(lines) + "\n"


def _covariate(episodes: Episodes, number: int, column: str) -> list[str]:
    space = episodes.states
    if space.levels:
        return [f'basis = {{ kind = "categorical", levels = {list(space.levels)} }}']
    low, high = space.low[number], space.high[number]
    # Spaces of floats often end where the type does.
    if isfinite(low) and isfinite(high) and abs(low) < 1e30 and abs(high) < 1e30:
        return [f"range = [{low:.10g}, {high:.10g}]"]
    low, high = _extremes(episodes.table[column])
    return [f"range = [{low:.10g}, {high:.10g}]  # of this data"]


def _extremes(column: pa.ChunkedArray, *also: float) -> tuple[float, float]:
    found = pc.min_max(column).as_py()
    low, high = min([found["min"], *also]), max([found["max"], *also])
    return round_outward(low, high) if low < high else (low, low + 1.0)


def _reward_range(episodes: Episodes) -> tuple[float, float]:
    return _extremes(episodes.table["reward"], *((0.0,) if _ended_early(episodes) else ()))


def _ended_early(episodes: Episodes) -> bool:
    return bool(episodes.table["end"].null_count < episodes.table.num_rows)


def _dictionary(episodes: Episodes) -> tuple[Entry, ...]:
    return (
        Entry("site", "the dataset", source="given"),
        Entry("patient", "the episode's number"),
        Entry("step", "number of the step, from 0"),
        *(Entry(name, "observation before the action", source="observations") for name in names(episodes.states)),
        Entry("action", "code of the action", source="actions"),
        Entry("reward", "reward of the step", source="rewards"),
        Entry("end", "how an episode ended that has fewer steps than the longest", source="terminations"),
    )
