"""What tests of tuning share: a study that leaves everything open, the other sites' sums, and targets from rows."""

import numpy as np

from fdtr.learners.federated import Others
from fdtr.site.fitting import fit_local
from fdtr.summary import combine

AUTO = {"pessimism": "auto", "ridge": "auto", "sharing": "auto", "share": "auto"}


def others_of(study, sites, name):
    summaries = {site: fit_local(study, rows).summary for site, rows in sites.items()}
    rest = (combine(summaries.values()) - summaries[name]).sums
    return Others(rest.schur, rest.schur_moment, rest.schur_reward, float(rest.n[0]))


def values_after(rows, features, h, bounds):
    """V_ref of what follows step h, for every row: of the next state, or the worth of an end."""
    future = np.zeros(rows.step(h).n)
    for chunk in rows.step(h).chunks():
        n_next = chunk.next_states.shape[1]
        future[n_next:] = chunk.ended_value
        for action in range(features.n_actions) if n_next and h + 1 < rows.horizon else ():
            bound = bounds[h + 1].bounds(features.psi(chunk.next_states))[action]
            future[:n_next] = np.maximum(future[:n_next], np.clip(bound, 0, rows.horizon - h - 1))
    return future
