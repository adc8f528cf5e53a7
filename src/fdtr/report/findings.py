"""What was found of values, at all sites of a study or at one: the rows of the first screen, and what they mean.

"Better than clinicians" is said only where a verified gain's interval lies above 0.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fdtr.comparisons import CLINICIANS, FDTR, VERIFIED, Evidence, among_sites
from fdtr.report.pages import distinct, gain, listed, number, percent
from fdtr.report.record import Assessment, MeanOverSites, Record, Subgroup, Trust
from fdtr.site.site_evaluation import Split
from fdtr.study import Study

PART = VERIFIED[FDTR]

MANY_TIES, FEW_TIES = 0.5, 0.1
"""Shares of decisions: from the first on, most advice is a near tie; below the second, near ties are rare."""


@dataclass(frozen=True)
class Findings:
    """Values and gains, and how far to trust them; mappings are by site.

    `patients` names all sites, also those that are `not_valued`, with the reason. `near_ties` has shares by step,
    `decisions` how many there are at each step, and `withheld` what is not shown because of them. `clusters` says
    whose errors are by cluster, and `samples` of how many patients values are, where not of all. `true_gains` over
    clinicians, by method, are known of simulated data alone.
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
    samples: Mapping[str, str] = field(default_factory=dict)
    true_gains: Mapping[str, float] = field(default_factory=dict)

    @property
    def valued(self) -> list[str]:
        """The sites where something was valued."""
        return list(dict.fromkeys(assessment.site for assessment in self.assessments))

    def assessment(self, site: str, method: str, over: str = "") -> Assessment | None:
        """What can be said of one value, or of one gain, at a site."""
        wanted = (site, method, over)
        return next((part for part in self.assessments if (part.site, part.method, part.over) == wanted), None)

    def mean(self, method: str, over: str = "", sites: Sequence[str] = ()) -> MeanOverSites | None:
        """The mean over the sites that have a number, or over just these `sites`; None where there is none."""
        means = (mean for mean in self.means if (mean.method, mean.over) == (method, over))
        return next((mean for mean in means if not sites or {*mean.sites} == {*sites}), None)

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
    sites, truth = record.sites, {known.method: known.value for known in record.known_values}
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
        samples={name: str(site.valued_on) for name, site in sites.items() if site.valued_on},
        true_gains={
            method: truth[method] - truth[CLINICIANS] for method in (PART, FDTR) if {method, CLINICIANS} <= truth.keys()
        },
    )


