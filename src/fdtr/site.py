"""A hospital's part: read its table, fit alone, make its message, and finish its policy from the total."""

import logging
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr import __version__, trajectories, tuning
from fdtr.disclosure import Message, Rules, Verdict, judge, measure, release
from fdtr.errors import OtherSite, OtherStudy
from fdtr.inference import FTest, Identified, identify, transition_test
from fdtr.learners import federated, local, qlearning
from fdtr.learners.backward import Fit, Settings, sums_of
from fdtr.policy import Policy
from fdtr.study import CategoricalBasis, Study
from fdtr.summary import SiteSummary, Total
from fdtr.trajectories import Trajectories
from fdtr.tuning import Candidate

Array = NDArray[np.float64]

log = logging.getLogger(__name__)

MESSAGE_RIDGE = 0.01
"""λ of the local fit that messages come from where the study says "auto"."""


@dataclass(frozen=True)
class LocalFit:
    """LDTR at one site: its `policy`, the `summary` it could send, and `theta` (H, d).

    `fit` is the fit that the summary comes from; `chosen` the settings of the policy.
    """

    policy: Policy
    summary: SiteSummary
    chosen: Candidate
    fit: Fit = field(repr=False)

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


@dataclass(frozen=True)
class SiteCheck:
    """What `fdtr check` shows of one site.

    `action_counts` (H, A) counts patients; `clipped` and `filled` count values by covariate; `identified` says what
    the shared features can contribute; `transitions` holds the F test of every step but the last; `verdicts` what
    disclosure would say.
    """

    site: str
    n_patients: int
    n_rows: int
    action_counts: NDArray[np.int64]
    clipped: dict[str, int]
    filled: dict[str, int]
    identified: list[Identified]
    transitions: list[FTest]
    verdicts: list[Verdict]


def read_trajectories(source: Any, study: Study, site: str | None = None) -> Trajectories:
    """Read a table of trajectories: CSV, Parquet (a file or a folder), or a dataframe; it may hold many sites.

    Every fault is found in one pass and reported together. `site` names the one site of a table without a site
    column, or picks one of several.
    """
    _require_study(study)
    found = trajectories.read(source, table_spec(study), site)
    log.info("read %d rows of %d patients at %d sites", found.n_rows, found.n_patients, len(found.sites))
    return found


def fit_local(study: Study, rows: Trajectories) -> LocalFit:
    """LDTR (Algorithm 1) on one site's patients."""
    _require_rows(study, rows)
    features = study.feature_map
    log.info("site %s: fitting alone", rows.site)
    message = local.fit_local(rows, features, message_settings(study))
    chosen = choose_alone(study, rows)
    settings = _settings_for(study, rows, _nobody(study), chosen)
    fit = message if settings == message_settings(study) else local.fit_local(rows, features, settings)
    return LocalFit(
        _policy(study, rows.site, "LDTR", fit, chosen, settings),
        SiteSummary(rows.site, study.fingerprint, sums_of(message, features.n_shared)),
        chosen,
        message,
    )


def fit_federated(
    study: Study, rows: Trajectories, total: Total | SiteSummary, own: SiteSummary | None = None
) -> FederatedFit:
    """FDTR (Algorithm 2) for one site, from the total of all sites' messages.

    `own` is the site's summary as it was sent; where it is None it is computed again from `rows`. `rows` may be a
    part of the site's patients while `own` stays what was sent.
    """
    _require_rows(study, rows)
    if isinstance(total, SiteSummary):
        total = total.as_total()
    if total.fingerprint != study.fingerprint:
        raise OtherStudy(
            f"The total belongs to another study (fingerprint {total.fingerprint[:12]}…, this study's is "
            f"{study.fingerprint[:12]}…). Use the study file that the messages were made with."
        )
    own = own or fit_local(study, rows).summary
    if own.site != rows.site:
        raise OtherSite(f"The rows are those of site {rows.site!r}, the summary to subtract is that of {own.site!r}.")
    study.check_shape(total.sums.horizon, total.sums.n_shared)
    log.info("site %s: fitting with %d others", rows.site, len(total.sites) - 1)
    others = others_in(total, own)
    chosen = choose_together(study, rows, others)
    settings = _settings_for(study, rows, others, chosen)
    fit = federated.fit_federated(rows, study.feature_map, settings, others, sharing=chosen.sharing, share=chosen.share)
    return FederatedFit(_policy(study, rows.site, "FDTR", fit, chosen, settings), chosen, fit)


