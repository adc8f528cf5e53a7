"""The disclosure rules for sums over patients: what each requires of a step, and what happens if it is broken.

Messages of weighted rows are judged block by block (`weighted_sums`). The rules here are for all others, Grams among
them, and look at all columns: N (enough patients), RATIO (few features per patient), ACTION (enough patients at every
action that is used, because with p(a) ⊗ ψ(x) the sums are those of each action), CELL, NONZERO and PAIR (no small cell
of a column, within an action), LEVERAGE (no patient dominates), BOUND (features and targets lie inside their public
bounds), COLLINEAR (something is left to learn from), and, at the hub, SITES. Elsewhere: ONCE, on earlier releases, in
`rule_once`; ESS, on values, in `released_values`; NOISE refuses what carries no noise in a study with differential
privacy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, floor, inf, log10, sqrt
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fdtr.errors import DisclosureError, RuleCode

Payload = Literal["schur", "gram"]

_ROUNDING = 1e-9
BLOCK_JITTER = 0.2
"""From this jitter on, sums are no longer exact enough for the attacks that the rules on all columns answer."""

PATIENTS_PER_DIRECTION = 10
"""Rule ACTION: with fewer, subset sums recover two-valued outcomes of patients whose covariates are known."""

ACTION_MARGIN = 10
"""Patients at an action must exceed the length of ψ by this: with fewer, the sums could be solved for its rows."""


STAND_OUT = "stand out by"
"""Words by which NONZERO names patients with an unusual outcome."""


@dataclass(frozen=True)
class Rules:
    """Thresholds from the study's [disclosure], and the kind of `payload` that leaves the site.

    `norm_bound` is the largest ‖φ‖ allowed, None if the study states none; `max_patients` may be None; `noised`
    requires the noise of differential privacy. Weights of rows lie in [1 − `jitter`, 1]. `max_membership` is the
    largest AUC of rule NUMBERS. `alone` says that the hub reads this site's sums, so that it sees what is left out;
    otherwise `fewest_left` sites, of those that a secure sum asks for, are left when some subtract their parts, and
    `sites_left` of those that are known to take part.
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
    jitter: float = 0.0
    max_membership: float = 1.0
    alone: bool = True
    fewest_left: int = 2
    sites_left: int = 2

    @property
    def weighted(self) -> bool:
        """Whether rows are weighted before they are summed: neither in Grams nor beneath noise."""
        return self.jitter > 0 and self.payload == "schur" and not self.noised

    @property
    def by_block(self) -> bool:
        """Whether sums are judged block by block, by what they show; with smaller weights they are too exact."""
        return self.weighted and self.jitter >= BLOCK_JITTER


@dataclass(frozen=True)
class Smallest:
    """The smallest non-empty cell: its `count` of patients, and `where` it is."""

    count: int
    where: str


@dataclass(frozen=True)
class Bounds:
    """The largest ‖φ‖ of a step's rows, and the range of Y."""

    largest_norm: float
    target_low: float
    target_high: float

    @classmethod
    def of(cls, squared_norms: NDArray[np.float64], targets: NDArray[np.float64]) -> "Bounds":
        """Those of some rows, at least one, with these ‖φ‖² and Y."""
        return cls(sqrt(squared_norms.max()), float(targets.min()), float(targets.max()))

    @classmethod
    def widest(cls, parts: Sequence["Bounds"]) -> "Bounds":
        """Those of all rows, from those of parts."""
        if not parts:
            return cls(0.0, 0.0, 0.0)
        return cls(
            max(part.largest_norm for part in parts),
            min(part.target_low for part in parts),
            max(part.target_high for part in parts),
        )


@dataclass(frozen=True)
class StepFacts:
    """What the rules look at in one step.

    Counts; the features' `rank`; the `bounds`; the largest `leverage`; the smallest cells, None if there are none; and
    `absorbed`, why nothing is left of the shared features, empty if something is left.
    """

    n: int
    rank: int
    action_counts: NDArray[np.int64]
    n_functions: int
    bounds: Bounds
    leverage: float
    cell: Smallest | None = None
    nonzero: Smallest | None = None
    pair: Smallest | None = None
    absorbed: str = ""


