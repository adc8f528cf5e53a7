"""What do the disclosure rules let through, and what do they cost? Who may send, and the value of what is learnt.

Values: FDTR as disclosure allows is fitted as `fdtr run` does, from messages with secret weights and repairs; sites
that may send nothing receive only, and where nothing may be added every site stays alone. It is compared with FDTR from
all sums and with LDTR, on the same patients, all with a study's default settings and rules. A secure sum, where all
sites take out what their counts say, is valued at the sizes that it is for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from experiments import admission
from experiments.admission import Look
from experiments.comparison import Case, Drawn, Plan, Trial, all_cases, draw, few_cases, hard_cases
from experiments.findings import Figure, Finding, Table
from experiments.intervals import mean
from experiments.messages import exact_sums, ranks, sent_alone, sent_together, total_of, with_disclosure
from experiments.replications import Kept, Progress, ignore_progress, replicate
from fdtr import LocalFit, SiteSummary, Study, Trajectories, combine, fit_federated, fit_local, read_trajectories
from fdtr.simulation import Act

if TYPE_CHECKING:
    import altair

Array = NDArray[np.float64]

ALLOWED, ALL_SUMS, ALONE = "FDTR (as allowed)", "FDTR (all sums)", "LDTR (auto)"
METHODS = (ALLOWED, ALL_SUMS, ALONE)
MOST_LOST = {ALL_SUMS: 2.0, ALONE: 1.0}
"""In percent of (optimum − behaviour): what FDTR as disclosure allows may lose against another method."""

ENOUGH = 500
"""Patients a site from which on a limit is set against FDTR from all sums; against LDTR it holds at every size."""

NAMES = (
    "valid",
    "valid, narrow behaviour",
    "deviating effects",
    "static covariates",
    "ward",
    "ward, habits",
    "ward, confounded",
    "crossed",
)
SIZES = (100, 200, 500, 1000)
WIDE_SIZES = (200, 500, 2000)
"""Patients a site in the worlds of eight treatments, "ward" apart."""

SECURE_NAMES = NAMES[:5]
SECURE_SIZES = (50, 100, 200)
EXPERIMENT = 6
"""Tells its seeds from those of other experiments."""

DECIMALS = 6
LOWEST_DRAWN = -15.0


def plan_of(seed: int = 0) -> Plan:
    """Worlds in which the model holds, is broken, or has eight treatments; 20 replications."""
    sizes = dict.fromkeys(NAMES[5:], WIDE_SIZES) | {"ward": (*SIZES, 2000)}
    cases = [
        replace(case, sizes=sizes.get(case.called))
        for case in (*all_cases(), *hard_cases())
        if case.called in NAMES or (case.called, case.shape) == ("authors' generator", "(20,2,5,5)")
    ]
    return Plan(EXPERIMENT, replications=20, fresh=500, sizes=SIZES, seed=seed, cases=cases)


def secure_plan_of(plan: Plan) -> Plan:
    """The same worlds and seeds with a secure sum, at small sizes."""
    cases = [
        replace(case, called=f"{case.called}, secure sum", sizes=(SECURE_SIZES[-1],) if case.called == "ward" else None)
        for case in plan.cases
        if case.called in SECURE_NAMES
    ]
    sizes = SECURE_SIZES if plan.sizes == SIZES else plan.sizes
    return replace(plan, sizes=sizes, cases=cases)


@dataclass(frozen=True)
class SecureTrial(Trial):
    """A replication in which the sites send in a secure sum."""

    @property
    def key(self) -> str:
        """What its outcome is known by, where outcomes are kept."""
        return f"secure sum {super().key}"


def quick_plan(seed: int = 0) -> Plan:
    """Seconds instead of minutes: enough to see that everything runs, and for nothing else."""
    return Plan(EXPERIMENT, replications=2, fresh=200, sizes=(100,), seed=seed, cases=few_cases()[:2])


@dataclass(frozen=True, eq=False)
class Outcome:
    """One replication: `values` (K, M) at each size, the `spans` (K, 2) of clinicians and optimum, and what was sent.

    `sent` (K, 2) at each size has the ranks that a site sent and could have sent, summed over steps.
    """

    values: Mapping[int, Array]
    sent: Mapping[int, Array]
    spans: Array

    @property
    def span(self) -> float:
        """How much better than clinicians a policy can be, mean over sites."""
        return float((self.spans[:, 1] - self.spans[:, 0]).mean())

    def mean_of(self, n: int, method: str) -> float:
        """The mean value of a method over sites."""
        return float(self.values[n][:, METHODS.index(method)].mean())

    def encode(self) -> dict[str, Any]:
        """Plain values, to be kept in a file."""
        sizes = [[n, self.values[n].round(DECIMALS).tolist(), self.sent[n].tolist()] for n in self.values]
        return {"sizes": sizes, "spans": self.spans.round(DECIMALS).tolist()}

    @classmethod
    def decode(cls, plain: Mapping[str, Any]) -> "Outcome":
        """From what `encode` made."""
        values, sent = ({size[0]: np.array(size[place]) for size in plain["sizes"]} for place in (1, 2))
        return cls(values, sent, np.array(plain["spans"]))


def run_all(
    plan: Plan,
    quick: bool = False,
    clif: bool = False,
    processes: int | None = None,
    progress: Progress = ignore_progress,
    keep: Path | None = None,
) -> tuple[list[tuple[Look, dict[str, Any]]], list[tuple[Case, Sequence[Outcome]]]]:
    """Who may send, and the outcomes of every case. They are kept in the file `keep` and not computed again."""
    kept = Kept[Look | Trial, dict[str, Any]](keep, lambda job: job.key, dict, dict) if keep else None
    secure = secure_plan_of(plan)
    looks, secure_trials = admission.looks(plan.seed, quick, clif), [SecureTrial(**vars(t)) for t in secure.trials()]
    trials = [*plan.trials(), *secure_trials]
    # One replication of every case before the second of any: an interrupted run has some of each.
    by_replication = [trial for r in range(plan.replications) for trial in trials[r :: plan.replications]]
    jobs: list[Look | Trial] = [*looks, *by_replication]
    results = replicate(run_job, jobs, "disclosure", processes, progress, kept)
    by_key = dict(zip((job.key for job in jobs), results, strict=True))
    outcomes = [Outcome.decode(by_key[trial.key]) for trial in trials]
    n_open = len(outcomes) - len(secure_trials)
    by_case = [*plan.by_case(outcomes[:n_open]), *secure.by_case(outcomes[n_open:])]
    return [(look, by_key[look.key]) for look in looks], by_case


def run_job(job: Look | Trial) -> dict[str, Any]:
    """One table to look at, or one replication."""
    return admission.look_at(job) if isinstance(job, Look) else run_trial(job).encode()


def run_trial(trial: Trial) -> Outcome:
    """Fit and value the three methods at every size."""
    drawn, tables = draw(trial)
    study = with_disclosure(drawn.world.study(), {}, together=isinstance(trial, SecureTrial))
    values, sent = {}, {}
    for size, seeds in tables.items():
        n = int(np.max(size))
        table = pa.table(drawn.world.table(n, np.random.default_rng(seeds)))
        values[n], sent[n] = _fit_and_value(drawn, study, read_trajectories(table, study).by_site())
    references = [drawn.references_at(k) for k in range(len(drawn.patients))]
    return Outcome(values, sent, np.array([[r.behaviour, r.optimum] for r in references]))


def _fit_and_value(drawn: Drawn, study: Study, sites: Mapping[str, Trajectories]) -> tuple[Array, Array]:
    """Values (K, M), and the ranks that each site sent and could have sent, (K, 2)."""
    local = {site: fit_local(study, rows) for site, rows in sites.items()}
    send = sent_together if study.disclosure.secure_sum else sent_alone
    total, messages = combine(fit.summary for fit in local.values()), send(study, sites)
    allowed = as_allowed(study, sites, local, messages)
    values, sent = [], []
    for place, (site, rows) in enumerate(sites.items()):
        together = fit_federated(study, rows, total, local[site].summary)
        values.append(drawn.values_at(place, [allowed[site], together.policy.act, local[site].policy.act]))
        of_site = sum(ranks(messages[site].sums)) if site in messages else 0
        sent.append([of_site, sum(ranks(exact_sums(study, rows)))])
    return np.array(values), np.array(sent)


def as_allowed(
    study: Study,
    sites: Mapping[str, Trajectories],
    local: Mapping[str, LocalFit],
    messages: Mapping[str, SiteSummary],
) -> dict[str, Act]:
    """The rules of FDTR from `messages`; where nothing may be added up, every site stays alone, as in `fdtr run`."""
    total = total_of(study, messages)
    if total is None:
        return {site: fit.policy.act for site, fit in local.items()}
    return {
        site: fit_federated(study, rows, total, messages.get(site), receive_only=site not in messages).policy.act
        for site, rows in sites.items()
    }


@dataclass(frozen=True)
class Row:
    """FDTR as disclosure allows less another method, in percent of (optimum − behaviour), with a 95% interval.

    `reached` is what FDTR as allowed reaches of it, `all_sums` what FDTR from all sums does, both in percent. `sites`
    is the share of sites that sent something, `kept` the share of rank that was sent. `most_lost` is the limit, NaN
    where none is set; `holds` says whether the difference, and `shown` whether its lower limit, is within it.
    """

    world: str
    shape: str
    n: str
    against: str
    difference: float
    low: float
    high: float
    reached: float
    all_sums: float
    span: float
    sites: float
    kept: float
    most_lost: float
    holds: bool
    shown: bool
    replications: int


def rows_of(case: Case, outcomes: Sequence[Outcome]) -> list[Row]:
    """Rows of one case: FDTR as disclosure allows less each other method, at every size."""
    span = float(np.mean([outcome.span for outcome in outcomes]))
    behaviour = float(np.mean([outcome.spans[:, 0].mean() for outcome in outcomes]))
    rows = []
    for n in outcomes[0].values:
        allowed, all_sums = (np.array([o.mean_of(n, method) for o in outcomes]) for method in (ALLOWED, ALL_SUMS))
        sent = np.array([outcome.sent[n] for outcome in outcomes])
        for other, limit in MOST_LOST.items():
            gain = mean(100 * (allowed - [outcome.mean_of(n, other) for outcome in outcomes]) / span)
            most_lost = limit if other == ALONE or n >= ENOUGH else np.nan
            holds, shown = (not value < -most_lost for value in (gain.estimate, gain.low))
            reached, reached_by_all = (float(100 * (v.mean() - behaviour) / span) for v in (allowed, all_sums))
            shares = float(np.mean(sent[..., 0] > 0)), float(sent[..., 0].sum() / sent[..., 1].sum())
            place = (case.called, case.shape, str(n), other)
            rows.append(
                Row(*place, *gain.ends, reached, reached_by_all, span, *shares, most_lost, holds, shown, len(outcomes))
            )
    return rows


def find(by_case: Sequence[tuple[Case, Sequence[Outcome]]]) -> Finding:
    """What rules, weights and repairs cost in value."""
    rows = [row for case, outcomes in by_case for row in rows_of(case, outcomes)]
    return Finding(
        title="What the rules cost",
        shows=[*_against_all_sums(rows), *_against_alone(rows)],
        tables=[Table("disclosure", rows)],
        figures=[Figure("disclosure", "FDTR (as allowed) less another method", partial(_draw, rows))],
    )


def _against_all_sums(rows: Sequence[Row]) -> list[str]:
    own = [row for row in rows if row.against == ALL_SUMS]
    sentences = []
    for few in (False, True):
        cells = [row for row in own if (int(row.n) < ENOUGH) == few]
        if not cells:
            continue
        differences, where = [row.difference for row in cells], f"n {'<' if few else '≥'} {ENOUGH}"
        sentences.append(
            f"Less FDTR from all sums, {where}, {len(cells)} cells (world × n): {min(differences):+.2f}% to "
            f"{max(differences):+.2f}% of (optimum − behaviour), mean {np.mean(differences):+.2f}%. Sites that send: "
            f"{np.mean([row.sites for row in cells]):.0%}; rank kept: {np.mean([row.kept for row in cells]):.2f}."
        )
    return sentences + _missed([row for row in own if np.isfinite(row.most_lost)], "FDTR from all sums")


def _against_alone(rows: Sequence[Row]) -> list[str]:
    own = [row for row in rows if row.against == ALONE]
    differences, above = [row.difference for row in own], sum(row.low > 0 for row in own)
    summary = (
        f"Less LDTR, {len(own)} cells: {min(differences):+.2f}% to {max(differences):+.2f}%, mean "
        f"{np.mean(differences):+.2f}%; the interval lies above 0 in {above}."
    )
    return [summary, *_missed(own, "LDTR")]


def _missed(rows: Sequence[Row], other: str) -> list[str]:
    """How many cells are within the limit, and those that are not, by name."""
    if not rows:
        return []
    limit = f"{rows[0].most_lost:g}%"
    within, shown = (sum(getattr(row, name) for row in rows) for name in ("holds", "shown"))
    summary = (
        f"It loses at most {limit} against {other} in {within} of {len(rows)} cells; in {shown} its 95% interval lies "
        "within that."
    )
    beyond = [f"Loses more than {limit} against {other}: {_cell(row)}." for row in rows if not row.holds]
    unsure = [row for row in rows if row.holds and not row.shown]
    return [summary, *beyond, *(f"Not shown to lose at most {limit} against {other}: {_cell(row)}." for row in unsure)]


def _cell(row: Row) -> str:
    return (
        f"{row.world}, {row.shape}, n = {row.n}: {row.difference:+.2f}% ({row.low:+.2f}% to {row.high:+.2f}%); as "
        f"allowed {row.reached:.1f}%, from all sums {row.all_sums:.1f}%, rank kept {row.kept:.2f}"
    )


def _draw(rows: Sequence[Row]) -> "altair.TopLevelMixin":
    from experiments import charts

    return charts.losses_by_world(rows, MOST_LOST, LOWEST_DRAWN)
