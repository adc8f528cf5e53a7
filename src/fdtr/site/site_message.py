"""A site's message, checked by disclosure, and the ledger entries of what it releases."""

from collections.abc import Collection
from dataclasses import replace
from functools import partial

import numpy as np

from fdtr import container
from fdtr.algebra.threads import on_one_blas_thread
from fdtr.disclosure import (
    VALUES,
    EarlierReleases,
    Message,
    Release,
    SiteValues,
    Verdict,
    drawn,
    release,
    release_weighted,
)
from fdtr.disclosure.common_repairs import CommonRepairs
from fdtr.disclosure.facts import measure
from fdtr.disclosure.masked_counts import SiteCounts
from fdtr.disclosure.message import WeightedSums
from fdtr.disclosure.rule_once import Draws
from fdtr.disclosure.weighted_sums import weigh, weigh_alone
from fdtr.errors import DisclosureError
from fdtr.site.fitting import MessageFit, fit_message
from fdtr.study import Study
from fdtr.summary import SiteSummary
from fdtr.trajectories import Trajectories

_ROUNDED = 1e-6
"""A message that was rounded for a secure sum differs from the exact one by less than this, relatively."""


@on_one_blas_thread
def summarize(
    study: Study,
    rows: Trajectories,
    ledger: EarlierReleases | None = None,
    fitted: MessageFit | None = None,
    common: CommonRepairs | None = None,
    *,
    n_sites: int | None = None,
    counting: bool = False,
) -> Message:
    """Make one site's message and check it by the disclosure rules; a refusal gives every reason.

    `ledger` holds the site's earlier releases, and the secret of its weights. `fdtr.exchange.release` writes the
    message and records it; here nothing but the secret is made. `fitted` is the fit behind the message, if there is
    one already. With differential privacy another fit would draw other noise and spend ε again, which the ledger
    refuses for the same patients. In a secure sum `common` is what all sites take out, as their counts say; with
    `counting` it is not known yet, and the ledger judges the patients alone. `n_sites` take part, as where these were
    counted; a roster says so itself.
    """
    study.require_shared()
    fitted = fitted or fit_message(study, rows)
    once = partial(_judge_patients if counting else _judge_once, study, rows, ledger) if ledger else None
    if study.rules.weighted and ledger and ledger.draws([], 1, make=False) is None:
        summarize(study, rows, fitted=fitted, common=common, n_sites=n_sites)  # a refusal leaves no secret behind
    if study.rules.by_block:
        weighted = weigh_message(study, rows, fitted, ledger, common, n_sites, make=True)
        return release_weighted(fitted.summary, weighted, study.rules, once, counted=common is not None)
    facts, summary = measure(rows, study.feature_map, fitted.fit, study.rules), fitted.summary
    if study.rules.weighted:
        draws = _draws(study, rows, ledger, make=True)
        summary = replace(summary, sums=weigh_alone(rows, study.feature_map, fitted.fit, study.rules, draws))
    if ledger and study.disclosure.epsilon is not None:
        _refuse_repeated(study, rows, ledger, fitted)
    return release(summary, facts, study.rules, once)


@on_one_blas_thread
def weigh_message(
    study: Study,
    rows: Trajectories,
    fitted: MessageFit,
    ledger: EarlierReleases | None,
    common: CommonRepairs | None = None,
    n_sites: int | None = None,
    *,
    make: bool,
) -> WeightedSums:
    """The weighted sums of a message, repaired. Weights come from the ledger's secret, which `make` lets be made.

    Without a secret they come from the study's seed, which everybody knows: for looking at what would be sent.
    `n_sites` as in `summarize`.
    """
    draws = _draws(study, rows, ledger, make=make)
    return weigh(rows, study.feature_map, fitted.fit, study.rules_among(n_sites), draws, common)


def count_message(
    study: Study,
    rows: Trajectories,
    ledger: EarlierReleases | None = None,
    fitted: MessageFit | None = None,
    n_sites: int | None = None,
) -> SiteCounts:
    """What a site counts before a secure sum of `n_sites`, after its own repairs; refuses where these leave nothing.

    Without that number it is judged as in the smallest sum that the study allows; a roster says the number itself.
    """
    return counts_of(summarize(study, rows, ledger, fitted, n_sites=n_sites, counting=True))


