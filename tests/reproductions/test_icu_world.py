"""ICU-Sepsis: its published values, hospitals cut from it whose values are exact, and what a download may get wrong."""

import itertools
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import fdtr
from command_line import fdtr as run_fdtr
from command_line import refused, reproduce
from experiments import icu_wheel
from experiments.icu_wheel import IcuArrays, Unfetchable, fetch_icu_sepsis, load_icu_sepsis
from experiments.icu_world import DOSES, MEASURES, IcuSpec, IcuWorld, make_icu_world
from fdtr.errors import ForeignFile, UnreadableFile, UnwritableFile
from fdtr.simulation.worlds import Act, constant_rule
from fdtr.study import Study
from fdtr.summary import combine
from tiny_icu import tiny_arrays

Array = NDArray[np.float64]
SMALL = IcuSpec(n_sites=3, horizon=4, windows=1, deviation=0.5)
needs_wheel = pytest.mark.network


def generator(*seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def world_of(seed: int = 0, n_states: int = 4, **changes: Any) -> IcuWorld:
    return make_icu_world(replace(SMALL, **changes), tiny_arrays(n_states), generator(seed))


def constant_means(world: IcuWorld, site: int) -> list[float]:
    """What each dose is worth when everybody gets it at every step."""
    return [world.value(site, constant_rule(code)).mean for code in range(world.n_actions)]


def by_lactate(states: Array, step: int) -> NDArray[np.intp]:
    """A rule by a threshold that moves with the step."""
    return np.where(states[:, 0] > 0.1 * step, 2, 0)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder of the tests' own that holds the wheel; all workers have the same."""
    folder = tmp_path_factory.getbasetemp().parent / "icu-sepsis"
    try:
        fetch_icu_sepsis(folder / "fdtr")
    except Unfetchable:
        pytest.skip("no registry answers")
    return folder


@pytest.fixture(scope="session")
def arrays(cache: Path) -> IcuArrays:
    return load_icu_sepsis(fetch_icu_sepsis(cache / "fdtr"))


# The benchmark itself.


def survival_and_length(arrays: IcuArrays, policy: Array) -> tuple[float, float]:
    """The undiscounted chance of survival and the mean number of windows under `policy` (S, F, V)."""
    rows, live = np.einsum("sfv,sfvt->st", policy, arrays.transitions), len(arrays.initial)
    found = np.linalg.solve(np.eye(live) - rows[:, :live], np.column_stack([rows[:, -1], np.ones(live)]))
    survival, length = arrays.initial @ found
    return float(survival), float(length)


def optimal_policy(arrays: IcuArrays) -> Array:
    """Value iteration over all 25 treatments."""
    live = len(arrays.initial)
    rows = arrays.transitions.reshape(live, -1, live + 2)
    later = np.zeros(live)
    for _ in range(400):
        ahead = rows[..., -1] + rows[..., :live] @ later
        later = ahead.max(axis=1)
    return np.eye(rows.shape[1])[ahead.argmax(axis=1)].reshape(arrays.expert.shape)


@needs_wheel
def test_the_arrays_give_the_published_values(arrays: IcuArrays):
    # Choudhary, Gupta, Thomas (2024), "ICU-Sepsis: A Benchmark MDP Built from Real Medical Data", baselines, and the
    # README of icu-sepsis 2.0.1: mean returns 0.78, 0.78, 0.88 with γ = 1 and actions uniform over all 25 (random), and
    # mean episode lengths 9.45, 9.22, 10.99, simulated.
    policies = [np.full(arrays.expert.shape, 1 / 25), arrays.expert, optimal_policy(arrays)]
    survival, length = np.transpose([survival_and_length(arrays, policy) for policy in policies])
    assert survival.round(2).tolist() == [0.78, 0.78, 0.88]
    assert survival == pytest.approx([0.780, 0.782, 0.875], abs=0.0005)
    assert length == pytest.approx([9.45, 9.22, 10.99], abs=0.03)


@needs_wheel
def test_the_wheel_holds_distributions_and_covariates_that_tell_states_apart(arrays: IcuArrays):
    assert arrays.transitions.shape == (713, 5, 5, 715)
    assert arrays.centres.shape == (713, 47)
    for chances in (arrays.transitions, arrays.initial, arrays.expert.reshape(713, 25)):
        assert chances.min() >= 0
        assert np.allclose(chances.sum(axis=-1), 1.0, atol=1e-12)
    # Position 31 is SOFA in the order of the authors' program; the wheel has the score itself too.
    assert np.corrcoef(arrays.centres[:, 31], arrays.sofa)[0, 1] > 0.99


@needs_wheel
def test_doses_keep_what_the_expert_reaches(arrays: IcuArrays):
    spec = IcuSpec(n_sites=1, windows=1, deviation=0.0, follow_up=True)
    world = make_icu_world(spec, arrays, generator(1))
    usual = np.stack([arrays.expert[:, list(levels)].sum(axis=(1, 2)) for levels in DOSES.values()], axis=1)
    live = len(arrays.initial)
    rows = np.einsum("sa,ast->st", usual, world.transitions[0])
    survival = arrays.initial @ np.linalg.solve(np.eye(live) - rows[:, :live], rows[:, -1])
    assert survival == pytest.approx(survival_and_length(arrays, arrays.expert)[0], abs=1e-10)


@needs_wheel
def test_the_default_world_loses_by_truncation_what_its_description_says(arrays: IcuArrays):
    world, later = (make_icu_world(IcuSpec(follow_up=f), arrays, generator(2)) for f in (False, True))
    sites = range(len(world.sites))
    assert np.allclose(world.transitions.sum(axis=-1), 1.0, atol=1e-10)
    still_in = [world.still_in(k) for k in sites]
    assert 0.07 < min(still_in) < max(still_in) < 0.19
    # Four standard errors of a mean over five sites; sites differ by 0.02 and 0.027.
    assert np.mean(still_in) == pytest.approx(0.13, abs=0.04)
    assert np.mean([world.behaviour_value(k).mean for k in sites]) == pytest.approx(0.68, abs=0.05)
    assert np.mean([later.behaviour_value(k).mean for k in sites]) == pytest.approx(0.78, abs=0.05)
    for k in sites:
        best = world.optimal(k)
        assert best.value == pytest.approx(world.value(k, best.act).mean, abs=1e-12)
        assert best.value > max(constant_means(world, k)) > world.behaviour_value(k).mean


@needs_wheel
@pytest.mark.parametrize("follow_up", [False, True])
def test_values_of_the_default_world_agree_with_its_patients(arrays: IcuArrays, follow_up: bool):
    world = make_icu_world(IcuSpec(n_sites=2, effect=2.0, follow_up=follow_up), arrays, generator(3))
    for act in (None, constant_rule(2), by_lactate):
        check_against_patients(world, 1, act, 40_000)


@needs_wheel
def test_the_command_writes_a_study_that_check_and_run_take(cache: Path, tmp_path: Path):
    environment = {"XDG_CACHE_HOME": str(cache)}
    options = ("--patients", 120, "--sites", 2, "--horizon", 3, "--effect", 2)
    for name in ("one", "two"):
        done = reproduce("world", "icu-sepsis", *options, "--out", name, cwd=tmp_path, **environment)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "one/table.csv").read_bytes() == (tmp_path / "two/table.csv").read_bytes()
    study = Study.load(tmp_path / "one/study.toml")
    rows = fdtr.read_trajectories(tmp_path / "one/table.csv", study)
    assert (rows.sites, rows.n_patients, rows.horizon) == (("site-1", "site-2"), 240, 3)
    assert not any(rows.clipped.values())
    for command in (["check"], ["run", "--out", "results"]):
        done = run_fdtr(command[0], "one/study.toml", "one/table.csv", *command[1:], cwd=tmp_path)
        assert done.returncode == 0, done.stderr


