"""ICU-Sepsis cut into several hospitals: dynamics estimated from real records, no linear model, every value exact.

States. A patient is in one of the 713 clusters of `experiments.icu_wheel`. A table shows five variables of its
middle, which tell clusters apart: SOFA in points, the others in standard deviations of the cohort, cut at their
ranges.

Doses. A few hundred patients cannot tell 25 treatments apart. Three doses of fluid are left: "low" (none or the lowest
quarter), "middle", and "high" (the two highest quarters). Within a dose, fluids and vasopressors are given in the
proportions that clinicians use in that state, or in equal ones where they never gave it. That is an MDP again. A dose
lasts for `windows` of four hours; two of them and nine steps span the 72 hours of the records.

Sites share arrivals and differ in two ways. Clinicians mix what the expert of ICU-Sepsis does (0.4), chance (0.2) and
their site's liking for each dose (0.4). Dynamics have factors g ~ Gamma(4) with mean 1 for each site, dose and state
that is reached, and the weight `deviation`, 0 of which leaves everything as it was:

    P_k(x' | x, a) = (1 − deviation)·P(x' | x, a) + deviation·P(x' | x, a) g_k(a, x') / Σ_y P(y | x, a) g_k(a, y)

Rewards. 1 on survival, else 0. A patient still in hospital after the last step has got nothing: a value is the chance
to have left alive by then. That loses much. After 72 hours some 13% are still in (7% to 18%, by site), and clinicians
reach 0.68 where 0.78 survive in the end. With `follow_up` the site's clinicians go on, and a value is the chance to
survive.

What it is like. Nothing here is linear in φ: (1) and (2) hold approximately at best, and sharing may cost. The optimum
is over all rules that know the cluster, and part of it is chance, as a row of ICU-Sepsis may rest on 21 observations.
A rule in a few covariates finds little to tailor: without `deviation` the low dose for everybody, which empties beds
sooner, is 77% to 88% of the way from what clinicians reach to the optimum. With the default one the best dose for
everybody is the site's own, and the low one lies between −10% and 96% of that way. `effect` plants something
to be found, at all sites the same, and invented. Chances of next states are multiplied, before all else, by

    exp(effect·(2a − 1)·u(x)·b(x')),  a the dose on [0, 1],  b(x') the expert's chance of survival from x',

and u(x), linear in the shared covariates and at most 1 in size, says that much lactate and a low pressure ask for
fluid while poor lungs and kidneys speak against it.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from experiments.icu_wheel import IcuArrays
from fdtr.simulation import NO_DISCLOSURE_RULES, Act, Move, Optimal, SimulatedWorld, Trajectory, Value

Array = NDArray[np.float64]
Codes = NDArray[np.intp]


@dataclass(frozen=True)
class Measure:
    """A covariate: its place among the 47 variables of a cluster (None: the SOFA score), and its public range.

    `ask` is its weight in u, the direction in which planted effects ask for fluid.
    """

    name: str
    position: int | None
    effect: Literal["shared", "specific"]
    low: float
    high: float
    ask: float = 0.0


# The wheel does not name the variables; the order is that of the program by which its authors made them.
MEASURES = (
    Measure("lactate", 30, "shared", -0.5, 4.0, ask=1.0),
    Measure("mean_bp", 9, "shared", -2.0, 3.0, ask=-0.5),
    Measure("creatinine", 38, "shared", -1.5, 3.0, ask=-1.0),
    Measure("oxygenation", 34, "shared", -1.5, 4.0, ask=1.0),
    Measure("sofa", None, "specific", 0.0, 24.0),
)
"""The columns of a state. Creatinine was standardised on the log scale; oxygenation is PaO2/FiO2."""

DOSES = {"low": (0, 1), "middle": (2,), "high": (3, 4)}
"""Levels of fluid in each dose."""

EXPERT, RANDOM, LIKING = 0.4, 0.2, 0.4
"""What a site's clinicians are a mixture of."""

FACTOR_SHAPE = 4.0
"""Of the gamma law of g."""

ENDS = np.array(["", "death", "survival"])


@dataclass(frozen=True)
class IcuSpec:
    """The specification of hospitals cut from ICU-Sepsis, with steps of `windows` four-hour windows each.

    `deviation` in [0, 1] moves each site's dynamics from those of ICU-Sepsis, `effect` ≥ 0 is planted at all sites;
    with `follow_up`, patients who survive after the last step count too.
    """

    n_sites: int = 5
    horizon: int = 9
    windows: int = 2
    deviation: float = 0.3
    effect: float = 0.0
    follow_up: bool = False

    def __post_init__(self) -> None:
        if min(self.n_sites, self.horizon, self.windows) < 1:
            raise ValueError("a world needs 1 site, 1 step and 1 window a step at least")
        if not 0 <= self.deviation <= 1:
            raise ValueError(f"deviation is {self.deviation:g}; it is a weight from 0 to 1")
        if not 0 <= self.effect < np.inf:
            raise ValueError(f"effect is {self.effect:g}; it is a number from 0 on")


