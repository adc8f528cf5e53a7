"""Inference on the shared effects where the truth is known: the size and power of Cochran's Q, and coverage of θ⁰.

Rewards alone are needed, so that no policy is fitted: patients of a simulated world are drawn for many runs at once
(`reward_draws`), and each run's Grams and moments go through the same sums that sites send.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from experiments.findings import Figure, Finding, Table
from experiments.intervals import Interval, mean, share
from experiments.replications import Progress, replicate, seeds_of
from experiments.reward_draws import SIZE, Observed, Setting, Trial, observe
from fdtr.inference import sidak
from fdtr.simulation import WorldSpec

if TYPE_CHECKING:
    import altair

Array = NDArray[np.float64]

EXPERIMENT = 51
SIZE_BOUNDS, COVERAGE_BOUNDS, POWER_BOUND = (0.04, 0.06), (0.93, 0.97), 0.05
"""Where rejections of a true common effect and coverage have to lie, and how far power may be from its prediction."""

RUNS_PER_WORLD = 50
SPEC = WorldSpec(n_sites=5, horizon=5)
SIZES = (200, 250, 300, 400, 600)
LIKE, UNLIKE = (0.6,) * 5, (1.0, 0.8, 0.6, 0.4, 0.2)
"""Noise of the sites' rewards over its largest possible: small sites are the noisy ones, five times the largest's."""

BINS = 8


COMMON = (
    Setting("equal variances", SPEC, LIKE, SIZES, 10_000),
    Setting("unequal variances", SPEC, UNLIKE, SIZES, 10_000),
    Setting("unequal, static x0", replace(SPEC, shared_kind="static"), UNLIKE, SIZES, 10_000),
    Setting("unequal, driving x0", replace(SPEC, shared_kind="driving"), UNLIKE, SIZES, 10_000),
    *(Setting(f"unequal, {n} patients a site", SPEC, UNLIKE, (n,) * 5, 5_000, required=False) for n in (30, 50, 100)),
)
"""A true common effect; transitions are not linear where x0 is static or drives them."""

DEVIATING = tuple(
    Setting(f"deviation {d:g}", replace(SPEC, deviation=d), UNLIKE, SIZES, 3_000) for d in (0.2, 0.4, 0.6, 0.8)
)


@dataclass(frozen=True)
class SizeRow:
    """Rejections of a true common effect at 5%, and coverage of 95% intervals for θ⁰, at one step or all.

    `one_variance` is how often Q would reject with one variance for all sites. `held` says whether both lie where they
    have to.
    """

    setting: str
    step: str
    runs: int
    rejected: float
    rejected_low: float
    rejected_high: float
    one_variance: float
    covered: float
    covered_low: float
    covered_high: float
    held: bool


@dataclass(frozen=True)
class BandRow:
    """How often a coefficient's band holds it at all steps, and the joint band all coefficients at all steps."""

    setting: str
    runs: int
    band: float
    band_low: float
    band_high: float
    joint: float
    joint_low: float
    joint_high: float


@dataclass(frozen=True)
class PowerRow:
    """How often Q rejects beside what the non-central χ² says, for one deviation, all steps, or one bin of designs.

    `difference` is `rejected` − `predicted`, with the interval of the worlds' differences.
    """

    setting: str
    noncentrality: float
    cases: int
    predicted: float
    rejected: float
    difference: float
    difference_low: float
    difference_high: float
    held: bool