def others_in(total: Total, own: SiteSummary) -> federated.Others:
    """The other sites' sums: the total without the site's own."""
    rest = (total - own).sums
    return federated.Others(rest.schur, rest.schur_moment, rest.schur_reward, float(rest.n[0]))


def choose_alone(study: Study, rows: Trajectories) -> Candidate:
    """λ for the site alone: the study's, or from the site's own folds where it says "auto"."""
    return _choose(study, rows, replace(_grid(study), weights=(0.0,)), _nobody(study))


def choose_together(study: Study, rows: Trajectories, others: federated.Others) -> Candidate:
    """λ, w and what to share: the study's, or from the site's own folds where it says "auto"."""
    return _choose(study, rows, _grid(study), others)


def score_together(study: Study, rows: Trajectories, others: federated.Others) -> tuning.Scores:
    """Both criteria of every setting that the study leaves open."""
    return _score(study, rows, _grid(study), others)


def _choose(study: Study, rows: Trajectories, grid: tuning.Grid, others: federated.Others) -> Candidate:
    if len(grid.candidates) == 1:
        return grid.candidates[0]
    chosen = tuning.choose(_score(study, rows, grid, others))
    log.info("site %s: chose λ = %g, w = %g, sharing %ss", rows.site, chosen.ridge, chosen.sharing, chosen.share)
    return chosen


def _score(study: Study, rows: Trajectories, grid: tuning.Grid, others: federated.Others) -> tuning.Scores:
    features = study.feature_map
    folds = tuning.assign_folds(rows.patients.to_pylist(), study.learning.seed)
    return tuning.score(tuning.sum_folds(rows, features, folds), others, features.n_shared, features.main_effects, grid)


def _grid(study: Study) -> tuning.Grid:
    """The whole grid where the study says "auto", the study's value where it has one."""
    learning, whole = study.learning, tuning.Grid()
    return tuning.Grid(
        ridges=whole.ridges if learning.ridge == "auto" else (learning.ridge,),
        weights=whole.weights if learning.sharing == "auto" else (learning.sharing,),
        shares=whole.shares if learning.share == "auto" else (learning.share,),
    )


def _nobody(study: Study) -> federated.Others:
    d0 = study.feature_map.n_shared
    return federated.Others(
        np.zeros((study.horizon, d0, d0)), np.zeros((study.horizon, d0)), np.zeros((study.horizon, d0)), 0.0
    )


def fit_q_learning(study: Study, rows: Trajectories) -> dict[str, Policy]:
    """Q-learn (1) and Q-learn (H) on one site's patients."""
    _require_rows(study, rows)
    fit = qlearning.fit_q(rows, study.feature_map)
    single = np.tile(fit.single, (study.horizon, 1))
    thetas = {"Q-learn (1)": single, "Q-learn (H)": fit.per_step}
    return {
        method: Policy(study.public, study.fingerprint, rows.site, method, __version__, theta, None, 0.0, 0.0)
        for method, theta in thetas.items()
    }


def summarize(study: Study, rows: Trajectories) -> Message:
    """The message of one site, checked by disclosure; refuses with every reason."""
    fitted = fit_local(study, rows)
    return release(fitted.summary, measure(rows, study.feature_map, fitted.fit), rules_of(study))


def rules_of(study: Study) -> Rules:
    """The thresholds of the study; unit scaling bounds ‖φ‖ by 1."""
    asked = study.disclosure
    bound = asked.norm_bound if asked.norm_bound is not None else (1.0 if study.features.scale == "unit" else None)
    return Rules(asked.min_patients, asked.max_ratio, asked.min_action, bound)


