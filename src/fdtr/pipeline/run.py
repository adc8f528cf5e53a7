"""All sites in one table: fit every method for every site, and value each on patients it was not fitted to."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import numpy as np

from fdtr.algebra.threads import on_one_blas_thread
from fdtr.comparisons import FDTR
from fdtr.disclosure import require_sites
from fdtr.disclosure.common_repairs import CommonRepairs
from fdtr.errors import DisclosureError, FdtrError, InvalidStudy, WrongSite
from fdtr.hub import combine_messages
from fdtr.inference.near_ties import near_ties
from fdtr.learners.baselines import MajorityVote
from fdtr.learners.finished_steps import goes_on
from fdtr.pipeline.results import Results, Rule
from fdtr.pipeline.study_record import Practice, SiteEstimates, site_record, study_record, value_site
from fdtr.policy import Policy
from fdtr.progress import Progress, Steps, ignore_progress
from fdtr.site.fitting import (
    LocalFit,
    fit_federated,
    fit_local,
    fit_message,
    fit_q_learning,
    others_in,
    recomputed,
    verify,
)
from fdtr.site.settings_choice import choose_together
from fdtr.site.site_check import agree_on_repairs, check, vary
from fdtr.site.site_evaluation import SiteEvaluation, Split, Voters, evaluate_site, training_half
from fdtr.site.site_message import summarize
from fdtr.study import Study
from fdtr.summary import SiteSummary, Total, combine
from fdtr.trajectories import Trajectories
from fdtr.tuning import Choice
from fdtr.verified_policy import VerifiedPolicy

ALLOWED = "FDTR (as allowed)"
"""FDTR as disclosure allows: from the messages that the rules let out. Sites that may send nothing receive only."""

_HALF, _REFITS, _VALUES = "one half alone", "policies fitted without the patients they treat", "every method valued"
_WORK = {"alone": 1, "with the others": 1, ALLOWED: 2, "baselines": 1, "checks": 4, _HALF: 1, _REFITS: 5, _VALUES: 8}
"""How long each step takes at one site, relative to the others; _HALF is done with `split` "half" only."""


@goes_on
@on_one_blas_thread
def run(study: Study, data: Trajectories, *, split: Split = "folds", progress: Progress = ignore_progress) -> Results:
    """Fit FDTR and the five baselines for every site of a table, and value them on patients held out from them.

    `split` is "folds" (every patient is held out once) or "half" (one half of every site is, as in the paper). A site
    that cannot be valued is in `not_valued`, and the others go on. Nothing is released: what disclosure would say is in
    `checks`. `progress` is called with each step that begins; nothing is left to compute after its last call.
    `help(fdtr)` has an example.
    """
    if not isinstance(data, Trajectories):
        raise TypeError(f"Trajectories are needed, not {type(data).__name__}: read_trajectories(table, study).")
    sites = data.by_site()
    steps = Steps(progress, len(sites) * sum(work for what, work in _WORK.items() if split == "half" or what != _HALF))
    local = {site: fit_local(study, rows) for site, rows in _each(sites, steps, "alone")}
    total = combine(fit.summary for fit in local.values())
    federated = {
        site: fit_federated(study, rows, total, local[site].summary)
        for site, rows in _each(sites, steps, "with the others")
    }
    steps.begin(ALLOWED, len(sites) * _WORK[ALLOWED])
    common = agree_on_repairs(study, sites, local)
    taking_part = None if common is None else len(sites)
    allowed = {ALLOWED: _as_disclosure_allows(study, sites, local, common)} if study.disclosure.epsilon is None else {}
    steps.begin("baselines", len(sites) * _WORK["baselines"])
    baselines = _baselines(study, sites, local)
    checks, site_records, verified = {}, {}, {}
    for site, rows in _each(sites, steps, "checks"):
        fit, own = federated[site], local[site]
        verified[site] = verify(study, rows, fit)
        checks[site] = check(study, rows, own, n_sites=taking_part, common=common)
        site_records[site] = site_record(
            fit,
            checks[site],
            practice_of(
                fit.policy, verified[site], rows, {name: rules[site] for name, rules in (allowed | baselines).items()}
            ),
            near_ties(rows, study.feature_map, fit.policy_fit),
            vary(study, rows, total, own.summary, fit),
            verified[site].sample,
        )
    evaluations, values, not_valued = _value_sites(study, sites, total, local, baselines, split, steps)
    for site, before in site_records.items():
        found = {"trust": values[site].trust, "valued_on": values[site].sample} if site in values else {}
        site_records[site] = before.model_copy(update={**found, "not_valued": not_valued.get(site, "")})
    results = Results(
        study=study,
        record=study_record(study, total, local, federated, site_records, values, split),
        total=total,
        local=local,
        federated=federated,
        methods={FDTR: {site: fit.policy for site, fit in federated.items()}, **allowed, **baselines},
        verified=verified,
        checks=checks,
        evaluations=evaluations,
        not_valued=not_valued,
    )
    steps.end()
    return results


def _as_disclosure_allows(
    study: Study, sites: Mapping[str, Trajectories], local: Mapping[str, LocalFit], common: CommonRepairs | None
) -> Mapping[str, Rule]:
    """The policies that the sites would learn from released messages, with weights from the study's seed.

    In a secure sum all sites take out what is in `common`. Where nothing may be added up, every site stays alone.
    """
    messages: dict[str, SiteSummary] = {}
    try:
        for site, rows in sites.items():
            with suppress(DisclosureError):
                message = summarize(study, rows, fitted=local[site], common=common, n_sites=len(sites))
                messages[site] = message.summary
        total = _added(study, list(messages.values()), judged_on_counts=common is not None)
    except (DisclosureError, InvalidStudy, WrongSite):  # too few sites, or no shared effect
        return {site: fit.policy for site, fit in local.items()}
    return {
        site: fit_federated(study, rows, total, messages.get(site), receive_only=site not in messages).policy
        for site, rows in sites.items()
    }


def _added(study: Study, messages: Sequence[SiteSummary], *, judged_on_counts: bool) -> Total:
    """The total of released messages. Counts say already what too few sites tell."""
    if not judged_on_counts:
        return combine_messages(study, messages)
    require_sites([len(messages)], study.disclosure.min_sites, study.site_level_covariates)
    return combine(messages)


@on_one_blas_thread
def fit_baselines(study: Study, sites: Mapping[str, Trajectories]) -> dict[str, Mapping[str, Rule]]:
    """LDTR, LDTR (MV), Q-learn (1), Q-learn (1-MV) and Q-learn (H): for each, {site: policy}.

    `sites` is what `by_site()` of a table gives. `help(fdtr)` has an example.
    """
    if not isinstance(sites, Mapping):
        raise TypeError(f"A mapping of sites to their rows is needed, not {type(sites).__name__}: data.by_site().")
    return _baselines(study, sites, {site: fit_local(study, rows) for site, rows in sites.items()})


def practice_of(policy: Policy, verified: VerifiedPolicy, rows: Trajectories, others: Mapping[str, Rule]) -> Practice:
    """Compare a policy, and its verified part, with what was done for the patients of `rows`, and with other rules."""
    levels = policy.features.levels
    given = rows.action_counts()
    recommended, with_part, advised = np.zeros(given.shape), np.zeros(given.shape), np.zeros(rows.horizon)
    same_as_practice, same_as_others = 0, dict.fromkeys(others, 0)
    for h in range(rows.horizon):
        for chunk in rows.step(h).chunks():
            states = dict(zip(rows.covariates, chunk.states, strict=True))
            action, done = policy.act(states, h), levels[chunk.actions]
            speaks, advice = verified.decide(states, h)
            for method, other in others.items():
                same_as_others[method] += int(np.sum(action == other.act(states, h)))
            same_as_practice += int(np.sum(action == done))
            recommended[h] += [np.sum(action == level) for level in levels]
            with_part[h] += [np.sum(np.where(speaks, advice, done) == level) for level in levels]
            advised[h] += np.sum(speaks)
    patients = np.maximum(given.sum(axis=1, keepdims=True), 1)
    return Practice(
        recommended=recommended / patients,
        given=given / patients,
        with_part=with_part / patients,
        advised=advised / patients[:, 0],
        agreement_with_practice=same_as_practice / rows.n_rows,
        agreement_with_baselines={method: count / rows.n_rows for method, count in same_as_others.items()},
    )


def _each(sites: Mapping[str, Trajectories], steps: Steps, what: str) -> Iterator[tuple[str, Trajectories]]:
    """Every site and its rows; reports a step of `what` as each begins."""
    for site, rows in sites.items():
        steps.begin(f"{site}: {what}", _WORK[what])
        yield site, rows


def _value_sites(
    study: Study,
    sites: Mapping[str, Trajectories],
    total: Total,
    local: Mapping[str, LocalFit],
    baselines: Mapping[str, Mapping[str, Rule]],
    split: Split,
    steps: Steps,
) -> tuple[dict[str, SiteEvaluation], dict[str, SiteEstimates], dict[str, str]]:
    """Every site's evaluation and all its values; or, in the last mapping, why it has none."""
    evaluations: dict[str, SiteEvaluation] = {}
    values: dict[str, SiteEstimates] = {}
    reasons: dict[str, str] = {}
    if split == "half":
        halves, local = _fit_halves(study, sites, reasons, steps)
        if halves:
            total = combine(fit.summary for fit in local.values())
            baselines = _baselines(study, halves, local)
    for site, rows in _each(sites, steps, _REFITS):
        if site not in reasons:
            with _noting_failure(site, reasons):
                voters = _voters(baselines, site)
                evaluations[site] = evaluate_site(study, rows, total, local[site].summary, voters, split=split)
    for site, _ in _each(sites, steps, _VALUES):
        if site not in reasons:
            with _noting_failure(site, reasons):
                values[site] = value_site(study, evaluations[site])
    return {site: evaluations[site] for site in values}, values, reasons


