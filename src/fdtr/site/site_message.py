"""A site's message, checked by disclosure, and the ledger entries of what it releases."""

from collections.abc import Collection

import numpy as np

from fdtr import container
from fdtr.disclosure import VALUES, EarlierReleases, Message, Release, SiteValues, release
from fdtr.disclosure.facts import measure
from fdtr.errors import DisclosureError
from fdtr.site.fitting import MessageFit, fit_message
from fdtr.study import Study
from fdtr.summary import SiteSummary
from fdtr.trajectories import Trajectories


def summarize(
    study: Study, rows: Trajectories, ledger: EarlierReleases | None = None, fitted: MessageFit | None = None
) -> Message:
    """Make one site's message and check it by the disclosure rules; a refusal gives every reason.

    `ledger` holds the site's earlier releases. It is only read here: `fdtr.exchange.release` writes the message
    and records it. `fitted` is the fit behind the message, if there is one already. With differential privacy
    another fit would draw other noise and spend ε again, which the ledger refuses for the same patients.
    """
    study.require_shared()
    fitted = fitted or fit_message(study, rows)
    facts = measure(rows, study.feature_map, fitted.fit, study.rules)
    once = None
    if ledger:
        if study.disclosure.epsilon is not None:
            _refuse_repeated(study, rows, ledger, fitted)
        once = ledger.judge(release_of(study, rows, fitted.summary))
    return release(fitted.summary, facts, study.rules, once)


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
        patients=rows.patients.to_pylist(),
        steps=_steps(rows),
        released=_numbers_by_step(summary) if summary else unknown,
    )


def _steps(rows: Trajectories) -> list[int]:
    """Number of steps of each patient, (n,): at every step, the patients who continue come first."""
    present = [*(rows.step(h).n for h in range(rows.horizon)), 0]
    steps: list[int] = np.repeat(np.arange(rows.horizon, 0, -1), -np.diff(present)[::-1]).tolist()
    return steps


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
        patients=rows.patients.to_pylist(),
    )
