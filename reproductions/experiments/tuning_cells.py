"""Cells of the experiment on tuning, a world at one size: what automatic settings reach there, and what they miss."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray

from experiments.comparison import FDTR_AUTO, LDTR_AUTO, Q_LEARN_H, Case, Plan, Purpose, Size
from experiments.findings import Figure, Finding, Table
from experiments.intervals import Interval, bootstrap, mean, share
from experiments.replications import seeds_of
from experiments.tuning import (
    BEFORE,
    ENOUGH,
    EXPERIMENT,
    FIXED,
    METHODS,
    PESSIMISMS,
    PLAIN,
    Outcome,
    size_name,
)
from fdtr.learners import NoiseUnits
from fdtr.tuning import Candidate, candidates_of

if TYPE_CHECKING:
    import altair

Array = NDArray[np.float64]

REACHED = ("auto", "before", "plain", "ladder_c", "ladder_noise", "ladder_more_noise", "alone", "q_learning")
"""Columns of a table for what each of them reaches."""

RIVALS = {"before": BEFORE, "plain": PLAIN, "alone": LDTR_AUTO, "q_learning": Q_LEARN_H}
"""Methods that FDTR (auto) is compared with, by their columns."""

RIDGES = tuple(candidate.ridge for candidate in candidates_of(sharing=0.0))
"""λ from which auto chooses."""

LEAST, SMALL = 0.97, 0.05
"""Auto should reach so much of what the best fixed setting gains, where that is more than `SMALL` of the span."""

ALLOWED_LOSS = 1.0
"""In percent of (optimum − behaviour), against the rule before, and against a best fixed setting of small gain."""

HARM, RARELY = 0.05, 0.05
"""A site is harmed if it is worse than alone by so much of (optimum − behaviour), which should be as rare as this."""

ASKED = (
    f"Asked is {LEAST:.0%} of what the best fixed setting gains over clinicians; where that is under {SMALL:.0%} of "
    f"(optimum − behaviour), to be no more than {ALLOWED_LOSS:g}% of (optimum − behaviour) behind. Intervals are 95% "
    "over replications."
)
SPLIT = (
    "Of the worlds for confirmation, `ward, habits, deviating`, `valid, strongly deviating` and `crossed, unequal "
    "sites` were run with no rule before this one. The others had been run with earlier rules, from which this one was "
    "made."
)
MESSAGES = "Messages come from fits with c = 0.0005, λ = 0.01 throughout; a study that fixes c and λ would send others."


@dataclass(frozen=True)
class Row:
    """One cell, a world at one size: what methods reach, in percent of `span`, (optimum − behaviour).

    `ratio` is what FDTR (auto) gains over what the best fixed setting gains, NaN where that is under 5% of the span;
    `less_…` are FDTR (auto) less another method, the best constant action or the best fixed setting, with 95% limits.
    `harmed` is the share of sites that are worse than alone by 5% of the span, `sharing` the mean w, `more_cautious`
    the share of sites that took the larger pessimism. `best` names the fixed setting that is best on all replications,
    `small_ridge` is what the best one with a λ of the ladder reaches.
    """

    purpose: str
    world: str
    shape: str
    n: str
    span: float
    auto: float
    before: float
    plain: float
    ladder_c: float
    ladder_noise: float
    ladder_more_noise: float
    alone: float
    q_learning: float
    constant: float
    fixed: float
    ratio: float
    ratio_low: float
    ratio_high: float
    less_before: float
    less_before_low: float
    less_before_high: float
    less_plain: float
    less_plain_low: float
    less_plain_high: float
    less_alone: float
    less_alone_low: float
    less_alone_high: float
    less_q_learning: float
    less_q_learning_low: float
    less_q_learning_high: float
    less_constant: float
    less_constant_low: float
    less_constant_high: float
    less_fixed: float
    less_fixed_low: float
    less_fixed_high: float
    harmed: float
    harmed_high: float
    sharing: float
    more_cautious: float
    small_ridge: float
    best: str

    @property
    def called(self) -> str:
        """The cell by name."""
        return f"{self.world}, {self.shape}, n = {self.n}"

    @property
    def enough(self) -> bool:
        """Whether sites have at least `ENOUGH` patients; those of unequal sites count as enough."""
        return not self.n.isdecimal() or int(self.n) >= ENOUGH

    @property
    def reaches(self) -> bool:
        """Whether auto gains as much of the best fixed setting's gain as it should."""
        return self.ratio >= LEAST if np.isfinite(self.ratio) else self.less_fixed >= -ALLOWED_LOSS


