"""Where a study says "auto", a site chooses from its own folds; messages come from fixed settings."""

import logging
from dataclasses import replace

import numpy as np

from fdtr import tuning
from fdtr.learners import federated
from fdtr.learners.backward import Settings
from fdtr.site.folds import tuning_folds
from fdtr.study import Study
from fdtr.trajectories import Trajectories
from fdtr.tuning import Candidate

log = logging.getLogger("fdtr.site")

MESSAGE_RIDGE = 0.01
"""λ of the local fit that messages come from where the study says "auto"."""


def choose_alone(study: Study, rows: Trajectories) -> Candidate:
    """λ for the site alone: the study's, or from the site's own folds where it says "auto"."""
    return _choose(study, rows, replace(_grid(study), weights=(0.0,)), nobody(study))


def choose_together(study: Study, rows: Trajectories, others: federated.Others) -> Candidate:
    """λ, w and what to share: the study's, or from the site's own folds where it says "auto"."""
    return _choose(study, rows, _grid(study), others)


def score_together(study: Study, rows: Trajectories, others: federated.Others) -> tuning.Scores:
    """Both criteria of every setting that the study leaves open."""
    return _score(study, rows, _grid(study), others)


def settings_of(study: Study, ridge: float) -> Settings:
    """c (the usual one where the study says "auto"), ξ and η of the study, with a λ."""
    learning = study.learning
    c = tuning.USUAL_PESSIMISM if learning.pessimism == "auto" else learning.pessimism
    return Settings(c, ridge, learning.failure_probability, learning.misspecification)


def message_settings(study: Study) -> Settings:
    """Settings of the fit that a message comes from: fixed, never tuned, so that everybody's targets are alike."""
    ridge = study.learning.ridge
    return settings_of(study, MESSAGE_RIDGE if ridge == "auto" else ridge)


def settings_for(study: Study, rows: Trajectories, others: federated.Others, chosen: Candidate) -> Settings:
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
    """The whole grid where the study says "auto", the study's value where it has one."""
    learning, whole = study.learning, tuning.Grid()
    return tuning.Grid(
        ridges=whole.ridges if learning.ridge == "auto" else (learning.ridge,),
        weights=whole.weights if learning.sharing == "auto" else (learning.sharing,),
        shares=whole.shares if learning.share == "auto" else (learning.share,),
    )


def nobody(study: Study) -> federated.Others:
    """No other site: all sums are 0."""
    d0 = study.feature_map.n_shared
    return federated.Others(
        np.zeros((study.horizon, d0, d0)), np.zeros((study.horizon, d0)), np.zeros((study.horizon, d0)), 0.0
    )
