"""How a site's own held-out patients judge the settings that the study leaves open."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fdtr.site import fit_local, judge_pessimism, others_in, score_together
from fdtr.study import Study
from fdtr.summary import SiteSummary, Total, combine
from fdtr.trajectories import Trajectories
from fdtr.tuning import Candidate, Pessimism, Scores, choose

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Judged:
    """A candidate beside the chosen one: how much larger each criterion is, and the standard error of that."""

    candidate: Candidate
    error: float
    error_se: float
    contrast: float
    contrast_se: float


@dataclass(frozen=True)
class Curves:
    """What was `chosen`, and the candidates along λ, and along w and the kind of sharing, through it.

    `by_pessimism` are the gains of other c over the usual one, empty where the study fixes c.
    """

    chosen: Candidate
    by_ridge: tuple[Judged, ...]
    by_sharing: tuple[Judged, ...]
    by_pessimism: tuple[Pessimism, ...] = ()


def tuning_curves(
    study: Study, data: Trajectories, total: Total | None = None, own: SiteSummary | None = None
) -> dict[str, Curves]:
    """The curves of every site in a table; with `total`, those of its one site beside the sites in the total.

    `own` is that site's summary as it was sent, where it is at hand.
    """
    sites = data.by_site()
    summaries: Mapping[str, SiteSummary] = {site: fit_local(study, rows).summary for site, rows in sites.items()}
    if total is None:
        total = combine(summaries.values())
    elif own is not None:
        summaries = {own.site: own}
    found = {}
    for site, rows in sites.items():
        others = others_in(total, summaries[site])
        curves = curves_of(score_together(study, rows, others))
        found[site] = replace(curves, by_pessimism=judge_pessimism(study, rows, others, curves.chosen))
    return found


def curves_of(scores: Scores) -> Curves:
    """Cuts through the scores at what `choose` takes."""
    chosen = choose(scores)
    best = scores.candidates.index(chosen)
    judged = [
        Judged(candidate, *_above(scores.error, place, best), *_above(scores.contrast, place, best))
        for place, candidate in enumerate(scores.candidates)
    ]
    along = [j for j in judged if (j.candidate.sharing, j.candidate.share) == (chosen.sharing, chosen.share)]
    across = [j for j in judged if j.candidate.ridge == chosen.ridge]
    return Curves(chosen, tuple(along), tuple(across))


def _above(criterion: Array, place: int, best: int) -> tuple[float, float]:
    """Sum over folds of the paired difference from the chosen candidate, and its standard error."""
    difference = criterion[place] - criterion[best]
    return float(difference.sum()), float(np.sqrt(len(difference) * difference.var(ddof=1)))
