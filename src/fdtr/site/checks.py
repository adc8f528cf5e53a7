"""What a site should know before it takes part, and the message that leaves it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.disclosure import Ledger, Message, Verdict, judge, measure, release
from fdtr.errors import MissingExtra
from fdtr.inference import FTest, Identified, identify, transition_test
from fdtr.site.fits import LocalFit, MessageFit, fit_message
from fdtr.site.rules import release_of, rules_of
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


def check(
    study: Study, rows: Trajectories, fitted: LocalFit | MessageFit | None = None, ledger: Ledger | None = None
) -> SiteCheck:
    """Everything there is to know about a site's table before it takes part; with a `ledger`, rule ONCE too."""
    features = study.feature_map
    fitted = fitted or fit_message(study, rows)
    sums = fitted.fit.statistics
    verdicts = judge(measure(rows, features, fitted.fit, study.disclosure.payload), rules_of(study))
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
        verdicts=verdicts + ([ledger.judge(release_of(study, rows, fitted.summary))] if ledger else []),
    )


def summarize(study: Study, rows: Trajectories, ledger: Ledger | None = None) -> Message:
    """The message of one site, checked by disclosure; refuses with every reason.

    `ledger` is what the site released before. It is read here; whoever writes the message records it
    (`Ledger.recording`).
    """
    if study.disclosure.epsilon is not None:
        raise MissingExtra(
            "The study asks for differential privacy (epsilon), and this version adds no noise. Nothing was written. "
            "Leave epsilon and delta out of [disclosure], at all sites."
        )
    fitted = fit_message(study, rows)
    facts = measure(rows, study.feature_map, fitted.fit, study.disclosure.payload)
    once = ledger.judge(release_of(study, rows, fitted.summary)) if ledger else None
    return release(fitted.summary, facts, rules_of(study), once)
