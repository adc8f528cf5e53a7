"""A site's policies: alone, with the others, and by Q-learning."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from fdtr import __version__
from fdtr.disclosure import judge, withheld_steps
from fdtr.disclosure.facts import measure
from fdtr.errors import NotRepeatable, OtherSite, OtherStudy
from fdtr.learners import baselines, federated, local
from fdtr.learners.backward import Fit, Settings, grams_of, sums_of
from fdtr.learners.private_fit import Noise, fit_private
from fdtr.policy import Policy
from fdtr.site.private import noise_of
from fdtr.site.settings import choose_alone, choose_together, message_settings, nobody, settings_for
from fdtr.site.tables import require_rows
from fdtr.study import Study
from fdtr.summary import SiteSummary, Total
from fdtr.trajectories import Trajectories
from fdtr.tuning import Candidate

Array = NDArray[np.float64]

log = logging.getLogger("fdtr.site")


@dataclass(frozen=True)
class MessageFit:
    """The `fit` that a message comes from, nothing in it tuned, and the `summary` that a site could send of it.

    `fit` is exact also where the study adds noise: it is for the site's own eyes.
    """

    fit: Fit = field(repr=False)
    summarized: Callable[[], SiteSummary] = field(repr=False, compare=False)

    @cached_property
    def summary(self) -> SiteSummary:
        """What the site could send, made when it is first asked for; with differential privacy noised, once."""
        return self.summarized()


@dataclass(frozen=True)
class LocalFit:
    """LDTR at one site: its `policy`, the settings `chosen` for it, `theta` (H, d); `message` is what it could send."""

    policy: Policy
    chosen: Candidate
    message: MessageFit = field(repr=False)

    @property
    def fit(self) -> Fit:
        """The fit that the summary comes from, exact where the study adds noise."""
        return self.message.fit

    @property
    def summary(self) -> SiteSummary:
        """What the site could send, the same at every look."""
        return self.message.summary

    @property
    def theta(self) -> Array:
        """(θ⁰, θᵏ) of every step, (H, d)."""
        return self.policy.theta


@dataclass(frozen=True)
class FederatedFit:
    """FDTR at one site: its `policy`, `theta` (H, d) and the `shared_coefficients` (H, d0) as this site sees them.

    `chosen` are the settings of the policy, as the study fixes them or as the site's own folds chose them.
    """

    policy: Policy
    chosen: Candidate
    fit: Fit = field(repr=False)

    @property
    def theta(self) -> Array:
        """(θ⁰, θᵏ) of every step, (H, d)."""
        return self.fit.theta

    @cached_property
    def shared_coefficients(self) -> Array:
        """θ⁰ of every step, (H, d0)."""
        return self.fit.theta[:, : self.policy.features.n_shared]


def fit_message(study: Study, rows: Trajectories, noise: Noise | None = None) -> MessageFit:
    """The local fit behind a message, with the study's fixed settings or those of every message.

    `noise` is what a study with differential privacy adds to the summary; OpenDP's where it is None. A summary with
    noise is another one at every call: `recomputed` is for those that have to be what was sent.
    """
    require_rows(study, rows)
    log.info("site %s: computing its sums", rows.site)
    fit = local.fit_local(rows, study.feature_map, message_settings(study))
    return MessageFit(fit, partial(_summary, study, rows, fit, noise))


def fit_local(study: Study, rows: Trajectories, noise: Noise | None = None) -> LocalFit:
    """LDTR (Algorithm 1) on one site's patients; `noise` as for `fit_message`."""
    message = fit_message(study, rows, noise)
    log.info("site %s: fitting alone", rows.site)
    chosen = choose_alone(study, rows)
    settings = settings_for(study, rows, nobody(study), chosen)
    same = settings == message_settings(study)
    fit = message.fit if same else local.fit_local(rows, study.feature_map, settings)
    return LocalFit(as_policy(study, rows.site, "LDTR", fit, chosen, settings), chosen, message)