@dataclass(frozen=True, eq=False)
class IcuWorld(SimulatedWorld):
    """K sites of S clusters and A doses.

    `transitions` (K, A, S, S + 2): where a step leads; the last two are death and survival. `initial` (S,): where
    patients arrive. `centres` (S, m): the covariates of each cluster. `chances` (K, S, A): what clinicians do. `after`
    (K, S): what is still to come for a patient in hospital after the last step.
    """

    spec: IcuSpec
    transitions: Array
    initial: Array
    centres: Array
    chances: Array
    after: Array
    _edges: dict[int, Array] = field(default_factory=dict, repr=False)

    def study(self, **learning: float | str) -> dict[str, Any]:
        """Content of a study file for this world, p(a) = (1, a, a²); `learning` goes into its [learning]."""
        return {
            "name": "icu-sepsis",
            "horizon": self.horizon,
            "actions": {"levels": list(range(self.n_actions)), "labels": list(DOSES), "degree": 2},
            "covariates": [{"name": m.name, "effect": m.effect, "range": [m.low, m.high]} for m in MEASURES],
            "features": {"intercept": "specific", "scale": "unit"},
            "reward": {"range": [0.0, 1.0]},
            "ends": {"death": 0.0, "survival": 0.0},  # the reward of survival is on its row
            "learning": learning,
            "disclosure": NO_DISCLOSURE_RULES,
        }

    def sample(self, site: int, n: int, rng: np.random.Generator, act: Act | None = None) -> Trajectory:
        """`n` fresh patients of a site, treated by `act`, or as the site's clinicians do, until they leave.

        Each patient has one uniform number for each step, whatever is done: from equal generators two policies meet the
        same patients with the same luck.
        """
        chance, choice = rng.spawn(2)
        luck = chance.random((self.horizon + 2, n))  # on arrival, at each step, after the last
        shape, live = (self.horizon, n), len(self.initial)
        states = np.full((*shape, len(self.covariates)), np.nan)
        actions, lengths = np.full(shape, -1, dtype=np.intp), np.full(n, self.horizon, dtype=np.intp)
        rewards, expected = np.zeros(shape), np.zeros(shape)
        place, present = self._first(luck[0]), np.arange(n)
        for h in range(self.horizon):
            cluster = place[present]
            states[h, present] = self.centres[cluster]
            if act is None:
                edges = np.cumsum(self.chances[site][cluster], axis=1)[:, :-1]
                actions[h, present] = np.sum(choice.random(len(cluster))[:, None] >= edges, axis=1)
            else:
                actions[h, present] = act(states[h, present], h)
            expected[h, present] = self._mean_rewards(site, h)[actions[h, present], cluster]
            place[present] = self._onward(site, h, cluster, actions[h, present], luck[[h + 1, -1]][:, present])
            rewards[h, present] = place[present] == live + 1
            left = place[present] >= live
            lengths[present[left]] = h + 1
            present = present[~left]
            if not len(present):
                break
        return Trajectory(states, actions, rewards, expected, lengths, ENDS[np.maximum(place - live + 1, 0)])

    def arrive(self, site: int, n: int, rng: np.random.Generator) -> Array:  # noqa: ARG002 - the same at every site
        """States (n, m) of `n` fresh patients."""
        return self.centres[self._first(rng.random(n))]

    def move(self, site: int, step: int, states: Array, codes: NDArray[Any], rng: np.random.Generator) -> Move:
        """What becomes of patients in `states` (n, m) who get `codes` (n,) at a step."""
        cluster, chosen, live = self.clusters(states), np.asarray(codes, dtype=np.intp), len(self.initial)
        place = self._onward(site, step, cluster, chosen, rng.random((2, len(cluster))))
        later = self.centres[np.where(place < live, place, cluster)]
        rewards = (place == live + 1).astype(np.float64)
        expected = self._mean_rewards(site, step)[chosen, cluster]
        return Move(rewards, expected, later, ENDS[np.maximum(place - live + 1, 0)])

    def value(self, site: int, act: Act | None, n: int = 0, rng: np.random.Generator | None = None) -> Value:  # noqa: ARG002
        """V^π by dynamic programming over all clusters, without error; `n` and `rng` are not needed.

        `act` must be a rule of state and step that does not draw; None are the site's clinicians.
        """
        later, every = self.after[site], np.arange(len(self.initial))
        for h in reversed(range(self.horizon)):
            ahead = self._ahead(site, later)
            if act is None:
                later = np.einsum("sa,as->s", self.chances[site], ahead)
            else:
                later = ahead[np.asarray(act(self.centres.copy(), h)).astype(np.intp), every]
        return Value(float(self.initial @ later), 0.0)

    def behaviour_value(self, site: int, n: int = 0, rng: np.random.Generator | None = None) -> Value:  # noqa: ARG002
        """What the site's clinicians reach, without error."""
        return self.value(site, None)

    def best_rule(self, site: int) -> Act:
        """π*."""
        return self.optimal(site).act

    def optimal(self, site: int) -> Optimal:
        """The best of all rules that choose a dose by cluster and step, and its value, without error."""
        later, best = self.after[site], np.empty((self.horizon, len(self.initial)), dtype=np.intp)
        for h in reversed(range(self.horizon)):
            ahead = self._ahead(site, later)
            best[h], later = ahead.argmax(axis=0), ahead.max(axis=0)
        return Optimal(
            lambda states, step: best[step][self.clusters(states)], float(self.initial @ later), 0.0, exact=True
        )

    def still_in(self, site: int) -> float:
        """The share of patients whom the site's clinicians still have in hospital after the last step."""
        present, stay = self.initial, _mix(self.transitions[site], self.chances[site])[:, : len(self.initial)]
        for _ in range(self.horizon):
            present = present @ stay
        return float(present.sum())

    def clusters(self, states: Array) -> Codes:
        """The cluster (n,) of `states` (n, m), which must be those of this world."""
        distance, nearest = self._tree.query(np.asarray(states, dtype=np.float64))
        if np.any(distance > 1e-4):
            raise ValueError("a state belongs to none of this world's clusters")
        return np.asarray(nearest, dtype=np.intp)

    @cached_property
    def _tree(self) -> Any:
        from scipy.spatial import KDTree

        return KDTree(self.centres)

    def _first(self, luck: Array) -> Codes:
        edges = np.cumsum(self.initial)
        return np.searchsorted(edges / edges[-1], luck, side="right")

    def _onward(self, site: int, step: int, cluster: Codes, codes: Codes, luck: Array) -> Codes:
        """Where patients (n,) are a step later, by `luck` (2, n) for the step and for what follows the last."""
        live = len(self.initial)
        if site not in self._edges:
            # The pair p of dose and cluster has its cumulated chances in [p, p + 1]: one sorted search for all pairs.
            sums = np.cumsum(self.transitions[site].reshape(-1, live + 2), axis=1)
            self._edges[site] = (np.arange(len(sums))[:, None] + sums / sums[:, -1:]).ravel()
        pair = codes * live + cluster
        below_one = np.minimum(luck[0], 1 - 1e-9)  # so that the sum is not rounded up to the next pair
        place = np.searchsorted(self._edges[site], pair + below_one, side="right") - pair * (live + 2)
        if self.spec.follow_up and step == self.horizon - 1:
            survives = luck[1] < self.after[site][np.minimum(place, live - 1)]
            place = np.where(place < live, live + survives, place)
        return np.asarray(place, dtype=np.intp)

    def _ahead(self, site: int, later: Array) -> Array:
        """Q (A, S): survival now, or `later` (S,) from where the step leads."""
        rows = self.transitions[site]
        ahead: Array = rows[..., -1] + rows[..., : len(later)] @ later
        return ahead

    def _mean_rewards(self, site: int, step: int) -> Array:
        """(A, S)."""
        last = step == self.horizon - 1
        means: Array = self._ahead(site, self.after[site]) if last else self.transitions[site][..., -1]
        return means