def check(study: Study, rows: Trajectories, fitted: LocalFit | None = None) -> SiteCheck:
    """Everything there is to know about a site's table before it takes part."""
    features = study.feature_map
    fitted = fitted or fit_local(study, rows)
    sums = fitted.fit.statistics
    return SiteCheck(
        site=rows.site,
        n_patients=rows.n_patients,
        n_rows=rows.n_rows,
        action_counts=np.stack([step.action_counts for step in sums]),
        clipped=dict(rows.clipped),
        filled=dict(rows.filled),
        identified=identify([step.gram for step in sums], features.names, features.n_shared, features.own_intercepts),
        transitions=[
            transition_test(step.gram, step.value_moment, step.value_square, step.n, features.n_shared)
            for step in sums[:-1]
        ],
        verdicts=judge(measure(rows, features, fitted.fit), rules_of(study)),
    )


def settings_of(study: Study, ridge: float) -> Settings:
    """c (the usual one where the study says "auto"), ξ and η of the study, with a λ."""
    learning = study.learning
    c = tuning.USUAL_PESSIMISM if learning.pessimism == "auto" else learning.pessimism
    return Settings(c, ridge, learning.failure_probability, learning.misspecification)


def _settings_for(study: Study, rows: Trajectories, others: federated.Others, chosen: Candidate) -> Settings:
    """Settings of a policy, with c from the site's own folds where the study says "auto"."""
    settings = settings_of(study, chosen.ridge)
    if study.learning.pessimism != "auto":
        return settings
    return replace(settings, pessimism=tuning.choose_pessimism(judge_pessimism(study, rows, others, chosen)))


def judge_pessimism(
    study: Study, rows: Trajectories, others: federated.Others, chosen: Candidate
) -> tuple[tuning.Pessimism, ...]:
    """What other c would gain over the usual one, by the site's own folds; empty where the study fixes c."""
    if study.learning.pessimism != "auto":
        return ()
    folds = tuning.assign_folds(rows.patients.to_pylist(), study.learning.seed)
    settings = settings_of(study, chosen.ridge)
    return tuning.judge_pessimism(rows, study.feature_map, folds, others, chosen, settings)


def message_settings(study: Study) -> Settings:
    """Settings of the fit that a message comes from: fixed, never tuned, so that everybody's targets are alike."""
    ridge = study.learning.ridge
    return settings_of(study, MESSAGE_RIDGE if ridge == "auto" else ridge)


def table_spec(study: Study) -> trajectories.TableSpec:
    """What the reader has to know of the study."""
    columns = study.columns
    return trajectories.TableSpec(
        horizon=study.horizon,
        covariates=tuple(
            trajectories.Covariate(
                name=covariate.name,
                column=columns.of(covariate.name),
                low=covariate.range[0],
                high=covariate.range[1],
                levels=covariate.basis.levels if isinstance(covariate.basis, CategoricalBasis) else None,
                missing=covariate.missing,
                constant_within_site=covariate.level == "site",
            )
            for covariate in study.covariates
        ),
        action_levels=study.actions.levels,
        reward_low=study.reward.range[0],
        reward_high=study.reward.range[1],
        ends=study.ends,
        site=columns.site,
        patient=columns.patient,
        step=columns.step,
        action=columns.action,
        reward=columns.reward,
        end=columns.end,
    )


def _require_study(study: Study) -> None:
    if not isinstance(study, Study):
        raise TypeError(
            f"A Study is needed, not {type(study).__name__}: Study.load(path) or Study.model_validate({{…}})."
        )


def _require_rows(study: Study, rows: Trajectories) -> None:
    _require_study(study)
    if not isinstance(rows, Trajectories):
        raise TypeError(f"Trajectories are needed, not {type(rows).__name__}: read_trajectories(table, study).")
    if rows.meaning != table_spec(study).meaning:
        raise OtherStudy("The rows were read with another study. Read them again with this one.")


def _policy(study: Study, site: str, method: str, fit: Fit, chosen: Candidate, settings: Settings) -> Policy:
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
