"""The remark after Theorem 2: messages from local fits without a penalty serve as well."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from experiments.findings import Figure, Finding, Table
from experiments.intervals import Interval, mean
from experiments.replications import Progress, anew, replicate, seeds_of
from experiments.theorems.fitting import fit_together, read_patients, settings
from experiments.theorems.pessimism import PANELS, QUICK_PANELS
from experiments.theorems.truth import SiteTruth, draw_truth
from fdtr.learners import Fit
from fdtr.simulation import World, WorldSpec, make_world

if TYPE_CHECKING:
    import altair

Array = NDArray[np.float64]

EXPERIMENT = 43
RUNS = 100
RIDGES = (0.01, 1.0)
OWN = (0.0005, 0.005)
"""c of the site's own fit: the usual one of this software, and the paper's."""

SENT = (0.0, 0.0005, 0.005)
"""c of the local fits that messages come from; the first is the remark's."""

LITTLE = 0.01
"""A change of less than this share of (optimum − behaviour) is called little."""


@dataclass(frozen=True, eq=False)
class Trial:
    """One world: its `spec`, `n` patients a site, `draws` from every law for values, and its seeds."""

    spec: WorldSpec
    n: int
    draws: int
    seeds: np.random.SeedSequence


@dataclass(frozen=True)
class Outcome:
    """One λ and own c, messages with a penalty against messages without, means over sites.

    `gain` is the value lost by leaving the penalty out, over (optimum − behaviour); `theta` is ‖Δθ̂⁰‖/‖θ̂⁰‖ over all
    steps, and `error` the same over the distance ‖θ̂⁰ − θ⁰‖; `agreement` the share of equal actions.
    """

    ridge: float
    own: float
    sent: float
    gain: float
    theta: float
    error: float
    agreement: float


@dataclass(frozen=True)
class RemarkRow:
    """One λ, own c and c of the messages against messages without a penalty: means with 95% intervals.

    `gain` is V(messages with this c) − V(messages with c = 0), over (optimum − behaviour); `theta` the relative change
    of θ̂⁰, `error` the same relative to its estimation error, `agreement` the share of equal actions.
    """

    ridge: float
    own: float
    sent: float
    gain: float
    gain_low: float
    gain_high: float
    theta: float
    theta_low: float
    theta_high: float
    error: float
    error_low: float
    error_high: float
    agreement: float
    agreement_low: float
    agreement_high: float


def run(seed: int, quick: bool, processes: int | None, progress: Progress) -> Finding:
    """Fit with every kind of message in every world."""
    spec, runs, n, draws = (QUICK_PANELS[0], 2, 60, 50) if quick else (PANELS[0], RUNS, 200, 300)
    jobs = [Trial(spec, n, draws, seeds_of(seed, EXPERIMENT, r)) for r in range(runs)]
    outcomes = replicate(compare, jobs, "messages without a penalty", processes, progress)
    rows = [_row([outcome[place] for outcome in outcomes]) for place in range(len(outcomes[0]))]
    setup = (
        f"{runs} valid worlds of {spec.n_sites} sites with {n} patients each. Only the c behind Ṽ in the messages "
        "changes. Differences are paired; values are in units of (optimum − behaviour)."
    )
    return Finding(
        title="Messages from local fits without a penalty (the remark after Theorem 2)",
        shows=[setup, *(_sentence(row) for row in rows), _verdict(rows)],
        tables=[Table("remark-messages", rows)],
        figures=[Figure("remark-messages", "What a penalty in the messages changes", partial(_draw, rows))],
    )


def compare(trial: Trial) -> list[Outcome]:
    """Fit one world with every combination of λ, own c, and c of the messages; compare with messages of c = 0."""
    of_world, of_table, *of_truth = (np.random.default_rng(s) for s in anew(trial.seeds).spawn(2 + trial.spec.n_sites))
    world = make_world(trial.spec, of_world)
    patients = read_patients(world.study(), world.table(trial.n, of_table))
    truths = [draw_truth(world, k, patients.study, trial.draws, 1, rng) for k, rng in enumerate(of_truth)]
    room = np.array([_room(truth, rng) for truth, rng in zip(truths, of_truth, strict=True)])
    outcomes = []
    for ridge, own in product(RIDGES, OWN):
        plain, *penalised = (
            fit_together(patients, settings(own, ridge), messages=settings(sent, ridge)).federated for sent in SENT
        )
        for sent, fits in zip(SENT[1:], penalised, strict=True):
            outcomes.append(_outcome(world, truths, room, plain, fits, (ridge, own, sent)))
    return outcomes