@contextmanager
def _noting_failure(site: str, reasons: dict[str, str]) -> Iterator[None]:
    """Let the other sites go on where one fails; `reasons` then says why."""
    try:
        yield
    except FdtrError as error:
        reasons[site] = str(error)


def _fit_halves(
    study: Study, sites: Mapping[str, Trajectories], reasons: dict[str, str], steps: Steps
) -> tuple[dict[str, Trajectories], dict[str, LocalFit]]:
    """One half of every site's patients, and its fit: no policy of any site is fitted to the other halves.

    A site that cannot be halved takes no part.
    """
    halves, fits = {}, {}
    for site, rows in _each(sites, steps, _HALF):
        with _noting_failure(site, reasons):
            half = training_half(study, rows)
            fits[site], halves[site] = fit_local(study, half), half
    return halves, fits


def _voters(baselines: Mapping[str, Mapping[str, Rule]], site: str) -> Voters:
    """The policies of all sites but one, for its majority votes."""
    alone, single = (
        [rule for other, rule in baselines[method].items() if other != site and isinstance(rule, Policy)]
        for method in ("LDTR", "Q-learn (1)")
    )
    return Voters(alone, single)


def _baselines(
    study: Study, sites: Mapping[str, Trajectories], local: Mapping[str, LocalFit]
) -> dict[str, Mapping[str, Rule]]:
    alone = {site: fit.policy for site, fit in local.items()}
    q = {site: fit_q_learning(study, rows) for site, rows in sites.items()}
    single = {site: policies["Q-learn (1)"] for site, policies in q.items()}
    return {
        "LDTR": alone,
        "LDTR (MV)": dict.fromkeys(sites, MajorityVote("LDTR (MV)", tuple(alone.values()))),
        "Q-learn (1)": single,
        "Q-learn (1-MV)": dict.fromkeys(sites, MajorityVote("Q-learn (1-MV)", tuple(single.values()))),
        "Q-learn (H)": {site: policies["Q-learn (H)"] for site, policies in q.items()},
    }


@goes_on
@on_one_blas_thread
def tune(
    study: Study, data: Trajectories, total: Total | None = None, own: SiteSummary | None = None
) -> dict[str, Choice]:
    """How the held-out patients of every site in a table judge the settings; with `total`, those of its one site.

    The other sites are then those in the total, and `own` is this site's summary as it was sent, or None.
    `help(fdtr)` has an example.
    """
    sites = data.by_site()
    summaries: Mapping[str, SiteSummary]
    if total is None:
        summaries = {site: fit_message(study, rows).summary for site, rows in sites.items()}
        total = combine(summaries.values())
    else:
        own = own or recomputed(study, data, total)
        summaries = {own.site: own}
    others = {site: others_in(study, total, summaries[site]) for site in sites}
    return {site: choose_together(study, rows, others[site]) for site, rows in sites.items()}
