"""Methods compared on known worlds: which worlds there are, and one replication in one of them.

A replication draws a world and its patients, fits every method, and values every policy in that world. All methods are
tuned the same way: with "auto", a study's default, each chooses the settings that it has, pessimism included, from the
site's own patients. Policies of one site are valued on the same simulated patients with the same luck, so that
differences are paired.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from experiments.authors_world import FIGURE_2, AuthorsSpec, AuthorsWorld, make_authors_world
from experiments.icu_wheel import IcuArrays, fetch_icu_sepsis, load_icu_sepsis
from experiments.icu_world import IcuSpec, IcuWorld, make_icu_world
from experiments.replications import anew, seeds_of
from fdtr import Study, Trajectories, combine, fit_federated, fit_local, read_trajectories
from fdtr.learners import Fit, MajorityVote
from fdtr.simulation import (
    Act,
    DiscreteSpec,
    TabularWorld,
    World,
    WorldSpec,
    constant_rule,
    make_discrete_world,
    make_world,
)
from fdtr.site import fit_q_learning

Array = NDArray[np.float64]
Result = TypeVar("Result")
Spec = WorldSpec | AuthorsSpec | IcuSpec | DiscreteSpec
KnownWorld = World | AuthorsWorld | IcuWorld | TabularWorld
Purpose = Literal["design", "confirmation"]
Size = int | tuple[int, ...]
"""Patients: one number for all sites, or one for each."""

FDTR_AUTO = "FDTR (auto)"
LDTR_AUTO = "LDTR (auto)"
Q_LEARN_H = "Q-learn (H)"
BASELINES = (LDTR_AUTO, "LDTR (MV, auto)", "Q-learn (1)", "Q-learn (1-MV)", Q_LEARN_H)
"""What FDTR (auto) is compared with: the paper's five, those with settings tuned as it is."""

PAPERS = ("FDTR (c = 0.005, λ = 1)", "LDTR (c = 0.005, λ = 1)")
"""Both learners with the settings of the paper's Section 5.1, and w = 1."""

METHODS = (FDTR_AUTO, *BASELINES, *PAPERS)

AUTO: dict[str, Any] = {"pessimism": "auto", "ridge": "auto", "sharing": "auto", "share": "auto"}
"""The defaults of a study."""

PAPER: dict[str, Any] = {"pessimism": 0.005, "ridge": 1.0, "sharing": 1.0, "share": "value"}

DEVIATION = 0.8
"""How far sites' effects lie from the common one, in standard deviations of an effect."""

_SHAPES = ("(8,6,15,5)", "(20,2,5,5)")
_VARIANTS: dict[str, dict[str, Any]] = {
    "valid": {},
    "valid, narrow behaviour": {"behaviour": "narrow"},
    "valid, softmax behaviour": {"behaviour": "softmax"},
    "valid, little noise": {"noise": 0.2},
    "valid, rewards 0 or 1": {"noise": 1.0},
    "deviating effects": {"deviation": DEVIATION},
    "static covariates": {"shared_kind": "static"},
    "static, deviating effects": {"shared_kind": "static", "deviation": DEVIATION},
    "driving covariates": {"shared_kind": "driving"},
    "driving, deviating effects": {"shared_kind": "driving", "deviation": DEVIATION},
}


def linear_of(panel: str) -> WorldSpec:
    """A valid linear MDP of a panel's shape (d, |A|, H, K)."""
    authors = FIGURE_2[panel]
    shape = ("n_sites", "n_shared", "n_specific", "n_actions", "horizon")
    return WorldSpec(**{name: getattr(authors, name) for name in shape})


@dataclass(frozen=True)
class Case:
    """A world to try: what it is `called`, its `shape` (d, |A|, H, K), and a `number` that its seeds are known by.

    `sizes` are those to try in it, None for those of the plan. `purpose` tells worlds that a rule of tuning was
    designed on from worlds that it was confirmed on.
    """

    called: str
    shape: str
    number: int
    spec: Spec
    sizes: tuple[Size, ...] | None = None
    purpose: Purpose = "design"