# Hospitals cut from any such MDP.


def check_against_patients(world: IcuWorld, site: int, act: Act | None, n: int) -> None:
    """Rewards and expected rewards of `n` patients have the exact value as their mean, within four standard errors."""
    walk, exact = world.sample(site, n, generator(20), act), world.value(site, act)
    assert exact.standard_error == 0.0
    for sums in (walk.rewards.sum(axis=0), walk.expected.sum(axis=0)):
        assert abs(sums.mean() - exact.mean) < 4 * sums.std() / np.sqrt(n)


@pytest.mark.quick
@pytest.mark.parametrize("changes", [{}, {"follow_up": True}, {"windows": 3, "effect": 2.0}], ids=str)
@pytest.mark.parametrize("act", [None, constant_rule(1), by_lactate], ids=["behaviour", "constant", "threshold"])
def test_values_are_the_means_of_patients(changes: dict[str, Any], act: Act | None):
    check_against_patients(world_of(1, **changes), 2, act, 40_000)


@pytest.mark.quick
@pytest.mark.parametrize("follow_up", [False, True])
def test_the_optimum_is_the_best_of_all_rules(follow_up: bool):
    world = world_of(2, n_states=3, horizon=2, follow_up=follow_up)
    best, reached = world.optimal(0), []
    for codes in itertools.product(range(3), repeat=6):
        table = np.reshape(codes, (2, 3))
        reached.append(world.value(0, lambda states, step, table=table: table[step][world.clusters(states)]).mean)
    assert best.exact
    assert best.value == pytest.approx(max(reached), abs=1e-12)
    assert world.value(0, best.act).mean == pytest.approx(best.value, abs=1e-12)
    assert world.best_rule(0)(world.centres, 1).tolist() == best.act(world.centres, 1).tolist()
    assert best.value >= max(constant_means(world, 0))
    assert world.values(0, [None, constant_rule(1)], 1, generator(0))[1] == world.value(0, constant_rule(1))


