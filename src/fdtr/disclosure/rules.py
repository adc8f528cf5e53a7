"""The rules for sums over patients: what each asks of a step, and what follows where it is broken.

N (enough patients), RATIO (few features per patient), ACTION (enough patients at every action that is used, because
with p(a) ⊗ ψ(x) the sums are those of each action), CELL, NONZERO and PAIR (no small cell of a column, within an
action), LEVERAGE (nobody dominates), BOUND (features and targets inside the bounds that everything else relies on),
COLLINEAR (something is left to learn from), and, at the hub, SITES. ONCE looks back at earlier releases (`once`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fdtr.errors import (
    DisclosureError,
    FewNonzero,
    NothingShared,
    OutOfBounds,
    SmallCell,
    SmallPair,
    TooFewPatients,
    TooFewPerAction,
    TooFewSites,
    TooManyFeatures,
    TooMuchLeverage,
)

Payload = Literal["schur", "gram"]

_ROUNDING = 1e-9
ACTION_MARGIN = 10
"""Patients at an action beyond the length of ψ: with fewer, the action's sums could be solved for its rows."""


@dataclass(frozen=True)
class Rules:
    """What leaves the site, and the thresholds, from the study's [disclosure].

    `norm_bound` is the largest ‖φ‖ allowed, None where none is stated; `max_patients` may be None; `noised` asks
    for the noise of differential privacy.
    """

    payload: Payload
    min_patients: int
    max_ratio: float
    min_action: int
    min_cell: int
    max_leverage: float
    norm_bound: float | None
    max_patients: int | None = None
    small_step: Literal["refuse", "withhold"] = "refuse"
    noised: bool = False


@dataclass(frozen=True)
class Smallest:
    """The fewest patients in a cell that is not empty, and which one it is."""

    count: int
    where: str


@dataclass(frozen=True)
class StepFacts:
    """What the rules look at in one step.

    Counts; the features' `rank`; the largest ‖φ‖; the range of Y; the largest `leverage`; the smallest cells, None
    where there are none; and why nothing is left of the shared features, empty where something is.
    """

    n: int
    rank: int
    action_counts: NDArray[np.int64]
    n_functions: int
    largest_norm: float
    target_low: float
    target_high: float
    leverage: float
    cell: Smallest | None = None
    nonzero: Smallest | None = None
    pair: Smallest | None = None
    absorbed: str = ""


@dataclass(frozen=True)
class Verdict:
    """One rule at one step (None: the message as a whole): whether it holds, what was measured, what is asked.

    `otherwise` is what a broken rule does, `advice` a sentence on what to do about it, beside the usual.
    """

    rule: type[DisclosureError]
    step: int | None
    holds: bool
    measured: str
    asked: str
    otherwise: Literal["refuse", "withhold", "warn"] = "refuse"
    advice: str = ""

    @property
    def refuses(self) -> bool:
        """Whether nothing may be released."""
        return not self.holds and self.otherwise == "refuse"

    @property
    def withholds(self) -> bool:
        """Whether the step stays at home."""
        return not self.holds and self.otherwise == "withhold"

    @property
    def warns(self) -> bool:
        """Whether the site should know, and may release."""
        return not self.holds and self.otherwise == "warn"

    @property
    def sentence(self) -> str:
        """For the site's own eyes."""
        place = "" if self.step is None else f"step {self.step}, "
        told = f"{place}rule {self.rule.rule}: {self.measured}; the study asks for {self.asked}."
        return f"{told} {self.advice}" if self.advice else told


def judge(facts: Sequence[StepFacts], rules: Rules) -> list[Verdict]:
    """Every rule at every step."""
    return [verdict for step, fact in enumerate(facts) for verdict in _judge_step(step, fact, rules, len(facts))]


def withheld_steps(verdicts: Sequence[Verdict]) -> list[int]:
    """Steps that stay at home."""
    return sorted({verdict.step for verdict in verdicts if verdict.withholds and verdict.step is not None})


