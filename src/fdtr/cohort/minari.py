"""Episodes of Minari datasets as trajectories: one dataset a site, observations as covariates.

The files, HDF5 or Arrow, are read without Minari itself. To learn of spaces that a dataset does not state, Minari would
build an environment, which may be any code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
from numpy.typing import NDArray

from fdtr import container
from fdtr.cohort.data_dictionary import Entry, as_markdown
from fdtr.cohort.extraction_folder import as_csv, as_parquet, write_files
from fdtr.cohort.study_drafts import fill_in
from fdtr.errors import EmptyCohort, InvalidTable, MissingExtra, UnreadableFile
from fdtr.progress import Progress, ignore_progress
from fdtr.study import Study
from fdtr.trajectories.table_sources import round_outward

MOST_BYTES = 2**24
TERMINATED = "terminated"
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Space:
    """Possible observations or actions: `size` numbers between `low` and `high`, or one of `levels`."""

    size: int
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    levels: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class Episode:
    """An episode of T steps: `states` (T, m) without the last observation, `actions` and `rewards` (T,)."""

    states: Floats
    actions: NDArray[np.int64]
    rewards: Floats
    terminated: bool


@dataclass(frozen=True, eq=False, repr=False)
class Episodes:
    """The long `table` of all sites, their common spaces, and the length `horizon` of the longest episode."""

    table: pa.Table
    states: Space
    actions: Space
    horizon: int


def read_episodes(
    sites: Mapping[str, str | Path], steps: int | None = None, progress: Progress = ignore_progress
) -> Episodes:
    """The Minari datasets in the folders `sites`, by site name, as one table; episodes are cut after `steps`.

    An episode that was truncated before the last step is refused: what it would have been worth is not known.
    """
    datasets = {site: _Dataset.open(Path(path)) for site, path in sites.items()}
    first = next(iter(datasets.values()), None)
    if first is None:
        raise EmptyCohort("No dataset was named. Give at least one as SITE=FOLDER.")
    for site, dataset in datasets.items():
        if (dataset.states, dataset.actions) != (first.states, first.actions):
            raise InvalidTable(
                f"The dataset of site {site!r} has other observations or actions than the first one. All sites of a "
                "study have the same columns; make two studies."
            )
    total, done = sum(dataset.total for dataset in datasets.values()), 0
    episodes: list[tuple[str, int, Episode]] = []
    for site, dataset in datasets.items():
        for number, episode in enumerate(dataset.episodes()):
            episodes.append((site, number, _cut(episode, steps)))
            done += 1
        progress(f"episodes of {site}", done, total)
    return _join(episodes, first.states, first.actions)


def _cut(episode: Episode, steps: int | None) -> Episode:
    if steps is None or len(episode.rewards) <= steps:
        return episode
    return Episode(episode.states[:steps], episode.actions[:steps], episode.rewards[:steps], False)


def _join(episodes: list[tuple[str, int, Episode]], states: Space, actions: Space) -> Episodes:
    lengths = np.array([len(episode.rewards) for _, _, episode in episodes], np.int64)
    if not lengths.sum():
        raise EmptyCohort("The datasets hold no step. Nothing was written.")
    horizon = int(lengths.max())
    censored = sum(n < horizon and not episode.terminated for n, (_, _, episode) in zip(lengths, episodes, strict=True))
    if censored:
        raise InvalidTable(
            f"{censored} episodes were cut off before step {horizon} without having ended, and what they would have "
            "been worth is not known. Give --steps with a length that all of them reach or end before."
        )
    last = np.zeros(lengths.sum(), bool)
    last[lengths.cumsum()[lengths > 0] - 1] = True
    short = np.repeat(lengths < horizon, lengths)
    values = np.concatenate([episode.states for _, _, episode in episodes])
    columns: dict[str, Any] = {
        "site": np.repeat([site for site, _, _ in episodes], lengths),
        "patient": np.repeat([f"{number}" for _, number, _ in episodes], lengths),
        "step": np.concatenate([np.arange(n) for n in lengths]),
        **{name: values[:, i] for i, name in enumerate(state_columns(states))},
        "action": np.concatenate([episode.actions for _, _, episode in episodes]),
        "reward": np.concatenate([episode.rewards for _, _, episode in episodes]),
        "end": pa.array(np.where(last & short, TERMINATED, ""), mask=~(last & short)),
    }
    return Episodes(pa.table(columns), states, actions, horizon)


def state_columns(states: Space) -> list[str]:
    """Names of the columns of the state."""
    return ["state"] if states.levels else [f"x{i}" for i in range(states.size)]


@dataclass(frozen=True)
class _Dataset:
    """One dataset's folder."""

    folder: Path
    kind: str
    total: int
    states: Space
    actions: Space

    @classmethod
    def open(cls, folder: Path) -> _Dataset:
        """The dataset in `folder`, or in its subfolder `data`, where Minari keeps it."""
        place = folder / "data" if (folder / "data").is_dir() else folder
        try:
            content = container.read_bounded(place / "metadata.json", MOST_BYTES, "a dataset's metadata")
        except UnreadableFile as error:
            raise type(error)(f"{folder} is no Minari dataset: {error}") from None
        try:
            metadata = json.loads(content)
            total, kind = int(metadata["total_episodes"]), str(metadata["data_format"])
            spaces = [json.loads(metadata[name]) for name in ("observation_space", "action_space")]
        except (ValueError, KeyError, TypeError):
            raise UnreadableFile(
                f"{place}/metadata.json states no number of episodes, format or spaces. Write the dataset again with "
                "a newer Minari, which states them."
            ) from None
        if kind not in ("hdf5", "arrow", "parquet"):
            raise UnreadableFile(f"{folder} holds episodes as {kind!r}; hdf5, arrow and parquet can be read.")
        return cls(place, kind, total, _observation_space(spaces[0]), _action_space(spaces[1]))

    def episodes(self) -> Iterator[Episode]:
        """All episodes, in order, checked against the metadata."""
        parts = self._from_hdf5() if self.kind == "hdf5" else self._from_arrow()
        for number, (observations, actions, rewards, terminations) in enumerate(parts):
            n = len(rewards)
            states = np.asarray(observations, np.float64).reshape(len(observations), -1)
            if len(states) not in (n, n + 1) or len(actions) != n or len(terminations) != n:
                raise UnreadableFile(
                    f"Episode {number} of {self.folder} has not one observation, action and reward a step. It is "
                    "damaged, or was written by a version that is not known here."
                )
            if not (np.isfinite(states[:n]).all() and np.isfinite(np.asarray(rewards, np.float64)).all()):
                raise InvalidTable(
                    f"Episode {number} of {self.folder} has observations or rewards that are no finite numbers (NaN or "
                    "infinite). Nothing was written. Replace or remove such episodes in the dataset."
                )
            if not np.isin(np.asarray(actions), self.actions.levels).all():
                raise InvalidTable(
                    f"Episode {number} of {self.folder} has actions that its action space does not hold. Nothing was "
                    "written. Write the dataset again with the space that its actions are from."
                )
            codes = np.asarray(actions, np.int64).reshape(n)
            yield Episode(states[:n], codes, np.asarray(rewards, np.float64), n > 0 and bool(terminations[-1]))

    def _from_hdf5(self) -> Iterator[tuple[Any, ...]]:
        try:
            import h5py
        except ImportError:
            raise MissingExtra(
                "Minari datasets in HDF5 are read with h5py, which is not installed: pip install 'fdtr[minari]'"
            ) from None
        try:
            with h5py.File(self.folder / "main_data.hdf5", "r") as file:
                for number in range(self.total):
                    group = file[f"episode_{number}"]
                    yield tuple(group[name][()] for name in _PARTS)
        except (OSError, KeyError, TypeError):
            raise UnreadableFile(
                f"{self.folder}/main_data.hdf5 lacks episodes that its metadata counts, or is damaged. Copy it again."
            ) from None

    def _from_arrow(self) -> Iterator[tuple[Any, ...]]:
        for number in range(self.total):
            try:
                source = pyarrow.dataset.dataset(
                    str(self.folder / str(number)), format=self.kind, ignore_prefixes=["_", ".", "metadata.json"]
                )
                table = source.to_table(columns=list(_PARTS))
            except (OSError, pa.ArrowException):
                raise UnreadableFile(f"Episode {number} of {self.folder} could not be read. Copy it again.") from None
            observations, *rest = (table[name].combine_chunks() for name in _PARTS)
            if pa.types.is_fixed_size_list(observations.type):
                observations = observations.flatten().to_numpy(zero_copy_only=False).reshape(table.num_rows, -1)
            # The last row holds the last observation only.
            yield (np.asarray(observations), *(np.asarray(column)[:-1] for column in rest))


