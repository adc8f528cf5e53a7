"""Sites as Gymnasium environments: what Gymnasium asks for holds, and episodes have the law of the world."""

import subprocess
import sys
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray

from experiments.authors_world import AuthorsSpec, make_authors_world
from experiments.icu_world import IcuSpec, make_icu_world
from fdtr.simulation import sepsis
from fdtr.simulation.environment import SiteEnvironment, make_environment
from fdtr.simulation.linear import WorldSpec, make_world
from fdtr.simulation.sepsis import make_hospital_world
from fdtr.simulation.worlds import Act, SimulatedWorld, constant_rule
from tiny_icu import tiny_arrays

pytestmark = pytest.mark.slow


def generator(*seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


WORLDS: dict[str, SimulatedWorld] = {
    "linear": make_world(WorldSpec(n_sites=2, n_actions=3, horizon=4), generator(0)),
    "static": make_world(WorldSpec(n_sites=2, n_actions=3, horizon=4, shared_kind="static", noise=1.0), generator(1)),
    "authors": make_authors_world(AuthorsSpec(n_sites=2, n_actions=3, horizon=4), generator(2)),
    "hospitals": make_hospital_world(),
    "icu": make_icu_world(IcuSpec(n_sites=2, horizon=4, windows=1), tiny_arrays(), generator(3)),
    "icu, follow-up": make_icu_world(IcuSpec(n_sites=2, horizon=4, follow_up=True), tiny_arrays(), generator(4)),
}
each_world = pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)


def threshold(world: SimulatedWorld) -> Act:
    """The highest code above the middle of the first covariate's range, one more than nothing late, else nothing."""
    low, high = world.study()["covariates"][0]["range"]
    top = world.n_actions - 1
    return lambda states, step: np.where(states[:, 0] > (low + high) / 4, top, int(step > 1))


def sums_of_rewards(environment: SiteEnvironment, act: Act, n: int) -> NDArray[np.float64]:
    """Undiscounted returns of `n` episodes, (n,), and on the way what every step promises."""
    returns = np.zeros(n)
    environment.reset(seed=7)
    for episode in range(n):
        observation, info = environment.reset()
        over = False
        while not over:
            code = act(observation[None, :-1], info["step"])[0]
            observation, reward, over, _, info = environment.step(code)
            returns[episode] += reward
    return returns


@each_world
def test_gymnasium_finds_no_fault(world: SimulatedWorld):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make_environment(world, 1), skip_render_check=True)


@each_world
def test_spaces_are_those_of_the_study_and_the_steps(world: SimulatedWorld):
    environment = make_environment(world, 0)
    box = environment.observation_space
    assert isinstance(box, gymnasium.spaces.Box)
    assert environment.action_space == gymnasium.spaces.Discrete(world.n_actions)
    ranges = [covariate["range"] for covariate in world.study()["covariates"]]
    assert np.array_equal(np.column_stack([box.low, box.high]), [*ranges, [0, world.horizon]])


@each_world
def test_episodes_have_the_value_of_the_policy(world: SimulatedWorld):
    act = threshold(world)
    returns = sums_of_rewards(make_environment(world, 1), act, 3000)
    exact = world.value(1, act, 40_000, generator(5))
    error = np.hypot(returns.std() / np.sqrt(len(returns)), exact.standard_error)
    assert abs(returns.mean() - exact.mean) < 4 * error


@each_world
def test_an_episode_ends_with_the_last_step_or_with_the_patient(world: SimulatedWorld):
    environment = make_environment(world, 0)
    lengths = set()
    for seed in range(60):
        observation, info = environment.reset(seed=seed)
        assert (observation[-1], info["step"]) == (0, 0)
        for step in range(1, world.horizon + 1):
            observation, reward, terminated, truncated, info = environment.step(np.int64(seed % world.n_actions))
            assert environment.observation_space.contains(observation)
            assert (observation[-1], info["step"], truncated) == (step, step, False)
            assert 0 <= info["expected_reward"] <= 1
            if terminated:
                break
        assert terminated
        assert step == world.horizon or info["end"] in {"death", "survival"}
        assert info["end"] != "survival" or reward == 1
        lengths.add(step)
        with pytest.raises(ValueError, match=r"Call reset\(\)"):
            environment.step(np.int64(0))
    assert lengths == ({1, 2, 3, 4} if "icu" in str(type(world)) else {world.horizon})


