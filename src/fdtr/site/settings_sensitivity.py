"""Sensitivity of a site's policy to c and w: the share of decisions that stay the same with other settings."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fdtr.learners import federated
from fdtr.policy import Policy
from fdtr.site.fitting import FederatedFit, as_policy, others_in
from fdtr.site.settings_choice import settings_of
from fdtr.study import Study
from fdtr.summary import SiteSummary, Total
from fdtr.trajectories import Trajectories

PESSIMISM = (0.0, 0.0005, 0.005, 0.05)
SHARING = (0.0, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Variation:
    """The share of decisions that stay the `same` with another `value` of c or w."""

    setting: Literal["c", "w"]
    value: float
    same: float


def vary(
    study: Study, rows: Trajectories, total: Total, own: SiteSummary, fitted: FederatedFit
) -> tuple[Variation, ...]:
    """Vary c with the chosen w, then w with the chosen c; λ and what is shared stay as chosen."""
    others, chosen = others_in(total, own), fitted.chosen
    usual = replace(settings_of(study, chosen.ridge), pessimism=float(fitted.policy.settings["pessimism"]))
    values: list[tuple[Literal["c", "w"], float]] = [("c", c) for c in PESSIMISM] + [("w", w) for w in SHARING]
    variations = []
    for setting, value in values:
        settings = replace(usual, pessimism=value) if setting == "c" else usual
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
