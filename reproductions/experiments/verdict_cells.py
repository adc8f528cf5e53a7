"""Cells of the experiment on verdicts, a method in a world at one size: how often what evaluation says is true.

What happens at the sites of one replication goes together, and replications differ in how many sites have, say, a
verified gain. A share is therefore a ratio of sums, with y_r hits among m_r cases in replication r of G with any:

    p = Σ y_r / Σ m_r,   var(p) = G/(G − 1) Σ (y_r − p m_r)² / (Σ m_r)²
"""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, make_dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from experiments.comparison import Case
from experiments.intervals import NORMAL, Interval, mean
from experiments.verdicts import METHODS, Record
from fdtr.evaluation import Evidence
from fdtr.inference import SiteValue, pool

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

NO_GAIN = 2e-6
"""True gains up to this count as none: records are rounded."""

POOLED = (3, 5, 9)
"""Over so many sites of a replication, the first ones, gains and values are pooled."""

LEAST_POOLED = 2 / 3
"""Share of the sites that must have a number, so that "nine sites" are six at least."""

UNKNOWN = Interval(math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class Share(Interval):
    """How often something happened among so many `cases`; NaN if there are none."""

    cases: int


@dataclass(frozen=True, eq=False)
class Answers:
    """What is said of one value or gain at every site of every replication, (R, K) each, and the `truth`."""

    truth: Array
    verdict: NDArray[np.str_]
    estimator: NDArray[np.str_]
    value: Array
    standard_error: Array
    low: Array
    high: Array
    tolerance: Array
    advised_share: Array

    @property
    def covered(self) -> Mask:
        """Where the interval holds the truth."""
        return np.asarray((self.low <= self.truth) & (self.truth <= self.high))

    @property
    def claims_wrongly(self) -> Mask:
        """Where the interval lies above 0 although there is no gain."""
        return np.asarray((self.low > 0) & (self.truth <= NO_GAIN))

    def has(self, verdict: Evidence) -> Mask:
        """Where that is the verdict."""
        return np.asarray(self.verdict == str(verdict))


@dataclass(frozen=True)
class Cell:
    """A method in a world with n patients a site: shares with 95% intervals clustered by replication, and means.

    `gain_…` is about verified gains: their coverage, mean error, the spread of errors over the mean standard error, and
    width. `rejected_…` and `accepted_…` are about model-based full values where T rejects the linear model and where
    not; `rejected_linear` is what the linear model's own intervals cover there. Wrong claims count among all site-runs.
    `full_gain` is the true gain of the full policy, `kept` what its verified part, where there is one, gains of that.
    `acts_in` is the share of decisions in which verified parts advise; `otherwise` and `harmful` of all decisions are
    advised otherwise than treated, and for the worse. `compared_…` is about the linear model's own paired gain of the
    full policy (`Evaluator.compare`), whatever the verdict. `pooled_…` is the coverage of plain means over 3, 5 and 9
    sites.
    """

    purpose: str
    world: str
    n: int
    method: str
    replications: int
    sites: int
    verified: Share
    gain_covered: Share
    gain_bias: Interval
    gain_sd_over_se: float
    gain_width: float
    full_verified: Share
    full_verified_covered: Share
    model_based: Share
    rejected: Share
    rejected_covered: Share
    rejected_linear: Share
    rejected_width: float
    accepted_covered: Share
    accepted_width: float
    model_gain_covered: Share
    compared_covered: Share
    compared_sd_over_se: float
    not_estimable: Share
    wrong_verified: Share
    wrong_full_verified: Share
    wrong_model: Share
    full_gain: Interval
    verified_gain: Interval
    kept: Interval
    acts_in: float
    otherwise: float
    harmful: float
    verified_otherwise: float
    verified_harmful: float
    pooled_gain_3: Share
    pooled_gain_5: Share
    pooled_gain_9: Share
    pooled_model_3: Share
    pooled_model_5: Share
    pooled_model_9: Share

    @property
    def called(self) -> str:
        """The cell by name."""
        return f"{self.world} ({self.purpose}), n = {self.n}, {self.method}"

    @property
    def nothing_to_gain(self) -> bool:
        """Whether the world is one in which policies gain nothing, or harm."""
        return self.world.startswith(("useless", "harmful"))


def cells_of(by_case: Sequence[tuple[Case, Sequence[Mapping[str, Sequence[Record]]]]]) -> list[Cell]:
    """Every case at every size, a cell for each method."""
    return [
        cell_of(case, int(size), method, [outcome[size] for outcome in outcomes])
        for case, outcomes in by_case
        for size in outcomes[0]
        for method in METHODS
    ]


def cell_of(case: Case, n: int, method: str, runs: Sequence[Sequence[Record]]) -> Cell:
    """One cell from its records, by replication and site."""
    behaviour = _array(runs, lambda site: site["behaviour"])
    truth = _array(runs, lambda site: site[method]["truth"])
    verified_truth = _array(runs, lambda site: site[method]["verified truth"])
    gain = _answers(runs, method, "verified gain", verified_truth - behaviour)
    full = _answers(runs, method, "full value", truth)
    full_gain = _answers(runs, method, "full gain", truth - behaviour)
    columns: dict[str, Any] = {
        **_of_gain(gain),
        **_of_full(full, full_gain, _array(runs, lambda site: site[method]["linear value"][2:])),
        **_of_truth(gain, full_gain),
        **_of_comparison(_array(runs, lambda site: site[method]["linear gain"]), full_gain.truth),
        **_of_advice(_array(runs, lambda site: site[method]["full advice"] + site[method]["verified advice"])),
    }
    horizon = float(case.spec.horizon)
    for k in POOLED:
        columns[f"pooled_gain_{k}"] = pooled(gain, Evidence.VERIFIED, k, n, (-horizon, horizon))
        columns[f"pooled_model_{k}"] = pooled(full, Evidence.MODEL, k, n, (0.0, horizon))
    return Cell(
        purpose=case.purpose,
        world=case.called,
        n=n,
        method=method,
        replications=len(truth),
        sites=truth.size,
        **columns,
    )


def _array(runs: Sequence[Sequence[Record]], get: Callable[[Record], Any]) -> Array:
    return np.array([[get(site) for site in run] for run in runs], dtype=np.float64)


def _answers(runs: Sequence[Sequence[Record]], method: str, about: str, truth: Array) -> Answers:
    """Assessments of one value or gain; numbers that are not there are NaN."""
    said = [[site[method][about] for site in run] for run in runs]
    numbers = ("value", "standard_error", "low", "high", "tolerance", "advised_share")
    return Answers(
        truth=truth,
        verdict=np.array([[one["verdict"] for one in run] for run in said]),
        estimator=np.array([[one["estimator"] for one in run] for run in said]),
        **{name: _array(said, itemgetter(name)) for name in numbers},
    )


def _of_gain(gain: Answers) -> dict[str, Any]:
    verified = gain.has(Evidence.VERIFIED)
    errors = np.where(verified, gain.value - gain.truth, 0.0)
    bias = ratio(errors, verified)
    spread = float(np.sqrt(np.mean((errors[verified] - bias.estimate) ** 2))) if verified.any() else math.nan
    return {
        "verified": share_among(verified, np.ones_like(verified)),
        "gain_covered": share_among(gain.covered, verified),
        "gain_bias": bias,
        "gain_sd_over_se": spread / _mean(gain.standard_error, verified),
        "gain_width": _mean(gain.high - gain.low, verified),
        "acts_in": _mean(gain.advised_share, verified),
        "wrong_verified": share_among(verified & gain.claims_wrongly, np.ones_like(verified)),
    }


def _of_full(full: Answers, full_gain: Answers, linear: Array) -> dict[str, Any]:
    """Values of full policies and claims of a gain; `linear` (R, K, 2) are the ends of the linear model's interval."""
    everywhere = np.ones(full.truth.shape, bool)
    model = full.has(Evidence.MODEL)
    rejected = model & (full.estimator == "richer")
    accepted = model & ~rejected
    by_linear = (linear[..., 0] <= full.truth) & (full.truth <= linear[..., 1])
    wrong, gain_by_model = full_gain.claims_wrongly, full_gain.has(Evidence.MODEL)
    return {
        "full_verified": share_among(full.has(Evidence.VERIFIED), everywhere),
        "full_verified_covered": share_among(full.covered, full.has(Evidence.VERIFIED)),
        "model_based": share_among(model, everywhere),
        "rejected": share_among(rejected, model),
        "rejected_covered": share_among(full.covered, rejected),
        "rejected_linear": share_among(by_linear, rejected),
        "rejected_width": _mean(full.high - full.low, rejected),
        "accepted_covered": share_among(full.covered, accepted),
        "accepted_width": _mean(full.high - full.low, accepted),
        "model_gain_covered": share_among(full_gain.covered, gain_by_model),
        "not_estimable": share_among(full.has(Evidence.NONE), everywhere),
        "wrong_full_verified": share_among(wrong & full_gain.has(Evidence.VERIFIED), everywhere),
        "wrong_model": share_among(wrong & gain_by_model, everywhere),
    }


def _of_comparison(linear: Array, truth: Array) -> dict[str, Any]:
    """The linear model's paired gains, (R, K, 4): estimate, standard error and both ends."""
    estimate, error, low, high = np.moveaxis(linear, -1, 0)
    covered, everywhere = np.asarray((low <= truth) & (truth <= high)), np.ones(truth.shape, bool)
    spread = float((estimate - truth).std() / error.mean())
    return {"compared_covered": share_among(covered, everywhere), "compared_sd_over_se": spread}


def _of_truth(gain: Answers, full_gain: Answers) -> dict[str, Any]:
    """True gains; no share of the full one is kept where that one is not shown to be positive."""
    verified_gain = np.where(gain.has(Evidence.VERIFIED), gain.truth, 0.0)
    positive = mean(full_gain.truth).low > NO_GAIN
    return {
        "full_gain": mean(full_gain.truth),
        "verified_gain": mean(verified_gain),
        "kept": ratio(verified_gain, full_gain.truth) if positive else UNKNOWN,
    }


def _of_advice(shares: Array) -> dict[str, Any]:
    names = ("otherwise", "harmful", "verified_otherwise", "verified_harmful")
    return dict(zip(names, shares.mean(axis=(0, 1)).tolist(), strict=True))


def _mean(values: Array, among: Mask) -> float:
    return float(values[among].mean()) if among.any() else math.nan


def pooled(answers: Answers, verdict: Evidence, k: int, n: int, possible: tuple[float, float]) -> Share:
    """How often the plain mean over those of the first `k` sites that have the verdict covers the mean of the truths.

    A replication in which fewer than `LEAST_POOLED` of them have it does not count; none does where there are not `k`
    sites.
    """
    hits = []
    usable = answers.has(verdict) if answers.truth.shape[1] >= k else np.zeros_like(answers.has(verdict))
    for r, chosen in enumerate(usable[:, :k]):
        sites = np.flatnonzero(chosen).tolist()
        if len(sites) < LEAST_POOLED * k:
            continue
        values = [
            SiteValue(str(s), answers.value[r, s], answers.standard_error[r, s], n, answers.tolerance[r, s])
            for s in sites
        ]
        plain = pool(values, possible).plain
        hits.append(plain.low <= answers.truth[r, sites].mean() <= plain.high)
    found = np.array(hits, dtype=bool)[:, None]
    return share_among(found, np.ones_like(found))


def share_among(hits: Mask, among: Mask) -> Share:
    """How often something happened among some cases, (R, K) each by replication, with Wilson's interval.

    The interval takes the number of cases for smaller by the design effect, var(p) over p(1 − p)/Σ m, which is at most
    Σ m²/Σ m. It is that if all or none happened: then nothing tells how the cases of a replication go together.

    >>> share_among(np.array([[True, True], [True, False]]), np.array([[True, True], [True, False]])).per_cent
    '100.0% (31.9 to 100.0%)'
    """
    per_run, successes = among.sum(axis=1), (hits & among).sum(axis=1)
    cases = int(per_run.sum())
    if not cases:
        return Share(math.nan, math.nan, math.nan, 0)
    p, most = float(successes.sum()) / cases, float((per_run**2).sum()) / cases
    independent = p * (1 - p) / cases
    effect = _variance_of_ratio(successes, per_run) / independent if independent > 0 else most
    n = cases / min(max(effect, 1.0), most)
    middle = (p + NORMAL**2 / (2 * n)) / (1 + NORMAL**2 / n)
    half = NORMAL * math.sqrt(p * (1 - p) / n + NORMAL**2 / (4 * n**2)) / (1 + NORMAL**2 / n)
    return Share(p, max(0.0, min(middle - half, p)), min(1.0, max(middle + half, p)), cases)


def ratio(top: NDArray[Any], bottom: NDArray[Any]) -> Interval:
    """Σ top / Σ bottom, (R, K) each by replication, with Student's interval over replications.

    >>> ratio(np.array([[1.0], [3.0]]), np.array([[2.0], [2.0]])).shown(2)
    '1.00 (-5.35 to 7.35)'
    """
    tops, bottoms = top.sum(axis=1), bottom.sum(axis=1)
    runs, total = int(np.sum(bottoms != 0)), float(bottoms.sum())
    if total == 0:
        return UNKNOWN
    estimate = float(tops.sum()) / total
    reach = math.inf
    if runs > 1:
        reach = float(stdtrit(runs - 1, 0.975)) * math.sqrt(_variance_of_ratio(tops, bottoms))
    return Interval(estimate, estimate - reach, estimate + reach)


def _variance_of_ratio(tops: NDArray[Any], bottoms: NDArray[Any]) -> float:
    """Cluster-robust variance of Σ tops / Σ bottoms, (R,) each; infinite for one replication."""
    runs, total = int(np.sum(bottoms != 0)), float(bottoms.sum())
    residuals = tops - tops.sum() / total * bottoms
    return runs / (runs - 1) * float(np.sum(residuals**2)) / total**2 if runs > 1 else math.inf


def as_rows(cells: Sequence[Cell], **more: Sequence[Any]) -> list[Any]:
    """Cells for a table: an interval as three columns, a share as four; `more` columns have a value for each cell."""
    rows = [_columns(cell) | {name: values[place] for name, values in more.items()} for place, cell in enumerate(cells)]
    row = make_dataclass("Row", list(rows[0]))
    return [row(**columns) for columns in rows]


def read_cells(table: Path) -> list[Cell]:
    """The cells of a table of rows as above; none where there is no such file."""
    if not table.exists():
        return []
    types = get_type_hints(Cell)
    with table.open(newline="", encoding="utf-8") as file:
        return [
            Cell(**{name: _from_columns(name, kind, row) for name, kind in types.items()})
            for row in csv.DictReader(file)
        ]


def _from_columns(name: str, kind: Any, row: Mapping[str, str]) -> Any:
    if not issubclass(kind, Interval):
        return kind(row[name])
    estimate, low, high = (float(row[column]) for column in (name, f"{name}_low", f"{name}_high"))
    if issubclass(kind, Share):
        return Share(estimate, low, high, int(row[f"{name}_cases"]))
    return Interval(estimate, low, high)


def _columns(cell: Cell) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for field in fields(cell):
        value = getattr(cell, field.name)
        if not isinstance(value, Interval):
            columns[field.name] = value
            continue
        columns |= {field.name: value.estimate, f"{field.name}_low": value.low, f"{field.name}_high": value.high}
        if isinstance(value, Share):
            columns[f"{field.name}_cases"] = value.cases
    return columns