def make_icu_world(spec: IcuSpec, arrays: IcuArrays, rng: np.random.Generator) -> IcuWorld:
    """Draw what is each site's own; `arrays` come from `load_icu_sepsis`, or are those of a smaller MDP.

    >>> rng = np.random.default_rng(0)
    >>> arrays = IcuArrays(  # 10 states instead of 713
    ...     transitions=rng.dirichlet(np.ones(12), (10, 5, 5)),
    ...     initial=np.full(10, 0.1),
    ...     expert=np.full((10, 5, 5), 1 / 25),
    ...     centres=rng.standard_normal((10, 47)),
    ...     sofa=rng.uniform(0.0, 20.0, 10),
    ... )
    >>> world = make_icu_world(IcuSpec(n_sites=2), arrays, rng)
    >>> world.behaviour_value(0).mean < world.optimal(0).value
    True
    """
    rows, expert = _by_dose(arrays)
    centres = np.column_stack([_column(arrays, measure) for measure in MEASURES])
    if len(np.unique(centres, axis=0)) < len(centres):
        raise ValueError("two clusters have the same covariates, which therefore do not say where a patient is")
    rows = _plant(rows, expert, spec.effect * _ask(centres, arrays.initial))
    transitions, chances = [], []
    for own in rng.spawn(spec.n_sites):
        liking = np.exp(own.standard_normal(len(DOSES)))
        chances.append(EXPERT * expert + RANDOM / len(DOSES) + LIKING * liking / liking.sum())
        factors = own.gamma(FACTOR_SHAPE, 1 / FACTOR_SHAPE, (len(DOSES), 1, rows.shape[-1]))
        moved = (1 - spec.deviation) * rows + spec.deviation * _tilt(rows, factors)
        transitions.append(_hold(moved, spec.windows))
    after = [
        _survival(*site) if spec.follow_up else np.zeros(len(centres))
        for site in zip(transitions, chances, strict=True)
    ]
    return IcuWorld(
        sites=tuple(f"site-{k + 1:0{len(str(spec.n_sites))}d}" for k in range(spec.n_sites)),
        covariates=tuple(measure.name for measure in MEASURES),
        horizon=spec.horizon,
        n_actions=len(DOSES),
        spec=spec,
        transitions=np.stack(transitions),
        initial=arrays.initial,
        centres=centres,
        chances=np.stack(chances),
        after=np.stack(after),
    )