def all_cases() -> list[Case]:
    """All worlds but those cut from ICU-Sepsis, in every shape."""
    specs: dict[tuple[str, str], Spec] = {}
    for shape in _SHAPES:
        specs |= {(name, shape): replace(linear_of(shape), **changed) for name, changed in _VARIANTS.items()}
        specs["authors' generator", shape] = FIGURE_2[shape]
        specs["authors' generator, intercept", shape] = replace(FIGURE_2[shape], intercept="specific")
    return [Case(*key, number, spec) for number, (key, spec) in enumerate(specs.items())]


UNEQUAL = (300, 5000, 50, 2000, 120, 800)
"""Sizes of six sites; clinicians of later ones have more skill."""


def hard_cases() -> list[Case]:
    """Worlds that a linear method's friends would not pick, and sites, steps, sizes and features far from the usual.

    Sites, steps and sizes differ one at a time from six sites and five steps.
    """
    ward = DiscreteSpec()
    crossed = DiscreteSpec(kind="crossed")
    linear = WorldSpec(n_sites=6, n_shared=5, n_specific=5, n_actions=2, horizon=5)
    wide = replace(linear, n_shared=40, n_specific=40)
    worlds: dict[str, DiscreteSpec | WorldSpec] = {
        "ward": ward,
        "ward, 15 steps": replace(ward, horizon=15),
        "ward, early ends": replace(ward, ends=True),
        "ward, deviating": replace(ward, deviation=0.5),
        "ward, 1 step": replace(ward, horizon=1),
        "ward, 3 sites": replace(ward, n_sites=3),
        "ward, 10 sites": replace(ward, n_sites=10),
        "ward, 30 sites": replace(ward, n_sites=30),
        "ward, 24 steps": replace(ward, horizon=24),
        "ward, confounded": replace(ward, confounding=1.0),
        "ward, censored": replace(ward, censoring=0.1),
        "crossed": crossed,
        "crossed, deviating": replace(crossed, deviation=0.5),
        "valid, 160 features": wide,
        "ward, unequal sites": ward,
        "valid, unequal sites": linear,
        "crossed, confounded": replace(crossed, confounding=1.0),
        "crossed, 10 sites": replace(crossed, n_sites=10),
        "ward, habits": replace(ward, habit=True),
        "ward, habits, early ends": replace(ward, habit=True, ends=True),
        "ward, habits, unequal sites": replace(ward, habit=True),
        "ward, early ends, unequal sites": replace(ward, ends=True),
        "ward, habits, deviating": replace(ward, habit=True, deviation=0.5),
        "valid, strongly deviating": replace(linear, deviation=1.5),
        "crossed, unequal sites": crossed,
    }
    designed = ("ward", "ward, 15 steps", "ward, early ends", "ward, deviating", "ward, 1 step", "ward, 3 sites",
                "ward, 10 sites", "crossed", "crossed, deviating", "valid, 160 features", "ward, unequal sites",
                "ward, habits")  # fmt: skip
    sizes: dict[str, tuple[Size, ...]] = {
        "ward, 15 steps": (50, 200, 500),
        "ward, 1 step": (200, 2000),
        "ward, 3 sites": (50, 200, 2000),
        "ward, 10 sites": (50, 200, 500),
        "ward, confounded": (50, 200, 2000),
        "ward, censored": (50, 200, 2000),
        "ward, 30 sites": (200,),
        "ward, 24 steps": (200, 500),
        "valid, 160 features": (200, 2000),
        "ward, unequal sites": (UNEQUAL,),
        "valid, unequal sites": (UNEQUAL,),
        "crossed, confounded": (500,),
        "crossed, 10 sites": (200, 2000),
        "ward, habits": (200, 2000),
        "ward, habits, early ends": (200, 2000),
        "ward, habits, unequal sites": (UNEQUAL,),
        "ward, early ends, unequal sites": (UNEQUAL,),
        "ward, habits, deviating": (50, 200, 2000),
        "valid, strongly deviating": (50, 200, 2000),
        "crossed, unequal sites": (UNEQUAL,),
    }
    return [
        Case(name, _shape(spec), number, spec, sizes.get(name), "design" if name in designed else "confirmation")
        for number, (name, spec) in enumerate(worlds.items(), start=2000)
    ]