_PARTS = ("observations", "actions", "rewards", "terminations")


def _observation_space(space: Any) -> Space:
    kind = space.get("type")
    if kind == "Discrete":
        return Space(1, levels=_levels(space))
    if kind == "Box" and len(space["shape"]) == 1:
        low, high = (tuple(float(x) for x in space[end]) for end in ("low", "high"))
        return Space(int(space["shape"][0]), low, high)
    raise InvalidTable(
        f"Observations of kind {kind!r} cannot be covariates: vectors (Box of one dimension) and Discrete can. Flatten "
        "them first."
    )


def _action_space(space: Any) -> Space:
    if space.get("type") != "Discrete":
        raise InvalidTable(
            f"Actions of kind {space.get('type')!r} are no levels; a study needs Discrete ones. Cut doses into levels "
            "first."
        )
    return Space(1, levels=_levels(space))


def _levels(space: Any) -> tuple[int, ...]:
    start = int(space.get("start", 0))
    return tuple(range(start, start + int(space["n"])))


def write_episodes(episodes: Episodes, name: str, folder: str | Path, *, teaching: bool = False) -> None:
    """Write the table, a draft of the study `name` and a dictionary into the new `folder`.

    `teaching`: the episodes are public already, and the disclosure rules are relaxed.
    """
    study = draft_episode_study(episodes, name, teaching=teaching)
    Study.parse(study.encode(), "study.toml")
    entries = _dictionary(episodes)
    write_files(
        folder,
        {
            "table.parquet": as_parquet(episodes.table),
            "study.toml": study.encode(),
            "dictionary.csv": as_csv(map(asdict, entries)),
            "dictionary.md": as_markdown(entries, f"{name}: columns").encode(),
        },
    )


