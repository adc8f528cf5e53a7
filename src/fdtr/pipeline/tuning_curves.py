"""How a site's own held-out patients judge the settings that the study leaves open."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fdtr.site.fitting import fit_local, others_in
from fdtr.site.settings_choice import judge_pessimism, score_together
from fdtr.study import Study
from fdtr.summary import SiteSummary, Total, combine
from fdtr.trajectories import Trajectories
from fdtr.tuning import Candidate, PessimismGain, Scores, choose

Array = NDArray[np.float64]


@dataclass(frozen=True)
class JudgedCandidate:
    """A candidate, how much larger each criterion is than for the chosen one, and the standard error of that."""

    candidate: Candidate
    error: float
    error_se: float
    contrast: float
    contrast_se: float


@dataclass(frozen=True)
class TuningCurves:
    """The `chosen` candidate, those that differ from it in λ alone, and those that differ in w or what is shared.

    `by_pessimism` are the gains of other c over the usual one, empty where the study fixes c.
    """

    chosen: Candidate
    by_ridge: tuple[JudgedCandidate, ...]
    by_sharing: tuple[JudgedCandidate, ...]
    by_pessimism: tuple[PessimismGain, ...] = ()


def tune(
    study: Study, data: Trajectories, total: Total | None = None, own: SiteSummary | None = None
) -> dict[str, TuningCurves]:
    """The tuning curves of every site in a table; with `total`, those of the table's one site.

    The other sites are then those in the total, and `own` is this site's summary as it was sent, or None.
    `help(fdtr)` has an example.
    """
    sites = data.by_site()
    summaries: Mapping[str, SiteSummary] = {site: fit_local(study, rows).summary for site, rows in sites.items()}
    if total is None:
        total = combine(summaries.values())
    elif own is not None:
        summaries = {own.site: own}
    by_site = {}
    for site, rows in sites.items():
        others = others_in(total, summaries[site])
        curves = curves_of(score_together(study, rows, others))
        by_site[site] = replace(curves, by_pessimism=judge_pessimism(study, rows, others, curves.chosen))
    return by_site


def curves_of(scores: Scores) -> TuningCurves:
    """The scores of the candidates that lie on a line through the one that `choose` takes."""
    chosen = choose(scores)
    best = scores.candidates.index(chosen)
    judged = [
        JudgedCandidate(candidate, *_excess(scores.error, place, best), *_excess(scores.contrast, place, best))
        for place, candidate in enumerate(scores.candidates)
    ]
    by_ridge = [j for j in judged if (j.candidate.sharing, j.candidate.share) == (chosen.sharing, chosen.share)]
    by_sharing = [j for j in judged if j.candidate.ridge == chosen.ridge]
    return TuningCurves(chosen, tuple(by_ridge), tuple(by_sharing))


def _excess(criterion: Array, place: int, best: int) -> tuple[float, float]:
    """Sum over folds of the paired difference from the chosen candidate, and its standard error."""
    difference = criterion[place] - criterion[best]
    return float(difference.sum()), float(np.sqrt(len(difference) * difference.var(ddof=1)))