def find(plan: Plan, by_case: "Sequence[tuple[Case, Sequence[Outcome]]]") -> Finding:
    """Compare what "auto" chooses with the rule before, with going alone, and with fixed settings."""
    rows = [row_of(case, n, outcomes) for case, outcomes in by_case for n in case.sizes or plan.sizes]
    return Finding(
        title="What tuning chooses",
        shows=[ASKED, *_against_constant(rows), *describe(rows), SPLIT, MESSAGES],
        tables=[Table("tuning", rows)],
        figures=[Figure("tuning", "What FDTR (auto) gains of the best fixed setting's gain", partial(_draw, rows))],
    )


def row_of(case: Case, n: Size, outcomes: Sequence[Outcome]) -> Row:
    """One cell. The best fixed setting of one half of the replications is scored on the other; both ways, averaged."""
    values = [outcome.by_size[n] for outcome in outcomes]
    span = float(np.mean([outcome.span for outcome in outcomes]))
    behaviour, constant = (np.array([o.references[:, column].mean() for o in outcomes]) for column in (0, 1))
    settings = np.array([v.fixed for v in values])
    by_method = {m: np.array([outcome.mean_of(n, m) for outcome in outcomes]) for m in METHODS}
    auto, fixed = by_method[FDTR_AUTO], _best_of_other_half(settings)

    def reached(value: Array) -> float:
        return float(100 * (value - behaviour).mean() / span)

    def less(value: Array) -> Interval:
        return mean(100 * (auto - value) / span)

    ratio = Interval(np.nan, np.nan, np.nan)
    if reached(fixed) > 100 * SMALL:
        rng = np.random.default_rng(seeds_of(0, EXPERIMENT, case.number, int(np.max(n))))
        ratio = bootstrap(
            np.column_stack([auto, fixed]) - behaviour[:, None], lambda gain: float(gain[0] / gain[1]), rng
        )
    named, on_average = list(product(FIXED, PESSIMISMS)), settings.mean(axis=0)
    small = np.where([candidate.ridge <= max(RIDGES) for candidate, _ in named], on_average, -np.inf)
    together, alone = (np.array([v.methods[:, METHODS.index(m)] for v in values]) for m in (FDTR_AUTO, LDTR_AUTO))
    harmed = share(together < alone - HARM * span)
    rivals = {name: by_method[m] for name, m in RIVALS.items()} | {"constant": constant, "fixed": fixed}
    limits = [f"less_{name}{end}" for name in rivals for end in ("", "_low", "_high")]
    columns: dict[str, Any] = {
        **{name: reached(by_method[method]) for name, method in zip(REACHED, METHODS, strict=True)},
        **dict(zip(limits, (end for value in rivals.values() for end in less(value).ends), strict=True)),
        "constant": reached(constant),
        "fixed": reached(fixed),
        "small_ridge": reached(settings[:, int(small.argmax())]),
        "sharing": float(np.mean([v.sharing for v in values])),
        "more_cautious": float(np.mean([v.cautious for v in values])),
    }
    return Row(
        purpose=case.purpose, world=case.called, shape=case.shape, n=size_name(n), span=span,
        ratio=ratio.estimate, ratio_low=ratio.low, ratio_high=ratio.high,
        harmed=harmed.estimate, harmed_high=harmed.high, best=_name(*named[int(on_average.argmax())]), **columns,
    )  # fmt: skip


def _best_of_other_half(settings: Array) -> Array:
    """What the setting reaches that is best on the other half of the replications, (R,); `settings` (R, settings)."""
    reached, even = np.empty(len(settings)), np.arange(len(settings)) % 2 == 0
    for half in (even, ~even):
        reached[~half] = settings[~half, settings[half].mean(axis=0).argmax()]
    return reached


def _name(candidate: Candidate, pessimism: float | NoiseUnits) -> str:
    how = f"noise = {pessimism.noise:g}" if isinstance(pessimism, NoiseUnits) else f"c = {pessimism:g}"
    shared = f"w = {candidate.sharing:g}, {candidate.share}s" if candidate.sharing else "alone"
    return f"{how}, λ = {candidate.ridge:g}, {shared}"


def describe(rows: Sequence[Row]) -> list[str]:
    """What the rows show, for each purpose: few and enough patients, and every cell that misses something."""
    sentences = []
    for purpose in get_args(Purpose):
        of_purpose = [row for row in rows if row.purpose == purpose]
        if not of_purpose:
            continue
        worlds = dict.fromkeys(row.world for row in of_purpose)
        sentences.append(f"Worlds for {purpose}, {len(of_purpose)} cells (world × n): {'; '.join(worlds)}.")
        few = [row for row in of_purpose if not row.enough]
        enough = [row for row in of_purpose if row.enough]
        sentences += [_summary(f"{purpose.capitalize()}, n < {ENOUGH}", few)] if few else []
        sentences += [_summary(f"{purpose.capitalize()}, n ≥ {ENOUGH}", enough)] if enough else []
        sentences += [sentence for row in enough for sentence in _missed(row)]
    return sentences


