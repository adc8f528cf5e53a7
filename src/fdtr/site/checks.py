"""What a site should know before it takes part, and the message that leaves it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.disclosure import Ledger, Message, Verdict, judge, release, withheld_steps
from fdtr.disclosure.facts import measure
from fdtr.disclosure.noise import Cost
from fdtr.errors import ReleasedBefore
from fdtr.inference import FTest, Identified, identify, transition_test
from fdtr.site.fits import LocalFit, MessageFit, fit_message
from fdtr.site.private import cost_of
from fdtr.site.rules import release_of
from fdtr.study import Study
from fdtr.trajectories import Trajectories


@dataclass(frozen=True)
class SiteCheck:
    """What `fdtr check` shows of one site.

    `action_counts` (H, A) counts patients; `clipped` and `filled` count values by covariate; `identified` says what
    the shared features can contribute; `transitions` holds the F test of every step but the last; `verdicts` what
    disclosure would say; `cost` what differential privacy costs, None without it. `n_clusters` is None where the
    study names no cluster column.
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
    cost: Cost | None = None


def check(
    study: Study,
    rows: Trajectories,
    fitted: LocalFit | MessageFit | None = None,
    ledger: Ledger | None = None,
    n_sites: int | None = None,
) -> SiteCheck:
    """Everything there is to know about a site's table before it takes part; with a `ledger`, rule ONCE too.

    `n_sites` is with how many sites the cost of differential privacy is told, the study's `min_sites` by default.
    """
    features, rules = study.feature_map, study.rules
    fitted = fitted or fit_message(study, rows)
    sums = fitted.fit.statistics
    verdicts = judge(measure(rows, features, fitted.fit, rules), rules)
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
        verdicts=verdicts + ([_judge_once(study, rows, fitted, ledger, withheld_steps(verdicts))] if ledger else []),
        cost=cost_of(study, fitted.fit, n_sites),
    )


def _judge_once(
    study: Study, rows: Trajectories, fitted: LocalFit | MessageFit, ledger: Ledger, withheld: list[int]
) -> Verdict:
    """Rule ONCE. A noised message is never made twice: where it was made before, it is the one to use again."""
    if study.disclosure.epsilon is None:
        return ledger.judge(release_of(study, rows, fitted.summary))
    release = release_of(study, rows, None, withheld)
    before = ledger.repeated(release)
    if before is None:
        return ledger.judge(release)
    measured = f"these patients were released in the message {before[:12]}…, which is used again"
    return Verdict(ReleasedBefore, None, True, measured, "one noised message of the same patients")


def summarize(
    study: Study, rows: Trajectories, ledger: Ledger | None = None, fitted: LocalFit | MessageFit | None = None
) -> Message:
    """The message of one site, checked by disclosure; refuses with every reason.

    `ledger` is what the site released before. It is read here; whoever writes the message records it
    (`Ledger.recording`). `fitted` is the fit behind the message, where it is at hand. With differential privacy every
    other fit draws other noise and would spend ε again, which the ledger refuses for the same patients.
    """
    study.require_shared()
    fitted = fitted or fit_message(study, rows)
    rules = study.rules
    facts = measure(rows, study.feature_map, fitted.fit, rules)
    once = None
    if ledger:
        if study.disclosure.epsilon is not None:
            _refuse_repeated(study, rows, ledger, fitted)
        once = ledger.judge(release_of(study, rows, fitted.summary))
    return release(fitted.summary, facts, rules, once)


def _refuse_repeated(study: Study, rows: Trajectories, ledger: Ledger, fitted: LocalFit | MessageFit) -> None:
    before = ledger.repeated(release_of(study, rows, None))
    if before is not None and before != fitted.summary.digest:  # else it is the one that was sent
        raise ReleasedBefore(
            f"Site {rows.site!r} has released these patients for this study before, in the message {before[:12]}…. "
            "Another message would carry other noise, and two of them tell more than epsilon allows. Nothing was "
            "written. Use that message again; if it was never sent, strike it with `fdtr site withdraw`. Do not "
            "forward this message."
        )