def run(seed: int, quick: bool, processes: int | None, progress: Progress) -> Finding:
    """Draw every setting many times and test, estimate and cover."""
    jobs = [
        Trial(setting, 10 if quick else RUNS_PER_WORLD, seeds_of(seed, EXPERIMENT, number, world))
        for number, setting in enumerate(COMMON + DEVIATING)
        for world in range(2 if quick else setting.runs // RUNS_PER_WORLD)
    ]
    results = replicate(observe, jobs, "common effects", processes, progress)
    by_setting: dict[str, list[Observed]] = {}
    for job, result in zip(jobs, results, strict=True):
        by_setting.setdefault(job.setting.name, []).append(result)
    sizes = [row for setting in COMMON for row in size_rows(setting, by_setting[setting.name])]
    bands = [band_row(setting, by_setting[setting.name]) for setting in COMMON]
    powers = [power_row(setting.name, by_setting[setting.name]) for setting in DEVIATING]
    bins = bin_rows([world for setting in DEVIATING for world in by_setting[setting.name]])
    return Finding(
        title="Shared effects: Cochran's Q and coverage",
        shows=[_setup(jobs[0].runs), *_size_sentences(sizes), _band_sentence(bands), *_power_sentences(powers, bins)],
        tables=[
            Table("common-effects-size", sizes),
            Table("common-effects-bands", bands),
            Table("common-effects-power", powers + bins),
        ],
        figures=[
            Figure("common-effects-coverage", "Coverage of the shared effects by step", partial(_draw_coverage, sizes)),
            Figure("common-effects-power", "Power of Cochran's Q", partial(_draw_power, bins)),
        ],
    )


def size_rows(setting: Setting, worlds: Sequence[Observed]) -> list[SizeRow]:
    """Size of the test and coverage at each step of a setting, and over all steps."""
    rejected = np.stack([world.p_values < SIZE for world in worlds])  # (worlds, R, H)
    fooled = np.stack([world.one_variance < SIZE for world in worlds])
    covered = np.stack([world.off <= sidak(1) for world in worlds])
    rows = []
    for step in [*range(rejected.shape[2]), slice(None)]:
        size, coverage = share(rejected[:, :, step]), share(covered[:, :, step])
        held = size.within(*SIZE_BOUNDS) and coverage.within(*COVERAGE_BOUNDS)
        name = "all" if isinstance(step, slice) else str(step)
        runs = rejected.shape[0] * rejected.shape[1]
        rows.append(
            SizeRow(setting.name, name, runs, *size.ends, float(fooled[:, :, step].mean()), *coverage.ends, held)
        )
    return rows


def band_row(setting: Setting, worlds: Sequence[Observed]) -> BandRow:
    """Coverage of a coefficient's band over all steps, and of the joint band, in one setting."""
    off = np.stack([world.off for world in worlds])  # (worlds, R, H, d0)
    steps, d0 = off.shape[2:]
    band = share(off.max(axis=2) <= sidak(steps))
    joint = share(off.max(axis=(2, 3)) <= sidak(steps * d0))
    return BandRow(setting.name, off.shape[0] * off.shape[1], *band.ends, *joint.ends)


def power_row(name: str, worlds: Sequence[Observed]) -> PowerRow:
    """Power beside its prediction, over all worlds, runs and steps of one deviation."""
    stacked = (
        np.stack([getattr(world, field) for world in worlds]) for field in ("noncentrality", "predicted", "p_values")
    )
    return _power_row(name, *stacked)


def bin_rows(worlds: Sequence[Observed]) -> list[PowerRow]:
    """Power beside its prediction by the non-centrality of the design: all deviations, in bins of equal numbers."""
    noncentrality, predicted, p_values = (
        np.concatenate([getattr(world, field).ravel() for world in worlds])
        for field in ("noncentrality", "predicted", "p_values")
    )
    return [
        _power_row("by non-centrality", noncentrality[chosen], predicted[chosen], p_values[chosen])
        for chosen in np.array_split(np.argsort(noncentrality, kind="stable"), BINS)
    ]


def _power_row(name: str, noncentrality: Array, predicted: Array, p_values: Array) -> PowerRow:
    rejected = p_values < SIZE
    difference = mean(rejected - predicted)
    return PowerRow(
        name,
        float(noncentrality.mean()),
        rejected.size,
        float(predicted.mean()),
        float(rejected.mean()),
        *difference.ends,
        abs(difference.estimate) <= POWER_BOUND,
    )


def _setup(runs_per_world: int) -> str:
    return (
        f"Worlds of {SPEC.n_sites} sites with d0 = d1 = 4, |A| = {SPEC.n_actions} and H = {SPEC.horizon}; unless said "
        f"otherwise {SIZES[0]} to {SIZES[-1]} patients a site. Rewards have beta laws, whose variance also changes "
        f"with their mean within a site; equal variances: noise {LIKE[0]:g} everywhere, unequal: {UNLIKE[0]:g} (a "
        f"reward of 0 or 1) at the smallest site to {UNLIKE[-1]:g} at the largest. A fresh world for every "
        f"{runs_per_world} runs; Q has 16 degrees of freedom a step."
    )


def _size_sentences(rows: Sequence[SizeRow]) -> list[str]:
    sentences = []
    for setting in COMMON:
        *steps, overall = [row for row in rows if row.setting == setting.name]
        rejected = Interval(overall.rejected, overall.rejected_low, overall.rejected_high)
        sentence = (
            f"{setting.name.capitalize()}, {overall.runs:,} runs: Q rejects a true common effect in "
            f"{rejected.per_cent}, by step {_range([row.rejected for row in steps])}; with one variance for all sites "
            f"it would reject in {100 * overall.one_variance:.1f}%. Intervals for θ⁰ cover "
            f"{_range([row.covered for row in steps])} by step."
        )
        if setting.required:
            verdict = "Holds" if all(row.held for row in steps) else "Fails"
            sentence += f" To be 4–6% and 93–97% at every step. {verdict}."
        sentences.append(sentence)
    return sentences


def _band_sentence(rows: Sequence[BandRow]) -> str:
    required = [row for row, setting in zip(rows, COMMON, strict=True) if setting.required]
    return (
        f"Simultaneous 95% bands: a coefficient's holds at all steps in {_range([row.band for row in required])} of "
        f"runs, the joint one for all coefficients in {_range([row.joint for row in required])} (conservative where "
        "coefficients are correlated)."
    )


def _power_sentences(rows: Sequence[PowerRow], bins: Sequence[PowerRow]) -> list[str]:
    sentences = [f"{row.setting.capitalize()}: {_apart(row)} {'Holds' if row.held else 'Fails'}." for row in rows]
    worst = max(bins, key=lambda row: abs(row.difference))
    sentences.append(
        f"By non-centrality, in {len(bins)} bins, furthest from the prediction at {worst.noncentrality:.1f}: "
        f"{_apart(worst)} {'Holds' if all(row.held for row in bins) else 'Fails'}."
    )
    return sentences


def _apart(row: PowerRow) -> str:
    points = Interval(*(100 * end for end in (row.difference, row.difference_low, row.difference_high)))
    return (
        f"Q rejects in {100 * row.rejected:.1f}%, the non-central χ² says {100 * row.predicted:.1f}%; "
        f"{points.shown(1)} points apart, to be within 5."
    )


def _range(shares: Sequence[float]) -> str:
    return f"{100 * min(shares):.1f} to {100 * max(shares):.1f}%"


def _draw_coverage(rows: Sequence[SizeRow]) -> "altair.TopLevelMixin":
    import altair as alt

    from experiments.charts import lines

    names = [setting.name for setting in COMMON if setting.required]
    records: list[dict[str, Any]] = [
        {"panel": "95% intervals", "series": row.setting, "step": row.step}
        | {"covered": row.covered, "low": row.covered_low, "high": row.covered_high}
        for row in rows
        if row.setting in names and row.step != "all"
    ]
    y = alt.Y("covered:Q", title="covered", axis=alt.Axis(format="%"), scale=alt.Scale(zero=False))
    return lines(records, alt.X("step:O", title="step", axis=alt.Axis(labelAngle=0)), y, names, reference=0.95)


def _draw_power(rows: Sequence[PowerRow]) -> "altair.TopLevelMixin":
    import altair as alt

    from experiments.charts import lines

    names = ("simulated", "non-central χ²")
    records: list[dict[str, Any]] = []
    for row in rows:
        place = {"panel": "tests at 5%", "noncentrality": row.noncentrality}
        low, high = (row.predicted + end for end in (row.difference_low, row.difference_high))
        records.append(place | {"series": names[0], "rejected": row.rejected, "low": low, "high": high})
        records.append(place | {"series": names[1]} | dict.fromkeys(("rejected", "low", "high"), row.predicted))
    y = alt.Y("rejected:Q", title="rejected", axis=alt.Axis(format="%"))
    return lines(records, alt.X("noncentrality:Q", title="non-centrality of the design"), y, names)