@pytest.mark.quick
def test_without_deviation_and_effect_rows_are_the_experts_mixture():
    arrays = tiny_arrays()
    world = make_icu_world(replace(SMALL, deviation=0.0), arrays, generator(3))
    for a, levels in enumerate(DOSES.values()):
        for s in range(4):
            pairs = [(f, v) for f in levels for v in range(2)]
            given = np.array([arrays.expert[s, f, v] for f, v in pairs])
            share = given / given.sum() if given.sum() > 0 else np.full(len(pairs), 1 / len(pairs))
            expected = sum(w * arrays.transitions[s, f, v] for w, (f, v) in zip(share, pairs, strict=True))
            for k in range(3):
                assert np.allclose(world.transitions[k, a, s], expected, atol=1e-14)


@pytest.mark.quick
def test_a_dose_that_lasts_is_given_again_to_who_is_still_there():
    once, twice = world_of(4, windows=1), world_of(4, windows=2)
    for k, a, s in np.ndindex(3, 3, 4):
        row = once.transitions[k, a, s]
        expected = row[:4] @ once.transitions[k, a]
        expected[4:] += row[4:]
        assert np.allclose(twice.transitions[k, a, s], expected, atol=1e-14)


@pytest.mark.quick
@pytest.mark.parametrize("deviation", [0.3, 1.0])
def test_sites_have_valid_rows_of_their_own_on_the_same_support(deviation: float):
    arrays = tiny_arrays()
    arrays.transitions[0, :, :, 2] = 0.0
    arrays.transitions[:] /= arrays.transitions.sum(axis=-1, keepdims=True)
    world = make_icu_world(replace(SMALL, deviation=deviation, effect=1.0), arrays, generator(5))
    assert world.transitions.min() >= 0
    assert np.allclose(world.transitions.sum(axis=-1), 1.0, atol=1e-12)
    assert np.all(world.transitions[:, :, 0, 2] == 0)
    assert np.all(np.delete(world.transitions[:, :, 0], 2, axis=-1) > 0)
    assert np.abs(world.transitions[0] - world.transitions[1]).max() > 0.05
    assert np.allclose(world.chances.sum(axis=-1), 1.0)
    assert np.abs(world.chances[0] - world.chances[1]).max() > 0.05
    assert world.chances.min() > 0.05  # every dose is given to everybody now and then


