"""What the study asks before a site's sums may leave it."""

from collections.abc import Collection

import numpy as np

from fdtr import container
from fdtr.disclosure import VALUES, Release, Rules, SiteValues
from fdtr.study import Study
from fdtr.summary import SiteSummary
from fdtr.trajectories import Trajectories


def rules_of(study: Study) -> Rules:
    """The thresholds of the study; unit scaling bounds ‖φ‖ by 1."""
    asked = study.disclosure
    bound = asked.norm_bound if asked.norm_bound is not None else (1.0 if study.features.scale == "unit" else None)
    return Rules(
        payload=asked.payload,
        min_patients=asked.min_patients,
        max_ratio=asked.max_ratio,
        min_action=asked.min_action,
        min_cell=asked.min_cell,
        max_leverage=asked.max_leverage,
        norm_bound=bound,
        max_patients=asked.max_patients,
        small_step=asked.small_step,
        noised=asked.epsilon is not None,
    )


def release_of(
    study: Study, rows: Trajectories, summary: SiteSummary | None, withheld: Collection[int] = ()
) -> Release:
    """A summary as the ledger knows it; None: one whose noise is not drawn yet, to be sent without steps `withheld`."""
    counted = summary.sums.n if summary else [step not in withheld for step in range(rows.horizon)]
    return Release(
        study=study.fingerprint,
        feature_map=map_fingerprint(study),
        site=rows.site,
        message=summary.digest if summary else "",
        content=content_of(summary) if summary else "",
        margin=study.disclosure.once_margin,
        patients=rows.patients.to_pylist(),
        steps=_steps(rows),
        released=np.flatnonzero(counted).tolist(),
    )


def _steps(rows: Trajectories) -> list[int]:
    """How many steps each patient has; those who go on are the first of every step."""
    present = [*(rows.step(h).n for h in range(rows.horizon)), 0]
    steps: list[int] = np.repeat(np.arange(rows.horizon, 0, -1), -np.diff(present)[::-1]).tolist()
    return steps


def content_of(summary: SiteSummary) -> str:
    """Digest of the numbers alone, the same whatever study and site are called."""
    return container.digest({}, summary.payload.packed())


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


def map_fingerprint(study: Study) -> str:
    """SHA-256 of what makes φ: studies that differ in labels, order or thresholds alone have the same features."""
    public = study.public
    actions = {key: value for key, value in public["actions"].items() if key not in ("labels", "cuts")}
    if actions["basis"] != "polynomial":
        del actions["degree"]
    covariates = [{key: value for key, value in c.items() if key != "level"} for c in public["covariates"]]
    covariates.sort(key=lambda covariate: str(covariate["name"]))
    return container.fingerprint({"actions": actions, "covariates": covariates, "features": public["features"]})
