"""Which shared effects one site's data can tell, and why not the others."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.schur import RANK_TOLERANCE, eliminate

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Identified:
    """How much of a shared feature is left once the site's own effects are free.

    `retained` is the share of its variation that the site's own features do not absorb, averaged over steps, between
    0 and 1: S_jj over what S_jj would be beside the site's own intercept alone. `reason` says why nothing is left,
    else it is empty.
    """

    feature: str
    retained: float
    reason: str


def identify(
    grams: Sequence[Array], names: Sequence[str], n_shared: int, intercepts: Sequence[int]
) -> list[Identified]:
    """For each shared feature, how much information it carries at this site, and if none, why.

    `grams` are ΦᵀΦ of every step, `names` the d features, `intercepts` the positions of the site's own intercept and
    its action terms: a covariate that is constant within a site is absorbed by them.
    """
    shares = np.array([_retained(gram, n_shared, range(n_shared, len(names))) for gram in grams])
    beside_intercept = np.array([_retained(gram, n_shared, intercepts) for gram in grams])
    used = np.array([np.diagonal(gram)[:n_shared] > 0 for gram in grams])
    found = []
    for j in range(n_shared):
        reason = ""
        if not used[:, j].any():
            reason = "it is zero for every patient: its action is never used, or its covariate is at the range's end"
        elif shares[:, j].max() < RANK_TOLERANCE:
            constant = bool(len(intercepts)) and beside_intercept[:, j].max() < RANK_TOLERANCE
            reason = (
                "it is constant within the site, so the site's own intercept absorbs it"
                if constant
                else "it is a combination of the site's own features, which absorb it"
            )
        varying = beside_intercept[:, j] > RANK_TOLERANCE
        share = (
            float(np.mean(shares[varying, j] / beside_intercept[varying, j])) if varying.any() and not reason else 0.0
        )
        found.append(Identified(names[j], share, reason))
    return found


def _retained(gram: Array, n_shared: int, own: Sequence[int]) -> Array:
    """S_jj/Λ_jj of the shared features beside the features `own`, (d0,)."""
    kept = [*range(n_shared), *own]
    part = gram[np.ix_(kept, kept)]
    schur = eliminate(part, np.zeros((len(kept), 0)), n_shared).schur
    diagonal = np.diagonal(gram)[:n_shared]
    return np.clip(np.diagonal(schur) / np.where(diagonal > 0, diagonal, 1.0), 0.0, 1.0)
