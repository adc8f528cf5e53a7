"""What a site should know: its table before it takes part, whether the total helps, and what other settings change."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fdtr.disclosure import EarlierReleases, Kept, Verdict, judge, withheld_steps
from fdtr.disclosure.facts import measure
from fdtr.disclosure.message import WeightedSums, with_weights
from fdtr.disclosure.noise import Cost
from fdtr.inference.identification import FTest, Identified, identify, transition_test
from fdtr.inference.message_checks import OwnCheck, compare_held_out
from fdtr.learners import federated, local
from fdtr.policy import Policy
from fdtr.site.fitting import FederatedFit, MessageFit, as_policy, cost_of, fit_message, others_in
from fdtr.site.settings_choice import message_settings
from fdtr.site.site_message import release_of, weigh_message
from fdtr.study import Study
from fdtr.summary import SiteSummary, Total
from fdtr.trajectories import Trajectories
from fdtr.tuning.ladder import Candidate, assign_folds, score, sum_folds

MULTIPLES = (0.0, 0.5, 2.0, 5.0)
WEIGHTS = (0.0, 0.25, 0.5, 1.0)
"""Multiples of the pessimism, and w, for which the share of unchanged decisions is shown."""

_CHECK_FOLDS = 10
_CHECK_PURPOSE = b"own check"


@dataclass(frozen=True)
class SiteCheck:
    """What `fdtr check` shows about one site.

    `action_counts` (H, A) counts patients; `clipped` and `filled` count values by covariate; `identified` says what
    the shared features can contribute; `transitions` holds the F test of every step but the last; `verdicts` are those
    of the disclosure rules; `cost` is that of differential privacy, None without it. `n_clusters` is None if the study
    names no cluster column. `kept` says what repairs leave of the message, None where none are made.
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
    kept: Kept | None = None

    @property
    def steps_sent(self) -> list[int]:
        """Steps of which the site may send sums: neither withheld, nor without patients, nor refused as a whole."""
        if any(verdict.refuses for verdict in self.verdicts) or (self.kept is not None and not self.kept.share):
            return []
        withheld = withheld_steps(self.verdicts)
        return [h for h, row in enumerate(self.action_counts) if row.any() and h not in withheld]

    @property
    def share_sent(self) -> float:
        """Share of the independent directions of the shared features that the site may send; 0 if it may not send."""
        return (1.0 if self.kept is None else self.kept.share) if self.steps_sent else 0.0

    def __repr__(self) -> str:
        refusing = sorted({verdict.rule for verdict in self.verdicts if verdict.refuses})
        whole = self.share_sent == 1.0 and len(self.steps_sent) == len(self.action_counts)
        part = f"{self.share_sent:.0%} of what its sums could tell" if self.steps_sent else "nothing"
        outcome = f"may release {'its sums' if whole else part}"
        outcome = f"refused by {', '.join(refusing)}" if refusing else outcome
        return f"<SiteCheck of {self.site!r}: {self.n_patients:,} patients, {self.n_rows:,} rows, {outcome}>"


def check(
    study: Study,
    rows: Trajectories,
    fitted: MessageFit | None = None,
    ledger: EarlierReleases | None = None,
    n_sites: int | None = None,
) -> SiteCheck:
    """Check a site's table before it takes part; with a `ledger`, check rule ONCE too.

    `fitted` is the fit behind the site's message, if there is one already. The cost of differential privacy is that at
    `n_sites` like this one, by default the study's `min_sites`. `help(fdtr)` has an example.
    """
    features, rules = study.feature_map, study.rules
    fitted = fitted or fit_message(study, rows)
    sums = fitted.fit.statistics
    weighted = weigh_message(study, rows, fitted, ledger, make=False) if rules.by_block else None
    verdicts = list(weighted.verdicts) if weighted else judge(measure(rows, features, fitted.fit, rules), rules)
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
        verdicts=verdicts + ([_judge_once(study, rows, fitted, weighted, ledger)] if ledger else []),
        cost=cost_of(study, fitted.fit, n_sites),
        kept=weighted.kept if weighted else None,
    )


def _judge_once(
    study: Study, rows: Trajectories, fitted: MessageFit, weighted: WeightedSums | None, ledger: EarlierReleases
) -> Verdict:
    """Rule ONCE. A noised message is never made twice: one that was made before must be used again."""
    if study.disclosure.epsilon is None:
        exact = fitted.summary
        sent = with_weights(exact, weighted.sums, study.rules) if weighted else exact
        return ledger.judge(release_of(study, rows, sent))
    facts = measure(rows, study.feature_map, fitted.fit, study.rules)
    release = release_of(study, rows, None, withheld_steps(judge(facts, study.rules)))
    before = ledger.repeated(release)
    if before is None:
        return ledger.judge(release)
    measured = f"these patients were released in the message {before[:12]}…, which is used again"
    return Verdict("ONCE", None, True, measured, "one noised message of the same patients")


def check_total(study: Study, rows: Trajectories, total: Total, own: SiteSummary | None) -> OwnCheck:
    """Compare held-out errors with and without the other sites' sums, over folds of the site's patients.

    A site can thus notice a total that does harm, even one whose parts nobody has seen: the targets come from its own
    message fit, which the total does not touch. Both fits use the λ of the message; the others have the study's weight
    w, or 1 where it says "auto".
    """
    learning, features, settings = study.learning, study.feature_map, message_settings(study)
    share = "value" if learning.share == "auto" else learning.share
    weight = 1.0 if learning.sharing == "auto" else learning.sharing
    candidates = tuple(Candidate(settings.ridge, w, share) for w in (0.0, weight))
    folds = assign_folds(rows.units.to_pylist(), learning.seed, _CHECK_FOLDS, _CHECK_PURPOSE)
    sums = sum_folds(rows, features, folds, [local.fit_local(rows, features, settings).bounds])
    scores = score(sums, others_in(total, own), features.n_shared, features.main_effects, candidates)
    return compare_held_out(*scores.error)


@dataclass(frozen=True)
class Variation:
    """The share of decisions that stay the `same` with `value` times the pessimism, or with `value` as w."""

    setting: Literal["pessimism", "w"]
    value: float
    same: float


def vary(
    study: Study, rows: Trajectories, total: Total, own: SiteSummary | None, fitted: FederatedFit
) -> tuple[Variation, ...]:
    """Vary the pessimism with the chosen w, then w with that pessimism; λ and what is shared stay as chosen."""
    others, chosen, usual = others_in(total, own), fitted.chosen, fitted.settings
    values: list[tuple[Literal["pessimism", "w"], float]] = [("pessimism", multiple) for multiple in MULTIPLES]
    variations = []
    for setting, value in [*values, *(("w", weight) for weight in WEIGHTS)]:
        settings = usual.with_pessimism_times(value) if setting == "pessimism" else usual
        candidate = replace(chosen, sharing=value) if setting == "w" else chosen
        fit = federated.fit_federated(
            rows, study.feature_map, settings, others, sharing=candidate.sharing, share=candidate.share
        )
        policy = as_policy(study, rows.site, "FDTR", fit, candidate, settings)
        variations.append(Variation(setting, value, _agreement(policy, fitted.policy, rows)))
    return tuple(variations)


def _agreement(first: Policy, second: Policy, rows: Trajectories) -> float:
    """Share of all rows at which two policies choose the same action."""
    alike = 0
    for h in range(rows.horizon):
        for chunk in rows.step(h).chunks():
            states = dict(zip(rows.covariates, chunk.states, strict=True))
            alike += int(np.sum(first.act(states, h) == second.act(states, h)))
    return alike / rows.n_rows
