"""Minari datasets, HDF5 and Arrow, with a planted truth; laid out as Minari 0.5.4 writes them."""

import json

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from fdtr.cohort.minari import draft_episode_study, read_episodes, write_episodes
from fdtr.errors import EmptyCohort, InvalidTable, MissingExtra, MissingFile, UnreadableFile
from fdtr.site.rows import read_trajectories
from fdtr.study import Study

pytestmark = pytest.mark.quick
BOX = {"type": "Box", "dtype": "float32", "shape": [2], "low": [-1.0, -np.inf], "high": [1.0, np.inf]}
THREE = {"type": "Discrete", "dtype": "int64", "start": 0, "n": 3}


def episodes(lengths, seed=0, *, terminated=True, states=2):
    """Observations (T + 1, m), actions, rewards and terminations, drawn in float32."""
    rng = np.random.default_rng(seed)
    for n in lengths:
        ends = np.zeros(n, bool)
        ends[-1:] = terminated
        yield rng.random((n + 1, states), np.float32), rng.integers(0, 3, n), rng.random(n, np.float32), ends


def write(folder, made, kind="hdf5", observed=BOX, acted=THREE, **metadata):
    place = folder / "data"
    place.mkdir(parents=True)
    made = list(made)
    told = {"total_episodes": len(made), "total_steps": sum(len(r) for _, _, r, _ in made), "data_format": kind}
    told |= {"observation_space": json.dumps(observed), "action_space": json.dumps(acted)}
    (place / "metadata.json").write_text(json.dumps(told | metadata))
    (_hdf5 if kind == "hdf5" else _arrow)(place, made, kind)
    return folder


def _hdf5(place, made, _kind):
    with h5py.File(place / "main_data.hdf5", "w") as file:
        for number, parts in enumerate(made):
            group = file.create_group(f"episode_{number}")
            for name, values in zip(("observations", "actions", "rewards", "terminations"), parts, strict=True):
                group[name] = values
            group["truncations"] = np.zeros(len(parts[2]), bool)


def _arrow(place, made, kind):
    for number, (observations, actions, rewards, ends) in enumerate(made):
        flat = pa.array(observations.reshape(-1))
        columns = {
            "episode_id": np.full(len(observations), number, np.int32),
            "observations": pa.FixedSizeListArray.from_arrays(flat, observations.shape[1]),
            "actions": np.pad(actions, (0, 1)), "rewards": np.pad(rewards, (0, 1)),
            "terminations": np.pad(ends, (0, 1)), "truncations": np.zeros(len(observations), bool),
        }  # fmt: skip
        options = {"partitioning": ["episode_id"], "existing_data_behavior": "overwrite_or_ignore"}
        ds.write_dataset(pa.table(columns), place, format=kind, **options)
        (place / str(number) / "metadata.json").write_text("{}")


@pytest.mark.parametrize("kind", ["hdf5", "arrow", "parquet"])
def test_a_planted_truth_comes_back(tmp_path, kind):
    made = {site: list(episodes([4, 2, 4], seed)) for seed, site in enumerate(("north", "south"))}
    folders = {site: write(tmp_path / site, parts, kind) for site, parts in made.items()}
    found = read_episodes(folders)
    rows = iter(found.table.to_pylist())
    for site, parts in made.items():
        for number, (observations, actions, rewards, _) in enumerate(parts):
            for step in range(len(rewards)):
                row = next(rows)
                assert (row["site"], row["patient"], row["step"]) == (site, str(number), step)
                assert (row["x0"], row["x1"]) == tuple(observations[step].tolist())
                assert (row["action"], row["reward"]) == (actions[step], rewards[step])
                assert row["end"] == ("terminated" if number == 1 and step == 1 else None)
    assert next(rows, None) is None
    assert found.horizon == 4


def test_table_and_study_go_together(tmp_path):
    folders = {s: write(tmp_path / s, episodes([5, 3, 5, 4] * 5, n)) for n, s in enumerate("abc")}
    write_episodes(read_episodes(folders), "toy", tmp_path / "out")
    study = Study.load(tmp_path / "out" / "study.toml")
    assert study.covariates[0].range == (-1.0, 1.0)
    assert study.covariates[1].range == (0.0, 1.0)  # of the data, rounded: the space has no end
    assert study.ends == {"terminated": 0.0}
    assert read_trajectories(tmp_path / "out" / "table.parquet", study).n_patients == 60
    assert "[ends]" in (tmp_path / "out" / "study.toml").read_text()
    assert pq.read_table(tmp_path / "out" / "table.parquet").num_rows == 255