@dataclass(frozen=True)
class Verdict:
    """One rule at one step: whether it holds, what was measured, and what the study asks for.

    `step` is None for the message as a whole. `otherwise` is the effect of a broken rule: after a repair the rule holds
    for what is sent. `advice` is a further sentence, on what to do or on what was done. `excess` is how many times the
    limit was missed, to compare steps by.
    """

    rule: RuleCode
    step: int | None
    holds: bool
    measured: str
    asked: str
    otherwise: Literal["refuse", "withhold", "repair", "warn"] = "refuse"
    advice: str = ""
    excess: float = field(default=0.0, compare=False)

    @property
    def refuses(self) -> bool:
        """Whether nothing may be released."""
        return not self.holds and self.otherwise == "refuse"

    @property
    def withholds(self) -> bool:
        """Whether the step is left out of the message."""
        return not self.holds and self.otherwise == "withhold"

    @property
    def repaired(self) -> bool:
        """Whether the rule was broken, and holds for what is left in the message."""
        return not self.holds and self.otherwise == "repair"

    @property
    def warns(self) -> bool:
        """Whether the rule only warns: the site may release."""
        return not self.holds and self.otherwise == "warn"

    @property
    def sentence(self) -> str:
        """The verdict in words. It holds counts of patients, so it must not leave the site."""
        place = "" if self.step is None else f"step {self.step}, "
        sentence = f"{place}rule {self.rule}: {self.measured}; the study asks for {self.asked}."
        return f"{sentence} {self.advice}" if self.advice else sentence


@dataclass(frozen=True)
class Shortfall:
    """Why all sites take a part out: the `rule` has `left`, and asks for `needed`; `excess` is how far off that is.

    Patients are those whom nobody can subtract, in fives. Rule SITES counts sites; where `left` is None, one site has
    almost all that varies. NUMBERS is an AUC.
    """

    rule: RuleCode
    left: float | None = None
    needed: float = 0.0
    excess: float = 1.0

    def __str__(self) -> str:
        if self.left is None:
            return "almost all that varies is one site's"
        if self.rule == "NUMBERS":
            return f"an AUC of {self.left:.2f}, at most {self.needed:.2f}"
        return f"{self.left:.0f} of {self.needed:.0f} {'sites' if self.rule == 'SITES' else 'patients'}"

    def measured(self, what: str, subtracted: int) -> str:
        """What was found of the part `what`, where `subtracted` sites may subtract theirs."""
        if self.left is None:
            return f"almost all that varies in {what} is one site's"
        if self.rule == "NUMBERS":
            return f"an AUC of {self.left:.2f} for telling whether a patient is in the total, of which {what} is a part"
        if self.rule == "SITES":
            return f"{self.left:.0f} site{'s' * (self.left != 1)} contribute{'s' * (self.left == 1)} to {what}"
        without = "one site" if subtracted == 1 else f"{subtracted} sites"
        return f"without {without} the others have {counted(int(self.left))} for {what} (rule {self.rule}, in fives)"

    @property
    def asked(self) -> str:
        """What the study asks for."""
        if self.left is None:
            return "columns that vary at several sites"
        return f"at most {self.needed:.2f}" if self.rule == "NUMBERS" else f"at least {self.needed:.0f}"


def judge(facts: Sequence[StepFacts], rules: Rules) -> list[Verdict]:
    """The verdict of every rule at every step."""
    return [verdict for step, fact in enumerate(facts) for verdict in _judge_step(step, fact, rules, len(facts))]


def withheld_steps(verdicts: Sequence[Verdict]) -> list[int]:
    """Steps that are left out of the message."""
    return sorted({verdict.step for verdict in verdicts if verdict.withholds and verdict.step is not None})


