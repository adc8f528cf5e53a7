"""Choose by the site's own folds what the study leaves open with "auto"; messages use fixed settings."""

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from fdtr.algebra.pessimism import LowerBound, NoiseUnits
from fdtr.learners import federated
from fdtr.learners.backward import Fit, Settings
from fdtr.site.rows import tuning_folds
from fdtr.study import Study, sections
from fdtr.trajectories import Trajectories
from fdtr.tuning import Candidate, Choice, OwnPenalty, Scores, UsualCare, ladder, usual_care

log = logging.getLogger("fdtr.site")

MESSAGE_PESSIMISM, MESSAGE_RIDGE = 0.0005, 0.01
"""c and λ of the local fit that messages come from where the study gives no numbers."""


def choose_alone(study: Study, rows: Trajectories, message: Fit) -> Choice:
    """λ and pessimism for the site alone: the study's, or by its own folds. `message` is the fit behind its message."""
    return _choose(study, rows, _candidates(study, rows, sharing=0.0), no_others(study), lambda _w: message.bounds)


def choose_together(study: Study, rows: Trajectories, others: federated.Others) -> Choice:
    """λ, w, what to share and pessimism: the study's, or by the site's own folds where the study says "auto"."""
    candidates = _candidates(study, rows, _open_sharing(study, others))
    return _choose(study, rows, candidates, others, lambda w: reference(study, rows, others, w))


def score_together(
    study: Study,
    rows: Trajectories,
    others: federated.Others,
    candidates: Sequence[Candidate] | None = None,
    bounds: Sequence[Sequence[LowerBound]] | None = None,
) -> Scores:
    """Both tuning criteria of every candidate: by default those that the study leaves open.

    `bounds` are those of other fits that V_ref is taken from.
    """
    if candidates is None:
        candidates = _candidates(study, rows, _open_sharing(study, others))
    if bounds is None:
        bounds = [reference(study, rows, others, w) for w in _reference_weights(study, rows, candidates)]
    return _score(study, rows, tuple(candidates), others, bounds)


def reference(study: Study, rows: Trajectories, others: federated.Others, sharing: float) -> Sequence[LowerBound]:
    """Bounds that V_ref is taken from, at the settings of messages: of the site alone (w = 0), or of FDTR (w = 1)."""
    return federated.fit_federated(rows, study.feature_map, message_settings(study), others, sharing).bounds


def _reference_weights(study: Study, rows: Trajectories, candidates: Sequence[Candidate]) -> tuple[float, ...]:
    """Both references; FDTR's alone where patients are few, and the site's own where nothing may be shared."""
    if not any(candidate.sharing for candidate in candidates):
        return (0.0,)
    return (1.0,) if _has_few(study, rows) else (0.0, 1.0)


def message_settings(study: Study) -> Settings:
    """Settings of the fit behind a message: the study's numbers or fixed ones, so that all sites' targets are alike."""
    ridge, pessimism = study.learning.ridge, fixed_pessimism(study)
    in_use = MESSAGE_PESSIMISM if pessimism is None or isinstance(pessimism, NoiseUnits) else pessimism
    return settings_of(study, MESSAGE_RIDGE if ridge == "auto" else ridge, in_use)


def settings_for(study: Study, choice: Choice) -> Settings:
    """Settings of a policy, with what the site's own folds chose."""
    pessimism = choice.usual_care.pessimism if choice.usual_care else fixed_pessimism(study)
    if pessimism is None:
        raise ValueError("The study leaves pessimism open, and the choice does not say how usual care did.")
    own_penalty = choice.own_penalty is not None and choice.own_penalty.taken
    return replace(settings_of(study, choice.candidate.ridge, pessimism), own_penalty=own_penalty)


def settings_of(study: Study, ridge: float, pessimism: float | NoiseUnits) -> Settings:
    """Settings with this λ and pessimism, and the study's ξ and η."""
    return Settings(pessimism, ridge, study.learning.failure_probability, study.learning.misspecification)


def fixed_pessimism(study: Study) -> float | NoiseUnits | None:
    """The study's pessimism; None where it says "auto"."""
    written = study.learning.pessimism
    if written == "auto":
        return None
    return NoiseUnits(written.noise) if isinstance(written, sections.NoiseUnits) else written


