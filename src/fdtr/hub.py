"""The hub's part: add the sites' messages into one total, show what it says, and put the sites' values together."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.normal_equations import minimum_norm
from fdtr.disclosure import SiteValues, require_sites
from fdtr.errors import Implausible, OtherPayload, OtherShape, OtherStudy, SiteTwice
from fdtr.inference import Pooling, SiteValue, Suspicion, pool, suspicions
from fdtr.study import Study
from fdtr.summary import SiteSummary, Total, combine


def combine_messages(study: Study, messages: Sequence[SiteSummary]) -> Total:
    """Add the messages of a study's sites, refusing strangers, duplicates, and too few of them."""
    study.require_shared()
    for message in messages:
        _require_study(study, message)
        _require_payload(study, message)
    total = combine(messages)
    telling = [message for message in messages if message.sums.schur.any()]  # zeros are alike without being twins
    first: dict[bytes, str] = {}
    for message in telling:
        twin = first.setdefault(
            b"".join((array + 0.0).tobytes() for array in message.sums.packed().values()), message.site
        )
        if twin != message.site:
            raise SiteTwice(
                f"Sites {twin!r} and {message.site!r} sent the same sums: one site, under two names. "
                "Nothing was written. Leave one of them out."
            )
    if study.disclosure.payload == "schur":  # a Gram passed rules under which a site may be seen by itself
        constant = sum(c.effect == "shared" and c.level == "site" for c in study.covariates)
        present = np.sum([message.sums.n > 0 for message in messages], axis=0)
        require_sites(present.tolist(), study.disclosure.min_sites, constant)
    return total


def doubtful_messages(messages: Sequence[SiteSummary]) -> tuple[Suspicion, ...]:
    """The sites whose sums contradict the others', for a person to look into; nobody is left out for it."""
    return suspicions({message.site: message.sums for message in messages})


def pooled_coefficients(total: Total) -> NDArray[np.float64]:
    """S⁺s of every step, (H, d0): the shared coefficients as the totals show them.

    The average of the sites' own estimates θ̂⁰ would need a second upload.
    """
    known = total.significant
    pairs = zip(known.schur, known.schur_moment, strict=True)
    return np.stack([minimum_norm(schur, moment) for schur, moment in pairs])


@dataclass(frozen=True)
class PooledMethod:
    """One method by one estimator over the sites that told its value; `silent` are those that did not."""

    method: str
    estimator: str
    pooling: Pooling
    silent: tuple[str, ...]


def pool_values(study: Study, told: Sequence[SiteValues]) -> list[PooledMethod]:
    """Put the sites' values together, method by method: the plain mean, fixed effects and random effects."""
    names = [one.site for one in told]
    for one in told:
        _require_study(study, one)
        if names.count(one.site) > 1:
            raise SiteTwice(f"Site {one.site!r} told its values twice. Leave one of its files out.")
        if any(not -study.horizon <= value.value <= 2 * study.horizon for value in one.values):
            raise Implausible(
                f"Site {one.site!r} tells of a value far outside [0, {study.horizon}], where every value is. Ask it to "
                "evaluate again, with the same version of fdtr."
            )
    found: dict[tuple[str, str], list[SiteValue]] = {}
    for site in sorted(told, key=lambda one: one.site):
        for v in site.values:
            found.setdefault((v.method, v.estimator), []).append(
                SiteValue(site.site, v.value, v.standard_error, site.n)
            )
    everybody, possible = {*names}, (0.0, float(study.horizon))
    return [
        PooledMethod(*name, pool(values, possible), tuple(sorted(everybody - {value.site for value in values})))
        for name, values in found.items()
    ]


def _require_study(study: Study, part: SiteSummary | SiteValues) -> None:
    if part.fingerprint != study.fingerprint:
        raise OtherStudy(
            f"The message of site {part.site!r} belongs to another study (fingerprint {part.fingerprint[:12]}…, this "
            f"study's is {study.fingerprint[:12]}…). Nothing was written. Give every site the same study file."
        )


def _require_payload(study: Study, message: SiteSummary) -> None:
    """Sums or Grams, as the study asks, and of its shape."""
    sent, asked = "schur" if message.grams is None else "gram", study.disclosure.payload
    if sent != asked:
        raise OtherPayload(
            f'The message of site {message.site!r} has the payload "{sent}"; the study asks for "{asked}". Nothing was '
            "written. Ask the site to make its message with this study file, and delete this one."
        )
    study.check_shape(message.sums.horizon, message.sums.n_shared)
    if message.grams is not None and message.grams.n_features != study.feature_map.n_features:
        raise OtherShape(
            f"The message of site {message.site!r} has {message.grams.n_features} features; the study has "
            f"{study.feature_map.n_features}. It belongs to another study."
        )
