"""One replication: draw a world and its patients, fit every method, and value every policy in that world.

Everybody is tuned the same way: with "auto" each method chooses what it has, c included, from the site's own patients.
Policies of one site are valued on the same simulated patients with the same luck, so that differences are paired.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fdtr.algebra.pessimism import argmax_first
from fdtr.features import FeatureMap
from fdtr.learners.backward import Fit
from fdtr.learners.voting import MajorityVote
from fdtr.pipeline.reproduce.replications import anew
from fdtr.simulation.authors import AuthorsSpec, make_authors_world
from fdtr.simulation.icu_sepsis import IcuSpec, make_icu_world
from fdtr.simulation.icu_wheel import Arrays, fetch, load_arrays
from fdtr.simulation.linear import WorldSpec, make_world
from fdtr.simulation.worlds import Act, Simulated, constant
from fdtr.site import fit_federated, fit_local, fit_q_learning, read_trajectories
from fdtr.study import Study
from fdtr.summary import combine
from fdtr.trajectories import Trajectories

Array = NDArray[np.float64]
Spec = WorldSpec | AuthorsSpec | IcuSpec

FDTR_AUTO = "FDTR (auto)"
LDTR_AUTO = "LDTR (auto)"
Q_LEARN_H = "Q-learn (H)"
BASELINES = (LDTR_AUTO, "LDTR (MV, auto)", "Q-learn (1)", "Q-learn (1-MV)", Q_LEARN_H)
"""What FDTR (auto) is compared with: the paper's five, those with settings tuned as it is."""

PAPERS = ("FDTR (c = 0.005, λ = 1)", "LDTR (c = 0.005, λ = 1)")
"""Both learners with the settings of the paper's Section 5.1, and w = 1."""

METHODS = (FDTR_AUTO, *BASELINES, *PAPERS)

AUTO: dict[str, Any] = {"pessimism": "auto", "ridge": "auto", "sharing": "auto", "share": "auto"}
PAPER: dict[str, Any] = {"pessimism": 0.005, "ridge": 1.0, "sharing": 1.0, "share": "value"}


@dataclass(frozen=True, eq=False)
class Trial:
    """What one replication needs: a world's `spec`, the `sizes` (patients a site) tried in it, and its `seeds`.

    Values come from `fresh` patients of each site.
    """

    spec: Spec
    sizes: tuple[int, ...]
    seeds: np.random.SeedSequence
    fresh: int


@dataclass(frozen=True)
class References:
    """What needs no data: values of clinicians, of the best constant action and of the optimum."""

    behaviour: float
    constant: float
    optimum: float

    @property
    def span(self) -> float:
        """How much better than clinicians a policy can be."""
        return self.optimum - self.behaviour


@dataclass(frozen=True, eq=False)
class Outcome:
    """Values of one replication, each a mean over sites: `methods`[n][method], and the references."""

    methods: Mapping[int, Mapping[str, float]]
    references: References


@dataclass(frozen=True, eq=False)
class Drawn:
    """A world, and a way to value a rule at each of its sites on the same patients every time."""

    world: Any
    fresh: int
    patients: Sequence[np.random.SeedSequence]

    def values_at(self, site: int, acts: Sequence[Act | None]) -> Array:
        """What rules are worth at one site, all on the same patients; None is what clinicians do."""
        rng = np.random.default_rng(anew(self.patients[site]))
        return np.array([found.mean for found in self.world.values(site, acts, self.fresh, rng)])

    def references_at(self, site: int) -> "References":
        """What clinicians, the best constant action and the optimum reach at one site."""
        world = self.world
        acts = [None, world.best_rule(site), *(constant(code) for code in range(world.n_actions))]
        behaviour, optimum, *constants = self.values_at(site, acts)
        return References(float(behaviour), float(max(constants)), float(optimum))


def draw(trial: Trial) -> tuple[Drawn, dict[int, np.random.SeedSequence]]:
    """The world of a trial, and the seeds of the table of each size."""
    of_world, of_patients, of_tables = anew(trial.seeds).spawn(3)
    world = _make(trial.spec, np.random.default_rng(of_world))
    tables = dict(zip(trial.sizes, of_tables.spawn(len(trial.sizes)), strict=True))
    return Drawn(world, trial.fresh, of_patients.spawn(len(world.sites))), tables


def _make(spec: Spec, rng: np.random.Generator) -> Simulated:
    if isinstance(spec, IcuSpec):
        return make_icu_world(spec, _icu_arrays(), rng)
    return make_world(spec, rng) if isinstance(spec, WorldSpec) else make_authors_world(spec, rng)


@cache
def _icu_arrays() -> Arrays:
    """Read once in each process; whoever asks for such a world has fetched the wheel before."""
    return load_arrays(fetch())


def read(world: Any, n: int, seeds: np.random.SeedSequence) -> Trajectories:
    """The patients of all sites, `n` at each; every site draws from a child of `seeds`."""
    table = pa.table(world.table(n, np.random.default_rng(seeds)))
    return read_trajectories(table, Study.model_validate(world.study()))


def fit_methods(world: Any, sites: Mapping[str, Trajectories]) -> dict[str, list[Act]]:
    """Every method's rules, one for each site."""
    auto, paper = (Study.model_validate(world.study(**learning)) for learning in (AUTO, PAPER))
    found: dict[str, list[Act]] = {}
    for study, fdtr, ldtr in ((auto, FDTR_AUTO, LDTR_AUTO), (paper, *PAPERS)):
        local = {site: fit_local(study, rows) for site, rows in sites.items()}
        total = combine(fit.summary for fit in local.values())
        together = [fit_federated(study, rows, total, local[site].summary) for site, rows in sites.items()]
        found[fdtr], found[ldtr] = [fit.policy.act for fit in together], [fit.policy.act for fit in local.values()]
        if study is auto:
            vote = MajorityVote("LDTR (MV)", tuple(fit.policy for fit in local.values()))
            found["LDTR (MV, auto)"] = [vote.act] * len(sites)
    q = [fit_q_learning(auto, rows) for rows in sites.values()]
    single = tuple(policies["Q-learn (1)"] for policies in q)
    found["Q-learn (1)"] = [policy.act for policy in single]
    found["Q-learn (1-MV)"] = [MajorityVote("Q-learn (1-MV)", single).act] * len(sites)
    found[Q_LEARN_H] = [policies["Q-learn (H)"].act for policies in q]
    return found


def run_trial(trial: Trial) -> Outcome:
    """Fit and value every method at every size."""
    drawn, tables = draw(trial)
    methods = {}
    for n, seeds in tables.items():
        rules = fit_methods(drawn.world, read(drawn.world, n, seeds).by_site())
        by_site = [drawn.values_at(k, [rules[method][k] for method in METHODS]) for k in range(len(drawn.patients))]
        methods[n] = dict(zip(METHODS, np.mean(by_site, axis=0).tolist(), strict=True))
    return Outcome(methods, mean_references(drawn))


def mean_references(drawn: Drawn) -> References:
    """The references, averaged over sites."""
    by_site = [drawn.references_at(k) for k in range(len(drawn.patients))]
    return References(*np.mean([[r.behaviour, r.constant, r.optimum] for r in by_site], axis=0).tolist())


def rule_of(fit: Fit, features: FeatureMap) -> Act:
    """How a fit acts, for a world that counts actions from 0."""
    order = np.arange(features.n_actions)

    def act(states: Array, step: int) -> NDArray[np.intp]:
        psi = features.psi(features.clip(np.ascontiguousarray(states.T)))
        return argmax_first(fit.bounds[step].bounds(psi), order)

    return act
