"""What was found of values, at all sites of a study or at one: the rows of the first screen, and what they mean.

"Better than clinicians" is said only where a verified gain's interval lies above 0.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fdtr.report.pages import gain, listed, number, percent
from fdtr.report.record import Assessment, MeanOverSites, Record, Subgroup, Trust
from fdtr.site.site_evaluation import CLINICIANS, FDTR, VERIFIED, Split
from fdtr.study import Study

PART = VERIFIED[FDTR]
Verdict = Literal["verified", "model-based", "not estimable"]

MANY_TIES, FEW_TIES = 0.5, 0.1
"""Shares of decisions: from the first on, most advice is a near tie; below the second, near ties are rare."""


@dataclass(frozen=True)
class Findings:
    """Values and gains, and how far to trust them; mappings are by site.

    `patients` names all sites, also those that are `not_valued`, with the reason. `near_ties` has shares by step,
    `decisions` how many there are at each step, and `withheld` what is not shown because of them. `clusters` says
    whose errors are by cluster. `true_gain` is that of the full policy over clinicians, known of simulated data alone.
    """

    study: Study
    patients: Mapping[str, int]
    assessments: Sequence[Assessment]
    means: Sequence[MeanOverSites] = ()
    subgroups: Sequence[Subgroup] = ()
    trust: Mapping[str, Trust] = field(default_factory=dict)
    near_ties: Mapping[str, Sequence[float]] = field(default_factory=dict)
    decisions: Mapping[str, Sequence[int]] = field(default_factory=dict)
    withheld: Mapping[str, str] = field(default_factory=dict)
    not_valued: Mapping[str, str] = field(default_factory=dict)
    split: Split = "folds"
    clusters: Sequence[str] = ()
    true_gain: float = math.nan

    @property
    def valued(self) -> list[str]:
        """The sites where something was valued."""
        return list(dict.fromkeys(assessment.site for assessment in self.assessments))

    def assessment(self, site: str, method: str, over: str = "") -> Assessment | None:
        """What can be said of one value, or of one gain, at a site."""
        wanted = (site, method, over)
        return next((one for one in self.assessments if (one.site, one.method, one.over) == wanted), None)

    def mean(self, method: str, over: str = "") -> MeanOverSites | None:
        """The mean over sites, where any site has a number."""
        return next((mean for mean in self.means if (mean.method, mean.over) == (method, over)), None)

    @property
    def tied_share(self) -> float:
        """The share of all decisions in which another action is nearly as good; NaN where it is not known."""
        counts = [
            (share, n)
            for site, shares in self.near_ties.items()
            for share, n in zip(shares, self.decisions[site], strict=True)
            if math.isfinite(share)
        ]
        total = sum(n for _, n in counts)
        return sum(share * n for share, n in counts) / total if total else math.nan


def findings_of(record: Record) -> Findings:
    """What a study found."""
    clusters = {value.site: value.n_clusters for value in record.values if value.n_clusters is not None}
    sites, known = record.sites, {known.method: known.value for known in record.known_values}
    return Findings(
        study=record.load_study(),
        patients={name: site.patients for name, site in sites.items()},
        assessments=record.assessments,
        means=record.means,
        subgroups=record.subgroups,
        trust={name: site.trust for name, site in sites.items() if site.trust},
        near_ties={name: site.near_ties for name, site in sites.items()},
        decisions={name: [sum(counts) for counts in site.actions] for name, site in sites.items()},
        withheld={name: site.withheld for name, site in sites.items() if site.withheld},
        not_valued={name: site.not_valued for name, site in sites.items() if site.not_valued},
        split=record.split,
        clusters=[f"{n:,} clusters at {site}" for site, n in clusters.items()],
        true_gain=known.get(FDTR, math.nan) - known.get(CLINICIANS, math.nan),
    )


@dataclass(frozen=True)
class Shown:
    """A value or gain on the first screen, at one site or as a mean over `sites`; NaN where it is not estimable.

    `advised_share` is the share of decisions that the method makes, over the same sites. At the sites of `widened`
    held-out data contradict the linear model. `contradicted`: they contradict all models, so that there is no number.
    """

    verdict: Verdict = "not estimable"
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    advised_share: float = math.nan
    sites: Sequence[str] = ()
    widened: Sequence[str] = ()
    contradicted: bool = False

    @property
    def why(self) -> str:
        """Why there is no number."""
        return "held-out patients contradict the models" if self.contradicted else "too few were treated this way"

    @property
    def clear(self) -> bool:
        """Whether the interval of a gain excludes 0."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Row:
    """A row of the first screen: what clinicians reach, and what the verified `part` and the full policy gain."""

    name: str
    n: int
    usual: Shown
    part: Shown
    full: Shown
    is_mean: bool = False

    @property
    def gains(self) -> tuple[Shown, Shown]:
        """Both gains, as they are drawn: the verified part above the full policy."""
        return self.part, self.full


