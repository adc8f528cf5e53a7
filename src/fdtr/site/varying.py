"""How much a site's policy depends on c and w: who would be treated alike with other settings."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fdtr.learners import federated
from fdtr.policy import Policy
from fdtr.site.fits import FederatedFit, as_policy, others_in
from fdtr.site.settings import settings_of
from fdtr.study import Study
from fdtr.summary import SiteSummary, Total
from fdtr.trajectories import Trajectories

PESSIMISM = (0.0, 0.0005, 0.005, 0.05)
SHARING = (0.0, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Variation:
    """With another `value` of c or w, the share of decisions that stay the `same`."""

    setting: Literal["c", "w"]
    value: float
    same: float


def vary(
    study: Study, rows: Trajectories, total: Total, own: SiteSummary, fitted: FederatedFit
) -> tuple[Variation, ...]:
    """Other c with the chosen w, then other w with the chosen c; λ and what is shared stay as chosen."""
    others, chosen = others_in(total, own), fitted.chosen
    usual = replace(settings_of(study, chosen.ridge), pessimism=float(fitted.policy.settings["pessimism"]))
    asked: list[tuple[Literal["c", "w"], float]] = [("c", c) for c in PESSIMISM] + [("w", w) for w in SHARING]
    found = []
    for setting, value in asked:
        settings = replace(usual, pessimism=value) if setting == "c" else usual
        candidate = replace(chosen, sharing=value) if setting == "w" else chosen
        fit = federated.fit_federated(
            rows, study.feature_map, settings, others, sharing=candidate.sharing, share=candidate.share
        )
        policy = as_policy(study, rows.site, "FDTR", fit, candidate, settings)
        found.append(Variation(setting, value, _same(policy, fitted.policy, rows)))
    return tuple(found)


def _same(first: Policy, second: Policy, rows: Trajectories) -> float:
    alike = 0
    for h in range(rows.horizon):
        for chunk in rows.step(h).chunks():
            states = dict(zip(rows.covariates, chunk.states, strict=True))
            alike += int(np.sum(first.act(states, h) == second.act(states, h)))
    return alike / rows.n_rows
