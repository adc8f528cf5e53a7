"""What may leave a site before learning: sums over its patients, once the rules hold.

The rules of this version: N (enough patients at every step), RATIO (few features per patient), ACTION (enough
patients at every action that is used, because with p(a) ⊗ ψ(x) the sums are those of each action), BOUND (features
and outcomes inside the bounds that everything else relies on), and, at the hub, SITES (enough sites that a sum does
not stand for one of them).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.schur import whiten
from fdtr.algebra.threads import for_chunks, rows_in_cache
from fdtr.errors import (
    DisclosureError,
    OutOfBounds,
    TooFewPatients,
    TooFewPerAction,
    TooFewSites,
    TooManyFeatures,
)
from fdtr.features import FeatureMap
from fdtr.learners.backward import Fit
from fdtr.learners.sweep import future_values
from fdtr.summary import SiteSummary
from fdtr.trajectories import Chunk, Trajectories

_MADE_HERE = object()
_ROUNDING = 1e-9
ACTION_MARGIN = 10
"""Patients at an action beyond the length of ψ: with fewer, the action's sums could be solved for its rows."""


@dataclass(frozen=True)
class Rules:
    """Thresholds, from the study's [disclosure]; `norm_bound` is the largest ‖φ‖ allowed, None where none is stated."""

    min_patients: int
    max_ratio: float
    min_action: int
    norm_bound: float | None


@dataclass(frozen=True)
class StepFacts:
    """What the rules look at in one step: counts, the features' rank, the largest ‖φ‖, and the range of Y."""

    n: int
    rank: int
    action_counts: NDArray[np.int64]
    n_functions: int
    largest_norm: float
    target_low: float
    target_high: float


@dataclass(frozen=True)
class Verdict:
    """One rule at one step: whether it holds, what was measured, what is asked."""

    rule: type[DisclosureError]
    step: int
    holds: bool
    measured: str
    asked: str

    @property
    def sentence(self) -> str:
        """For the site's own eyes."""
        return f"step {self.step}, rule {self.rule.rule}: {self.measured}; the study asks for {self.asked}."


@dataclass(frozen=True)
class Message:
    """A site's summary that passed the rules. Only `release` makes one, and only this may be sent."""

    summary: SiteSummary
    maker: object = field(repr=False)

    def __post_init__(self) -> None:
        if self.maker is not _MADE_HERE:
            raise TypeError("A Message is made by disclosure.release and by nothing else.")


def release(summary: SiteSummary, facts: Sequence[StepFacts], rules: Rules) -> Message:
    """Make a summary a message that may be sent, or refuse with every reason.

    `facts` are those of every step of the rows that the summary was made from.
    """
    if [fact.n for fact in facts] != summary.sums.n.tolist():
        raise ValueError("The facts are not those of the summary's own steps.")
    broken = [verdict for verdict in judge(facts, rules) if not verdict.holds]
    if broken:
        raise broken[0].rule(
            f"Site {summary.site!r} may not release its sums:\n"
            + "\n".join(f"  {verdict.sentence}" for verdict in broken)
            + "\nNothing was written. Merge action levels, drop covariates or steps in the study, or wait for more "
            "patients; the thresholds stand under [disclosure] in the study file. Do not forward this message."
        )
    return Message(summary, _MADE_HERE)


def measure(rows: Trajectories, features: FeatureMap, fit: Fit) -> list[StepFacts]:
    """The facts of every step, in one pass over its patients."""
    return [_measure_step(rows, features, fit, h) for h in range(rows.horizon)]


def _measure_step(rows: Trajectories, features: FeatureMap, fit: Fit, h: int) -> StepFacts:
    following = fit.bounds[h + 1] if h + 1 < rows.horizon else None

    def extremes(chunk: Chunk) -> tuple[float, float, float]:
        target = chunk.rewards + future_values(chunk, features, [following], out=np.empty((1, len(chunk.rewards))))[0]
        norms = features.squared_norms(features.psi(chunk.states), chunk.actions)
        return float(norms.max()), float(target.min()), float(target.max())

    parts: list[tuple[float, float, float]] = []
    for_chunks(extremes, parts.append, rows.step(h).chunks(rows_in_cache(features.n_functions)))
    found = np.array(parts).reshape(-1, 3)
    sums = fit.statistics[h]
    return StepFacts(
        n=sums.n,
        rank=whiten(sums.gram).rank,
        action_counts=sums.action_counts,
        n_functions=features.n_functions,
        largest_norm=float(np.sqrt(np.max(found[:, 0], initial=0.0))),
        target_low=float(np.min(found[:, 1], initial=0.0)),
        target_high=float(np.max(found[:, 2], initial=0.0)),
    )


def judge(facts: Sequence[StepFacts], rules: Rules) -> list[Verdict]:
    """Every rule at every step."""
    return [verdict for step, fact in enumerate(facts) for verdict in _judge_step(step, fact, rules, len(facts))]


def _judge_step(step: int, fact: StepFacts, rules: Rules, horizon: int) -> list[Verdict]:
    used = fact.action_counts[fact.action_counts > 0]
    fewest = int(used.min()) if len(used) else 0
    per_action = max(rules.min_action, fact.n_functions + ACTION_MARGIN)
    ratio = fact.rank / fact.n if fact.n else np.inf
    cap = horizon - step
    bounded = rules.norm_bound is not None and fact.largest_norm <= rules.norm_bound * (1 + _ROUNDING)
    inside = fact.target_low >= -_ROUNDING and fact.target_high <= cap * (1 + _ROUNDING)
    found = ["inside" if holds else "outside" for holds in (bounded, inside)]
    limit = "a stated norm_bound" if rules.norm_bound is None else f"a norm of at most {rules.norm_bound:g}"
    return [
        Verdict(
            TooFewPatients, step, fact.n >= rules.min_patients,
            f"{fact.n} patients", f"at least {rules.min_patients}",
        ),
        Verdict(
            TooManyFeatures, step, ratio <= rules.max_ratio,
            f"{fact.rank} independent features for {fact.n} patients", f"at most {rules.max_ratio:g} for each",
        ),
        Verdict(
            TooFewPerAction, step, fewest >= per_action,
            f"{fewest} patients at the least used action", f"none or at least {per_action}",
        ),
        Verdict(
            OutOfBounds, step, bounded and inside,
            f"features {found[0]} and targets {found[1]} their bounds",
            f"{limit} and targets inside [0, {cap}]",
        ),
    ]  # fmt: skip


def require_sites(n_sites: int, min_sites: int, site_level_covariates: int) -> None:
    """Rule SITES: K ≥ `min_sites`, and K > q0(q0+1)/2 for q0 shared covariates that are constant within a site.

    With site-constant covariates that everybody knows, fewer sites could be told apart in the sum.
    """
    unmixing = site_level_covariates * (site_level_covariates + 1) // 2
    needed = max(min_sites, unmixing + 1)
    if n_sites < needed:
        raise TooFewSites(
            f"{n_sites} site{'s' if n_sites > 1 else ''} came together; rule SITES asks for {needed}"
            + (f", because {site_level_covariates} shared covariates are constant within a site" if unmixing else "")
            + ". Nothing was written. Wait for more sites."
        )
