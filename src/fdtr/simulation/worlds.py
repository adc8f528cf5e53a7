"""The base classes of simulated worlds: patients of several sites, tables that a study reads, values of policies."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Codes = NDArray[np.intp]
Act = Callable[[Array, int], NDArray[Any]]
"""A treatment rule: `states` (n, m) in the study's order, and the step; returns action codes (n,), or `AS_USUAL`."""

AS_USUAL = -1
"""The code by which a rule leaves a patient to the site's clinicians."""

NO_DISCLOSURE_RULES = {
    "jitter": 0.0,
    "min_patients": 1,
    "max_ratio": 1.0,
    "min_action": 1,
    "min_cell": 1,
    "max_leverage": 1.0,
    "min_sites": 1,
    "once_margin": 0,
    "min_effective_sample_size": 1.0,
}
"""[disclosure] of a simulated study: exact sums, and the weakest rules that a study may have."""


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Patients of one site: `states` (H, n, m), `actions` (H, n) codes, `rewards` (H, n) and their means `expected`.

    Where patients may leave before the horizon, `lengths` (n,) says after how many steps they did and `ends` (n,) how,
    "" for those who did not leave. What lies beyond a patient's length is no data: NaN states, codes −1, rewards 0.
    """

    states: Array
    actions: Codes
    rewards: Array
    expected: Array
    lengths: Codes | None = None
    ends: NDArray[np.str_] | None = None

    def table(self, site: str, covariates: Sequence[str]) -> dict[str, NDArray[Any]]:
        """A long table, a row for each step that a patient has; patients are numbered from 0."""
        horizon, n = self.actions.shape
        patient, step = np.repeat(np.arange(n), horizon), np.tile(np.arange(horizon), n)
        columns: dict[str, NDArray[Any]] = {
            "site": np.full(n * horizon, site),
            "patient": patient,
            "step": step,
            "action": self.actions.T.ravel(),
            "reward": self.rewards.T.ravel(),
        }
        of_states = dict(zip(covariates, self.states.transpose(2, 1, 0).reshape(len(covariates), -1), strict=True))
        if self.lengths is None or self.ends is None:
            return columns | of_states
        left = self.lengths[patient] - 1 - step
        columns |= {"end": np.where(left == 0, self.ends[patient], ""), **of_states}
        return {name: column[left >= 0] for name, column in columns.items()}


@dataclass(frozen=True, eq=False)
class Move:
    """The result of one step for n patients: `rewards` (n,), their means `expected` (n,) and the next `states` (n, m).

    `ends` (n,) says how a patient's stay ended, "" for patients who go on; None where nobody leaves. Patients who left
    keep their last state.
    """

    rewards: Array
    expected: Array
    states: Array
    ends: NDArray[np.str_] | None = None


@dataclass(frozen=True)
class Value:
    """A policy's value, the expected sum of rewards: the `mean` over simulated patients and its `standard_error`."""

    mean: float
    standard_error: float


@dataclass(frozen=True, eq=False)
class Optimal:
    """The best policy of a site: `act`, its `value` and the Monte-Carlo `standard_error` of that.

    `exact`: the optimum but for Monte-Carlo error; else only the best that a large-sample fit found, whose value is
    simulated.
    """

    act: Act
    value: float
    standard_error: float
    exact: bool


