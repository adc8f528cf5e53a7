"""Worlds with finitely many states: patients move between them by tables of chances, and every value is exact.

A step at a site, for a patient in state s who gets action a: a hidden cause u is drawn with chance p(u | s), the next
state or exit s' with chance P_u(s' | s, a), and the reward is what s' is worth at this step. Clinicians may see u and a
table never shows it. Because u is drawn anew at each step, a rule that sees s alone meets an MDP with the chances
Σ_u p(u | s) P_u(s' | s, a), whose values and optimum follow by dynamic programming. With one cause nothing is hidden.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr.simulation.worlds import (
    Act,
    Array,
    Codes,
    Move,
    Optimal,
    SimulatedWorld,
    Trajectory,
    Value,
    codes_at,
)


@dataclass(frozen=True, eq=False)
class TabularWorld(SimulatedWorld):
    """K sites with S states, A actions, U hidden causes and E exits.

    `states` (S, m) are the covariates of each state, all different; `seen` are the columns that tables and rules have,
    None for all. `initial` (K, S): where patients arrive. `hidden` (K, U, S): p(u | s). `chances` (K, H, U, S, A): what
    clinicians do. `transitions` (K, T, U, A, S, S + E): where a step leads, exits last; T is 1, or 2 where the last
    step has chances of its own. `landing` (H, S + E): the reward for where a step led. `exits` are the names of the E
    ends and `worth` (E,) what each missing step then counts. `lost` (S,): the chance at each step that a patient is
    lost, who is then in no table. `content` is the study file without its settings of the method.
    """

    states: Array
    initial: Array
    hidden: Array
    chances: Array
    transitions: Array
    landing: Array
    content: dict[str, Any] = field(repr=False)
    exits: tuple[str, ...] = ()
    worth: Array = field(default_factory=lambda: np.zeros(0))
    lost: Array | None = None
    seen: tuple[int, ...] | None = None

    def study(self, **learning: float | str) -> dict[str, Any]:
        """Content of a study file for this world; `learning` goes into its [learning]."""
        return {**self.content, "learning": learning}

    def sample(self, site: int, n: int, rng: np.random.Generator, act: Act | None = None) -> Trajectory:
        """`n` fresh patients of a site, treated by `act`, or as the site's clinicians do, until they leave.

        Each patient has the same random numbers whatever is done: from equal generators two policies meet the same
        patients with the same luck.
        """
        chance, choice = rng.spawn(2)
        shape, live = (self.horizon, n), len(self.states)
        states = np.full((*shape, len(self.covariates)), np.nan)
        actions, lengths = np.full(shape, -1, dtype=np.intp), np.full(n, self.horizon, dtype=np.intp)
        rewards, expected = np.zeros(shape), np.zeros(shape)
        place, present = self._first(site, chance.random(n)), np.arange(n)
        for h in range(self.horizon):
            luck, state = chance.random((2, n)), place[present]
            cause = codes_at(self.hidden[site][:, state].T, luck[0, present])
            states[h, present] = self._visible[state]
            codes = codes_at(self.chances[site, h][cause, state], choice.random(n)[present])
            if act is not None:
                advised = np.asarray(act(states[h, present], h)).astype(np.intp)
                codes = np.where(advised < 0, codes, advised)
            actions[h, present] = codes
            expected[h, present] = self._mean_rewards(site, h)[codes, state]
            place[present] = self._onward(site, h, cause, codes, state, luck[1, present])
            rewards[h, present] = self.landing[h, place[present]]
            left = place[present] >= live
            lengths[present[left]] = h + 1
            present = present[~left]
            if not len(present):
                break
        if not self.exits:
            return Trajectory(states, actions, rewards, expected)
        return Trajectory(states, actions, rewards, expected, lengths, self._names[np.maximum(place - live + 1, 0)])

    def arrive(self, site: int, n: int, rng: np.random.Generator) -> Array:
        """States (n, m) of `n` fresh patients at step 0."""
        return self._visible[self._first(site, rng.random(n))]

    def move(self, site: int, step: int, states: Array, codes: NDArray[Any], rng: np.random.Generator) -> Move:
        """What becomes of patients in `states` (n, m) who get `codes` (n,) at a step."""
        state, chosen, live = self.positions(states), np.asarray(codes, dtype=np.intp), len(self.states)
        luck = rng.random((2, len(state)))
        cause = codes_at(self.hidden[site][:, state].T, luck[0])
        place = self._onward(site, step, cause, chosen, state, luck[1])
        ends = self._names[np.maximum(place - live + 1, 0)] if self.exits else None
        later = self._visible[np.where(place < live, place, state)]
        return Move(self.landing[step, place], self._mean_rewards(site, step)[chosen, state], later, ends)

    def value(self, site: int, act: Act | None, n: int = 0, rng: np.random.Generator | None = None) -> Value:  # noqa: ARG002
        """V^π by dynamic programming, without error; `n` and `rng` are not needed.

        `act` must be a rule of state and step that does not draw; None are the site's clinicians.
        """
        later, every = np.zeros(len(self.states)), np.arange(len(self.states))
        for h in reversed(range(self.horizon)):
            ahead = self._ahead(site, h, later)
            usual = np.einsum("us,usa,uas->s", self.hidden[site], self.chances[site, h], ahead)
            if act is None:
                later = usual
            else:
                codes = np.asarray(act(self._visible.copy(), h)).astype(np.intp)
                later = np.where(codes < 0, usual, self._mean_ahead(site, h, later)[codes, every])
        return Value(float(self.initial[site] @ later), 0.0)

    def usual_q(self, site: int) -> tuple[Array, Array]:
        """Q^b (H, A, S) and V^b (H, S) of the site's clinicians b, by dynamic programming, without error."""
        q, v = (
            np.empty((self.horizon, self.n_actions, len(self.states))),
            np.zeros((self.horizon + 1, len(self.states))),
        )
        for h in reversed(range(self.horizon)):
            ahead = self._ahead(site, h, v[h + 1])
            q[h] = np.einsum("us,uas->as", self.hidden[site], ahead)
            v[h] = np.einsum("us,usa,uas->s", self.hidden[site], self.chances[site, h], ahead)
        return q, v[:-1]

    def values(
        self,
        site: int,
        acts: Sequence[Act | None],
        n: int = 0,  # noqa: ARG002
        rng: np.random.Generator | None = None,  # noqa: ARG002
    ) -> list[Value]:
        """The values of several rules, without error."""
        return [self.value(site, act) for act in acts]

    def best_rule(self, site: int) -> Act:
        """π*; where not all is seen, what is best in most of the states that look alike, which is good and no more."""
        return self.optimal(site).act

    def optimal(self, site: int) -> Optimal:
        """The best of all rules that choose by state and step, and its value, without error."""
        best, later = best_actions(lambda h, value: self._mean_ahead(site, h, value), self.horizon, len(self.states))
        value = float(self.initial[site] @ later)
        if self.hides:
            return self._best_seen(site, best)
        return Optimal(lambda states, step: best[step][self.positions(states)], value, 0.0, exact=True)

    def _best_seen(self, site: int, best: Codes) -> Optimal:
        """A good rule of what is seen: the action that is `best` (H, S) in most states that look alike."""
        looks, alike = np.unique(self._visible, axis=0, return_inverse=True)
        votes = np.zeros((self.horizon, len(looks), self.n_actions))
        for h, actions in enumerate(best):
            np.add.at(votes[h], (alike.ravel(), actions), 1.0)
        rule = votes.argmax(axis=2)

        def act(states: Array, step: int) -> Codes:
            distance = np.abs(np.asarray(states)[:, None] - looks).max(axis=2)
            return np.asarray(rule[step][distance.argmin(axis=1)])

        return Optimal(act, self.value(site, act).mean, 0.0, exact=False)

    def positions(self, states: Array) -> Codes:
        """The state's number (n,) of covariates `states` (n, m), which must be those of this world."""
        if self.hides:
            raise ValueError("states that look alike cannot be told apart from covariates; use sample or value")
        distance, nearest = self._tree.query(np.asarray(states, dtype=np.float64))
        if np.any(distance > 1e-4):
            raise ValueError("covariates belong to none of this world's states")
        return np.asarray(nearest, dtype=np.intp)

    def table(self, n: int | Sequence[int], rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        """A long table of all sites as the study reads it, without the patients who were lost."""
        table = super().table(n, rng)
        if self.lost is None:
            return table
        covariates = np.column_stack([table[name] for name in self.covariates])
        gone = rng.random(len(covariates)) < self.lost[self.positions(covariates)]
        begins = np.flatnonzero(table["step"] == 0)  # a patient's rows stand together, the first step first
        kept = np.repeat(~np.logical_or.reduceat(gone, begins), np.diff([*begins, len(gone)]))
        return {name: column[kept] for name, column in table.items()}

    @cached_property
    def _visible(self) -> Array:
        """What tables and rules have of each state, (S, m')."""
        return self.states if self.seen is None else np.ascontiguousarray(self.states[:, list(self.seen)])

    @property
    def hides(self) -> bool:
        """Whether tables and rules lack some covariates of a state."""
        return self.seen is not None and len(self.seen) < self.states.shape[1]

    @cached_property
    def _tree(self) -> Any:
        from scipy.spatial import KDTree

        return KDTree(self.states)

    @cached_property
    def _names(self) -> NDArray[np.str_]:
        return np.array(["", *self.exits])

    @cached_property
    def _edges(self) -> dict[tuple[int, int], Array]:
        return {}

    def _first(self, site: int, luck: Array) -> Codes:
        edges = np.cumsum(self.initial[site])
        return np.searchsorted(edges / edges[-1], luck, side="right")

    def _table_of(self, step: int) -> int:
        """Which of the T tables of chances a step has."""
        return self.transitions.shape[1] - 1 if step == self.horizon - 1 else 0

    def _onward(self, site: int, step: int, cause: Codes, codes: Codes, state: Codes, luck: Array) -> Codes:
        """Where patients (n,) are a step later."""
        live, goals = len(self.states), self.transitions.shape[-1]
        key = site, self._table_of(step)
        if key not in self._edges:
            # The p-th (cause, action, state) has its cumulated chances in [p, p + 1]: one sorted search for all.
            sums = np.cumsum(self.transitions[key].reshape(-1, goals), axis=1)
            self._edges[key] = (np.arange(len(sums))[:, None] + sums / sums[:, -1:]).ravel()
        row = (cause * self.n_actions + codes) * live + state
        below_one = np.minimum(luck, 1 - 1e-9)  # so that the sum is not rounded up to the next row
        return np.asarray(np.searchsorted(self._edges[key], row + below_one, side="right") - row * goals)

    def _ahead(self, site: int, step: int, later: Array) -> Array:
        """Reward now and value afterwards, (U, A, S), where a state is worth `later` (S,) from the next step on."""
        missing = self.horizon - 1 - step
        worth = self.landing[step] + np.concatenate([later, missing * self.worth])
        ahead: Array = self.transitions[site, self._table_of(step)] @ worth
        return ahead

    def _mean_ahead(self, site: int, step: int, later: Array) -> Array:
        """Reward now and value afterwards, (A, S), averaged over the hidden cause."""
        mean: Array = np.einsum("us,uas->as", self.hidden[site], self._ahead(site, step, later))
        return mean

    def _mean_rewards(self, site: int, step: int) -> Array:
        """Mean reward now, (A, S)."""
        now = self.transitions[site, self._table_of(step)] @ self.landing[step]
        mean: Array = np.einsum("us,uas->as", self.hidden[site], now)
        return mean


def best_actions(ahead: Callable[[int, Array], Array], horizon: int, n_states: int) -> tuple[Codes, Array]:
    """The best action of each step and state, (H, S), and the value of each state at the first step, (S,).

    `ahead(step, later)` gives Q (A, S) where a state is worth `later` (S,) from the next step on.
    """
    best, later = np.empty((horizon, n_states), dtype=np.intp), np.zeros(n_states)
    for h in reversed(range(horizon)):
        values = ahead(h, later)
        best[h], later = values.argmax(axis=0), values.max(axis=0)
    return best, later