def counts_of(message: Message) -> SiteCounts:
    """The counts beside a message of a secure sum, before it is known what all sites take out."""
    if message.counts is None:
        raise ValueError("Only a study whose secure sums are judged on totals of counts has counts.")
    return message.counts


def _draws(study: Study, rows: Trajectories, ledger: EarlierReleases | None, *, make: bool) -> Draws:
    draws = ledger.draws(rows.ids, rows.horizon, make=make) if ledger else None
    return drawn(f"seed {study.learning.seed}".encode(), rows.ids, rows.horizon) if draws is None else draws


def is_made_from(
    study: Study, rows: Trajectories, sent: SiteSummary, ledger: EarlierReleases, common: CommonRepairs | None = None
) -> bool:
    """Whether a message is the one that the table gives now; True where nobody can tell, as with noise.

    `sent` may be rounded, as its part of a secure sum, from which all sites took out `common`: without it, only the
    round's own folder can tell.
    """
    if sent.sent_as and study.counts_first and common is None:
        return True
    if study.rules.noised or (study.rules.weighted and ledger.draws([], 1, make=False) is None):
        return True
    try:
        weighted = study.rules.weighted
        now = (summarize(study, rows, ledger, common=common) if weighted else fit_message(study, rows)).summary
    except DisclosureError:
        return False
    return now.sums.close_to(sent.sums, _ROUNDED) if sent.sent_as else sent.digest == now.digest


def _judge_once(study: Study, rows: Trajectories, ledger: EarlierReleases, summary: SiteSummary) -> Verdict:
    return ledger.judge(release_of(study, rows, summary))


def _judge_patients(study: Study, rows: Trajectories, ledger: EarlierReleases, summary: SiteSummary) -> Verdict:
    """Rule ONCE for the patients of a message whose numbers are not known yet."""
    withheld = np.flatnonzero(summary.sums.n == 0).tolist()
    return ledger.judge(release_of(study, rows, None, withheld))


def _refuse_repeated(study: Study, rows: Trajectories, ledger: EarlierReleases, fitted: MessageFit) -> None:
    before = ledger.repeated(release_of(study, rows, None))
    if before is not None and before != fitted.summary.digest:  # the same digest is the message that was sent
        raise DisclosureError(
            "ONCE",
            f"Site {rows.site!r} has released these patients for this study before, in the message {before[:12]}…. "
            "Another message would carry other noise, and two of them tell more than epsilon allows. Nothing was "
            "written. Use that message again; if it was never sent, strike it with `fdtr site withdraw`. Do not "
            "forward this message.",
        )


def release_of(
    study: Study, rows: Trajectories, summary: SiteSummary | None, withheld: Collection[int] = ()
) -> Release:
    """Ledger entry for `summary`; pass None before noise has been drawn, with the steps that will be `withheld`."""
    unknown = {step: "" for step in range(rows.horizon) if step not in withheld}
    return Release(
        study=study.fingerprint,
        feature_map=study.feature_fingerprint,
        site=rows.site,
        message=summary.digest if summary else "",
        content=summary.content if summary else "",
        margin=study.disclosure.once_margin,
        patients=rows.ids,
        steps=rows.lengths,
        released=_numbers_by_step(summary) if summary else unknown,
    )


def _numbers_by_step(summary: SiteSummary) -> dict[int, str]:
    """Digest of the numbers of each step that the message has sums of."""
    packed, present = summary.payload.packed(), np.flatnonzero(summary.sums.n).tolist()
    return {h: container.digest({}, {name: array[h : h + 1] for name, array in packed.items()}) for h in present}


def release_of_values(study: Study, rows: Trajectories, values: SiteValues) -> Release:
    """Ledger entry for `values`. It counts every patient of the table: the others were used to fit the policies."""
    return Release(
        study=study.fingerprint,
        feature_map=VALUES,
        site=values.site,
        message=values.digest,
        content=container.digest({}, values.packed()),
        margin=study.disclosure.once_margin,
        patients=rows.ids,
    )
