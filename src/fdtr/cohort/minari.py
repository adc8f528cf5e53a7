"""Episodes of Minari datasets as trajectories: one dataset a site, observations as covariates.

The files are read as they lie, HDF5 or Arrow, without Minari itself: it would build an environment, which may be any
code, to learn of spaces that a dataset does not state.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
from numpy.typing import NDArray

from fdtr import container
from fdtr.errors import EmptyCohort, InvalidTable, MissingExtra, UnreadableFile
from fdtr.progress import Progress, ignore_progress

MOST_BYTES = 2**24
TERMINATED = "terminated"
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Space:
    """What observations or actions may be: `size` numbers between `low` and `high`, or one of some `levels`."""

    size: int
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    levels: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class Episode:
    """T steps: `states` (T, m), the last observation left out; `actions` and `rewards` (T,); how it ended."""

    states: Floats
    actions: NDArray[np.int64]
    rewards: Floats
    terminated: bool


@dataclass(frozen=True, eq=False, repr=False)
class Episodes:
    """The long `table` of all sites, with the spaces that they share and the longest episode."""

    table: pa.Table
    states: Space
    actions: Space
    horizon: int


def read_episodes(
    sites: Mapping[str, Path], steps: int | None = None, progress: Progress = ignore_progress
) -> Episodes:
    """The datasets of `sites` as one table, episodes cut after `steps`.

    An episode that was cut short before the last step, neither ended nor complete, is refused: what it was worth
    afterwards is not known.
    """
    opened = {site: _Dataset.open(path) for site, path in sites.items()}
    first = next(iter(opened.values()), None)
    if first is None:
        raise EmptyCohort("No dataset was named. Give at least one as SITE=FOLDER.")
    for site, dataset in opened.items():
        if (dataset.states, dataset.actions) != (first.states, first.actions):
            raise InvalidTable(
                f"The dataset of site {site!r} has other observations or actions than the first one. All sites of a "
                "study have the same columns; make two studies."
            )
    total, done = sum(dataset.total for dataset in opened.values()), 0
    found: list[tuple[str, int, Episode]] = []
    for site, dataset in opened.items():
        for number, episode in enumerate(dataset.episodes()):
            found.append((site, number, _cut(episode, steps)))
            done += 1
        progress(f"episodes of {site}", done, total)
    return _joined(found, first.states, first.actions)


def _cut(episode: Episode, steps: int | None) -> Episode:
    if steps is None or len(episode.rewards) <= steps:
        return episode
    return Episode(episode.states[:steps], episode.actions[:steps], episode.rewards[:steps], False)


def _joined(found: list[tuple[str, int, Episode]], states: Space, actions: Space) -> Episodes:
    lengths = np.array([len(episode.rewards) for _, _, episode in found], np.int64)
    if not lengths.sum():
        raise EmptyCohort("The datasets hold no step. Nothing was written.")
    horizon = int(lengths.max())
    censored = sum(n < horizon and not episode.terminated for n, (_, _, episode) in zip(lengths, found, strict=True))
    if censored:
        raise InvalidTable(
            f"{censored} episodes were cut off before step {horizon} without having ended, and what they would have "
            "been worth is not known. Give --steps with a length that all of them reach or end before."
        )
    last = np.zeros(lengths.sum(), bool)
    last[lengths.cumsum()[lengths > 0] - 1] = True
    short = np.repeat(lengths < horizon, lengths)
    values = np.concatenate([episode.states for _, _, episode in found])
    columns: dict[str, Any] = {
        "site": np.repeat([site for site, _, _ in found], lengths),
        "patient": np.repeat([f"{number}" for _, number, _ in found], lengths),
        "step": np.concatenate([np.arange(n) for n in lengths]),
        **{name: values[:, i] for i, name in enumerate(names(states))},
        "action": np.concatenate([episode.actions for _, _, episode in found]),
        "reward": np.concatenate([episode.rewards for _, _, episode in found]),
        "end": pa.array(np.where(last & short, TERMINATED, ""), mask=~(last & short)),
    }
    return Episodes(pa.table(columns), states, actions, horizon)


def names(states: Space) -> list[str]:
    """What the columns of the state are called."""
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
            told = json.loads(content)
            total, kind = int(told["total_episodes"]), str(told["data_format"])
            spaces = [json.loads(told[name]) for name in ("observation_space", "action_space")]
        except (ValueError, KeyError, TypeError):
            raise UnreadableFile(
                f"{place}/metadata.json states no number of episodes, format or spaces. Write the dataset again with "
                "a newer Minari, which states them."
            ) from None
        if kind not in ("hdf5", "arrow", "parquet"):
            raise UnreadableFile(f"{folder} holds episodes as {kind!r}; hdf5, arrow and parquet can be read.")
        return cls(place, kind, total, _observed(spaces[0]), _acted(spaces[1]))

    def episodes(self) -> Iterator[Episode]:
        """Every episode, in order."""
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
            # The last row has the last observation, and nothing beside it.
            yield (np.asarray(observations), *(np.asarray(column)[:-1] for column in rest))


_PARTS = ("observations", "actions", "rewards", "terminations")


def _observed(space: Any) -> Space:
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


def _acted(space: Any) -> Space:
    if space.get("type") != "Discrete":
        raise InvalidTable(
            f"Actions of kind {space.get('type')!r} are no levels; a study needs Discrete ones. Cut doses into levels "
            "first."
        )
    return Space(1, levels=_levels(space))


def _levels(space: Any) -> tuple[int, ...]:
    start = int(space.get("start", 0))
    return tuple(range(start, start + int(space["n"])))
