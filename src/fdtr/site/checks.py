"""What a site should know before it takes part, and the message that leaves it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.disclosure import Message, Rules, Verdict, judge, measure, release
from fdtr.inference import FTest, Identified, identify, transition_test
from fdtr.site.fits import LocalFit, MessageFit, fit_message
from fdtr.study import Study
from fdtr.trajectories import Trajectories


@dataclass(frozen=True)
class SiteCheck:
    """What `fdtr check` shows of one site.

    `action_counts` (H, A) counts patients; `clipped` and `filled` count values by covariate; `identified` says what
    the shared features can contribute; `transitions` holds the F test of every step but the last; `verdicts` what
    disclosure would say. `n_clusters` is None where the study names no cluster column.
    """

    site: str
    n_patients: int
    n_clusters: int | None
    n_rows: int
    action_counts: NDArray[np.int64]
    clipped: dict[str, int]
    filled: dict[str, int]
    identified: list[Identified]
    transitions: list[FTest]
    verdicts: list[Verdict]


def check(study: Study, rows: Trajectories, fitted: LocalFit | MessageFit | None = None) -> SiteCheck:
    """Everything there is to know about a site's table before it takes part."""
    features = study.feature_map
    fitted = fitted or fit_message(study, rows)
    sums = fitted.fit.statistics
    return SiteCheck(
        site=rows.site,
        n_patients=rows.n_patients,
        n_clusters=rows.n_clusters,
        n_rows=rows.n_rows,
        action_counts=np.stack([step.action_counts for step in sums]),
        clipped=dict(rows.clipped),
        filled=dict(rows.filled),
        identified=identify([step.gram for step in sums], features.names, features.n_shared, features.own_intercepts),
        transitions=[
            transition_test(step.gram, step.value_moment, step.value_square, step.n, features.n_shared)
            for step in sums[:-1]
        ],
        verdicts=judge(measure(rows, features, fitted.fit), rules_of(study)),
    )


def summarize(study: Study, rows: Trajectories) -> Message:
    """The message of one site, checked by disclosure; refuses with every reason."""
    fitted = fit_message(study, rows)
    return release(fitted.summary, measure(rows, study.feature_map, fitted.fit), rules_of(study))


def rules_of(study: Study) -> Rules:
    """The thresholds of the study; unit scaling bounds ‖φ‖ by 1."""
    asked = study.disclosure
    bound = asked.norm_bound if asked.norm_bound is not None else (1.0 if study.features.scale == "unit" else None)
    return Rules(asked.min_patients, asked.max_ratio, asked.min_action, bound)