def draft_episode_study(episodes: Episodes, name: str, *, teaching: bool = False) -> str:
    """The text of a study file. Ranges are those of the spaces; an unbounded space has the range of the data."""
    columns = enumerate(state_columns(episodes.states))
    ended_early = episodes.table["end"].null_count < episodes.table.num_rows
    low, high = _extremes(episodes.table["reward"], *((0.0,) if ended_early else ()))
    return fill_in(
        "episodes.toml.j2",
        name=name,
        episodes=episodes,
        covariates={column: _range_or_levels(episodes, number, column) for number, column in columns},
        reward=f"[{low:.10g}, {high:.10g}]",
        # A reward of 0. `low` is 0 or below: the worth is never -0.
        ends={TERMINATED: f"{abs(low) / (high - low):.10g}"} if ended_early else {},
        teaching=teaching,
    )


def _range_or_levels(episodes: Episodes, number: int, column: str) -> str:
    space = episodes.states
    if space.levels:
        return f'basis = {{ kind = "categorical", levels = {list(space.levels)} }}'
    low, high = space.low[number], space.high[number]
    # Unbounded spaces often state the largest number of their type.
    if isfinite(low) and isfinite(high) and abs(low) < 1e30 and abs(high) < 1e30:
        return f"range = [{low:.10g}, {high:.10g}]"
    low, high = _extremes(episodes.table[column])
    return f"range = [{low:.10g}, {high:.10g}]  # of this data"


def _extremes(column: pa.ChunkedArray, *others: float) -> tuple[float, float]:
    extremes = pc.min_max(column).as_py()
    low, high = min([extremes["min"], *others]), max([extremes["max"], *others])
    return round_outward(low, high) if low < high else (low, low + 1.0)


def _dictionary(episodes: Episodes) -> tuple[Entry, ...]:
    return (
        Entry("site", "the dataset", source="given"),
        Entry("patient", "the episode's number"),
        Entry("step", "number of the step, from 0"),
        *(
            Entry(name, "observation before the action", source="observations")
            for name in state_columns(episodes.states)
        ),
        Entry("action", "code of the action", source="actions"),
        Entry("reward", "reward of the step", source="rewards"),
        Entry("end", "how an episode ended that has fewer steps than the longest", source="terminations"),
    )