@pytest.mark.quick
def test_a_planted_effect_makes_high_doses_better_for_who_asks_for_them():
    plain, planted = (world_of(6, n_states=8, deviation=0.0, follow_up=True, effect=e) for e in (0.0, 3.0))
    width = np.array([m.high - m.low for m in MEASURES])
    ask = plain.centres / width @ np.array([m.ask for m in MEASURES])
    ask -= plain.initial @ ask
    arrays, live = tiny_arrays(8), 8
    rows = np.einsum("sfv,sfvt->st", arrays.expert, arrays.transitions)
    benefit = np.append(np.linalg.solve(np.eye(live) - rows[:, :live], rows[:, -1]), [0.0, 1.0])
    gain = (planted.transitions[0] - plain.transitions[0]) @ benefit
    assert np.all(gain[2] * ask > 0)
    assert np.all(gain[0] * ask < 0)
    assert np.allclose(gain[1], 0.0, atol=1e-14)  # the middle dose is as it was
    assert np.allclose(planted.transitions[0], planted.transitions[1])  # and it is the same everywhere


@pytest.mark.quick
def test_with_follow_up_clinicians_reach_the_same_whatever_the_horizon():
    values = [world_of(7, horizon=h, follow_up=True).behaviour_value(1).mean for h in (1, 3, 30)]
    assert values == pytest.approx([values[0]] * 3, abs=1e-12)
    assert world_of(7, horizon=60).behaviour_value(1).mean == pytest.approx(values[0], abs=1e-9)
    assert world_of(7, horizon=1).behaviour_value(1).mean < values[0] - 0.1


@pytest.mark.quick
@pytest.mark.parametrize("follow_up", [False, True])
def test_patients_leave_by_death_or_survival_and_nothing_follows(follow_up: bool):
    world = world_of(8, follow_up=follow_up)
    walk = world.sample(0, 3000, generator(8))
    there = np.arange(4)[:, None] < walk.lengths
    assert np.array_equal(~np.isnan(walk.states[..., 0]), there)
    assert np.array_equal(walk.actions >= 0, there)
    assert not walk.rewards[~there].any()
    assert not walk.expected[~there].any()
    last = walk.rewards[walk.lengths - 1, np.arange(3000)]
    assert np.array_equal(last == 1, walk.ends == "survival")
    assert walk.rewards.sum() == last.sum()
    assert np.all(walk.lengths[walk.ends == ""] == 4)
    assert set(walk.ends) == {"death", "survival"} | (set() if follow_up else {""})
    assert {1, 2, 3, 4} == set(walk.lengths)
    if not follow_up:
        assert abs(np.mean(walk.ends == "") - world.still_in(0)) < 4 * 0.5 / np.sqrt(3000)


@pytest.mark.quick
def test_two_policies_meet_the_same_patients_with_the_same_luck():
    world = world_of(9)

    def late_high(states: Array, step: int) -> NDArray[np.intp]:
        return np.full(len(states), 2 if step == 3 else 0)

    one, other = (world.sample(0, 500, generator(9), act) for act in (constant_rule(0), late_high))
    assert np.array_equal(one.states, other.states, equal_nan=True)
    assert np.array_equal(one.rewards[:3], other.rewards[:3])
    # Clinicians draw, and meet the same patients on arrival.
    assert np.array_equal(world.sample(0, 500, generator(9)).states[0], one.states[0])


@pytest.mark.quick
def test_a_study_reads_the_table_and_a_policy_is_learnt_together():
    world = world_of(10, n_states=12)
    study = Study.model_validate(world.study())
    table = world.table(150, generator(10))
    assert set(table["end"]) == {"", "death", "survival"}
    sites = fdtr.read_trajectories(pa.table(table), study).by_site()
    assert tuple(sites) == world.sites
    assert study.feature_map.n_features == 3 * (1 + len(MEASURES))
    assert not any(rows.clipped[m.name] for rows in sites.values() for m in MEASURES)
    local = {name: fdtr.fit_local(study, rows) for name, rows in sites.items()}
    fit = fdtr.fit_federated(study, sites["site-1"], combine(part.summary for part in local.values()))
    reached = world.value(0, fit.policy.act).mean
    assert min(constant_means(world, 0)) - 1e-9 < reached <= world.optimal(0).value