@dataclass(frozen=True, eq=False)
class SimulatedWorld(ABC):
    """Several sites whose patients can be sampled, or treated one step at a time.

    `sites` are their names, `covariates` the columns of a state. Sites count from 0. Tables and values follow from
    samples.
    """

    sites: tuple[str, ...]
    covariates: tuple[str, ...]
    horizon: int
    n_actions: int

    @abstractmethod
    def study(self, **learning: float | str) -> dict[str, Any]:
        """Content of a study file for this world; `learning` goes into its [learning]."""

    @abstractmethod
    def arrive(self, site: int, n: int, rng: np.random.Generator) -> Array:
        """States (n, m) of `n` fresh patients at step 0."""

    @abstractmethod
    def move(self, site: int, step: int, states: Array, codes: NDArray[Any], rng: np.random.Generator) -> Move:
        """What becomes of patients in `states` (n, m) who get `codes` (n,) at a step."""

    @abstractmethod
    def sample(self, site: int, n: int, rng: np.random.Generator, act: Act | None = None) -> Trajectory:
        """`n` fresh patients of a site, treated by `act`, or as the site's clinicians do."""

    def table(self, n: int | Sequence[int], rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        """A long table of all sites as the study reads it; `n` is one number of patients, or one for each site.

        Each site draws from a generator of its own: its patients do not change with the others' numbers.
        """
        counts = [n] * len(self.sites) if isinstance(n, int) else list(n)
        own = rng.spawn(len(self.sites))
        samples = [self.sample(k, count, own[k]) for k, count in enumerate(counts)]
        parts = [sample.table(self.sites[k], self.covariates) for k, sample in enumerate(samples)]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def value(self, site: int, act: Act | None, n: int, rng: np.random.Generator) -> Value:
        """V^π from `n` patients, summing exact expected rewards; None is what clinicians do.

        From equal generators two policies meet the same patients with the same luck: their difference is paired.
        """
        return value_of(self.sample(site, n, rng, act).expected.sum(axis=0))

    def values(self, site: int, acts: Sequence[Act | None], n: int, rng: np.random.Generator) -> list[Value]:
        """The values of several policies on the same patients with the same luck."""
        return [self.value(site, act, n, deepcopy(rng)) for act in acts]

    def behaviour_value(self, site: int, n: int, rng: np.random.Generator) -> Value:
        """What the site's clinicians reach."""
        return self.value(site, None, n, rng)


class FixedHorizonWorld(SimulatedWorld):
    """Worlds in which everybody stays for all steps, and rewards are drawn independently of the next state."""

    @abstractmethod
    def behaviour(self, site: int, rng: np.random.Generator) -> Act:
        """What the site's clinicians do; they draw from `rng`."""

    @abstractmethod
    def expected_reward(self, site: int, states: Array, codes: NDArray[Any], step: int) -> Array:
        """The mean reward, (n,)."""

    @abstractmethod
    def luck(self, site: int, step: int, n: int, rng: np.random.Generator) -> Any:
        """All random numbers of `n` patients as they leave a step; they do not depend on the treatment."""

    @abstractmethod
    def next_states(self, site: int, step: int, states: Array, codes: Codes, luck: Any) -> Array:
        """x' (n, m) of patients in `states` who got `codes` and had that `luck`."""

    @abstractmethod
    def draw_rewards(self, means: Array, rng: np.random.Generator) -> Array:
        """Rewards around `means`, in their shape."""

    def sample(self, site: int, n: int, rng: np.random.Generator, act: Act | None = None) -> Trajectory:
        """`n` fresh patients of a site, treated by `act`, or as the site's clinicians do.

        Patients draw from a generator of their own and as often whatever is done to them: from equal generators two
        policies meet the same patients with the same luck.
        """
        chance, choice = rng.spawn(2)
        act = self._rule(site, act, choice)
        shape = (self.horizon, n)
        states = np.empty((*shape, len(self.covariates)))
        actions, expected = np.empty(shape, dtype=np.intp), np.empty(shape)
        now = self.arrive(site, n, chance)
        for h in range(self.horizon):
            states[h] = now
            actions[h] = np.asarray(act(now, h))
            expected[h] = self.expected_reward(site, states[h], actions[h], h)
            now = self.next_states(site, h, states[h], actions[h], self.luck(site, h, n, chance))
        return Trajectory(states, actions, self.draw_rewards(expected, chance), expected)

    def values(self, site: int, acts: Sequence[Act | None], n: int, rng: np.random.Generator) -> list[Value]:
        """The values of several policies on the same patients with the same luck, which is drawn once for all."""
        chance, choice = rng.spawn(2)
        rules = [self._rule(site, act, choice if act is None else deepcopy(choice)) for act in acts]
        first = self.arrive(site, n, chance)
        now, sums = [first.copy() for _ in rules], np.zeros((len(rules), n))
        for h in range(self.horizon):
            luck = self.luck(site, h, n, chance)
            for place, act in enumerate(rules):
                states = now[place]
                codes = np.asarray(act(states, h), dtype=np.intp)
                sums[place] += self.expected_reward(site, states, codes, h)
                now[place] = self.next_states(site, h, states, codes, luck)
        return [value_of(total) for total in sums]

    def value(self, site: int, act: Act | None, n: int, rng: np.random.Generator) -> Value:
        """V^π from `n` patients, summing exact expected rewards; None is what clinicians do."""
        return self.values(site, [act], n, rng)[0]

    def _rule(self, site: int, act: Act | None, choice: np.random.Generator) -> Act:
        """`act`, with clinicians who draw from `choice` where it says `AS_USUAL`; the same draws at every step."""
        if act is None:
            return self.behaviour(site, choice)
        usual = [self.behaviour(site, of_step) for of_step in choice.spawn(self.horizon)]

        def rule(states: Array, step: int) -> Codes:
            codes = np.asarray(act(states, step), dtype=np.intp)
            return codes if (codes >= 0).all() else np.where(codes < 0, usual[step](states, step), codes)

        return rule

    def move(self, site: int, step: int, states: Array, codes: NDArray[Any], rng: np.random.Generator) -> Move:
        """What becomes of patients in `states` (n, m) who get `codes` (n,) at a step."""
        chosen = np.asarray(codes, dtype=np.intp)
        expected = self.expected_reward(site, states, chosen, step)
        later = self.next_states(site, step, states, chosen, self.luck(site, step, len(states), rng))
        return Move(self.draw_rewards(expected, rng), expected, later)


def value_of(sums: Array) -> Value:
    """The value from patients' sums of rewards, (n,)."""
    return Value(float(sums.mean()), float(sums.std(ddof=1) / np.sqrt(len(sums))))


def constant_rule(code: int) -> Act:
    """The treatment rule that gives everybody the same action at every step.

    >>> constant_rule(1)(np.zeros((3, 2)), 0)
    array([1, 1, 1])
    """
    return lambda states, step: np.full(len(states), code, dtype=np.intp)  # noqa: ARG005 - it looks at nothing


def codes_at(chances: Array, tickets: Array) -> Codes:
    """The code (n,) into which each of `tickets` (n,), uniform on [0, 1), falls; rows of `chances` (n, A) sum to 1."""
    edges = np.cumsum(chances, axis=1)[:, :-1]
    return np.asarray(np.sum(tickets[:, None] >= edges, axis=1), dtype=np.intp)