def _by_dose(arrays: IcuArrays) -> tuple[Array, Array]:
    """Transitions (A, S, S + 2) of the doses, and how often the expert gives each, (S, A)."""
    rows, chances = [], []
    for levels in map(list, DOSES.values()):
        expert = arrays.expert[:, levels]
        total = expert.sum(axis=(1, 2), keepdims=True)
        share = np.where(total > 0, expert / np.where(total > 0, total, 1.0), 1.0 / expert[0].size)
        rows.append(np.einsum("sfv,sfvt->st", share, arrays.transitions[:, levels]))
        chances.append(total[:, 0, 0])
    return np.stack(rows), np.stack(chances, axis=1)


def _column(arrays: IcuArrays, measure: Measure) -> Array:
    """A covariate of every cluster as it is recorded, (S,)."""
    raw = arrays.sofa if measure.position is None else arrays.centres[:, measure.position]
    return np.asarray(np.round(np.clip(raw, measure.low, measure.high), 3), dtype=np.float64)


def _ask(centres: Array, initial: Array) -> Array:
    """u (S,): how much a state asks for fluid, 0 on average on arrival and at most 1 in size."""
    width = np.array([measure.high - measure.low for measure in MEASURES])
    ask = centres / width @ np.array([measure.ask for measure in MEASURES])
    ask = ask - initial @ ask / initial.sum()
    scaled: Array = ask / np.abs(ask).max()
    return scaled


def _plant(rows: Array, expert: Array, strength: Array) -> Array:
    """`rows` (A, S, S + 2) where high doses do good to states of positive `strength` (S,), and low to others."""
    benefit = np.append(_survival(rows, expert), [0.0, 1.0])
    dose = np.linspace(-1.0, 1.0, len(rows))[:, None, None]
    return _tilt(rows, np.exp(dose * strength[:, None] * benefit))


def _tilt(rows: Array, factors: Array) -> Array:
    """Chances in proportion to rows times factors, on the same support."""
    weights = rows * factors
    tilted: Array = weights / weights.sum(axis=-1, keepdims=True)
    return tilted


def _hold(rows: Array, windows: int) -> Array:
    """Transitions (A, S, S + 2) when a dose lasts for several windows; death and survival stay."""
    live = rows.shape[1]
    stay = np.broadcast_to(np.eye(live + 2)[live:], (len(rows), 2, live + 2))
    whole: Array = np.linalg.matrix_power(np.concatenate([rows, stay], axis=1), windows)[:, :live]
    return whole


def _mix(rows: Array, chances: Array) -> Array:
    """Transitions (S, S + 2) when doses are given with `chances` (S, A)."""
    mixed: Array = np.einsum("sa,ast->st", chances, rows)
    return mixed


def _survival(rows: Array, chances: Array) -> Array:
    """The chance to survive in the end, (S,), when doses are given with `chances` for good: v = P v + P(survival)."""
    mixed = _mix(rows, chances)
    live = len(mixed)
    return np.asarray(np.linalg.solve(np.eye(live) - mixed[:, :live], mixed[:, -1]), dtype=np.float64)