def _shape(spec: DiscreteSpec | WorldSpec) -> str:
    """(d, |A|, H, K); the first two are those of the smallest world of its kind."""
    world = draw_world(replace(spec, n_sites=1, horizon=1), np.random.default_rng(0))
    d = Study.model_validate(world.study()).feature_map.n_features
    return f"({d},{world.n_actions},{spec.horizon},{spec.n_sites})"


def icu_cases() -> list[Case]:
    """Hospitals cut from ICU-Sepsis, as it is and with a planted effect worth finding; fetched if need be."""
    fetch_icu_sepsis()
    shape = "(18,3,9,5)"
    return [
        Case("ICU-Sepsis", shape, 1000, IcuSpec()),
        Case("ICU-Sepsis, planted effect", shape, 1001, IcuSpec(effect=4.0, follow_up=True)),
    ]


def few_cases() -> list[Case]:
    """Three small ones, two sites and two steps, to see that everything runs."""
    names = ("valid", "deviating effects", "authors' generator")
    few = [case for case in all_cases() if case.shape == _SHAPES[-1] and case.called in names]
    return [replace(case, shape="(20,2,2,2)", spec=replace(case.spec, horizon=2, n_sites=2)) for case in few]


@dataclass(frozen=True, eq=False)
class Trial:
    """What one replication needs: a world's `spec`, the `sizes` (patients a site) tried in it, and its `seeds`.

    Values come from `fresh` patients of each site.
    """

    spec: Spec
    sizes: tuple[Size, ...]
    seeds: np.random.SeedSequence
    fresh: int

    @property
    def key(self) -> str:
        """What its outcome is known by, where outcomes are kept."""
        return f"{self.spec} {self.sizes} {self.fresh} {self.seeds.entropy} {self.seeds.spawn_key}"


@dataclass(frozen=True)
class Plan:
    """How many patients a site, how often, and in which worlds; `experiment` tells its seeds from those of others.

    `sizes` are for cases that have none of their own.
    """

    experiment: int
    replications: int
    fresh: int
    sizes: tuple[int, ...] = (200, 500)
    seed: int = 0
    cases: Sequence[Case] = field(default_factory=all_cases)

    def quick(self) -> "Plan":
        """Seconds instead of minutes: enough to see that everything runs, and for nothing else."""
        return replace(self, sizes=(50,), replications=2, fresh=200, cases=few_cases())

    def trials(self) -> list[Trial]:
        """All replications of a case, one case after another."""
        return [
            Trial(case.spec, case.sizes or self.sizes, seeds_of(self.seed, self.experiment, case.number, r), self.fresh)
            for case in self.cases
            for r in range(self.replications)
        ]

    def by_case(self, outcomes: Sequence[Result]) -> list[tuple[Case, Sequence[Result]]]:
        """The outcomes of `trials`, by their case."""
        starts = range(0, len(outcomes), self.replications)
        parts = [outcomes[start : start + self.replications] for start in starts]
        return list(zip(self.cases, parts, strict=True))


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

    methods: Mapping[Size, Mapping[str, float]]
    references: References


