"""Fit policies at one site: alone (LDTR), with the other sites' sums (FDTR), and by Q-learning."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from fdtr import __version__
from fdtr.algebra.care_models import CareModel
from fdtr.algebra.pessimism import NoiseUnits
from fdtr.algebra.threads import on_one_blas_thread
from fdtr.disclosure import judge, withheld_steps
from fdtr.disclosure.blocks import is_uneven
from fdtr.disclosure.facts import measure
from fdtr.disclosure.noise import Cost, expected_ratio, gaussian_noise, noise_scale
from fdtr.errors import NotRepeatable, OtherStudy, WrongSite
from fdtr.evaluation.step_arrays import step_arrays
from fdtr.evaluation.trees import fit_care
from fdtr.evaluation.verification import VerificationRules, verify_policy
from fdtr.learners import baselines, federated, local
from fdtr.learners.backward import Fit, Settings, grams_of, noise_levels
from fdtr.learners.finished_steps import goes_on
from fdtr.learners.private_fit import Noise, fit_private
from fdtr.policy import Policy
from fdtr.site.rows import JUDGED, require_rows, sampled
from fdtr.site.settings_choice import choose_alone, choose_together, message_settings, settings_for
from fdtr.study import Study
from fdtr.summary import SiteSummary, Total
from fdtr.trajectories import Step, Trajectories
from fdtr.tuning import Candidate, Choice
from fdtr.verified_policy import VerifiedPolicy

Array = NDArray[np.float64]

log = logging.getLogger("fdtr.site")


@dataclass(frozen=True)
class MessageFit:
    """The untuned local `fit` that a message comes from, and the `summary` that the site could send.

    `fit` is exact even if the study adds noise, so it must not leave the site.
    """

    fit: Fit = field(repr=False)
    summarized: Callable[[], SiteSummary] = field(repr=False, compare=False)

    @cached_property
    @on_one_blas_thread
    def summary(self) -> SiteSummary:
        """What the site could send, computed on first use; with differential privacy its noise is drawn once."""
        return self.summarized()


@dataclass(frozen=True)
class LocalFit(MessageFit):
    """LDTR at one site: its `policy` with the settings `chosen` for it, and the `summary` that the site could send.

    `policy_fit` is the fit behind the policy, `fit` the one behind the summary.
    """

    policy: Policy
    chosen: Candidate
    policy_fit: Fit = field(repr=False)

    @property
    def theta(self) -> Array:
        """(θ⁰, θᵏ) of every step, (H, d)."""
        return self.policy.theta


@dataclass(frozen=True)
class FederatedFit:
    """FDTR at one site: its `policy`, `theta` (H, d) and the `shared_coefficients` (H, d0) as this site sees them.

    `choice` says how the site's own folds judged sharing, `settings` are those of the fit.
    """

    policy: Policy
    choice: Choice
    settings: Settings = field(repr=False)
    policy_fit: Fit = field(repr=False)

    @property
    def chosen(self) -> Candidate:
        """The settings of the policy, as the study fixes them or as the site's own folds chose them."""
        return self.choice.candidate

    @property
    def theta(self) -> Array:
        """(θ⁰, θᵏ) of every step, (H, d)."""
        return self.policy_fit.theta

    @cached_property
    def shared_coefficients(self) -> Array:
        """θ⁰ of every step, (H, d0)."""
        return self.policy_fit.theta[:, : self.policy.features.n_shared]


@goes_on
@on_one_blas_thread
def fit_message(study: Study, rows: Trajectories, noise: Noise | None = None) -> MessageFit:
    """Fit the local model behind a site's message, with fixed settings (`message_settings`).

    `noise` replaces OpenDP's noise in a study with differential privacy. Such a study gives another summary at every
    call; `recomputed` refuses where the summary must equal the one that was sent.
    """
    require_rows(study, rows)
    log.info("site %s: computing its sums", rows.site)
    fit = local.fit_local(rows, study.feature_map, message_settings(study))
    return MessageFit(fit, partial(_summary, study, rows, fit, noise))