def _judge_step(step: int, fact: StepFacts, rules: Rules, horizon: int) -> list[Verdict]:
    used = fact.action_counts[fact.action_counts > 0]
    fewest = int(used.min()) if len(used) else 0
    per_action = max(rules.min_action, fact.n_functions + ACTION_MARGIN)
    ratio = fact.rank / fact.n if fact.n else np.inf
    small = rules.small_step
    return [
        Verdict(
            "N", step, fact.n >= rules.min_patients,
            counted(fact.n), f"at least {rules.min_patients}", small, excess=rules.min_patients / max(fact.n, 1),
        ),
        Verdict(
            "RATIO", step, ratio <= rules.max_ratio,
            f"{fact.rank} independent features for {counted(fact.n)}", f"at most {rules.max_ratio:g} for each", small,
            excess=ratio / rules.max_ratio,
        ),
        Verdict(
            "ACTION", step, fewest >= per_action,
            f"{counted(fewest)} at the least used action", f"none or at least {per_action}", small,
            excess=per_action / max(fewest, 1),
        ),
        _judge_cell("CELL", step, fact.cell, "in the rarer of two values of", rules),
        _judge_cell("NONZERO", step, fact.nonzero, "apart from zero or from the most common value in", rules),
        *([_judge_cell("PAIR", step, fact.pair, "in a cell of", rules)] if rules.payload == "gram" else []),
        Verdict(
            "LEVERAGE", step, fact.leverage <= rules.max_leverage * (1 + _ROUNDING),
            f"one patient has a leverage of {fact.leverage:.2f}", f"at most {rules.max_leverage:g}", small,
            excess=fact.leverage / rules.max_leverage,
        ),
        judge_bounds(step, fact.bounds, fact.n, rules, horizon - step),
        judge_collinear(step, fact.absorbed),
    ]  # fmt: skip


def judge_collinear(step: int, absorbed: str) -> Verdict:
    """Rule COLLINEAR: `absorbed` says why nothing is left of the shared features, empty if something is."""
    measured = f"nothing is left of the shared features: {absorbed}" if absorbed else "something is left"
    return Verdict("COLLINEAR", step, not absorbed, measured, "shared features that vary beside the site's own", "warn")


def _judge_cell(rule: RuleCode, step: int, smallest: Smallest | None, which: str, rules: Rules) -> Verdict:
    holds = smallest is None or smallest.count >= rules.min_cell
    measured = "no cell to look at" if smallest is None else f"{counted(smallest.count)} {which} {smallest.where}"
    excess = 0.0 if smallest is None else rules.min_cell / smallest.count
    return Verdict(rule, step, holds, measured, f"none or at least {rules.min_cell}", rules.small_step, excess=excess)


def counted(count: int) -> str:
    """A number of patients in words."""
    return f"{count} patient{'s' * (count != 1)}"


def listed(items: Sequence[str], most: int = 4) -> str:
    """The first of some items, and how many more there are."""
    shown = ", ".join(items[:most])
    return shown if len(items) <= most else f"{shown} and {len(items) - most} more"


def grouped(parts: Sequence[str]) -> list[str]:
    """Parts of a step in words, with the actions of each part together.

    >>> grouped(["age at action 0", "sex", "age at action 1", "age at action 2"])
    ['age at actions 0, 1 and 2', 'sex']
    """
    places: dict[tuple[str, bool], list[str]] = {}
    for part in parts:
        before, at, action = part.rpartition(" at action ")
        places.setdefault((before if at else part, bool(at)), []).append(action)
    words = []
    for (what, of_actions), actions in places.items():
        *some, last = dict.fromkeys(actions)
        levels = f"s {', '.join(some)} and {last}" if some else f" {last}"
        words.append(f"{what} at action{levels}" if of_actions else what)
    return words


def judge_bounds(step: int, bounds: Bounds, n: int, rules: Rules, cap: int) -> Verdict:
    """Rule BOUND for a step of `n` patients; `cap` is the largest possible Y."""
    bounded = rules.norm_bound is not None and bounds.largest_norm <= rules.norm_bound * (1 + _ROUNDING)
    inside = bounds.target_low >= -_ROUNDING and bounds.target_high <= cap * (1 + _ROUNDING)
    fits = rules.max_patients is None or n <= rules.max_patients
    features, targets = ("inside" if holds else "outside" for holds in (bounded, inside))
    limit = "a stated norm_bound" if rules.norm_bound is None else f"a norm of at most {rules.norm_bound:g}"
    most = "" if rules.max_patients is None else f" and at most {rules.max_patients} patients"
    return Verdict(
        "BOUND",
        step,
        bounded and inside and fits,
        f"features {features} and targets {targets} their bounds{'' if fits else f', {counted(n)}'}",
        f"{limit} and targets inside [0, {cap}]{most}",
    )