def _judge_step(step: int, fact: StepFacts, rules: Rules, horizon: int) -> list[Verdict]:
    used = fact.action_counts[fact.action_counts > 0]
    fewest = int(used.min()) if len(used) else 0
    per_action = max(rules.min_action, fact.n_functions + ACTION_MARGIN)
    ratio = fact.rank / fact.n if fact.n else np.inf
    small = rules.small_step
    return [
        Verdict(
            TooFewPatients, step, fact.n >= rules.min_patients,
            _patients(fact.n), f"at least {rules.min_patients}", small,
        ),
        Verdict(
            TooManyFeatures, step, ratio <= rules.max_ratio,
            f"{fact.rank} independent features for {_patients(fact.n)}", f"at most {rules.max_ratio:g} for each", small,
        ),
        Verdict(
            TooFewPerAction, step, fewest >= per_action,
            f"{_patients(fewest)} at the least used action", f"none or at least {per_action}", small,
        ),
        _judge_cell(SmallCell, step, fact.cell, "in the rarer of two values of", rules),
        _judge_cell(FewNonzero, step, fact.nonzero, "apart from zero or from the most common value in", rules),
        *([_judge_cell(SmallPair, step, fact.pair, "in a cell of", rules)] if rules.payload == "gram" else []),
        Verdict(
            TooMuchLeverage, step, fact.leverage <= rules.max_leverage * (1 + _ROUNDING),
            f"one patient has a leverage of {fact.leverage:.2f}", f"at most {rules.max_leverage:g}", small,
        ),
        _judge_bounds(step, fact, rules, horizon - step),
        Verdict(
            NothingShared, step, not fact.absorbed,
            f"nothing is left of the shared features: {fact.absorbed}" if fact.absorbed else "something is left",
            "shared features that vary beside the site's own", "warn",
        ),
    ]  # fmt: skip


def _judge_cell(rule: type[DisclosureError], step: int, smallest: Smallest | None, which: str, rules: Rules) -> Verdict:
    holds = smallest is None or smallest.count >= rules.min_cell
    found = "no cell to look at" if smallest is None else f"{_patients(smallest.count)} {which} {smallest.where}"
    return Verdict(rule, step, holds, found, f"none or at least {rules.min_cell}", rules.small_step)


def _patients(count: int) -> str:
    return f"{count} patient{'s' * (count != 1)}"


def _judge_bounds(step: int, fact: StepFacts, rules: Rules, cap: int) -> Verdict:
    bounded = rules.norm_bound is not None and fact.largest_norm <= rules.norm_bound * (1 + _ROUNDING)
    inside = fact.target_low >= -_ROUNDING and fact.target_high <= cap * (1 + _ROUNDING)
    fits = rules.max_patients is None or fact.n <= rules.max_patients
    found = ["inside" if holds else "outside" for holds in (bounded, inside)]
    limit = "a stated norm_bound" if rules.norm_bound is None else f"a norm of at most {rules.norm_bound:g}"
    most = "" if rules.max_patients is None else f" and at most {rules.max_patients} patients"
    return Verdict(
        OutOfBounds,
        step,
        bounded and inside and fits,
        f"features {found[0]} and targets {found[1]} their bounds{'' if fits else f', {_patients(fact.n)}'}",
        f"{limit} and targets inside [0, {cap}]{most}",
    )


def require_sites(n_sites: Sequence[int], min_sites: int, site_level_covariates: int) -> None:
    """Rule SITES: K ≥ `min_sites`, and K > q0(q0+1)/2 for q0 shared covariates that are constant within a site.

    `n_sites` counts the sites that sent sums of each step; one that nobody sent says nothing of anybody. With
    site-constant covariates that everybody knows, fewer sites could be told apart in the sum.
    """
    unmixing = site_level_covariates * (site_level_covariates + 1) // 2
    needed = max(min_sites, unmixing + 1)
    for step, count in enumerate(n_sites):
        if 0 < count < needed:
            most = max(n_sites)
            where = "" if count == most else f" with sums of step {step}, which the others withheld"
            raise TooFewSites(
                f"{count} site{'s' if count > 1 else ''} came together{where}; rule SITES asks for {needed}"
                + (f", because {site_level_covariates} shared covariates are constant within a site" * bool(unmixing))
                + ". Nothing was written. Wait for more sites"
                + (", or shorten the horizon in the study." if where else ".")
            )