def _summary(study: Study, rows: Trajectories, fit: Fit, noise: Noise | None) -> SiteSummary:
    """What the site could send: sums or Grams, noised or not, without the steps that the study withholds."""
    asked, n_shared = study.disclosure, study.feature_map.n_shared
    noised = asked.epsilon is not None
    grams = fit_private(rows, study.feature_map, message_settings(study), noise or noise_of(study)) if noised else None
    if asked.payload == "gram":
        summary = SiteSummary.of_grams(rows.site, study.fingerprint, grams or grams_of(fit), n_shared, noised)
    else:
        sums = grams.sums(n_shared) if grams else sums_of(fit, n_shared)
        summary = SiteSummary(rows.site, study.fingerprint, sums, noised=noised)
    if asked.small_step == "refuse":
        return summary
    rules = study.rules
    return summary.without(withheld_steps(judge(measure(rows, study.feature_map, fit, rules), rules)))


def fit_federated(
    study: Study, rows: Trajectories, total: Total | SiteSummary, own: SiteSummary | None = None
) -> FederatedFit:
    """FDTR (Algorithm 2) for one site, from the total of all sites' messages.

    `own` is the site's summary as it was sent; where it is None it is computed again from `rows`, which noise does not
    allow. `rows` may be a part of the site's patients while `own` stays what was sent.
    """
    require_rows(study, rows)
    if isinstance(total, SiteSummary):
        total = total.as_total()
    if total.fingerprint != study.fingerprint:
        raise OtherStudy(
            f"The total belongs to another study (fingerprint {total.fingerprint[:12]}…, this study's is "
            f"{study.fingerprint[:12]}…). Use the study file that the messages were made with."
        )
    own = own or recomputed(study, rows)
    if own.site != rows.site:
        raise OtherSite(f"The rows are those of site {rows.site!r}, the summary to subtract is that of {own.site!r}.")
    study.check_shape(total.sums.horizon, total.sums.n_shared)
    log.info("site %s: fitting with %d others", rows.site, len(total.sites) - 1)
    others = others_in(total, own)
    chosen = choose_together(study, rows, others)
    settings = settings_for(study, rows, others, chosen)
    fit = federated.fit_federated(rows, study.feature_map, settings, others, sharing=chosen.sharing, share=chosen.share)
    return FederatedFit(as_policy(study, rows.site, "FDTR", fit, chosen, settings), chosen, fit)


def recomputed(study: Study, rows: Trajectories) -> SiteSummary:
    """The summary of a site as it was sent, where that can be computed again."""
    if study.disclosure.epsilon is not None:
        raise NotRepeatable(
            f"The message of site {rows.site!r} carries noise (epsilon in the study) and cannot be computed again. "
            "Nothing was written. Use the message as it was sent: the copy kept at home is found by itself, any other "
            "copy is given as `own`, --own FILE."
        )
    return fit_message(study, rows).summary


def others_in(total: Total, own: SiteSummary) -> federated.Others:
    """The other sites' sums: the total without the site's own."""
    rest = (total - own).significant
    return federated.Others(rest.schur, rest.schur_moment, rest.schur_reward, float(rest.n[0]))


def fit_q_learning(study: Study, rows: Trajectories) -> dict[str, Policy]:
    """Q-learn (1) and Q-learn (H) on one site's patients."""
    require_rows(study, rows)
    fit = baselines.fit_q_learning(rows, study.feature_map)
    single = np.tile(fit.single, (study.horizon, 1))
    thetas = {"Q-learn (1)": single, "Q-learn (H)": fit.per_step}
    return {
        method: Policy(study.public, study.fingerprint, rows.site, method, __version__, theta, None, 0.0, 0.0)
        for method, theta in thetas.items()
    }


def as_policy(study: Study, site: str, method: str, fit: Fit, chosen: Candidate, settings: Settings) -> Policy:
    """A fit as a policy of its site, with what it was fitted with."""
    return Policy(
        study=study.public,
        fingerprint=study.fingerprint,
        site=site,
        method=method,
        version=__version__,
        theta=fit.theta,
        precision=fit.precision,
        scale=fit.penalty.scale,
        offset=fit.penalty.offset,
        settings={"pessimism": settings.pessimism, **vars(chosen)},
    )