@dataclass(frozen=True, eq=False)
class Drawn:
    """A world, and a way to value a rule at each of its sites on the same patients every time."""

    world: KnownWorld
    fresh: int
    patients: Sequence[np.random.SeedSequence]

    def values_at(self, site: int, acts: Sequence[Act | None]) -> Array:
        """What rules are worth at one site, all on the same patients; None is what clinicians do."""
        rng = np.random.default_rng(anew(self.patients[site]))
        return np.array([value.mean for value in self.world.values(site, acts, self.fresh, rng)])

    def references_at(self, site: int) -> "References":
        """What clinicians, the best constant action and the optimum reach at one site."""
        world = self.world
        acts = [None, world.best_rule(site), *(constant_rule(code) for code in range(world.n_actions))]
        behaviour, optimum, *constants = self.values_at(site, acts)
        return References(float(behaviour), float(max(constants)), float(optimum))


def draw(trial: Trial) -> tuple[Drawn, dict[Size, np.random.SeedSequence]]:
    """The world of a trial, and the seeds of the table of each size."""
    of_world, of_patients, of_tables = anew(trial.seeds).spawn(3)
    world = draw_world(trial.spec, np.random.default_rng(of_world))
    tables = dict(zip(trial.sizes, of_tables.spawn(len(trial.sizes)), strict=True))
    return Drawn(world, trial.fresh, of_patients.spawn(len(world.sites))), tables


def draw_world(spec: Spec, rng: np.random.Generator) -> KnownWorld:
    """The world of a specification, of whichever kind."""
    if isinstance(spec, IcuSpec):
        return make_icu_world(spec, _icu_arrays(), rng)
    if isinstance(spec, DiscreteSpec):
        return make_discrete_world(spec, rng)
    return make_world(spec, rng) if isinstance(spec, WorldSpec) else make_authors_world(spec, rng)


@cache
def _icu_arrays() -> IcuArrays:
    """Read once in each process; whoever asks for such a world has fetched the wheel before."""
    return load_icu_sepsis(fetch_icu_sepsis())


def read(world: KnownWorld, n: Size, seeds: np.random.SeedSequence) -> Trajectories:
    """The patients of all sites, `n` at each, or one number for each; every site draws from a child of `seeds`."""
    table = pa.table(world.table(n, np.random.default_rng(seeds)))
    return read_trajectories(table, Study.model_validate(world.study()))


def fit_methods(world: KnownWorld, sites: Mapping[str, Trajectories]) -> dict[str, list[Act]]:
    """Fit every method; the treatment rules by method, one for each site."""
    auto, paper = (Study.model_validate(world.study(**learning)) for learning in (AUTO, PAPER))
    rules: dict[str, list[Act]] = {}
    for study, fdtr, ldtr in ((auto, FDTR_AUTO, LDTR_AUTO), (paper, *PAPERS)):
        local = {site: fit_local(study, rows) for site, rows in sites.items()}
        total = combine(fit.summary for fit in local.values())
        together = [fit_federated(study, rows, total, local[site].summary) for site, rows in sites.items()]
        rules[fdtr], rules[ldtr] = [fit.policy.act for fit in together], [fit.policy.act for fit in local.values()]
        if study is auto:
            vote = MajorityVote("LDTR (MV)", tuple(fit.policy for fit in local.values()))
            rules["LDTR (MV, auto)"] = [vote.act] * len(sites)
    q = [fit_q_learning(auto, rows) for rows in sites.values()]
    single = tuple(policies["Q-learn (1)"] for policies in q)
    rules["Q-learn (1)"] = [policy.act for policy in single]
    rules["Q-learn (1-MV)"] = [MajorityVote("Q-learn (1-MV)", single).act] * len(sites)
    rules[Q_LEARN_H] = [policies["Q-learn (H)"].act for policies in q]
    return rules


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


def rule_of(fit: Fit, study: Study) -> Act:
    """The treatment rule of a fit, in action codes from 0; among equal bounds the first action is taken."""
    features = study.feature_map

    def act(states: Array, step: int) -> NDArray[np.intp]:
        psi = features.psi(features.clip(np.ascontiguousarray(states.T)))
        best: NDArray[np.intp] = fit.bounds[step].bounds(psi).argmax(axis=0)
        return best

    return act