@goes_on
@on_one_blas_thread
def fit_local(study: Study, rows: Trajectories, noise: Noise | None = None) -> LocalFit:
    """Fit LDTR (Algorithm 1) to one site's patients, without any other site. `noise` as for `fit_message`.

    Step by step from the last, θ̂_h = (Φᵀ Φ + λI)⁻¹ Φᵀ Y with Y = r + V̂_{h+1}; the policy takes the action with the
    largest lower bound φᵀθ̂ − Γ, Γ = α √(φᵀ Σ⁻¹ φ). `help(fdtr)` has an example.
    """
    message = fit_message(study, rows, noise)
    log.info("site %s: fitting alone", rows.site)
    choice = choose_alone(study, rows, message.fit)
    chosen, settings = choice.candidate, settings_for(study, choice)
    same = settings == message_settings(study)
    fit = message.fit if same else local.fit_local(rows, study.feature_map, settings)
    policy = as_policy(study, rows.site, "LDTR", fit, chosen, settings)
    return LocalFit(message.fit, message.summarized, policy, chosen, fit)


def _summary(study: Study, rows: Trajectories, fit: Fit, noise: Noise | None) -> SiteSummary:
    """What the site could send: sums or Grams, noised or not, without the steps that the study withholds."""
    section, n_shared = study.disclosure, study.feature_map.n_shared
    noised = section.epsilon is not None
    if noised:
        grams = fit_private(rows, study.feature_map, message_settings(study), noise or noise_of(study))
    else:
        grams = grams_of(fit)
    sent = grams if section.payload == "gram" else None
    summary = SiteSummary(rows.site, study.fingerprint, grams.sums(n_shared), sent, noised=noised)
    if section.small_step == "refuse" or study.rules.by_block:
        return summary
    return summary.without(withheld_steps(judge(measure(rows, study.feature_map, fit, study.rules), study.rules)))


@goes_on
@on_one_blas_thread
def fit_federated(
    study: Study,
    rows: Trajectories,
    total: Total | SiteSummary,
    own: SiteSummary | None = None,
    *,
    receive_only: bool = False,
) -> FederatedFit:
    """Fit FDTR (Algorithm 2) at one site, from its own patients and the total of all sites' messages.

    The site subtracts its own summary from the total, which leaves the other sites' Σ_j S_j and Σ_j s_j, and adds w
    times these to its own normal equations of the shared effects. `own` is the summary as it was sent; without it the
    summary is computed again from `rows`, which is impossible if it carries noise. `rows` may be a part of the site's
    patients; `own` must be what was sent. A site that sent nothing may still learn from the others: with
    `receive_only` nothing is subtracted. `help(fdtr)` has an example.
    """
    require_rows(study, rows)
    if isinstance(total, SiteSummary):
        total = total.as_total()
    if total.fingerprint != study.fingerprint:
        raise OtherStudy(
            f"The total belongs to another study (fingerprint {total.fingerprint[:12]}…, this study's is "
            f"{study.fingerprint[:12]}…). Use the study file that the messages were made with."
        )
    if receive_only:
        if own is not None or rows.site in total.sites:
            raise WrongSite(f"Site {rows.site!r} is in the total, so that it cannot receive only.")
    else:
        own = own or recomputed(study, rows, total)
        if own.site != rows.site:
            raise WrongSite(f"The rows are of site {rows.site!r}, the summary to subtract is that of {own.site!r}.")
    study.check_shape(total.sums.horizon, total.sums.n_shared)
    others = others_in(study, total, own, rows)
    log.info("site %s: fitting with %d others", rows.site, len({*total.sites} - {rows.site}))
    choice = choose_together(study, rows, others)
    chosen, settings = choice.candidate, settings_for(study, choice)
    fit = federated.fit_federated(rows, study.feature_map, settings, others, sharing=chosen.sharing, share=chosen.share)
    return FederatedFit(as_policy(study, rows.site, "FDTR", fit, chosen, settings), choice, settings, fit)


@on_one_blas_thread
def verify(
    study: Study, rows: Trajectories, fit: LocalFit | FederatedFit, care: CareModel | None = None
) -> VerifiedPolicy:
    """The part of a fitted policy that the data of its site can verify: advice for some patients, in some states.

    `rows` are those it was fitted to. `care` is the model of what clinicians do, fitted to `rows` if None. Of more than
    `fdtr.site.rows.JUDGED` patients a sample is taken. [evaluation] of the study has the rules.
    `help(fdtr.VerifiedPolicy)` has an example.
    """
    require_rows(study, rows)
    rows = sampled(study, rows, JUDGED)
    section, features, arrays = study.evaluation, study.feature_map, step_arrays(rows)
    rules = VerificationRules(
        min_chance=section.min_chance,
        min_advantage=section.min_advantage,
        min_share=section.min_share,
        min_patients=study.disclosure.min_effective_sample_size,
    )
    care = fit_care(arrays, features, rows.cluster_codes()) if care is None else care
    verified = verify_policy(fit.policy, noise_levels(fit.policy_fit), care, arrays, rules)
    return replace(verified, sample=rows.sample)