@dataclass(frozen=True)
class Shown:
    """A value or gain on the first screen, at one site or as a mean over `sites`; NaN where it has no number.

    `why` says in a few words why there is none. `advised_share` is the share of decisions that the method makes, over
    the same sites. At the sites of `widened` held-out data contradict the linear model.
    """

    verdict: Evidence = Evidence.NONE
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    advised_share: float = math.nan
    sites: Sequence[str] = ()
    widened: Sequence[str] = ()
    why: str = ""

    @property
    def clear(self) -> bool:
        """Whether the interval of a gain excludes 0."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Row:
    """A row of the first screen: what clinicians reach, and what the verified `part` and the full policy gain.

    `where` names the sites that clinicians of a mean are over, where these are not all.
    """

    name: str
    n: int
    usual: Shown
    part: Shown
    full: Shown
    is_mean: bool = False
    where: str = ""

    @property
    def gains(self) -> tuple[Shown, Shown]:
        """Both gains, as they are drawn: the verified part above the full policy."""
        return self.part, self.full


def first_screen(findings: Findings) -> list[Row]:
    """A row for each valued site, and the mean over sites where there are several.

    The mean of clinicians is over the sites of the verified part, else of the full policy, else over all. There is no
    mean of one site.
    """
    rows = [
        Row(
            site,
            next(assessed.n for assessed in findings.assessments if assessed.site == site),
            usual=_at_site(findings.assessment(site, CLINICIANS)),
            part=_at_site(findings.assessment(site, PART, CLINICIANS)),
            full=_at_site(findings.assessment(site, FDTR, CLINICIANS)),
        )
        for site in findings.valued
    ]
    if len(rows) < 2:
        return rows
    part, full = (_over_sites(findings, method, CLINICIANS) for method in (PART, FDTR))
    sites = next((gain.sites for gain in (part, full) if len(gain.sites) > 1), findings.valued)
    usual, where = _over_sites(findings, CLINICIANS, sites=sites), among_sites(sites, findings.valued)
    return [*rows, Row("Mean", sum(row.n for row in rows), usual, part, full, is_mean=True, where=where)]


def _at_site(assessment: Assessment | None) -> Shown:
    if assessment is None:
        return Shown(why="it was not valued")
    if assessment.verdict == Evidence.NONE:
        return Shown(why=assessment.brief)
    return Shown(
        assessment.verdict,
        assessment.value,
        assessment.low,
        assessment.high,
        assessment.advised_share,
        sites=[assessment.site],
        widened=[assessment.site] if assessment.estimator == "richer" else [],
    )


def _over_sites(findings: Findings, method: str, over: str = "", sites: Sequence[str] = ()) -> Shown:
    mean = findings.mean(method, over, sites)
    if mean is None:
        compared = [part for part in findings.assessments if (part.method, part.over) == (method, over)]
        return Shown(why=" or ".join(distinct(part.brief for part in compared)) or "it was not valued")
    parts = [assessed for site in mean.sites if (assessed := findings.assessment(site, method, over))]
    if len(mean.sites) == 1:
        return Shown(sites=mean.sites, why=f"at {mean.sites[0]} alone, which is no mean")
    share = sum(assessed.advised_share for assessed in parts) / len(parts) if parts else math.nan
    widened = [assessed.site for assessed in parts if assessed.estimator == "richer"]
    return Shown(mean.verdict, mean.plain.value, mean.plain.low, mean.plain.high, share, mean.sites, widened)


def gain_decimals(rows: Sequence[Row]) -> int:
    """Decimal places that show the largest end of an interval with two significant digits, and at least two.

    >>> gain_decimals([])
    2
    """
    ends = [abs(end) for row in rows for gain in row.gains for end in (gain.low, gain.high) if math.isfinite(end)]
    largest = max(ends, default=0.0)
    return min(max(2, 1 - math.floor(math.log10(largest))), 6) if largest > 0 else 2


def meaning(findings: Findings, rows: Sequence[Row]) -> list[str]:
    """What was found of the verified part, of the full policy, and of near ties, a sentence each.

    Of a mean where there is one; of the one site where only one has a number.
    """
    decimals, n_valued = gain_decimals(rows), len(findings.valued)
    part, full = (_headline(rows, position) for position in (0, 1))
    return [
        _part_sentence(findings.study, part, decimals, n_valued),
        _full_sentence(full, part.verdict == Evidence.VERIFIED, decimals, n_valued),
        _ties_sentence(findings.tied_share),
    ]


def _headline(rows: Sequence[Row], position: int) -> Shown:
    """The gain of the last row; that of the only site that has one, where this is a mean."""
    gain = rows[-1].gains[position]
    if gain.verdict == Evidence.NONE and len(gain.sites) == 1:
        return next(row.gains[position] for row in rows if row.name == gain.sites[0] and not row.is_mean)
    return gain


def _part_sentence(study: Study, part: Shown, decimals: int, n_valued: int) -> str:
    if part.verdict == Evidence.NONE:
        where = f" at any of the {n_valued} sites" if n_valued > 1 else ""
        return f"No part of FDTR's policy is verified{where}: {part.why}."
    if part.verdict == Evidence.MODEL:
        where = " at all of these sites" if len(part.sites) > 1 else ""
        return (
            f"No part of FDTR's policy is verified{where}; a model estimates the gain of what it would advise as "
            f"{gain(part, decimals)}{_over(part, n_valued)}."
        )
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


def _full_sentence(full: Shown, part_is_verified: bool, decimals: int, n_valued: int) -> str:
    if full.verdict == Evidence.NONE:
        return f"The gain of the full policy, which decides for everybody, cannot be estimated: {full.why}."
    shown = f"{gain(full, decimals)}{_over(full, n_valued)}"
    if full.verdict == Evidence.VERIFIED:
        how = "is verified, too" if part_is_verified else "is verified as a whole"
        return f"The full policy, which decides for everybody, {how}: its gain is {shown}."
    doubt = ""
    if full.widened:
        doubt = f"; at {listed(full.widened)} they contradict its linear form, and a richer model stands in"
    return (
        f"The full policy decides for everybody; a model estimates its gain as {shown}, which these data cannot "
        f"verify{doubt}."
    )


def _over(shown: Shown, n_valued: int) -> str:
    """Over how many sites a mean is, or at which one of several."""
    if n_valued < 2:
        return ""
    n = len(shown.sites)
    if n == 1:
        return f", at {shown.sites[0]} alone, 1 of {n_valued} sites"
    return f", mean over {n} sites" if n == n_valued else f", mean over {n} of {n_valued} sites"


def _ties_sentence(share: float) -> str:
    if not math.isfinite(share):
        return "How many of the full policy's decisions are near ties was not examined."
    nearly = "another action is as good within the error of estimation"
    if share < FEW_TIES:
        return f"Near ties are rare: in {percent(share)} of the full policy's decisions {nearly}."
    if share < MANY_TIES:
        return f"In {percent(share)} of the full policy's decisions {nearly}: its advice there is no clear preference."
    return (
        f"Most advice of the full policy is a near tie, not a clear preference: in {percent(share)} of its decisions "
        f"{nearly}."
    )


def model_checks(findings: Findings) -> Iterator[Assessment]:
    """The values whose linear model was tested on held-out data."""
    return (assessed for assessed in findings.assessments if math.isfinite(assessed.misfit) and not assessed.over)