def required_sites(min_sites: int, site_level_covariates: int) -> int:
    """How many sites rule SITES asks for: `min_sites`, and more than q0(q0+1)/2."""
    return max(min_sites, site_level_covariates * (site_level_covariates + 1) // 2 + 1)


def require_sites(n_sites: Sequence[int], min_sites: int, site_level_covariates: int) -> None:
    """Rule SITES: K ≥ `min_sites`, and K > q0(q0+1)/2 for q0 shared covariates that are constant within a site.

    `n_sites` counts, for each step, the sites that sent sums of it; a step that nobody sent is not judged. With fewer
    sites, known site-level covariates would allow one to separate the sites in the sum.
    """
    needed = required_sites(min_sites, site_level_covariates)
    for step, count in enumerate(n_sites):
        if 0 < count < needed:
            most = max(n_sites)
            where = "" if count == most else f" with sums of step {step}, which the others withheld"
            raise DisclosureError(
                "SITES",
                f"{count} site{'s' if count > 1 else ''} came together{where}; rule SITES asks for {needed}"
                + (
                    f", because {site_level_covariates} shared covariates are constant within a site"
                    * bool(site_level_covariates)
                )
                + ". Nothing was written. Wait for more sites"
                + (", or shorten the horizon in the study." if where else "."),
            )


def require_patients(site: str, what: str, n: int, least: int) -> None:
    """Rule N for a release that is not a message of sums, such as a Table 1."""
    if n < least:
        raise DisclosureError(
            "N",
            f"Site {site!r} may not release {what}: rule N: {n} patients; the study asks for at least {least}. "
            "Nothing was written. Do not forward this message.",
        )


def membership(share: float) -> float:
    """AUC with which a patient whose trajectory is known is told to be in the sums; `share` is Σ p/n_a.

    >>> round(membership(1.4166), 2)
    0.8
    """
    return NormalDist().cdf(sqrt(max(share, 0.0) / 2))


def largest_share(max_membership: float) -> float:
    """The largest Σ p/n_a of a patient under rule NUMBERS: 2 Φ⁻¹(AUC)²."""
    return 2 * NormalDist().inv_cdf(max_membership) ** 2 if max_membership < 1 else inf


def patients_for(rank: int) -> int:
    """Patients that rule ACTION asks of a block with `rank` independent directions.

    At least ten for each direction, and twice the r(r+1)/2 numbers of S: with as many numbers as patients, somebody
    who knows all covariates could solve for the weights.

    >>> patients_for(3), patients_for(12)
    (30, 156)
    """
    return max(PATIENTS_PER_DIRECTION * rank, rank * (rank + 1))


def outcomes_for(rank: int) -> int:
    """Patients who stand out by an outcome that rule NONZERO asks of a block, unless there are none.

    Beside own intercepts s_r = Σ w φ̃ (r − r₀) is a sum over these few, for any r₀. While they are no more than the
    `rank` numbers of s_r, whoever knows all covariates sees whose they are; two more hide them.

    >>> outcomes_for(3)
    5
    """
    return rank + 2


def numbers_told(rank: int, last: bool) -> float:
    """p, the independent numbers that a block with `rank` directions tells: S, s, s_r, σ̂² and u.

    At the `last` step Y is the reward, and s tells nothing beside s_r.

    >>> numbers_told(2, last=False), numbers_told(0, last=False)
    (9.0, 0.0)
    """
    slope = 3 if last else 5
    return rank * (rank + slope) / 2 + 2 if rank else 0.0


def up_to_tens(n: float) -> int:
    """A number of patients as it leaves a site: up to the next ten, 0 staying 0.

    >>> [up_to_tens(n) for n in (0, 1, 50, 51)]
    [0, 10, 50, 60]
    """
    return 10 * ceil(n / 10)


def decimals_left(standard_error: float) -> int:
    """Decimals to which a number is rounded: steps of a twentieth to half of its standard error.

    >>> decimals_left(0.04), decimals_left(30.0)
    (2, -1)
    """
    return -floor(log10(standard_error / 2))
