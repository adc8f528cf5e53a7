"""What a site should know: its table before it takes part, whether the total helps, and what other settings change."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.schur import leverage_map
from fdtr.algebra.threads import on_one_blas_thread
from fdtr.disclosure import EarlierReleases, Kept, Verdict, judge, withheld_steps
from fdtr.disclosure.common_repairs import CommonRepairs
from fdtr.disclosure.facts import measure
from fdtr.disclosure.masked_counts import SiteCounts
from fdtr.disclosure.message import WeightedSums, with_weights
from fdtr.disclosure.noise import Cost
from fdtr.disclosure.rules import Shortfall
from fdtr.errors import DisclosureError
from fdtr.inference.identification import FTest, Identified, identify, transition_test
from fdtr.inference.message_checks import OwnCheck, compare_held_out
from fdtr.learners import federated, local
from fdtr.learners.backward import Fit
from fdtr.policy import Policy
from fdtr.site.fitting import FederatedFit, MessageFit, as_policy, cost_of, fit_message, others_in
from fdtr.site.rows import folds_of
from fdtr.site.settings_choice import message_settings
from fdtr.site.site_message import count_message, release_of, weigh_message
from fdtr.study import Study
from fdtr.summary import SiteSummary, Total
from fdtr.trajectories import Trajectories
from fdtr.tuning.ladder import Candidate, score, sum_folds

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
    names no cluster column. `kept` says what repairs and withheld steps leave of the message. In a secure sum
    `near_threshold` says that other weights of rows could change what is taken out, and `n_alike` for how many sites
    like this one it was judged; None where the sites of the table were, or the site alone.
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
    kept: Kept
    cost: Cost | None = None
    near_threshold: bool = False
    n_alike: int | None = None

    @property
    def steps_sent(self) -> list[int]:
        """Steps at which something is left of the shared features in what the site may send."""
        if any(verdict.refuses for verdict in self.verdicts):
            return []
        return [h for h, rank in enumerate(self.kept.rank) if rank]

    @property
    def share_sent(self) -> float:
        """Share of the independent directions of the shared features that the site may send; 0 if it may not send."""
        return self.kept.share if self.steps_sent else 0.0

    @property
    def efficiency_sent(self) -> float:
        """Share of the information on the shared features that the site may send, a mean over their directions."""
        if not self.steps_sent:
            return 0.0
        return min(float(np.average(self.kept.efficiency, weights=self.kept.possible_rank)), 1.0)

    @property
    def sends_all(self) -> bool:
        """Whether the site may send all that its sums could tell: nothing is taken out, limited or made lighter."""
        return self.sends_all_directions and self.kept.whole

    @property
    def sends_all_directions(self) -> bool:
        """Whether all directions are left, although outcomes may be limited, and rows count less."""
        return bool(self.steps_sent) and self.share_sent == 1.0

    @property
    def in_the_way(self) -> list[Verdict]:
        """Broken rules that stop all or a step: they refuse, withhold a step, or their repairs leave nothing of it."""
        withheld = withheld_steps(self.verdicts)
        ranks = enumerate(zip(self.kept.rank, self.kept.possible_rank, strict=True))
        empty = [h for h, (rank, possible) in ranks if possible and not rank and h not in withheld]
        return [
            verdict
            for verdict in self.verdicts
            if verdict.refuses
            or verdict.withholds
            or (verdict.repaired and (verdict.step in empty or (verdict.step is None and not self.steps_sent)))
        ]

    @property
    def repaired(self) -> list[Verdict]:
        """Broken rules that hold for what is sent: something is taken out, or rows count less."""
        withheld, stopping = withheld_steps(self.verdicts), self.in_the_way
        return [v for v in self.verdicts if v.repaired and v.step not in withheld and v not in stopping]

    @property
    def worst(self) -> Verdict | None:
        """The broken rule that costs most, at the step where it is missed by most; None if all hold."""
        return max(self.in_the_way or self.repaired, key=cost_of_rule, default=None)

    def __repr__(self) -> str:
        refusing = sorted({verdict.rule for verdict in self.verdicts if verdict.refuses})
        whole = self.sends_all
        part = f"{self.share_sent:.0%} of the directions of its sums" if self.steps_sent else "nothing"
        outcome = f"may release {'its sums' if whole else part}"
        outcome = f"refused by {', '.join(refusing)}" if refusing else outcome
        return f"<SiteCheck of {self.site!r}: {self.n_patients:,} patients, {self.n_rows:,} rows, {outcome}>"


def cost_of_rule(verdict: Verdict) -> tuple[bool, bool, float]:
    """What a broken rule costs, to compare rules by."""
    return verdict.refuses, verdict.withholds, verdict.excess


@on_one_blas_thread
def check(
    study: Study,
    rows: Trajectories,
    fitted: MessageFit | None = None,
    ledger: EarlierReleases | None = None,
    n_sites: int | None = None,
    common: CommonRepairs | None = None,
) -> SiteCheck:
    """Check a site's table before it takes part; with a `ledger`, check rule ONCE too.

    `fitted` is the fit behind the site's message, if there is one already. In a secure sum `common` is what all sites
    take out, as `agree_on_repairs` finds where all sites are at hand; without it only the site's own repairs are made.
    `n_sites` take part in it: those of a roster, if there is one, and otherwise by default as few as the study allows.
    The cost of differential privacy is that at `n_sites` like this one, by default the study's `min_sites`.
    `help(fdtr)` has an example.
    """
    features, rules = study.feature_map, study.rules
    fitted = fitted or fit_message(study, rows)
    sums = fitted.fit.statistics
    weighted = weigh_message(study, rows, fitted, ledger, common, n_sites, make=False) if rules.by_block else None
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
        kept=weighted.kept if weighted else _kept_whole(fitted.fit, features.n_shared, verdicts),
        near_threshold=common is not None and common.near,
    )


@on_one_blas_thread
def check_sites(
    study: Study,
    sites: Mapping[str, Trajectories],
    ledger: EarlierReleases | None = None,
    n_sites: int | None = None,
) -> list[SiteCheck]:
    """Check every site of a table. A secure sum is judged on the total of them all.

    With one site alone, it is judged as if there were `n_sites` like it; not at all without that number.
    """
    fitted = {site: fit_message(study, rows) for site, rows in sites.items()}
    common = agree_on_repairs(study, sites, fitted, n_sites)
    alike = n_sites if common is not None and len(sites) == 1 else None
    taking_part = n_sites if common is None else alike or len(sites)
    return [
        replace(check(study, rows, fitted[site], ledger, taking_part, common), n_alike=alike)
        for site, rows in sites.items()
    ]


@on_one_blas_thread
def agree_on_repairs(
    study: Study, sites: Mapping[str, Trajectories], fitted: Mapping[str, MessageFit], n_alike: int | None = None
) -> CommonRepairs | None:
    """What all sites of a table would take out of a secure sum; None where none opens counts, or one site is alone.

    One site alone stands for `n_alike`, if that is given. A site whose message is refused does not count: it may only
    receive. But the others are judged as sites among all of them, as it would be on the roster.
    """
    times = n_alike or 1 if len(sites) == 1 else 1
    n_sites = len(sites) * times
    if not study.counts_first or n_sites < 2 or not study.feature_map.n_shared:
        return None
    counts: list[SiteCounts] = []
    for site, rows in sites.items():
        with suppress(DisclosureError):
            counts.append(count_message(study, rows, fitted=fitted[site], n_sites=n_sites))
    if counts:
        return study.combine_counts(counts * times)
    nobody = Shortfall("SITES", 0, study.required_sites, study.required_sites)
    return CommonRepairs(steps=tuple(range(study.horizon)), why=(nobody,) * study.horizon)


def _kept_whole(fit: Fit, n_shared: int, verdicts: Sequence[Verdict]) -> Kept:
    """What withheld steps leave of a message that is not repaired."""
    withheld = withheld_steps(verdicts)
    possible = tuple(len(leverage_map(step.gram, n_shared)) for step in fit.statistics)
    left = tuple(float(h not in withheld) for h in range(len(possible)))
    return Kept(tuple(int(rank * sent) for rank, sent in zip(possible, left, strict=True)), possible, left)


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


@on_one_blas_thread
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
    folds = folds_of(rows, learning.seed, _CHECK_FOLDS, _CHECK_PURPOSE)
    sums = sum_folds(rows, features, folds, [local.fit_local(rows, features, settings).bounds])
    scores = score(sums, others_in(study, total, own), features.n_shared, features.main_effects, candidates)
    return compare_held_out(*scores.error)


@dataclass(frozen=True)
class Variation:
    """The share of decisions that stay the `same` with `value` times the pessimism, or with `value` as w."""

    setting: Literal["pessimism", "w"]
    value: float
    same: float


@on_one_blas_thread
def vary(
    study: Study, rows: Trajectories, total: Total, own: SiteSummary | None, fitted: FederatedFit
) -> tuple[Variation, ...]:
    """Vary the pessimism with the chosen w, then w with that pessimism; λ and what is shared stay as chosen."""
    others, chosen, usual = others_in(study, total, own), fitted.chosen, fitted.settings
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
