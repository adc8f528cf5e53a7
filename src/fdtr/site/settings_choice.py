"""Choose λ, w, c and what to share on the site's own folds where the study says "auto"; messages use fixed settings."""

import logging
from dataclasses import replace

import numpy as np

from fdtr import tuning
from fdtr.learners import federated
from fdtr.learners.backward import Settings
from fdtr.site.rows import tuning_folds
from fdtr.study import Study
from fdtr.trajectories import Trajectories
from fdtr.tuning import Candidate

log = logging.getLogger("fdtr.site")

MESSAGE_RIDGE = 0.01
"""λ of the local fit that messages come from where the study says "auto"."""


def choose_alone(study: Study, rows: Trajectories) -> Candidate:
    """λ for the site alone: the study's, or the one that the site's own folds choose if the study says "auto"."""
    return _choose(study, rows, replace(_grid(study), weights=(0.0,)), no_others(study))


def choose_together(study: Study, rows: Trajectories, others: federated.Others) -> Candidate:
    """λ, w and what to share: the study's, or those that the site's own folds choose where the study says "auto"."""
    return _choose(study, rows, _grid(study), others)


def score_together(study: Study, rows: Trajectories, others: federated.Others) -> tuning.Scores:
    """Both tuning criteria of every candidate that the study leaves open."""
    return _score(study, rows, _grid(study), others)


def settings_of(study: Study, ridge: float) -> Settings:
    """Settings with the study's c, ξ and η and this λ; where the study says "auto", c is the usual one."""
    learning = study.learning
    c = tuning.USUAL_PESSIMISM if learning.pessimism == "auto" else learning.pessimism
    return Settings(c, ridge, learning.failure_probability, learning.misspecification)


def message_settings(study: Study) -> Settings:
    """Settings of the fit behind a message: never tuned, so that all sites' targets are alike."""
    ridge = study.learning.ridge
    return settings_of(study, MESSAGE_RIDGE if ridge == "auto" else ridge)


def settings_for(study: Study, rows: Trajectories, others: federated.Others, chosen: Candidate) -> Settings:
    """Settings of a policy; if the study says "auto", the site's own folds choose c."""
    settings = settings_of(study, chosen.ridge)
    if study.learning.pessimism != "auto":
        return settings
    return replace(settings, pessimism=tuning.choose_pessimism(judge_pessimism(study, rows, others, chosen)))


def judge_pessimism(
    study: Study, rows: Trajectories, others: federated.Others, chosen: Candidate
) -> tuple[tuning.PessimismGain, ...]:
    """What other c would gain over the usual one on the site's own folds; empty if the study fixes c."""
    if study.learning.pessimism != "auto":
        return ()
    folds = tuning_folds(study, rows)
    settings = settings_of(study, chosen.ridge)
    return tuning.judge_pessimism(rows, study.feature_map, folds, others, chosen, settings)


def _choose(study: Study, rows: Trajectories, grid: tuning.Grid, others: federated.Others) -> Candidate:
    if len(grid.candidates) == 1:
        return grid.candidates[0]
    chosen = tuning.choose(_score(study, rows, grid, others))
    log.info("site %s: chose λ = %g, w = %g, sharing %ss", rows.site, chosen.ridge, chosen.sharing, chosen.share)
    return chosen


def _score(study: Study, rows: Trajectories, grid: tuning.Grid, others: federated.Others) -> tuning.Scores:
    features = study.feature_map
    folds = tuning_folds(study, rows)
    return tuning.score(tuning.sum_folds(rows, features, folds), others, features.n_shared, features.main_effects, grid)


def _grid(study: Study) -> tuning.Grid:
    """Candidates: the study's values, and the whole grid for settings that are "auto"."""
    learning, whole = study.learning, tuning.Grid()
    return tuning.Grid(
        ridges=whole.ridges if learning.ridge == "auto" else (learning.ridge,),
        weights=whole.weights if learning.sharing == "auto" else (learning.sharing,),
        shares=whole.shares if learning.share == "auto" else (learning.share,),
    )


def no_others(study: Study) -> federated.Others:
    """Sums of no other site: all are 0."""
    h, d0 = study.horizon, study.feature_map.n_shared
    return federated.Others(np.zeros((h, d0, d0)), np.zeros((h, d0)), np.zeros((h, d0)), 0.0)