def _against_constant(rows: Sequence[Row]) -> list[str]:
    """How FDTR (auto) compares with the best constant action in the world of eight actions, at the least enough n."""
    return [
        f"{row.called}: the best of eight constant actions reaches {row.constant:.1f}% of (optimum − behaviour), FDTR "
        f"(auto) {row.auto:.1f}%: {row.less_constant:+.1f}% ({row.less_constant_low:+.1f}% to "
        f"{row.less_constant_high:+.1f}%)."
        for row in rows
        if row.world == "ward" and row.n == str(ENOUGH)
    ]


def _summary(where: str, rows: Sequence[Row]) -> str:
    """What holds on the whole in some cells."""
    ratios = [row.ratio for row in rows if np.isfinite(row.ratio)]
    spread = f" (median {np.median(ratios):.1%}, least {min(ratios):.1%})" if ratios else ""
    before, plain = [row.less_before for row in rows], [row.less_plain for row in rows]
    ahead, behind = sum(row.less_constant_low > 0 for row in rows), sum(row.less_constant_high < 0 for row in rows)
    harmed = [row.harmed for row in rows]
    asked = sum(row.reaches for row in rows)
    return (
        f"{where}: FDTR (auto) gains what is asked of what the best fixed setting gains in {asked} of {len(rows)} "
        f"cells{spread}. Less the rule before: {_spread(before)} of (optimum − behaviour). Less the plain ladder: "
        f"{_spread(plain)}; the interval lies above 0 in {sum(row.less_plain_low > 0 for row in rows)} cells, below 0 "
        f"in {sum(row.less_plain_high < 0 for row in rows)}. Less the best constant action: the interval lies above 0 "
        f"in {ahead} cells, below 0 in {behind}. Sites worse than alone by {HARM:.0%} of (optimum − behaviour): "
        f"{np.mean(harmed):.1%} of site-runs, at most {max(harmed):.1%} in a cell."
    )


def _spread(differences: Sequence[float]) -> str:
    return f"{min(differences):+.2f}% to {max(differences):+.2f}%, mean {np.mean(differences):+.2f}%"


def _missed(row: Row) -> list[str]:
    """What a cell misses, and why."""
    sentences = []
    if not row.reaches:
        ratio = f"{row.ratio:.1%} ({row.ratio_low:.1%} to {row.ratio_high:.1%})"
        fault = f"Less than {LEAST:.0%}: {row.called}, {ratio}"
        if not np.isfinite(row.ratio):
            limits = f"{row.less_fixed:+.2f}% ({row.less_fixed_low:+.2f}% to {row.less_fixed_high:+.2f}%)"
            fault = f"More than {ALLOWED_LOSS:g}% below the best fixed setting: {row.called}, {limits}"
        sentences.append(
            f"{fault}; auto reaches {row.auto:.1f}% of (optimum − behaviour), the setting that is best on the other "
            f"half {row.fixed:.1f}% (best on all replications: {row.best}). {_why(row)}"
        )
    taken = (
        f"Sites took w = {row.sharing:.2f} on average, for values or rewards, and the larger pessimism in "
        f"{row.more_cautious:.0%}."
    )
    if row.less_before < -ALLOWED_LOSS:
        sentences.append(
            f"Behind the rule before by more than {ALLOWED_LOSS:g}%: {row.called}, {row.less_before:+.2f}% "
            f"({row.less_before_low:+.2f}% to {row.less_before_high:+.2f}%). {taken}"
        )
    if row.harmed > RARELY:
        sentences.append(f"Harmed more often than {RARELY:.0%}: {row.called}, {row.harmed:.1%} of site-runs. {taken}")
    return sentences


def _why(row: Row) -> str:
    """Which of the choices costs most in a cell that does not reach what is asked.

    The loss is what another pessimism gains with the same sharing, what a larger λ gains among fixed settings, and the
    rest, which is how far sites share.
    """
    by_pessimism = {"c = 0.0005": row.ladder_c, "noise = 0.03": row.ladder_noise, "noise = 0.1": row.ladder_more_noise}
    name, reached = max(by_pessimism.items(), key=lambda item: item[1])
    pessimism, ridge = reached - row.auto, max(row.fixed - row.small_ridge, 0.0)
    sharing = row.fixed - row.auto - pessimism - ridge
    if pessimism >= max(ridge, sharing):
        return f"Most of it is pessimism: with {name} at all sites the same sharing would reach {reached:.1f}%."
    if ridge >= sharing:
        return f"Most of it is λ: fixed settings with the λ that auto has reach {row.small_ridge:.1f}% at most."
    return f"Most of it is sharing: sites took w = {row.sharing:.2f} on average, for values or rewards."


def _draw(rows: Sequence[Row]) -> "altair.TopLevelMixin":
    from experiments import charts

    return charts.ratios_by_world(rows, LEAST)