def first_screen(findings: Findings) -> list[Row]:
    """A row for each valued site, and the mean over sites where there are several."""
    rows = [
        Row(
            site,
            next(one.n for one in findings.assessments if one.site == site),
            usual=_at_site(findings.assessment(site, CLINICIANS)),
            part=_at_site(findings.assessment(site, PART, CLINICIANS)),
            full=_at_site(findings.assessment(site, FDTR, CLINICIANS)),
        )
        for site in findings.valued
    ]
    if len(rows) < 2:
        return rows
    usual = _over_sites(findings, CLINICIANS)
    part, full = (_over_sites(findings, method, CLINICIANS) for method in (PART, FDTR))
    return [*rows, Row("Mean", sum(row.n for row in rows), usual, part, full, is_mean=True)]


def _at_site(assessment: Assessment | None) -> Shown:
    if assessment is None:
        return Shown()
    return Shown(
        assessment.verdict,
        assessment.value,
        assessment.low,
        assessment.high,
        assessment.advised_share,
        [assessment.site],
        [assessment.site] if assessment.estimator == "richer" else [],
        assessment.verdict == "not estimable" and math.isfinite(assessment.misfit),
    )


def _over_sites(findings: Findings, method: str, over: str = "") -> Shown:
    mean = findings.mean(method, over)
    if mean is None:
        sites = [one for one in findings.assessments if (one.method, one.over) == (method, over)]
        return Shown(contradicted=any(math.isfinite(one.misfit) for one in sites))
    found = [one for site in mean.sites if (one := findings.assessment(site, method, over))]
    share = sum(one.advised_share for one in found) / len(found) if found else math.nan
    widened = [one.site for one in found if one.estimator == "richer"]
    return Shown(mean.verdict, mean.plain.value, mean.plain.low, mean.plain.high, share, mean.sites, widened)


def gain_decimals(rows: Sequence[Row]) -> int:
    """Decimal places that show the largest end of an interval with two significant digits, and at least two.

    >>> gain_decimals([])
    2
    """
    ends = [abs(end) for row in rows for one in row.gains for end in (one.low, one.high) if math.isfinite(end)]
    largest = max(ends, default=0.0)
    return min(max(2, 1 - math.floor(math.log10(largest))), 6) if largest > 0 else 2


def meaning(findings: Findings, rows: Sequence[Row]) -> list[str]:
    """What the last row means: of the verified part, of the full policy, and of near ties, a sentence each."""
    last, decimals = rows[-1], gain_decimals(rows)
    n_valued = len(findings.valued)
    return [
        _verified_sentence(findings.study, last, decimals, n_valued),
        _full_sentence(last.full, decimals, n_valued),
        _ties_sentence(findings.tied_share),
    ]


def _verified_sentence(study: Study, row: Row, decimals: int, n_valued: int) -> str:
    part = row.part
    if part.verdict != "verified":
        where = "at no site were enough patients" if row.is_mean else "too few patients were"
        return f"Nothing is verified: {where} treated as FDTR advises to check its advice against what happened."
    claim = "not shown to be better than"
    if part.clear:
        claim = "better than" if part.low > 0 else "worse than"
    low, high = study.reward.range
    raw = "" if (low, high) == (0, 1) else f", or {number(part.value * (high - low))} in raw units"
    return (
        f"FDTR's verified part is {claim} clinicians: its gain is {gain(part, decimals)}{raw}"
        f"{_over(part, n_valued)}; it acts in {percent(part.advised_share)} of decisions and leaves the others to "
        "clinicians."
    )


def _full_sentence(full: Shown, decimals: int, n_valued: int) -> str:
    if full.verdict == "not estimable":
        return f"The full policy's gain cannot be estimated: {full.why}."
    told = f"{gain(full, decimals)}{_over(full, n_valued)}"
    if full.verdict == "verified":
        return f"The full policy, which decides for everybody, has a gain of {told}, and that is verified too."
    doubt = ""
    if full.widened:
        doubt = f"; at {listed(full.widened)} they contradict its linear form, and a richer model stands in"
    return (
        f"The full policy decides for everybody; a model estimates its gain as {told}, which these data cannot "
        f"verify{doubt}."
    )


def _over(shown: Shown, n_valued: int) -> str:
    """Over how many sites a mean is."""
    if n_valued < 2:
        return ""
    n = len(shown.sites)
    if n == 1:
        return f", at 1 of {n_valued} sites"
    return f", mean over {n} sites" if n == n_valued else f", mean over {n} of {n_valued} sites"


def _ties_sentence(share: float) -> str:
    if not math.isfinite(share):
        return "How many decisions are near ties was not examined."
    nearly = "another action is as good as the policy's within the error of estimation"
    if share < FEW_TIES:
        return f"Near ties are rare: in {percent(share)} of decisions {nearly}."
    if share < MANY_TIES:
        return f"In {percent(share)} of decisions {nearly}: there its advice is a near tie, not a clear preference."
    return f"Most advice is a near tie, not a clear preference: in {percent(share)} of decisions {nearly}."


def model_checks(findings: Findings) -> Iterator[Assessment]:
    """The values whose linear model was tested on held-out data."""
    return (one for one in findings.assessments if math.isfinite(one.misfit) and not one.over)
