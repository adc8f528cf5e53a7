"""The hub's part: add the sites' messages into one total, and show what the total says of the shared effects."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.ridge import minimum_norm
from fdtr.disclosure import require_sites
from fdtr.errors import OtherStudy, SiteTwice
from fdtr.study import Study
from fdtr.summary import SiteSummary, Total, combine


def combine_messages(study: Study, messages: Sequence[SiteSummary]) -> Total:
    """Add the messages of a study's sites, refusing strangers, duplicates, and too few of them."""
    for message in messages:
        if message.fingerprint != study.fingerprint:
            raise OtherStudy(
                f"The message of site {message.site!r} belongs to another study (fingerprint "
                f"{message.fingerprint[:12]}…, this study's is {study.fingerprint[:12]}…). Nothing was written. "
                "Give every site the same study file."
            )
        study.check_shape(message.sums.horizon, message.sums.n_shared)
    total = combine(messages)
    telling = [message for message in messages if message.sums.schur.any()]  # zeros are alike without being twins
    for i, message in enumerate(telling):
        twins = [other.site for other in telling[:i] if other.sums == message.sums]
        if twins:
            raise SiteTwice(
                f"Sites {twins[0]!r} and {message.site!r} sent the same sums: one site, under two names. "
                "Nothing was written. Leave one of them out."
            )
    constant = sum(c.effect == "shared" and c.level == "site" for c in study.covariates)
    require_sites(len(total.sites), study.disclosure.min_sites, constant)
    return total


def pooled_coefficients(total: Total) -> NDArray[np.float64]:
    """S⁺s of every step, (H, d0): the shared coefficients as the totals show them.

    The average of the sites' own estimates θ̂⁰ would need a second upload.
    """
    pairs = zip(total.sums.schur, total.sums.schur_moment, strict=True)
    return np.stack([minimum_norm(schur, moment) for schur, moment in pairs])