def test_an_end_is_worth_a_reward_of_nothing(tmp_path):
    made = [(o, a, -np.abs(r) - 1, e) for o, a, r, e in episodes([3, 2])]
    study = Study.parse(draft_episode_study(read_episodes({"a": write(tmp_path / "a", made)}), "x").encode(), "x")
    low, high = study.reward.range
    assert low + study.ends["terminated"] * (high - low) == pytest.approx(0.0)


def test_episodes_may_be_cut(tmp_path):
    found = read_episodes({"a": write(tmp_path / "a", episodes([6, 4], terminated=False))}, steps=4)
    assert (found.horizon, found.table.num_rows, found.table["end"].null_count) == (4, 8, 8)


def test_episodes_that_were_cut_off_are_refused(tmp_path):
    folder = write(tmp_path / "a", episodes([6, 4], terminated=False))
    with pytest.raises(InvalidTable, match=r"1 episodes were cut off before step 6.*--steps"):
        read_episodes({"a": folder})


def test_discrete_observations_become_levels(tmp_path):
    made = [(np.array([0, 2, 1]), a, r, e) for _, a, r, e in episodes([2])]
    found = read_episodes({"a": write(tmp_path / "a", made, observed=THREE)})
    assert found.table["state"].to_pylist() == [0, 2]
    study = Study.parse(draft_episode_study(found, "x").encode(), "x")
    assert study.covariates[0].basis.levels == (0, 1, 2)


def test_refusals_say_what_to_do(tmp_path, monkeypatch):
    box = {"type": "Box", "dtype": "float32", "shape": [1], "low": [0.0], "high": [1.0]}
    cases = [
        (write(tmp_path / "b", episodes([2]), acted=box), InvalidTable, "Cut doses into levels"),
        (write(tmp_path / "c", episodes([2]), observed={"type": "Dict"}), InvalidTable, "Flatten"),
        (write(tmp_path / "d", episodes([2]), total_episodes=3), UnreadableFile, "lacks episodes"),
        (write(tmp_path / "e", episodes([2]), data_format="zarr"), UnreadableFile, "can be read"),
        (write(tmp_path / "f", episodes([2]), observation_space=None), UnreadableFile, "newer Minari"),
        (write(tmp_path / "g", []), EmptyCohort, "no step"),
        (tmp_path / "nowhere", MissingFile, "no Minari dataset"),
    ]
    for folder, error, words in cases:
        with pytest.raises(error, match=words):
            read_episodes({"a": folder})
    first = write(tmp_path / "h", episodes([2]))
    other = write(tmp_path / "i", episodes([2], states=1), observed=box)
    with pytest.raises(InvalidTable, match="'two' has other observations"):
        read_episodes({"one": first, "two": other})
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(MissingExtra, match=r"fdtr\[minari\]"):
        read_episodes({"a": first})


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_none_are_refused(tmp_path, value):
    observations, actions, rewards, ends = next(episodes([3]))
    worse, odd = observations.copy(), rewards.copy()
    worse[1, 0], odd[0] = value, value
    for name, made in (("o", (worse, actions, rewards, ends)), ("r", (observations, actions, odd, ends))):
        with pytest.raises(InvalidTable, match=r"Episode 0 of .* no finite numbers"):
            read_episodes({"a": write(tmp_path / name, [made])})
    with pytest.raises(InvalidTable, match="its action space does not hold"):
        read_episodes({"a": write(tmp_path / "a", [(observations, actions + 7, rewards, ends)])})


def test_a_draft_shares_what_observations_do_and_has_no_negative_zero(tmp_path):
    text = draft_episode_study(read_episodes({"a": write(tmp_path / "a", episodes([3, 2]))}), "x", teaching=True)
    assert "terminated = 0\n" in text
    study = Study.parse(text.encode(), "x")
    assert {covariate.effect for covariate in study.covariates} == {"shared"}
    assert study.disclosure.min_patients == 2
