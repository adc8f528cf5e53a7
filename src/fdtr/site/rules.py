"""What the study asks before a site's sums may leave it."""

from collections.abc import Collection

import numpy as np

from fdtr import container
from fdtr.disclosure import VALUES, Release, SiteValues
from fdtr.study import Study
from fdtr.summary import SiteSummary
from fdtr.trajectories import Trajectories


def release_of(
    study: Study, rows: Trajectories, summary: SiteSummary | None, withheld: Collection[int] = ()
) -> Release:
    """A summary as the ledger knows it; None: one whose noise is not drawn yet, to be sent without steps `withheld`."""
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
    """How many steps each patient has; those who go on are the first of every step."""
    present = [*(rows.step(h).n for h in range(rows.horizon)), 0]
    steps: list[int] = np.repeat(np.arange(rows.horizon, 0, -1), -np.diff(present)[::-1]).tolist()
    return steps


def _numbers_by_step(summary: SiteSummary) -> dict[int, str]:
    """Digest of the numbers of every step that the message has sums of."""
    packed, present = summary.payload.packed(), np.flatnonzero(summary.sums.n).tolist()
    return {h: container.digest({}, {name: array[h : h + 1] for name, array in packed.items()}) for h in present}


def release_of_values(study: Study, rows: Trajectories, told: SiteValues) -> Release:
    """Values as the ledger knows them: of every patient of the table, for those not valued were fitted to."""
    return Release(
        study=study.fingerprint,
        feature_map=VALUES,
        site=told.site,
        message=told.digest,
        content=container.digest({}, told.packed()),
        margin=study.disclosure.once_margin,
        patients=rows.patients.to_pylist(),
    )
