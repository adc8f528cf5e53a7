"""A site of a simulated world as a Gymnasium environment, for learners that choose treatments themselves.

An episode is one patient. An observation holds the covariates, in the study's units and order, and the step as its last
entry: values and best rules depend on the step, so a state without it would not be Markov. An episode terminates after
the last step, or when the patient leaves; nothing is truncated.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr.errors import MissingExtra
from fdtr.simulation.worlds import Array, SimulatedWorld

try:
    import gymnasium
except ImportError:
    raise MissingExtra("Environments need Gymnasium. Install it: pip install 'fdtr[gymnasium]'") from None


class SiteEnvironment(gymnasium.Env[Array, np.int64]):
    """Patients of one `site` of a `world`, one after another; made by `make_environment`.

    `observation_space` is a box of float64, m covariates between their public ranges and the step from 0 to H;
    `action_space` is the study's action codes, 0 … |A| − 1. `info` holds the next `step`, the `expected_reward` of the
    last one, and `end`, "" until the patient has left.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(self, world: SimulatedWorld, site: int) -> None:
        self.world, self.site = world, site
        ranges = [covariate["range"] for covariate in world.study()["covariates"]]
        low, high = np.array([*ranges, [0, world.horizon]], dtype=np.float64).T
        self.observation_space = gymnasium.spaces.Box(low, high, dtype=np.float64)
        self.action_space = gymnasium.spaces.Discrete(world.n_actions)
        self._state: Array | None = None
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """The next patient; with a `seed` the patients of that seed from the first. There are no `options`."""
        super().reset(seed=seed, options=options)
        self._state, self._step = self.world.arrive(self.site, 1, self.np_random), 0
        return self._observed(self._state), {"step": 0}

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Treat the patient: observation, reward, whether the episode is over, False, info."""
        if self._state is None:
            raise ValueError("There is no patient: the episode is over or has not begun. Call reset().")
        if not self.action_space.contains(action):
            raise ValueError(f"Actions are codes 0 … {self.world.n_actions - 1}, not {action}.")
        code: NDArray[np.intp] = np.array([action], dtype=np.intp)
        move = self.world.move(self.site, self._step, self._state, code, self.np_random)
        end = "" if move.ends is None else str(move.ends[0])
        self._step += 1
        over = bool(end) or self._step == self.world.horizon
        self._state = None if over else move.states
        info = {"step": self._step, "expected_reward": float(move.expected[0]), "end": end}
        return self._observed(move.states), float(move.rewards[0]), over, False, info

    def _observed(self, states: Array) -> Array:
        return np.append(states[0], float(self._step))


def make_environment(world: SimulatedWorld, site: int) -> SiteEnvironment:
    """The environment of a world's site, counted from 0.

    >>> from fdtr.simulation import WorldSpec, make_environment, make_world
    >>> patients = make_environment(make_world(WorldSpec(horizon=3), np.random.default_rng(0)), site=0)
    >>> observation, info = patients.reset(seed=0)
    >>> observation.shape, int(patients.action_space.n)
    ((5,), 6)
    >>> observation, reward, terminated, truncated, info = patients.step(np.int64(2))
    >>> float(observation[-1]), terminated
    (1.0, False)
    """
    if not isinstance(world, SimulatedWorld):
        raise TypeError(f"A simulated world is needed, not {type(world).__name__}.")
    if not 0 <= site < len(world.sites):
        raise ValueError(f"Sites of this world are 0 … {len(world.sites) - 1}, not {site}.")
    return SiteEnvironment(world, site)