def recomputed(study: Study, rows: Trajectories, total: Total) -> SiteSummary:
    """The summary of a site in a `total` of exact sums, computed again; refuses where only the one sent will do."""
    if study.disclosure.epsilon is None and total.mean_weight == 1.0:
        return fit_message(study, rows).summary
    why = "carries noise (epsilon in the study)" if study.disclosure.epsilon else "weights rows by a secret of the site"
    raise NotRepeatable(
        f"The message of site {rows.site!r} {why} and is not computed again. Nothing was written. Use the message as "
        "it was sent: the copy kept at home is found by itself, any other copy is given as `own`, --own FILE."
    )


def others_in(
    study: Study, total: Total, own: SiteSummary | None, rows: Trajectories | None = None
) -> federated.Others:
    """The other sites' sums: the total minus the site's own summary, without the mean weight of their rows.

    `own` is None for a site that sent nothing. Only rules for weighted messages leave sums uneven; actions that the
    patients of `rows` do not get at a step do not count.
    """
    rest, weight = (total if own is None else total - own).significant, total.mean_weight
    used = None if rows is None else [_actions_of(rows.step(h)) for h in range(rows.horizon)]
    return federated.Others(
        rest.schur / weight,
        rest.schur_moment / weight,
        rest.schur_reward / weight,
        float(rest.n[0]),
        uneven=weight < 1 and is_uneven(study.feature_map, rest.schur, used),
    )


def _actions_of(step: Step) -> set[int]:
    return {int(action) for chunk in step.chunks() for action in np.unique(chunk.actions)}


@on_one_blas_thread
def fit_q_learning(study: Study, rows: Trajectories) -> dict[str, Policy]:
    """Q-learn (1) and Q-learn (H) on one site's patients."""
    require_rows(study, rows)
    fit = baselines.fit_q_learning(rows, study.feature_map)
    single = np.tile(fit.single, (study.horizon, 1))
    thetas = {"Q-learn (1)": single, "Q-learn (H)": fit.per_step}
    return {
        method: Policy(study.public, study.fingerprint, rows.site, method, __version__, theta, None)
        for method, theta in thetas.items()
    }


def as_policy(study: Study, site: str, method: str, fit: Fit, chosen: Candidate, settings: Settings) -> Policy:
    """The policy of a fit, with the settings that it was fitted with."""
    return Policy(
        study=study.public,
        fingerprint=study.fingerprint,
        site=site,
        method=method,
        version=__version__,
        theta=fit.theta,
        precision=fit.precision,
        scale=tuple(penalty.scale for penalty in fit.penalties),
        offset=fit.penalties[0].offset,
        settings={
            "pessimism": as_written(settings.pessimism),
            **vars(chosen),
            **({"penalty": "own"} if settings.own_penalty else {}),
        },
    )


def as_written(pessimism: float | NoiseUnits) -> float | dict[str, float]:
    """Pessimism as a study file writes it: c, or { noise = κ }."""
    return {"noise": pessimism.noise} if isinstance(pessimism, NoiseUnits) else pessimism


def noise_of(study: Study) -> Noise:
    """The noise of one message, in a study with epsilon and delta."""
    return gaussian_noise(*_budget(study), study.horizon)


def cost_of(study: Study, fit: Fit, n_sites: int | None = None) -> Cost | None:
    """What differential privacy costs at `n_sites` like this one (default `min_sites`); None for a study without it.

    `fit` is the site's exact local fit.
    """
    if study.disclosure.epsilon is None:
        return None
    epsilon, delta = _budget(study)
    scale, n_sites = noise_scale(epsilon, delta, study.horizon), n_sites or study.disclosure.min_sites
    ratio = expected_ratio(fit, study.feature_map.n_shared, scale, n_sites)
    return Cost(epsilon, delta, scale, n_sites, ratio)


def _budget(study: Study) -> tuple[float, float]:
    section = study.disclosure
    if section.epsilon is None or section.delta is None:
        raise ValueError("The study asks for no differential privacy.")
    return section.epsilon, section.delta