@pytest.mark.quick
def test_everything_depends_on_the_seed_alone_and_sites_on_their_own_numbers():
    tables = [world_of(11, n_sites=k).table(n, generator(11)) for k, n in ((3, 20), (3, 20), (3, [20, 5, 9]))]
    for name in tables[0]:
        assert np.array_equal(tables[0][name], tables[1][name])
        own = [table[name][table["site"] == "site-1"] for table in tables]
        assert np.array_equal(own[0], own[2])
    more = world_of(11, n_sites=5)
    assert np.array_equal(more.transitions[:3], world_of(11, n_sites=3).transitions)


@pytest.mark.quick
def test_what_cannot_be_drawn_is_refused():
    for changes in ({"n_sites": 0}, {"horizon": 0}, {"windows": 0}, {"deviation": 1.5}, {"effect": -1.0}):
        with pytest.raises(ValueError, match=r"at least|deviation is|effect is"):
            replace(SMALL, **changes)
    arrays = tiny_arrays()
    alike = replace(arrays, centres=np.zeros_like(arrays.centres), sofa=np.zeros(4))
    with pytest.raises(ValueError, match="the same covariates"):
        make_icu_world(SMALL, alike, generator(12))
    with pytest.raises(ValueError, match="none of this world's clusters"):
        world_of().clusters(np.full((1, 5), 0.123456))


# The download.


class FakePip:
    """In the place of `subprocess.run`: leaves `content` where pip would put the wheel."""

    def __init__(self, content: bytes | None = None, stderr: str = "") -> None:
        self.content, self.stderr, self.calls = content, stderr, 0

    def __call__(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        self.calls += 1
        [folder] = [part.removeprefix("--dest=") for part in command if part.startswith("--dest=")]
        if self.content is not None:
            (Path(folder) / icu_wheel.WHEEL).write_bytes(self.content)
        return subprocess.CompletedProcess(command, int(self.content is None), "", self.stderr)


@pytest.mark.quick
def test_the_wheel_is_downloaded_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    pip = FakePip(b"the wheel")
    monkeypatch.setattr(icu_wheel.subprocess, "run", pip)
    monkeypatch.setattr(icu_wheel, "SHA256", icu_wheel._digest(b"the wheel"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert fetch_icu_sepsis() == tmp_path / "fdtr" / icu_wheel.WHEEL == fetch_icu_sepsis()
    assert pip.calls == 1
    fetch_icu_sepsis().write_bytes(b"half the wh")  # a damaged copy is replaced
    assert fetch_icu_sepsis().read_bytes() == b"the wheel"
    assert pip.calls == 2


@pytest.mark.quick
def test_a_download_that_fails_gets_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    cases = [
        (FakePip(stderr="python: No module named pip"), Unfetchable, "ensurepip"),
        (FakePip(stderr="ERROR: No matching distribution found"), Unfetchable, "no package registry answers"),
        (FakePip(b"something else"), ForeignFile, "SHA-256 differs"),
    ]
    for pip, error, words in cases:
        monkeypatch.setattr(icu_wheel.subprocess, "run", pip)
        with pytest.raises(error, match=words):
            fetch_icu_sepsis(tmp_path / "cache")
        assert not list((tmp_path / "cache").iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(UnwritableFile, match="XDG_CACHE_HOME"):
        fetch_icu_sepsis(tmp_path / "file" / "cache")


@pytest.mark.quick
def test_a_foreign_or_missing_wheel_gets_a_sentence(tmp_path: Path):
    with pytest.raises(UnreadableFile, match="could not be read"):
        load_icu_sepsis(tmp_path / "none.whl")
    (tmp_path / "other.whl").write_bytes(b"PK\x05\x06" + bytes(18))
    with pytest.raises(ForeignFile, match=r"not the wheel of icu-sepsis==2.0.1, or is damaged"):
        load_icu_sepsis(tmp_path / "other.whl")


@pytest.mark.slow
def test_the_command_says_what_is_missing_and_writes_nothing(tmp_path: Path):
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PIP_NO_INDEX": "1"}
    done = reproduce("world", "icu-sepsis", "--out", "world", cwd=tmp_path, **environment)
    refused(done, "no package registry answers")
    done = reproduce("world", "icu-sepsis", "--deviation", 2, "--out", "world", cwd=tmp_path, **environment)
    refused(done, "cannot be drawn")
    assert not (tmp_path / "world").exists()
