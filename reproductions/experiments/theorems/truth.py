"""What is true of a fit at one site of a linear world: what its rule is worth, and how far its estimates are off.

States are drawn once from every law ν_{b,i} of every step, and serve every fit: with W(b, i) = E[V(x')] under ν_{b,i},
the Bellman operator (𝔹V)(x, a) = μ(x, a) + Σ_i x1_i [(1−a) W(0, i) + a W(1, i)] is known for every state and action,
for V̂ of a fit and for V^π of a rule alike. All that is left is the Monte-Carlo error of W, which is reported.

`judge_trial` is one replication of the experiments on pessimism: draw a world and its patients, fit, compare.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.misspecified_world import misspecify
from experiments.replications import anew
from experiments.theorems.fitting import fit_together, read_patients
from fdtr import Study
from fdtr.learners import Fit, Settings
from fdtr.simulation import World, WorldSpec, make_world

Array = NDArray[np.float64]
Codes = NDArray[np.intp]

PROBES = 300
"""States at which the confidence event is looked at, for every action and step."""


@dataclass(frozen=True, eq=False)
class Stage:
    """States at one step, in `groups` of equal size: one for each law ν_{b,i} by which patients came.

    `psi` (m, n) is ψ(x), `own` (n, m1) is x1, and `rewards` (A, n) the mean reward of every action.
    """

    groups: int
    psi: Array
    own: Array
    rewards: Array

    def by_group(self, values: Array) -> Array:
        """(groups, n/groups) from (n,)."""
        return values.reshape(self.groups, -1)


@dataclass(frozen=True, eq=False)
class Followed:
    """A rule's value V₁^π: at each first state (n,), its `mean` and the Monte-Carlo `standard_error` of that.

    `arrivals` of each step are the chances of having come by each law, (groups,).
    """

    at_first: Array
    mean: float
    standard_error: float
    arrivals: tuple[Array, ...]


@dataclass(frozen=True, eq=False)
class Judged:
    """One fit beside the truth of its site.

    `promised` is the mean V̂₁ over first states and `value` V₁^π̂ on the same, with `standard_error`; `kept` is the share
    of first states with V̂₁(x) ≤ V₁^π̂(x). `suboptimality` is V₁* − V₁^π̂ and `bound` what Theorem 2 allows it,
    2 Σ_h E_π*[Γ_h]. For every step, `inside` is the share of probed pairs (x, a) with |φᵀθ̂ − 𝔹V̂| ≤ Γ, and
    `everywhere` says whether ‖θ̂ − θ̄‖_Σ ≤ α, with 𝔹V̂ = φᵀθ̄: then the same holds at every pair there could be.
    """

    promised: float
    value: float
    standard_error: float
    kept: float
    suboptimality: float
    bound: float
    inside: Array
    everywhere: NDArray[np.bool_]

    @property
    def pessimistic(self) -> bool:
        """V̂₁ ≤ V₁^π̂ on average over first states."""
        return self.promised <= self.value

    @property
    def confident(self) -> bool:
        """Whether the confidence event holds at every probed pair of every step."""
        return bool(self.inside.min() == 1.0)


@dataclass(frozen=True, eq=False)
class SiteTruth:
    """Draws of one site: a stage for each step, and `probes` at which the confidence event is looked at.

    `doses` (A,) are the actions' a; `theta_shared` (H, d0) and `theta_specific` (H, d1) are the truth on the study's
    scaled features, and `norm` what their scaling divides by.
    """

    stages: tuple[Stage, ...]
    probes: tuple[Stage, ...]
    doses: Array
    theta_shared: Array
    theta_specific: Array
    norm: float

    @property
    def horizon(self) -> int:
        """The number of steps, H."""
        return len(self.stages)

    def later(self, stage: Stage, ahead: Array) -> Array:
        """E[V(x') | x, a] of every action at the states of a stage, (A, n); `ahead` (2, m1) is W."""
        stay, move = ahead @ stage.own.T
        later: Array = stay + self.doses[:, None] * (move - stay)
        return later

    def ahead_of(self, step: int, values: Array | None) -> Array:
        """W (2, m1) on leaving a step, from V (n,) at the states of the next one; 0 after the last."""
        if values is None:
            return np.zeros((2, self.stages[0].own.shape[1]))
        means: Array = self.stages[step + 1].by_group(values).mean(axis=1)
        return means.reshape(2, -1)

    def optimum(self) -> tuple[tuple[Codes, ...], Followed]:
        """π* at the states of every stage, and what it is worth."""
        choices: list[Codes] = []
        values: Array | None = None
        for h in reversed(range(self.horizon)):
            q = self.stages[h].rewards + self.later(self.stages[h], self.ahead_of(h, values))
            choices.append(q.argmax(axis=0))
            values = q.max(axis=0)
        return tuple(reversed(choices)), self.follow(tuple(reversed(choices)))

    def follow(self, choices: Sequence[Codes]) -> Followed:
        """V^π of a rule that takes `choices` (n,) at the states of each stage."""
        values: Array | None = None
        spreads: list[Array] = []
        for h in reversed(range(self.horizon)):
            stage = self.stages[h]
            q = stage.rewards + self.later(stage, self.ahead_of(h, values))
            values = np.take_along_axis(q, choices[h][None], axis=0)[0]
            groups = stage.by_group(values)
            spreads.append(groups.var(axis=1) / groups.shape[1])
        arrivals = self._arrivals(choices)
        # First states are shared with V̂₁, so that their own luck does not enter the comparison.
        variance = sum(float(a**2 @ s) for a, s in zip(arrivals[1:], spreads[-2::-1], strict=True))
        first = values if values is not None else np.zeros(0)
        return Followed(first, float(first.mean()), float(np.sqrt(variance)), arrivals)

    def _arrivals(self, choices: Sequence[Codes]) -> tuple[Array, ...]:
        """By which law patients came to each step, (groups,)."""
        arrivals = [np.ones(1)]
        for stage, codes in zip(self.stages[:-1], choices, strict=False):
            dose = self.doses[codes]
            leaving = np.stack([(1.0 - dose)[:, None] * stage.own, dose[:, None] * stage.own], axis=1)
            by_group = leaving.reshape(stage.groups, -1, leaving[0].size).mean(axis=1)
            arrivals.append(arrivals[-1] @ by_group)
        return tuple(arrivals)

    def judge(self, fit: Fit, best: tuple[Codes, ...], best_followed: Followed) -> Judged:
        """Compare a fit with the truth of its site; `best` and `best_followed` come from `optimum`."""
        choices: list[Codes] = []
        inside, everywhere = np.empty(self.horizon), np.empty(self.horizon, dtype=np.bool_)
        promised: Array | None = None
        allowed = 0.0
        for h in reversed(range(self.horizon)):
            stage, rule = self.stages[h], fit.bounds[h]
            ahead = self.ahead_of(h, promised)
            inside[h] = self._inside(fit, h, ahead)
            everywhere[h] = self._off(fit, h, ahead) <= fit.penalties[h].scale
            penalties = rule.penalties(stage.psi)
            bounds = rule.estimates(stage.psi) - penalties
            choices.append(bounds.argmax(axis=0))
            promised = np.clip(bounds.max(axis=0), rule.floor, rule.cap)
            width = np.take_along_axis(penalties, best[h][None], axis=0)[0]
            allowed += float(best_followed.arrivals[h] @ stage.by_group(width).mean(axis=1))
        followed = self.follow(tuple(reversed(choices)))
        first = promised if promised is not None else np.zeros(0)
        return Judged(
            promised=float(first.mean()),
            value=followed.mean,
            standard_error=followed.standard_error,
            kept=float(np.mean(first <= followed.at_first)),
            suboptimality=best_followed.mean - followed.mean,
            bound=2.0 * allowed,
            inside=inside,
            everywhere=everywhere,
        )

    def choices(self, fit: Fit) -> tuple[Codes, ...]:
        """What a fit does at the states of every stage."""
        pairs = zip(fit.bounds, self.stages, strict=True)
        return tuple(rule.bounds(stage.psi).argmax(axis=0) for rule, stage in pairs)

    def _inside(self, fit: Fit, step: int, ahead: Array) -> float:
        """Share of probed pairs at which the estimate is no further from 𝔹V̂ than Γ."""
        probe, rule = self.probes[step], fit.bounds[step]
        error = rule.estimates(probe.psi) - probe.rewards - self.later(probe, ahead)
        return float(np.mean(np.abs(error) <= rule.penalties(probe.psi)))

    def _off(self, fit: Fit, step: int, ahead: Array) -> float:
        """‖θ̂ − θ̄‖_Σ, where 𝔹V̂ = φᵀθ̄ (in a valid world)."""
        later = self.norm * np.concatenate([ahead[0], ahead[1] - ahead[0]])
        truth = np.concatenate([self.theta_shared[step], self.theta_specific[step] + later])
        off = fit.theta[step] - truth
        return float(np.sqrt(off @ fit.precision[step] @ off))


def draw_truth(world: World, site: int, study: Study, draws: int, probes: int, rng: np.random.Generator) -> SiteTruth:
    """Draw the states of a site's truth: `draws` from every law, and `probes` states, every third of them a corner."""
    norm = world.spec.feature_norm
    arrived = [_arrivals(world, site, h, draws, rng) for h in range(world.horizon - 1)]
    states = [world.arrive(site, 2 * draws, rng)[None], *arrived]
    probed = _probe(world, probes, rng)

    def stage(step: int, grouped: Array) -> Stage:
        flat = grouped.reshape(-1, grouped.shape[-1])
        codes = [np.full(len(flat), code) for code in range(world.n_actions)]
        rewards = np.stack([world.expected_reward(site, flat, code, step) for code in codes])
        psi = study.feature_map.psi(np.ascontiguousarray(flat.T))
        return Stage(len(grouped), psi, np.ascontiguousarray(flat[:, world.spec.n_shared :]), rewards)

    return SiteTruth(
        stages=tuple(stage(h, grouped) for h, grouped in enumerate(states)),
        probes=tuple(stage(h, probed[None]) for h in range(world.horizon)),
        doses=world.dose(np.arange(world.n_actions)),
        theta_shared=norm * world.site_theta_shared[site],
        theta_specific=norm * world.theta_specific[site],
        norm=norm,
    )


def _arrivals(world: World, site: int, step: int, n: int, rng: np.random.Generator) -> Array:
    """`n` states from every ν_{b,i} by which patients leave a step, (2·m1, n, m). x0' has the law of a first x0."""
    if world.spec.shared_kind != "redrawn":
        raise ValueError(
            f"x0 is {world.spec.shared_kind} in this world: the next state does not come from ν_{{b,i}} alone"
        )
    own = world.luck(site, step, n, rng).own
    own = own.reshape(-1, n, own.shape[-1])
    shared = world.arrive(site, own[..., 0].size, rng)[:, : world.spec.n_shared]
    return np.concatenate([shared.reshape(*own.shape[:-1], -1), own], axis=-1)


def _probe(world: World, n: int, rng: np.random.Generator) -> Array:
    """States all over the space: x0 in the unit cube and x1 on the simplex, (n, m); the last third are corners."""
    m0, m1 = world.spec.n_shared, world.spec.n_specific
    states = np.hstack([rng.random((n, m0)), rng.dirichlet(np.ones(m1), n)])
    corners = n // 3
    states[n - corners :, :m0] = rng.integers(0, 2, (corners, m0))
    states[n - corners :, m0:] = np.eye(m1)[rng.integers(0, m1, corners)]
    return states


@dataclass(frozen=True, eq=False)
class Trial:
    """What one replication needs: a world's `spec` and `departure` from it, `n` patients a site, settings to try.

    `draws` states from every law of transition find the truth.
    """

    spec: WorldSpec
    departure: float
    n: int
    learning: tuple[Settings, ...]
    draws: int
    seeds: np.random.SeedSequence


def judge_trial(trial: Trial) -> list[list[Judged]]:
    """FDTR with every setting at every site beside the truth: by setting, then by site.

    Messages come from LDTR with the same setting, as in Algorithm 2, but never with pessimism in units of noise.
    """
    of_world, of_table, *of_truth = (np.random.default_rng(s) for s in anew(trial.seeds).spawn(2 + trial.spec.n_sites))
    world = misspecify(make_world(trial.spec, of_world), trial.departure)
    patients = read_patients(world.study(), world.table(trial.n, of_table))
    fits = [fit_together(patients, learning).federated for learning in trial.learning]
    by_site: list[list[Judged]] = []
    for site, rng in enumerate(of_truth):  # one site's draws at a time: they are large
        truth = draw_truth(world, site, patients.study, trial.draws, PROBES, rng)
        best, followed = truth.optimum()
        by_site.append([truth.judge(together[site], best, followed) for together in fits])
    return [list(of_setting) for of_setting in zip(*by_site, strict=True)]


@dataclass(frozen=True, eq=False)
class Cell:
    """All that was judged with one setting in one kind of world: by run, then by site."""

    runs: Sequence[Sequence[Judged]]

    def each(self, field: str) -> NDArray[Any]:
        """A field of every judgement, (runs, sites, …)."""
        return np.array([[getattr(judged, field) for judged in run] for run in self.runs])