@each_world
def test_equal_seeds_give_equal_patients(world: SimulatedWorld):
    def episode(environment: SiteEnvironment, **reset: Any) -> list[tuple[float, ...]]:
        seen, over = [tuple(environment.reset(**reset)[0])], False
        while not over:
            observation, reward, over, _, info = environment.step(np.int64(1))
            seen.append((*observation, reward, info["expected_reward"]))
        return seen

    one, other = make_environment(world, 0), make_environment(world, 0)
    first = episode(one, seed=3)
    assert first == episode(other, seed=3)
    assert episode(one) == episode(other)  # and so on
    assert episode(one, seed=3) == first


def test_the_demos_hospitals_have_one_law_in_both_forms():
    world, act, n = make_hospital_world(), threshold(make_hospital_world()), 40_000
    for k, hospital in enumerate(sepsis.hospitals()):
        fast = sepsis.rollout(hospital, act, n, generator(6, k))
        value = world.value(k, act, n, generator(7, k))
        assert abs(fast.mean() - value.mean) < 4 * np.hypot(fast.std() / np.sqrt(n), value.standard_error)
        treated = sepsis.rollout(hospital, sepsis.clinicians(hospital, generator(8, k)), n, generator(9, k))
        value = world.behaviour_value(k, n, generator(10, k))
        assert abs(treated.mean() - value.mean) < 4 * np.hypot(treated.std() / np.sqrt(n), value.standard_error)


def test_what_cannot_be_an_environment_is_refused():
    with pytest.raises(ValueError, match=r"0 … 1, not 2"):
        make_environment(WORLDS["linear"], 2)
    environment = make_environment(WORLDS["icu"], 0)
    environment.reset(seed=0)
    for code in (-1, 3):
        with pytest.raises(ValueError, match=r"0 … 2, not"):
            environment.step(np.int64(code))

    with pytest.raises(TypeError, match="A simulated world is needed, not str"):
        make_environment("linear", 0)


def test_without_gymnasium_a_sentence_says_how_to_get_it():
    code = (
        "import sys; sys.modules['gymnasium'] = None\n"
        "import fdtr.simulation, fdtr.simulation.linear, fdtr.simulation.sepsis\n"
        "from fdtr.errors import MissingExtra\n"
        "try:\n    import fdtr.simulation.environment\n"
        "except MissingExtra as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "Environments need Gymnasium. Install it: pip install 'fdtr[gymnasium]'"


def test_moves_agree_with_samples_step_by_step():
    """One step, many patients: `move` and `sample` have the same law of rewards and next states."""
    n = 40_000
    for world in (WORLDS["linear"], WORLDS["authors"], WORLDS["hospitals"], WORLDS["icu"]):
        walk = world.sample(0, n, generator(11), constant_rule(1))
        states = world.arrive(0, n, generator(12))
        move = world.move(0, 0, states, np.ones(n, dtype=np.intp), generator(13))
        stays = np.ones(n, dtype=bool) if move.ends is None else move.ends == ""
        stayed = ~np.isnan(walk.states[1, :, 0])
        pairs = [
            (states, walk.states[0]),
            (move.states[stays], walk.states[1][stayed]),
            (move.rewards[:, None], walk.rewards[0][:, None]),
            (move.expected[:, None], walk.expected[0][:, None]),
        ]
        for one, other in pairs:
            error = np.sqrt(one.var(axis=0) / len(one) + other.var(axis=0) / len(other))
            assert np.all(np.abs(one.mean(axis=0) - other.mean(axis=0)) <= 4.5 * error)