def _choose(
    study: Study,
    rows: Trajectories,
    candidates: tuple[Candidate, ...],
    others: federated.Others,
    make_reference: Callable[[float], Sequence[LowerBound]],
) -> Choice:
    """Choose what the study leaves open. `make_reference` gives the bounds of `reference`, and is called if needed."""
    bounds = functools.cache(make_reference)
    choice = Choice(candidates[0], ())
    if len(candidates) > 1:
        references = [bounds(w) for w in _reference_weights(study, rows, candidates)]
        tolerance = ladder.tolerance_for(rows.n_patients, study.feature_map.n_features)
        scores = _score(study, rows, candidates, others, references)
        choice = ladder.choose(scores, tolerance, few=_has_few(study, rows))
    chosen = choice.candidate
    if study.learning.pessimism == "auto":
        # Later values are those of the site alone where it estimates them alone.
        later = bounds(1.0 if chosen.sharing and chosen.share == "value" else 0.0)
        choice = replace(choice, usual_care=_judge_care(study, rows, chosen, others, later))
        if others.uneven and chosen.sharing and chosen.share == "value":
            choice = replace(choice, own_penalty=_judge_penalty(study, rows, choice, others, later))
    if choice.rungs or choice.usual_care:
        log.info("site %s: chose λ = %g, w = %g, sharing %ss", rows.site, chosen.ridge, chosen.sharing, chosen.share)
    if choice.usual_care:
        log.info("site %s: chose noise = %g", rows.site, choice.usual_care.pessimism.noise)
    if choice.own_penalty:
        log.info("site %s: %s penalty", rows.site, "own" if choice.own_penalty.taken else "common")
    return choice


def _judge_care(
    study: Study, rows: Trajectories, chosen: Candidate, others: federated.Others, reference: Sequence[LowerBound]
) -> UsualCare:
    """How usual care did and, where it did better, whether a bolder policy's advice did better still."""
    features, folds = study.feature_map, tuning_folds(study, rows)
    care = usual_care.judge_usual_care(rows, features, folds, reference)
    if not care.better:
        return care
    pessimisms = (usual_care.CAUTIOUS_PESSIMISM, usual_care.USUAL_PESSIMISM)
    settings = settings_of(study, chosen.ridge, pessimisms[0])

    def fit(part: Trajectories) -> list[Sequence[LowerBound]]:
        fits = federated.fit_with_each(part, features, settings, others, chosen.sharing, chosen.share, pessimisms)
        return [fit.bounds for fit in fits]

    return replace(care, bolder=usual_care.compare_policies(rows, features, folds, reference, fit))


def _judge_penalty(
    study: Study, rows: Trajectories, choice: Choice, others: federated.Others, reference: Sequence[LowerBound]
) -> OwnPenalty:
    """Whether patients fared better with the advice of the site's own penalty than with that of uneven sums."""
    chosen, settings = choice.candidate, settings_for(study, choice)

    def fit(part: Trajectories) -> list[Sequence[LowerBound]]:
        each = [replace(settings, own_penalty=own) for own in (False, True)]
        fits = [federated.fit_federated(part, study.feature_map, one, others, chosen.sharing) for one in each]
        return [fit.bounds for fit in fits]

    folds = tuning_folds(study, rows)
    return OwnPenalty(usual_care.compare_policies(rows, study.feature_map, folds, reference, fit))


def _score(
    study: Study,
    rows: Trajectories,
    candidates: tuple[Candidate, ...],
    others: federated.Others,
    bounds: Sequence[Sequence[LowerBound]],
) -> Scores:
    features = study.feature_map
    sums = ladder.sum_folds(rows, features, tuning_folds(study, rows), bounds)
    return ladder.score(sums, others, features.n_shared, features.main_effects, candidates)


def _candidates(study: Study, rows: Trajectories, sharing: float | None) -> tuple[Candidate, ...]:
    """What is left open, with this w; None leaves w open."""
    learning = study.learning
    return ladder.candidates_of(
        ridge=None if learning.ridge == "auto" else learning.ridge,
        sharing=sharing,
        share=None if learning.share == "auto" else learning.share,
        few=_has_few(study, rows),
    )


def _has_few(study: Study, rows: Trajectories) -> bool:
    return ladder.has_few(rows.n_patients, study.feature_map.n_features)


def _open_sharing(study: Study, others: federated.Others) -> float | None:
    """The study's w; where it says "auto", 0 if the others' sums hold nothing, and None, left open, if they do."""
    written = study.learning.sharing
    if written != "auto":
        return written
    return None if others.schur.any() else 0.0


def no_others(study: Study) -> federated.Others:
    """Sums of no other site: all are 0."""
    h, d0 = study.horizon, study.feature_map.n_shared
    return federated.Others(np.zeros((h, d0, d0)), np.zeros((h, d0)), np.zeros((h, d0)), 0.0)