def _room(truth: SiteTruth, rng: np.random.Generator) -> float:
    """Optimum − behaviour of a site whose clinicians toss a fair die."""
    best = truth.optimum()[1]
    codes = [np.asarray(rng.integers(0, len(truth.doses), len(stage.own)), dtype=np.intp) for stage in truth.stages]
    return best.mean - truth.follow(codes).mean


def _outcome(
    world: World,
    truths: Sequence[SiteTruth],
    room: Array,
    plain: Sequence[Fit],
    penalised: Sequence[Fit],
    key: tuple[float, float, float],
) -> Outcome:
    d0 = world.theta_shared.shape[1]
    without, with_penalty = (np.stack([fit.theta[:, :d0] for fit in fits]) for fits in (plain, penalised))
    moved = _length(with_penalty - without)
    choices = [[truth.choices(fits[k]) for fits in (plain, penalised)] for k, truth in enumerate(truths)]
    values = np.array([[truth.follow(c).mean for c in pair] for truth, pair in zip(truths, choices, strict=True)])
    same = [np.mean(np.concatenate(a) == np.concatenate(b)) for a, b in choices]
    return Outcome(
        *key,
        gain=float(((values[:, 1] - values[:, 0]) / room).mean()),
        theta=float((moved / _length(without)).mean()),
        error=float((moved / _length(without - world.theta_shared_scaled)).mean()),
        agreement=float(np.mean(same)),
    )


def _length(theta: Array) -> Array:
    """‖θ⁰‖ over all steps of each site, (K,), from (K, H, d0)."""
    length: Array = np.sqrt((theta**2).sum(axis=(1, 2)))
    return length


def _row(outcomes: Sequence[Outcome]) -> RemarkRow:
    first = outcomes[0]
    intervals = [mean([getattr(o, name) for o in outcomes]).ends for name in ("gain", "theta", "error", "agreement")]
    return RemarkRow(first.ridge, first.own, first.sent, *(x for ends in intervals for x in ends))


def _sentence(row: RemarkRow) -> str:
    gain = Interval(row.gain, row.gain_low, row.gain_high)
    theta = Interval(row.theta, row.theta_low, row.theta_high)
    agreement = Interval(row.agreement, row.agreement_low, min(1.0, row.agreement_high))
    return (
        f"λ = {row.ridge:g}, own c = {row.own:g}: messages with c = {row.sent:g} instead of 0 change the value by "
        f"{gain.shown(4)}, θ̂⁰ by {theta.per_cent} of its length ({100 * row.error:.1f}% of its estimation error), and "
        f"leave {agreement.per_cent} of actions as they are."
    )


def _verdict(rows: Sequence[RemarkRow]) -> str:
    row = max(rows, key=_reach)
    widest = _reach(row)
    return (
        f"The interval of a change in value reaches {widest:.4f} at most (λ = {row.ridge:g}, own c = {row.own:g}, "
        f"messages with c = {row.sent:g}); less than {LITTLE:g} is called little. "
        f"{'Holds' if widest < LITTLE else 'Fails'}."
    )


def _reach(row: RemarkRow) -> float:
    return max(abs(row.gain_low), abs(row.gain_high))


def _draw(rows: Sequence[RemarkRow]) -> "altair.TopLevelMixin":
    import altair as alt

    from experiments.charts import styles

    records = [
        {
            "fit": f"λ = {row.ridge:g}, own c = {row.own:g}",
            "messages": f"messages with c = {row.sent:g}",
            **{name: 100 * getattr(row, name) for name in ("gain", "gain_low", "gain_high")},
        }
        for row in rows
    ]
    names = list(dict.fromkeys(record["messages"] for record in records))
    base = alt.Chart(alt.InlineData(values=records))
    y, offset = alt.Y("fit:N", title=None, axis=alt.Axis(labelLimit=260)), alt.YOffset("messages:N", sort=names)
    colour, shape, _ = styles("messages:N", names)
    edges = alt.Chart(alt.InlineData(values=[{"at": at} for at in (-100 * LITTLE, 0.0, 100 * LITTLE)]))
    return alt.layer(
        edges.mark_rule(color="#777777", strokeDash=[4, 3]).encode(alt.X("at:Q")),
        base.mark_rule().encode(alt.X("gain_low:Q"), y, x2="gain_high:Q", yOffset=offset, color=colour),
        base.mark_point(filled=True, size=60, opacity=1).encode(
            alt.X("gain:Q", title="change in value, % of (optimum − behaviour); dashed: 0 and ±1%"),
            y,
            yOffset=offset,
            color=colour,
            shape=shape,
        ),
    ).properties(width=480, height=alt.Step(22))
